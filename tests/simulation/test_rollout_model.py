"""The rollout protocol, model-checked: every order of moves of a small world, with bad luck in all places.

Three targets in two waves with one check, at most one in flight, no target may fail, and a failure rolls
back. One trick is one act of a person, of bad luck or of an old message: see
`tests.simulation.rollout_world.tricks`.
"""

import pytest

from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from tests.simulation.rollout_world import (
    FINISHING,
    PATIENT_TRAIN,
    RULES,
    TICK_SECONDS,
    TRAIN,
    WITH_CANARY,
    WITH_EVIDENCE,
    Move,
    RolloutWorld,
    fresh,
    moves,
    problems,
    settled,
    tricks,
    with_rider,
)

SETTLED_EVERY = 25
"""One state in so many is followed to its end: each takes as long as finding hundreds of states."""


def explored(start: RolloutWorld) -> list[RolloutWorld]:
    """Return every world that moves lead to. Raises AssertionError with the moves to a bad one."""
    came: dict[RolloutWorld, tuple[Move, RolloutWorld] | None] = {start: None}
    left = [start]
    while left:
        world = left.pop()
        wrong = list(problems(world))
        assert not wrong, f"{wrong} after {_moves_to(came, world)}"
        for move, after in [*moves(world), *tricks(world)]:
            if after not in came:
                came[after] = (move, world)
                left.append(after)
    return list(came)


def _moves_to(came: dict[RolloutWorld, tuple[Move, RolloutWorld] | None], world: RolloutWorld) -> list[Move]:
    path = []
    while (step := came[world]) is not None:
        path.append(step[0])
        world = step[1]
    return path[::-1]


def test_without_bad_luck_every_order_of_moves_ends_completed() -> None:
    worlds = explored(fresh(3))
    assert len(worlds) > 100
    assert {settled(world).rollout.state for world in worlds} == {RolloutState.COMPLETED}


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(fresh(3, tricks=1, ticks=1), id="rolls back"),
        pytest.param(fresh(3, RULES._replace(rolls_back=False), tricks=1, ticks=1), id="stops"),
        pytest.param(
            fresh(2, RULES._replace(restore_seconds=TICK_SECONDS), tricks=1, ticks=1, doomed=["t1"]),
            id="rolls back with little patience",
        ),
        pytest.param(fresh(3, WITH_CANARY, tricks=1, ticks=1), id="canary"),
        pytest.param(fresh(3, WITH_EVIDENCE, tricks=1, ticks=1), id="evidence"),
        pytest.param(
            fresh(2, RULES._replace(is_evidenced=True), tricks=1, ticks=1, doomed=["t1"]),
            id="fails and rolls back on evidence",
        ),
        pytest.param(
            fresh(2, TRAIN._replace(rolls_back=False, failing_max=1), tricks=1, ticks=1), id="train stops"
        ),
        pytest.param(with_rider(fresh(2, TRAIN, tricks=1, ticks=2), "t1"), id="train that rides"),
        pytest.param(fresh(2, PATIENT_TRAIN, tricks=1, ticks=1, doomed=["t1"]), id="train fails"),
        pytest.param(
            fresh(2, RULES._replace(rolls_back=False), tricks=1, ticks=1, doomed=["t0"]), id="fails and stops"
        ),
    ],
)
def test_no_order_of_moves_with_one_trick_breaks_a_promise(start: RolloutWorld) -> None:
    """No revision is approved twice in an attempt, no wave passes on old evidence, no budget is exceeded, and
    after a rollback no target has what was rolled back. Nothing is proven or failed by evidence of another
    content, and the want of evidence rolls nothing back. No later wave is ordered with an open canary. What
    failed or goes back is quarantined before anything is undone, and nothing quarantined is ordered, good to
    go back to, or resumed. From everywhere the rollout goes on to an end, unless a person has to decide."""
    worlds = explored(start)
    assert len(worlds) > 500
    silent = any(row.state is TargetState.SILENT for world in worlds for _, row in world.rows)
    assert silent == (start.rules.evidence_seconds <= TICK_SECONDS)
    for world in worlds[::SETTLED_EVERY]:
        end = settled(world)
        assert not list(problems(end))
        is_paused = end.commands.paused
        is_held = is_paused or bool(end.rollout.canary_reason)
        assert is_held or end.rollout.state not in (RolloutState.ROLLING, RolloutState.HOLDING)
        assert is_paused or end.rollout.state is not RolloutState.ROLLING_BACK
        assert end.rollout.state is not RolloutState.ISOLATING


@pytest.mark.parametrize("rolls_back", [False, True])
def test_no_order_of_moves_passes_or_fails_a_wave_whose_checks_say_nothing(*, rolls_back: bool) -> None:
    """After its limit the attempt stops: nothing more is approved, undone or quarantined."""
    rules = WITH_EVIDENCE._replace(rolls_back=rolls_back)
    for world in explored(fresh(2, rules, ticks=3)._replace(is_mute=True)):
        states = {row.state for _, row in world.rows if row.wave > 1}
        assert states <= {TargetState.PLANNED}
        assert not world.quarantines
        assert settled(world).rollout.state is RolloutState.STOPPED


@pytest.mark.parametrize(
    ("start", "ends"),
    [
        pytest.param(fresh(2, releases=1, ticks=0), {RolloutState.COMPLETED}, id="supersedes"),
        pytest.param(
            fresh(2, TRAIN, releases=1, ticks=0),
            {RolloutState.COMPLETED, RolloutState.ROLLED_BACK},  # a member moved on before it was frozen
            id="train supersedes",
        ),
        pytest.param(fresh(2, FINISHING, releases=1, ticks=0), {RolloutState.COMPLETED}, id="finishes"),
        pytest.param(
            fresh(2, releases=1, ticks=0, doomed=["t0"]),
            {RolloutState.COMPLETED, RolloutState.ROLLED_BACK},
            id="fails",
        ),
        pytest.param(
            fresh(2, FINISHING, releases=1, ticks=0, doomed=["t1"]),
            {RolloutState.COMPLETED, RolloutState.ROLLED_BACK},
            id="fails and finishes",
        ),
    ],
)
def test_no_order_of_moves_with_a_newer_upstream_revision_breaks_a_promise(
    start: RolloutWorld, ends: set[RolloutState]
) -> None:
    """No state is without exit: from everywhere the newer revision gets out, or what it ran into is rolled
    back. A superseded attempt never approves, a failure comes before superseding, and a rollback touches only
    what its attempt published."""
    worlds = explored(start)
    assert any(world.rollout.newer for world in worlds)
    superseded = any(world.rollout.state is RolloutState.SUPERSEDED for world in worlds)
    assert superseded is not start.rules.finishes
    for world in worlds[::SETTLED_EVERY]:
        end = settled(world)
        assert not list(problems(end))
        assert end.rollout.state in ends
        is_back = end.rollout.state is RolloutState.ROLLED_BACK
        assert start.doomed or is_back or all(facts.published == "v3" for _, facts in end.real)


def test_no_order_of_moves_restores_what_is_quarantined() -> None:
    """The revision of before is quarantined, so that nothing is left to go back to."""
    for world in explored(fresh(2, doomed=["t1"], quarantined="p/u@v1")):
        assert settled(world).rollout.state is RolloutState.ROLLED_BACK


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_order_of_moves_with_two_tricks_breaks_a_promise() -> None:
    """The pairs: a new upstream revision and an abort, a stale order and a rollback, a jump and a failure."""
    worlds = explored(fresh(2, tricks=2, ticks=1))
    assert len(worlds) > 50_000
