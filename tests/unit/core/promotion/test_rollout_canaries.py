"""Named canaries fail closed: the table of docs/rollouts.md, and what happens in the middle of a rollout."""

from collections.abc import Callable

import pytest

from pvbus.core.api.rollouts import CanaryExcuse, DenyWindow
from pvbus.core.kernel.rolloutrows import Approve, Evidence, TargetFacts
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.machine import SETTLE_TIMES_MAX
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.protocol.windows import compiled
from tests.unit.core.promotion.stepping import TWO, Fleet

S = RolloutState
CANARY = Rules(TWO, canaries=("t0",))
ONE_MORE_WAVE = (WaveRules(0, 1), WaveRules(0, 2), WaveRules())
V2, V3 = "blueprints/web@v2", "blueprints/web@v3"


def fleet(rules: Rules = CANARY, targets: int = 3) -> Fleet:
    made = Fleet(rules, targets)
    made.seen = {target: facts._replace(upstream=V2) for target, facts in made.seen.items()}
    return made


def excuse(attempt: int, canary: str = "t0") -> CanaryExcuse:
    return CanaryExcuse(attempt=attempt, canary=canary, reason="its site is closed", by="ann", at="now")


def runs(made: Fleet, target: str, *, is_good: bool | None = True, upstream: str = V2) -> None:
    """Let a target run a revision already, with nothing open."""
    made.seen[target] = TargetFacts("", "", False, "v2", "d", upstream=upstream, is_current=True)
    if is_good is not None:
        made.evidence[target] = Evidence("v2", "d", 0, is_good)


def missing(made: Fleet) -> None:
    del made.seen["t0"]


def unproposed(made: Fleet) -> None:
    made.seen["t0"] = made.seen["t0"]._replace(is_proposed=False)


def without_evidence(made: Fleet) -> None:
    runs(made, "t0", is_good=None)


def bad(made: Fleet) -> None:
    runs(made, "t0", is_good=False)


def of_another_revision(made: Fleet) -> None:
    runs(made, "t0", upstream="blueprints/web@v1")


def with_an_open_draft(made: Fleet) -> None:
    runs(made, "t0")
    made.seen["t0"] = made.seen["t0"]._replace(is_current=False)


HELD: list[tuple[Callable[[Fleet], None], str, str]] = [
    (missing, "CanaryMissing", "canary t0: no PackageVariant of this name exists"),
    (unproposed, "CanaryNotReady", "canary t0: its revision is not proposed"),
    (with_an_open_draft, "CanaryNotReady", "canary t0: its revision is not proposed"),
    (without_evidence, "CanaryNotReady", "canary t0: it runs v2 already, which is not shown to be good now"),
    (bad, "CanaryNotReady", "canary t0: it runs v2 already, which is not shown to be good now"),
    (
        of_another_revision,
        "CanaryNotReady",
        "canary t0: it follows blueprints/web@v1, and blueprints/web@v2 is to",
    ),
]


@pytest.mark.parametrize(("change", "reason", "message"), HELD, ids=[row[0].__name__ for row in HELD])
def test_nothing_is_planned_before_each_canary_is_proposed_or_runs_it(
    change: Callable[[Fleet], None], reason: str, message: str
) -> None:
    made = fleet()
    change(made)
    made.go()
    assert (made.rollout.attempt, made.taken.actions) == (0, ())
    assert made.rollout.canary_reason == reason
    assert made.rollout.canary_message.startswith(message)
    made.words["t0"] = "OnHold: it is on hold"
    assert "t0: " in made.go().rollout.canary_message
    assert made.taken.wait_seconds is None, "no time makes it go on"


@pytest.mark.parametrize(
    "made_of",
    [
        {"upstream": "blueprints/web@v1"},
        {"source": "blueprints/web@v1"},
        {"upstream": "blueprints/web@v1", "source": "blueprints/web@v1"},
    ],
    ids=["it is pinned", "somebody made its draft", "both"],
)
def test_a_canary_that_is_to_get_another_revision_than_the_others_proves_nothing_of_theirs(
    made_of: dict[str, str],
) -> None:
    made = fleet()
    made.change("t0", **made_of)
    assert (made.rollout.attempt, made.ordered(Approve)) == (0, [])
    assert made.rollout.canary_reason == "CanaryNotReady"
    assert made.rollout.canary_message == (
        "canary t0: its proposal is made of blueprints/web@v1, and blueprints/web@v2 is to be approved"
    )
    made.command(excuses=(excuse(1),))
    assert made.rollout.attempt == 1, "a person may go without it"
    made = fleet()
    assert made.change("t0", upstream=V2, source="").ordered(Approve) == ["t0"]


def test_what_promote_says_of_a_canary_is_shown() -> None:
    made = fleet()
    unproposed(made)
    made.words["t0"] = "OnHold: it is on hold: pvbus unhold default/t0"
    assert made.go().rollout.canary_message == "canary t0: OnHold: it is on hold: pvbus unhold default/t0"


def test_a_canary_that_its_hold_keeps_on_another_revision_says_so() -> None:
    made = fleet()
    of_another_revision(made)
    made.words["t0"] = "OnHold: pvbus unhold default/t0"
    message = made.go().rollout.canary_message
    assert message.startswith("canary t0: it follows blueprints/web@v1, and blueprints/web@v2 is to be")
    assert message.endswith("OnHold: pvbus unhold default/t0")


def test_a_canary_that_runs_the_revision_counts_by_its_evidence_of_now() -> None:
    made = fleet()
    runs(made, "t0")
    made.go()
    assert (made.rollout.attempt, made.ordered(Approve)) == (1, ["t1"])
    assert made.publish("t1").ordered(Approve) == ["t2"]
    made.publish("t2")
    assert made.rollout.state is S.COMPLETED


def test_a_canary_that_ran_it_and_is_no_longer_good_holds_the_later_waves() -> None:
    made = fleet()
    runs(made, "t0")
    made.go()
    made.evidence["t0"] = Evidence("v2", "d", 0, False)
    made.words["t0"] = "Ready: Broken"
    made.publish("t1")
    assert (made.ordered(Approve), made.rollout.canary_reason) == ([], "CanaryNotReady")
    made.evidence["t0"] = Evidence("v2", "d", 0, True)
    assert made.go().ordered(Approve) == ["t2"]


def test_a_canary_of_another_package_says_nothing_of_this_one() -> None:
    made = fleet()
    runs(made, "t0", upstream="blueprints/db@v7")
    assert made.go().ordered(Approve) == ["t1"]


def test_a_misspelt_canary_is_missing_from_the_beginning() -> None:
    made = fleet(CANARY._replace(canaries=("t-0",)))
    made.seen = {target: facts._replace(is_proposed=False) for target, facts in made.seen.items()}
    assert made.go().rollout.canary_reason == "CanaryMissing"
    made.change("t1", is_proposed=True)
    assert (made.rollout.attempt, made.rollout.canary_reason) == (0, "CanaryMissing")


def test_a_canary_that_was_tried_in_vain_is_not_left_out_of_the_next_attempt() -> None:
    made = fleet(CANARY._replace(rolls_back=True)).go().publish("t0", good=False)
    made.change("t0", published="copy", published_digest="old0", is_proposed=True, is_current=False)
    assert made.rollout.state is S.ROLLED_BACK
    made.seen["t3"] = TargetFacts("v2", "d3", True, upstream=V2)
    made.go()
    assert (made.rollout.attempt, made.rollout.canary_reason) == (1, "CanaryNotReady")
    assert "attempt 1 did not prove its revision v2" in made.rollout.canary_message
    made.command(restart=1)
    assert (made.rollout.attempt, made.ordered(Approve)) == (2, ["t0"])


# ------------------------------------------------------------ the scenarios


def test_scenario_1_a_canary_that_is_deleted_holds_until_its_wave_has_passed() -> None:
    made = fleet().go()
    del made.seen["t0"]
    made.go(1000)
    assert (made.states, made.ordered(Approve)) == ("cancelling planned planned", [])
    made.seen["t0"] = TargetFacts(withdrawn=1)  # what release confirms last
    made.go()
    del made.seen["t0"]
    for _ in range(3):
        assert (made.go(1000).ordered(Approve), made.rollout.canary_reason) == ([], "CanaryMissing")
    later = fleet(CANARY._replace(waves=ONE_MORE_WAVE)).go().publish("t0")
    del later.seen["t0"]
    assert (later.go().states, later.ordered(Approve)) == ("gone ordered planned", ["t1"])
    assert later.publish("t1").ordered(Approve) == ["t2"]


def test_scenario_2_an_edit_of_the_canaries_counts_at_once() -> None:
    made = fleet()
    missing(made)
    assert made.go().rollout.attempt == 0
    made.rules = CANARY._replace(canaries=("t1",))
    assert made.go().ordered(Approve) == ["t1"]
    made.rules = CANARY._replace(canaries=("t1", "t2"))
    assert made.publish("t1").ordered(Approve) == ["t2"], "one that is named later is approved in this wave"
    made.rules = CANARY._replace(canaries=("t1", "gone"))
    assert made.publish("t2").rollout.state is S.COMPLETED, "nobody is left whom it could guard"


def test_scenario_2_an_excuse_for_this_attempt_is_recorded() -> None:
    made = fleet()
    missing(made)
    made.go().command(excuses=(excuse(2),))
    assert made.rollout.attempt == 0, "it is for another attempt"
    made.command(excuses=(excuse(1),))
    assert (made.rollout.attempt, made.ordered(Approve)) == (1, ["t1"])
    assert made.rollout.excused == (excuse(1),)
    made.publish("t1").publish("t2")
    made.seen["t3"] = TargetFacts("v2", "d3", True, upstream=V2)
    assert (made.go().rollout.attempt, made.rollout.canary_reason) == (1, "CanaryMissing")


def test_scenario_3_canaries_on_hold_wait_for_a_person_and_no_time_runs() -> None:
    waves = (WaveRules(0, 2, timeout_seconds=100), WaveRules())
    made = fleet(Rules(waves, canaries=("t0", "t1")), targets=4).go()
    for canary in ("t0", "t1"):
        made.change(canary, is_proposed=False)
        made.change(canary, withdrawn=1)
    for _ in range(50):
        made.go(60)
    assert (made.rollout.state, made.rollout.wave, made.ordered(Approve)) == (S.ROLLING, 1, [])
    assert made.rollout.canary_message.count("canary t") == 2


def test_scenario_4_skip_goes_without_those_that_are_missing_but_never_without_all() -> None:
    skipping = CANARY._replace(canaries=("t0", "t1"), skips_absent=True)
    made = fleet(skipping)
    missing(made)
    assert made.go().ordered(Approve) == ["t1"]
    made = fleet(skipping)
    missing(made)
    del made.seen["t1"]
    assert (made.go().rollout.attempt, made.rollout.canary_reason) == (0, "CanaryMissing")
    made.command(excuses=(excuse(1),))
    assert made.rollout.attempt == 0, "the last one that is not excused is not skipped"
    made = fleet(skipping)
    unproposed(made)
    assert made.go().rollout.canary_reason == "CanaryNotReady", "one that exists is not skipped"


@pytest.mark.parametrize("is_refused", [False, True])
def test_scenario_5_a_canary_that_fails_or_is_refused_fails_the_attempt(*, is_refused: bool) -> None:
    made = fleet(CANARY._replace(failing_max=5)).go()
    made.words["t0"] = "Ready: Broken"
    if is_refused:
        made.change("t0", refused=1)
    else:
        made.publish("t0", good=False)
    assert (made.rollout.state, made.rollout.reason) == (S.STOPPED, "CanaryFailed")
    assert made.rollout.message == "canary t0 fails: Ready: Broken"


def test_scenario_6_resume_accepts_a_failed_canary_for_this_attempt() -> None:
    made = fleet().go().publish("t0", good=False).command(resume=(1, 1))
    (accepted,) = made.rollout.excused
    assert (accepted.canary, accepted.reason) == ("t0", "a person resumed the attempt after stop 1")
    assert made.ordered(Approve) == ["t1", "t2"]
    made.publish("t1", good=False)
    assert (made.rollout.state, made.rollout.reason) == (S.STOPPED, "TooManyFailing")


def test_scenario_7_ten_settle_times_do_not_override_a_slow_canary() -> None:
    made = fleet(CANARY._replace(settle_seconds=30))
    unproposed(made)
    for _ in range(3 * SETTLE_TIMES_MAX):
        made.go(30)
    assert (made.rollout.attempt, made.rollout.canary_reason) == (0, "CanaryNotReady")
    made.change("t0", is_proposed=True)
    assert made.rollout.attempt == 0, "it settles from here on"
    assert made.go(30).ordered(Approve) == ["t0"]


def test_scenario_8_a_canary_that_another_policy_takes_holds_and_names_it() -> None:
    made = fleet()
    missing(made)
    made.words["t0"] = "policy web-2 has it"
    made.go()
    assert (made.rollout.canary_reason, made.rollout.canary_message) == (
        "CanaryMissing",
        "canary t0: policy web-2 has it",
    )


def test_scenario_9_an_excused_canary_that_comes_back_is_approved_and_holds_nothing() -> None:
    made = fleet()
    back = made.seen["t0"]
    missing(made)
    made.go().command(excuses=(excuse(1),))
    made.seen["t0"] = back
    assert made.go().ordered(Approve) == ["t1", "t0"]
    made.publish("t1")
    assert (made.rollout.wave, made.ordered(Approve)) == (2, ["t2", "t0"])
    made.publish("t0", good=None)
    assert made.publish("t2").rollout.state is S.COMPLETED


def test_a_canary_that_comes_back_with_another_revision_is_not_given_it_in_this_attempt() -> None:
    made = fleet(CANARY._replace(canaries=("t0", "t1"), skips_absent=True))
    missing(made)
    made.go()
    made.seen["t0"] = TargetFacts("v3", "n", True, "v1", "old0", upstream=V3)
    assert made.go().ordered(Approve) == ["t1"]
    assert (made.publish("t1").ordered(Approve), made.rollout.canary_reason) == ([], "CanaryNotReady")


def test_an_order_for_a_canary_that_was_taken_back_begins_the_attempt_again() -> None:
    made = fleet().go()
    made.change("t0", is_proposed=False)
    made.change("t0", withdrawn=1)
    assert (made.states, made.rollout.canary_reason) == ("gone planned planned", "CanaryNotReady")
    made.change("t0", is_proposed=True)
    assert (made.rollout.attempt, made.ordered(Approve)) == (2, ["t0"])
    assert made.publish("t0").ordered(Approve) == ["t1", "t2"]


def test_scenario_10_a_wave_that_lost_all_is_filled_from_the_next_and_who_returns_is_approved() -> None:
    made = fleet(Rules(ONE_MORE_WAVE), targets=5).go()
    made.change("t1", is_proposed=False)
    made.publish("t0")
    assert (made.rollout.wave, made.ordered(Approve)) == (2, ["t2"])
    assert made.change("t1", is_proposed=True).ordered(Approve) == ["t1", "t2"]
    made.publish("t2")
    assert (made.rollout.wave, made.ordered(Approve)) == (2, ["t1"])
    assert made.publish("t1").ordered(Approve) == ["t3", "t4"]


def test_a_wave_whose_proven_targets_are_all_gone_passes_on_nobody() -> None:
    held = (WaveRules(0, 1, hold_seconds=100), WaveRules())
    made = fleet(Rules(held)).go().publish("t0")
    del made.seen["t0"]
    assert (made.go().rollout.wave, made.ordered(Approve)) == (1, ["t1"])
    assert made.publish("t1").rollout.state is S.HOLDING
    assert made.go(50).ordered(Approve) == []
    assert made.go(50).ordered(Approve) == ["t2"]


def test_an_excused_canary_alone_is_no_wave() -> None:
    made = fleet().go().publish("t0", good=None).command(excuses=(excuse(1),))
    assert (made.rollout.wave, made.ordered(Approve)) == (1, ["t1"])
    assert made.publish("t1").ordered(Approve) == ["t2"]


def test_nobody_takes_the_place_of_an_open_canary() -> None:
    made = fleet().go().change("t0", is_proposed=False)
    made.change("t0", withdrawn=1)
    assert (made.states, made.ordered(Approve)) == ("gone planned planned", [])


def test_scenario_12_abort_and_excuse_each_open_one_lock() -> None:
    made = fleet(CANARY._replace(rolls_back=False)).go().publish("t0", good=False)
    assert made.rollout.state is S.STOPPED
    for target in ("t1", "t2"):
        made.change(target, revision="v3", digest=f"n{target}", upstream=V3)
    assert made.ordered(Approve) == [], "what is stopped is stopped"
    made.command(abort=1)
    assert (made.rollout.attempt, made.rollout.canary_reason) == (1, "CanaryNotReady")
    made.command(excuses=(excuse(2),))
    assert (made.rollout.attempt, made.ordered(Approve)) == (2, ["t1"])


def test_scenario_11_promote_passes_no_open_canary() -> None:
    made = fleet().go().command(promote=1)
    made.change("t0", is_proposed=False)
    made.change("t0", withdrawn=1)
    assert (made.go(1000).ordered(Approve), made.rollout.canary_reason) == ([], "CanaryNotReady")


@pytest.mark.parametrize("is_open", [True, False])
def test_scenario_13_a_canary_holds_inside_and_outside_of_windows(*, is_open: bool) -> None:
    """What passes a denied time for a hotfix passes no canary."""
    last = "1970-01-02" if is_open else "2100-01-01"
    denied = (compiled(DenyWindow(first_date="1970-01-01", last_date=last)),)
    rules = CANARY._replace(waves=(WaveRules(0, 1, denied=denied), WaveRules(denied=denied)))
    made = fleet(rules).go().command(promote=1, promote_reason="a hotfix")
    assert made.ordered(Approve) == ["t0"]
    made.change("t0", is_proposed=False).change("t0", withdrawn=1)
    assert (made.go(600).ordered(Approve), made.rollout.canary_reason) == ([], "CanaryNotReady")


def test_a_canary_that_is_unproven_again_keeps_the_rest_of_the_fleet_waiting() -> None:
    made = fleet(Rules(TWO, canaries=("t0",), in_flight_max=2), targets=5).go().publish("t0")
    assert made.ordered(Approve) == ["t1", "t2"]
    del made.evidence["t0"]
    made.publish("t1", "t2")
    assert (made.states, made.ordered(Approve)) == ("approved proven proven planned planned", [])
    assert made.publish("t0").ordered(Approve) == ["t3", "t4"]
