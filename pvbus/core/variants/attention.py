"""The condition AttentionNeeded: everything about a variant or a set that waits for a person, in one place.

It is there only while something waits, so it costs no write otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.eventrows import EventTask
from pvbus.core.kernel.keys import PROPOSED_CONTENT, RETURNED, Key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.tasks import OPEN_STATES

ATTENTION = "AttentionNeeded"
SHOWN_MAX = 3  # more would not be read in a condition; `pvbus explain` has all
CONFLICT, STRANDED, TASK, REJECTED, REMOVALS, VARIANTS = (
    "UpgradeConflict",
    "RollbackStranded",
    "TaskOpen",
    "DraftRejected",
    "DeletionHeld",
    "VariantsNeedAttention",
)
REASONS: Mapping[str, str] = {
    CONFLICT: "an upgrade left values that both sides have changed",
    STRANDED: "a rollback could publish no former revision",
    TASK: "a question of a draft is not answered",
    REJECTED: "a draft was proposed, and a person rejected it",
    REMOVALS: "the guard holds removals",
    VARIANTS: "variants of the set have this condition",
}
"""The reasons of the condition: that of the first thing that waits."""


class Need(NamedTuple):
    """One thing that waits for a person. message: what waits, and what to do."""

    reason: str
    message: str


def needed(needs: Sequence[Need], generation: int, *, count: int | None = None) -> tuple[Condition, ...]:
    """Return the condition, () if nothing waits. count: how many there are, if `needs` has only the first."""
    if not needs:
        return ()
    total = len(needs) if count is None else count
    words = "one thing waits" if total == 1 else f"{total} things wait"
    shown = "; ".join(part(need.message) for need in needs[:SHOWN_MAX])
    hidden = total - min(len(needs), SHOWN_MAX)
    more = f"; and {hidden} more" if hidden > 0 else ""
    return (
        Condition(
            type=ATTENTION,
            status="True",
            reason=needs[0].reason,
            message=f"{words} for a person: {shown}{more}",
            observed_generation=generation,
        ),
    )


class StrandedRevision(NamedTuple):
    """A revision that is published still after a rollback. policy: the name of the RolloutPolicy."""

    policy: str
    attempt: int
    revision: str


class OpenRevision(NamedTuple):
    """What is asked about an open package revision of a variant."""

    name: str
    lifecycle: str
    annotations: Mapping[str, str]
    questions: Mapping[str, EventTask]


def variant_needs(
    key: Key,
    conditions: Iterable[Condition],
    revisions: Iterable[OpenRevision],
    stranded: Iterable[StrandedRevision] = (),
) -> Iterator[Need]:
    """Yield what waits about one variant: its conflicts, what rollbacks left, then questions and rejections
    of its revisions."""
    for condition in conditions:
        if condition.type == CONFLICT and condition.status == "True":
            yield Need(CONFLICT, condition.message)
    for rollback in stranded:
        status = f"pvbus rollout status {Key(key.namespace, rollback.policy)} --state stranded"
        yield Need(
            STRANDED,
            f"attempt {rollback.attempt} of RolloutPolicy {rollback.policy} was rolled back, but "
            f"{rollback.revision} is published still, as no good revision took its place: publish a "
            f"better one; {status} says why, and shows all of them",
        )
    for revision in revisions:
        for type_, task in revision.questions.items():
            if task.state in OPEN_STATES:
                yield Need(TASK, f"task {type_} of {revision.name}: {task.question}")
        rejected = PROPOSED_CONTENT in revision.annotations and RETURNED not in revision.annotations
        if rejected and revision.lifecycle == "Draft":
            yield Need(
                REJECTED,
                f"{revision.name} was rejected: change it, or see pvbus explain {key}",
            )
