"""Partial trains, and how a unit is undone. Pure.

A train is partial while some of its members have their revision and others do not. In time it is made whole
or rolled back: past the limit the attempt fails as `TrainPartial`, and where it stops, its partial units are
still undone, after what they brought is quarantined.

A unit is undone in reverse, each member after the one that followed it is. If one cannot be restored, none
is: all are stranded. Where that shows only after others were restored, the unit stays partial, and is named.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetEvent, TargetState
from pvbus.core.promotion.protocol.isolating import fail, is_isolated
from pvbus.core.promotion.protocol.observing import PUBLISHED
from pvbus.core.promotion.protocol.rules import TrainRules
from pvbus.core.promotion.protocol.trains import SHOWN_MAX, banned_by, trains_in
from pvbus.core.promotion.protocol.turn import ADVANCING, Turn
from pvbus.core.promotion.protocol.units import HOLDING_NEW, changing, is_partial, units

TRAIN_PARTIAL = "TrainPartial"
_UNSURE = (TargetState.ORDERED, TargetState.CANCELLING, TargetState.UNDOING)
_DEFAULT = TrainRules(()).partial_seconds  # a policy without its train still has the units that it planned


def partial_words(rows: Iterable[Target]) -> str:
    """Name the partial trains among the rows of an attempt, with the states of members, "" for none."""
    found = [members for members in units(row for row in rows if row.unit).values() if is_partial(members)]
    words = SEPARATOR.join(map(_words, found[:SHOWN_MAX]))
    return cut(f"{words} and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else words)


def _words(members: Sequence[Target]) -> str:
    states = ", ".join(f"{row.target} is {row.state.value}" for row in changing(members))
    return f"train {members[0].unit}: {states}"


def overdue(turn: Turn) -> list[list[Target]]:
    """Return the trains that are partial for too long."""
    train, now = turn.rules.train, turn.rollout.train_seconds
    limit = train.partial_seconds if train is not None else _DEFAULT
    return [
        members
        for members in trains_in(turn)
        if members[0].partial_since is not None and now - members[0].partial_since >= limit
    ]


def judge_partials(turn: Turn) -> None:
    """Fail an attempt with a train that is partial for too long. One that has stopped has it quarantined."""
    state = turn.rollout.state
    if turn.commands.paused or state not in (*ADVANCING, RolloutState.STOPPED):
        return
    late = [members for members in overdue(turn) if any(row.state in PUBLISHED for row in changing(members))]
    if late and (state in ADVANCING or not _is_answered(turn)):
        fail(turn, TRAIN_PARTIAL, partial_words(row for members in late for row in members))


def restore_partials(turn: Turn) -> None:
    """Undo the trains that are partial for too long, in an attempt that has stopped."""
    if _is_answered(turn):
        undo_units(turn, overdue(turn), None)


def _is_answered(turn: Turn) -> bool:
    """Tell whether a quarantine covers what is undone, or was written for it. A person may end it."""
    return turn.rollout.reason == TRAIN_PARTIAL or is_isolated(turn)


def strand_overdue(turn: Turn) -> None:
    """Give up on targets whose former revision is not published in time, as of one that a person holds."""
    limit = turn.rules.restore_seconds
    for row in turn.current:
        if row.state is TargetState.UNDOING and turn.rollout.watched_seconds - row.since >= limit:
            turn.turn_target(row, TargetEvent.STRAND)
            why = f"Stranded: {row.good} was not published again within {limit:g} s"
            if turn.is_unproven_again(row):
                words = row.evidence or "nothing says that it is good"
                why = f"Stranded: {row.good} is published again, and not proven within {limit:g} s: {words}"
            turn.rows[row.target] = replace(turn.rows[row.target], why=why)


def undo_units(turn: Turn, members: Iterable[Sequence[Target]], free: int | None) -> None:
    """Restore the members of units whose turn it is, and strand those that cannot be restored.

    free: of how many units at most, None for no limit
    """
    strand_overdue(turn)
    for unit in members:
        why = why_kept(turn, unit)
        for row in [row for row in changing(unit) if why and row.state in PUBLISHED]:
            turn.turn_target(row, TargetEvent.STRAND)
            turn.rows[row.target] = replace(turn.rows[row.target], why=f"Stranded: {why}")
        rows = [turn.rows[row.target] for row in unit]
        chosen = list(to_undo(turn, rows))
        if chosen and free is not None:
            if free <= 0:
                continue
            free -= 1
        for row in chosen:
            turn.turn_target(row, TargetEvent.UNDO)


def why_kept(turn: Turn, members: Sequence[Target]) -> str:
    """Return why a unit keeps what it has, "" if it is restored: no member is where one cannot be."""
    new = [row for row in changing(members) if row.state in HOLDING_NEW]
    lacking = next((row.target for row in new if not row.good), "")
    if not members[0].unit:
        return "there is no former revision to go back to" if lacking else ""
    if lacking:
        return f"{lacking} of its train has no former revision to go back to"
    stranded = next((row.target for row in members if row.state is TargetState.STRANDED), "")
    if stranded:
        return f"{stranded} of its train keeps what it has"
    former = tuple(row.source if row.rides else row.good_source for row in members)
    seen = (turn.seen[row.target] for row in members if row.target in turn.seen)
    name = banned_by(former, seen)
    return f"quarantine {name} covers what its train would go back to" if name else ""


def to_undo(turn: Turn, members: Sequence[Target]) -> Iterator[Target]:
    """Yield who is restored now: of a train the last member, once nothing after it is on its way."""
    published = [row for row in changing(members) if row.state in PUBLISHED]
    train = turn.rules.train
    if not members[0].unit or (train is not None and train.is_together):
        yield from published
    elif published and not any(row.state in _UNSURE for row in members):
        yield published[-1]
