"""A set's roll-up: the counts of its rows, and its errors in words.

It reports committed rows only, and render's results for them.
"""

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.kernel.records import ChildFailure, Counts, Dispute, SetResult
from pvbus.core.variants.attention import ATTENTION, SHOWN_MAX
from pvbus.core.variants.unroll.children import Children
from pvbus.core.variants.unroll.contexts import describe_object
from pvbus.core.variants.unroll.removal import hold_of
from pvbus.core.variants.unroll.standings import COUNTED, standing_of
from pvbus.core.variants.unroll.state import RefusedRows, SetState

UNREADY_SHOWN = 3  # more would not be read in a condition; `pvbus explain --set` lists all
EVALUATION = "every target to be evaluated without an error"  # what removals of a stopped set wait for, too


class StopError(Exception):
    """Ends a pass early. reason: what the roll-up says; "" if the set waits."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class _Failure(NamedTuple):
    """An error of a target. Sorted by target index, then by position."""

    target: int
    position: str
    reason: str
    message: str
    name: str


def roll_up(state: SetState, *, stop: StopError | None = None, on_hold: bool = False) -> SetResult:
    """Report the counts and what to say: the reason to stop, else the first error. Costs O(failing targets
    and refused rows)."""
    obj = state.obj
    assert obj is not None
    refused = state.refused if stop is None and not on_hold else {}  # else nothing is offered to the bus
    tally = _tally(state.children, refused)
    reason, message, failing = "Valid", "", list[_Failure]()
    waiting = state.waiting
    if stop is not None:
        reason, message = stop.reason, stop.message
        waiting = EVALUATION  # the former wait is outdated, and a new worker does not know it
    elif state.contexts is not None and not on_hold:
        failing = sorted(starmap(_Failure, state.contexts.errors()))
        tally["failed"] += len(state.contexts.failed)
        tally["desired"] += len(state.contexts.failed)
        reason, message = _stalled(state.children, refused, failing)
    hold, released = hold_of(state.rollup, obj.metadata.uid)
    consulted, disputed, disputes = opinion_on(state)
    unready = [*failing, *_unready(state.children, refused)]
    needing, results = state.children.standings.needing, state.children.results
    return SetResult(
        uid=obj.metadata.uid,
        generation=obj.metadata.generation,
        reason=reason,
        message=message,
        counts=Counts(**tally),
        on_hold=on_hold,
        hold_reason=state.children.hold_reason if on_hold else "",
        plan_required=state.plan.is_required,
        hold=hold,
        released=released,
        waiting=waiting if tally["removing"] and not on_hold else "",
        unready=tuple(map(_shown, unready[:UNREADY_SHOWN])),
        needing=len(needing),
        attention=tuple(
            ChildFailure(name=name, reason=ATTENTION, message=results[name].attention)
            for name in needing.first(SHOWN_MAX)
        ),
        opinion=consulted,
        disputed=disputed,
        disputes=disputes,
    )


def differs(report: SetResult, former: SetResult | None) -> bool:
    """Return whether a roll-up is worth a row: that a second opinion agrees is not."""
    return former is None or replace(report, opinion=former.opinion) != former


def opinion_on(state: SetState) -> tuple[int, int, tuple[Dispute, ...]]:
    """Return the last second opinion on a set: its generation, and what is disputed."""
    obj, rollup, consultation = state.obj, state.rollup, state.consultation
    assert obj is not None
    opinion = consultation.pending.opinion if consultation is not None else None
    if consultation is not None and opinion is not None and consultation.uid == obj.metadata.uid:
        return consultation.generation, opinion.disputed, opinion.disputes
    if rollup is None or rollup.uid != obj.metadata.uid:
        return 0, 0, ()
    return rollup.opinion, rollup.disputed, rollup.disputes


def _tally(children: Children, refusals: Mapping[str, RefusedRows]) -> dict[str, int]:
    """Return the fields of Counts. refusals: rows that the bus refuses, by the child's name."""
    tally = children.standings.tally()
    for name in refusals:
        row = children.rows.get(name)
        standing = standing_of(row, children.results.get(name))
        counted = COUNTED[standing] if standing is not None else ()
        if "desired" in counted:  # its row is an older one: what became of that does not count
            for field in counted:
                tally[field] -= field != "desired"
        tally["desired"] += row is None
        tally["failed"] += 1
    return tally


def _stalled(
    children: Children, refusals: Mapping[str, RefusedRows], failing: Sequence[_Failure]
) -> tuple[str, str]:
    """Return reason and message of Stalled: those of the first error, with the number of the others.

    failing: the errors of targets that have no child.
    """
    errors, messages, results = children.standings.errors, children.standings.messages, children.results
    if not (errors or refusals or failing):
        return "Valid", ""
    apart = [name for name in refusals if name in errors]  # the refusal counts, not the error before it
    others = [*failing, *(_refused(refused, name) for name, refused in refusals.items())]
    known = [_error(children, name) for name in errors.first(1 + len(apart)) if name not in refusals]
    first = min([*others, *known])
    number = len(others) + len(errors) - len(apart)
    alike = messages[first.message] - sum(results[name].error == first.message for name in apart)
    alike += sum(other.message == first.message for other in others)
    message = f"{first.name}: {first.message}" if first.name else first.message
    return first.reason, message + _others(alike - 1, number - alike)


def _unready(children: Children, refusals: Mapping[str, RefusedRows]) -> list[_Failure]:
    """Return the first children that fail, and if they are few, the first others that are not ready."""
    count, standings = UNREADY_SHOWN + len(refusals), children.standings
    if not (refusals or standings.errors or standings.failing or standings.unfinished):
        return []
    failed = [_error(children, name)._replace(name=name) for name in standings.errors.first(count)]
    failed += [_reported(children, name) for name in standings.failing.first(count)]
    refused = [_refused(rows, name)._replace(name=name) for name, rows in refusals.items()]
    unready = sorted([*refused, *(failure for failure in failed if failure.name not in refusals)])
    if len(unready) < UNREADY_SHOWN:
        working = [name for name in standings.unfinished.first(count) if name not in refusals]
        unready += [_reported(children, name) for name in working]
    return unready


def _shown(failure: _Failure) -> ChildFailure:
    return ChildFailure(name=failure.name, reason=failure.reason, message=failure.message)


def _error(children: Children, name: str) -> _Failure:
    row, result = children.rows[name], children.results[name]
    return _Failure(row.target, row.okey, result.reason, result.error, _error_name(row.okey, name))


def _refused(refused: RefusedRows, name: str) -> _Failure:
    who = _error_name(refused.okey, name)
    return _Failure(refused.target, refused.okey, refused.reason, refused.message, who)


def _reported(children: Children, name: str) -> _Failure:
    """Return why a child is not ready, according to render's result."""
    row, result = children.rows[name], children.results[name]
    if result.reason == "OnHold":
        return _Failure(row.target, row.okey, result.reason, result.error, name)
    why, _, words = result.unready.partition(": ")
    return _Failure(row.target, row.okey, why or "NotReady", words, name)


def _error_name(okey: str, name: str) -> str:
    return describe_object(okey) if okey else f'PackageVariant "{name}"'


def _others(alike: int, different: int) -> str:
    """Return how many more errors there are, with the same text and with other texts."""
    parts = []
    if alike:
        parts.append(f"{alike} more like it")
    if different:
        parts.append(f"{different} other errors" if different > 1 else "1 other error")
    return f" (and {' and '.join(parts)})" if parts else ""
