"""`pvbus task list`, `open` and `answer`: questions to people behind the conditions of package revisions."""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import click
import msgspec

from pvbus.cli.condition import (
    ONE_PLACE,
    Wanted,
    Written,
    conditions_named,
    content_option,
    readiness_line,
    refuse_content_of_folder,
    revision_named,
    with_conditions,
    write_changed,
)
from pvbus.cli.fleet import key_of, kubeconfig_option, require_served
from pvbus.cli.live import REVISION
from pvbus.cli.objectnames import Scope, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.packagefolder import PackageHome, folder_option
from pvbus.cli.reading import data_option
from pvbus.cli.subcommands import Subcommands
from pvbus.core.api.packages import PLACEHOLDER_REVISION
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.keys import TASKS, Key
from pvbus.core.kernel.tasks import Task
from pvbus.core.variants.notices import LIFECYCLE_TYPE
from pvbus.core.variants.revisions.owning import is_terminating, lifecycle_of
from pvbus.ports.cluster import Cluster, Object

OPEN_COLUMNS = ("REVISION", "TYPE", "STATUS", "OWNER", "TICKET", "DUE", "QUESTION")
ANSWERED_COLUMNS = ("REVISION", "TYPE", "WAS", "IS", "BY", "AT", "MESSAGE")
UNANSWERABLE = ("Published", "DeletionProposed")
QUESTION_CHARACTERS_MAX = 300
"""A longer one would not be shown whole where the unmet gate is."""

_output = click.option("-o", "--output", type=click.Choice(FORMATS), default="text")


class Filter(NamedTuple):
    """Which tasks to list.

    owner: only those of this owner, None for all
    overdue: whether only those whose due time is over
    answered: whether answered ones instead of open ones
    """

    owner: str | None
    overdue: bool
    answered: bool


@click.group(
    cls=Subcommands,
    short_help="List, ask and answer questions to people.",
    epilog="""\b
Examples:
  pvbus task list --owner ann
  pvbus task open default/edge.web.packagevariant-1 Certified --question "Is the site licensed?" --owner ann
  pvbus task answer default/edge.web.packagevariant-1 Certified --status True --message "until 2030"
""",
)
def task() -> None:
    """List, ask and answer questions to people.

    A task is a condition of a package revision with a question, and maybe an owner, a ticket and a due time.
    It is open until the condition is True or False. If the package has a readiness gate of this type, nobody
    proposes it before the answer is True.
    """


# ------------------------------------------------------------ list


@task.command(
    "list",
    short_help="Show the tasks of the fleet.",
    epilog="""\b
Examples:
  pvbus task list
  pvbus task list -n default --owner ann --overdue
  pvbus task list --answered -o json
  pvbus task list --folder packages/web            what people have to do before this package is ready

Exit codes: 0 shown, also if there is none; 1 the server refused; 2 bad usage.
""",
)
@click.option("-n", "--namespace", help="Only of this namespace.")
@click.option("--owner", help="Only of this owner.")
@click.option("--overdue", is_flag=True, help="Only open ones whose due time has passed.")
@click.option("--answered", is_flag=True, help="The answers so far, instead of the open tasks.")
@folder_option
@_output
@kubeconfig_option
@data_option
def list_(
    namespace: str | None,
    folder: str | None,
    owner: str | None,
    overdue: bool,
    answered: bool,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Show the open tasks of all drafts and proposals, the one that is due first on top.

    --answered shows what was answered, by whom and when, also in published revisions: each answer has a line.
    The API server knows who it was; a package has its last 50 changes, and its commit messages have all.
    """
    if overdue and answered:
        raise UsageError("--overdue is about open tasks: omit it, or omit --answered")
    if folder is not None and namespace is not None:
        raise UsageError(ONE_PLACE)
    home = PackageHome(data, kubeconfig, folder)
    revisions = asyncio.run(home.run(partial(_revisions, namespace=namespace)))
    now = datetime.now(UTC)
    asked = Filter(owner, overdue, answered)
    found = [each for revision in revisions for each in described(revision, now) if _is_shown(each, asked)]
    found.sort(key=_order)
    problems = [f"{key_of(each)}: {text}" for each in revisions for text in tasks.of(each).problems]
    if output != "text":
        emit({"tasks": found, "problems": problems}, output)
        return
    if found:
        rows = _answer_rows(found) if answered else map(_open_row, found)
        columns(ANSWERED_COLUMNS if answered else OPEN_COLUMNS, rows)
    else:
        click.echo("no answered tasks" if answered else "no open tasks")
    for problem in problems:
        click.echo(f"warning: {problem}", err=True)


async def _revisions(cluster: Cluster, namespace: str | None) -> Sequence[Object]:
    resource = await require_served(cluster, REVISION)
    listing = await cluster.list(resource, namespace)
    return sorted(filter(_is_of_its_own, listing.items), key=key_of)


def _is_of_its_own(revision: Object) -> bool:
    """Return whether a package revision is no copy of a published one, and is not being deleted."""
    is_placeholder = revision["spec"].get("revision") == PLACEHOLDER_REVISION
    return not is_placeholder and not is_terminating(revision)


def described(revision: Object, now: datetime) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a package revision as `-o json` shows them, and answers whose task was removed."""
    found = tasks.of(revision)
    present = gates.conditions_of(revision)
    lifecycle = lifecycle_of(revision)
    gated = gates.gates_of(revision)
    for type_ in dict.fromkeys((*found.tasks, *(change.type for change in found.history))):
        asked = found.tasks.get(type_)
        is_open = asked is not None and lifecycle not in UNANSWERABLE and tasks.is_open(present, type_)
        yield {
            "revision": str(key_of(revision)),
            "lifecycle": lifecycle,
            "type": type_,
            "status": tasks.status_of(present, type_) or "-",
            "gate": type_ in gated,
            **(msgspec.to_builtins(asked) if asked else {}),
            "open": is_open,
            "overdue": is_open and asked is not None and tasks.is_overdue(asked, now),
            "history": [msgspec.to_builtins(each) for each in found.history if each.type == type_],
        }


def _is_shown(each: Object, asked: Filter) -> bool:
    if asked.owner is not None and each.get("owner", "") != asked.owner:
        return False
    if asked.answered:
        return any(change.get("after") in tasks.ANSWERS for change in each["history"])
    return bool(each["overdue"] if asked.overdue else each["open"])


def _order(each: Object) -> tuple[bool, float]:
    due = each.get("due")
    return not due, tasks.moment(due).timestamp() if due else 0.0


def _open_row(each: Object) -> list[str]:
    due = f"{each['due']} (overdue)" if each["overdue"] else each.get("due", "-")
    texts = [each[name] for name in ("revision", "type", "status")]
    return [*texts, each.get("owner") or "-", each.get("ticket") or "-", due, each["question"]]


def _answer_rows(found: Sequence[Object]) -> Iterator[list[str]]:
    for each in found:
        for change in each["history"]:
            if change.get("after") in tasks.ANSWERS:
                words = [change.get(name) or "-" for name in ("before", "after", "by", "at", "message")]
                yield [each["revision"], each["type"], *words]


# ------------------------------------------------------------ open


@task.command(
    "open",
    short_help="Ask a question.",
    epilog="""\b
Examples:
  pvbus task open default/edge.web.packagevariant-1 Certified --question "Is the site licensed?" \\
      --owner ann --ticket NET-42 --due 2030-12-01

Exit codes: 0 asked (also if it was so before); 1 there is no such revision, it is no draft, it has an answer,
or the server refused; 2 bad usage.
""",
)
@object_argument("[[KIND] NAME] TYPE", (REVISION,), required=False)
@namespace_option
@folder_option
@click.option("--question", required=True, help="What a person has to find out or decide.")
@click.option("--owner", default="", help="The person to answer: a name for people. It gives no right.")
@click.option("--ticket", default="", help="Where else it is discussed: a number or an address.")
@click.option("--due", default="", help="Until when: 2030-12-01 (its end in UTC), or 2030-12-01T12:00:00Z.")
@click.option(
    "--again", is_flag=True, help="Ask although there is an answer: the condition is Unknown again."
)
@_output
@kubeconfig_option
@data_option
def open_(
    words: tuple[str, ...],
    namespace: str | None,
    folder: str | None,
    question: str,
    owner: str,
    ticket: str,
    due: str,
    again: bool,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Ask a question about a draft: its condition TYPE is Unknown until somebody answers.

    The task is stored with the package in git. One that is open already gets this question and owner.
    """
    key, type_ = _condition_named(words, Scope(namespace, data, kubeconfig), folder)
    if type_ == LIFECYCLE_TYPE:
        raise UsageError(f"{type_} is the condition of the lifecycle in events: choose another type")
    asked = _task_named(question, owner, ticket, due)
    wanted = Wanted(key, [_condition(tasks.asked(type_, asked))])

    def change(revision: Object) -> Object:
        _refuse_answered(wanted, revision, again, "asks it anew")
        _refuse_too_many(wanted, revision)
        spec = revision.get("spec") or {}
        annotations = tasks.with_task(tasks.kptfile_annotations(revision), type_, asked)
        metadata = {**(spec.get("packageMetadata") or {}), "annotations": annotations}
        return with_conditions({**revision, "spec": {**spec, "packageMetadata": metadata}}, wanted.conditions)

    home = PackageHome(data, kubeconfig, folder)
    written = asyncio.run(home.run(partial(write_changed, wanted=wanted, change=change)))
    if tasks.of(written.revision).tasks.get(type_) != asked:
        raise PermanentError(
            f"{key}: the server set the condition, but did not store the question: it takes the right to "
            "update packagerevisions"
        )
    if type_ not in gates.gates_of(written.revision):
        click.echo(
            f"note: {type_} is no readiness gate of {key}, so nothing waits for the answer; it is one when "
            "spec.readinessGates of the PackageRevision has it, or info.readinessGates of the Kptfile",
            err=True,
        )
    _report(wanted, written, output, "asked" if written.changed else "already asked")


def _refuse_too_many(wanted: Wanted, revision: Object) -> None:
    """Raise PermanentError if a package has so many tasks already that one more would not count."""
    there = tasks.of(revision).tasks
    if len(there) >= tasks.TASKS_MAX and wanted.conditions[0]["type"] not in there:
        raise PermanentError(
            f"{wanted.key} has {len(there)} tasks, and no more count: remove some from the annotation "
            f"{TASKS} of its Kptfile"
        )


def _task_named(question: str, owner: str, ticket: str, due: str) -> Task:
    """Return the task that the options describe. Raises UsageError."""
    if len(question) > QUESTION_CHARACTERS_MAX:
        more = "put the rest into the ticket"
        raise UsageError(
            f"--question has {len(question)} characters, at most {QUESTION_CHARACTERS_MAX} fit: {more}"
        )
    try:
        if due and tasks.moment(due) < datetime.now(UTC):
            raise UsageError(f"--due {due} has passed already")
        return Task(question=question.strip(), owner=owner, ticket=ticket, due=due)
    except ValueError as error:
        hint = f"--due: {error}" if due and question.strip() else str(error)
        raise UsageError(hint) from None


def _condition_named(words: Sequence[str], scope: Scope, folder: str | None) -> tuple[Key, str]:
    """Return the package revision and the type of the condition. Raises UsageError."""
    key, rest = revision_named(words, scope, folder, rest_max=1)
    if not rest:
        raise UsageError(f"{key}: the TYPE of the condition is missing: give it after the name")
    return key, rest[0]


def _condition(condition: dict[str, str]) -> Object:
    """Return a condition if it can be one. Raises UsageError."""
    assignment = f"{condition['type']}={condition['status']}"
    return conditions_named([assignment], condition["reason"], condition.get("message", ""))[0]


# ------------------------------------------------------------ answer


@task.command(
    "answer",
    short_help="Answer a question.",
    epilog="""\b
Examples:
  pvbus task answer default/edge.web.packagevariant-1 Certified --status True
  pvbus task answer default/edge.web.packagevariant-1 Certified --status False --message "no licence" --again

Exit codes: 0 answered (also if it was so before); 1 there is no such revision or task, it is no draft,
somebody else has answered, the server refused, or with --content the draft has other files; 2 bad usage.
""",
)
@object_argument("[[KIND] NAME] TYPE", (REVISION,), required=False)
@namespace_option
@folder_option
@click.option("--status", required=True, type=click.Choice(tasks.ANSWERS, case_sensitive=False))
@click.option("--message", default="", help="Why, in a sentence.")
@click.option("--again", is_flag=True, help="Replace an answer. Both stay in the history.")
@content_option
@_output
@kubeconfig_option
@data_option
def answer(
    words: tuple[str, ...],
    namespace: str | None,
    folder: str | None,
    status: str,
    message: str,
    again: bool,
    content: str,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Answer the question behind a condition of a draft.

    The package store records who answered, as the API server knows it, when, and the old and new status: in
    the package, and in its git history. Anybody who can write conditions can answer, whoever the owner is.
    With --content the answer is refused if the draft's files are not those that you have looked at.
    """
    key, type_ = _condition_named(words, Scope(namespace, data, kubeconfig), folder)
    refuse_content_of_folder(content, folder)
    wanted = answer_wanted(key, type_, status, message, content)
    work = partial(write_answer, wanted=wanted, again=again)
    written = asyncio.run(PackageHome(data, kubeconfig, folder).run(work))
    found = tasks.of(written.revision)
    last = found.last(type_)
    if last is None or last.after != status:
        click.echo("warning: this server does not record who has answered", err=True)
    elif written.changed and found.tasks[type_].owner not in ("", last.by):
        owner = found.tasks[type_].owner
        click.echo(f"warning: {owner} was asked; the answer is recorded as that of {last.by}", err=True)
    _report(wanted, written, output, answer_words(written, type_, status))


def answer_wanted(key: Key, type_: str, status: str, message: str, content: str = "") -> Wanted:
    """Return what an answer writes. content: see `Wanted`. Raises UsageError."""
    return Wanted(key, [_condition(tasks.answer(type_, status, message))], content=content)


async def write_answer(cluster: Cluster, wanted: Wanted, *, again: bool) -> Written:
    """Answer a task. again: whether to replace an answer. Raises PermanentError, TransientError."""

    def change(revision: Object) -> Object:
        _refuse_unasked(wanted, revision)
        _refuse_answered(wanted, revision, again, "replaces it, and both stay in the history")
        return with_conditions(revision, wanted.conditions)

    return await write_changed(cluster, wanted, change)


def answer_words(written: Written, type_: str, status: str) -> str:
    """Return the answer, and who gave it when."""
    last = tasks.of(written.revision).last(type_)
    by = f" (by {last.by} at {last.at})" if last else ""
    return f"{status}{by}" if written.changed else f"already {status}{by}"


def _refuse_unasked(wanted: Wanted, revision: Object) -> None:
    """Raise PermanentError if a condition is no task."""
    found = tasks.of(revision)
    type_ = str(wanted.conditions[0]["type"])
    if type_ in found.tasks:
        return
    if found.problems:
        raise PermanentError(f"{wanted.key}: {found.problems[0]}; pvbus task open asks the question anew")
    there = f"the tasks are {', '.join(sorted(found.tasks))}" if found.tasks else "it has no tasks"
    raise PermanentError(
        f"{wanted.key}: {type_} is no task, {there}; pvbus condition set sets other conditions"
    )


def _refuse_answered(wanted: Wanted, revision: Object, again: bool, what: str) -> None:
    """Raise PermanentError if there is another answer already.

    again: whether the user knows that
    """
    (condition,) = wanted.conditions
    type_ = str(condition["type"])
    present = gates.conditions_of(revision)
    if again or condition in present or tasks.is_open(present, type_):
        return
    last = tasks.of(revision).last(type_)
    who = f", by {last.by} at {last.at}" if last else ""
    said = f': "{last.message}"' if last and last.message else ""
    status = tasks.status_of(present, type_)
    raise PermanentError(f"{wanted.key}: {type_} is {status} already{who}{said}. --again {what}")


def _report(wanted: Wanted, written: Written, output: str, words: str) -> None:
    (condition,) = wanted.conditions
    if output != "text":
        now = datetime.now(UTC)
        (found,) = (each for each in described(written.revision, now) if each["type"] == condition["type"])
        emit({"changed": written.changed, **found}, output)
        return
    click.echo(f"{wanted.key}: {condition['type']} is {words}")
    click.echo(readiness_line(written.revision))
