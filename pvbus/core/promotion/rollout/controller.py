"""Rollout: carries RolloutPolicies out, one rollout per policy.

A policy's live facts and evidence come from promote, target by target; its orders go to release. A row is
written before its order, in one step of the bus, and the protocol decides from the rows and the facts alone.
So a restart goes on where the rows are, and writes nothing where nothing has changed.

A step looks at every target. So steps are taken at most a few times a second, and less often for many
targets: what changes meanwhile is one step. The status of a policy follows its rows.
"""

import math
from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.echo import ECHO_SECONDS
from pvbus.core.kernel.effects import Effect, Outcome, Put, Reconciliation, Update
from pvbus.core.kernel.keys import ChildKey, Key, is_child
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.records import CANDIDATES, POLICIES, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Answers, Ask, Isolate, Isolated, Rollout, Target
from pvbus.core.kernel.specretention import POLICY, SpecRetention
from pvbus.core.promotion.protocol.machine import NO_SIGHTINGS, step
from pvbus.core.promotion.protocol.quarantines import is_quarantine
from pvbus.core.promotion.protocol.rules import Rules
from pvbus.core.promotion.protocol.stops import Standstill, StopView, concerns_stops
from pvbus.core.promotion.rollout.checking import ask_checks
from pvbus.core.promotion.rollout.evidence import evidence_of, look_at_evidence, next_look, touch_evidence
from pvbus.core.promotion.rollout.orders import end_puts, step_puts
from pvbus.core.promotion.rollout.quarantining import write_quarantine
from pvbus.core.promotion.rollout.reminding import next_reminder
from pvbus.core.promotion.rollout.report import body_of, status_of
from pvbus.core.promotion.rollout.state import STATUS_SECONDS, RolloutData

POLICY_KIND = f"{POLICY.group}/{POLICY.kind}"

STEP_SECONDS = 0.2
"""Between two steps of a policy. Longer, and each wave of a small fleet takes that much longer."""
STEP_SECONDS_PER_TARGET = 1e-4
"""A step takes 5 us per target: at 10,000 targets one is taken each second, for 5 % of a processor."""
CLOCK_SECONDS = 30.0
"""A step that only counts time is written after so long. Half of what counts at most between two steps, so
that a restart loses nothing."""
SOON_SECONDS = 0.01  # a timer of 0 would not let other keys run
REFUSED_SECONDS = 60.0  # a status that the API server refuses may be allowed later

_policy = msgspec.json.Decoder(RolloutPolicy)
_candidate = msgspec.json.Decoder(CandidateRow)
_rollout = msgspec.json.Decoder(Rollout)
_target = msgspec.json.Decoder(Target)


class RolloutController(KeyedController[RolloutData]):
    """Candidates in, approvals out.

    A row is short: names, numbers, and a message of one line. Where a decision fails, nothing is approved.
    """

    name = "rollout"
    listed = (POLICIES,)

    def __init__(self, *, keeps_specs: bool = True) -> None:
        """Create a controller without partitions.

        keeps_specs: whether the former specs of policies are kept
        """
        super().__init__(lambda _: RolloutData())
        self._stops: dict[int, StopView] = {}
        self._specs = SpecRetention(POLICY) if keeps_specs else None
        self.evaluations = 0

    def open(self, partition: int) -> None:
        super().open(partition)
        self._stops[partition] = StopView(1)

    # ------------------------------------------------------------ records in

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        table = self._tables.get(partition)
        if table is None:
            return ()
        if concerns_stops(key):
            return self._touch_all(partition) if self._stops[partition].load(partition, key, value) else ()
        if is_marker(key):
            is_news = self._load_marker(topic, partition, key, value)
            return [each for each, data in table.items() if data.raw is None] if is_news else ()
        if is_quarantine(key):
            return ()
        name = ChildKey.parse(key).skey if is_child(key) else key
        data = table.get(name) or RolloutData()
        if topic == POLICIES:
            data.observe(value)
        elif topic == CANDIDATES:
            row = _candidate.decode(value) if value is not None else None
            target = ChildKey.parse(key).variant
            data.candidates.load(target, row)
            touch_evidence(data, target)
            data.is_touched = True
        elif is_child(key):
            _remember(data, key, _target.decode(value) if value is not None else None)
        else:
            _remember(data, key, _rollout.decode(value) if value is not None else None)
        if data.is_empty:
            table.pop(name, None)
        else:
            table[name] = data
        return (name,)

    def _touch_all(self, partition: int) -> list[str]:
        """Make all rollouts decide again, as a stop has come or gone; return their keys."""
        table = self._tables[partition]
        for data in table.values():
            data.is_touched = data.is_stale = True
        return list(table)

    def store(self, partition: int, put: Put) -> Iterable[str]:
        table = self._tables.get(partition)
        if put.topic == ROLLOUTS and table is not None:
            name = ChildKey.parse(put.key).skey if is_child(put.key) else put.key
            data = self._ensure_state(partition, name)
            _remember(data, put.key, put.row)
            if data.is_empty:
                del table[name]
        return ()

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        data = self.state(partition, key)
        if data is None:
            return Outcome()
        name = Key.parse(key)
        if data.wanted is None:
            return self._gone(partition, name, data)
        stops = self._stops[partition]
        puts = yield from self._take_step(name, data, now, stops)
        if puts:
            return Outcome(puts, "changed", again_after=0)
        result = yield from _report(data, now, stops.standstill)
        times = (_again_after(data, now), (yield from self._retain(key, data, now)))
        again_after = min((time for time in times if time is not None), default=None)
        return Outcome(result=result, again_after=again_after)

    def _retain(self, key: str, data: RolloutData, now: float) -> Generator[Effect, Any, float | None]:
        """Keep the policy's spec; return the seconds until the next attempt, None if none is due."""
        if self._specs is None or data.wanted is None or data.raw is None:
            return None  # it may have gone while its status was written
        meta = data.wanted.policy.metadata
        return (yield from self._specs.retain(key, meta.uid, meta.generation, data.raw, now))

    def _gone(self, partition: int, key: Key, data: RolloutData) -> Outcome:
        """End the rollout of a policy that is gone, once the list of policies is complete."""
        if self._specs is not None:
            self._specs.forget(str(key))
        puts = tuple(end_puts(key, data.rollout, data.rows))
        if not puts:
            return Outcome()
        if not self._is_listed(POLICIES, partition, POLICY_KIND, key.namespace):
            return Outcome(result="waiting", waiting=("the list of RolloutPolicies",))
        return Outcome(puts, "changed")

    def _take_step(
        self, key: Key, data: RolloutData, now: float, stops: StopView
    ) -> Generator[Effect, Any, tuple[Put, ...]]:
        """Take a step if one is due; return what it changes. Look at the checks, or write a quarantine, if
        nothing else is to do."""
        if data.wanted is None or data.wanted.rules is None or now < _next_step(data, now):
            return ()
        is_seen = yield from look_at_evidence(key, data, now)
        if not is_seen or data.wanted is None or data.wanted.rules is None:
            return ()
        puts, wishes = self._step(key, data, data.wanted.rules, now, stops.standstill)
        if puts or not wishes:
            return puts
        answer: Answers | Isolated
        if isinstance(wishes[0], Isolate):
            answer = yield from write_quarantine(wishes[0], data.wanted.policy)
        else:
            answer = yield from ask_checks(wishes[0], now, namespace=key.namespace)
        if data.wanted is None or data.wanted.rules is None:  # changed meanwhile
            return ()
        return self._step(key, data, data.wanted.rules, now, stops.standstill, answer)[0]

    def _step(
        self,
        key: Key,
        data: RolloutData,
        rules: Rules,
        now: float,
        standstill: Standstill,
        answer: Answers | Isolated | None = None,
    ) -> tuple[tuple[Put, ...], list[Ask | Isolate]]:
        """Take a step; return what it changes, and what it wants to know or have written."""
        assert data.wanted is not None
        rollout = data.present
        taken = step(
            rules,
            rollout,
            data.rows,
            data.candidates.live_facts(data.rows),
            evidence_of(data),
            now=now,
            answers=answer if isinstance(answer, Answers) else None,
            isolated=answer if isinstance(answer, Isolated) else None,
            commands=standstill.obeyed(data.wanted.commands, rollout.state),
            words=data.candidates.words({*rules.canaries, *data.candidates.unready_members()}),
            sightings=data.sightings.shown(now) if rules.is_evidenced else NO_SIGHTINGS,
        )
        self.evaluations += len(data.rows)
        data.shown, data.is_stale, data.stepped_at = taken.rollout, True, now
        if _only_counts_time(rollout, taken.rollout, now):
            taken = taken._replace(rollout=rollout)
        puts = tuple(step_puts(key, rollout, data.rows, taken, data.candidates))
        data.is_touched = bool(puts)
        waits = [now + taken.wait_seconds] if taken.wait_seconds is not None else []
        waits += [rollout.seen_at + rules.look_seconds] if rollout.seen_at else []
        data.due = min((*waits, next_look(data, now)), default=math.inf)
        return puts, [action for action in taken.actions if isinstance(action, Ask | Isolate)]


def _remember(data: RolloutData, key: str, row: Any) -> None:
    """Apply a row of the rollout, or of one of its targets."""
    data.is_touched = data.is_stale = True
    if not is_child(key):
        data.rollout = row
    elif row is None:
        data.rows.pop(ChildKey.parse(key).variant, None)
    else:
        data.rows[row.target] = row


def _only_counts_time(before: Rollout, after: Rollout, now: float) -> bool:
    """Tell whether a step has only counted time, so little that it need not be written."""
    counted = {
        "phase_seconds": 0.0,
        "wave_seconds": 0.0,
        "watched_seconds": 0.0,
        "train_seconds": 0.0,
        "waited_seconds": 0.0,
        "seen_at": 0.0,
    }
    replace = msgspec.structs.replace
    return (
        bool(before.seen_at and after.seen_at)
        and 0 <= now - before.seen_at < CLOCK_SECONDS
        and replace(before, **counted) == replace(after, **counted)
    )


def _next_step(data: RolloutData, now: float) -> float:
    """Return when the next step is due, in seconds since 1970."""
    if now < data.stepped_at:  # the clock was set back
        return now
    targets = max(len(data.rows), len(data.candidates))
    earliest = data.stepped_at + max(STEP_SECONDS, STEP_SECONDS_PER_TARGET * targets)
    return earliest if data.is_touched else max(earliest, data.due)


def _again_after(data: RolloutData, now: float) -> float | None:
    """Return when time alone may make something due."""
    dues = [data.report_at] if data.is_stale else [data.remind_at]
    if data.wanted is not None and data.wanted.rules is not None:
        dues.append(_next_step(data, now))
    due = min(dues, default=math.inf)
    return max(due - now, SOON_SECONDS) if due < math.inf else None


def _report(data: RolloutData, now: float, standstill: Standstill) -> Generator[Effect, Any, str]:
    """Write the status if it differs and may be written; return the result of the reconciliation."""
    if now >= data.remind_at or now < data.reported_at:  # the latter where the clock was set back
        data.is_stale = True
    if not data.is_stale or data.wanted is None or data.reported_at <= now < data.report_at:
        return "unchanged"
    seen = data.raw
    stored = data.current(now)
    assert stored is not None
    present = _policy.decode(stored).status
    rollout = data.shown or data.present
    status = status_of(data.wanted, rollout, data.rows, data.candidates, now, present, standstill)
    data.is_stale, data.reported_at, data.report_at = False, now, now + STATUS_SECONDS
    data.remind_at = next_reminder(status.conditions, rollout, data.rows.values(), now)
    if status == present:
        return "unchanged"
    try:
        written = yield Update(POLICY, body_of(stored, status), "status")
    except ConflictError:
        # What it conflicts with may have been observed while the request was on its way: then none follows.
        data.is_stale = True
        data.forget_answer()
        if data.raw is seen:
            data.report_at = now + ECHO_SECONDS
        return "conflict"
    except PermanentError:  # the shell logs it, and tries again; what changes meanwhile is not held up
        data.is_stale, data.report_at = True, now + REFUSED_SECONDS
        raise
    data.note_answer(written, now)
    return "changed"
