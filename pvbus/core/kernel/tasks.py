"""Tasks: the questions to people that stand behind conditions of a package, and the history of the answers.

A condition in a Kptfile has four fields, and kpt refuses further ones. So a task is an entry of the Kptfile's
annotation TASKS, under its condition's type: it is stored in git with the package, and a PackageRevision
shows it in spec.packageMetadata. Its answer is the condition's status: a task is open until that is True or
False.

The annotation TASK_HISTORY has each change of such a condition. The package store alone writes it, from the
user whom the API server has authenticated.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.kernel.keys import TASK_HISTORY, TASKS
from pvbus.core.kernel.messages import part

Object = Mapping[str, Any]
HISTORY_MAX = 50
"""Changes in the annotation, 35 kB at most; the commit messages of the package have all of them."""
TASKS_MAX = 100
"""Questions of one package: each is a public event, and a line for a person to read. More hide the others."""
ANSWERS = ("True", "False")
ASKED = "Asked"
ANSWERED = "Answered"
_EXAMPLE = '{"Certified": {"question": "Is it licensed?", "owner": "ann"}}'

_json = msgspec.json.Encoder(order="sorted")


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to people.

    owner: the name of who should answer
    due: RFC 3339 with a zone, or a date
    """

    question: str
    owner: str = ""
    ticket: str = ""
    due: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a question without text and an unknown form of time."""
        if not self.question.strip():
            raise ValueError("a task needs a question")
        if self.due:
            moment(self.due)


class Asked(Protocol):
    """A question, of a package or of an event."""

    @property
    def question(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def ticket(self) -> str: ...

    @property
    def due(self) -> str: ...


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a task's condition.

    at: the time of the change, RFC 3339
    by: the user who changed it
    before, after: the statuses before and after, "" without the condition
    """

    type: str
    at: str
    by: str
    before: str = ""
    after: str = ""
    message: str = ""

    def __str__(self) -> str:
        why = f" ({self.message})" if self.message else ""
        return f"{self.before or 'absent'} to {self.after or 'absent'} by {self.by} at {self.at}{why}"


class Found(NamedTuple):
    """What the annotations of a package say.

    tasks: condition type -> the task
    history: the recorded changes that can be read
    problems: why the rest cannot be read
    """

    tasks: Mapping[str, Task]
    history: tuple[Change, ...] = ()
    problems: tuple[str, ...] = ()

    def last(self, type_: str) -> Change | None:
        """Return the last recorded change of a condition."""
        return next((change for change in reversed(self.history) if change.type == type_), None)


def moment(text: str) -> datetime:
    """Return a due time; that of a date is the end of its day in UTC. Raises ValueError."""
    try:
        due = datetime.fromisoformat(text)
    except ValueError:
        example = "2030-12-01, or 2030-12-01T12:00:00Z"
        raise ValueError(f"{part(text)} is no due time such as {example}") from None
    if "T" not in text and " " not in text:
        return datetime.combine(due.date(), time(23, 59, 59), UTC)
    if due.tzinfo is None:
        raise ValueError(f"{text} has no time zone: end it with Z or an offset such as +02:00")
    return due


def read(annotations: Mapping[str, str]) -> Found:
    """Read the annotations of a Kptfile. An invalid entry hides no other one."""
    tasks: dict[str, Task] = {}
    problems: list[str] = []
    asked = _mapping(annotations, problems)
    if len(asked) > TASKS_MAX:
        problems.append(f"the annotation {TASKS} has {len(asked)} tasks, the first {TASKS_MAX} count")
    for type_, raw in islice(asked.items(), TASKS_MAX):
        try:
            tasks[type_] = msgspec.convert(raw, Task)
        except msgspec.ValidationError as error:
            problems.append(f"the task {part(type_)} in the annotation {TASKS} is invalid: {error}")
    return Found(tasks, _history(annotations, problems), tuple(problems))


def of(revision: Object) -> Found:
    """Read the tasks of a PackageRevision."""
    return read(kptfile_annotations(revision))


def kptfile_annotations(revision: Object) -> Mapping[str, str]:
    """Return the annotations of the Kptfile, as a PackageRevision shows them."""
    metadata = (revision.get("spec") or {}).get("packageMetadata") or {}
    return metadata.get("annotations") or {}


def _mapping(annotations: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    text = annotations.get(TASKS)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        problems.append(f"the annotation {TASKS} is not like {_EXAMPLE}: {error}")
        return {}


def _history(annotations: Mapping[str, str], problems: list[str]) -> tuple[Change, ...]:
    text = annotations.get(TASK_HISTORY)
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[Change, ...])
    except (msgspec.MsgspecError, RecursionError) as error:
        problems.append(f"the annotation {TASK_HISTORY} cannot be read, git has the history: {error}")
        return ()


def with_task(annotations: Mapping[str, str], type_: str, task: Task) -> dict[str, str]:
    """Return annotations with a task. An annotation that is no JSON object is replaced."""
    others = _mapping(annotations, [])
    return {**annotations, TASKS: _json.encode({**others, type_: task}).decode()}


def annotation_of(asked: Mapping[str, Asked]) -> dict[str, str]:
    """Return the annotation that asks these questions, {} for none."""
    if not asked:
        return {}
    tasks = {
        type_: Task(question=task.question, owner=task.owner, ticket=task.ticket, due=task.due)
        for type_, task in asked.items()
    }
    return {TASKS: _json.encode(tasks).decode()}


# ---------------------------------------------------------------- open and answered


def status_of(conditions: Iterable[Object], type_: str) -> str:
    """Return the status of a condition, "" if there is none. Of several of its type none is an answer."""
    statuses = [
        str(condition.get("status", "")) for condition in conditions if condition.get("type") == type_
    ]
    return statuses[0] if len(statuses) == 1 else "Unknown" if statuses else ""


class TaskState(StrEnum):
    """How a task stands: `state` of `pvbus.core.kernel.records.EventTask`, which says what each means."""

    OPEN = "open"
    PROPOSED = "proposed"
    ANSWERED = "answered"
    LAPSED = "lapsed"


OPEN_STATES = frozenset({TaskState.OPEN, TaskState.PROPOSED})


def state_of(status: str, lifecycle: str) -> TaskState:
    """Return how a task stands.

    status: the status of its condition
    lifecycle: the lifecycle of its revision
    """
    if status in ANSWERS:
        return TaskState.ANSWERED
    if lifecycle in PUBLISHED:
        return TaskState.LAPSED
    return TaskState.PROPOSED if lifecycle == "Proposed" else TaskState.OPEN


def answer_command(revision: str, type_: str) -> str:
    """Return the command that answers a task. A type comes from a package, and may hold anything."""
    return f"pvbus task answer {shlex.quote(revision)} {shlex.quote(type_)} --status True"


def is_open(conditions: Iterable[Object], type_: str) -> bool:
    """Return whether nobody has answered yet."""
    return status_of(conditions, type_) not in ANSWERS


def is_overdue(task: Asked, now: datetime) -> bool:
    return bool(task.due) and moment(task.due) < now


def due_seconds(due: str) -> float | None:
    """Return a due time in seconds since 1970; None without one, or for a form of another release."""
    try:
        return moment(due).timestamp() if due else None
    except (ValueError, OverflowError):
        return None


def asked(type_: str, task: Asked) -> dict[str, str]:
    """Return the condition of an open task: whoever meets the unmet gate reads the question."""
    notes = ", ".join(filter(None, (task.ticket, f"due {task.due}" if task.due else "")))
    who = f"{task.owner} is asked: " if task.owner else ""
    message = f"{who}{task.question}{f' ({notes})' if notes else ''}"
    return {"type": type_, "status": "Unknown", "reason": ASKED, "message": message}


def questions(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return who is asked what, by condition type, as the condition of an open task says it."""
    return {type_: asked(type_, task)["message"] for type_, task in read(annotations).tasks.items()}


def answer(type_: str, status: str, message: str) -> dict[str, str]:
    """Return the condition of an answered task."""
    condition = {"type": type_, "status": status, "reason": ANSWERED}
    return {**condition, "message": message} if message else condition


# ---------------------------------------------------------------- the history, which the package store writes


class State(NamedTuple):
    """What a Kptfile has of tasks. conditions: all its conditions."""

    annotations: Mapping[str, str]
    conditions: Sequence[Object]


def changes(before: State, after: State, by: str, at: str) -> tuple[Change, ...]:
    """Return the changes of the conditions that are tasks before or after.

    by: the user who made the changes
    at: the time of the changes, RFC 3339
    """
    types = {**read(before.annotations).tasks, **read(after.annotations).tasks}
    changed: list[Change] = []
    for type_ in types:
        old, new = (_said(state.conditions, type_) for state in (before, after))
        if old != new:
            (was, _), (status, message) = old, new
            changed.append(Change(type=type_, at=at, by=by, before=was, after=status, message=part(message)))
    return tuple(changed)


def _said(conditions: Sequence[Object], type_: str) -> tuple[str, str]:
    """Return the status of a condition, and its message."""
    messages = [
        str(condition.get("message", "")) for condition in conditions if condition.get("type") == type_
    ]
    return status_of(conditions, type_), messages[0] if messages else ""


def history(annotations: Mapping[str, str], added: Sequence[Change]) -> str:
    """Return the annotation TASK_HISTORY with more changes, "" if there are none at all."""
    text = annotations.get(TASK_HISTORY, "")
    if not added:
        return text
    return _json.encode([*_history(annotations, []), *added][-HISTORY_MAX:]).decode()
