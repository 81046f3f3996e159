"""Many sets that are deleted together: all goes, or stays for a reason, at a cost that is linear."""

import pytest

from pvbus.adapters.memory import storage
from tests.kit.processes import run_simulated
from tests.simulation.mass_deletion import EDITED_EACH, WIDE_CHILDREN, WIDE_LEFT, Deletion, delete_together

FEW, MANY = 20, 80
GROWTH_MAX = 1.1
"""Of the cost per set: records differ by a few in a hundred with the moment of each report. A cost that is
quadratic is 4 times as high."""


@pytest.fixture(scope="module")
def deletions() -> dict[int, Deletion]:
    """The same story with four times as many sets: `python -m tests.bench deletions` has 10,000."""
    return {count: run_simulated(delete_together(count)) for count in (FEW, MANY)}


def test_what_a_person_edited_stays_and_all_else_goes(deletions: dict[int, Deletion]) -> None:
    """The drafts that stay name their variant and have no owner; no other draft and no variant is left."""
    for count, deletion in deletions.items():
        assert len(deletion.edited) == count // EDITED_EACH
        wanted = {name: f"s-{package}/s-{package}-r1-{package}@" for name, package in deletion.edited.items()}
        assert deletion.retained == wanted
        assert deletion.owned == []
        assert {name.split("-")[0] for name in deletion.variants} == {"wide"}
        assert {name.split("-")[0] for name in deletion.drafts} == {"r1.wide"}


def test_the_guard_of_a_set_that_stays_says_what_it_holds(deletions: dict[int, Deletion]) -> None:
    """It loses most of its targets in the same moment, and none of its children goes."""
    for deletion in deletions.values():
        assert deletion.hold is not None
        assert deletion.hold.count == len(deletion.variants) - WIDE_LEFT
        assert f"{deletion.hold.count} deletions are held because they are too many at once" in deletion.words
        assert deletion.hold.token in deletion.words


def test_each_set_costs_the_same_however_many_go(deletions: dict[int, Deletion]) -> None:
    """Requests to the cluster, and records of the bus: four times as many sets cost no more than that."""
    few, many = deletions[FEW].deleting, deletions[MANY].deleting
    assert many.writes <= few.writes * GROWTH_MAX * MANY / FEW
    assert many.records <= few.records * GROWTH_MAX * MANY / FEW


def test_what_a_slow_watch_missed_is_listed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server forgets old events, and watches of many sets fall behind: nothing is lost by it."""
    monkeypatch.setattr(storage, "HISTORY_EVENTS", 100)
    deletion = run_simulated(delete_together(100))
    assert deletion.retained.keys() == deletion.edited.keys()
    assert len(deletion.drafts) == len(deletion.variants) == WIDE_CHILDREN
