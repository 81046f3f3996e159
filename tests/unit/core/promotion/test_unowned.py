"""Revisions that no variant owns: promote and release serve those that opt in, by their own keys."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.errors import ConflictError
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, HOLD, KEPT_FOR, PROPOSED_CONTENT, RESTORES, RETURNED
from pvbus.core.kernel.promotionrows import PromotionRow, Verdict
from pvbus.core.kernel.records import CANDIDATES, PROMOTIONS, RELEASES, SyncMarker
from pvbus.core.promotion.protocol.quarantines import sources_at
from pvbus.core.promotion.protocol.unowned import address_of, is_unowned, unowned_key
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.former import MADE_BY
from tests.unit.core.promotion.promoting import FILES, KEY, NAME, PromoteWorld, draft, quarantine, specializer
from tests.unit.core.promotion.test_candidates import policy
from tests.unit.core.promotion.test_quarantines import SPEC, made_of, upstream

ALONE = unowned_key("default", NAME)
MET: Any = {"gates": ("ip",), "conditions": (("ip", "True"),)}
UNMET: Any = {"gates": ("ip",), "conditions": (("ip", "False"),)}
OWNER = draft()["metadata"]["ownerReferences"]


def by_hand(*, annotations: dict[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    """Return a revision that opts in and that no variant owns."""
    return draft(
        **{"ownerReferences": [], "annotations": {AUTO_LIFECYCLE: "true", **(annotations or {})}, **parts}
    )


class Alone(PromoteWorld):
    """Runs the decisions on the revision beside those on the variant of its fleet."""

    def settle(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            super().settle(1)
            for controller in (self.promote, self.release):
                self.run_alone(controller)

    def run_alone(self, controller: Any) -> None:
        try:
            self.decide(controller, ALONE, self.now, self.server.perform)
        except ConflictError:
            return

    @property
    def said(self) -> Verdict:
        (found,) = msgspec.json.decode(self.rows[PROMOTIONS, ALONE], type=PromotionRow).verdicts
        return found


@pytest.mark.parametrize(
    ("revision", "reason", "words", "moves"),
    [
        (by_hand(), "Proposed", "approval of a person, as no rollout has it: kubectl patch", ["Proposed"]),
        (by_hand(**MET), "Proposed", f"kubectl patch packagerevision {NAME} -n default", ["Proposed"]),
        (by_hand(**UNMET), "GateNotMet", "unmet readiness gates: ip", []),
        (by_hand(gates=("ip",)), "GateNotMet", "no PackageSpecializer of the namespace reports ip", []),
        (by_hand(conditions=(("Rendered", "False"),)), "NotRendered", "pipeline has not run", []),
        (
            by_hand(annotations={CONFLICTS: '[{"file": "a.yaml"}]'}),
            "UpgradeConflict",
            "see its annotation",
            [],
        ),
        (by_hand(annotations={HOLD: "true"}), "OnHold", f"packagerevision {NAME} {HOLD}-", []),
        (by_hand(annotations={KEPT_FOR: "web/web-edge@"}), "LeftBehind", "PackageVariant web/web-edge", []),
        (by_hand(annotations={MADE_BY: "web-edge@uid-v"}), "LeftBehind", "a person proposes it", []),
        (by_hand(deletionTimestamp="2026-01-02T03:04:05Z"), "Deleted", "being deleted", []),
        (by_hand(lifecycle="Proposed", **UNMET), "ProposedByHand", "a person proposed it", []),
        (
            by_hand(
                ownerReferences=[{"apiVersion": "example.org/v1", "kind": "App", "name": "a", "uid": "u"}]
            ),
            "Proposed",
            "waits",
            ["Proposed"],
        ),
    ],
)
def test_what_becomes_of_a_revision_that_opts_in(
    revision: Any, reason: str, words: str, moves: list[str]
) -> None:
    world = Alone(revision)
    world.settle()
    assert (world.said.reason, world.server.moves) == (reason, moves)
    assert words in world.said.message


@pytest.mark.parametrize("revisions", [{"all": True}, {"repositories": ["edge"]}])
def test_no_policy_selects_it(revisions: Any) -> None:
    world = Alone(by_hand(**MET))
    world.policies = [policy(revisions=revisions)]
    world.settle()
    assert world.server.moves == ["Proposed"]
    assert not any(topic == CANDIDATES for topic, _ in world.rows)
    assert "as no rollout has it" in world.said.message


@pytest.mark.parametrize(
    "revision",
    [
        draft(ownerReferences=[]),
        by_hand(annotations={AUTO_LIFECYCLE: "false"}),
        by_hand(annotations={RESTORES: "edge.web.v1"}),
        by_hand(lifecycle="Published"),
        by_hand(ownerReferences=OWNER),
    ],
    ids=["no annotation", "opted out", "draft of a rollback", "published", "of a variant"],
)
def test_what_is_no_concern_has_no_row(revision: Any) -> None:
    world = Alone(revision)
    world.variant = None
    world.settle()
    assert not {(PROMOTIONS, ALONE), (RELEASES, ALONE)} & world.rows.keys()
    assert world.server.moves == []


def test_a_proposal_notes_its_content_and_a_rejection_is_not_overruled() -> None:
    world = Alone(by_hand(**MET))
    world.settle()
    assert world.server.revision is not None
    noted = world.server.revision["metadata"]["annotations"][PROPOSED_CONTENT]
    assert noted == content_digest(FILES)
    world.move("Draft")
    world.settle()
    assert (world.server.moves, world.said.reason) == (["Proposed"], "Rejected")
    world.server.files["a.yaml"] = "a: 2\n"
    world.commit("another")
    world.settle()
    world.set_condition("ip", "True")
    world.settle()
    assert world.server.moves == ["Proposed", "Draft", "Proposed"], "what was signed is Unknown between them"


def test_a_proposal_that_loses_its_readiness_is_a_draft_again() -> None:
    world = Alone(by_hand(**MET))
    world.settle()
    world.set_condition("ip", "False")
    world.settle()
    assert world.server.moves == ["Proposed", "Draft"]
    assert world.server.revision is not None
    assert world.server.revision["metadata"]["annotations"][RETURNED].startswith("GateNotMet")


def test_it_waits_for_a_program_that_announces_itself() -> None:
    world = Alone(
        by_hand(labels={"region": "asia"}), None, specializer(selector={"matchLabels": {"region": "asia"}})
    )
    world.settle()
    assert (world.said.reason, world.server.moves) == ("NotOpened", [])
    world.annotate({"acknowledged.promotion.pvbus.dev/ipam": NAME})
    world.settle()
    assert world.server.moves == ["Proposed"]


def test_nothing_is_proposed_before_its_namespace_is_known() -> None:
    world = Alone(by_hand())
    for kind in ("porch.kpt.dev/PackageRevision", "promotion.pvbus.dev/Quarantine"):
        world.markers[kind] = SyncMarker(state="syncing", epoch=1)
        world.settle()
        assert world.server.moves == [], kind
        world.markers[kind] = SyncMarker(state="ok", epoch=2)
    world.settle()
    assert world.server.moves == ["Proposed"]


@pytest.mark.parametrize(
    ("spec", "is_held"),
    [
        (SPEC, True),
        ({**SPEC, "sets": ["another"]}, True),
        ({"upstreams": [{"revision": "blueprints/db@v6"}]}, False),
        ({"contents": [content_digest(FILES)]}, True),
    ],
    ids=["its upstream", "of any set", "another package", "its own files"],
)
def test_a_quarantine_of_any_set_holds_it(spec: Any, is_held: bool) -> None:
    """Nobody knows which set a revision without a variant is for."""
    world = Alone(made_of(by_hand(), "web/v6"))
    world.server.published = [upstream(6)]
    world.quarantines = [quarantine(**spec)]
    world.settle()
    assert world.server.moves == ([] if is_held else ["Proposed"])
    assert world.said.reason == ("Quarantined" if is_held else "Proposed")


def own(world: PromoteWorld, owners: list[dict[str, Any]]) -> None:
    world.server.change(lambda obj: obj["metadata"].update(ownerReferences=owners))


@pytest.mark.parametrize("proposed_before", [True, False])
def test_a_variant_that_adopts_it_takes_it_over_and_nothing_is_done_twice(*, proposed_before: bool) -> None:
    """The order on the revision alone is void once it has an owner; the variant's is the only one left."""
    world = Alone(by_hand())
    if proposed_before:
        world.settle()
    else:
        world.observe()
        world.run_alone(world.promote)
        assert world.said.order == "propose"
    own(world, OWNER)
    world.run_alone(world.release)
    assert world.server.moves == (["Proposed"] if proposed_before else [])
    world.settle()
    assert world.server.moves == ["Proposed"]
    assert not {(PROMOTIONS, ALONE), (RELEASES, ALONE)} & world.rows.keys()
    assert world.verdict.reason == "Proposed"


STEPS = st.sampled_from(
    [
        *("look", "look", "promote", "release", "observe", "restart"),
        *("ready", "unready", "reject", "edit", "adopt", "release by variant"),
    ]
)


@given(st.lists(STEPS, max_size=40))
def test_after_any_history_nothing_is_proposed_with_an_open_gate_or_twice(steps: list[str]) -> None:
    world = Alone(by_hand(**MET))
    proposed: set[str] = set()
    number = 0
    for step in steps:
        revision = world.server.revision
        assert revision is not None
        before = len(world.server.moves)
        match step:
            case "look":
                world.settle(1)
            case "promote" | "release":
                world.run_alone(getattr(world, step))
            case "observe":
                world.observe()
            case "restart":
                world.restart()
            case "ready" | "unready":
                world.set_condition("ip", "True" if step == "ready" else "False")
            case "reject" if revision["spec"]["lifecycle"] == "Proposed":
                world.move("Draft")
            case "edit" if revision["spec"]["lifecycle"] == "Draft":
                number += 1
                world.server.files["a.yaml"] = f"a: {number}\n"
                world.commit(str(number))
            case "adopt" | "release by variant":
                own(world, OWNER if step == "adopt" else [])
        for move in world.server.moves[before:]:
            content = content_digest(world.server.files)
            if move == "Proposed":
                assert content not in proposed, steps
                assert revision["status"]["conditions"][0]["status"] == "True"
                proposed.add(content)
            else:
                proposed.discard(content)


def test_rows_end_with_the_revision_and_not_before_its_list_is_complete() -> None:
    world = Alone(by_hand())
    world.settle()
    world.server.revision = None
    world.markers["porch.kpt.dev/PackageRevision"] = SyncMarker(state="syncing", epoch=1)
    world.settle()
    assert (PROMOTIONS, ALONE) in world.rows
    world.markers["porch.kpt.dev/PackageRevision"] = SyncMarker(state="ok", epoch=2)
    world.settle()
    assert not {(PROMOTIONS, ALONE), (RELEASES, ALONE)} & world.rows.keys()


def test_a_key_says_what_it_is_of() -> None:
    assert (is_unowned(ALONE), is_unowned(KEY)) == (True, False)
    assert (address_of(ALONE), address_of(KEY)) == (("default", NAME), ("default", "web-edge"))


@pytest.mark.parametrize(
    ("directory", "ref", "found"),
    [
        ("web", "web/v6", ["blueprints/web@v6", "catalog/web@v6"]),
        ("/apps/web/", "apps/web/v6", ["blueprints/web@v6", "catalog/web@v6"]),
        ("myweb", "myweb/v6", []),
        ("web", "main", []),
    ],
)
def test_the_upstreams_that_a_lock_may_mean(directory: str, ref: str, found: list[str]) -> None:
    names = ("blueprints/web@v6", "catalog/web@v6", "blueprints/web@v7", "blueprints/db@v6")
    assert sources_at(directory, ref, names) == found
