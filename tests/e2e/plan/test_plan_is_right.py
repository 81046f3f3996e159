"""A plan announces exactly what the services then do: made first, compared with the change afterwards.

All cases share one system, each in a namespace of its own: one plan, one change, compared case by case.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pvbus.adapters.manifests import Manifest
from pvbus.cli.live import Export
from pvbus.cli.planapply import look, write_changes
from pvbus.cli.plandocument import Document, document_of
from pvbus.cli.planfile import PlanFile, PlanInputs, plan_file, read_plan, write_plan
from pvbus.cli.planpreview import Settings
from pvbus.cli.planstanding import Standing
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.keys import PLANNED_BY
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.changes import Changes, ObjectName
from pvbus.runtime.preview.run import World, preview
from tests.e2e.plan.cases import CASES, CLUSTER, FILES, SITE, UPGRADE, Case, repository
from tests.e2e.plan.world import (
    Line,
    NotedCluster,
    PlannedWorld,
    beside,
    lines_of_change,
    lines_of_plan,
    live_world,
    make_repository,
    outcome_of,
)
from tests.kit.processes import run_simulated

VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("plan")]
NAMESPACES = {case.name: f"case-{number:02}" for number, case in enumerate(CASES)}
DRAFT = "edge.c1-web.packagevariant-2"
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {name}\n"
DEPLOYMENT = (
    "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: app\nspec:\n  replicas: 1  # of each\n"
)
POINT = """\
apiVersion: example.org/v1
kind: Site
metadata:
  name: site
  annotations:
    kpt.dev/config-injection: required
spec:
  region: none
"""
FAILING = "pipeline:\n  mutators:\n  - image: example.org/no-such-function:v1\n"
PACKAGES = {
    "web/v1": {"Kptfile": KPTFILE.format(name="web"), "deployment.yaml": DEPLOYMENT},
    "web/v2": {"Kptfile": KPTFILE.format(name="web"), "deployment.yaml": DEPLOYMENT.replace("1", "2")},
    "inject/v1": {"Kptfile": KPTFILE.format(name="inject"), "site.yaml": POINT},
    "broken/v1": {"Kptfile": KPTFILE.format(name="broken") + FAILING, "deployment.yaml": DEPLOYMENT},
}


def definition(kind: Kind) -> Object:
    plural = f"{kind.kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {
        "kind": kind.kind,
        "plural": plural,
        "singular": kind.kind.lower(),
        "listKind": f"{kind.kind}List",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{kind.group}"},
        "spec": {"group": kind.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


PROMOTED = 2  # drafts that are published, of new packages and of upgrades each


class Played(NamedTuple):
    """What was announced and what was done, of all cases."""

    document: Document
    planned: dict[str, list[Line]]
    done: dict[str, list[Line]]
    planned_outcome: dict[str, Any]
    done_outcome: dict[str, Any]
    upgrade: Object
    conflicts: str
    standing: Standing
    promoted: Standing


def located(obj: Object, namespace: str, folder: Path) -> Object:
    """Give an object its namespace; a Repository is that of the case, in git."""
    found = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
    if obj["kind"] == "Repository":
        name = obj["metadata"]["name"]
        location = f"{name}.git" if name == "blue" else f"{namespace}-{name}.git"
        found["spec"] = {
            "type": "git",
            "content": "Package",
            "deployment": name != "blue",
            "git": {"repo": str(folder / location), "branch": "main"},
        }
    return found


async def prepared(world: PlannedWorld, folder: Path) -> None:
    """Make everything that is there before the changes."""
    make_repository(folder, "blue", PACKAGES)
    for kind in (CLUSTER, SITE):
        await world.put(definition(kind))
    for case in CASES:
        namespace = NAMESPACES[case.name]
        await world.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        make_repository(folder, f"{namespace}-edge")
        names = {obj["metadata"]["name"] for obj in case.before if obj["kind"] == "Repository"}
        repositories = [repository(name) for name in ("blue", "edge") if name not in names]
        for obj in (*repositories, *case.before):
            await world.put(located(obj, namespace, folder))
    await world.settle()
    for case in CASES:
        if case.prepare is not None:
            await case.prepare(world, NAMESPACES[case.name])
    await world.settle()


def planned(export: Export, folder: Path) -> tuple[PlanFile, Document, Sequence[Object]]:
    how = Settings(RemovalLimits(), FunctionRegistry({}))
    put = [located(obj, NAMESPACES[case.name], folder) for case in CASES for obj in case.put]
    delete = [ObjectName(kind, NAMESPACES[case.name], name) for case in CASES for kind, name in case.delete]
    world = World(export.items, export.resources, "pvbus", how.functions)
    result = preview(world, limits=how.limits, changes=Changes(put, delete), has_states=True)
    document = document_of(result, with_diffs=True)
    manifests = [Manifest(Path("changes.yaml"), number, obj) for number, obj in enumerate(put, 1)]
    plan = plan_file(
        PlanInputs(export, manifests, put, delete), result, document, gates=[], cost={}, summary=""
    )
    return write_plan(folder / "plan.json", plan), document, result.objects


class Dying(NotedCluster):
    """A connection of a process that is killed after so many writes."""

    def __init__(self, world: PlannedWorld, writes_max: int) -> None:
        super().__init__(world.cluster, [])
        self._left = writes_max

    def _note(self, *_: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            raise KeyboardInterrupt


async def applied(world: PlannedWorld, folder: Path) -> Standing:
    """Apply the plan's file; the process is killed in the middle, and the same command goes on."""
    plan = read_plan(folder / "plan.json")
    assert not (await look(world.cluster, plan)).begun
    dying: Any = Dying(world, len(plan.manifests) // 2)
    with pytest.raises(KeyboardInterrupt):
        await write_changes(dying, plan, {PLANNED_BY: "the first"})
    await world.settle()
    assert (await look(world.cluster, plan)).begun
    written = await write_changes(world.cluster, plan, {PLANNED_BY: "the second"})
    assert 0 < written < len(plan.manifests) + len(plan.deletions)
    await world.settle()
    return await look(world.cluster, plan)


async def play(folder: Path) -> Played:
    async with live_world(folder) as world:
        await prepared(world, folder)
        export = await world.export()
        _, document, objects = beside(lambda: planned(export, folder))
        world.sent.clear()
        standing = await applied(world, folder)
        live = [obj for kind in (VARIANT, REVISION) for obj in await world.all(kind)]
        files, revision = await upgraded(world)
        done = by_namespace(lines_of_change(world.sent))
        promoted = await promote(world, folder)
        return Played(
            document,
            by_namespace(lines_of_plan(document["actions"])),
            done,
            {space: outcome_of(of_namespace(objects, space)) for space in NAMESPACES.values()},
            {space: outcome_of(of_namespace(live, space)) for space in NAMESPACES.values()},
            files,
            revision["metadata"]["annotations"][CONFLICTS],
            standing,
            promoted,
        )


async def promote(world: PlannedWorld, folder: Path) -> Standing:
    """Publish drafts that the plan made and changed, as promotion and a person do; return what is then."""
    plan = read_plan(folder / "plan.json")
    names = {(planned.namespace, planned.name) for planned in plan.changed}
    drafts = [
        obj["metadata"]
        for obj in await world.all(REVISION)
        if obj["spec"]["lifecycle"] == "Draft" and CONFLICTS not in (obj["metadata"].get("annotations") or {})
    ]
    ours = [meta for meta in drafts if (meta["namespace"], meta["name"]) in names]
    for workspace in ("packagevariant-1", "packagevariant-2"):  # of new packages, and of upgrades
        chosen = [meta for meta in ours if meta["name"].endswith(workspace)][:PROMOTED]
        assert len(chosen) == PROMOTED
        for meta in chosen:
            await world.approve(meta["name"], meta["namespace"])
    return await look(world.cluster, plan)


async def upgraded(world: PlannedWorld) -> list[Object]:
    """Read the upgrade draft with a conflict: its files and itself."""
    found = [
        await world.cluster.get(await world.resource(kind), NAMESPACES[UPGRADE], DRAFT)
        for kind in (FILES, REVISION)
    ]
    return [obj for obj in found if obj is not None]


def by_namespace(lines: Sequence[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {space: [] for space in NAMESPACES.values()}
    for line in lines:
        found[line[1]].append(line)
    return found


def of_namespace(objects: Sequence[Object], namespace: str) -> list[Object]:
    return [obj for obj in objects if obj["metadata"].get("namespace") == namespace]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return run_simulated(play(tmp_path_factory.mktemp("plan")))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_services_do_what_the_plan_says(played: Played, case: Case) -> None:
    """Writes are equal one by one (verb, kind, name, object), and so is what there is afterwards."""
    namespace = NAMESPACES[case.name]
    assert played.planned[namespace] == played.done[namespace]
    assert played.planned_outcome[namespace] == played.done_outcome[namespace]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_plan_announces(played: Played, case: Case) -> None:
    """Each case leads to the writes, the holds and the troubles that it is about."""
    namespace = NAMESPACES[case.name]
    actions = [action for action in played.document["actions"] if action["namespace"] == namespace]
    mine = Counter(f"{action['verb']} {action['kind']}" for action in actions if not action.get("by"))
    assert dict(mine) == {key: count for key, count in case.writes.items() if count}
    assert sum(bool(action.get("by")) for action in actions) == case.collected
    held = [each for each in played.document["held"] if each["namespace"] == namespace]
    assert len(held) == case.held
    troubles = [text for text in played.document["troubles"] if f"/{namespace}/" in text]
    assert any(case.says in text for text in troubles) if case.says else not troubles
    assert all(action["reason"] for action in actions)


def test_an_upgrade_is_merged_in_the_plan_as_it_then_is(played: Played) -> None:
    """Its files, their diff, its conflicts and its reason, before anything is written."""
    name = f"{NAMESPACES[UPGRADE]}/{DRAFT}"
    assert played.document["packages"][name] == played.upgrade["spec"]["resources"]
    diff = played.document["diffs"][name]
    assert "-  replicas: 7  # of each\n+  replicas: 2  # of each\n" in diff
    actions = [a for a in played.document["actions"] if f"{a['namespace']}/{a['name']}" == name]
    (action,) = (a for a in actions if a["verb"] == "create")
    assert action["reason"].startswith("upgrade draft of PackageVariant")
    assert action["reason"].endswith("from blue.web.v1 to blue.web.v2")
    assert action["conflicts"] == json.loads(played.conflicts)
    (conflict,) = action["conflicts"]
    assert (conflict["field"], conflict["local"], conflict["new"]) == ("spec.replicas", 7, 2)


def test_nothing_fails_in_the_plan(played: Played) -> None:
    """No decision of the plan is a defect, and nothing is to be done without the changes."""
    assert played.document.get("errors", []) == []
    assert [action for action in played.document["actions"] if action.get("pending")] == []


def test_the_plan_is_done_to_the_end(played: Played) -> None:
    """Every object that the plan changes is in its last state, and nothing else has changed."""
    assert played.standing.waiting == []
    assert played.standing.moved == []
    assert played.standing.total > 150


def test_promotion_of_what_the_plan_made_moves_no_input(played: Played) -> None:
    """Published drafts, the branch that gets them and their former revisions are as announced."""
    assert played.promoted == played.standing
