"""Rehearsal and reality: what `pvbus rollout plan` says is what the services then do, in every situation."""

from collections.abc import Mapping

import pytest

from tests.kit.processes import run_simulated
from tests.simulation.rehearsing import Outcome, Situation, Stage, Stopping
from tests.simulation.situations import SITUATIONS, STOPPED

STOPPED_AT = 30.0


@pytest.mark.slow
def test_a_rehearsal_tells_what_happens() -> None:
    """Waves, order, states of the targets, and the outcome of each rollout, attempt after attempt."""

    rehearsed, lived, stops = played(SITUATIONS)
    assert not differences(rehearsed, lived)
    assert (len(rehearsed), stops) == (len(SITUATIONS), "")
    assert {"Completed", "RolledBack", "Stopped", "Aborted", "Idle"} <= {
        each.state for each in lived.values()
    }
    assert sum(len(each.steps) for each in lived.values()) > 100, "most situations order something"


@pytest.mark.slow
def test_a_rehearsal_goes_on_from_a_stop_of_all_rollouts() -> None:
    """It says the stop first, and what happens once that is lifted."""
    rehearsed, lived, stops = played(STOPPED, Stopping(at=STOPPED_AT))
    assert not differences(rehearsed, lived)
    assert stops.startswith("all rollouts are stopped: ann: payments are down (pvbus rollout lift ")
    assert {each.state for each in lived.values()} >= {"Completed", "RolledBack", "Stopped"}


@pytest.mark.slow
def test_a_stop_that_lasts_lets_rollbacks_alone_go_on() -> None:
    """What a rehearsal says of these happens; of the others nothing does, and the stop is said first."""
    stopping = Stopping(at=STOPPED_AT, lets_roll_backs=True, is_lifted=False)
    rehearsed, lived, stops = played(STOPPED, stopping)
    undoes = {case for case in STOPPED if any(step[0] == "restore" for step in lived[case].steps)}
    assert "back" in undoes
    assert not differences({case: rehearsed[case] for case in undoes}, lived)
    assert {case: lived[case].steps for case in STOPPED if case not in undoes and lived[case].steps} == {}
    assert stops


def played(
    situations: Mapping[str, Situation], stopping: Stopping | None = None
) -> tuple[dict[str, Outcome], dict[str, Outcome], str]:
    """Return what the rehearsals say, what happens, and what the former say of a stop."""

    async def main() -> tuple[dict[str, Outcome], dict[str, Outcome], str]:
        stage = Stage(situations, stopping)
        return *(await stage.play()), stage.stops

    return run_simulated(main())


def differences(rehearsed: dict[str, Outcome], lived: dict[str, Outcome]) -> dict[str, str]:
    return {
        case: f"rehearsed {rehearsed[case]}, lived {lived[case]}"
        for case in rehearsed
        if not agrees(rehearsed[case], lived[case])
    }


def agrees(rehearsed: Outcome, lived: Outcome) -> bool:
    """Tell whether a rehearsal was true. Where it sees no attempt begin, it says nothing of a former one."""
    targets = rehearsed.targets or lived.targets
    return rehearsed._replace(targets=targets) == lived
