"""Each promise that the checker of a chaos run judges, once kept and once broken."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pvbus.core.kernel.records import OBJECTS, TARGETS, VARIANTS, WATCHES
from pvbus.core.kernel.rights import Request
from pvbus.ports.cluster import Kind, Object
from tests.chaos.judge import (
    DOUBLED,
    DRAFT_LOST,
    EXPLAINED_SECONDS,
    LOST,
    REORDERED,
    UNPROVEN,
    Branch,
    Edit,
    Judge,
)
from tests.e2e.faults.fleet import CLUSTER, REPOSITORY, REVISION, SET, VARIANT
from tests.tools.busfile import CONDITIONS
from tests.tools.faultyapi import Write
from tests.tools.packages import published
from tests.tools.topicreader import ReadRecord

BRANCH = Branch("edge", "a-web", "packagevariant-1")
CHECK = "check|fleet.example.dev/Cluster|default/web"


class JudgedWorld:
    """Facts, second by second."""

    def __init__(self) -> None:
        self.judge = Judge()
        self._offsets = 0

    def at(self, second: float) -> "JudgedWorld":
        self.judge.now = 1_000_000.0 + second
        return self

    def object(self, kind: Kind, name: str, /, **fields: Any) -> Object:
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1}
        obj = {**fields, "kind": kind.kind, "metadata": {**metadata, **fields.get("metadata", {})}}
        self.judge.object(kind, f"default/{name}", obj)
        return obj

    def gone(self, kind: Kind, name: str) -> None:
        self.judge.object(kind, f"default/{name}", None)

    def record(
        self, topic: str, key: str, value: Mapping[str, Any] | None, offset: int | None = None
    ) -> None:
        self._offsets += 1
        content = None if value is None else json.dumps(value).encode()
        record = ReadRecord(
            topic, 0, self._offsets if offset is None else offset, key.encode(), content, (), 0
        )
        self.judge.record(record)

    def write(self, agent: str, verb: str, resource: str, name: str, code: int = 200) -> None:
        now = self.judge.now
        write = Write(agent, Request(verb, "", resource), "default", name, now, now, code, True)
        self.judge.sent(write)
        self.judge.answered(write)

    def broken(self, check: str) -> list[str]:
        """The texts of what is broken, which must all be of one check that has judged something."""
        assert {each.check for each in self.judge.found} <= {check}, self.judge.found
        assert self.judge.judged[check]
        return [each.text for each in self.judge.found]


def fleet(stage: str = "production") -> JudgedWorld:
    """A set with one target, and its variant."""
    world = JudgedWorld().at(0)
    world.object(REPOSITORY, "blueprints", spec={"type": "git"})
    world.object(REPOSITORY, "edge", spec={"type": "git"})
    revision = published("default", "blueprints", "web", 1)
    world.object(REVISION, revision["metadata"]["name"], **revision)
    world.object(CLUSTER, "a", metadata={"labels": {"stage": stage}}, spec={"nodes": 3})
    selector = {
        "apiVersion": "fleet.example.dev/v1",
        "kind": "Cluster",
        "matchLabels": {"stage": "production"},
    }
    template = {"downstream": {"repo": "edge", "packageExpr": "target.name + '-web'"}}
    upstream = {"repo": "blueprints", "package": "web", "revision": 1}
    spec = {"upstream": upstream, "targets": [{"objectSelector": selector, "template": template}]}
    world.object(SET, "web", apiVersion="config.porch.kpt.dev/v1alpha2", spec=spec)
    world.object(VARIANT, "web-edge-a-web", **variant("a-web"))
    return world


def variant(package: str, **metadata: Any) -> Object:
    owner = {"apiVersion": "config.porch.kpt.dev/v1alpha2", "kind": "PackageVariantSet", "name": "web"}
    owned = {"ownerReferences": [{**owner, "uid": "uid-web", "controller": True}]}
    labels = {"labels": {"config.porch.kpt.dev/packagevariantset": "uid-web"}}
    upstream = {"repo": "blueprints", "package": "web", "revision": 1}
    spec = {"upstream": upstream, "downstream": {"repo": "edge", "package": package}}
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "metadata": {**owned, **labels, **metadata},
        "spec": spec,
    }


def draft(name: str, package: str = "a-web", uid: str = "uid-draft", lifecycle: str = "Draft") -> Object:
    spec = {"repository": "edge", "packageName": package, "workspaceName": "packagevariant-1", "revision": 0}
    owner = {"kind": "PackageVariant", "name": "web-edge-a-web", "uid": "uid-web-edge-a-web"}
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "metadata": {
            "uid": uid,
            "ownerReferences": [{**owner, "apiVersion": "config.porch.kpt.dev/v1alpha1"}],
        },
        "spec": {**spec, "lifecycle": lifecycle},
    }


def ordered(world: JudgedWorld, *, is_checked: bool = True) -> None:
    """Let unroll check the set's removals, and order that of its variant."""
    if is_checked:
        request = {
            "group": "fleet.example.dev",
            "kind": "Cluster",
            "nonce": "1",
            "names": ["default/web-edge-a-web"],
        }
        world.record(WATCHES, CHECK, request)
        world.at(31).record(OBJECTS, CHECK, {"nonce": "1"})
    order = {"state": "removed", "set_name": "web", "set_uid": "uid-web", "generation": 1, "setName": "web"}
    world.at(32).record(TARGETS, "default/web-edge-a-web|web", {**order, "setUid": "uid-web", "ordered": 32})


# ------------------------------------------------------------------ deletion without proof


def test_a_checked_order_for_what_nobody_wants_is_proof() -> None:
    world = fleet()
    world.at(20).object(CLUSTER, "a", metadata={"labels": {"stage": "staging"}}, spec={"nodes": 3})
    world.at(30)
    ordered(world)
    world.at(40).write("render", "delete", "packagevariants", "web-edge-a-web")
    assert world.broken(UNPROVEN) == []
    assert world.judge.judged[UNPROVEN] == 2  # when it was sent, and when it was answered


def test_a_deletion_without_an_order_is_found() -> None:
    world = fleet(stage="staging").at(10)
    world.write("render", "delete", "packagevariants", "web-edge-a-web")
    assert "without an order" in world.broken(UNPROVEN)[0]


def test_a_deletion_of_what_was_wanted_all_the_time_is_found() -> None:
    world = fleet().at(30)
    ordered(world)
    world.at(40).write("render", "delete", "packagevariants", "web-edge-a-web")
    assert any("though wanted" in text for text in world.broken(UNPROVEN))


def test_an_order_without_a_check_is_found() -> None:
    world = fleet(stage="staging").at(30)
    ordered(world, is_checked=False)
    world.at(33).write("render", "delete", "packagevariants", "web-edge-a-web")
    assert any("without an answer" in text for text in world.broken(UNPROVEN))


def test_a_deletion_after_its_order_has_expired_is_found_even_when_it_fails() -> None:
    world = fleet(stage="staging").at(30)
    ordered(world)
    world.at(32 + 61).write("render", "delete", "packagevariants", "web-edge-a-web", code=409)
    assert any("after its order" in text for text in world.broken(UNPROVEN))


def test_only_render_deletes_variants() -> None:
    world = fleet(stage="staging").at(30)
    ordered(world)
    world.at(33).write("inject", "delete", "packagevariants", "web-edge-a-web")
    assert any("deleted by inject" in text for text in world.broken(UNPROVEN))


@pytest.mark.parametrize("is_terminating", [True, False])
def test_a_draft_goes_only_with_its_variant(is_terminating: bool) -> None:
    world = fleet()
    world.object(REVISION, BRANCH.revision, **draft(BRANCH.revision))
    if is_terminating:
        world.object(VARIANT, "web-edge-a-web", **variant("a-web", deletionTimestamp="2026-01-01T00:00:00Z"))
    world.write("inject", "delete", "packagerevisions", BRANCH.revision)
    assert len(world.broken(UNPROVEN)) == (0 if is_terminating else 1)


# ------------------------------------------------------------------ doubled


def test_a_second_variant_of_a_set_for_a_downstream_is_found() -> None:
    world = fleet()
    assert world.broken(DOUBLED) == []
    world.object(VARIANT, "web-edge-a-web-again", **variant("a-web"))
    assert "of one set for ('edge', 'a-web')" in world.broken(DOUBLED)[0]


def test_a_variant_beside_one_that_goes_is_none_too_many() -> None:
    world = fleet()
    world.object(VARIANT, "web-edge-a-web", **variant("a-web", deletionTimestamp="2026-01-01T00:00:00Z"))
    world.object(VARIANT, "web-edge-a-web-again", **variant("a-web"))
    assert world.broken(DOUBLED) == []


def test_a_second_open_draft_of_a_package_is_found() -> None:
    world = fleet()
    world.object(REVISION, BRANCH.revision, **draft(BRANCH.revision))
    world.object(REVISION, "edge.b-web.packagevariant-1", **draft("b", package="b-web"))
    assert world.broken(DOUBLED) == []
    world.object(REVISION, "edge.a-web.packagevariant-2", **draft("two", uid="uid-two"))
    assert "open drafts of one package" in world.broken(DOUBLED)[0]


def test_a_draft_beside_a_published_revision_is_none_too_many() -> None:
    world = fleet()
    world.object(REVISION, BRANCH.revision, **draft(BRANCH.revision, lifecycle="Published"))
    world.object(REVISION, "edge.a-web.packagevariant-2", **draft("two", uid="uid-two"))
    assert world.broken(DOUBLED) == []


def event(id_: str, status: str, previous: str, generation: int = 1) -> Mapping[str, Any]:
    condition = {"type": "Ready", "status": status, "observedGeneration": generation}
    return {"id": id_, "uid": "uid-a", "condition": condition, "previous": previous}


def test_an_event_that_is_published_twice_is_found() -> None:
    world = JudgedWorld().at(0)
    world.record(CONDITIONS, "PackageVariant|default/a", event("1", "False", ""))
    world.record(CONDITIONS, "PackageVariant|default/a", event("2", "True", "False"))
    assert world.broken(DOUBLED) == []
    world.record(CONDITIONS, "PackageVariant|default/a", event("2", "False", "True"))
    assert "event 2 occurs 2 times" in world.broken(DOUBLED)[0]


# ------------------------------------------------------------------ reordered


def test_an_event_that_does_not_follow_the_one_before_is_found() -> None:
    world = JudgedWorld().at(0)
    world.record(CONDITIONS, "PackageVariant|default/a", event("1", "False", ""))
    world.record(CONDITIONS, "PackageVariant|default/a", event("2", "False", "True"))
    assert "follows 'False', but says 'True'" in world.broken(REORDERED)[0]


@pytest.mark.parametrize(("version", "broken"), [("9", 1), ("10", 0), ("11", 0)])
def test_an_older_version_of_an_object_after_a_newer_one_is_found(version: str, broken: int) -> None:
    """Versions are compared as numbers."""
    world = JudgedWorld().at(0)
    world.record(VARIANTS, "default/a", {"metadata": {"uid": "1", "resourceVersion": "10"}})
    world.record(VARIANTS, "default/a", {"metadata": {"uid": "1", "resourceVersion": version}})
    assert len(world.broken(REORDERED)) == broken


def test_versions_of_another_object_with_the_name_do_not_count() -> None:
    world = JudgedWorld().at(0)
    world.record(OBJECTS, "a", {"uid": "1", "resourceVersion": "10"})
    world.record(OBJECTS, "a", {"uid": "2", "resourceVersion": "9"})
    assert world.broken(REORDERED) == []


def test_a_status_that_observes_an_older_generation_is_found() -> None:
    world = fleet()
    for generation in (2, 2, 1):
        conditions = [{"type": "Ready", "status": "True", "observedGeneration": generation}]
        world.object(VARIANT, "web-edge-a-web", **variant("a-web"), status={"conditions": conditions})
    assert "observes generation 1 after 2" in world.broken(REORDERED)[0]


# ------------------------------------------------------------------ lost


def test_an_end_that_goes_back_is_found() -> None:
    world = JudgedWorld().at(0)
    world.judge.ends({("pvbus.targets", 0): 5})
    world.judge.ends({("pvbus.targets", 0): 5})
    assert world.broken(LOST) == []
    world.judge.ends({("pvbus.targets", 0): 4})
    assert world.broken(LOST) == ["pvbus.targets[0] ended at 5, and now at 4"]


@pytest.mark.parametrize("again", [{"state": "present"}, None])
def test_a_record_that_is_not_there_any_more_is_found(again: Mapping[str, Any] | None) -> None:
    first, last = JudgedWorld().at(0), JudgedWorld()
    first.record("pvbus.desired", "default/a", {"state": "present"})
    first.record("pvbus.desired", "default/a", {"state": "gone"})
    records = (
        []
        if again is None
        else [ReadRecord("pvbus.desired", 0, 1, b"default/a", json.dumps(again).encode(), (), 0)]
    )
    first.judge.replayed(records)
    assert "the last record is not there" in first.broken(LOST)[0]
    last.record("pvbus.desired", "default/a", {"state": "gone"})
    last.judge.replayed([ReadRecord("pvbus.desired", 0, 1, b"default/a", b'{"state": "gone"}', (), 0)])
    assert last.broken(LOST) == []


def test_an_answered_write_that_is_not_there_is_found() -> None:
    world = JudgedWorld().at(0)
    world.judge.client_writes(3, ["default/a is None"])
    assert world.broken(LOST) == ["default/a is None"]
    assert world.judge.judged[LOST] == 3


# ------------------------------------------------------------------ drafts


def with_draft() -> JudgedWorld:
    world = fleet()
    world.object(REVISION, BRANCH.revision, **draft(BRANCH.revision))
    world.judge.branches({BRANCH: "1"})
    return world


def test_a_branch_that_goes_with_nobody_deleting_its_draft_is_found() -> None:
    world = with_draft()
    world.at(5).judge.branches({})
    assert world.judge.found == []
    world.at(6 + EXPLAINED_SECONDS).judge.branches({})
    assert "its branch is gone" in world.broken(DRAFT_LOST)[0]


def test_a_branch_that_is_missing_at_the_end_is_found() -> None:
    world = with_draft()
    world.at(5).judge.branches({})
    world.judge.finish()
    assert "its branch is gone" in world.broken(DRAFT_LOST)[0]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_branch_that_goes_with_its_draft_is_not_lost(is_before: bool) -> None:
    """The event may be seen before or after the branch."""
    world = with_draft()
    if is_before:
        world.at(5).gone(REVISION, BRANCH.revision)
    world.at(6).judge.branches({})
    if not is_before:
        world.at(7).gone(REVISION, BRANCH.revision)
    world.at(8).judge.branches({})
    world.judge.finish()
    assert world.broken(DRAFT_LOST) == []


@pytest.mark.parametrize(("files", "broken"), [({"Kptfile", "note.txt"}, 0), ({"Kptfile"}, 1)])
def test_a_persons_file_stays_in_its_draft(files: set[str], broken: int) -> None:
    world = with_draft()
    world.at(5).judge.edited(Edit(BRANCH, "uid-draft", "note.txt"))
    world.at(9).judge.files({BRANCH: frozenset(files)})
    assert len(world.broken(DRAFT_LOST)) == broken


def test_a_persons_file_goes_with_its_draft() -> None:
    """The variant was deleted and made again: its draft is a new one."""
    world = with_draft()
    world.at(5).judge.edited(Edit(BRANCH, "uid-draft", "note.txt"))
    world.at(6).gone(REVISION, BRANCH.revision)
    world.at(7).object(REVISION, BRANCH.revision, **draft(BRANCH.revision))
    world.at(9).judge.files({BRANCH: frozenset({"Kptfile"})})
    assert world.judge.found == []
