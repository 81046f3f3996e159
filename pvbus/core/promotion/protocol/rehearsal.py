"""Rehearses a rollout: runs the machine over an imagined fleet, and records what it does in which order.

The fleet does at once whatever is ordered. Every target proves good but those that are to fail, every check
passes, people approve when nothing else is left to wait for. So the record is what the machine does if all
goes well, with the least times.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.rolloutrows import (
    NO_COMMANDS,
    Action,
    Answers,
    Approve,
    Ask,
    Commands,
    Evidence,
    Isolate,
    Isolated,
    Restore,
    Rollout,
    Target,
    TargetFacts,
)
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.machine import NO_WORDS, step
from pvbus.core.promotion.protocol.rules import Rules

ENDS = (RolloutState.COMPLETED, RolloutState.ROLLED_BACK, RolloutState.STOPPED)
_FOREVER = 1e12


class Wave(msgspec.Struct, rename="camel"):
    """What happens in one wave, in order.

    starts_seconds: when the wave starts, in seconds after the rehearsal's begin
    restored: the targets whose last good revision is published again in it
    """

    number: int
    starts_seconds: float = 0
    approved: list[str] = []
    restored: list[str] = []


class Rehearsal(NamedTuple):
    """What a rollout comes to. rows: the rows of the targets at its end."""

    rollout: Rollout
    rows: dict[str, Target]
    waves: list[Wave]
    seconds: float


def rehearse(
    rules: Rules,
    seen: Mapping[str, TargetFacts],
    now: float,
    failing: Collection[str] = (),
    words: Mapping[str, str] = NO_WORDS,
) -> Rehearsal:
    """Rehearse the first attempt over these targets.

    failing: targets whose new revision is not good
    words: canary -> what stands in its way
    """
    rules = rules._replace(look_seconds=_FOREVER, check_seconds=_FOREVER, evidence_seconds=0, is_weak=False)
    fleet = _Fleet(seen, failing)
    rollout, rows, clock, commands = Rollout(), dict[str, Target](), now, NO_COMMANDS
    while True:
        taken = step(
            rules,
            rollout,
            rows,
            fleet.seen,
            fleet.evidence,
            now=clock,
            answers=fleet.answers,
            isolated=fleet.isolated,
            commands=commands,
            words=words,
        )
        rollout = taken.rollout
        rows = {target: row for target, row in {**rows, **taken.rows}.items() if row is not None}
        if rollout.state in ENDS or (not rollout.attempt and not rollout.candidates):
            return Rehearsal(rollout, rows, list(fleet.waves.values()), clock - now)
        acted = [fleet.do(action, rows, clock - now) for action in taken.actions]
        if any(acted):
            continue
        if taken.wait_seconds is not None and taken.wait_seconds < _FOREVER / 2:
            clock += taken.wait_seconds
        else:
            commands = _person(rollout, commands)


def _person(rollout: Rollout, commands: Commands) -> Commands:
    """Let a person approve the wave that waits: nothing else is left that the machine may wait for."""
    wave = rollout.wave if rollout.state is RolloutState.HOLDING else 0
    return commands._replace(approve=(rollout.attempt, wave))


class _Fleet:
    """The imagined fleet. The content of a revision is its name: no server need say what is in it."""

    def __init__(self, seen: Mapping[str, TargetFacts], failing: Collection[str]) -> None:
        self.seen = {
            target: facts._replace(digest=facts.revision, published_digest=facts.published)
            for target, facts in seen.items()
        }
        self.failing = failing
        self.evidence = {
            target: Evidence(facts.published, facts.published_digest, 0, True)
            for target, facts in self.seen.items()
            if facts.is_current
        }
        self.answers: Answers | None = None
        self.isolated: Isolated | None = None
        self.waves: dict[int, Wave] = {}

    def do(self, action: Action, rows: Mapping[str, Target], seconds: float) -> bool:
        """Carry out an action; return whether that changed anything."""
        match action:
            case Ask():
                answers = Answers(action.attempt, action.wave, action.number, (True,) * len(action.checks))
                is_new, self.answers = answers != self.answers, answers
                return is_new
            case Isolate():  # nobody joins an imagined fleet, so nothing need be covered
                self.isolated = Isolated(action.attempt, action.number, is_lasting=False)
                return True
            case Approve():
                row = rows[action.target]
                self.wave(row.wave, seconds).approved.append(action.target)
                facts = self.seen[action.target]
                self.seen[action.target] = facts._replace(
                    is_proposed=False, published=action.revision, published_digest=action.digest
                )
                self.evidence[action.target] = Evidence(
                    action.revision, action.digest, action.attempt, action.target not in self.failing
                )
                return True
            case Restore():
                self.wave(rows[action.target].wave, seconds).restored.append(action.target)
                facts = self.seen[action.target]
                self.seen[action.target] = facts._replace(
                    published=action.revision, published_digest=action.digest
                )
                return True
        # An order is taken back: it was not carried out, as this fleet does at once what it is told.
        self.seen[action.target] = self.seen[action.target]._replace(withdrawn=action.attempt)
        return True

    def wave(self, number: int, seconds: float) -> Wave:
        return self.waves.setdefault(number, Wave(number, seconds, [], []))
