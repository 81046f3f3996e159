"""Trains: packages that were verified together, and are planned and approved as one on each site. Pure.

A unit is planned when each of its members is proposed, or rides: it has no open revision, and runs a good
one. What is planned is the combination of their upstream revisions, and written into each row. Before its
first order a unit leaves as a whole, when one of its members does; after that it is partial until each member
has its revision.

The order within a unit is that of the train. In a train that goes `Together` all are ordered in one step;
otherwise each waits until those before it are proven.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.kernel.messages import SEPARATOR, cut, first_of, part
from pvbus.core.kernel.rolloutrows import Target, TargetFacts
from pvbus.core.kernel.rolloutstates import TargetEvent, TargetState
from pvbus.core.promotion.protocol.combinations import may_begin
from pvbus.core.promotion.protocol.observing import FAILING, is_good_now
from pvbus.core.promotion.protocol.rules import TrainRules
from pvbus.core.promotion.protocol.turn import ABORTABLE, Turn
from pvbus.core.promotion.protocol.units import (
    HOLDING_NEW,
    LOST,
    changing,
    is_begun,
    is_partial,
    is_under_way,
    unit_of,
    units,
)

SHOWN_MAX = 3
_STOPPING = (*LOST, *FAILING, TargetState.UNDONE, TargetState.STRANDED)
"""A unit with such a member gets nothing more."""
_BLOCKING = (
    *_STOPPING,
    TargetState.CANCELLING,
    TargetState.UNDOING,
)
"""A unit with such a member orders nothing more."""


class Gathered(NamedTuple):
    """What may be planned, in whole units.

    due: target -> what is planned of it; of a member that rides, what it runs
    combinations: unit -> the upstream revisions of its members
    held: target -> why its unit waits
    """

    due: Mapping[str, TargetFacts]
    combinations: Mapping[str, tuple[str, ...]]
    held: Mapping[str, str]


def gather(turn: Turn, due: Mapping[str, TargetFacts]) -> Gathered:
    """Return the whole units of what may be planned."""
    train = turn.rules.train
    if train is None:
        return Gathered(due, {}, {})
    planned, held = dict[str, TargetFacts](), dict[str, str]()
    combinations = dict[str, tuple[str, ...]]()
    for unit, targets in _members_by_unit(turn).items():
        if not any(target in due for target in targets):
            continue
        if why := _why_held(turn, train, unit, targets, due):
            held |= dict.fromkeys(targets, why)
            continue
        planned |= {target: _as_planned(turn.seen[target]) for target in targets}
        combinations[unit] = _sources(turn, targets)
    planned |= {target: facts for target, facts in due.items() if not facts.part}
    return Gathered(
        {target: planned[target] for target in turn.seen if target in planned}, combinations, held
    )


def groups_of(turn: Turn, gathered: Gathered) -> list[list[str]]:
    """Return the targets of each unit that is planned, canaries first, members in their order."""
    groups: dict[str, list[str]] = {}
    for target in gathered.due:
        unit = turn.seen[target].unit
        groups.setdefault(unit if unit in gathered.combinations else target, []).append(target)
    names = {target: name for name, targets in groups.items() for target in targets}
    first = dict.fromkeys(names[canary] for canary in turn.rules.canaries if canary in names)
    ordered = [*first, *(name for name in groups if name not in first)]
    return [sorted(groups[name], key=lambda target: turn.seen[target].part) for name in ordered]


def couple(turn: Turn, gathered: Gathered) -> None:
    """Note the train of each row that was planned as a member; one that rides has its revision already."""
    for target, facts in gathered.due.items():
        if facts.unit not in gathered.combinations:
            continue
        row = replace(
            turn.rows[target],
            unit=facts.unit,
            part=facts.part,
            rides=facts.revision == turn.seen[target].published,
            combination=gathered.combinations[facts.unit],
        )
        turn.rows[target] = row
        if row.rides:
            turn.turn_target(row, TargetEvent.PUBLISHED)


def waiting_words(gathered: Gathered) -> str:
    """Say which trains wait, "" for none."""
    words = list(dict.fromkeys(gathered.held.values()))
    more = f" and {len(words) - SHOWN_MAX} more" if len(words) > SHOWN_MAX else ""
    return cut(SEPARATOR.join(map(part, words[:SHOWN_MAX])) + more)


# ------------------------------------------------------------ what a unit waits for


def _members_by_unit(turn: Turn) -> dict[str, list[str]]:
    """Return the members by unit, in the order of the train."""
    found: dict[str, list[str]] = {}
    for target, facts in turn.seen.items():
        if facts.part:
            found.setdefault(facts.unit or target, []).append(target)
    return {
        unit: sorted(targets, key=lambda target: turn.seen[target].part) for unit, targets in found.items()
    }


def _as_planned(facts: TargetFacts) -> TargetFacts:
    """Return what a unit would have of a member: its proposal, or what it runs."""
    if facts.is_proposed:
        return facts
    return facts._replace(
        revision=facts.published,
        digest=facts.published_digest,
        source=facts.published_source,
        release=facts.published_release,
    )


def _sources(turn: Turn, targets: Iterable[str]) -> tuple[str, ...]:
    """Return the upstream revisions that a unit would have, "" where one is not known."""
    members = (_as_planned(turn.seen[target]) for target in targets)
    return tuple(facts.source or facts.upstream for facts in members)


def _why_held(
    turn: Turn, train: TrainRules, unit: str, targets: Sequence[str], due: Mapping[str, TargetFacts]
) -> str:
    """Return why a unit is not planned, "" if it may be."""
    if not turn.seen[targets[0]].unit:
        return f"{unit} has no label that names its site in the train"
    is_canary = any(target in turn.rules.canaries for target in targets)
    counts = Counter(turn.seen[target].part for target in targets)
    for number, name in enumerate(train.sets, 1):
        if not counts[number] and (is_canary or not train.skips_absent):
            return (
                f"train {unit} waits for member {name}: no variant of that set has a package revision there"
            )
        if counts[number] > 1:
            several = [target for target in targets if turn.seen[target].part == number]
            return f"train {unit} has several variants of set {name}: {first_of(several, SHOWN_MAX)}"
    sources = _sources(turn, targets)
    for target in targets:
        if why := _why_unready(turn, target, target in due, sources):
            return f"train {unit} waits for member {target}: {why}"
    why = _why_unverified(turn, train, targets, sources)
    return f"train {unit} waits: {why}" if why else ""


def _why_unready(turn: Turn, target: str, is_due: bool, sources: tuple[str, ...]) -> str:
    """Return what a member lacks, "" for nothing. What an attempt did not prove is free with others."""
    facts, row = turn.seen[target], turn.rows.get(target)
    if is_due or (facts.is_proposed and row is not None and row.combination not in ((), sources)):
        return ""
    if facts.is_proposed:
        return f"an attempt did not prove its revision {facts.revision}, so it is not tried again"
    if not facts.is_current:
        return turn.words.get(target) or "its open revision is not proposed, or it has none yet"
    if is_good_now(facts, turn.evidence.get(target)):
        return ""
    return turn.words.get(target) or f"it runs {facts.published}, and nothing says that it is good"


def _why_unverified(turn: Turn, train: TrainRules, targets: Sequence[str], sources: tuple[str, ...]) -> str:
    """Return what speaks against the combination, "" for nothing."""
    if train.upstreams:
        for target, source in zip(targets, sources, strict=True):
            wanted = train.upstreams[turn.seen[target].part - 1]
            if source != wanted:
                return f"{target} would have {source or 'an unknown upstream revision'}, not {wanted}"
    if train.annotation:
        releases = [_as_planned(turn.seen[target]).release for target in targets]
        if not all(releases) or len(set(releases)) > 1:
            shown = SEPARATOR.join(
                f"{source} has {release or 'none'}" for source, release in zip(sources, releases, strict=True)
            )
            return f"its upstream revisions have no common value of {train.annotation}: {shown}"
    name = banned_by(sources, (turn.seen[target] for target in targets))
    return f"quarantine {name} covers the combination {SEPARATOR.join(sources)}" if name else ""


def banned_by(sources: Iterable[str], seen: Iterable[TargetFacts]) -> str:
    """Return the quarantine that covers a combination, "" for none."""
    combination = set(sources)
    return next(
        (name for facts in seen for name, *banned in facts.banned if banned and combination >= set(banned)),
        "",
    )


def is_banned(turn: Turn, members: Sequence[Target]) -> bool:
    """Tell whether the combination of a unit is quarantined."""
    seen = (turn.seen[row.target] for row in members if row.target in turn.seen)
    return bool(banned_by(members[0].combination, seen))


# ------------------------------------------------------------ before and between the orders


def trains_in(turn: Turn) -> list[list[Target]]:
    """Return the units of the current attempt that have members."""
    return list(units(row for row in turn.current if row.unit).values())


def keep_together(turn: Turn) -> None:
    """Let a unit leave as a whole before its first order. After that a member that fails or changes stops it:
    what is on its way is taken back, and once nothing is, the rest leaves."""
    if turn.rollout.state not in ABORTABLE:
        return
    for members in trains_in(turn):
        is_stopped = is_banned(turn, members) or any(row.state in _STOPPING for row in members)
        for row in changing(members) if is_stopped else ():
            if row.state is TargetState.PLANNED and not is_under_way(members):
                turn.turn_target(row, TargetEvent.WITHDRAWN)
            elif row.state is TargetState.ORDERED:
                turn.turn_target(row, TargetEvent.CANCEL)
    for members in trains_in(turn):
        _note_partial(turn, members)


def _note_partial(turn: Turn, members: Sequence[Target]) -> None:
    """Note since when a unit is partial, at its first member. No time counts where it stays so."""
    since = members[0].partial_since
    if not (is_partial(members) and is_under_way(members)):
        since = None
    elif since is None:
        since = turn.rollout.train_seconds
    if since != members[0].partial_since:
        turn.rows[members[0].target] = replace(turn.rows[members[0].target], partial_since=since)


def orderable(turn: Turn, waiting: Sequence[Target], free: int | None) -> Iterator[Target]:
    """Yield whom to order now: members whose turn it is, and at most so many units that have not begun.

    waiting: the targets that may be ordered otherwise, in order
    free: None for any number
    """
    members = units(turn.current) if any(row.unit for row in waiting) else {}
    names, begun = {row.target for row in waiting}, set[str]()
    for row in waiting:
        unit = members.get(unit_of(row), [row])
        if row.unit and not (_may_follow(turn, row, unit, names) and may_begin(turn, unit)):
            continue
        if unit_of(row) not in begun and not is_begun(unit):
            if free is not None and free <= len(begun):
                continue
            begun.add(unit_of(row))
        yield row


def _may_follow(turn: Turn, row: Target, members: Sequence[Target], names: set[str]) -> bool:
    """Tell whether a member's turn has come."""
    if is_banned(turn, members) or any(mate.state in _BLOCKING for mate in members):
        return False
    if any(mate.rides and mate.state is not TargetState.PROVEN for mate in members):
        return False
    train = turn.rules.train
    if train is not None and train.is_together:
        return all(mate.target in names for mate in members if mate.state is TargetState.PLANNED)
    return all(mate.state is TargetState.PROVEN for mate in members if mate.part < row.part)


def mates_of(turn: Turn, row: Target, ordered: Iterable[Target]) -> tuple[str, ...]:
    """Return the revisions that are published in one push with that of a target, which is among them.

    ordered: the targets that are ordered in the same step
    """
    train = turn.rules.train
    if not row.unit or train is None or not train.is_together:
        return ()
    revisions = sorted(mate.revision for mate in ordered if mate.unit == row.unit)
    return tuple(revisions) if len(revisions) > 1 else ()


# ------------------------------------------------------------ failure


def failing_units(turn: Turn) -> list[list[Target]]:
    """Return the units that fail: of a train, also one in which a member has changed alone."""
    if not any(row.unit for row in turn.current):
        return [[row] for row in turn.current if row.state in FAILING]
    return [members for members in units(turn.current).values() if has_failed(turn, members)]


def has_failed(turn: Turn, members: Sequence[Target]) -> bool:
    """Tell whether a unit fails. What a member does on its own before the first order fails nothing."""
    is_failing = any(row.state in FAILING for row in members)
    if not members[0].unit:
        return is_failing
    return is_begun(members) and (is_failing or has_changed(turn, members))


def has_changed(turn: Turn, members: Sequence[Target]) -> bool:
    """Tell whether a member runs something else than before, while another has its revision of the
    combination. One that is deleted changes nothing: the others may be on their way out, too."""
    is_any_new = any(row.state in HOLDING_NEW for row in changing(members))
    return is_any_new and any(row.state is TargetState.GONE and _runs_another(turn, row) for row in members)


def _runs_another(turn: Turn, row: Target) -> bool:
    facts = turn.seen.get(row.target)
    former = (row.good, row.good_digest)
    return facts is not None and (facts.published, facts.published_digest) not in (former, ("", ""))
