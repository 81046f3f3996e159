"""A blueprint's new revision goes out in waves, turns bad in the third, and is rolled back by itself.

The commands are run as they are printed; every figure is read from the API server and from git.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pvbus.cli.demos.deploying import APPLICATION, APPLICATIONS, DEFINITION, EVIDENCE
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
ADDRESSED, LICENSED = "example.dev/AddressAssigned", "example.dev/Licensed"
VALIDATED = "validator.pvbus.dev/replicas"
FORMER, LATTER = "web:1.0.0", "web:2.0.0"
BAD_WAVE = 3

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
  settle: 3s
  canaries: [CANARY]
  waves:
  - {percent: 1, hold: 3s, checks: [{name: health, CHECK}]}
  - {percent: 10, hold: 3s, checks: [{name: health, CHECK}]}
  - {percent: 50, hold: 10m, checks: [{name: health, CHECK}]}
  - {percent: 100}
  budgets: {onFailure: RollBack}
EVIDENCE"""


def steps(options: str, blueprints: str, work: str, errors: str) -> Iterable[Step]:
    """Return the steps of the story.

    options: the options for pvbus
    blueprints: the repository of the blueprints
    work: a folder for its clone
    errors: the file whose number is the metric of Prometheus; "" without a Prometheus, and an object then has
        the fleet's health
    """
    return *_release(options, blueprints, work), *_rollout(options, errors)


def _release(options: str, blueprints: str, work: str) -> Iterable[Step]:
    commit = f"git -C {work} -c user.name=me -c user.email=me@example.dev commit"
    draft = f"default/edge-asia.{CANARY}-web.packagevariant-2"
    return (
        Step(
            "The fleet is live: a person proposes and approves the first drafts.",
            f"pvbus propose --set default/web{options}\npvbus approve --set default/web --yes{options}",
            _await_published,
        ),
        Step(
            "The blueprint publishes its second revision: two programs and a validator must pass each draft.",
            f"git clone --quiet {blueprints} {work}\n"
            f"sed -i 's/{FORMER}/{LATTER}/' {work}/web/deployment.yaml\n"
            f"cat >> {work}/web/Kptfile <<'END'\n{VALIDATORS}END\n"
            f"cat > {work}/web/replicas-check.yaml <<'END'\n{VALIDATOR}END\n"
            f"sed -i '/^info:$/r /dev/stdin' {work}/web/Kptfile <<'END'\n{GATES}END\n"
            f"git -C {work} add --all\n"
            f"{commit} --quiet --message 'Web 2'\n"
            f"git -C {work} tag web/v2\n"
            f"git -C {work} push --quiet origin HEAD:main web/v2\n"
            "kubectl wait packagerevision/blueprints.web.v2 --for=create --timeout=60s",
            _await_released,
        ),
        Step(
            "The set moves to it: one line for the whole fleet.",
            'kubectl patch packagevariantset web --type merge -p \'{"spec":{"upstream":{"revision":2}}}\'',
            _await_drafted,
        ),
        Step(
            "The program that knows the licenses does not know this cluster: a person is asked.",
            f"pvbus task open {draft} {LICENSED} --question 'Is the site licensed?' --owner ann{options}",
            _await_asked,
        ),
        Step(
            "The drafts may be proposed by themselves: all are, but the one that waits for its person.",
            f"kubectl annotate packagevariants --all {AUTO_LIFECYCLE}=true",
            _await_proposed_without_the_canary,
        ),
        Step(
            "The person answers.",
            f"pvbus task answer {draft} {LICENSED} --status True --message 'until 2030'{options}",
            _await_proposed,
        ),
    )


def _rollout(options: str, errors: str) -> Iterable[Step]:
    policy = (
        ROLLOUT.replace("EVIDENCE", EVIDENCE)
        .replace("CANARY", f"web-edge-asia-{CANARY}-web")
        .replace("CHECK", QUERY if errors else OBJECT)
    )
    health = "" if errors else "kubectl create configmap web-health --from-literal=healthy=true\n"
    bad = (
        f"echo 7 > {errors}"
        if errors
        else 'kubectl patch configmap web-health --type merge -p \'{"data":{"healthy":"false"}}\'\n'
        f"pvbus rollout roll-back default/web --yes{options}"
    )
    return (
        Step(
            "A program deploys what is published, as Argo CD does: one Application per package.",
            f"kubectl create namespace {APPLICATIONS}\nkubectl apply -f - <<'END'\n{DEFINITION}END",
            _await_deployed,
        ),
        Step(
            "They go out in waves of 1, 10, 50 and 100 %: proven by their Applications, held and checked.",
            f"{health}kubectl apply -f - <<'END'\n{policy}END",
            _in_the_third_wave,
        ),
        Step(
            "The new revision shows errors, and what was approved is rolled back."
            if errors
            else "The fleet is not healthy any more, so nothing more is approved; a person rolls it back.",
            bad,
            _await_rolled_back,
        ),
        Step(
            "What became of it.",
            f"pvbus rollout history default/web{options}\npvbus rollout status default/web{options}",
            _as_before,
        ),
    )


async def _await_published(fleet: Fleet) -> str:
    seconds = await first_published(fleet)
    return f"{await fleet.size()} packages are published with {FORMER}, after {seconds:.0f} s"


async def _await_released(fleet: Fleet) -> str:
    second = await fleet.get(REVISION, "blueprints.web.v2") or {}
    gates = [gate["conditionType"] for gate in second["spec"].get("readinessGates") or ()]
    return f"blueprints.web.v2 is {lifecycle_of(second)}; its readiness gates: {', '.join(gates)}"


async def _await_drafted(fleet: Fleet) -> str:
    size = await fleet.size()

    async def ready() -> bool:
        drafts = await fleet.revisions(2)
        met = [
            all(condition(obj, type_) == "True" for type_ in (ADDRESSED, VALIDATED))
            and (is_canary(obj) or condition(obj, LICENSED) == "True")
            for obj in drafts
        ]
        return sum(met) == size and await is_settled(fleet)

    seconds = await fleet.until(ready, "not every draft has passed its programs and its validator")
    return (
        f"{size} drafts have an address and passed the validator, after {seconds:.0f} s; "
        f"{size - 1} have a license, that of {CANARY} has none"
    )


def is_canary(obj: Object) -> bool:
    return bool(obj["spec"]["repository"] == "edge-asia" and obj["spec"]["packageName"].startswith(CANARY))


async def _await_asked(fleet: Fleet) -> str:
    draft = await fleet.get(REVISION, f"edge-asia.{CANARY}-web.packagevariant-2") or {}
    return f"the draft of {CANARY} has {LICENSED} {condition(draft, LICENSED)}"


async def _await_proposed_without_the_canary(fleet: Fleet) -> str:
    size = await fleet.size()
    seconds = await fleet.until(lambda: _are_proposed(fleet, size - 1), "not all other drafts are proposed")
    draft = await fleet.get(REVISION, f"edge-asia.{CANARY}-web.packagevariant-2") or {}
    return f"{size - 1} drafts are proposed after {seconds:.0f} s; that of {CANARY} is {lifecycle_of(draft)}"


async def _await_proposed(fleet: Fleet) -> str:
    size = await fleet.size()
    seconds = await fleet.until(lambda: _are_proposed(fleet, size), f"the draft of {CANARY} is not proposed")
    return (
        f"{size} drafts are proposed, that of {CANARY} {seconds:.0f} s after the answer; nothing is approved"
    )


async def _are_proposed(fleet: Fleet, count: int) -> bool:
    return sum(lifecycle_of(obj) == "Proposed" for obj in await fleet.revisions(2)) == count


async def _status(fleet: Fleet) -> dict[str, Any]:
    return ((await fleet.get(POLICY, "web")) or {}).get("status") or {}


async def _await_deployed(fleet: Fleet) -> str:
    size = await fleet.size()

    async def are_there() -> bool:
        return len(await fleet.all(APPLICATION, APPLICATIONS)) == size

    seconds = await fleet.until(are_there, "not every package has its Application")
    return f"{size} Applications after {seconds:.0f} s; each is some seconds behind what is published"


async def _in_the_third_wave(fleet: Fleet) -> str:
    async def is_reached() -> bool:
        status = await _status(fleet)
        if status.get("phase") in ("Stopped", "RollingBack", "RolledBack", "Aborted"):
            raise PermanentError(
                f"the rollout ended in wave {status.get('wave')}: {status.get('conditions')}"
            )
        return (status.get("wave"), status.get("phase")) == (BAD_WAVE, "Holding")

    seconds = await fleet.until(is_reached, "the rollout does not reach its third wave")
    counts = Counter(lifecycle_of(obj) for obj in await fleet.revisions(2))
    return (
        f"two waves have passed, and the third is approved, after {seconds:.0f} s; drafts: {counted(counts)}"
    )


async def _await_rolled_back(fleet: Fleet) -> str:
    async def is_rolled_back() -> bool:
        return bool((await _status(fleet)).get("phase") == "RolledBack")

    seconds = await fleet.until(is_rolled_back, "the rollout is not rolled back")
    targets = (await _status(fleet))["targets"]
    left = targets["total"] - targets["rolledBack"]
    return (
        f"{targets['rolledBack']} packages are rolled back after {seconds:.0f} s, {left} were never approved"
    )


async def _as_before(fleet: Fleet) -> str:
    """Look at the last published content of every package. Raises PermanentError if it is the new one."""
    last: dict[tuple[str, str], Object] = {}
    for obj in await fleet.all(REVISION):
        spec = obj["spec"]
        package = (spec["repository"], spec["packageName"])
        if spec["repository"].startswith("edge-") and lifecycle_of(obj) == "Published":
            if package not in last or spec["revision"] > last[package]["spec"]["revision"]:
                last[package] = obj
    bad = [
        obj["metadata"]["name"]
        for obj in last.values()
        if FORMER not in await fleet.text(obj["metadata"]["name"], "deployment.yaml")
    ]
    variants = len(await fleet.all(VARIANT))
    if bad or len(last) != variants:
        raise PermanentError(f"{len(bad)} of {len(last)} packages do not have {FORMER}: {', '.join(bad[:3])}")
    again = sum(obj["spec"]["workspaceName"].startswith("rollback-") for obj in last.values())
    return f"{len(last)} of {variants} packages have {FORMER} in git, {again} of them by the rollback"
