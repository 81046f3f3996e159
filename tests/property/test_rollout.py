"""Rollouts of larger fleets: after any history with any rules, no promise is broken and there is an end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rules import (
    CHECK_SECONDS,
    LOOK_SECONDS_MAX,
    Rules,
    TrainRules,
    WaveRules,
)
from tests.simulation.rollout_world import CHECK, fresh, moves, problems, settled, stepped, tricks

MOVES_MAX = 40
WAITS = (RolloutState.ROLLING, RolloutState.HOLDING, RolloutState.ROLLING_BACK)

wave = st.builds(
    WaveRules,
    percent=st.sampled_from([10, 34, 50]),
    number=st.just(0),
    hold_seconds=st.sampled_from([0, 20]),
    timeout_seconds=st.sampled_from([0, 0, 400]),
    checks=st.sampled_from([(), (CHECK,)]),
    windows=st.just(()),
    denied=st.just(()),  # as windows: one that is drawn may deny all of time, and then nothing has to end
    needs_person=st.just(False),
)
rules = st.builds(
    Rules,
    waves=st.lists(wave, max_size=2).map(
        lambda found: (*sorted(found, key=lambda w: w.percent), WaveRules())
    ),
    canaries=st.sampled_from([(), (), ("t0",), ("t1", "t0")]),
    skips_absent=st.booleans(),
    settle_seconds=st.sampled_from([0, 30]),
    in_flight_max=st.integers(0, 4),
    failing_max=st.integers(0, 2),
    rolls_back=st.booleans(),
    needs_start=st.just(False),
    look_seconds=st.just(LOOK_SECONDS_MAX),
    check_seconds=st.just(CHECK_SECONDS),
    evidence_seconds=st.sampled_from([0, 400, 1_800]),
    is_evidenced=st.booleans(),
    is_weak=st.just(False),  # the world has no status from before an approval
    train=st.sampled_from(
        [None, None, *(TrainRules(("a", "b"), partial_seconds=limit) for limit in (30, 400))]
    ),
    finishes=st.booleans(),
    restore_seconds=st.sampled_from([0, 400]),
)


@settings(max_examples=25, deadline=None)
@given(rules=rules, targets=st.integers(1, 8), data=st.data())
def test_after_any_history_no_promise_is_broken_and_the_rollout_ends(
    rules: Rules, targets: int, data: st.DataObject
) -> None:
    world = fresh(targets, rules, tricks=4, ticks=1_000)
    for number in data.draw(st.lists(st.integers(0, 10_000), max_size=MOVES_MAX)):
        found = list(moves(world))
        if number % 7 == 0 or not found:
            found += list(tricks(world))
        if not found:
            break
        _, world = found[number % len(found)]
        assert not list(problems(world))
    end = settled(world, steps_max=3_000)
    assert not list(problems(end))
    is_held = end.commands.paused or bool(end.rollout.canary_reason)
    assert is_held or end.rollout.state not in WAITS
    again, taken = stepped(end)
    assert (again, taken.rows) == (end, {}), "a fleet that is at its end changes nothing"
