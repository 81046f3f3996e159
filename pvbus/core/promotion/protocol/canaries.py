"""What keeps the named canaries of a policy from being proven, and others from their revisions until then.

An attempt is planned when each canary is proposed, or runs what is to be planned already. A later wave begins
when each is proven. A canary that a person has excused, or that `Skip` goes without, counts for nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.rolloutrows import Target, TargetFacts
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.protocol.observing import FAILING, OPEN, is_candidate, is_good_now, planned
from pvbus.core.promotion.protocol.trains import has_failed
from pvbus.core.promotion.protocol.turn import Turn

MISSING = "CanaryMissing"
NOT_READY = "CanaryNotReady"
FAILED = "CanaryFailed"
UNKNOWN = "no PackageVariant of this name exists in the policy's namespace"
NONE_HELD: Mapping[str, str] = {}
MESSAGE_CHARACTERS_MAX = 1_000
"""A policy may name a thousand canaries: the row of a rollout stays small."""


class Obstacle(NamedTuple):
    """A canary that others wait for.

    reason: "" while it is on its way: its wave waits for it as for any target
    why: what stands in its way
    """

    canary: str
    reason: str
    why: str = ""


def message_of(obstacles: Iterable[Obstacle]) -> tuple[str, str]:
    """Return the reason and the message of what a person should know, "" for nothing."""
    shown = [each for each in obstacles if each.reason]
    if not shown:
        return "", ""
    reason = min(each.reason for each in shown)  # a missing one first
    words = SEPARATOR.join(f"canary {each.canary}: {each.why}" for each in shown)
    return reason, cut(words, MESSAGE_CHARACTERS_MAX)


def obstacles_to_plan(
    turn: Turn, due: Mapping[str, TargetFacts], held: Mapping[str, str] = NONE_HELD
) -> list[Obstacle]:
    """Return the canaries without which no attempt is planned. due: what is to be planned. held: target ->
    why its train waits."""
    excused = {each.canary for each in turn.commands.excuses if each.attempt == turn.rollout.attempt + 1}
    upstreams = {facts.upstream for facts in due.values()}
    found = [
        Obstacle(canary, NOT_READY, held[canary]) if canary in held else _to_plan(turn, canary, upstreams)
        for canary in turn.rules.canaries
        if canary not in due and canary not in excused
    ]
    found += [_of_another(due, canary) for canary in turn.rules.canaries if canary in due.keys() - excused]
    return _without_skipped(turn, [each for each in found if each is not None], excused)


def _of_another(due: Mapping[str, TargetFacts], canary: str) -> Obstacle | None:
    """Return None if a canary is to get what the others are: it proves nothing of another revision."""
    own = _made_of(due[canary])
    others = sorted({each for each in map(_made_of, due.values()) if _package(each) == _package(own)} - {own})
    if not others:
        return None
    return Obstacle(canary, NOT_READY, f"its proposal is made of {own}, and {others[0]} is to be approved")


def _made_of(planned: TargetFacts | Target) -> str:
    """Return the upstream revision that a proposal is made of. What its variant follows is only a wish."""
    return planned.source or planned.upstream


def obstacles_in_attempt(turn: Turn) -> list[Obstacle]:
    """Return the canaries without which no later wave of the attempt begins."""
    excused = excused_in(turn)
    found = [_in_attempt(turn, canary) for canary in turn.rules.canaries if canary not in excused]
    return _without_skipped(turn, [each for each in found if each is not None], excused)


def excused_in(turn: Turn) -> set[str]:
    """Return the canaries that the current attempt goes without."""
    return {each.canary for each in turn.rollout.excused}


def excused_targets(turn: Turn) -> set[str]:
    """Return the targets that the current attempt goes without: those canaries, with their trains."""
    rows = ((canary, turn.current_row(canary)) for canary in excused_in(turn))
    return {mate.target for _, row in rows if row is not None for mate in turn.mates(row)}


def failed_canaries(turn: Turn) -> dict[str, Target]:
    """Return the canaries that fail, or a member of their train does, and that no person has accepted; each
    with the row that fails."""
    excused, found = excused_in(turn), {}
    for canary in turn.rules.canaries:
        row = turn.current_row(canary)
        if row is not None and canary not in excused and has_failed(turn, mates := turn.mates(row)):
            found[canary] = next((mate for mate in mates if mate.state in FAILING), row)
    return found


def _without_skipped(turn: Turn, found: list[Obstacle], excused: Collection[str]) -> list[Obstacle]:
    """Leave out what `Skip` goes without. The last canary that is not excused is never left out."""
    missing = sum(each.reason == MISSING for each in found)
    named = sum(canary not in excused for canary in turn.rules.canaries)
    if not turn.rules.skips_absent or missing == named:
        return found
    return [each for each in found if each.reason != MISSING]


def _missing(turn: Turn, canary: str) -> Obstacle:
    return Obstacle(canary, MISSING, turn.words.get(canary) or UNKNOWN)


def _to_plan(turn: Turn, canary: str, upstreams: Collection[str]) -> Obstacle | None:
    facts, row = turn.seen.get(canary), turn.rows.get(canary)
    if facts is None:
        return _missing(turn, canary)
    if facts.is_proposed:
        attempt = row.attempt if row is not None else 0
        why = f"attempt {attempt} did not prove its revision {facts.revision}, so it is not tried again"
        return Obstacle(canary, NOT_READY, why)
    return _unless_running(turn, canary, facts, upstreams)


def _unless_running(
    turn: Turn, canary: str, facts: TargetFacts, upstreams: Collection[str]
) -> Obstacle | None:
    """Return None if a canary runs what is planned, and is good."""
    package = _package(facts.upstream)
    others = sorted(each for each in upstreams if _package(each) == package and each != facts.upstream)
    if facts.is_current and others:
        why = f"it follows {facts.upstream or 'no upstream'}, and {others[0]} is to be approved"
        return Obstacle(canary, NOT_READY, SEPARATOR.join(filter(None, (why, turn.words.get(canary)))))
    if facts.is_current and is_good_now(facts, turn.evidence.get(canary)):
        return None
    return Obstacle(canary, NOT_READY, turn.words.get(canary) or _standing(facts, turn.rows.get(canary)))


def _standing(facts: TargetFacts, row: Target | None) -> str:
    """Say what a canary lacks where promote says nothing: what it runs is not good, or none is proposed."""
    if not facts.is_current:
        return "its revision is not proposed"
    said = row.evidence if row is not None and row.revision == facts.published else ""
    why = f"it runs {facts.published} already, which is not shown to be good now"
    return f"{why} ({said})" if said else why


def _package(upstream: str) -> str:
    return upstream.rpartition("@")[0]


def _in_attempt(turn: Turn, canary: str) -> Obstacle | None:
    facts, row = turn.seen.get(canary), turn.current_row(canary)
    if row is None:
        if facts is not None:
            return _unless_running(turn, canary, facts, {each.upstream for each in turn.current})
        has_passed = turn.rollout.wave > 1
        return None if has_passed else _missing(turn, canary)
    if row.state is TargetState.PROVEN:
        row = next((mate for mate in turn.mates(row) if mate.state is not TargetState.PROVEN), row)
    if row.state is TargetState.PROVEN or _has_passed(turn, row):
        return None
    if row.state in (*OPEN, *FAILING):
        return Obstacle(canary, "")
    if facts is None:
        return _missing(turn, canary)
    why = turn.words.get(canary) or f"{row.revision} can no longer be approved in attempt {row.attempt}"
    return Obstacle(canary, NOT_READY, why)


def _has_passed(turn: Turn, row: Target) -> bool:
    """A canary that goes after its wave has passed was proven."""
    return row.state is TargetState.GONE and row.wave < turn.rollout.wave


def has_to_begin_again(turn: Turn) -> str:
    """Return a canary that is proposed, and that this attempt may not order again, "" for none."""
    for canary in turn.rules.canaries:
        facts, row = turn.seen.get(canary), turn.current_row(canary)
        if facts is None or row is None or row.state is not TargetState.GONE or canary in excused_in(turn):
            continue
        if not _has_passed(turn, row) and is_candidate(row, facts, turn.commands.restart):
            return canary
    return ""


def admit_canaries(turn: Turn) -> None:
    """Bring canaries into the current wave: one that was named after the plan, or that has come back to it.

    They are all by which a plan grows, and only by what it plans for the others.
    """
    upstreams = {_made_of(row) for row in turn.current}
    for canary in turn.rules.canaries:
        facts, row = turn.seen.get(canary), turn.current_row(canary)
        if row is not None and row.state is TargetState.PLANNED and row.wave > turn.rollout.wave:
            turn.move_unit(row, turn.rollout.wave)
        elif facts is not None and _may_join(turn, canary, facts, upstreams):
            turn.rows[canary] = planned(
                canary,
                facts,
                turn.rows.get(canary),
                attempt=turn.rollout.attempt,
                position=len(turn.current),
                wave=turn.rollout.wave,
            )


def _may_join(turn: Turn, canary: str, facts: TargetFacts, upstreams: Collection[str]) -> bool:
    row = turn.current_row(canary)
    if row is not None and row.state is not TargetState.LEFT:
        return False
    if facts.part:
        return False  # its train joins as a whole, with the next attempt
    is_new = is_candidate(turn.rows.get(canary), facts, turn.commands.restart)
    return is_new and _made_of(facts) in upstreams
