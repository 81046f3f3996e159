"""What the live facts and the evidence mean for one target of a rollout."""

from pvbus.core.kernel.rolloutrows import NOTHING, Evidence, Target, TargetFacts
from pvbus.core.kernel.rolloutstates import TargetEvent, TargetState

PUBLISHED = (
    TargetState.APPROVED,
    TargetState.PROVEN,
    TargetState.FAILED,
    TargetState.SILENT,
    TargetState.UNPROVEN,
)
"""The planned revision is published."""
OPEN = (TargetState.PLANNED, TargetState.ORDERED, TargetState.CANCELLING, TargetState.APPROVED)
"""A wave with such a target is not over."""
IN_FLIGHT = (TargetState.ORDERED, TargetState.CANCELLING, TargetState.APPROVED)
FAILING = (TargetState.FAILED, TargetState.SILENT, TargetState.REFUSED)
_UNTRIED = (
    TargetState.PROVEN,
    TargetState.SILENT,
    TargetState.UNPROVEN,
    TargetState.LEFT,
    TargetState.GONE,
)
"""States that say nothing against the content of the row."""
_DOUBTED = (TargetState.SILENT, TargetState.UNPROVEN)
"""What is unknown says nothing new of these."""
_VERDICTS = {True: TargetEvent.GOOD, False: TargetEvent.BAD, None: TargetEvent.UNKNOWN}
_AFTER = {
    TargetEvent.GOOD: TargetState.PROVEN,
    TargetEvent.BAD: TargetState.FAILED,
    TargetEvent.UNKNOWN: TargetState.APPROVED,
}


def observed(row: Target, seen: TargetFacts | None, evidence: Evidence | None) -> TargetEvent | None:
    """Return what happened to a target, None if nothing did."""
    seen = seen or NOTHING
    is_published = (seen.published, seen.published_digest) == (row.revision, row.digest)
    is_proposed = seen.is_proposed and (seen.revision, seen.digest) == (row.revision, row.digest)
    match row.state:
        case TargetState.PLANNED | TargetState.LEFT | TargetState.ORDERED | TargetState.REFUSED if (
            is_published
        ):
            return TargetEvent.PUBLISHED
        case TargetState.PLANNED:
            return None if is_proposed else TargetEvent.WITHDRAWN
        case TargetState.LEFT:
            return TargetEvent.RETURNED if is_proposed else None
        case TargetState.ORDERED if is_refused(row, seen):
            return TargetEvent.REFUSED
        case TargetState.REFUSED if seen.is_quarantined and seen.revision == row.revision:
            return None  # it stays refused: resuming accepts it
        case TargetState.ORDERED | TargetState.REFUSED:
            return None if is_proposed else TargetEvent.WITHDRAWN
        case TargetState.CANCELLING:
            return _cancelled(row, seen, is_published)
        case TargetState.UNDOING:
            return _restored(row, seen, is_published)
        case state if state in PUBLISHED:
            event = _VERDICTS[verdict(row, evidence)] if is_published else TargetEvent.REPLACED
            is_kept = event is TargetEvent.UNKNOWN and (
                state in _DOUBTED or (state is TargetState.PROVEN and moved_on(row, seen))
            )
            return None if is_kept or _AFTER.get(event) is state else event
    return None


def moved_on(row: Target, seen: TargetFacts | None) -> bool:
    """Tell whether the variant of a target follows another upstream revision than planned."""
    return seen is not None and "" not in (row.upstream, seen.upstream) and seen.upstream != row.upstream


def verdict(row: Target, evidence: Evidence | None) -> bool | None:
    """Return what evidence says of a target; None where it is of another revision, content or attempt."""
    if evidence is None or evidence[:3] != (row.revision, row.digest, row.attempt):
        return None
    return evidence.is_good


def _cancelled(row: Target, seen: TargetFacts, is_published: bool) -> TargetEvent | None:
    if is_published:
        return TargetEvent.PUBLISHED
    return TargetEvent.CANCELLED if row.attempt in (seen.withdrawn, seen.refused) else None


def is_refused(row: Target, seen: TargetFacts | None) -> bool:
    """Tell whether the server refused the approval in the attempt of the row."""
    return seen is not None and seen.refused == row.attempt


def _restored(row: Target, seen: TargetFacts, is_published: bool) -> TargetEvent | None:
    is_unrestored = seen.unrestored == row.attempt
    if is_unrestored and seen.published == row.good:
        return TargetEvent.STRAND  # nothing was published again: somebody has hidden what is
    if seen.published_digest == row.good_digest:
        return TargetEvent.RESTORED
    if not is_published:
        return TargetEvent.REPLACED
    return TargetEvent.STRAND if is_unrestored else None


def is_good_now(facts: TargetFacts, evidence: Evidence | None) -> bool:
    """Tell whether the published revision is good. It may be of any attempt, or of none."""
    content = (facts.published, facts.published_digest)
    return evidence is not None and (evidence.revision, evidence.digest) == content and evidence.is_good


def is_candidate(row: Target | None, seen: TargetFacts, restart: int) -> bool:
    """Tell whether a proposed revision may be planned: its content was not in vain in a former attempt, and
    it is not one that an attempt kept as planned, of which the variant follows a newer revision by now."""
    if not seen.is_proposed or _is_left_over(row, seen):
        return False
    return row is None or row.state in _UNTRIED or row.digest != seen.digest or row.attempt <= restart


def _is_left_over(row: Target | None, seen: TargetFacts) -> bool:
    if row is None or (row.revision, row.digest) != (seen.revision, seen.digest):
        return False
    return moved_on(row, seen) and not seen.is_upstream_held


def planned(
    target: str, seen: TargetFacts, former: Target | None, *, attempt: int, position: int, wave: int
) -> Target:
    """Return the row of a target whose open revision an attempt plans. former: its row until then."""
    good, good_digest, good_source = good_of(former, seen)
    return Target(
        target=target,
        revision=seen.revision,
        digest=seen.digest,
        upstream=seen.upstream,
        source=seen.source,
        files=seen.files,
        attempt=attempt,
        position=position,
        wave=wave,
        good=good,
        good_digest=good_digest,
        good_source=good_source,
    )


def good_of(row: Target | None, seen: TargetFacts) -> tuple[str, str, str]:
    """Return the name, digest and upstream revision of the last good revision: the published one, unless an
    attempt published it and it was not proven, or it is quarantined. What was proven when its wave passed
    stays good though its evidence went meanwhile."""
    is_ours = row is not None and (seen.published, seen.published_digest) == (row.revision, row.digest)
    if row is not None and is_ours and (not _was_good(row) or seen.runs):
        return row.good, row.good_digest, row.good_source
    if seen.runs:
        return "", "", ""
    return seen.published, seen.published_digest, seen.published_source


def _was_good(row: Target) -> bool:
    return row.state is TargetState.PROVEN or (row.has_passed and row.state not in FAILING)
