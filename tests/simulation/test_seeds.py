"""Any schedule of user actions and faults ends in the state that the oracle expects, and nothing is lost.

The schedules are those of `tests.simulation.schedule`. They run in batches, each in a process of its own
with a fixed PYTHONHASHSEED, so that a seed is the same schedule here and with the command that a failure
prints. `make simulate SEEDS=2000` plays more of them.
"""

import os
from collections import Counter

import pytest

from tests.simulation.__main__ import (
    ALWAYS,
    EXERCISED_FROM_SEEDS,
    PLAYS,
    VARIANTS,
    WORLDS,
    Supervisor,
    main,
    play_here,
    unexercised,
)

SEEDS = int(os.environ.get("PVBUS_SIMULATION_SEEDS", "20"))
FIRST = int(os.environ.get("PVBUS_SIMULATION_FIRST", "1"))
BATCH = 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, BATCH))
def test_after_any_storm_the_fleet_is_as_the_oracle_wants_it_and_a_restart_is_silent(first: int) -> None:
    seeds = min(BATCH, FIRST + SEEDS - first)
    supervisor = Supervisor(first, seeds, 1, quiet=True)
    supervisor.run()
    assert supervisor.failed == {}
    assert supervisor.done == seeds
    assert unexercised(supervisor.counts, seeds) == []


@pytest.mark.parametrize("world", [world for world in WORLDS if world != VARIANTS])
def test_a_schedule_is_the_same_in_another_process(world: str) -> None:
    """Its counts are of hundreds of random decisions, so equal ones mean equal schedules."""
    first, second = (Supervisor(3, 1, 1, quiet=True, world=world) for _ in range(2))
    first.run()
    second.run()
    assert first.counts
    assert second.counts == first.counts


def test_a_schedule_is_the_same_after_another_one() -> None:
    """Of variants; each of the three processes has to come to the same schedules, too."""
    both, alone = Supervisor(2, 2, 1, quiet=True), [Supervisor(seed, 1, 1, quiet=True) for seed in (2, 3)]
    for each in (both, *alone):
        each.run()
    assert both.counts == alone[0].counts + alone[1].counts


def test_a_simulation_that_exercises_nothing_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(ALWAYS) <= set(unexercised(Counter(), EXERCISED_FROM_SEEDS))
    assert "orders" not in unexercised(Counter({"orders": 1}), EXERCISED_FROM_SEEDS)
    monkeypatch.setattr(
        Supervisor, "run", lambda supervisor: setattr(supervisor, "done", EXERCISED_FROM_SEEDS)
    )
    assert main([]) == 1
    assert "never happened" in capsys.readouterr().out


def test_a_failing_schedule_is_named_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int) -> Counter[str]:
        raise AssertionError("deleted in error")

    monkeypatch.setitem(PLAYS, VARIANTS, broken)
    (result,) = play_here(7, 1)
    supervisor = Supervisor(7, 1, 1, quiet=True)
    supervisor._take(result)
    assert "deleted in error" in supervisor.failed[7]
    assert "make simulate SEEDS=1 FIRST=7" in capsys.readouterr().out
