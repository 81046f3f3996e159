"""Rehearses a rollout: runs the machine over an imagined fleet, and records what it does in which order.

It begins where the rollout is: before its first attempt, or in the middle of one. The fleet does at once
whatever is ordered. Every target proves good but those that are to fail or fail already, every check passes,
people approve when nothing else is left to wait for. So the record is what the machine does if all goes well,
with the least times. It ends with the attempt, or where that needs more than this.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pvbus.core.api.quarantines import QuarantineSpec
from pvbus.core.kernel.rolloutrows import (
    NO_COMMANDS,
    NOTHING,
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
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.machine import NO_WORDS, step
from pvbus.core.promotion.protocol.observing import PUBLISHED, is_candidate
from pvbus.core.promotion.protocol.rules import LOOK_SECONDS_MAX, Rules
from pvbus.core.promotion.protocol.turn import ENDED

ATTEMPTS_MAX = 3
"""Attempts of one rehearsal: the present one, that of who joined meanwhile, and one more."""
WAITS_MAX = 100
"""Waits in which nothing happens: a closed window is waited for a day at a time, and it has to open in 90."""
_FOREVER = 1e12
_OVER = (*ENDED, RolloutState.STOPPED)
_QUARANTINE = "a quarantine of this attempt"
_PUBLISHED = ("published", "published_digest", "published_source", "runs", "withdrawn")


class Wave(msgspec.Struct, rename="camel"):
    """What happens in one wave, in order.

    starts_seconds: when the wave starts, in seconds after the rehearsal's begin
    restored: the targets whose last good revision is published again in it
    """

    number: int
    starts_seconds: float = 0
    approved: list[str] = []
    restored: list[str] = []


class Standing(NamedTuple):
    """Where a rollout is.

    rollout, rows: its rows, by target
    seen: target -> its facts, in the order of the rollout
    evidence: target -> what its variant says of its published revision
    words: canary -> what stands in its way
    following: target -> what is proposed of it when the attempt is over, where its proposal stays as planned
    """

    seen: Mapping[str, TargetFacts]
    rollout: Rollout = Rollout()
    rows: Mapping[str, Target] = MappingProxyType({})
    evidence: Mapping[str, Evidence] = MappingProxyType({})
    commands: Commands = NO_COMMANDS
    words: Mapping[str, str] = NO_WORDS
    following: Mapping[str, TargetFacts] = MappingProxyType({})

    def thawed(self) -> "Standing":
        """Return the standing after the end of an attempt: what was kept as planned makes way."""
        if self.rollout.state not in ENDED or not self.following:
            return self
        seen = dict(self.seen)
        for name, facts in self.following.items():
            if name in seen:
                seen[name] = facts._replace(**{field: getattr(seen[name], field) for field in _PUBLISHED})
        return self._replace(seen=seen, following={})


class Rehearsal(NamedTuple):
    """What an attempt comes to.

    attempt: its number. One that cannot begin has no rows
    standing: where the rollout is at its end
    seconds: how long it takes at least
    """

    attempt: int
    standing: Standing
    waves: list[Wave]
    seconds: float

    @property
    def rollout(self) -> Rollout:
        return self.standing.rollout

    @property
    def rows(self) -> Mapping[str, Target]:
        """The targets of the attempt."""
        return {name: row for name, row in self.standing.rows.items() if row.attempt == self.attempt}


def rehearse_all(
    rules: Rules, standing: Standing, now: float, failing: Collection[str] = ()
) -> list[Rehearsal]:
    """Rehearse the present attempt, or the next one, and those that follow from it."""
    rehearsals: list[Rehearsal] = []
    while not rehearsals or (len(rehearsals) < ATTEMPTS_MAX and _goes_on(rehearsals[-1])):
        rehearsals.append(rehearse(rules, standing, now, failing))
        standing, now = rehearsals[-1].standing, now + rehearsals[-1].seconds
    is_next = len(rehearsals) > 1 and not rehearsals[-1].rows
    return rehearsals[:-1] if is_next else rehearsals


def _goes_on(rehearsal: Rehearsal) -> bool:
    """Tell whether another attempt follows."""
    seen, rows = rehearsal.standing.seen, rehearsal.standing.rows
    restart = rehearsal.standing.commands.restart
    is_over = rehearsal.rollout.state in ENDED and bool(rehearsal.rollout.attempt)
    return is_over and any(is_candidate(rows.get(name), facts, restart) for name, facts in seen.items())


def rehearse(rules: Rules, standing: Standing, now: float, failing: Collection[str] = ()) -> Rehearsal:
    """Rehearse the present attempt, or the next one if none is under way.

    failing: targets whose new revision is not good
    """
    rules = rules._replace(look_seconds=_FOREVER, check_seconds=_FOREVER, is_weak=False)
    fleet = _Fleet(standing, failing, has_more=rules.is_evidenced)
    during = rules._replace(evidence_seconds=0, settle_seconds=_FOREVER)  # one attempt, and no further one
    rollout, rows, clock = _begun(standing.rollout, now), dict(standing.rows), now
    commands = standing.commands._replace(paused=False)
    attempt = rollout.attempt + (rollout.state in ENDED)
    waits = 0
    while True:
        taken = step(
            during if rollout.attempt == attempt else rules._replace(evidence_seconds=0),
            rollout,
            rows,
            fleet.seen,
            fleet.evidence,
            now=clock,
            answers=fleet.answers,
            isolated=fleet.isolated,
            commands=commands,
            words=standing.words,
        )
        before, rollout = rollout.state, taken.rollout
        rows = {target: row for target, row in {**rows, **taken.rows}.items() if row is not None}
        fleet.prove_riders(taken.rows.values())
        acted = [fleet.do(action, rows, clock - now) for action in taken.actions]
        waits = 0 if any(acted) else waits + 1
        is_at_end = rollout.state in _OVER and rollout.attempt == attempt
        is_changed = bool(taken.rows) or rollout.state is not before
        is_over = is_at_end and not any(acted) and not is_changed
        if any(acted) or (is_at_end and is_changed):
            continue  # what ends an attempt changes other targets in the step after it
        approved = _approved(rollout, commands)
        wait = taken.wait_seconds or _FOREVER
        if not is_over and wait < _FOREVER / 2 and waits < WAITS_MAX:
            clock += wait
        elif not is_over and wait >= _FOREVER / 2 and approved != commands:
            commands = approved
        else:
            end = standing._replace(
                seen=fleet.seen, rollout=rollout, rows=rows, evidence=fleet.evidence, commands=commands
            )
            return Rehearsal(attempt, end.thawed(), list(fleet.waves.values()), clock - now)


def _begun(rollout: Rollout, now: float) -> Rollout:
    """Return a rollout whose time since the last step counts as it does live."""
    if not rollout.seen_at:
        return rollout
    return replace(rollout, seen_at=max(rollout.seen_at, now - LOOK_SECONDS_MAX))


def _approved(rollout: Rollout, commands: Commands) -> Commands:
    """Let a person approve the wave that waits: nothing else is left that the machine may wait for."""
    wave = rollout.wave if rollout.state is RolloutState.HOLDING else 0
    return commands._replace(approve=(rollout.attempt, wave))


class _Fleet:
    """The imagined fleet."""

    def __init__(self, standing: Standing, failing: Collection[str], *, has_more: bool) -> None:
        """has_more: whether more than Ready counts as evidence: then who has failed is not judged by that."""
        self.seen = dict(standing.seen)
        self.failing, self.following = failing, standing.following
        self.evidence = dict(_evidence_at(standing, failing, has_more=has_more))
        self.answers: Answers | None = None
        self.isolated: Isolated | None = None
        self.waves: dict[int, Wave] = {}

    def prove_riders(self, rows: Iterable[Target | None]) -> None:
        """Say of members of trains that ride what is known of them, in the attempt that planned them."""
        for row in rows:
            known = self.evidence.get(row.target) if row is not None and row.rides else None
            if row is not None and known is not None and known[:2] == (row.revision, row.digest):
                self.evidence[row.target] = known._replace(attempt=row.attempt)

    def do(self, action: Action, rows: Mapping[str, Target], seconds: float) -> bool:
        """Carry out an action; return whether that changed anything."""
        match action:
            case Ask():
                answers = Answers(action.attempt, action.wave, action.number, (True,) * len(action.checks))
                is_new, self.answers = answers != self.answers, answers
                return is_new
            case Isolate():
                isolated = Isolated(action.attempt, action.number)
                is_new, self.isolated = isolated != self.isolated, isolated
                self.cover(action.spec)
                return is_new
            case Approve():
                row = rows[action.target]
                self.wave(row.wave, seconds).approved.append(action.target)
                self.publish(action.target, action.revision, action.digest, row.source)
                self.evidence[action.target] = Evidence(
                    action.revision, action.digest, action.attempt, action.target not in self.failing
                )
                return True
            case Restore():
                row = rows[action.target]
                self.wave(row.wave, seconds).restored.append(action.target)
                self.publish(action.target, action.revision, action.digest, row.good_source)
                self.evidence[action.target] = Evidence(action.revision, action.digest, action.attempt, True)
                return True
        # An order is taken back: it was not carried out, as this fleet does at once what it is told.
        facts = self.seen.get(action.target, NOTHING)
        self.seen[action.target] = facts._replace(withdrawn=action.attempt)
        return facts.withdrawn != action.attempt

    def publish(self, target: str, revision: str, digest: str, source: str) -> None:
        facts = self.seen.get(target, NOTHING)
        is_open = facts.revision not in ("", revision) and not facts.is_proposed
        self.seen[target] = facts._replace(
            is_proposed=False,
            is_current=not is_open and target not in self.following,
            published=revision,
            published_digest=digest,
            published_source=source,
        )

    def cover(self, spec: QuarantineSpec) -> None:
        """Let each target see what is quarantined; members of trains see combinations, too."""
        sources = {each.revision for each in spec.upstreams}
        banned = tuple((_QUARANTINE, *each.upstreams) for each in spec.combinations)
        for target, facts in self.seen.items():
            is_open = facts.source in sources or facts.digest in spec.contents
            is_run = facts.published_source in sources or facts.published_digest in spec.contents
            self.seen[target] = facts._replace(
                is_quarantined=facts.is_quarantined or is_open,
                is_proposed=facts.is_proposed and not is_open,
                runs=facts.runs or (_QUARANTINE if is_run else ""),
                banned=(*facts.banned, *banned) if facts.part else facts.banned,
            )

    def wave(self, number: int, seconds: float) -> Wave:
        return self.waves.setdefault(number, Wave(number, seconds, [], []))


def _evidence_at(standing: Standing, failing: Collection[str], *, has_more: bool) -> Mapping[str, Evidence]:
    """Return the evidence of what is published: who has none yet gets it at once, unless its variant is busy
    with a newer revision. Of what stays as planned a newer revision unsays nothing."""
    known = dict(standing.evidence)
    for target, row in standing.rows.items():
        if row.attempt != standing.rollout.attempt or row.state not in PUBLISHED:
            continue
        facts, said = standing.seen.get(target, NOTHING), standing.evidence.get(target)
        is_said = said is not None and said[:2] == (row.revision, row.digest)
        if not is_said and not row.is_frozen and facts.revision not in ("", row.revision):
            continue
        is_bad = is_said and said is not None and not said.is_good
        was_bad = row.state is TargetState.FAILED and (has_more or not is_said)
        is_good = target not in failing and not is_bad and not was_bad
        known[target] = Evidence(row.revision, row.digest, row.attempt, is_good)
    return known
