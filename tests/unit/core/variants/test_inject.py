"""The decisions of inject, case by case, over a cluster in memory."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pvbus.adapters.memory.objects import REVISION
from pvbus.core.api.packages import CATALOG
from pvbus.core.api.variants import DownstreamTarget, PackageVariant
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Create, Get, List, Update
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.records import OBJECTS, RESULTS, WATCHES, SyncMarker
from pvbus.core.variants.inject.renderstatus import reported
from pvbus.core.variants.inject.report import result_row, waiting_conditions
from pvbus.ports.cluster import Object
from tests.simulation.inject_world import (
    KPTFILE,
    NAMESPACE,
    PIPELINE,
    POINT,
    SITES,
    InjectWorld,
    owner,
    package,
    site,
    upstream,
    variant,
)

MINE = [owner("v")]
FIRST = "edge.app.packagevariant-1"
SITE = Kind("example.com", "Site")
INJECT = [{"name": "s"}]


async def settled(*objects: Object, delete: bool = False) -> InjectWorld:
    world = InjectWorld(objects)
    if delete:
        world.change(deleted=True)
    await world.settle()
    return world


def published(workspace: str = "packagevariant-1", **more: Any) -> list[Object]:
    return package("edge", "app", workspace, lifecycle="Published", revision=1, **{"owners": MINE, **more})


# ------------------------------------------------------------ deletion


@pytest.mark.parametrize(
    ("policy", "lifecycle", "after"),
    [
        ("delete", "Draft", None),
        ("delete", "Proposed", None),
        ("delete", "Published", "DeletionProposed"),
        ("delete", "DeletionProposed", "DeletionProposed"),
        ("orphan", "Draft", "Draft"),
        ("orphan", "Proposed", "Proposed"),
        ("orphan", "Published", "Published"),
        ("orphan", "DeletionProposed", "DeletionProposed"),
        ("", "Draft", None),
        ("Orphan", "Draft", "Draft"),
    ],
)
async def test_deletion_treats_each_lifecycle_as_the_policy_says(
    policy: str, lifecycle: str, after: str | None
) -> None:
    """Remaining revisions lose their owner, or garbage collection deletes them; the variant goes last."""
    mine = package("edge", "app", "packagevariant-1", lifecycle=lifecycle, owners=MINE)
    world = await settled(*upstream(), *mine, variant(deletionPolicy=policy), delete=True)
    assert world.lifecycles() == ({FIRST: after} if after else {})
    if after:
        assert world.owners(FIRST) == []
    assert world.variant() is None
    assert (world.writes()[-1].kind, world.writes()[-1].verb) == ("PackageVariant", "update")


async def test_the_finalizer_goes_only_after_a_live_list_without_revisions_of_ours() -> None:
    """The list finds a draft that was never observed, made by a worker that died, and it is deleted."""
    world = await settled(*upstream(), variant())
    world.touch(FIRST)  # exists in the cluster; the controller is about to lose sight of it
    world.change(deleted=True)
    world.observe()
    world.rows = {row: value for row, value in world.rows.items() if FIRST not in row[1]}
    world.restart(observe=False)
    assert world.controller.view.owned("default", (world.variant() or {})["metadata"]["uid"]) == []
    await world.run()
    assert world.revisions() == {}
    assert world.variant() is None
    last_list = max(i for i, effect in enumerate(world.effects) if isinstance(effect, List))
    taken_off = [i for i, e in enumerate(world.effects) if isinstance(e, Update) and "finalizers" in str(e)]
    assert taken_off[-1] > last_list


async def test_a_revision_that_cannot_go_keeps_the_finalizer_and_is_named() -> None:
    world = await settled(*upstream(), variant())

    def refuse(verb: str, obj: Object) -> None:
        if verb == "delete":
            raise PermanentError("403 Forbidden: it is referenced as upstream by: x", reason="Forbidden")

    world.cluster.before_write = refuse
    world.change(deleted=True)
    world.observe()
    outcome = await world.run()
    assert outcome.again_after is not None
    assert world.variant() is not None
    status, reason, message = world.reported()
    assert (status, reason) == ("False", "Terminating")
    assert FIRST in message
    assert "referenced as upstream" in message
    world.cluster.before_write = None
    await world.run()
    assert (world.revisions(), world.variant()) == ({}, None)


async def test_a_deleted_variant_leaves_no_row_and_no_request() -> None:
    world = await settled(SITES, site("s"), *upstream(site=POINT), variant(injectors=INJECT))
    assert [key for topic, key in world.rows if topic == WATCHES]
    world.change(deleted=True)
    world.restart()
    await world.settle()
    assert [key for topic, key in world.rows if topic in (WATCHES, "pvbus.results")] == []


# ------------------------------------------------------------ downstream


async def test_a_changed_downstream_leaves_the_old_place_by_the_policy_and_comes_back_to_it() -> None:
    world = await settled(*upstream(), *published(), variant())
    world.change(downstream={"repo": "west", "package": "app"})
    await world.settle()
    assert world.lifecycles() == {FIRST: "DeletionProposed", "west.app.packagevariant-1": "Draft"}
    world.change(downstream={"repo": "edge", "package": "app"})
    await world.settle()
    assert world.lifecycles() == {FIRST: "Published"}


async def test_adopt_none_makes_a_revision_beside_unowned_ones() -> None:
    world = await settled(*upstream(), *package("edge", "app", "by-hand"), variant())
    assert sorted(world.lifecycles()) == ["edge.app.by-hand", FIRST]
    assert world.owners("edge.app.by-hand") == []


async def test_adopt_existing_takes_ownership_and_keeps_the_content() -> None:
    files = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n", "a.txt": "kept\n"}
    foreign = package("edge", "app", "by-hand", files=files)
    foreign[0]["metadata"]["labels"] = {"old": "1", "team": "x"}
    asked = variant(adoptionPolicy="adoptExisting", labels={"team": "y"}, annotations={"note": "z"})
    world = await settled(*upstream(), *foreign, asked)
    found = world.revisions()["edge.app.by-hand"]
    assert world.owners("edge.app.by-hand") == ["uid-v"]
    assert found["metadata"]["labels"] == {"old": "1", "team": "y"}
    assert found["metadata"]["annotations"] == {"note": "z"}
    assert world.files("edge.app.by-hand") == files
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_an_adoption_that_is_not_observed_yet_is_not_written_again() -> None:
    world = InjectWorld(
        [*upstream(), *package("edge", "app", "by-hand"), variant(adoptionPolicy="adoptExisting")]
    )
    world.observe()
    await world.run()
    world.controller.load(RESULTS, 0, "default/v", None)  # as if the step of the first pass was lost
    await world.run()
    assert len([effect for effect in world.effects if isinstance(effect, Update)]) == 1


async def test_a_placeholder_is_never_adopted() -> None:
    branch = package("edge", "app", "main", lifecycle="Published", revision=-1)
    world = await settled(*upstream(), *branch, variant(adoptionPolicy="adoptExisting"))
    assert world.owners("edge.app.main") == []


@pytest.mark.parametrize("policy", ["adoptNone", "adoptExisting"])
async def test_a_package_of_another_living_variant_is_left_alone_and_its_owner_named(policy: str) -> None:
    """When the owner releases it, the second variant continues by itself."""
    world = await settled(
        *upstream(), *package("edge", "app", "packagevariant-1", owners=[owner("first")]),
        variant("first"), variant(adoptionPolicy=policy),
    )  # fmt: skip
    status, reason, message = world.reported()
    assert (status, reason) == ("False", "OwnedByOther")
    assert world.reported("Stalled") == ("True", "OwnedByOther", message)
    assert "PackageVariant first" in message
    assert FIRST in message
    assert world.owners(FIRST) == ["uid-first"]
    assert world.reported(name="first")[0] == "True"
    world.change("first", deleted=True, deletionPolicy="orphan")
    await world.settle()
    assert world.reported()[:2] == ("True", "NoErrors")
    assert world.reported("Stalled")[:2] == ("False", "Valid")


async def test_a_revision_whose_owner_lives_no_more_is_adopted_with_one_controller() -> None:
    """As after a restore: the object came back with another uid."""
    mine = package("edge", "app", "packagevariant-1", owners=[owner("v", "uid-of-before")])
    world = await settled(*upstream(), *mine, variant(adoptionPolicy="adoptExisting"))
    assert world.owners(FIRST) == ["uid-v"]


async def test_a_proposed_revision_is_not_written_to_and_what_it_lacks_is_told() -> None:
    mine = package("edge", "app", "packagevariant-1", lifecycle="Proposed", owners=MINE)
    world = await settled(*upstream(), *mine, variant(pipeline=PIPELINE))
    assert world.writes() == []
    assert world.reported()[:2] == ("False", "NotDraft")
    world.touch(FIRST, lifecycle="Draft")
    await world.settle()
    assert world.reported()[0] == "True"
    assert "set-labels" in world.files(FIRST)["Kptfile"]


async def test_a_draft_that_is_being_deleted_is_waited_for_and_made_anew() -> None:
    world = await settled(*upstream(), variant())
    gone = world.revisions()[FIRST]
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
    world.cluster.put(gone)
    world.observe()
    outcome = await world.run()
    assert outcome.waiting == (f"the deletion of PackageRevision {FIRST}",)
    world.cluster.remove(REVISION, NAMESPACE, FIRST)
    await world.settle()
    assert world.lifecycles() == {FIRST: "Draft"}


# ------------------------------------------------------------ upstream


async def test_a_missing_upstream_stalls_and_its_appearance_is_enough_to_go_on() -> None:
    world = await settled(variant())
    assert world.reported("Stalled")[:2] == ("True", "ValidationError")
    words = 'package revision of package "app" in repository "blue" (workspace v1)'
    assert words in world.reported("Stalled")[2]
    assert world.result().waiting == (f"the upstream {words}",)
    for obj in upstream():
        world.cluster.put(obj)
    await world.settle()
    assert world.reported("Stalled")[0] == "False"
    assert world.lifecycles() == {FIRST: "Draft"}


async def test_a_missing_upstream_says_which_of_repository_package_and_revision_is_missing() -> None:
    """In the words of a set, as the parts come one after the other."""
    world = await settled(variant())
    missing = 'could not find upstream package revision of package "app" in repository "blue" (workspace v1)'

    async def said_with(*objects: Object) -> str:
        for obj in objects:
            world.cluster.put(obj)
        await world.settle()
        return world.reported("Stalled")[2]

    assert await said_with() == f'{missing}: no Repository named "blue" in namespace "default"'
    assert await said_with(repository("blue")) == f'{missing}: the repository has no package "app"'
    others = [*package("blue", "app", "v2"), *package("blue", "app", "v3", lifecycle="Published", revision=3)]
    assert await said_with(*others) == f"{missing}: the package has revision 3, workspace v2"
    assert await said_with(*upstream()) == "all validation checks passed"


async def test_a_write_that_fails_without_the_repository_names_the_repository() -> None:
    """The server's words follow; with the Repository there, they are all that is said."""
    words = "404 Not Found: the server's own words"
    world = InjectWorld([*upstream(), variant()])

    def refuse(verb: str, obj: Object) -> None:
        if verb == "create":
            raise PermanentError(words, reason="NotFound")

    world.cluster.before_write = refuse
    await world.settle()
    message = f'no Repository named "edge" in namespace "default": {words}'
    assert world.reported() == ("False", "Error", message)
    world.cluster.put(repository("edge"))
    await world.settle()
    assert world.reported() == ("False", "Error", words)


def repository(name: str) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "Repository", "metadata": metadata}


def _placeholder(commit: str) -> list[Object]:
    lock = {"selfLock": {"git": {"repo": "r", "directory": "app", "ref": "main", "commit": commit}}}
    return package("blue", "app", "main", lifecycle="Published", revision=-1, status=lock)


async def test_the_identity_of_a_placeholder_is_its_commit() -> None:
    """A moved branch is news for an open draft; the same commit under another version is not."""
    status = {"upstreamLock": {"git": {"repo": "r", "directory": "app", "ref": "main", "commit": "c1"}}}
    mine = package("edge", "app", "packagevariant-1", owners=MINE, status=status)
    asked = variant(upstream={"repo": "blue", "package": "app", "workspaceName": "main"})
    world = await settled(*_placeholder("c1"), *mine, asked)
    assert world.reported()[:2] == ("True", "NoErrors")
    world.cluster.put(_placeholder("c2")[0])
    await world.settle()
    assert world.reported()[:2] == ("False", "UpstreamChanged")
    assert FIRST in world.reported()[2]
    assert world.lifecycles() == {FIRST: "Draft"}


async def test_another_package_of_the_same_number_is_another_upstream() -> None:
    own = {"selfLock": {"git": {"repo": "r", "directory": "other", "ref": "other/v1", "commit": "c9"}}}
    other = package("blue", "other", "v1", lifecycle="Published", revision=1, status=own)
    status = {"upstreamLock": {"git": {"repo": "r", "directory": "app", "ref": "app/v1", "commit": "c1"}}}
    mine = package("edge", "app", "packagevariant-1", owners=MINE, status=status)
    world = await settled(*upstream(), *other, *mine, variant())
    assert world.reported()[0] == "True"
    world.change(upstream={"repo": "blue", "package": "other", "workspaceName": "v1"})
    await world.settle()
    assert world.reported()[:2] == ("False", "UpstreamChanged")


# ------------------------------------------------------------ injection


async def test_a_changed_object_reconciles_exactly_the_variants_that_inject_it() -> None:
    names = [f"v{number}" for number in range(30)]
    wanting = {f"v{number}" for number in range(0, 30, 3)}
    asked = [
        variant(name, repo=name, injectors=[{"name": "shared" if name in wanting else "other"}])
        for name in names
    ]
    world = await settled(SITES, site("shared"), site("other"), *upstream(site=POINT), *asked)
    hashes = set()
    for change in (lambda: world.cluster.put(site("shared", "south")),
                   lambda: world.cluster.remove(SITE, NAMESPACE, "shared"),
                   lambda: world.cluster.put(site("shared", "west"))):  # fmt: skip
        hashes.add(world.result("v0").injected[0].hash)
        world.ran.clear()
        change()
        world.observe()
        assert {key.partition("/")[2] for key in world.dirty} == wanting
        await world.settle()
        assert {key.partition("/")[2] for key in world.ran} == wanting
    last = world.result("v0").injected[0].hash
    assert len({*hashes, last}) == 4  # north, south, none, west
    assert last not in world.files("v0.app.packagevariant-1")["site.yaml"]
    for name in names:
        text = world.files(f"{name}.app.packagevariant-1")["site.yaml"]
        assert ("region: west" in text) == (name in wanting)
    world.ran.clear()
    world.cluster.put(site("unrelated"))
    world.observe()
    assert not world.dirty


async def test_an_object_that_changes_during_an_attempt_is_injected_by_another_one() -> None:
    """The echo of the attempt's own write must not pass for all that happened meanwhile."""
    world = InjectWorld((SITES, site("s"), *upstream(site=POINT), variant(injectors=INJECT)))
    update, regions = world.cluster.update, ["west"]

    async def meanwhile(resource: Any, obj: Object, *, subresource: str = "") -> Object:
        answer = await update(resource, obj, subresource=subresource)
        if resource.kind == "PackageRevisionResources" and regions:
            world.cluster.put(site("s", regions.pop()))
            for (topic, key), value in world._answers().items():
                world._load(topic, key, value)
        return answer

    world.cluster.update = meanwhile  # type: ignore[method-assign]
    await world.settle()
    assert not regions
    world.dirty[f"{NAMESPACE}/v"] = None  # as a worker keeps the mark that was set meanwhile
    await world.settle()
    assert "region: west" in world.files(FIRST)["site.yaml"]


async def test_an_object_that_disappears_leaves_its_content_and_turns_the_condition() -> None:
    world = await settled(SITES, site("s"), *upstream(site=POINT), variant(injectors=INJECT))
    assert world.reported("ConfigInjected")[:2] == ("True", "Complete")
    before = world.files(FIRST)["site.yaml"]
    assert "region: north" in before
    world.cluster.remove(Kind(*SITE), NAMESPACE, "s")
    await world.settle()
    assert world.files(FIRST)["site.yaml"] == before
    assert world.reported("ConfigInjected")[:2] == ("False", "RequiredNotInjected")
    (awaited,) = world.result().waiting
    assert awaited.startswith("an object to inject for config.injection.Site.site: no in-cluster resources")
    assert 'status: "False"' in world.files(FIRST)["Kptfile"]
    world.cluster.put(site("s", "east"))
    await world.settle()
    assert "region: east" in world.files(FIRST)["site.yaml"]
    assert world.reported("ConfigInjected")[0] == "True"


@pytest.mark.parametrize(
    ("injector", "words"),
    [
        ({"name": "s"}, 'there are resources of type example.com/v1.Site, but none is named "s"'),
        (
            {"name": "s", "kind": "Zone"},
            'no injector selects type example.com/v1.Site: "s" is for kind "Zone"',
        ),
    ],
)
async def test_a_point_that_no_injector_fits_is_explained(injector: Object, words: str) -> None:
    """There are objects of the kind, so it is not said that there are none."""
    world = await settled(SITES, site("other"), *upstream(site=POINT), variant(injectors=[injector]))
    status, reason, message = world.reported("ConfigInjected")
    assert (status, reason) == ("False", "RequiredNotInjected")
    assert words in message
    assert "no in-cluster resources" not in message
    assert "no resource matched any injection selector" in world.files(FIRST)["Kptfile"]
    assert words not in world.files(FIRST)["Kptfile"]
    (row,) = world.result().injected
    assert words in row.message


async def test_drafts_name_the_variant_and_the_cause_of_each_write() -> None:
    world = await settled(SITES, site("s"), *upstream(site=POINT), variant(injectors=INJECT))

    def causes() -> list[str | None]:
        written = [e.object["metadata"] for e in world.effects if isinstance(e, Create | Update)]
        return [(meta.get("annotations") or {}).get("pvbus.dev/cause") for meta in written]

    who, spec = "PackageVariant default/v", "generation 1"
    assert causes() == [f"{who}: clone of blue.app.v1; {spec}", f"{who}: Site s into site.yaml; {spec}"]
    world.publish(FIRST)
    world.effects.clear()
    world.change(pipeline=PIPELINE)
    await world.settle()
    assert causes() == [None, f"{who}: pipeline; generation 2"]


async def test_a_kind_that_does_not_exist_is_told_and_its_definition_is_enough_to_recover() -> None:
    world = InjectWorld([*upstream(site=POINT), variant(injectors=INJECT)])
    world.unserved.add(SITE)
    await world.settle()
    assert world.reported("ConfigInjected")[:2] == ("False", "RequiredNotInjected")
    assert 'no matches for kind "Site" in version "example.com/v1"' in world.reported("ConfigInjected")[2]
    world.unserved.clear()
    world.cluster.put(SITES)
    world.cluster.put(site("s"))
    await world.settle()
    assert world.reported("ConfigInjected")[:2] == ("True", "Complete")
    assert "region: north" in world.files(FIRST)["site.yaml"]


async def test_a_bad_annotation_value_is_reported_and_only_its_point_is_not_injected() -> None:
    """The variant is not ready until the package is corrected; it needs nothing else then."""
    bad = POINT.replace("required", "perhaps")
    alone = await settled(SITES, site("s"), *upstream(site=bad), variant(injectors=INJECT))
    assert alone.reported()[:2] == ("False", "Error")
    assert alone.reported("ConfigInjected")[:2] == ("False", "Incomplete")

    other = bad.replace("name: ", "name: other-")
    world = InjectWorld([SITES, site("s"), *upstream(site=POINT, other=other), variant(injectors=INJECT)])
    await world.settle()
    assert "region: north" in world.files(FIRST)["site.yaml"]
    assert world.files(FIRST)["other.yaml"] == other
    for type_, reason in (("Ready", "Error"), ("ConfigInjected", "Incomplete")):
        assert world.reported(type_)[:2] == ("False", reason)
        assert 'invalid "kpt.dev/config-injection" annotation value of "perhaps"' in world.reported(type_)[2]
    effects = len(world.effects)
    await world.settle()
    assert len(world.effects) == effects


async def test_points_that_only_the_downstream_has_are_filled_too() -> None:
    """Their candidates are asked for when the content is seen, and known without a look afterwards."""
    files = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n", "own.yaml": POINT}
    mine = package("edge", "app", "packagevariant-1", owners=MINE, files=files)
    world = await settled(SITES, site("s"), *upstream(), *mine, variant(injectors=INJECT))
    assert "region: north" in world.files(FIRST)["own.yaml"]
    world.cluster.put(site("s", "south"))
    await world.settle()
    assert "region: south" in world.files(FIRST)["own.yaml"]


async def test_one_request_serves_many_variants_and_goes_with_the_last() -> None:
    asked = [variant(name, repo=name, injectors=INJECT) for name in ("a", "b")]
    world = await settled(SITES, site("s"), *upstream(site=POINT), *asked)

    def requests() -> list[str]:
        return [key for topic, key in world.rows if topic == WATCHES]

    assert len(requests()) == 1
    world.change("a", injectors=[])
    await world.settle()
    assert len(requests()) == 1
    world.restart()  # whose request it is must not be forgotten with the memory
    await world.settle()
    world.change("b", injectors=[])
    await world.settle()
    assert requests() == []


# ------------------------------------------------------------ telling


def _failing(message: str = "step mutators[3]: no function for image x") -> Iterator[Object]:
    condition = {"type": "Rendered", "status": "False", "reason": "Failed", "message": message}
    yield from package("edge", "app", "packagevariant-1", owners=MINE, status={"conditions": [condition]})


async def test_a_pipeline_that_cannot_run_is_told_until_somebody_renders_it() -> None:
    world = await settled(*upstream(), *_failing(), variant())
    assert world.reported() == (
        "False",
        "RenderFailed",
        f"{FIRST}: step mutators[3]: no function for image x",
    )
    mended = world.revisions()[FIRST]
    mended["status"]["conditions"][0].update(status="True", message="")
    world.cluster.put(mended)
    await world.settle()
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_the_error_of_a_save_is_forgotten_when_somebody_saved_better_since() -> None:
    asked = variant()
    asked["status"] = {"downstreamTargets": [{"name": FIRST, "renderStatus": {"error": "no function"}}]}
    rendered = {"conditions": [{"type": "Rendered", "status": "True", "reason": "RenderSuccess"}]}
    mine = package("edge", "app", "packagevariant-1", owners=MINE, status=rendered)
    world = await settled(*upstream(), *mine, asked)
    (target,) = world.result().targets
    assert (target.name, target.render_status) == (FIRST, None)


async def test_the_answer_to_a_save_that_nobody_recorded_is_found_in_the_content() -> None:
    """The worker died after its save: another one reports the same result."""
    run = "status:\n  conditions: [{type: Rendered, status: 'True'}]\n  renderStatus:\n"
    run += "    mutationSteps: [{image: f, exitCode: 0, results: [{message: m}]}]\n"
    files = {"Kptfile": KPTFILE + run}
    world = await settled(
        *upstream(), *package("edge", "app", "packagevariant-1", owners=MINE, files=files), variant()
    )
    (target,) = world.result().targets
    assert target.render_status is not None
    assert target.render_status["result"]["items"] == [
        {"exitCode": 0, "image": f"{CATALOG}f", "results": [{"message": "m"}]}
    ]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, None),
        ({}, None),
        ({"error": "x"}, {"error": "x"}),
        ({"result": {"kind": "R"}}, {"error": "", "result": {"exitCode": 0, "kind": "R"}}),
        (
            {"error": "e", "result": {"exitCode": 1, "items": [{"image": "i"}]}},
            {"error": "e", "result": {"exitCode": 1, "items": [{"exitCode": 0, "image": "i"}]}},
        ),
    ],
)
def test_a_render_status_has_what_the_api_requires(known: Any, expected: Any) -> None:
    assert reported(known) == expected


async def test_every_problem_of_a_spec_is_told_at_once_and_a_good_spec_recovers() -> None:
    world = await settled(*upstream(), variant(deletionPolicy="x", adoptionPolicy="y"))
    message = world.reported("Stalled")[2]
    assert "adoptionPolicy" in message
    assert "deletionPolicy" in message
    assert world.revisions() == {}
    world.change(deletionPolicy="delete", adoptionPolicy="adoptNone")
    await world.settle()
    assert world.reported()[0] == "True"
    assert {c.observed_generation for c in world.result().conditions} == {2}


async def test_nothing_is_written_for_a_held_variant_not_even_its_deletion() -> None:
    world = await settled(*upstream(), variant())
    writes = len(world.writes())
    world.change(pipeline=PIPELINE, annotations={"pvbus.dev/hold": "true"})
    world.change(deleted=True)
    await world.settle()
    assert len(world.writes()) == writes
    assert world.reported("OnHold")[:2] == ("True", "Annotation")
    assert world.result().waiting == (
        "the removal of the annotation pvbus.dev/hold from PackageVariant default/v",
    )
    world.change(annotations={})
    await world.settle()
    assert world.variant() is None


async def test_a_wait_is_told_once_it_lasts_and_not_before() -> None:
    world = InjectWorld([SITES, site("s"), *upstream(site=POINT), variant(injectors=INJECT)])
    world.observe()
    outcome = await world.run()  # asks for the content; nobody answers
    assert outcome.waiting == ("the content of Site s",)
    assert outcome.again_after == 2.0
    assert ("pvbus.results", "default/v") not in world.rows
    world.now += 2.0
    outcome = await world.run()
    assert world.result().waiting == ("the content of Site s",)
    assert world.reported() == ("False", "Waiting", "waits for the content of Site s")
    assert outcome.again_after is None
    await world.settle()
    assert (world.reported()[0], world.result().waiting) == ("True", ())


def test_a_wait_on_a_new_bus_forgets_no_target() -> None:
    """Such a bus has no rows, so the new row takes its targets from the variant's status."""
    rendered = DownstreamTarget(name="deploy.app.v1", render_status={"error": ""})
    status = msgspec.structs.replace(PackageVariant().status, downstream_targets=(rendered,))
    reported = msgspec.structs.replace(PackageVariant(), status=status)
    row = result_row(reported, None, waiting_conditions(reported, ("x",)), requests=(), waiting=("x",))
    assert row.targets == (rendered,)


async def test_the_first_list_is_waited_for_in_silence_and_a_later_one_changes_nothing() -> None:
    world = InjectWorld([*upstream(), variant()])
    world.observe()
    marker = sync_key("porch.kpt.dev", "PackageRevision")
    syncing = msgspec.json.encode(SyncMarker(state="syncing", epoch=2))
    world.controller.load(OBJECTS, 0, marker, syncing)
    outcome = await world.run()
    assert (outcome.puts, outcome.again_after) == ((), 10.0)
    world.now += 10.0
    await world.run()
    assert world.reported()[:2] == ("False", "Waiting")
    world.controller.load(OBJECTS, 0, marker, world.rows[OBJECTS, marker])
    await world.run()
    reported = world.reported()
    assert reported[0] == "True"
    world.controller.load(OBJECTS, 0, marker, syncing)
    world.now += 100.0
    assert (await world.run()).puts == ()
    assert world.reported() == reported


@pytest.mark.parametrize("error", [TransientError("503: git is down"), ConflictError("busy")])
async def test_trouble_that_goes_on_is_told_and_the_attempts_go_on(error: Exception) -> None:
    world = InjectWorld([*upstream(), variant()])

    def fail(verb: str, obj: Object) -> None:
        raise error

    world.cluster.before_write = fail
    world.observe()
    with pytest.raises(type(error)):
        await world.run()
    world.now += 6.0
    outcome = await world.run()
    assert outcome.again_after is not None
    assert 0.2 <= outcome.again_after <= 60
    assert world.reported() == ("False", "Error", str(error))
    world.cluster.before_write = None
    world.now += outcome.again_after
    await world.run()
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_what_was_refused_is_not_tried_again_before_something_changes() -> None:
    world = InjectWorld([*upstream(), variant()])

    def refuse(verb: str, obj: Object) -> None:
        raise PermanentError('404 NotFound: repositories "edge" not found', reason="NotFound")

    world.cluster.before_write = refuse
    world.observe()
    await world.run()
    assert world.reported()[:2] == ("False", "Error")
    asked = len(world.effects)
    outcome = await world.run()
    assert len(world.effects) == asked
    assert outcome.again_after == pytest.approx(60.0)
    world.cluster.before_write = None
    world.cluster.put(
        {
            "apiVersion": "config.porch.kpt.dev/v1alpha1",
            "kind": "Repository",
            "metadata": {"name": "edge", "namespace": NAMESPACE},
            "spec": {},
        }
    )
    await world.settle()
    assert world.reported()[0] == "True"


async def test_a_person_who_asks_for_another_try_need_not_wait() -> None:
    """Each new value of the annotation is one attempt more; a variant that is ready writes nothing for it."""
    world = InjectWorld([*upstream(), variant()])

    def refuse(verb: str, obj: Object) -> None:
        raise PermanentError("403 Forbidden: not allowed", reason="Forbidden")

    async def ask(value: str) -> None:
        obj = world.variant()
        assert obj is not None
        obj["metadata"]["annotations"] = {"pvbus.dev/retry": value}
        world.cluster.put(obj)
        await world.settle()

    world.cluster.before_write = refuse
    await world.settle()
    asked = len(world.effects)
    await ask("1")
    assert len(world.effects) > asked
    asked = len(world.effects)
    await world.run()
    assert len(world.effects) == asked
    world.cluster.before_write = None
    await ask("2")
    assert world.reported()[0] == "True"
    written = len(world.writes())
    await ask("3")
    assert len(world.writes()) == written


async def test_a_wall_clock_that_jumps_does_not_put_another_attempt_off() -> None:
    world = InjectWorld([*upstream(), variant()])

    def refuse(verb: str, obj: Object) -> None:
        raise PermanentError("403 Forbidden: not allowed", reason="Forbidden")

    world.cluster.before_write = refuse
    await world.settle()
    world.wall_offset = -3_600.0
    outcome = await world.run()
    assert outcome.again_after == pytest.approx(60.0)
    world.cluster.before_write = None
    world.now += 60.0
    await world.run()
    assert world.reported()[0] == "True"


@pytest.mark.parametrize(
    "meanwhile",
    [
        {},
        {"downstream": {"repo": "edge", "package": ""}},
        {"annotations": {"pvbus.dev/hold": "true"}},
    ],
    ids=["nothing", "a spec that cannot be followed", "a hold"],
)
async def test_what_was_refused_is_told_again_when_a_change_is_set_back(meanwhile: Object) -> None:
    """Without another attempt: at the current generation, in place of what was reported meanwhile."""
    world = InjectWorld([*upstream(), variant()])

    def refuse(verb: str, obj: Object) -> None:
        raise PermanentError("403 Forbidden: not allowed", reason="Forbidden")

    world.cluster.before_write = refuse
    await world.settle()
    refused = world.reported()
    asked = len(world.effects)
    spec = world.variant()["spec"]  # type: ignore[index]
    world.change(**meanwhile)
    await world.settle()
    assert meanwhile == {} or world.reported() != refused
    world.change(annotations={}, **spec)
    world.observe()
    world.now += 20.0
    outcome = await world.run()
    assert outcome.result == "failed"
    assert outcome.again_after == pytest.approx(40.0)
    assert world.reported() == refused
    assert {c.observed_generation for c in world.result().conditions} == {3}
    assert {c.type for c in world.result().conditions} == {"Stalled", "Ready"}
    assert len(world.effects) == asked


async def test_a_new_variant_takes_one_list_one_create_two_reads_and_one_save() -> None:
    """The second read is the look at the owner, right before the save."""
    world = await settled(*upstream(), variant(pipeline=PIPELINE))
    kinds = [(type(e).__name__, e.kind.kind) for e in world.effects]
    assert kinds == [
        ("List", "PackageRevision"),
        ("Create", "PackageRevision"),
        ("Get", "PackageRevisionResources"),
        ("Get", "PackageRevision"),
        ("Update", "PackageRevisionResources"),
    ]
    assert not [e for e in world.effects if isinstance(e, Get) and e.name == "v"]


async def test_a_change_that_is_set_back_leaves_the_variant_ready_at_its_new_generation() -> None:
    """Nothing is to be done for it, and the conditions say so: they are those of the present generation."""
    world = await settled(*upstream(), variant())
    before = len(world.writes())
    world.change()  # a new generation with the spec as it was
    await world.settle()
    assert len(world.writes()) == before
    assert world.reported()[0] == "True"
    assert {c.observed_generation for c in world.result().conditions} == {2}
