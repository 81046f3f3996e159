"""Scenario 43: where a policy looks at more than Ready, a restored revision needs evidence of its own."""

from pvbus.core.kernel.rolloutrows import Evidence, Restore, Sighting
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rehearsal import Standing, rehearse
from pvbus.core.promotion.protocol.rules import RESTORE_SECONDS, Rules
from tests.unit.core.promotion.stepping import TWO, Fleet
from tests.unit.core.promotion.test_rollout_looks import OLD, Hub, application

EVIDENCED = Rules(TWO, rolls_back=True, is_evidenced=True)
BACK = "c" * 40


def restored(rules: Rules = EVIDENCED) -> Fleet:
    """Return a fleet whose first target failed, and has its former content published again."""
    fleet = Fleet(rules)
    fleet.go()
    fleet.publish("t0", good=False)
    assert fleet.ordered(Restore) == ["t0"]
    return fleet.change("t0", published="r1", published_digest="old0", is_current=False)


def watch(fleet: Fleet, seconds: float) -> Fleet:
    for _ in range(int(seconds // 60)):
        fleet.go(60)
    return fleet


def test_without_more_than_ready_a_published_revision_is_restored() -> None:
    assert restored(EVIDENCED._replace(is_evidenced=False)).rollout.state is RolloutState.ROLLED_BACK


def test_evidence_of_the_restored_revision_ends_the_rollback() -> None:
    fleet = restored()
    for other in (
        Evidence("r1", "old0", 0, True),
        Evidence("v2", "d0", 1, True),
        Evidence("r1", "old0", 1, False),
    ):
        fleet.evidence["t0"] = other
        assert fleet.go().rollout.state is RolloutState.ROLLING_BACK, other
    fleet.evidence["t0"] = Evidence("r1", "old0", 1, True)
    fleet.go()
    assert (fleet.rollout.state, fleet.states) == (RolloutState.ROLLED_BACK, "undone skipped skipped")


def test_without_it_the_target_is_stranded_in_time_and_named() -> None:
    fleet = restored()
    fleet.sightings["t0"] = Sighting("EvidenceMissing: Application web does not exist")
    watch(fleet, RESTORE_SECONDS - 60)
    assert fleet.rollout.state is RolloutState.ROLLING_BACK
    watch(fleet, 120)
    assert (fleet.rollout.state, fleet.states) == (RolloutState.ROLLED_BACK, "stranded skipped skipped")
    words = (
        "t0: Stranded: v1 is published again, and not proven within 1800 s: EvidenceMissing: Application web"
    )
    assert words in fleet.rollout.message


def test_a_rehearsal_takes_restored_revisions_for_good() -> None:
    fleet = Fleet(EVIDENCED)
    end = rehearse(EVIDENCED, Standing(fleet.seen), fleet.now, failing=["t0"])
    assert end.rollout.state is RolloutState.ROLLED_BACK
    assert {row.state.value for row in end.rows.values()} == {"undone", "skipped"}


def test_the_service_looks_at_the_object_of_the_restored_revision() -> None:
    """Ready is of the newer draft by then, and is not asked for."""
    hub = Hub(budgets={"onFailure": "RollBack"}).began()
    hub.shows("t0", application("a" * 40, "Degraded")).watch(60)
    assert hub.ordered["t0"].startswith("restore v1")
    hub.candidate("t0", published="r1", published_digest="old0", is_good=None)
    hub.source("t0", commit=BACK).watch(60)
    assert hub.status.phase == "RollingBack"
    assert "EvidenceStale" in hub.why()
    hub.restart()
    hub.shows("t0", application(BACK, "Degraded")).watch(60)
    assert hub.status.phase == "RollingBack", "it is bad"
    hub.shows("t0", application(BACK)).watch(60)
    assert (hub.status.phase, hub.targets["t0"]) == ("RolledBack", "undone")
    assert OLD != BACK
