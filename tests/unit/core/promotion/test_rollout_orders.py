"""What annotations of a policy order, and the history of attempts in its status."""

import pytest

from pvbus.core.api.rollouts import CanaryExcuse, PastAttempt, TargetCounts
from pvbus.core.kernel.rolloutrows import NO_COMMANDS, Commands, Rollout
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.rollout.commanding import commands_of
from pvbus.core.promotion.rollout.report import ATTEMPTS_MAX, noted

P = "promotion.pvbus.dev/"
COUNTS = TargetCounts(total=3, proven=3)


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        ({}, NO_COMMANDS),
        ({"other": "1"}, NO_COMMANDS),
        ({P + "pause": "true"}, Commands(paused=True)),
        ({P + "pause": "false"}, NO_COMMANDS),
        ({P + "resume": "3.2"}, Commands(resume=(3, 2))),
        ({P + "approve": "3.0"}, Commands(approve=(3, 0))),
        ({P + "promote": "3", P + "abort": "2"}, Commands(promote=3, abort=2)),
        ({P + "roll-back": "4"}, Commands(roll_back=4)),
        ({P + "restart": "5"}, Commands(restart=5)),
        (
            {P + "excuse": '[{"attempt": 3, "canary": "a", "reason": "x"}]'},
            Commands(excuses=(CanaryExcuse(attempt=3, canary="a", reason="x"),)),
        ),
    ],
)
def test_an_annotation_is_an_order(annotations: dict[str, str], wanted: Commands) -> None:
    assert commands_of(annotations) == (wanted, [])


@pytest.mark.parametrize(
    "text",
    ["web-a", "[", '[{"attempt": 0, "canary": "a", "reason": "x"}]', '[{"attempt": 1, "canary": "a"}]', "[]"],
)
def test_an_excuse_that_cannot_be_read_or_gives_no_reason_excuses_nobody(text: str) -> None:
    commands, problems = commands_of({P + "excuse": text})
    assert commands.excuses == ()
    assert "give [" in problems[0]


@pytest.mark.parametrize("name", ["resume", "approve", "promote", "abort", "roll-back", "restart"])
@pytest.mark.parametrize("text", ["", "true", "-1", "3.", ".1", "1.2.3", "٣", "9" * 40, " 3", "3.1\n"])
def test_a_mistyped_order_does_nothing_and_is_named(name: str, text: str) -> None:
    commands, problems = commands_of({P + name: text})
    assert commands == NO_COMMANDS
    (problem,) = problems
    assert problem.startswith(f"{P}{name} is ")


def test_a_mistyped_pause_pauses() -> None:
    """Who mistypes it wants the rollout to stand still, so nothing is approved meanwhile."""
    commands, problems = commands_of({P + "pause": "yes"})
    assert commands.paused
    assert problems == [f'{P}pause is "yes", which counts as true: give true or false']


def test_an_attempt_is_noted_from_its_plan_to_its_end() -> None:
    seen = noted((), Rollout(), TargetCounts(), "t0")
    assert seen == ()
    seen = noted(seen, Rollout(state=RolloutState.ROLLING, attempt=1, wave=1), COUNTS, "t1")
    seen = noted(seen, Rollout(state=RolloutState.HOLDING, attempt=1, wave=2), COUNTS, "t2")
    assert seen == (PastAttempt(attempt=1, phase="Holding", wave=2, started_at="t1"),)
    done = Rollout(state=RolloutState.COMPLETED, attempt=1, wave=2)
    seen = noted(seen, done, COUNTS, "t3")
    ended = PastAttempt(attempt=1, phase="Completed", wave=2, started_at="t1", ended_at="t3", targets=COUNTS)
    assert seen == (ended,)
    assert noted(seen, done, TargetCounts(total=3), "t4") == seen, "an end is noted once"


def test_a_rollback_after_the_end_goes_on_and_ends_again() -> None:
    seen = noted((), Rollout(state=RolloutState.COMPLETED, attempt=1), COUNTS, "t1")
    seen = noted(seen, Rollout(state=RolloutState.ROLLING_BACK, attempt=1), COUNTS, "t2")
    assert (seen[0].phase, seen[0].ended_at, seen[0].targets) == ("RollingBack", None, None)
    back = TargetCounts(total=3, rolled_back=3)
    seen = noted(seen, Rollout(state=RolloutState.ROLLED_BACK, attempt=1), back, "t3")
    assert (seen[0].started_at, seen[0].ended_at, seen[0].targets) == ("t1", "t3", back)


def test_the_history_is_bounded_and_an_attempt_without_an_end_gets_one() -> None:
    seen: tuple[PastAttempt, ...] = ()
    for number in range(1, 31):
        seen = noted(seen, Rollout(state=RolloutState.ROLLING, attempt=number), COUNTS, f"t{number}")
    assert [each.attempt for each in seen] == list(range(31 - ATTEMPTS_MAX, 31))
    assert [each.ended_at for each in seen[-2:]] == ["t30", None]
