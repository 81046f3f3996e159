"""The former specs of a set: one for each, ten at most, none after a restart, never in the way."""

from functools import partial
from typing import Any

import msgspec
import pytest

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.core.errors import PermanentError, PvbusError, TransientError
from pvbus.core.kernel.effects import KindRef
from pvbus.core.kernel.specretention import (
    CHANGE_CAUSE,
    CHANGED_AT,
    CHANGED_BY,
    RETRY_SECONDS,
    REVISIONS_MAX,
    UID_LABELS,
    SpecRetention,
    author_of,
    revision_name,
    revisions_of,
    spec_of,
)
from pvbus.ports.cluster import Kind
from pvbus.runtime.reconcile.effects import perform
from tests.kit.deciding import drive_live
from tests.simulation.parts import obj

SET = Kind("config.porch.kpt.dev", "PackageVariantSet")
SET_REF = KindRef("config.porch.kpt.dev", "PackageVariantSet", "v1alpha2")
POLICY_REF = KindRef("promotion.pvbus.dev", "RolloutPolicy", "v1alpha1")
REVISION = Kind("apps", "ControllerRevision")
KEY = "PackageVariantSet|default/alpha"


class RetentionWorld:
    """A set on a cluster in memory, and who keeps its specs."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")
        self.retention = SpecRetention(SET_REF)
        self.generation = 0
        self.now = 1_000_000.0

    def change(self, revision: int, **annotations: str) -> None:
        """Let a person write a spec."""
        self.generation += 1
        meta = {"generation": self.generation, "annotations": annotations}
        self.set = obj(SET, "alpha", apiVersion="config.porch.kpt.dev/v1alpha2", metadata=meta)
        self.set["spec"] = {"upstream": {"repo": "up", "package": "base", "revision": revision}}
        self.cluster.put(self.set)

    async def retain(self) -> float | None:
        steps = self.retention.retain(
            KEY, "uid-alpha", self.generation, msgspec.json.encode(self.set), self.now
        )
        return await drive_live(steps, partial(perform, self.cluster))

    def retained(self) -> list[tuple[int, int]]:
        """The number of each revision, and the spec that it has."""
        revisions = revisions_of(self.cluster.objects_of(REVISION), "uid-alpha")
        return [(each["revision"], spec_of(each)["upstream"]["revision"]) for each in revisions]


async def test_each_spec_is_kept_once_and_a_spec_that_comes_back_is_the_newest_again() -> None:
    world = RetentionWorld()
    for revision in (1, 2, 1):
        world.change(revision)
        assert await world.retain() is None
        assert await world.retain() is None
    assert world.retained() == [(1, 1), (2, 2), (3, 1)]


async def test_a_restart_writes_nothing() -> None:
    world = RetentionWorld()
    world.change(1)
    await world.retain()
    writes = len(world.cluster.writes)
    world.retention = SpecRetention(SET_REF)
    assert await world.retain() is None
    assert len(world.cluster.writes) == writes


async def test_a_new_generation_with_the_same_spec_is_no_revision() -> None:
    """An API server counts a generation for fields that a newer definition defaults, too."""
    world = RetentionWorld()
    for _ in range(2):
        world.change(1)
        await world.retain()
    assert world.retained() == [(1, 1)]


async def test_the_oldest_revisions_go() -> None:
    world = RetentionWorld()
    for revision in range(1, REVISIONS_MAX + 4):
        world.change(revision)
        await world.retain()
    assert world.retained() == [(number, number) for number in range(4, REVISIONS_MAX + 4)]


async def test_a_revision_says_who_wrote_the_spec_and_why() -> None:
    world = RetentionWorld()
    world.change(1, **{CHANGE_CAUSE: "asia is down"})
    of_spec: dict[str, Any] = {"f:spec": {}}
    of_status: dict[str, Any] = {"f:status": {}}
    fields = [
        {"manager": "kubectl-edit", "time": "2026-01-01T00:00:05Z", "fieldsV1": of_spec},
        {"manager": "pvbus", "time": "2026-01-01T00:00:09Z", "fieldsV1": of_status, "subresource": "status"},
        {"manager": "argocd-controller", "time": "2026-01-01T00:00:01Z", "fieldsV1": of_spec},
    ]
    world.set["metadata"]["managedFields"] = fields
    world.cluster.put(world.set)
    await world.retain()
    (revision,) = world.cluster.objects_of(REVISION)
    assert revision["metadata"]["annotations"] == {
        CHANGED_BY: "kubectl-edit",
        CHANGED_AT: "2026-01-01T00:00:05Z",
        CHANGE_CAUSE: "asia is down",
    }


async def test_the_author_of_a_later_spec_is_not_named_for_this_one() -> None:
    world = RetentionWorld()
    world.change(1)
    seen = world.set
    world.change(2)
    fields = [{"manager": "later", "time": "2026-01-01T00:00:05Z", "fieldsV1": {"f:spec": {}}}]
    world.set["metadata"]["managedFields"] = fields
    world.cluster.put(world.set)
    world.set, world.generation = seen, 1
    await world.retain()
    (revision,) = world.cluster.objects_of(REVISION)
    assert CHANGED_BY not in revision["metadata"]["annotations"]


@pytest.mark.parametrize("error", [TransientError("forbidden"), PermanentError("not served")])
async def test_a_refusal_is_tried_again_after_a_while_and_raises_nothing(error: PvbusError) -> None:
    world = RetentionWorld()
    world.change(1)

    def refuse(verb: str, _: Any) -> None:
        raise error

    world.cluster.before_write = refuse
    assert await world.retain() == RETRY_SECONDS
    world.cluster.before_write = None
    world.now += RETRY_SECONDS - 1
    assert await world.retain() == 1.0
    assert world.retained() == []
    world.now += 1
    assert await world.retain() is None
    assert world.retained() == [(1, 1)]


async def test_a_clock_that_is_set_back_delays_no_attempt() -> None:
    world = RetentionWorld()
    world.change(1)

    def refuse(verb: str, _: Any) -> None:
        raise TransientError("later")

    world.cluster.before_write = refuse
    assert await world.retain() == RETRY_SECONDS
    world.cluster.before_write = None
    world.now -= 3_600
    assert await world.retain() is None
    assert world.retained() == [(1, 1)]


async def test_an_object_of_others_with_the_label_is_no_revision() -> None:
    """Else anybody who may write ControllerRevisions could give a set a spec by an undo."""
    world = RetentionWorld()
    world.change(1)
    await world.retain()
    (revision,) = world.cluster.objects_of(REVISION)
    meta = {**revision["metadata"], "name": "forged", "uid": "forged", "ownerReferences": []}
    world.cluster.put({**revision, "metadata": meta, "revision": 9})
    assert world.retained() == [(1, 1)]


async def test_a_policy_has_a_history_of_its_own() -> None:
    """Owned by the policy, found by its label, and not taken for that of a set."""
    cluster, policy = MemoryCluster(now=lambda: ""), Kind(POLICY_REF.group, POLICY_REF.kind)
    owner = obj(
        policy,
        "waves",
        apiVersion="promotion.pvbus.dev/v1alpha1",
        spec={"approval": "Manual"},
        metadata={"generation": 1},
    )
    cluster.put(owner)
    steps = SpecRetention(POLICY_REF).retain("default/waves", "uid-waves", 1, msgspec.json.encode(owner), 0.0)
    assert await drive_live(steps, partial(perform, cluster)) is None
    (revision,) = cluster.objects_of(REVISION)
    (reference,) = revision["metadata"]["ownerReferences"]
    assert (reference["apiVersion"], reference["kind"]) == ("promotion.pvbus.dev/v1alpha1", "RolloutPolicy")
    assert revision["metadata"]["labels"] == {UID_LABELS["RolloutPolicy"]: "uid-waves"}
    assert UID_LABELS["RolloutPolicy"] != UID_LABELS["PackageVariantSet"]


def test_names_differ_by_set_number_and_spec_and_are_never_too_long() -> None:
    first = obj(SET, "a" * 253, spec={"x": 1})
    others = [
        revision_name(first, 2),
        revision_name({**first, "spec": {"x": 2}}, 1),
        revision_name({**first, "metadata": {**first["metadata"], "uid": "other"}}, 1),
    ]
    assert len({revision_name(first, 1), *others}) == 4
    assert len(revision_name(first, 1)) <= 253


def test_without_managed_fields_nobody_is_named() -> None:
    assert author_of(obj(SET, "alpha")) == ("", "")
    assert author_of(None) == ("", "")
