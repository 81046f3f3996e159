"""Rehearsal and reality: what `pvbus rollout plan` says is what the services then do, in every situation."""

import pytest

from pvbus.adapters.memory.virtual_time import run_simulated
from tests.simulation.rehearsing import Outcome, Stage
from tests.simulation.situations import SITUATIONS


@pytest.mark.slow
def test_a_rehearsal_tells_what_happens() -> None:
    """Waves, order, states of the targets, and the outcome of each rollout, attempt after attempt."""

    async def main() -> tuple[dict[str, Outcome], dict[str, Outcome]]:
        return await Stage(SITUATIONS).play()

    rehearsed, lived = run_simulated(main())
    different = {
        case: f"rehearsed {rehearsed[case]}, lived {lived[case]}"
        for case in SITUATIONS
        if not agrees(rehearsed[case], lived[case])
    }
    assert not different
    assert len(rehearsed) == len(SITUATIONS)
    assert {"Completed", "RolledBack", "Stopped", "Aborted", "Idle"} <= {
        each.state for each in lived.values()
    }
    assert sum(len(each.steps) for each in lived.values()) > 100, "most situations order something"


def agrees(rehearsed: Outcome, lived: Outcome) -> bool:
    """Tell whether a rehearsal was true. Where it sees no attempt begin, it says nothing of a former one."""
    targets = rehearsed.targets or lived.targets
    return rehearsed._replace(targets=targets) == lived
