"""The story of a rollout, in stations: a canary that fails, a train, a quarantine, a joiner, gates, waves.

This module has what all stations share, their order, and the last two: a revision whose drafts wait for
programs and a person, and that turns bad in its second wave. The commands are run as they are printed; every
figure is read from the API server and from git.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pvbus.cli.demos.deploying import (
    APPLICATION,
    APPLICATIONS,
    DEFINITION,
    EVIDENCE,
    FORMER,
    LOAD_MIN,
    MENDED,
)
from pvbus.cli.demos.story import Fleet, Step, condition, counted, first_published, is_settled
from pvbus.cli.live import REVISION
from pvbus.cli.progress import VARIANT
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Kind, Object

POLICY = Kind(PROMOTION_GROUP, "RolloutPolicy")
CANARY = "asia-01"
CANARY_VARIANT = f"web-edge-asia-{CANARY}-web"
ADDRESSED, LICENSED = "example.dev/AddressAssigned", "example.dev/Licensed"
VALIDATED = "validator.pvbus.dev/replicas"
BAD_WAVE = 2
_OVER = ("Stopped", "Aborted", "Completed")
_UNDONE = ("Isolating", "RollingBack", "RolledBack")

STATIONS: Mapping[str, tuple[str, ...]] = {
    "canary": (),
    "train": (),
    "quarantine": ("canary",),
    "joiner": ("canary",),
    "gates": (),
    "waves": ("gates",),
}
"""The stations in their order, each with those that it needs."""

VALIDATOR = """\
apiVersion: fn.kpt.dev/v1alpha1
kind: StarlarkRun
metadata:
  name: replicas
  annotations: {config.kubernetes.io/local-config: "true"}
source: |
  found = [each for each in ctx.resource_list["items"] if each["kind"] == "Deployment"]
  few = {"message": "fewer than 2 replicas", "severity": "error"}
  ctx.resource_list["results"] = [few for each in found if each["spec"]["replicas"] < 2]
"""
GATES = f"""\
  readinessGates:
  - conditionType: {ADDRESSED}
  - conditionType: {LICENSED}
  - conditionType: {VALIDATED}
"""
VALIDATORS = """\
  validators:
  - name: replicas
    image: ghcr.io/kptdev/krm-functions-catalog/starlark:v0.5
    configPath: replicas-check.yaml
"""
QUERY = "query: {expression: web_errors_per_second, max: 1, window: 5s}"
OBJECT = (
    "object: {apiVersion: v1, kind: ConfigMap, name: web-health, "
    "expression: 'object.data.healthy == \"true\"'}"
)
ROLLOUT = """\
apiVersion: promotion.pvbus.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: web, namespace: default}
spec:
  revisions: {set: web}
  approval: Always
  settle: 1s
  canaries: [CANARY]
  waves:
  - {percent: 1}
  - {percent: 50, hold: 5s, checks: [{name: health, CHECK}]}
  - {percent: 100}
  budgets: {onFailure: RollBack}
EVIDENCE"""


class Scene(NamedTuple):
    """Where the story happens.

    options: the options for pvbus
    example: the folder of the fleet's repositories
    work: a folder for the clone of the blueprints
    has_metric: whether there is a Prometheus; without one an object has the fleet's health
    """

    options: str
    example: str
    work: str
    has_metric: bool

    @property
    def commit(self) -> str:
        return f"git -C {self.work} -c user.name=me -c user.email=me@example.dev commit --quiet"


def with_needed(stations: Collection[str]) -> list[str]:
    """Return these stations and those that they need, in their order; all of them without any."""
    wanted = {*stations} or {*STATIONS}
    wanted |= {needed for name in wanted for needed in STATIONS[name]}
    return [name for name in STATIONS if name in wanted]


# ------------------------------------------------------------ before all stations


def begin(scene: Scene) -> Iterable[Step]:
    """Return the steps that all stations need: packages, who deploys them, and a policy."""
    check = QUERY if scene.has_metric else OBJECT
    policy = ROLLOUT.replace("EVIDENCE", EVIDENCE).replace("CANARY", CANARY_VARIANT).replace("CHECK", check)
    return (
        Step(
            "The fleet is live: a person proposes and approves the first drafts.",
            f"pvbus propose --set default/web{scene.options}\n"
            f"pvbus approve --set default/web --yes{scene.options}",
            _await_published,
        ),
        Step(
            "A program deploys what is published, as Argo CD does: one Application per package.",
            f"git clone --quiet {scene.example}/blueprints.git {scene.work}\n"
            f"kubectl create namespace {APPLICATIONS}\nkubectl apply -f - <<'END'\n{DEFINITION}END",
            _await_deployed,
        ),
        Step(
            "From now on drafts are proposed by themselves, and a policy approves them: one canary, waves, "
            "and each target proven by its Application.",
            f"kubectl annotate packagevariants --all {AUTO_LIFECYCLE}=true | tail -n 1\n"
            f"kubectl apply -f - <<'END'\n{policy}END",
            _await_accepted,
        ),
    )


def release(scene: Scene, number: int, image: str, more: str = "") -> str:
    """Return the commands that publish the blueprint's next revision and let the set follow it."""
    upstream = f'{{"spec":{{"upstream":{{"revision":{number}}}}}}}'
    return (
        f"sed -i 's/web:[0-9.]*$/{image}/' {scene.work}/web/deployment.yaml\n{more}"
        f"git -C {scene.work} add --all\n"
        f"{scene.commit} --message 'Web {number}'\n"
        f"git -C {scene.work} tag web/v{number}\n"
        f"git -C {scene.work} push --quiet origin HEAD:main web/v{number}\n"
        f"kubectl wait packagerevision/blueprints.web.v{number} --for=create --timeout=60s\n"
        f"kubectl patch packagevariantset web --type merge -p '{upstream}'"
    )


def attempt_of(number: int) -> int:
    """Return the attempt of the blueprint's number-th revision: a person has approved the first."""
    return number - 1


async def web_variants(fleet: Fleet) -> list[Object]:
    """Return the variants of the set `web`."""
    return [obj for obj in await fleet.all(VARIANT) if obj["metadata"]["name"].startswith("web-")]


async def revisions_of(fleet: Fleet, number: int) -> list[Object]:
    """Return the variants' revisions of the blueprint's number-th revision."""
    return [
        obj
        for obj in await fleet.all(REVISION)
        if obj["spec"]["repository"].startswith("edge-")
        and _ref_of(obj) == f"web/v{number}"
        and not is_branch(obj)
    ]


def is_branch(obj: Object) -> bool:
    """Tell whether a package revision is that of the branch, which follows the last published one."""
    return bool(obj["spec"].get("revision", 0) < 0)


def _ref_of(obj: Object) -> str:
    lock = (obj.get("status") or {}).get("upstreamLock") or {}
    return str((lock.get("git") or {}).get("ref", ""))


async def status_of_policy(fleet: Fleet, name: str = "web") -> dict[str, Any]:
    return ((await fleet.get(POLICY, name)) or {}).get("status") or {}


def progressing(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition Progressing of a policy, with an empty reason and message if there is none."""
    conditions = status.get("conditions") or ()
    none = {"reason": "", "message": ""}
    return next((each for each in conditions if each["type"] == "Progressing"), none)


async def _await_published(fleet: Fleet) -> str:
    seconds = await first_published(fleet)
    return f"{await fleet.size()} packages are published with {FORMER}, after {seconds:.0f} s"


async def _await_deployed(fleet: Fleet) -> str:
    size = await fleet.size()

    async def are_there() -> bool:
        return len(await fleet.all(APPLICATION, APPLICATIONS)) == size

    seconds = await fleet.until(are_there, "not every package has its Application")
    return f"{size} Applications after {seconds:.0f} s; each is some seconds behind what is published"


async def _await_accepted(fleet: Fleet) -> str:
    async def is_accepted() -> bool:
        conditions = (await status_of_policy(fleet)).get("conditions") or ()
        return any(each["type"] == "Accepted" and each["status"] == "True" for each in conditions)

    await fleet.until(is_accepted, "the policy is not accepted")
    return f"the policy is accepted, and has nothing to approve; its canary is {CANARY_VARIANT}"


# ------------------------------------------------------------ gates


def gates(scene: Scene, number: int) -> Iterable[Step]:
    """Return the station of a revision whose drafts wait for programs and a person."""
    more = (
        f"cat >> {scene.work}/web/Kptfile <<'END'\n{VALIDATORS}END\n"
        f"cat > {scene.work}/web/replicas-check.yaml <<'END'\n{VALIDATOR}END\n"
        f"sed -i '/^info:$/r /dev/stdin' {scene.work}/web/Kptfile <<'END'\n{GATES}END\n"
    )

    async def ask(fleet: Fleet) -> str:
        question = f"--question 'Is the site licensed?' --owner ann{scene.options}"
        name = (await _draft_of_the_canary(fleet, number))["metadata"]["name"]
        status = f"pvbus rollout status default/web{scene.options}"
        return f"pvbus task open default/{name} {LICENSED} {question}\n{status}"

    async def answer(fleet: Fleet) -> str:
        name = (await _draft_of_the_canary(fleet, number))["metadata"]["name"]
        answer = f"--status True --message 'until 2030'{scene.options}"
        return f"pvbus task answer default/{name} {LICENSED} {answer}"

    return (
        Step(
            "A revision with gates: two programs and a validator must pass each draft before it is proposed.",
            release(scene, number, MENDED, more),
            partial(_await_proposed_without_the_canary, number=number),
        ),
        Step(
            "The program that knows the licenses does not know the canary's cluster: a person is asked.",
            ask,
            partial(_await_asked, number=number),
        ),
        Step(
            "The person answers, and the draft is proposed by itself.",
            answer,
            partial(_await_proposed, number=number),
        ),
    )


def is_canary(obj: Object) -> bool:
    return bool(obj["spec"]["repository"] == "edge-asia" and obj["spec"]["packageName"].startswith(CANARY))


async def _draft_of_the_canary(fleet: Fleet, number: int) -> Object:
    return next(obj for obj in await revisions_of(fleet, number) if is_canary(obj))


async def _await_proposed_without_the_canary(fleet: Fleet, number: int) -> str:
    size = len(await web_variants(fleet))

    async def are_proposed() -> bool:
        drafts = await revisions_of(fleet, number)
        others = [obj for obj in drafts if not is_canary(obj)]
        own = [obj for obj in drafts if is_canary(obj)]
        return (
            [lifecycle_of(obj) for obj in others] == ["Proposed"] * (size - 1)
            and [condition(obj, ADDRESSED) for obj in own] == ["True"]
            and await is_settled(fleet)
        )

    seconds = await fleet.until(are_proposed, "not all other drafts are proposed")
    draft = await _draft_of_the_canary(fleet, number)
    return (
        f"{size - 1} drafts have an address and a license, passed the validator, and are proposed, after "
        f"{seconds:.0f} s; that of {CANARY} has no license, and is {lifecycle_of(draft)}"
    )


async def _await_asked(fleet: Fleet, number: int) -> str:
    draft = await _draft_of_the_canary(fleet, number)
    found = progressing(await status_of_policy(fleet))
    if found["reason"] != "CanaryNotReady":
        raise PermanentError(f"the policy does not wait for its canary: {found['reason']}")
    return (
        f"the draft of {CANARY} has {LICENSED} {condition(draft, LICENSED)}, and the policy approves nobody "
        f"before its canary ({found['reason']})"
    )


async def _await_proposed(fleet: Fleet, number: int) -> str:
    async def is_proposed() -> bool:
        drafts = await revisions_of(fleet, number)
        return any(is_canary(obj) and lifecycle_of(obj) != "Draft" for obj in drafts)

    seconds = await fleet.until(is_proposed, f"the draft of {CANARY} is not proposed")
    return (
        f"all {len(await revisions_of(fleet, number))} drafts are proposed, {seconds:.0f} s after the answer"
    )


# ------------------------------------------------------------ waves


def waves(scene: Scene, number: int) -> Iterable[Step]:
    """Return the station of a revision that goes out in waves, and is rolled back in the second."""

    roll_back = "" if scene.has_metric else f"pvbus rollout roll-back default/web --yes{scene.options}"
    bad = (
        "The metric shows errors that only a larger wave brings, and what was approved is rolled back."
        if scene.has_metric
        else "With the larger wave the fleet is not healthy any more: nothing more is approved, and a person "
        "rolls it back."
    )
    return (
        Step(
            "It goes out in waves of 1, 50 and 100 %: proven by their Applications, held and checked.",
            f"pvbus rollout plan default/web{scene.options}",
            partial(_in_the_second_wave, number=number),
        ),
        Step(
            bad,
            roll_back or f"pvbus rollout status default/web{scene.options}",
            partial(_await_rolled_back, attempt=attempt_of(number)),
        ),
        Step(
            "What became of it.",
            f"pvbus rollout history default/web{scene.options}",
            _as_before,
        ),
    )


async def _in_the_second_wave(fleet: Fleet, number: int) -> str:
    async def is_reached() -> bool:
        status = await status_of_policy(fleet)
        phase = status.get("phase")
        if status.get("attempt") != attempt_of(number):
            return False
        if phase in _OVER:
            raise PermanentError(f"the rollout is {phase}: {progressing(status)['message']}")
        return (status.get("wave"), phase) == (BAD_WAVE, "Holding") or phase in _UNDONE

    seconds = await fleet.until(is_reached, "the rollout does not reach its second wave")
    counts = Counter(lifecycle_of(obj) for obj in await revisions_of(fleet, number))
    return f"the canary is proven, and the second wave is approved, after {seconds:.0f} s; {counted(counts)}"


async def _await_rolled_back(fleet: Fleet, attempt: int) -> str:
    seconds = await until_rolled_back(fleet, attempt)
    targets = (await status_of_policy(fleet))["targets"]
    left = targets["total"] - targets["rolledBack"]
    if targets["rolledBack"] < LOAD_MIN or not left:
        raise PermanentError(f"{targets['rolledBack']} packages are rolled back, {left} were never approved")
    return (
        f"{targets['rolledBack']} packages are rolled back after {seconds:.0f} s, {left} were never approved"
    )


async def until_rolled_back(fleet: Fleet, attempt: int) -> float:
    """Wait until an attempt is rolled back; return the seconds as `until` does."""

    async def is_rolled_back() -> bool:
        status = await status_of_policy(fleet)
        return (status.get("attempt"), status.get("phase")) == (attempt, "RolledBack")

    return await fleet.until(is_rolled_back, "the rollout is not rolled back")


async def _as_before(fleet: Fleet) -> str:
    """Look at the last published content of every package. Raises PermanentError if it is a new one."""
    last: dict[tuple[str, str], Object] = {}
    for obj in await fleet.all(REVISION):
        spec = obj["spec"]
        package = (spec["repository"], spec["packageName"])
        if package[1].endswith("-web") and lifecycle_of(obj) == "Published":
            if package not in last or spec["revision"] > last[package]["spec"]["revision"]:
                last[package] = obj
    bad = [
        obj["metadata"]["name"]
        for obj in last.values()
        if FORMER not in await fleet.text(obj["metadata"]["name"], "deployment.yaml")
    ]
    if bad or not last:
        raise PermanentError(f"{len(bad)} of {len(last)} packages do not have {FORMER}: {', '.join(bad[:3])}")
    again = sum(obj["spec"]["workspaceName"].startswith("rollback-") for obj in last.values())
    return f"{len(last)} of {len(last)} packages have {FORMER} in git, {again} of them by a rollback"
