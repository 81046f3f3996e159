"""Stations of the rollout's story in which something goes wrong: a canary, its quarantine, and a joiner."""

import asyncio
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from pvbus.cli.demos.deploying import BROKEN
from pvbus.cli.demos.rollout import (
    CANARY,
    Scene,
    is_canary,
    progressing,
    release,
    revisions_of,
    status_of_policy,
)
from pvbus.cli.demos.story import LOOK_SECONDS, Fleet, Step
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Kind

QUARANTINE = Kind(PROMOTION_GROUP, "Quarantine")
JOINER = "asia-99"
JOINER_VARIANT = f"web-edge-asia-{JOINER}-web"
OTHER_VARIANT = "web-edge-africa-africa-01-web"
NUMBER = 2
CLUSTER = f"""\
apiVersion: fleet.example.dev/v1
kind: Cluster
metadata: {{name: {JOINER}, namespace: default, labels: {{region: asia, stage: production}}}}
spec: {{nodes: 3, replicas: 2, serviceCidr: 10.255.0.0/16}}
"""

# ------------------------------------------------------------ the canary


def canary(scene: Scene) -> tuple[Iterable[Step], Iterable[Step]]:
    """Return the steps that bring a bad revision to the canary, and those that show what becomes of it."""
    begins = Step(
        f"The blueprint's second revision goes out. Its image, {BROKEN}, runs nowhere, but nobody knows it.",
        f"{release(scene, NUMBER, BROKEN)}",
        _await_lagging,
    )
    ends = Step(
        "Its Application says at last that it is degraded: the attempt fails, and is rolled back.",
        "kubectl wait rolloutpolicy/web --for=jsonpath='{.status.phase}'=RolledBack --timeout=600s\n"
        f"pvbus rollout history default/web{scene.options}",
        _nobody_else,
        shows="CanaryFailed",
    )
    return (begins,), (ends,)


async def _await_lagging(fleet: Fleet) -> str:
    async def is_lagging() -> bool:
        status = await status_of_policy(fleet)
        return "Evidence" in str(progressing(status)["message"])

    seconds = await fleet.until(is_lagging, "the canary does not wait for its evidence")
    message = progressing(await status_of_policy(fleet))["message"]
    lags = "only the canary has it, and its Application lags, so it proves nothing"
    return f"after {seconds:.0f} s {lags}: {message}"


async def _nobody_else(fleet: Fleet) -> str:
    """Look who got the bad revision. Raises PermanentError if that is not the canary alone."""
    brought = [obj for obj in await revisions_of(fleet, NUMBER) if lifecycle_of(obj) == "Published"]
    others = [obj["metadata"]["name"] for obj in brought if not is_canary(obj)]
    if others or not brought:
        raise PermanentError(
            f"not the canary alone got the bad revision: {', '.join(others) or 'nobody did'}"
        )
    return f"of all clusters {CANARY} alone had {BROKEN}, for a moment"


# ------------------------------------------------------------ the quarantine


def quarantine(scene: Scene) -> Iterable[Step]:
    """Return the station of what keeps the bad revision from going out again."""
    return (
        Step(
            "The bad revision is quarantined: no policy approves it, and no person without a reason.",
            f"pvbus rollout quarantines{scene.options}\n"
            f"pvbus approve pv/default/{OTHER_VARIANT} --yes{scene.options}",
            _is_quarantined,
            codes=(1,),
            shows="or say why it goes out all the same: pvbus approve --override REASON",
        ),
    )


async def _is_quarantined(fleet: Fleet) -> str:
    """Look at the quarantine. Raises PermanentError if it covers something else, or did not hold."""
    found = [each["spec"] for each in await fleet.all(QUARANTINE) if not each["spec"].get("released")]
    covered = [each["revision"] for spec in found for each in spec.get("upstreams") or ()]
    if covered != [f"blueprints/web@v{NUMBER}"]:
        raise PermanentError(f"quarantined is {', '.join(covered) or 'nothing'}")
    proposals = [obj for obj in await revisions_of(fleet, NUMBER) if lifecycle_of(obj) == "Proposed"]
    published = [obj for obj in await revisions_of(fleet, NUMBER) if lifecycle_of(obj) == "Published"]
    if len(published) > 1:
        raise PermanentError("somebody else got what is quarantined")
    return f"{covered[0]} is quarantined; {len(proposals)} proposals of it wait, and none was approved"


# ------------------------------------------------------------ the joiner


def joiner(scene: Scene) -> Iterable[Step]:
    """Return the station of a cluster that joins while its set follows a quarantined revision."""
    options = scene.options.split()

    async def waits(fleet: Fleet) -> str:
        return await _await_waiting(fleet, options)

    name = f"packagevariant/{JOINER_VARIANT}"
    return (
        Step(
            "A cluster joins meanwhile. Its set still follows the bad revision.",
            f"kubectl apply -f - <<'END'\n{CLUSTER}END\n"
            f"kubectl wait {name} --for=create --timeout=60s\n"
            f"kubectl annotate {name} {AUTO_LIFECYCLE}=true",
            waits,
        ),
        Step(
            "Why its draft stays a draft.",
            f"pvbus explain default/{JOINER_VARIANT}{scene.options} | grep -i quarantine",
            _got_nothing,
        ),
    )


async def _await_waiting(fleet: Fleet, options: list[str]) -> str:
    async def is_kept() -> bool:
        return "quarantine" in str(await _explain(options)).lower()

    seconds = await fleet.until(is_kept, f"the draft of {JOINER} is not kept by the quarantine")
    return f"{JOINER_VARIANT} is there, with a draft, after {seconds:.0f} s"


async def _explain(options: list[str]) -> Any:
    """Return what `pvbus explain` says of the joiner, {} if it does not know it yet."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pvbus.cli", "explain", f"default/{JOINER_VARIANT}"),
        *("-o", "json", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return msgspec.json.decode(output) if process.returncode == 0 else {}


async def _got_nothing(fleet: Fleet) -> str:
    """Look what the joiner has. Raises PermanentError if anything of it went out."""
    await asyncio.sleep(LOOK_SECONDS)
    own = [obj for obj in await revisions_of(fleet, NUMBER) if obj["spec"]["packageName"] == f"{JOINER}-web"]
    states = [lifecycle_of(obj) for obj in own]
    if states != ["Draft"]:
        raise PermanentError(f"the joiner's revisions are {', '.join(states) or 'none'}")
    return f"{JOINER} got nothing: its one revision is a draft"
