"""A newer upstream revision in the middle of an attempt: it supersedes the attempt, or waits for its end."""

from typing import Any

import pytest

from pvbus.core.kernel.keys import PROPOSED_CONTENT
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS
from pvbus.core.kernel.rolloutrows import Approve, Evidence, Restore, Withdraw
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.protocol.turn import SUPERSEDED_MAX
from tests.unit.core.promotion.promoting import KEY as VARIANT
from tests.unit.core.promotion.promoting import NAME, PromoteWorld, draft, variant
from tests.unit.core.promotion.rolling import Bench
from tests.unit.core.promotion.stepping import TWO, Fleet
from tests.unit.core.promotion.test_candidates import DIGEST, OLD, OLD_FILES, policy, published, rows

S = RolloutState
V1, V2, V3, V4 = (f"blueprints/web@v{number}" for number in (1, 2, 3, 4))
HELD = (WaveRules(percent=0, number=1, hold_seconds=3600), WaveRules())
FINISH = Rules(TWO, finishes=True)


def fleet_of(rules: Rules = Rules(TWO), targets: int = 3) -> Fleet:  # noqa: B008 - immutable
    """Return a fleet that runs v1, and whose v2 is proposed."""
    fleet = Fleet(rules, targets)
    for target, facts in fleet.seen.items():
        fleet.seen[target] = facts._replace(
            upstream=V2, source=V2, files="two", published_source=V1, published="v1"
        )
    return fleet


def release_upstream(fleet: Fleet, upstream: str, *targets: str, held: bool = False) -> Fleet:
    """Let variants follow another upstream revision. What they run loses its Ready; without Finish promote
    makes drafts of the proposals, and proposes the new ones."""
    for target in targets or tuple(fleet.seen):
        facts = fleet.seen[target]._replace(upstream=upstream, is_upstream_held=held, is_current=False)
        if not held and not fleet.rules.finishes and fleet.rollout.superseded < SUPERSEDED_MAX:
            name = upstream.rpartition("@")[2]
            facts = facts._replace(
                revision=name, digest=f"{name}-{target}", source=upstream, is_proposed=True
            )
        fleet.seen[target] = facts
        fleet.evidence.pop(target, None)
    return fleet.go()


# ------------------------------------------------------------ superseding


def test_three_superseded_attempts_in_a_row_are_followed_by_one_that_finishes() -> None:
    """Upstream releases every 10 minutes, and each wave is held for an hour."""
    fleet = fleet_of(Rules(HELD))
    fleet.go().publish("t0")
    for number in range(3, 6):
        assert fleet.rollout.state is S.HOLDING
        release_upstream(fleet, f"blueprints/web@v{number}")
        assert fleet.rollout.superseded == number - 2
        fleet.go().publish("t0")  # the next attempt begins with its first wave
        assert (fleet.rollout.attempt, fleet.rollout.wave) == (number - 1, 1)
    release_upstream(fleet, "blueprints/web@v6")
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.HOLDING, 4)
    for _ in range(60):
        fleet.go(60)
    fleet.publish("t1", "t2")
    assert fleet.rollout.state is S.COMPLETED
    assert fleet.rollout.superseded == 0


def test_a_superseded_attempt_takes_orders_back_and_keeps_its_proofs() -> None:
    fleet = fleet_of(Rules((WaveRules(percent=0, number=2), WaveRules())), targets=4)
    fleet.go().publish("t0")
    assert fleet.ordered(Approve) == ["t1"]
    release_upstream(fleet, V3)
    assert fleet.rollout.state is S.SUPERSEDED
    assert fleet.rollout.reason == "Superseded"
    assert V3 in fleet.rollout.message
    assert fleet.ordered(Withdraw) == ["t1"]
    assert fleet.states == "proven cancelling left left"


def test_no_attempt_begins_while_an_order_of_a_superseded_one_is_taken_back() -> None:
    """Release is away while orders are taken back: no limit ends this, as the approval could still arrive."""
    fleet = fleet_of()
    fleet.go()
    release_upstream(fleet, V3)
    for _ in range(100):
        fleet.go(86_400)
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.SUPERSEDED, 1)
    fleet.change("t0", withdrawn=1)
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.ROLLING, 2)


def test_an_order_that_was_carried_out_before_it_was_taken_back_is_unproven() -> None:
    fleet = fleet_of()
    fleet.go()
    fleet.seen["t1"] = fleet.seen["t1"]._replace(is_proposed=False)
    fleet.seen["t2"] = fleet.seen["t2"]._replace(is_proposed=False)
    release_upstream(fleet, V3)
    fleet.rules = fleet.rules._replace(settle_seconds=60)
    fleet.change("t0", published="v2", published_digest="d0", is_proposed=False)
    assert fleet.rows["t0"].state is TargetState.UNPROVEN


def test_a_target_that_alone_gets_another_draft_leaves_and_supersedes_nothing() -> None:
    """Superseded is an attempt whose waiting targets are all of another upstream revision."""
    fleet = fleet_of(Rules(TWO, in_flight_max=1)).go().publish("t0")
    release_upstream(fleet, V3, "t2")
    assert fleet.states == "proven ordered left"
    assert fleet.rollout.state.value == "Rolling"
    fleet.publish("t1")
    assert fleet.rollout.state is not S.SUPERSEDED
    assert (fleet.rollout.superseded, fleet.rows["t1"].state) == (0, TargetState.PROVEN)


def test_an_approved_target_that_nothing_can_prove_any_more_ends_the_attempt() -> None:
    """Its wave waits for nobody else, and its Ready is of a newer draft."""
    fleet = fleet_of()
    fleet.go().publish("t0", good=None)
    release_upstream(fleet, V3, "t0")
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.ROLLING, 2)
    assert fleet.rollout.superseded == 1


def test_what_is_approved_and_unproven_is_neither_restored_nor_blamed_nor_tried_in_vain() -> None:
    """Approved, unproven, and Ready is of the newer draft: unproven in history, neither restore point nor
    quarantined."""
    fleet = fleet_of()
    fleet.go().publish("t0", good=None)
    fleet.rules = fleet.rules._replace(settle_seconds=60)
    release_upstream(fleet, V3)
    assert fleet.states == "unproven left left"
    assert "published and unproven: t0" in fleet.rollout.message
    assert not fleet.quarantines
    fleet.go(60).go(60)
    assert (fleet.rollout.attempt, fleet.rows["t0"].good, fleet.rows["t0"].good_source) == (2, "v1", V1)


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_failure_in_the_same_step_as_a_new_revision_comes_first(*, rolls_back: bool) -> None:
    """The budget is exceeded in the same step as a new revision: failure first, so stop or roll back and
    quarantine; the new revision comes after."""
    fleet = fleet_of(Rules(TWO, rolls_back=rolls_back))
    fleet.go().publish("t0", good=None)
    fleet.evidence["t0"] = Evidence("v2", "d0", 1, False)
    bad = dict(fleet.evidence)
    for target, facts in fleet.seen.items():
        fleet.seen[target] = facts._replace(upstream=V3, is_proposed=False)
    fleet.evidence = bad
    fleet.go()
    assert fleet.rollout.state is (S.ROLLING_BACK if rolls_back else S.STOPPED)
    assert [each.revision for each in fleet.quarantines[1].upstreams] == [V2]
    assert fleet.rollout.newer == (V3,)


def test_a_stopped_attempt_waits_for_a_person_whatever_comes_from_upstream() -> None:
    """Stopped waits for a person, as today; status shows the waiting revision."""
    fleet = fleet_of()
    fleet.go().publish("t0", good=False)
    assert fleet.rollout.state is S.STOPPED
    for number in range(3, 8):
        release_upstream(fleet, f"blueprints/web@v{number}")
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.STOPPED, 1)
    assert fleet.rollout.newer == ("blueprints/web@v7",)
    assert [each[-2:] for each in fleet.rollout.skipped] == ["v3", "v4", "v5", "v6"]


def test_a_rollback_is_not_superseded() -> None:
    fleet = fleet_of(Rules(TWO, rolls_back=True))
    fleet.go().publish("t0", good=False)
    assert fleet.rollout.state is S.ROLLING_BACK
    release_upstream(fleet, V3)
    assert fleet.rollout.state is S.ROLLING_BACK
    assert fleet.ordered(Restore) == ["t0"]


def test_a_paused_attempt_is_superseded_when_it_is_resumed() -> None:
    fleet = fleet_of().go().command(paused=True)
    release_upstream(fleet, V3)
    assert fleet.rollout.state.value == "Rolling"
    assert fleet.command(paused=False).rollout.state is S.SUPERSEDED


def test_a_quarantined_revision_supersedes_nothing() -> None:
    """Upstream moves to a quarantined revision in mid-rollout: it supersedes nothing."""
    fleet = fleet_of()
    fleet.go().publish("t0")
    release_upstream(fleet, V3, held=True)
    assert fleet.rollout.state is S.ROLLING
    assert fleet.ordered(Approve) == ["t1", "t2"]


@pytest.mark.parametrize("is_held", [True, False])
def test_what_promote_says_of_the_upstream_decides_what_supersedes(*, is_held: bool) -> None:
    bench = Bench()
    for target in bench.candidates:
        bench.candidate(target, upstream=V2, source=V2)
    bench.go()
    for target in bench.candidates:
        bench.candidate(target, upstream=V3, is_upstream_held=is_held)
    bench.go()
    assert bench.status.phase == ("Rolling" if is_held else "Superseded")
    assert bench.status.superseded == (0 if is_held else 1)


def test_a_hotfix_of_a_lower_number_supersedes_as_well() -> None:
    """An older or fix-branch revision as hotfix: new means another upstream revision than planned, not a
    higher number."""
    fleet = fleet_of().go()
    release_upstream(fleet, "blueprints/web@v1.9-fix")
    assert fleet.rollout.state is S.SUPERSEDED


def test_the_next_revision_is_planned_from_its_first_wave_though_the_one_before_is_quarantined() -> None:
    """v7 is published while v6 is quarantined: v7 is not covered, v6 stays covered until a person releases
    it."""
    fleet = fleet_of()
    fleet.is_lasting = True
    fleet.go().publish("t0", good=False)
    assert fleet.rollout.state is S.STOPPED
    fleet.command(abort=1)
    release_upstream(fleet, V3)
    fleet.go()
    assert (fleet.rollout.attempt, fleet.rollout.wave) == (2, 1)
    assert {row.source for row in fleet.rows.values() if row.attempt == 2} == {V3}
    assert fleet.rows["t0"].good == "v1"


def test_a_content_that_was_proven_through_its_wave_stays_the_restore_point() -> None:
    """The proof is lost just before v7 is planned: a content once proven through its wave stays the restore
    point unless quarantined."""
    fleet = fleet_of()
    fleet.go().publish("t0")
    assert fleet.rollout.wave == 2
    del fleet.evidence["t0"]
    fleet.go()
    assert fleet.rows["t0"].state is TargetState.APPROVED
    release_upstream(fleet, V3)
    fleet.seen = {target: facts._replace(withdrawn=1) for target, facts in fleet.seen.items()}
    fleet.go().go()
    row = fleet.rows["t0"]
    assert (row.attempt, row.good, row.good_digest) == (2, "v2", "d0")


def test_a_rollback_touches_only_what_its_attempt_published_and_names_the_others() -> None:
    """Rollback while v7 is on some targets: only targets whose published revision is the attempt's are
    touched; the others are Replaced, named."""
    fleet = fleet_of(Rules(TWO, failing_max=1, rolls_back=True))
    fleet.go().publish("t0").publish("t1", "t2")
    fleet.seen["t1"] = fleet.seen["t1"]._replace(published="v3", published_digest="d3")
    fleet.command(roll_back=1)
    assert fleet.ordered(Restore) == ["t0"]
    fleet.change("t0", published="back", published_digest="old0")
    assert fleet.ordered(Restore) == ["t2"]
    fleet.change("t2", published="back", published_digest="old2")
    assert fleet.states == "undone gone undone"
    assert "t1: Replaced: v3 is published" in fleet.rollout.message


def test_a_target_that_is_held_during_a_rollback_is_stranded_in_time_and_the_rollback_ends() -> None:
    """Time in which the rollout is paused does not count."""
    fleet = fleet_of(Rules(TWO, failing_max=1, rolls_back=True, restore_seconds=90))
    fleet.go().publish("t0").publish("t1", "t2").command(roll_back=1)
    fleet.change("t0", published="back", published_digest="old0")
    fleet.change("t2", published="back", published_digest="old2")
    fleet.go(60)
    assert (fleet.states, fleet.taken.wait_seconds) == ("undone undoing undone", 30)
    fleet.command(paused=True).go(60).command(paused=False)
    assert fleet.rollout.state is S.ROLLING_BACK
    fleet.go(30)
    assert (fleet.rollout.state, fleet.states) == (S.ROLLED_BACK, "undone stranded undone")
    assert "t1: Stranded: v1 was not published again within 90 s" in fleet.rollout.message


# ------------------------------------------------------------ finishing


def test_an_attempt_that_finishes_goes_on_as_planned_and_only_the_newest_revision_waits() -> None:
    """Planned proposals are frozen, one revision waits, skipped ones are named."""
    fleet = fleet_of(FINISH)
    fleet.go().publish("t0", good=None)
    release_upstream(fleet, V3)
    release_upstream(fleet, V4)
    assert all(row.is_frozen for row in fleet.rows.values())
    assert (fleet.rollout.newer, fleet.rollout.skipped) == ((V4,), (V3,))
    fleet.evidence["t0"] = Evidence("v2", "d0", 1, True)
    assert fleet.go().ordered(Approve) == ["t1", "t2"]
    fleet.publish("t1", "t2")
    assert fleet.rollout.state is S.COMPLETED
    assert not any(row.is_frozen for row in fleet.rows.values())


def test_a_proposal_that_a_person_edits_is_not_frozen_and_leaves() -> None:
    fleet = fleet_of(FINISH)
    fleet.go().change("t1", digest="edited")
    assert fleet.rows["t1"].state is TargetState.LEFT
    fleet.publish("t0")
    assert fleet.ordered(Approve) == ["t2"]


def test_an_edit_of_the_policy_counts_at_once() -> None:
    fleet = fleet_of(FINISH)
    fleet.go()
    release_upstream(fleet, V3)
    assert fleet.rollout.state.value == "Rolling"
    fleet.rules = fleet.rules._replace(finishes=False)
    assert fleet.go().ordered(Withdraw) == ["t0"]
    assert fleet.rollout.state is S.SUPERSEDED


def test_the_history_has_what_was_skipped_and_the_status_what_waits() -> None:
    bench = Bench(onNewRevision="Finish")
    for target in bench.candidates:
        bench.candidate(target, upstream=V2, source=V2)
    bench.go()
    for upstream in (V3, V4):
        for target in bench.candidates:
            bench.candidate(target, upstream=upstream)
        bench.go()
    status = bench.statuses[-1]
    assert (status.newer, status.history[-1].skipped) == ((V4,), (V3,))
    assert bench.orders == {
        "t0": "approve v2 1 uid-t0",
        "t1": "freeze v2 1 uid-t1",
        "t2": "freeze v2 1 uid-t2",
    }


# ------------------------------------------------------------ promote


BEHIND = {"status": "False", "reason": "UpstreamChanged", "message": "the upstream is now v3"}


def frozen_world(order: ApprovalRow | None, revision: Any, of: Any) -> PromoteWorld:
    """Return a world in which promote knows an order of a rollout, and has decided."""
    world = PromoteWorld(revision, of)
    world.server.published, world.server.files_of = [published()], {OLD: OLD_FILES}
    world.policies = [policy()]
    world.write(APPROVALS, f"{VARIANT}|web", order)
    world.observe()
    world.run(world.promote)
    return world


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        pytest.param(
            ApprovalRow(uid="uid-v", attempt=3, order="freeze", revision=NAME, digest=DIGEST),
            "WaitsForRollout",
            id="planned",
        ),
        pytest.param(
            ApprovalRow(
                uid="uid-v", attempt=3, order="approve", revision=NAME, digest=DIGEST, is_frozen=True
            ),
            "WaitsForRollout",
            id="ordered",
        ),
        pytest.param(
            ApprovalRow(uid="uid-v", attempt=3, order="approve", revision=NAME, digest=DIGEST),
            "Returning",
            id="ordered, and not frozen",
        ),
        pytest.param(
            ApprovalRow(uid="uid-v", attempt=3, order="freeze", revision="another", digest=DIGEST),
            "Returning",
            id="another revision",
        ),
        pytest.param(
            ApprovalRow(uid="uid-w", attempt=3, order="freeze", revision=NAME, digest=DIGEST),
            "Returning",
            id="a former variant",
        ),
        pytest.param(None, "Returning", id="none"),
    ],
)
def test_promote_does_not_take_back_what_a_rollout_has_frozen(order: ApprovalRow | None, reason: str) -> None:
    """Planned proposals wait for the rollout, and may be approved though their upstream has moved on."""
    proposal = draft(lifecycle="Proposed", annotations={PROPOSED_CONTENT: DIGEST})
    world = frozen_world(order, proposal, variant(ready=BEHIND))
    assert world.verdict.reason == reason
    assert rows(world)["web"].is_proposed is (reason == "WaitsForRollout")


def test_a_change_that_is_no_upstream_revision_is_not_frozen() -> None:
    """A person's own edit of the variant is not frozen: the proposal goes back and leaves the attempt."""
    proposal = draft(lifecycle="Proposed", annotations={PROPOSED_CONTENT: DIGEST})
    edited = variant(ready={**BEHIND, "reason": "NotDraft"})
    order = ApprovalRow(uid="uid-v", attempt=3, order="freeze", revision=NAME, digest=DIGEST)
    world = frozen_world(order, proposal, edited)
    assert world.verdict.reason == "Returning"
    assert not rows(world)["web"].is_proposed


@pytest.mark.parametrize(
    ("is_frozen", "reason", "is_good"),
    [
        (True, "UpstreamChanged", True),
        (False, "UpstreamChanged", None),
        (True, "NotDraft", None),
        (False, "NotDraft", None),
        (True, "RenderFailed", False),
    ],
)
def test_what_a_variant_wants_next_says_nothing_of_what_was_just_published(
    is_frozen: bool, reason: str, is_good: bool | None
) -> None:
    """Its draft is not there yet, so Ready still says that the proposal is in the way."""
    order = ApprovalRow(
        uid="uid-v", attempt=3, order="approve", revision=NAME, digest="d", is_frozen=is_frozen
    )
    approved = draft(lifecycle="Published")
    approved["spec"]["revision"] = 2
    world = frozen_world(order, approved, variant(ready={**BEHIND, "reason": reason}))
    assert rows(world)["web"].published == NAME
    assert rows(world)["web"].is_good is is_good


def test_what_a_frozen_target_got_is_proven_by_its_publication() -> None:
    """Ready is of the newer draft by then, and says nothing of the published revision."""
    order = ApprovalRow(uid="uid-v", attempt=3, order="freeze", revision=OLD, digest="d")
    world = frozen_world(order, draft(), variant())
    assert rows(world)["web"].is_good is True
