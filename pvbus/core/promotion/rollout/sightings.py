"""What the looks at the evidence of a policy's targets have seen, and when which target is looked at next.

It is held in memory alone: after a restart each target is looked at again before the rollout goes on. A
verdict is of one revision, content and attempt, and counts for no other. Bad evidence counts when two looks
some time apart have seen it: a status that flaps fails nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pvbus.core.kernel.rolloutrows import Evidence, Rollout, Sighting, Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.evidence import Proof
from pvbus.core.promotion.protocol.observing import IN_FLIGHT, PUBLISHED
from pvbus.core.promotion.protocol.rules import Rules
from pvbus.core.promotion.protocol.turn import ENDED
from pvbus.core.promotion.rollout.candidates import Candidates
from pvbus.core.promotion.rollout.looking import Look, Subject

LOOK_SECONDS = 10.0
"""Between two looks at an unproven target. Longer, and each wave takes that much longer; shorter, and the API
server has more to read."""
PROVEN_LOOK_SECONDS = 30.0
"""Between two looks at a proven one: as between those at the checks of a wave."""
TWICE_SECONDS = LOOK_SECONDS
"""Between two looks that have to see bad evidence."""
LOOKED_MAX = 200
"""Targets in one look: a second of reads. Meanwhile the rollout does nothing else."""
FRESH_SECONDS = 1.5 * LOOK_SECONDS
"""A status is stored before an approval as it was at most so long ago."""
_JUDGED = (TargetState.PROVEN, TargetState.FAILED, TargetState.SILENT)


class LastLook(NamedTuple):
    """What was seen of a target.

    bad_at: when bad evidence was first seen, 0 for none
    first: its statuses as they were first seen with this revision and content
    """

    content: tuple[str, str, int]
    at: float
    proof: Proof
    statuses: tuple[tuple[str, str], ...]
    bad_at: float = 0.0
    first: tuple[tuple[str, str], ...] = ()


class Sightings:
    """The looks of one policy, by target."""

    def __init__(self) -> None:
        self._seen: dict[str, LastLook] = {}
        self._changed: set[str] = set()

    def touch(self, target: str) -> None:
        """Look at a target soon: what promote says of it has changed."""
        self._changed.add(target)

    def note(self, target: str, content: tuple[str, str, int], look: Look, now: float) -> None:
        """Note a look at a target's revision, content and attempt."""
        former, proof, bad_at = self._seen.get(target), look.proof, 0.0
        self._changed.discard(target)
        if proof.verdict is False:
            bad_at = former.bad_at if former is not None and former.content == content else 0.0
            bad_at = min(bad_at, now)  # it is ahead where the clock was set back
            if not bad_at or now - bad_at < TWICE_SECONDS:
                proof = proof._replace(verdict=None, words=f"{proof.words} (it counts when it is seen twice)")
            bad_at = bad_at or now
        statuses = tuple(sorted(look.statuses.items()))
        first = tuple(self.first(target, content).items()) or statuses
        self._seen[target] = LastLook(content, now, proof, statuses, bad_at, first)

    def first(self, target: str, content: tuple[str, str, int]) -> dict[str, str]:
        """Return the statuses that were first seen of a published revision, {} if none were."""
        seen = self._seen.get(target)
        is_same = seen is not None and seen.content[:2] == content[:2] and content[0]
        return dict(seen.first) if seen is not None and is_same else {}

    def due(self, watched: Mapping[str, tuple[str, str, int]], proven: set[str], now: float) -> list[str]:
        """Return the targets to look at now, never looked at ones first."""
        dues = ((self._due_at(target, content, proven, now), target) for target, content in watched.items())
        return [target for at, target in sorted(dues) if at <= now][:LOOKED_MAX]

    def next_at(
        self, watched: Mapping[str, tuple[str, str, int]], proven: set[str], now: float
    ) -> float | None:
        """Return when the next look is due, None for never."""
        dues = (self._due_at(target, content, proven, now) for target, content in watched.items())
        first = min(dues, default=None)
        return max(first, now) if first is not None else None

    def _due_at(self, target: str, content: tuple[str, str, int], proven: set[str], now: float) -> float:
        seen = self._seen.get(target)
        if seen is None or seen.content != content or target in self._changed:
            return 0.0
        if seen.at > now:  # the clock was set back
            return 0.0
        return seen.at + (PROVEN_LOOK_SECONDS if target in proven else LOOK_SECONDS)

    def has_seen(self, target: str, content: tuple[str, str, int]) -> bool:
        seen = self._seen.get(target)
        return seen is not None and seen.content == content

    def forget_all_but(self, watched: Mapping[str, tuple[str, str, int]]) -> None:
        self._seen = {target: seen for target, seen in self._seen.items() if target in watched}
        self._changed &= watched.keys()

    def proofs(self, contents: Mapping[str, tuple[str, str, int]]) -> dict[str, Evidence]:
        """Return what the last look saw of contents, whatever their variants say."""
        seen = ((self._seen.get(target), content) for target, content in contents.items())
        known = ((target, *pair) for target, pair in zip(contents, seen, strict=True))
        return {
            target: Evidence(*content, look.proof.verdict)
            for target, look, content in known
            if look is not None and look.content == content and look.proof.verdict is not None
        }

    def evidence(self, ready: Mapping[str, Evidence]) -> dict[str, Evidence]:
        """Return what is known of each target: bad if its variant is, else what the last look saw of exactly
        this revision, content and attempt. ready: what the variants say."""
        known = {}
        for target, said in ready.items():
            seen = self._seen.get(target)
            if not said.is_good:
                known[target] = said
            elif seen is not None and seen.content == said[:3] and seen.proof.verdict is not None:
                known[target] = said._replace(is_good=seen.proof.verdict)
        return known

    def shown(self, now: float) -> dict[str, Sighting]:
        """Return what the machine has to know: of unpublished targets only what was seen just now."""
        return {
            target: Sighting(str(seen.proof), seen.statuses)
            for target, seen in self._seen.items()
            if seen.content[0] or 0 <= now - seen.at <= FRESH_SECONDS
        }


# ------------------------------------------------------------ who is looked at


def watched_targets(
    rules: Rules, rollout: Rollout, rows: Mapping[str, Target], candidates: Candidates
) -> dict[str, tuple[str, str, int]]:
    """Return whom to look at, with the revision, content and attempt: who is published in the attempt, who is
    ordered next if a status from before must be known, and, while anything is
    proposed, canaries that run what they have, and members of trains that may ride.

    The revision is "" for one that is not published yet.
    """
    is_active = rollout.state not in (*ENDED, RolloutState.ROLLING_BACK)
    current = [row for row in rows.values() if is_active and row.attempt == rollout.attempt]
    found = {row.target: (row.revision, row.digest, row.attempt) for row in current if row.state in PUBLISHED}
    found |= restored_targets(rollout, rows, candidates)
    if rules.is_weak and is_active:
        found |= {row.target: ("", "", row.attempt) for row in _next(rules, rollout, current)}
    named = {row.target for row in current}
    is_planning = is_active or any(row.is_proposed for row in candidates.rows())
    resting = candidates.resting_members() if rules.train is not None else ()
    for target in (*rules.canaries, *resting) if is_planning else ():
        content = candidates.published(target)
        if target not in named and content[0]:
            found[target] = (*content, rollout.attempt)
    return found


def restored_targets(
    rollout: Rollout, rows: Mapping[str, Target], candidates: Candidates
) -> dict[str, tuple[str, str, int]]:
    """Return the targets whose former content is published again, with what is looked at."""
    undoing = (
        row for row in rows.values() if (row.attempt, row.state) == (rollout.attempt, TargetState.UNDOING)
    )
    published = ((row, candidates.published(row.target)) for row in undoing)
    return {
        row.target: (*content, row.attempt) for row, content in published if content[1] == row.good_digest
    }


def _next(rules: Rules, rollout: Rollout, current: list[Target]) -> Iterator[Target]:
    """Yield the targets that may be ordered now."""
    waiting = [row for row in current if row.state is TargetState.PLANNED and row.wave <= rollout.wave]
    free = LOOKED_MAX
    if rules.in_flight_max:
        free = max(0, min(free, rules.in_flight_max - sum(row.state in IN_FLIGHT for row in current)))
    yield from sorted(waiting, key=lambda row: row.position)[:free]


def unseen(
    sightings: Sightings, watched: Mapping[str, tuple[str, str, int]], rows: Mapping[str, Target]
) -> bool:
    """Tell whether a target that was judged before a restart has not been looked at again."""
    return any(
        not sightings.has_seen(target, content)
        for target, content in watched.items()
        if target in rows and rows[target].attempt == content[2] and rows[target].state in _JUDGED
    )


def sharers_of(candidates: Candidates) -> Counter[tuple[str, str]]:
    """Count how many targets name each object."""
    return Counter(
        (row.evidence.namespace, row.evidence.name)
        for row in candidates.rows()
        if row.evidence is not None and row.evidence.name and not row.winner
    )


def subject_of(
    target: str,
    content: tuple[str, str, int],
    rollout: Rollout,
    row: Target | None,
    candidates: Candidates,
    sharers: Mapping[tuple[str, str], int],
    first: Mapping[str, str],
) -> Subject:
    """Return what is looked at for a target.

    first: its statuses at the first look. They count as those from before the approval where no attempt has
    noted these, as of a canary that runs the revision and whose row was lost with the bus.
    """
    source = candidates.source(target)
    if content[0] and candidates.published(target) != content[:2]:
        source = None  # it is of another revision
    is_of_row = row is not None and (row.revision, row.digest) == content[:2]
    seconds = float("inf")
    is_again = row is not None and row.state is TargetState.UNDOING
    if row is not None and (is_of_row or is_again) and row.attempt == rollout.attempt:
        seconds = rollout.watched_seconds - max(row.published_at, row.since if is_again else 0.0)
    return Subject(
        source=source,
        published=content[0],
        digest=content[1],
        before=(dict(row.before) if row is not None and is_of_row else {}) or first,
        seconds=seconds,
        sharers=sharers.get((source.namespace, source.name), 1) if source is not None else 1,
    )
