"""The written rules of a rollout, each by what it does to a small fleet."""

from collections import Counter
from collections.abc import Callable

import pytest

from pvbus.core.api.rollouts import Check, DenyWindow, ObjectCheck, TimeWindow
from pvbus.core.errors import InvariantError
from pvbus.core.kernel.rolloutrows import (
    NO_COMMANDS,
    Approve,
    Ask,
    Evidence,
    Restore,
    TargetFacts,
    Withdraw,
)
from pvbus.core.kernel.rolloutstates import (
    ROLLOUT_TRANSITIONS,
    TARGET_TRANSITIONS,
    RolloutEvent,
    RolloutState,
    TargetEvent,
    TargetState,
    rollout_after,
    target_after,
)
from pvbus.core.promotion.protocol.rehearsal import Standing, rehearse
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.protocol.windows import compiled
from tests.unit.core.promotion.stepping import NOW, TWO, Fleet

S, T = RolloutState, TargetState
CHECK = Check(name="errors", object=ObjectCheck(expression="true"))


def test_the_next_wave_waits_for_the_evidence_of_the_one_before() -> None:
    fleet = Fleet().go()
    assert fleet.ordered(Approve) == ["t0"]
    fleet.publish("t0", good=None)
    assert (fleet.states, fleet.ordered(Approve)) == ("approved planned planned", [])
    fleet.publish("t0")
    assert fleet.ordered(Approve) == ["t1", "t2"]
    fleet.publish("t1", "t2")
    assert (fleet.rollout.state, fleet.states) == (S.COMPLETED, "proven proven proven")
    assert fleet.taken.wait_seconds is None


@pytest.mark.parametrize(
    "stale",
    [
        Evidence("v1", "d0", 1, True),
        Evidence("v2", "another", 1, True),
        Evidence("v2", "d0", 0, True),
        Evidence("v2", "d0", 2, True),
    ],
)
def test_evidence_of_another_revision_content_or_attempt_proves_nothing(stale: Evidence) -> None:
    fleet = Fleet().go().publish("t0", good=None)
    fleet.evidence["t0"] = stale
    assert fleet.go().states == "approved planned planned"


def test_a_target_that_is_no_longer_proven_ends_the_hold_time() -> None:
    fleet = Fleet(Rules((WaveRules(0, 1, hold_seconds=100), WaveRules()))).go().publish("t0").go(50)
    del fleet.evidence["t0"]
    assert fleet.go().rollout.state is S.ROLLING
    fleet.publish("t0")
    assert fleet.go(60).rollout.state is S.HOLDING
    assert fleet.go(50).rollout.wave == 2


def test_a_step_with_the_same_input_changes_nothing() -> None:
    fleet = Fleet(Rules((WaveRules(0, 1, 100, 1000, (CHECK,)), WaveRules()))).go().publish("t0").go(10)
    before, actions = fleet.rollout, fleet.taken.actions
    fleet.go()
    assert (fleet.rollout, fleet.taken.rows, fleet.taken.actions) == (before, {}, actions)


def test_no_more_than_the_budget_is_in_flight() -> None:
    fleet = Fleet(Rules((WaveRules(),), in_flight_max=2), 4).go()
    assert fleet.ordered(Approve) == ["t0", "t1"]
    assert fleet.publish("t0", good=None).ordered(Approve) == ["t1"]
    assert fleet.publish("t0").ordered(Approve) == ["t1", "t2"]


def test_one_failing_target_more_than_the_budget_stops() -> None:
    fleet = Fleet(Rules((WaveRules(),), failing_max=1)).go().publish("t0", good=False)
    assert fleet.rollout.state is S.ROLLING
    fleet.publish("t1", good=False)
    assert (fleet.rollout.state, fleet.rollout.reason) == (S.STOPPED, "TooManyFailing")
    assert fleet.rollout.message == "2 targets fail, 1 may"


def test_a_refused_approval_counts_as_failing_and_is_not_repeated() -> None:
    fleet = Fleet().go().change("t0", refused=1)
    assert (fleet.rollout.state, fleet.states) == (S.STOPPED, "refused planned planned")
    assert fleet.taken.actions == ()


def test_within_the_budget_a_failing_target_does_not_hold_up_its_wave() -> None:
    fleet = Fleet(Rules(TWO, failing_max=1)).go().publish("t0", good=False)
    assert (fleet.rollout.wave, fleet.ordered(Approve)) == (2, ["t1", "t2"])


def test_a_resumed_rollout_accepts_the_failing_targets_of_then_and_no_more() -> None:
    fleet = Fleet(Rules(TWO)).go().publish("t0", good=False).command(resume=(1, 1))
    assert (fleet.rollout.wave, fleet.ordered(Approve)) == (2, ["t1", "t2"])
    fleet.publish("t1", good=False)
    assert (fleet.rollout.state, fleet.rollout.stops) == (S.STOPPED, 2)
    assert fleet.command(resume=(1, 1)).rollout.state is S.STOPPED


def test_a_join_waits_for_the_next_attempt_and_begins_it() -> None:
    fleet = Fleet().go()
    fleet.seen["t3"] = TargetFacts("v2", "d3", True)
    fleet.publish("t0").publish("t1", "t2")
    assert (fleet.rollout.attempt, fleet.ordered(Approve), fleet.rows["t3"].wave) == (2, ["t3"], 1)


def test_a_new_upstream_revision_leaves_the_attempt_and_starts_again_with_the_canary() -> None:
    fleet = Fleet().go().publish("t0")
    for target in ("t1", "t2"):
        fleet.change(target, revision="v3", digest=f"new-{target}")
    fleet.change("t0", revision="v3", digest="new-t0", is_proposed=True)
    assert fleet.states == "proven cancelling cancelling"
    assert fleet.ordered(Withdraw) == ["t1", "t2"]
    for target in ("t1", "t2"):
        fleet.change(target, withdrawn=1)
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (2, ["t0"])
    assert fleet.rows["t0"].good == "v2"
    assert fleet.rows["t1"].good == "v1"


def test_a_revision_that_is_withdrawn_before_its_order_may_return_and_holds_nothing_up() -> None:
    fleet = Fleet(Rules((WaveRules(0, 1), WaveRules(0, 2), WaveRules()))).go()
    fleet.change("t1", is_proposed=False)
    assert fleet.states == "ordered left planned"
    fleet.publish("t0")
    assert fleet.states == "proven left ordered"
    assert fleet.change("t1", is_proposed=True).states == "proven ordered ordered"


def test_a_revision_that_is_withdrawn_after_its_order_is_not_approved_in_this_attempt() -> None:
    fleet = Fleet().go().change("t0", is_proposed=False)
    assert (fleet.states, fleet.ordered(Withdraw)) == ("cancelling planned planned", ["t0"])
    fleet.change("t0", is_proposed=True)
    assert fleet.states == "cancelling planned planned"
    fleet.change("t0", withdrawn=1)
    assert fleet.states == "gone ordered planned"  # the next one takes its place in the first wave
    assert fleet.publish("t1").states == "gone proven ordered"


def test_a_veto_requeues_that_target_alone_and_the_others_go_on() -> None:
    """One is vetoed before its order, one after: neither counts as failing, and both come back."""
    fleet = Fleet(Rules((WaveRules(0, 1), WaveRules()), in_flight_max=1), targets=4).go()
    fleet.publish("t0")
    fleet.change("t1", is_proposed=False)  # ordered
    fleet.change("t2", is_proposed=False)
    fleet.change("t1", withdrawn=1)
    assert (fleet.states, fleet.ordered(Approve)) == ("proven gone left ordered", ["t3"])
    fleet.change("t2", is_proposed=True)
    fleet.publish("t3")
    assert (fleet.states, fleet.ordered(Approve)) == ("proven gone ordered proven", ["t2"])
    fleet.publish("t2")
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.COMPLETED, 1)
    fleet.change("t1", is_proposed=True)
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (2, ["t1"])
    fleet.publish("t1")
    assert (fleet.rollout.state, fleet.states) == (S.COMPLETED, "proven proven proven proven")


def test_a_veto_that_ends_after_the_attempt_begins_another_for_its_target() -> None:
    """It was never ordered, and all others are proven without it."""
    fleet = Fleet().go().change("t2", is_proposed=False).publish("t0").publish("t1")
    assert (fleet.rollout.state, fleet.states) == (S.COMPLETED, "proven proven left")
    assert fleet.change("t2", is_proposed=True).ordered(Approve) == ["t2"]
    assert fleet.rollout.attempt == 2


def test_a_refused_approval_that_is_taken_back_is_not_tried_again() -> None:
    fleet = Fleet().go().change("t0", is_proposed=False)
    fleet.change("t0", refused=1)
    assert fleet.states == "skipped ordered planned"
    fleet.publish("t1").publish("t2")
    fleet.change("t0", is_proposed=True)
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.COMPLETED, 1)


def test_what_an_abort_takes_back_is_not_tried_again() -> None:
    fleet = Fleet().go().command(abort=1)
    fleet.change("t0", withdrawn=1)
    assert (fleet.rollout.state, fleet.rollout.attempt) == (S.ABORTED, 1)
    assert fleet.states == "skipped skipped skipped"


def test_a_deleted_target_leaves_and_its_row_goes_with_the_next_attempt() -> None:
    fleet = Fleet().go().publish("t0")
    del fleet.seen["t0"]
    assert fleet.go().states == "gone ordered ordered"
    fleet.publish("t1", "t2")
    assert fleet.rollout.state is S.COMPLETED
    fleet.change("t1", revision="v3", digest="new", is_proposed=True)
    assert sorted(fleet.rows) == ["t1", "t2"]


def test_what_a_person_approves_counts_as_approved() -> None:
    fleet = Fleet().go()
    facts = fleet.seen["t2"]
    fleet.change("t2", is_proposed=False, published=facts.revision, published_digest=facts.digest)
    assert fleet.states == "ordered planned approved"


def test_a_pause_orders_nothing_and_stops_the_time() -> None:
    rules = Rules((WaveRules(0, 1, hold_seconds=100), WaveRules()))
    fleet = Fleet(rules).go().publish("t0").go(50)
    fleet.commands = NO_COMMANDS._replace(paused=True)
    fleet.go(20).go(1000).go(1000)
    assert fleet.rollout.phase_seconds == 50
    fleet.command(paused=False).go(49)
    assert fleet.rollout.wave == 1
    assert fleet.go(1).ordered(Approve) == ["t1", "t2"]


def test_what_is_due_in_a_pause_is_ordered_after_it() -> None:
    fleet = Fleet().go().command(paused=True).publish("t0")
    assert fleet.ordered(Approve) == []
    assert fleet.command(paused=False).ordered(Approve) == ["t1", "t2"]


@pytest.mark.parametrize("jump", [9e5, -9e5])
def test_a_jump_of_the_clock_ends_no_hold_time_and_holds_nothing_up(jump: float) -> None:
    fleet = Fleet(Rules((WaveRules(0, 1, hold_seconds=100), WaveRules()))).go().publish("t0")
    fleet.go(jump)
    assert (fleet.rollout.wave, fleet.rollout.phase_seconds) == (1, max(0, min(jump, 60)))
    for _ in range(2):
        fleet.go(60)
    assert fleet.rollout.wave == 2


def test_an_aborted_attempt_takes_its_orders_back_and_is_not_begun_again() -> None:
    fleet = Fleet(Rules((WaveRules(0, 2), WaveRules()))).go().publish("t0").command(abort=1)
    assert (fleet.rollout.state, fleet.states) == (S.ABORTED, "proven cancelling skipped")
    fleet.change("t1", withdrawn=1)
    assert (fleet.rollout.attempt, fleet.taken.actions) == (1, ())
    fleet.command(restart=1)
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (2, ["t1", "t2"])


@pytest.mark.parametrize(("restart", "again"), [(1, ["t0", "t1", "t2"]), (2, ["t0", "t1", "t2", "t3"])])
def test_a_restart_tries_again_what_this_attempt_and_earlier_ones_did_not_prove(
    restart: int, again: list[str]
) -> None:
    fleet = Fleet(Rules((WaveRules(0, 100),))).go().command(abort=1)
    for target in ("t0", "t1", "t2"):
        fleet.change(target, withdrawn=1)
    fleet.seen["t3"] = TargetFacts("v2", "d3", True, "v1", "old3")
    fleet.go().command(abort=2).change("t3", withdrawn=2)
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (2, [])
    fleet.command(restart=restart)
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (3, again)


def test_changed_content_is_tried_again_after_an_abort() -> None:
    fleet = Fleet().go().command(abort=1).change("t0", withdrawn=1)
    assert fleet.rollout.attempt == 1
    fleet.change("t0", digest="repaired")
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (2, ["t0"])


def test_a_command_for_a_former_attempt_does_nothing() -> None:
    fleet = Fleet().go()
    fleet.command(abort=7, roll_back=0, promote=3)
    assert fleet.rollout.state is S.ROLLING


def test_what_was_ordered_for_an_attempt_does_nothing_to_the_next_one() -> None:
    manual = Rules((WaveRules(0, 1, 0, 0, (CHECK,)), WaveRules()))
    fleet = Fleet(manual).go().publish("t0").command(promote=1, approve=(1, 1), resume=(1, 1))
    fleet.publish("t1", "t2").command(abort=1)
    assert fleet.rollout.state is S.COMPLETED
    for target in ("t1", "t2"):
        fleet.change(target, revision="v3", digest=f"n{target}", is_proposed=True)
    assert (fleet.rollout.attempt, fleet.rollout.state, fleet.ordered(Approve)) == (2, S.ROLLING, ["t1"])
    fleet.publish("t1")
    assert (fleet.rollout.wave, fleet.ordered(Approve)) == (1, []), "its check has not passed"


def test_a_rollback_publishes_the_former_revisions_in_the_same_waves() -> None:
    fleet = Fleet(Rules(TWO, in_flight_max=1, rolls_back=True)).go().publish("t0").publish("t1")
    fleet.publish("t2", good=False)
    assert fleet.rollout.state is S.ROLLING_BACK
    for target in ("t0", "t1", "t2"):
        assert fleet.ordered(Restore) == [target]
        restore = fleet.taken.actions[0]
        assert isinstance(restore, Restore)
        assert restore.digest == f"old{target[1]}"
        fleet.change(target, published=f"copy-{target}", published_digest=restore.digest)
    assert (fleet.rollout.state, fleet.states) == (S.ROLLED_BACK, "undone undone undone")
    assert {facts.published_digest for facts in fleet.seen.values()} == {"old0", "old1", "old2"}


def test_a_rollback_first_takes_orders_back_and_undoes_what_was_carried_out_meanwhile() -> None:
    fleet = Fleet(Rules(TWO, rolls_back=True)).go().publish("t0").publish("t1", good=False)
    assert fleet.states == "undoing failed cancelling"
    fleet.change("t0", published="copy", published_digest="old0")
    fleet.publish("t2", good=None)
    assert fleet.states == "undone undoing undoing"


def test_a_first_revision_has_nothing_to_go_back_to() -> None:
    fleet = Fleet(Rules((WaveRules(),), rolls_back=True), 1)
    fleet.seen["t0"] = TargetFacts("v1", "d0", True)
    fleet.go().publish("t0", good=False)
    assert (fleet.rollout.state, fleet.states) == (S.ROLLED_BACK, "stranded")
    assert fleet.rollout.message.endswith("t0: Stranded: there is no former revision to go back to")


def test_the_last_good_revision_is_not_one_that_an_attempt_published_and_did_not_prove() -> None:
    fleet = Fleet(Rules((WaveRules(),), failing_max=1), 1).go().publish("t0", good=False)
    assert fleet.rollout.state is S.COMPLETED
    fleet.change("t0", revision="v3", digest="d3", is_proposed=True)
    assert (fleet.rollout.attempt, fleet.rows["t0"].good) == (2, "v1")


def test_a_completed_attempt_may_be_rolled_back_but_not_over_what_came_later() -> None:
    fleet = Fleet().go().publish("t0").publish("t1", "t2")
    fleet.seen["t1"] = fleet.seen["t1"]._replace(published="v9", published_digest="by hand")
    fleet.command(roll_back=1)
    assert (fleet.states, fleet.ordered(Restore)) == ("undoing gone proven", ["t0"])


def checked() -> Fleet:
    return Fleet(Rules((WaveRules(0, 1, 60, 0, (CHECK,)), WaveRules()))).go().publish("t0")


def test_checks_are_looked_at_during_the_hold_time_and_count_only_after_it() -> None:
    fleet = checked()
    assert [action.number for action in fleet.taken.actions if isinstance(action, Ask)] == [1]
    fleet.answer(True).go(30)
    assert (fleet.rollout.ask, fleet.rollout.wave) == (2, 1)
    fleet.answer(True).go(30)
    assert (fleet.rollout.ask, fleet.rollout.wave) == (3, 1)
    assert fleet.answer(True).rollout.wave == 2


def test_an_answer_to_an_earlier_look_passes_nothing() -> None:
    fleet = checked().answer(True).go(60)
    old = fleet.answers
    assert fleet.rollout.ask == 2
    fleet.answers = old
    assert (fleet.go().rollout.wave, fleet.go(60).rollout.wave) == (1, 1)


def test_an_unknown_answer_waits_and_a_failed_one_stops_by_name() -> None:
    fleet = checked().answer(None).go(60)
    assert fleet.answer(None).rollout.state is S.HOLDING
    fleet.go(30).answer(False)
    assert (fleet.rollout.state, fleet.rollout.message) == (S.STOPPED, "wave 1: failed checks: errors")


def test_the_words_of_checks_are_shown_while_they_wait_and_when_they_fail() -> None:
    fleet = checked().answer(None, words=("no value",))
    assert fleet.rollout.unmet == "errors (no value)"
    assert fleet.go(30).rollout.unmet == "errors (no value)"
    assert fleet.answer(True, words=("",)).rollout.unmet == ""
    fleet.go(30).answer(None, words=("no value",)).go(30).answer(False, words=("0.2 is above max 0.1",))
    assert fleet.rollout.message == "wave 1: failed checks: errors (0.2 is above max 0.1)"
    assert fleet.rollout.unmet == ""


def test_the_words_of_many_checks_fit_in_a_row() -> None:
    checks = tuple(Check(name=f"c{i}", object=CHECK.object) for i in range(64))
    fleet = Fleet(Rules((WaveRules(percent=0, number=1, checks=checks), WaveRules()))).go().publish("t0")
    fleet.answer(*[None] * 64, words=("x" * 400,) * 64)
    assert len(fleet.rollout.unmet) < 1_100
    assert fleet.rollout.unmet.endswith("(and 62 more)")


def test_a_wave_that_takes_too_long_fails_and_a_closed_window_costs_it_no_time() -> None:
    window = compiled(TimeWindow(start="00:00", end="00:10"))
    fleet = Fleet(Rules((WaveRules(timeout_seconds=100, windows=(window,)),))).go()
    assert fleet.taken.actions == ()
    assert fleet.taken.wait_seconds is not None
    fleet.go(fleet.taken.wait_seconds)
    assert len(fleet.ordered(Approve)) == 3
    assert fleet.go(60).rollout.state is S.ROLLING
    assert fleet.go(60).rollout.reason == "WaveTimeout"


def test_a_manual_rollout_waits_for_a_person_before_each_wave() -> None:
    waves = (WaveRules(0, 1, needs_person=True), WaveRules())
    fleet = Fleet(Rules(waves, needs_start=True)).go()
    assert fleet.taken.actions == ()
    assert fleet.command(approve=(1, 0)).ordered(Approve) == ["t0"]
    fleet.publish("t0")
    assert fleet.rollout.state is S.HOLDING
    assert fleet.command(approve=(2, 1)).rollout.wave == 1
    assert fleet.command(approve=(1, 1)).ordered(Approve) == ["t1", "t2"]


def test_promoting_now_skips_times_checks_and_people_but_no_evidence_and_no_budget() -> None:
    waves = (WaveRules(0, 1, 1e6, 0, (CHECK,), needs_person=True), WaveRules())
    fleet = Fleet(Rules(waves, in_flight_max=1, needs_start=True)).go().command(promote=1)
    assert fleet.ordered(Approve) == ["t0"]
    fleet.publish("t0", good=None)
    assert fleet.ordered(Approve) == []
    assert fleet.publish("t0").ordered(Approve) == ["t1"]


def test_promoting_passes_windows_and_only_with_a_reason_denied_times() -> None:
    never = compiled(DenyWindow(first_date="1970-01-01", last_date="2100-01-01"))
    closed = compiled(TimeWindow(start="00:00", end="00:01"))
    rules = Rules((WaveRules(windows=(closed,), denied=(never,)),))
    fleet = Fleet(rules).go()
    assert fleet.ordered(Approve) == []
    assert fleet.command(promote=1).ordered(Approve) == []
    assert fleet.command(promote=1, promote_reason="the site is down").ordered(Approve) != []
    without = Fleet(Rules((WaveRules(windows=(closed,)),))).go()
    assert without.ordered(Approve) == []
    assert without.command(promote=1).ordered(Approve) != []


def test_an_attempt_begins_when_the_proposed_revisions_have_settled() -> None:
    fleet = Fleet(Rules(TWO, settle_seconds=30)).go()
    fleet.seen["t3"] = TargetFacts("v2", "d3", True)
    fleet.go(20).go(20)
    assert fleet.rollout.attempt == 0
    assert len(fleet.go(10).rows) == 4


def test_revisions_that_never_settle_are_planned_after_ten_settle_times() -> None:
    fleet = Fleet(Rules(TWO, settle_seconds=30)).go()
    for number in range(15):
        fleet.seen[f"u{number:02}"] = TargetFacts("v2", "d", True)
        fleet.go(20)
    assert fleet.rollout.attempt == 1


def test_an_edit_to_fewer_waves_keeps_the_plan_and_its_last_rules() -> None:
    fleet = Fleet(Rules((WaveRules(0, 1), WaveRules(0, 2), WaveRules()))).go().publish("t0")
    fleet.rules = Rules((WaveRules(),))
    fleet.publish("t1").publish("t2")
    assert fleet.rollout.state is S.COMPLETED


def test_a_thousand_targets_go_in_waves_of_1_5_and_all_with_bounded_rows_and_budgets() -> None:
    """The rollout of the seed: 1 %, watch, 5 %, watch, the rest; at most 50 in flight."""
    waves = (WaveRules(1, hold_seconds=600), WaveRules(5, hold_seconds=600), WaveRules(100))
    fleet = Fleet(Rules(waves, in_flight_max=50), 1000).go()
    sizes: Counter[int] = Counter()
    steps = 0
    while fleet.rollout.state is not S.COMPLETED:
        due = fleet.ordered(Approve)
        assert len(due) <= 50
        sizes.update({fleet.rollout.wave: len(due)})
        if due:
            fleet.publish(*due)
        else:
            fleet.go(60)
        steps += 1
    assert sizes == {1: 10, 2: 40, 3: 950}
    assert fleet.now - NOW >= 1200
    assert steps < 60


def test_a_rehearsal_takes_every_target_once_and_tells_what_a_failure_does() -> None:
    seen = {f"t{i}": TargetFacts(f"v2-{i}", f"d{i}", True, f"v1-{i}", f"old{i}") for i in range(10)}
    rules = Rules(
        (WaveRules(10, hold_seconds=3600, checks=(CHECK,)), WaveRules(50, needs_person=True), WaveRules())
    )
    result = rehearse(rules, Standing(seen), NOW)
    assert result.rollout.state is S.COMPLETED
    assert [len(wave.approved) for wave in result.waves] == [1, 4, 5]
    assert [wave.starts_seconds for wave in result.waves] == [0, 3600, 3600]
    result = rehearse(rules._replace(rolls_back=True), Standing(seen), NOW, failing={"t3"})
    assert result.rollout.state is S.ROLLED_BACK
    assert [sorted(wave.restored) for wave in result.waves] == [["t0"], ["t1", "t2", "t3", "t4"]]
    assert rehearse(rules, Standing({}), NOW).waves == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: rollout_after(S.IDLE, RolloutEvent.PASSED),
        lambda: target_after(T.UNDONE, TargetEvent.ORDER),
    ],
)
def test_a_transition_that_is_not_in_the_tables_raises(call: Callable[[], object]) -> None:
    with pytest.raises(InvariantError, match="is not a transition"):
        call()


def test_every_state_is_in_the_tables_and_can_be_reached() -> None:
    reached = {after for events in TARGET_TRANSITIONS.values() for after in events.values()}
    assert set(TARGET_TRANSITIONS) == set(TargetState)
    assert reached | {T.PLANNED} == set(TargetState)
    assert set(ROLLOUT_TRANSITIONS) == set(RolloutState)
    ends = {after for events in ROLLOUT_TRANSITIONS.values() for after in events.values()}
    assert ends | {S.IDLE} == set(RolloutState)
