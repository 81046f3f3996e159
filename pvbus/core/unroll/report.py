"""A set's roll-up: the counts of its rows, and its errors in words.

It reports committed rows only, and render's results for them.
"""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from itertools import starmap
from typing import NamedTuple

from pvbus.core.records import ChildFailure, ChildResult, ChildRow, ChildState, Counts, SetResult
from pvbus.core.unroll.children import is_undecided
from pvbus.core.unroll.contexts import describe_object
from pvbus.core.unroll.removal import hold_of
from pvbus.core.unroll.state import RefusedRows, SetState

REMOVING = (ChildState.WAITING, ChildState.CONFIRMED, ChildState.ORDERED)
UNREADY_SHOWN = 3  # more would not be read in a condition; `pvbus explain --set` lists all
EVALUATION = "every target to be evaluated without an error"  # what removals of a stopped set wait for, too


class StopError(Exception):
    """Ends a pass early. reason: of the roll-up; "" if the set waits."""

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
    """Count the rows and choose what to report: the reason to stop, else the first error."""
    obj = state.obj
    assert obj is not None
    tally: dict[str, int] = dict.fromkeys(("desired", "applied", "ready", "failed", "held", "removing"), 0)
    refused = state.refused if stop is None and not on_hold else {}  # else nothing is offered to the bus
    errors, failed, working = _count(state, refused, tally)
    reason, message, failing = "Valid", "", list[_Failure]()
    waiting = state.waiting
    if stop is not None:
        reason, message = stop.reason, stop.message
        waiting = EVALUATION  # the former wait is outdated, and a new worker does not know it
    elif state.contexts is not None and not on_hold:
        failing = sorted(starmap(_Failure, state.contexts.errors()))
        tally["failed"] += len(state.contexts.failed)
        tally["desired"] += len(state.contexts.failed)
        if errors or failing:
            first, *others = sorted([*errors, *failing])
            reason, message = first.reason, f"{first.name}: {first.message}" if first.name else first.message
            alike = sum(1 for one in others if one.message == first.message)
            message += _others(alike, len(others) - alike)
    hold, released = hold_of(state.rollup, obj.metadata.uid)
    unready = [*failing, *sorted(failed)]
    if len(unready) < UNREADY_SHOWN and working:
        unready += _first(state, working)
    return SetResult(
        uid=obj.metadata.uid,
        generation=obj.metadata.generation,
        reason=reason,
        message=message,
        counts=Counts(**tally),
        on_hold=on_hold,
        hold=hold,
        released=released,
        waiting=waiting if tally["removing"] and not on_hold else "",
        unready=tuple(map(_shown, unready[:UNREADY_SHOWN])),
    )


def _count(
    state: SetState, refusals: Mapping[str, RefusedRows], tally: dict[str, int]
) -> tuple[list[_Failure], list[_Failure], list[str]]:
    """Count the rows; return the errors that stall the set, the failing children, and the names of the
    others that are not ready. refusals: rows that the bus refuses, by the child's name."""
    errors: list[_Failure] = []
    failed: list[_Failure] = []
    working: list[str] = []  # names only: of a new set, these are nearly all children
    children = state.children
    for name, row in children.rows.items():
        result = children.results.get(name)
        if row.state is ChildState.HELD:
            tally["held"] += 1
        elif row.state in REMOVING and not is_undecided(row):
            tally["removing"] += 1
        if row.state is not ChildState.PRESENT:
            continue
        tally["desired"] += 1
        if name in refusals:
            continue
        if result is not None and result.reason == "OnHold":
            working.append(name)
        elif result is not None and result.evaluated == row.digest and result.error:
            tally["failed"] += 1
            error = _Failure(row.target, row.okey, result.reason, result.error, _error_name(row.okey, name))
            errors.append(error)
            failed.append(error._replace(name=name))
        elif result is not None and result.applied == row.digest and row.digest:
            tally["applied"] += 1
            tally["ready"] += result.ready
            tally["failed"] += result.failing
            if result.failing:
                failed.append(_unready(name, row, result))
            elif not result.ready:
                working.append(name)
    for name, refused in refusals.items():
        tally["desired"] += name not in children.rows
        tally["failed"] += 1
        who = _error_name(refused.okey, name)
        errors.append(_Failure(refused.target, refused.okey, refused.reason, refused.message, who))
        failed.append(errors[-1]._replace(name=name))
    return errors, failed, working


def _shown(failure: _Failure) -> ChildFailure:
    return ChildFailure(name=failure.name, reason=failure.reason, message=failure.message)


def _unready(name: str, row: ChildRow, result: ChildResult) -> _Failure:
    """Return why a child is not ready, according to render's result."""
    if result.reason == "OnHold":
        return _Failure(row.target, row.okey, result.reason, result.error, name)
    why, _, words = result.unready.partition(": ")
    return _Failure(row.target, row.okey, why or "NotReady", words, name)


def _first(state: SetState, names: Iterable[str]) -> list[_Failure]:
    """Return the first UNREADY_SHOWN of the children that are not ready, by target."""
    rows, results = state.children.rows, state.children.results
    first = nsmallest(UNREADY_SHOWN, names, key=lambda name: (rows[name].target, rows[name].okey, name))
    return [_unready(name, rows[name], results[name]) for name in first]


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
