"""The open tasks of the fleet: one row for each question that waits for a person, from its last event."""

from typing import NamedTuple

import msgspec

from pvbus.core.kernel import tasks
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.tasks import ASKED, OPEN_STATES


class Question(NamedTuple):
    """What a page shows of an open task.

    revision, variant: the names, as `<namespace>/<name>`
    since: since when it is open, RFC 3339
    note: what the condition says beside the question, as after an upgrade that made an answer void
    """

    revision: str
    type: str
    variant: str
    state: str
    question: str
    owner: str
    ticket: str
    due: str
    since: str
    note: str
    blocks: tuple[str, ...]

    @property
    def due_seconds(self) -> float | None:
        """Since 1970; None without a due time."""
        return tasks.due_seconds(self.due)

    @property
    def command(self) -> str:
        """Return the command that answers it, without the options of an installation."""
        return tasks.answer_command(self.revision, self.type)


class TaskRow(msgspec.Struct):
    asked: Question
    version: int = 0


def question_of(event: ConditionEvent | None) -> Question | None:
    """Return the open task of an event, None if it asks nobody any more. event: None for a tombstone."""
    if event is None or event.last or event.task.state not in OPEN_STATES:
        return None
    task, condition = event.task, event.condition
    return Question(
        revision=f"{event.namespace}/{event.name}",
        type=condition.type,
        variant=f"{event.namespace}/{event.variant}",
        state=task.state,
        question=task.question,
        owner=task.owner,
        ticket=task.ticket,
        due=task.due,
        since=condition.last_transition_time or "",
        note="" if condition.reason == ASKED else part(condition.message or condition.reason),
        blocks=task.blocks,
    )
