"""A fleet whose proposals a RolloutPolicy approves in waves; each approval is judged when it is written."""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.content import content_digest
from pvbus.core.keys import AUTO_LIFECYCLE
from pvbus.core.records import ROLLOUTS
from pvbus.core.rollout.protocol.observing import IN_FLIGHT, OPEN
from pvbus.core.rollout.protocol.rows import Rollout, Target
from pvbus.core.rollout.protocol.states import TargetState
from pvbus.core.topics import ALL_SERVICES
from pvbus.ports.cluster import Object, Resource
from tests.simulation.cluster import POLICY
from tests.simulation.world import REPOSITORY, RESOURCES, REVISION, SITE, World

SITES = 5
IN_FLIGHT_MAX = 2
KEY = "default/web"
SPEC: dict[str, Any] = {
    "approval": "Always",
    "settle": "5s",
    "waves": [{"count": 1, "hold": "3s"}, {"percent": 50}, {"percent": 100}],
    "budgets": {"maxInFlight": IN_FLIGHT_MAX},
}
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


class Rolling(World):
    """Judges each approval by the rows on the bus. approved: (revision, attempt) of each."""

    def __init__(self, seed: int = 0, *, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        super().__init__(seed, watched=False)
        self.in_flight_max = in_flight_max
        self.approved: list[tuple[str, int]] = []
        self.version = 0
        self.cluster.serve(Resource(PROMOTION_GROUP, "v1alpha1", "RolloutPolicy", "rolloutpolicies", True))

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        super().wrote(verb, obj, subresource)
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
        early = [each.target for each in mine if each.wave < row.wave and each.state in OPEN]
        assert not early, f"{name} of wave {row.wave} was approved before {early}"
        assert sum(each.state in IN_FLIGHT for each in mine) <= self.in_flight_max, "too many are in flight"
        self.approved.append((name, row.attempt))
        self._publish(spec)

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
