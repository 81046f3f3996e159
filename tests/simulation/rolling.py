"""A fleet whose proposals a RolloutPolicy approves in waves; each approval is judged when it is written."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, PROPOSED_CONTENT
from pvbus.core.kernel.records import APPROVALS, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.kernel.topics import ALL_SERVICES
from pvbus.core.promotion.protocol.observing import IN_FLIGHT, OPEN
from pvbus.core.variants.revisions.content import content_digest
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Object, Resource
from tests.simulation.cluster import POLICY, QUARANTINE, STOP
from tests.simulation.world import REPOSITORY, RESOURCES, REVISION, SITE, VARIANT, Running, SimulatedWorld

SITES = 5
IN_FLIGHT_MAX = 2
KEY = "default/web"
SPEC: dict[str, Any] = {
    "revisions": {"all": True},
    "approval": "Always",
    "settle": "5s",
    "waves": [{"count": 1, "hold": "3s"}, {"percent": 50}, {"percent": 100}],
    "budgets": {"maxInFlight": IN_FLIGHT_MAX},
}
HEALTHY = "Healthy"
"""The condition of a PackageVariant that a policy may wait for: its message names the revision."""
SELECTOR = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}


CONTEXT = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: kptfile.kpt.dev
data:
  name: example
"""


def targets(version: int) -> list[Object]:
    """Return the targets of the set, which give each package a content of this version."""
    template = {
        "downstream": {"repo": "r1", "packageExpr": "target.name"},
        "annotations": {AUTO_LIFECYCLE: "true"},
        "packageContext": {"data": {"version": f"version-{version}."}},
    }
    return [{"objectSelector": SELECTOR, "template": template}]


class Rolling(SimulatedWorld):
    """Judges each approval by the rows on the bus.

    approved: (revision, attempt) of each approval
    proven: (target, attempt) of those that were proven at any time
    """

    def __init__(self, seed: int = 0, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        super().__init__(seed, watched=False)
        self.in_flight_max = in_flight_max
        self.approved: list[tuple[str, int]] = []
        self.proven: set[tuple[str, int]] = set()
        self.version = 0
        plurals = {POLICY: "rolloutpolicies", QUARANTINE: "quarantines", STOP: "rolloutstops"}
        for kind, plural in plurals.items():
            self.cluster.serve(Resource(PROMOTION_GROUP, "v1alpha1", kind.kind, plural, True))

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        super().wrote(verb, obj, subresource)
        self._note_proven()
        if verb != "update" or subresource != "approval":
            return
        name, spec = obj["metadata"]["name"], obj["spec"]
        before = self.find(REVISION, name)
        assert before is not None
        assert before["spec"]["lifecycle"] == "Proposed", f"{name} was approved as {before['spec']}"
        rollout, rows = self.rollout()
        if spec["workspaceName"].startswith("rollback-"):
            undone = [each for each in rows.values() if each.state is TargetState.UNDOING]
            assert self.content(name) in [each.good_digest for each in undone], f"{name} restores nothing"
            self._publish(spec)
            return
        row = next((each for each in rows.values() if each.revision == name), None)
        assert row is not None, f"{name} was approved without a plan"
        assert row.attempt == rollout.attempt
        assert row.state in (TargetState.ORDERED, TargetState.CANCELLING), f"{name} was approved as {row}"
        assert row.digest == self.content(name), f"{name} was approved with other content"
        assert (name, row.attempt) not in self.approved, f"{name} was approved twice in one attempt"
        mine = [each for each in rows.values() if each.attempt == row.attempt]
        open_rows = (each for each in mine if each.wave < row.wave and each.state in OPEN)
        # One that was proven, and lost its proof to a newer revision, stops no order that is on its way.
        early = [each.target for each in open_rows if (each.target, each.attempt) not in self.proven]
        assert not early, f"{name} of wave {row.wave} was approved before {early}"
        assert sum(each.state in IN_FLIGHT for each in mine) <= self.in_flight_max, "too many are in flight"
        self.approved.append((name, row.attempt))
        self._publish(spec)

    def _note_proven(self) -> None:
        """Note who is proven by any row that is still there."""
        for record in self.records(ROLLOUTS):
            if record.value is not None and b"|" in record.key:
                row = msgspec.json.decode(record.value, type=Target)
                if row.state is TargetState.PROVEN:
                    self.proven.add((row.target, row.attempt))

    def _publish(self, spec: Object) -> None:
        numbers = [each["spec"].get("revision", 0) for each in self.revisions(spec["packageName"])]
        spec["revision"] = max(0, *numbers) + 1  # as the server numbers it

    def rollout(self) -> tuple[Rollout, Mapping[str, Target]]:
        rows = self.table(ROLLOUTS)
        found = {
            key.partition("|")[2]: msgspec.json.decode(value, type=Target)
            for key, value in rows.items()
            if "|" in key
        }
        return msgspec.json.decode(rows.get(KEY, b"{}"), type=Rollout), found

    def content(self, name: str) -> str:
        files = self.find(RESOURCES, name)
        assert files is not None
        return content_digest(files["spec"]["resources"])

    def revisions(self, package: str = "") -> list[Object]:
        return [
            obj
            for obj in self.objects(REVISION)
            if obj["spec"]["repository"] == "r1" and package in ("", obj["spec"]["packageName"])
        ]

    def move(self) -> None:
        """Change the content of all packages."""
        self.version += 1
        self.set("web", targets(self.version))

    def annotate(self, **annotations: str | None) -> None:
        found = self.find(POLICY, "web")
        assert found is not None
        both = {**(found["metadata"].get("annotations") or {}), **annotations}
        self.put(POLICY, "web", metadata={"annotations": {k: v for k, v in both.items() if v is not None}})


class Acting(Rolling):
    """What people and programs do, and the history of the lifecycles. Its policy waits for HEALTHY.

    moves: each lifecycle that the services gave a revision, in order. at_order: what happens, by package, as
    soon as an approval is ordered, before release can have heard of it.
    """

    def __init__(self, seed: int = 0, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        super().__init__(seed, in_flight_max=in_flight_max)
        self.moves: dict[str, list[str]] = {}
        self.at_order: dict[str, Callable[[], None]] = {}

    def add_worker(self, service: str) -> Running:
        running = super().add_worker(service)
        if service == "rollout":
            running.bus.on_step = self._stepped
        return running

    def _stepped(self, lease: Lease, outputs: Sequence[Output]) -> None:
        self.watcher.stepped(lease, outputs)
        for output in outputs:
            package = output.key.decode().partition("|")[0].rpartition("-")[2]
            if output.topic == APPROVALS and package in self.at_order:
                self.at_order.pop(package)()

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        if verb == "update" and subresource == "approval":
            self.judge_evidence(obj)
        if verb == "update" and obj["kind"] == REVISION.kind:
            before = self.find(REVISION, obj["metadata"]["name"])
            assert before is not None
            if before["spec"].get("lifecycle") != obj["spec"]["lifecycle"]:
                moves = self.moves.setdefault(obj["metadata"]["name"], [])
                moves.append(obj["spec"]["lifecycle"])
        super().wrote(verb, obj, subresource)

    def judge_evidence(self, obj: Object) -> None:
        """No wave begins before what was approved in the waves before is really there and good."""
        _, rows = self.rollout()
        row = next((each for each in rows.values() if each.revision == obj["metadata"]["name"]), None)
        for each in rows.values() if row is not None else ():
            if row is not None and each.attempt == row.attempt and each.wave < row.wave:
                assert self.is_good(each), f"{row.revision} of wave {row.wave} does not wait for {each}"

    def is_good(self, row: Target) -> bool:
        live = self.find(REVISION, row.revision)
        assert live is not None
        is_published = live["spec"]["lifecycle"] == "Published" and self.content(row.revision) == row.digest
        condition = conditions_of(self._owner(live)).get(HEALTHY, {})
        return is_published and (condition.get("status"), condition.get("message")) == ("True", row.revision)

    def _owner(self, obj: Object) -> Object:
        """Return the PackageVariant of a revision."""
        found = self.find(VARIANT, obj["metadata"]["ownerReferences"][0]["name"])
        assert found is not None
        return found

    def published(self, package: str) -> dict[int, Object]:
        """Return the published revisions of a package by the version of their content."""
        found = {}
        for obj in self.revisions(package):
            if obj["spec"].get("lifecycle") == "Published":
                found[version_of(self.files(obj))] = obj
        return found

    def files(self, obj: Object) -> str:
        found = self.find(RESOURCES, obj["metadata"]["name"])
        assert found is not None
        return str(found["spec"]["resources"])

    def report(self, obj: Object, *, healthy: bool) -> None:
        """Report on a revision to its variant, as a program does that watches the site."""
        name = obj["metadata"]["name"]
        condition = {"type": HEALTHY, "status": str(healthy), "reason": "Looked", "message": name}
        variant = self._owner(obj)
        status = variant.get("status") or {}
        others = [each for each in status.get("conditions") or () if each["type"] != HEALTHY]
        self.put(VARIANT, variant["metadata"]["name"], status={**status, "conditions": [*others, condition]})

    async def until(self, find: Callable[[], Object | None]) -> Object:
        for _ in range(600):
            found = find()
            if found is not None:
                return found
            await asyncio.sleep(0.5)
        raise AssertionError(f"it never comes: {self.rollout()}")

    async def has(self, package: str, version: int) -> Object:
        return await self.until(lambda: self.published(package).get(version))

    async def goes_back(self, package: str) -> Object:
        """Wait until a former revision is published again."""

        def find() -> Object | None:
            restored = (each for each in self.revisions(package) if ".rollback-" in each["metadata"]["name"])
            return next((each for each in restored if each["spec"].get("lifecycle") == "Published"), None)

        return await self.until(find)

    async def becomes(self, package: str, state: TargetState) -> None:
        """Wait until the rollout has noticed."""

        def find() -> Object | None:
            row = self.rollout()[1].get(f"web-r1-{package}")
            return {} if row is not None and row.state is state else None

        await self.until(find)

    async def is_proposed(self, package: str) -> Object:
        """Wait for the proposal of a package."""
        mine = partial(self.revisions, package)
        return await self.until(
            lambda: next((obj for obj in mine() if obj["spec"].get("lifecycle") == "Proposed"), None)
        )

    def reject(self, package: str) -> None:
        obj = next(obj for obj in self.revisions(package) if obj["spec"]["lifecycle"] == "Proposed")
        self.put(REVISION, obj["metadata"]["name"], spec={**obj["spec"], "lifecycle": "Draft"})

    def ask_again(self, package: str) -> None:
        """Have a rejected draft proposed again, as its verdict says."""
        obj = next(obj for obj in self.revisions(package) if obj["spec"]["lifecycle"] == "Draft")
        annotations = {**obj["metadata"]["annotations"]}
        del annotations[PROPOSED_CONTENT]
        self.put(REVISION, obj["metadata"]["name"], metadata={"annotations": annotations})


def conditions_of(obj: Object) -> dict[str, Object]:
    return {each["type"]: each for each in (obj.get("status") or {}).get("conditions") or ()}


def version_of(text: str) -> int:
    return int(text.partition("version-")[2].partition(".")[0] or 0)


async def fleet(seed: int = 0) -> Rolling:
    world = Rolling(seed)
    await begin(world)
    return world


async def begin(world: Rolling, *, sites: int = SITES, **spec: Any) -> None:
    """Start all services on a set of so many sites. spec: fields of the policy that differ."""
    world.upstream()
    upstream = world.find(RESOURCES, "up.base.v1")
    assert upstream is not None
    files = {**upstream["spec"]["resources"], "package-context.yaml": CONTEXT}
    world.put(RESOURCES, "up.base.v1", spec={**upstream["spec"], "resources": files})
    world.serve_sites()
    world.put(REPOSITORY, "r1", spec={})
    world.put(POLICY, "web", spec={**SPEC, **spec})
    for number in range(sites):
        world.put(SITE, f"s{number}", metadata={"labels": {"env": "prod"}})
    world.move()
    await world.start(ALL_SERVICES)
