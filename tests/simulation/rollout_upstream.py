"""A newer upstream revision in the small world around the rollout machine, and what it may not lead to.

All variants follow it at once, each package when promote comes to it: a proposal that nobody has frozen
becomes one of the newer revision, and what is published has a newer draft, of which Ready speaks from then.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pvbus.core.kernel.rolloutrows import NOTHING, Approve, Evidence, Target, TargetFacts
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.units import is_partial

if TYPE_CHECKING:
    from tests.simulation.rollout_world import RolloutWorld

NEWER = "@v3"
"""The newer revision of any package."""


def released(real: Iterable[tuple[str, TargetFacts]]) -> tuple[tuple[str, TargetFacts], ...]:
    """Return packages whose variants follow a newer upstream revision."""
    return tuple(
        (target, facts if facts == NOTHING else facts._replace(upstream=_newer(facts), is_current=False))
        for target, facts in real
    )


def _newer(facts: TargetFacts) -> str:
    return f"{facts.upstream.partition('@')[0]}{NEWER}"


def is_behind(facts: TargetFacts) -> bool:
    """Tell whether a variant follows the newer revision, and has no draft of it yet."""
    return facts.upstream.endswith(NEWER) and facts.upstream != facts.source


def is_frozen(world: "RolloutWorld", target: str) -> bool:
    """Tell whether the rollout has frozen the open revision of a target."""
    row, facts = dict(world.rows).get(target), dict(world.real)[target]
    is_planned = row is not None and (row.revision, row.digest) == (facts.revision, facts.digest)
    return is_planned and row is not None and row.is_frozen


def drafts(world: "RolloutWorld") -> Iterator[tuple[str, TargetFacts]]:
    """Yield each package with the newer revision, as promote proposes it."""
    for target, facts in world.real:
        if is_behind(facts) and (facts.published == facts.revision or not is_frozen(world, target)):
            yield (
                target,
                facts._replace(revision="v3", digest=f"d3-{target}", source=facts.upstream, is_proposed=True),
            )


def is_doubtful(world: "RolloutWorld", target: str) -> bool:
    """Tell whether nothing can prove a target any more: Ready is of its newer draft, and it is not frozen."""
    row, facts = dict(world.rows)[target], dict(world.real)[target]
    return facts.upstream.endswith(NEWER) and row.upstream != facts.upstream and not row.is_frozen


def keeps_proof(before: "RolloutWorld", row: Target) -> bool:
    """Tell whether a target was proven, and its Ready is of a newer draft by now."""
    former, facts = dict(before.rows).get(row.target), dict(before.view).get(row.target, NOTHING)
    is_same = former is not None and (former.attempt, former.state) == (row.attempt, TargetState.PROVEN)
    return is_same and facts.upstream.endswith(NEWER) and row.upstream != facts.upstream


def wrong_superseding(before: "RolloutWorld", after: "RolloutWorld", rows: Mapping[str, Target]) -> str:
    """Return what is wrong with how a newer revision ends an attempt, "" for nothing."""
    is_over = after.rollout.state is RolloutState.SUPERSEDED
    if is_over and any(isinstance(action, Approve) for action in after.actions):
        return "a superseded attempt approves"
    begins = after.rollout.attempt > before.rollout.attempt
    view = dict(before.view)
    if begins and any(_is_on_its_way(row, view.get(target, NOTHING)) for target, row in before.rows):
        return "an attempt begins while an order of the one before may be carried out"
    if not is_over or before.rollout.state is RolloutState.SUPERSEDED:
        return ""
    if any(row.unit and is_partial([*_mates(rows, row)]) for row in rows.values()):
        return "a train is left partial by a newer revision"
    if after.rules.finishes:
        return "an attempt that finishes is superseded"
    if after.rollout.superseded != before.rollout.superseded + 1:
        return "a superseded attempt is not counted"
    evidence, facts = dict(before.evidence), dict(before.view)
    bad = [
        target
        for target, row in rows.items()
        if evidence.get(target) == Evidence(row.revision, row.digest, row.attempt, False)
        and (facts[target].published, facts[target].published_digest) == (row.revision, row.digest)
    ]
    if len(bad) > max(after.rules.failing_max, after.rollout.tolerated):
        return f"an attempt is superseded before {bad} fail it"
    return ""


def _mates(rows: Mapping[str, Target], row: Target) -> Iterator[Target]:
    return (mate for mate in rows.values() if mate.unit == row.unit)


def _is_on_its_way(row: Target, seen: TargetFacts) -> bool:
    """Tell whether an approval that was ordered may still be carried out."""
    is_published = (seen.published, seen.published_digest) == (row.revision, row.digest)
    is_known = is_published or row.attempt in (seen.withdrawn, seen.refused) or seen == NOTHING
    return row.state in (TargetState.ORDERED, TargetState.CANCELLING) and not is_known


def wrong_rollback(before: "RolloutWorld", rows: Mapping[str, Target]) -> str:
    """Return which target goes back though it runs something else than the attempt published."""
    former, facts = dict(before.rows), dict(before.view)
    for target, row in rows.items():
        seen = facts.get(target, NOTHING)
        is_new = row.state is TargetState.UNDOING and former[target].state is not TargetState.UNDOING
        if is_new and (seen.published, seen.published_digest) != (row.revision, row.digest):
            return f"{target} goes back from what the attempt did not publish"
    return ""
