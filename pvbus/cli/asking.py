"""The questions to people in a variant's package revisions, for `pvbus explain`: from the public events."""

import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from pvbus.cli.datafolder import DEFAULT
from pvbus.cli.reading import read_rows
from pvbus.core.kernel import tasks
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import LATEST
from pvbus.core.kernel.tasks import OPEN_STATES
from pvbus.ports.bus import Bus
from pvbus.telemetry.terminal import one_line

Document = dict[str, Any]
REVISION = "PackageRevision"


def options_of(data: str, kubeconfig: str | None) -> str:
    """Return the options that another command needs to ask the same API server."""
    given = (("--data", data if data != DEFAULT else ""), ("--kubeconfig", kubeconfig))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


async def tasks_of(bus: Bus, namespace: str, revisions: Iterable[str], hints: str) -> list[Document]:
    """Return the tasks of package revisions: the open ones first, the one that is due first on top.

    A revision has its events in one partition.

    hints: the options of the command that answers a task
    """
    now = datetime.now(UTC).timestamp()
    found: list[Document] = []
    for name in dict.fromkeys(revisions):
        key = str(Key(namespace, name))
        rows = await read_rows(bus, LATEST, key=key)
        prefix = f"{REVISION}|{key}|"
        events = [
            msgspec.json.decode(v, type=ConditionEvent) for k, v in rows.items() if k.startswith(prefix)
        ]
        found += [_described(event, now, hints) for event in events if event.task.question and not event.last]
    return sorted(found, key=_order)


def _described(event: ConditionEvent, now: float, hints: str) -> Document:
    task, condition = event.task, event.condition
    revision, is_open = str(Key(event.namespace, event.name)), task.state in OPEN_STATES
    due = tasks.due_seconds(task.due)
    return {
        "revision": revision,
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "since": condition.last_transition_time or "",
        **{name: getattr(task, name) for name in ("question", "owner", "ticket", "due", "state")},
        "blocks": list(task.blocks),
        "overdue": is_open and due is not None and due < now,
        "answeredBy": task.answered_by,
        "answeredAt": task.answered_at,
        "answer": f"{tasks.answer_command(revision, condition.type)}{hints}" if is_open else "",
    }


def _order(task: Document) -> tuple[bool, bool, float, str, str]:
    due = tasks.due_seconds(task["due"])
    return not task["answer"], due is None, due or 0.0, task["revision"], task["type"]


def task_lines(found: Iterable[Document]) -> Iterator[str]:
    """Yield the question, the people and the command that answers it; or the answer.

    A package's texts stay on one line.
    """
    for task in found:
        yield f"  task {one_line(task['type'])} of {task['revision']}: {_standing(task)}"
        due = f"due {task['due']}{', overdue' if task['overdue'] else ''}" if task["due"] else ""
        notes = ", ".join(filter(None, (task["ticket"], due)))
        whom = f"asks {task['owner']}" if task["owner"] else "asks"
        yield one_line(f"    {whom}: {task['question']}{f' ({notes})' if notes else ''}")
        if task["answer"] and task["reason"] != tasks.ASKED:
            yield one_line(f"    {task['reason']}: {task['message']}")
        if task["answer"]:
            yield one_line(f"    to answer it with True or False: {task['answer']}")


def _standing(task: Document) -> str:
    since = f" since {task['since']}" if task["since"] else ""
    match task["state"]:
        case tasks.TaskState.ANSWERED:
            by = f" by {task['answeredBy']} at {task['answeredAt']}" if task["answeredBy"] else since
            unmet = _gates(task, "stays", "stay", "unmet") if task["status"] != "True" else ""
            said = f": {task['message']}" if task["message"] else ""
            return one_line(f"answered {task['status']}{by}{unmet}{said}")
        case tasks.TaskState.LAPSED:
            return "not answered before the revision was published"
        case tasks.TaskState.PROPOSED:
            first = "; the revision is Proposed: reject it before the answer"
        case _:
            first = ""
    waits = _gates(task, "waits", "wait", "for it") or "; no readiness gate waits for it"
    return one_line(f"open{since}{waits}{first}")


def _gates(task: Document, one: str, many: str, words: str) -> str:
    """Return a sentence on the gates that a task blocks, "" if there are none."""
    names = task["blocks"]
    if not names:
        return ""
    is_one = len(names) == 1
    return f"; readiness gate{'' if is_one else 's'} {', '.join(names)} {one if is_one else many} {words}"
