"""One step of a rollout in the making: copies of its rows, and how they change."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from pvbus.core.kernel.rolloutrows import (
    Action,
    Approve,
    Ask,
    Commands,
    Evidence,
    Restore,
    Rollout,
    Sighting,
    Target,
    TargetFacts,
    Withdraw,
)
from pvbus.core.kernel.rolloutstates import (
    RolloutEvent,
    RolloutState,
    TargetEvent,
    TargetState,
    rollout_after,
    target_after,
)
from pvbus.core.promotion.protocol.observing import IN_FLIGHT, is_refused, observed
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.protocol.units import count
from pvbus.core.promotion.protocol.windows import Calendar

ENDED = (
    RolloutState.IDLE,
    RolloutState.COMPLETED,
    RolloutState.ABORTED,
    RolloutState.ROLLED_BACK,
    RolloutState.SUPERSEDED,
)
ADVANCING = (RolloutState.ROLLING, RolloutState.HOLDING)
ABORTABLE = (*ADVANCING, RolloutState.STOPPED)

ORDERS = (TargetState.ORDERED, TargetState.CANCELLING, TargetState.UNDOING)
"""Release has to do something about the target."""
_WAITED_FOR = (TargetState.APPROVED, TargetState.UNDOING)
"""Of these it counts since when they are: their evidence, or their former revision, may never come."""

ISOLATION_SECONDS = 10.0
"""Between two looks at a quarantine that is not seen on all targets: a person may have ended it, or mended
what the API server refused. Longer, and a rollback begins as much later."""
SUPERSEDED_MAX = 3
"""Attempts in a row. Fewer, and a hotfix waits for a rollout more often; more, and a busy upstream keeps a
fleet without any rollout that completes for longer."""
SECONDS_OF_DAY = 86_400.0
"""A closed rollout looks at least so often whether its windows open."""


class Turn:
    """The work of one step. It changes copies; every change of state goes through the tables of `states`.

    seen, evidence, words, sightings: as in `pvbus.core.promotion.protocol.machine.step`
    """

    def __init__(
        self,
        rules: Rules,
        rollout: Rollout,
        rows: Mapping[str, Target],
        seen: Mapping[str, TargetFacts],
        evidence: Mapping[str, Evidence],
        words: Mapping[str, str],
        now: float,
        commands: Commands,
        sightings: Mapping[str, Sighting],
    ) -> None:
        self.rules, self.now, self.commands = rules, now, commands
        self.seen, self.evidence, self.words, self.sightings = seen, evidence, words, sightings
        self.rows: dict[str, Target] = dict(rows)
        elapsed = min(max(0.0, now - rollout.seen_at), rules.look_seconds) if rollout.seen_at else 0.0
        self.elapsed = 0.0 if commands.paused else elapsed
        self.rollout = rollout
        is_watched = (rules.evidence_seconds and rollout.state in ADVANCING) or self.is_undoing()
        self.rollout = msgspec.structs.replace(
            rollout,
            phase_seconds=rollout.phase_seconds + self.elapsed,
            wave_seconds=rollout.wave_seconds + self.elapsed,
            watched_seconds=rollout.watched_seconds + (self.elapsed if is_watched else 0.0),
            train_seconds=rollout.train_seconds + (self.elapsed if self.has_partial() else 0.0),
        )
        for row in self.rows.values():
            if row.ordered_at > now:  # the clock was set back
                self.rows[row.target] = msgspec.structs.replace(row, ordered_at=now)
        if rollout.waits_for and self.rollout.wave and self.calendar.is_open(now):
            self.set(waited_seconds=rollout.waited_seconds + self.elapsed)

    def set(self, **fields: object) -> None:
        self.rollout = msgspec.structs.replace(self.rollout, **fields)

    def move(self, event: RolloutEvent, **fields: object) -> None:
        self.set(state=rollout_after(self.rollout.state, event), **fields)

    def turn_target(self, row: Target, event: TargetEvent) -> None:
        state, now = target_after(row.state, event), self.rollout.watched_seconds
        is_new = state is not row.state
        self.rows[row.target] = msgspec.structs.replace(
            row,
            state=state,
            since=now if state in _WAITED_FOR and is_new else row.since,
            published_at=now if event is TargetEvent.PUBLISHED else row.published_at,
            losses=row.losses + (row.state is TargetState.PROVEN and event is TargetEvent.UNKNOWN),
            ordered_at=self.now if state in ORDERS and is_new else row.ordered_at,
        )

    @property
    def current(self) -> list[Target]:
        """The targets of the current attempt."""
        return [row for row in self.rows.values() if row.attempt == self.rollout.attempt]

    def current_row(self, target: str) -> Target | None:
        """Return the row of a target in the current attempt."""
        row = self.rows.get(target)
        return row if row is not None and row.attempt == self.rollout.attempt else None

    def mates(self, row: Target) -> list[Target]:
        """Return the members of a target's unit in the current attempt, itself included."""
        if not row.unit:
            return [row]
        return [mate for mate in self.current if mate.unit == row.unit]

    def move_unit(self, row: Target, wave: int) -> None:
        """Bring a target and its unit into a wave."""
        for mate in self.mates(row):
            self.rows[mate.target] = msgspec.structs.replace(mate, wave=wave)

    def has_partial(self) -> bool:
        """Tell whether a train of the current attempt is noted as partial."""
        return any(row.partial_since is not None for row in self.current)

    def is_unproven_again(self, row: Target) -> bool:
        """Tell whether the former content of a target is published, and nothing says yet that it is good.

        Where a policy looks at more than Ready, that it is published says nothing of its cluster. Ready is
        not asked for: it is of the newer draft that the variant makes after a rollback.
        """
        seen, said = self.seen.get(row.target), self.evidence.get(row.target)
        if not self.rules.is_evidenced or seen is None or seen.published_digest != row.good_digest:
            return False
        return said is None or said != (seen.published, row.good_digest, row.attempt, True)

    def is_undoing(self) -> bool:
        """Tell whether the former revision of a target of the current attempt is to be published."""
        return any(row.state is TargetState.UNDOING for row in self.current)

    @property
    def wave(self) -> WaveRules:
        """The rules of the current wave. A policy that lost waves in the middle keeps to its last one."""
        waves = self.rules.waves
        return waves[min(self.rollout.wave, len(waves)) - 1]

    def below(self, wave: int) -> list[Target]:
        """The targets of the current attempt in this wave and earlier ones."""
        return [row for row in self.current if row.wave <= wave]

    def free(self, busy: Collection[TargetState]) -> int | None:
        """Return how many more units may be in flight, None for any number."""
        if not self.rules.in_flight_max:
            return None
        return max(0, self.rules.in_flight_max - count(self.current, busy))

    def next_ask(self) -> float:
        asked, hold = self.rollout.asked_seconds, self.wave.hold_seconds
        later = asked + self.rules.check_seconds
        return min(later, hold) if asked < hold else later

    def actions(self) -> Iterable[Action]:
        """Yield all that is ordered and not yet done."""
        for row in sorted(self.current, key=lambda row: row.position):
            content = (row.target, row.revision, row.digest, row.attempt)
            if row.state is TargetState.ORDERED:
                yield Approve(*content)
            elif row.state is TargetState.CANCELLING:
                yield Withdraw(*content)
            elif row.state is TargetState.UNDOING:
                yield Restore(row.target, row.good, row.good_digest, row.attempt, row.revision)
        rollout, asked = self.rollout, self.wave.asked if self.rollout.wave else ()
        if rollout.state is RolloutState.HOLDING and asked and not rollout.is_answered:
            yield Ask(rollout.attempt, rollout.wave, rollout.ask, asked)

    def changes(self, before: Mapping[str, Target]) -> dict[str, Target | None]:
        """Return the rows that differ, None for one that is gone."""
        changed: dict[str, Target | None] = {
            target: row for target, row in self.rows.items() if before.get(target) != row
        }
        return changed | {target: None for target in before if target not in self.rows}

    def stop_clock(self) -> None:
        """Note the time if it counts; forget what was counted where nothing is."""
        self.set(seen_at=self.now if self.is_timed() else 0.0)
        if self.rollout.state is not RolloutState.HOLDING:
            self.set(unmet="")
        if self.rollout.state not in ADVANCING and not self.rollout.candidates:
            self.set(phase_seconds=0.0, wave_seconds=0.0)

    @property
    def finishes(self) -> bool:
        """Whether the attempt goes on whatever comes from upstream."""
        return self.rules.finishes or self.rollout.superseded >= SUPERSEDED_MAX

    @property
    def may_order(self) -> bool:
        """Whether a person has let the attempt begin, and its windows are open."""
        is_promoted = self.commands.promote == self.rollout.attempt
        is_started = not self.rules.needs_start or self.rollout.is_started or is_promoted
        return is_started and self.calendar.is_open(self.now)

    @property
    def calendar(self) -> Calendar:
        return self.wave.calendar(self.commands, self.rollout.attempt)

    def is_timed(self) -> bool:
        """Tell whether time counts: settle and hold times, and a wave's once something of it is in flight,
        while its windows are open."""
        if self.commands.paused:
            return False
        match self.rollout.state:
            case RolloutState.HOLDING:
                return True
            case RolloutState.ROLLING:
                is_busy = any(row.state in IN_FLIGHT for row in self.current)
                has_limit = self.wave.timeout_seconds > 0 or self.rules.evidence_seconds > 0
                is_counted = (is_busy and has_limit) or self.has_partial() or bool(self.rollout.waits_for)
                return is_counted and self.calendar.is_open(self.now)
            case RolloutState.STOPPED:
                return self.has_partial() or self.is_undoing()
            case RolloutState.ROLLING_BACK:
                return self.is_undoing()
        return self.rollout.state in ENDED and bool(self.rollout.candidates)

    def wait_seconds(self) -> float | None:
        """Return when time alone may change something, at most `look_seconds` ahead while it counts."""
        rollout, dues = self.rollout, list[float]()
        limit = self.rules.train.partial_seconds if self.rules.train is not None else 0.0
        if self.is_timed():
            dues.append(self.rules.look_seconds)
            if rollout.state in ENDED:
                dues.append(self.rules.settle_seconds - rollout.phase_seconds)
            elif self.wave.timeout_seconds:
                dues.append(self.wave.timeout_seconds - rollout.wave_seconds)
            dues.extend(
                limit - (rollout.train_seconds - row.partial_since)
                for row in self.current
                if row.partial_since is not None
            )
            dues.extend(
                self.rules.restore_seconds - (rollout.watched_seconds - row.since)
                for row in self.current
                if row.state is TargetState.UNDOING
            )
            if rollout.state is RolloutState.HOLDING:
                dues.append(self.wave.hold_seconds - rollout.phase_seconds)
                dues.append(self.next_ask() - rollout.phase_seconds)
        if rollout.state is RolloutState.ISOLATING:
            dues.append(ISOLATION_SECONDS)
        if rollout.state is RolloutState.ROLLING and not self.commands.paused:
            dues.append(min(self.calendar.opens_at(self.now) - self.now, SECONDS_OF_DAY))
        return min((due for due in dues if due > 0), default=None)


def note_again(turn: Turn, row: Target) -> None:
    """Note when the former content was first seen as published again: its evidence is of after that."""
    if row.published_at < row.since:
        published_at = max(row.since, turn.rollout.watched_seconds)
        turn.rows[row.target] = msgspec.structs.replace(row, published_at=published_at)


def observe_rows(turn: Turn, rows: Iterable[Target]) -> None:
    """Bring targets up to date with what is seen of them."""
    for row in rows:
        facts, found = turn.seen.get(row.target), turn.evidence.get(row.target)
        while (event := observed(turn.rows[row.target], facts, found)) is not None:
            if event is TargetEvent.RESTORED and turn.is_unproven_again(row):
                note_again(turn, turn.rows[row.target])
                break
            if (
                event is TargetEvent.CANCELLED
                and turn.rollout.state in (*ABORTABLE, RolloutState.SUPERSEDED)
                and not is_refused(row, facts)
            ):
                event = TargetEvent.WITHDRAWN  # by somebody else than the attempt: the next one may have it
            turn.turn_target(turn.rows[row.target], event)
            if event is TargetEvent.REPLACED and facts is not None and facts.published:
                gone = turn.rows[row.target]
                why = f"Replaced: {facts.published} is published"
                turn.rows[row.target] = msgspec.structs.replace(gone, why=why)
