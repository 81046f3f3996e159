"""The questions to people in a package, as rows and events carry them: what is asked, how it stands, what
waits.

A package may hold anything, and each question is in a row that all services read: texts are cut here.
"""

from collections.abc import Iterable, Mapping, Sequence

from pvbus.core.api.variants import Condition
from pvbus.core.errors import PermanentError
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.eventrows import EventTask
from pvbus.core.kernel.keys import CONDITION_ORDER, TASK_HISTORY, TASKS
from pvbus.core.kernel.messages import part

WORDS_CHARACTERS_MAX = 100  # of an owner, a ticket, a user: more is no name
READ = (TASKS, TASK_HISTORY, CONDITION_ORDER)
"""The annotations of a Kptfile that questions are made from."""


def questions_of(
    annotations: Mapping[str, str], conditions: Iterable[Condition], gated: Sequence[str], lifecycle: str
) -> dict[str, EventTask]:
    """Return the questions of a package revision by condition type. gated: the types that gates name."""
    package_tasks = tasks.read(annotations)
    if not package_tasks.tasks:
        return {}
    present = [{"type": condition.type, "status": condition.status} for condition in conditions]
    after = _order(annotations)
    before = {gate: {gate, *gates.all_before(after, gate)} for gate in dict.fromkeys(gated)}
    return {
        type_: _question(package_tasks, type_, tasks.status_of(present, type_), lifecycle, before)
        for type_ in package_tasks.tasks
    }


def _question(
    package_tasks: tasks.Found, type_: str, status: str, lifecycle: str, before: Mapping[str, set[str]]
) -> EventTask:
    asked, last = package_tasks.tasks[type_], package_tasks.last(type_)
    is_recorded = status in tasks.ANSWERS and last is not None and last.after == status
    return EventTask(
        question=part(asked.question),
        owner=_words(asked.owner),
        ticket=_words(asked.ticket),
        due=asked.due,
        state=tasks.state_of(status, lifecycle),
        blocks=tuple(gate for gate, needed in before.items() if type_ in needed),
        answered_by=_words(last.by) if is_recorded and last is not None else "",
        answered_at=_words(last.at) if is_recorded and last is not None else "",
    )


def _words(text: str) -> str:
    return part(text, WORDS_CHARACTERS_MAX)


def _order(annotations: Mapping[str, str]) -> gates.Order:
    """Return the order of conditions; a package with an invalid one has none, as `condition get` says."""
    try:
        return gates.order_in(annotations)
    except PermanentError:
        return {}
