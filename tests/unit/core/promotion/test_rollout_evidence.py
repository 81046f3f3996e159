"""What a rollout does with evidence: it waits, it stops after the deadline, it never rolls back without."""

import pytest

from pvbus.core.api.rollouts import DenyWindow
from pvbus.core.kernel.rolloutrows import Approve, Sighting
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rehearsal import Standing, rehearse
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.protocol.windows import compiled
from tests.unit.core.promotion.stepping import TWO, Fleet

RULES = Rules(TWO, evidence_seconds=1800)
MISSING = Sighting("EvidenceMissing: Application web does not exist")


def silent_fleet(rules: Rules = RULES) -> Fleet:
    """Return a fleet whose first target is published, and has no evidence."""
    fleet = Fleet(rules)
    fleet.go()
    fleet.sightings["t0"] = MISSING
    return fleet.publish("t0", good=None)


def watch(fleet: Fleet, seconds: float) -> Fleet:
    """Let watched time pass."""
    for _ in range(int(seconds // 60)):
        fleet.go(60)
    return fleet


@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_target_without_evidence_stops_the_rollout_and_never_rolls_back(*, rolls_back: bool) -> None:
    fleet = watch(silent_fleet(RULES._replace(rolls_back=rolls_back)), 1740)
    assert fleet.rollout.state is RolloutState.ROLLING
    watch(fleet, 60)
    assert (fleet.rollout.state, fleet.rollout.reason) == (RolloutState.STOPPED, "NoEvidence")
    assert "t0: EvidenceMissing: Application web does not exist" in fleet.rollout.message
    assert (fleet.states, fleet.quarantines) == ("silent planned planned", {}), "nothing speaks against it"


def test_nothing_but_ready_is_waited_for_as_long_where_the_policy_says_nothing() -> None:
    fleet = silent_fleet(Rules(TWO))
    assert watch(fleet, 1740).states == "approved planned planned"
    watch(fleet, 60)
    assert (fleet.rollout.state, fleet.rollout.reason) == (RolloutState.STOPPED, "NoEvidence")


def test_silent_targets_are_within_the_budget_of_failing_ones() -> None:
    fleet = watch(silent_fleet(RULES._replace(failing_max=1)), 1800)
    assert fleet.ordered(Approve) == ["t1", "t2"], "the wave passes without it"


def test_a_bad_target_rolls_back_whatever_is_silent() -> None:
    """What is bad beyond the budget is a failure; what is silent beyond it is none."""
    rules = Rules((WaveRules(),), evidence_seconds=1800, failing_max=1, rolls_back=True)
    fleet = Fleet(rules)
    fleet.go()
    fleet.publish("t0", good=None).publish("t1", good=False)
    watch(fleet, 1800)
    assert (fleet.rollout.state, fleet.rollout.reason) == (RolloutState.STOPPED, "NoEvidence")
    fleet = Fleet(rules._replace(failing_max=0))
    fleet.go()
    fleet.publish("t0", good=None).publish("t1", good=False)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK


def test_a_silent_canary_stops_the_rollout_whatever_the_budget() -> None:
    fleet = watch(silent_fleet(RULES._replace(canaries=("t0",), failing_max=2, rolls_back=True)), 1800)
    assert (fleet.rollout.state, fleet.rollout.reason) == (RolloutState.STOPPED, "NoEvidence")
    fleet.command(resume=(1, 1))
    assert fleet.ordered(Approve) == ["t1", "t2"], "a person accepted it"


def test_late_evidence_proves_a_silent_target() -> None:
    fleet = watch(silent_fleet(), 1800)
    fleet.sightings["t0"] = Sighting()
    fleet.publish("t0")
    assert fleet.states == "proven planned planned"
    assert fleet.rows["t0"].evidence == ""
    fleet.command(resume=(1, 1))
    assert fleet.ordered(Approve) == ["t1", "t2"]


def test_evidence_that_goes_reopens_the_wave_and_begins_the_deadline_again() -> None:
    fleet = silent_fleet(
        RULES._replace(waves=(WaveRules(percent=0, number=1, hold_seconds=7200), WaveRules()))
    )
    watch(fleet, 1200)
    fleet.publish("t0")
    assert fleet.rollout.state is RolloutState.HOLDING
    watch(fleet, 3600)
    del fleet.evidence["t0"]
    fleet.go()
    assert (fleet.states, fleet.rollout.state) == ("approved planned planned", RolloutState.ROLLING)
    watch(fleet, 1740)
    assert fleet.states == "approved planned planned"
    watch(fleet, 60)
    assert fleet.states == "silent planned planned"


def test_paused_and_stopped_time_is_no_time_without_evidence() -> None:
    fleet = silent_fleet()
    fleet.command(paused=True)
    watch(fleet, 7200)
    fleet.command(paused=False)
    assert watch(fleet, 1740).states == "approved planned planned"


def test_closed_and_stopped_time_is_no_time_without_evidence() -> None:
    fleet = silent_fleet()
    never = compiled(DenyWindow(first_date="1970-01-01", last_date="2100-01-01"))
    fleet.rules = RULES._replace(waves=tuple(wave._replace(denied=(never,)) for wave in TWO))
    assert watch(fleet, 7200).states == "approved planned planned"
    fleet.rules = RULES
    assert watch(fleet, 1740).states == "approved planned planned"
    assert watch(fleet, 60).states == "silent planned planned"
    fleet = Fleet(RULES._replace(waves=(WaveRules(percent=0, number=2), WaveRules()))).go()
    fleet.publish("t0", good=None).publish("t1", good=False)
    assert fleet.rollout.state is RolloutState.STOPPED
    assert watch(fleet, 7200).states == "approved failed planned"


def test_weak_evidence_needs_the_status_from_before_the_order() -> None:
    fleet = Fleet(RULES._replace(is_weak=True))
    fleet.go()
    assert fleet.ordered(Approve) == [], "its status is not known"
    fleet.sightings["t0"] = Sighting("EvidenceUnread: forbidden")
    fleet.go()
    assert fleet.ordered(Approve) == [], "its status could not be read"
    assert fleet.rows["t0"].evidence == "EvidenceUnread: forbidden"
    fleet.sightings["t0"] = Sighting("", (("object", "d1"),))
    fleet.go()
    assert fleet.ordered(Approve) == ["t0"]
    fleet.sightings["t0"] = Sighting("", (("object", "d2"),))
    fleet.publish("t0", good=None)
    assert fleet.rows["t0"].before == (("object", "d1"),)


def test_a_rehearsal_takes_all_evidence_for_good() -> None:
    """It knows no status from before an approval, and waits for none."""
    fleet = Fleet()
    result = rehearse(RULES._replace(is_weak=True), Standing(fleet.seen), fleet.now)
    assert result.rollout.state is RolloutState.COMPLETED
    assert [wave.approved for wave in result.waves] == [["t0"], ["t1", "t2"]]


def test_what_a_person_approved_has_to_change_after_the_first_look() -> None:
    fleet = Fleet(RULES._replace(is_weak=True))
    fleet.go()
    fleet.publish("t0", good=None)
    fleet.sightings["t0"] = Sighting("EvidenceStale", (("object", "d2"),))
    fleet.go()
    assert fleet.rows["t0"].before == (("object", "d2"),)
    fleet.sightings["t0"] = Sighting("", (("object", "d3"),))
    fleet.go()
    assert fleet.rows["t0"].before == (("object", "d2"),)
