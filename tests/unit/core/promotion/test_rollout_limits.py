"""Every wait that is not for a person or for release ends: in `Stopped`, and nothing is undone."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.rollouts import Check, ObjectCheck, QueryCheck, RolloutPolicySpec, TimeWindow
from pvbus.core.kernel.rolloutrows import Approve, Evidence, Sighting
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.limits import LOSSES_MAX
from pvbus.core.promotion.protocol.rules import Rules, WaveRules, rules_of
from pvbus.core.promotion.protocol.windows import compiled
from tests.unit.core.promotion.stepping import TWO, Fleet

OBJECT = Check(name="ok", object=ObjectCheck(expression="true"))
QUERY = Check(name="errors", query=QueryCheck(expression="1", window="1h"))
NEVER = (compiled(TimeWindow(days=("Mon",), start="00:00", end="00:01")),)
STOPPED = RolloutState.STOPPED


def watch(fleet: Fleet, seconds: float, verdict: bool | None = None) -> Fleet:
    """Let watched time pass, in which each look at the checks says the same."""
    for _ in range(int(seconds // 60)):
        fleet.go(60)
        if fleet.rollout.state is RolloutState.HOLDING and not fleet.rollout.is_answered:
            fleet.answer(*(verdict for _ in fleet.rules.waves[0].checks))
    return fleet


def held(*checks: Check, rolls_back: bool = True, **wave: Any) -> Fleet:
    """Return a fleet whose first wave is proven, and has these checks."""
    first = WaveRules(percent=0, number=1, hold_seconds=120, checks=checks)._replace(**wave)
    fleet = Fleet(Rules((first, WaveRules()), rolls_back=rolls_back))
    fleet.go()
    return fleet.publish("t0")


@pytest.mark.parametrize("rolls_back", [False, True])
def test_checks_that_say_nothing_stop_the_rollout_after_the_deadline(*, rolls_back: bool) -> None:
    fleet = watch(held(OBJECT, rolls_back=rolls_back), 120 + 1740)
    assert fleet.rollout.state is RolloutState.HOLDING
    watch(fleet, 120)
    assert (fleet.rollout.state, fleet.rollout.reason) == (STOPPED, "ChecksNotPassed")
    assert "wave 1: checks did not pass within 1800 s of its hold time: ok" in fleet.rollout.message
    assert (fleet.quarantines, fleet.states) == ({}, "proven planned planned")
    fleet.command(resume=(1, 1))
    assert fleet.rollout.state is RolloutState.HOLDING, "it waits as long again"
    assert watch(fleet, 600, verdict=True).ordered(Approve) == ["t1", "t2"]


def test_a_query_has_the_time_of_its_window_besides() -> None:
    fleet = watch(held(QUERY), 120 + 3600 + 1740)
    assert fleet.rollout.state is RolloutState.HOLDING
    assert watch(fleet, 120).rollout.state is STOPPED


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        (held(OBJECT, timeout_seconds=36_000), "the policy has a limit of its own"),
        (held(needs_person=True), "a person is waited for without end"),
        (held(OBJECT, windows=NEVER), "closed time does not count"),
    ],
    ids=["timeout", "person", "windows"],
)
def test_what_has_no_limit_of_this_kind_waits(fleet: Fleet, reason: str) -> None:
    watch(fleet, 7200)
    assert fleet.rollout.state is RolloutState.HOLDING, reason


def test_paused_time_does_not_count_and_what_counted_stays() -> None:
    fleet = watch(held(OBJECT), 120 + 1200)
    fleet.command(paused=True)
    watch(fleet, 7200)
    fleet.command(paused=False)
    assert watch(fleet, 480).rollout.state is RolloutState.HOLDING
    assert watch(fleet, 180).rollout.state is STOPPED


@pytest.mark.parametrize("seconds", [86_400.0 * 30, -86_400.0 * 30])
def test_a_clock_that_jumps_ends_no_wait_and_lengthens_none(seconds: float) -> None:
    fleet = watch(held(OBJECT), 120 + 600)
    fleet.go(seconds)
    assert watch(fleet, 1020).rollout.state is RolloutState.HOLDING
    assert watch(fleet, 240).rollout.state is STOPPED


def test_a_status_that_is_never_known_before_the_order_stops_the_rollout() -> None:
    fleet = Fleet(Rules(TWO, is_weak=True, is_evidenced=True, rolls_back=True))
    fleet.sightings["t0"] = Sighting("EvidenceUnread: forbidden")
    watch(fleet.go(), 1740)
    assert fleet.rollout.state is RolloutState.ROLLING
    watch(fleet, 120)
    assert (fleet.rollout.state, fleet.rollout.reason) == (STOPPED, "NoEvidence")
    assert "t0: EvidenceUnread: forbidden" in fleet.rollout.message


def test_evidence_that_comes_and_goes_stops_the_rollout_with_its_count() -> None:
    fleet = held(OBJECT)
    good = Evidence("v2", "d0", 1, True)
    for number in range(LOSSES_MAX):
        assert fleet.rollout.state is RolloutState.HOLDING, number
        fleet.evidence.pop("t0")
        watch(fleet.go(), 60)
        if fleet.rollout.state is not STOPPED:
            fleet.evidence["t0"] = good
            watch(fleet.go(), 60)
    assert (fleet.rollout.state, fleet.rollout.reason) == (STOPPED, "NoEvidence")
    assert f"it was proven and lost that {LOSSES_MAX} times" in fleet.rollout.message


def test_a_target_that_flaps_is_within_the_budget_of_failing_ones() -> None:
    fleet = held()
    fleet.rules = fleet.rules._replace(failing_max=1)
    for _ in range(LOSSES_MAX):
        good = fleet.evidence.pop("t0")
        fleet.go()
        if fleet.rows["t0"].state.value != "silent":
            fleet.evidence["t0"] = good
            fleet.go()
    watch(fleet, 180)
    assert fleet.states == "silent ordered ordered"


@pytest.mark.parametrize(
    ("evidence", "seconds"), [({}, 1800), ({"deadline": "2h"}, 7200), ({"deadline": "0s"}, 1800)]
)
def test_a_policy_that_says_nothing_has_the_default(evidence: dict[str, str], seconds: float) -> None:
    spec = msgspec.convert({"evidence": evidence}, RolloutPolicySpec)
    assert rules_of(spec).evidence_seconds == seconds
