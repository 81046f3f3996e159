"""How an attempt fails or is rolled back: what it is blamed for is quarantined first. Pure.

An attempt is blamed for what targets got of it, or may get, as an order is on its way: for the upstream
revision where that is another one than before, and for the target's content where it is not. A first revision
of a target changes nothing where others run its upstream revision and are good.

While a quarantine is written, the rows of the targets stay as they are, so that each look blames the same. It
is over when the API server has the quarantine, and each target is seen to be covered: nothing is planned or
resumed after it as if there were none. A person who wants no quarantine says why.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from pvbus.core.api.quarantines import QuarantinedCombination, QuarantinedUpstream, QuarantineSpec
from pvbus.core.kernel.rolloutrows import Isolate, Isolated, Target, TargetFacts
from pvbus.core.kernel.rolloutstates import RolloutEvent, RolloutState, TargetEvent, TargetState
from pvbus.core.promotion.protocol.observing import FAILING, IN_FLIGHT, is_good_now
from pvbus.core.promotion.protocol.trains import banned_by
from pvbus.core.promotion.protocol.turn import ENDED, Turn, observe_rows

_BLAMED = (*IN_FLIGHT, TargetState.PROVEN, TargetState.UNPROVEN, *FAILING)


def fail(turn: Turn, reason: str, message: str) -> None:
    """Stop or roll back, as the policy wants."""
    turn.set(reason=reason, message=message, stops=turn.rollout.stops + 1, undoes=turn.rules.rolls_back)
    isolate(turn)


def roll_back(turn: Turn, reason: str, message: str, spared: str = "") -> None:
    """Roll an attempt back. spared: why nothing is quarantined, "" if it is."""
    if turn.rollout.state in ENDED:
        observe_rows(turn, turn.current)
    turn.set(reason=reason, message=message, undoes=True, spared=spared)
    isolate(turn)


def isolate(turn: Turn) -> None:
    """Have what an attempt is blamed for quarantined, unless it is already, or a person wants none."""
    is_begun = turn.rollout.state is RolloutState.ISOLATING
    if turn.rollout.spared or (not is_begun and is_isolated(turn)):
        conclude(turn)
    elif not is_begun:
        turn.move(RolloutEvent.ISOLATES)


def take_isolated(turn: Turn, isolated: Isolated | None) -> None:
    """Take what came of the quarantine of this attempt. Where a person has ended it meanwhile, nothing is
    covered, and nothing is waited for."""
    number = turn.rollout.isolations + 1
    if turn.rollout.state is not RolloutState.ISOLATING or isolated is None:
        return
    if (isolated.attempt, isolated.number) != (turn.rollout.attempt, number):
        return
    turn.set(refusal=isolated.refusal)
    if not isolated.refusal and (not isolated.is_lasting or is_isolated(turn)):
        turn.set(isolations=number)
        conclude(turn)


def conclude(turn: Turn) -> None:
    """Stop or roll back now. Only a rollback takes orders back."""
    turn.set(refusal="")
    observe_rows(turn, turn.current)
    if turn.rollout.undoes:
        give_up(turn)
        turn.move(RolloutEvent.ROLLED_BACK, wave=1)
    else:
        turn.move(RolloutEvent.FAILED)


def give_up(turn: Turn) -> None:
    """End the approvals of an attempt: take orders back, and skip what was not ordered."""
    for row in turn.current:
        if row.state is TargetState.ORDERED:
            turn.turn_target(row, TargetEvent.CANCEL)
        elif row.state in (TargetState.PLANNED, TargetState.LEFT, TargetState.REFUSED):
            turn.turn_target(row, TargetEvent.SKIP)


# ------------------------------------------------------------ blame


def blamed_rows(turn: Turn) -> list[Target]:
    """Return the targets that got their revision, or may get it, in order."""
    blamed = (row for row in turn.current if row.state in _BLAMED and not row.rides)
    return sorted(blamed, key=lambda row: row.position)


def isolations_of(turn: Turn) -> Iterator[Isolate]:
    """Yield the quarantine that is to be written, if one is."""
    rollout = turn.rollout
    if rollout.state is RolloutState.ISOLATING:
        yield Isolate(rollout.attempt, rollout.isolations + 1, blame_of(turn))


def blame_of(turn: Turn) -> QuarantineSpec:
    """Return what an attempt is blamed for. Which sets that is about is the policy's to say."""
    elsewhere = _sources_elsewhere(turn)
    changed, same = list[Target](), set[str]()
    combinations = set[tuple[str, ...]]()
    for row in blamed_rows(turn):
        if _is_of_combination(turn, row, elsewhere):
            combinations.add(row.combination)
        elif _changes_upstream(row, elsewhere):
            changed.append(row)
        else:
            same.add(row.digest)
    return QuarantineSpec(
        upstreams=tuple(_upstreams(changed)),
        contents=tuple(sorted(same)),
        combinations=tuple(QuarantinedCombination(upstreams=each) for each in sorted(combinations)),
        attempt=turn.rollout.attempt,
        reason=turn.rollout.reason,
        message=turn.rollout.message,
    )


def _is_of_combination(turn: Turn, row: Target, elsewhere: set[str]) -> bool:
    """Tell whether a member of a train is blamed with the others: any of them got another upstream revision,
    and all revisions are known."""
    mates = turn.mates(row)
    is_known = bool(row.combination) and all(row.combination) and len(mates) > 1
    return is_known and any(_changes_upstream(mate, elsewhere) for mate in mates if not mate.rides)


def _changes_upstream(row: Target, elsewhere: set[str]) -> bool:
    """Tell whether a target got another upstream revision than before."""
    if not row.source or row.source == row.good_source:
        return False
    return bool(row.good_source) or row.source not in elsewhere


def _sources_elsewhere(turn: Turn) -> set[str]:
    """Return the upstream revisions that targets outside of the attempt run, and are good with."""
    return {
        facts.published_source
        for target, facts in turn.seen.items()
        if turn.current_row(target) is None and is_good_now(facts, turn.evidence.get(target))
    }


def _upstreams(rows: Iterable[Target]) -> Iterator[QuarantinedUpstream]:
    """Yield each upstream revision, with the last good one of most of its targets."""
    goods: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        goods.setdefault((row.source, row.files), Counter())[row.good_source] += 1
    for (revision, files), counts in sorted(goods.items()):
        yield QuarantinedUpstream(revision=revision, files=files, good=counts.most_common(1)[0][0])


# ------------------------------------------------------------ cover


def is_isolated(turn: Turn) -> bool:
    """Tell whether all that an attempt is blamed for is seen to be quarantined."""
    return all(_cover(row, turn.seen.get(row.target)) is not False for row in blamed_rows(turn))


def is_any_covered(turn: Turn) -> bool:
    """Tell whether a quarantine keeps any target of an attempt from its revision."""
    return any(_cover(row, turn.seen.get(row.target)) for row in turn.current)


def _cover(row: Target, seen: TargetFacts | None) -> bool | None:
    """Tell whether the planned revision is quarantined; None if nothing is left of it. A content that cannot
    be read counts as the planned one."""
    if seen is None:
        return None
    is_combination = bool(row.combination) and bool(banned_by(row.combination, (seen,)))
    if seen.published == row.revision and seen.published_digest in (row.digest, ""):
        return bool(seen.runs) or is_combination
    if seen.revision == row.revision and seen.digest in (row.digest, ""):
        return seen.is_quarantined or is_combination
    return None
