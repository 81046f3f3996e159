"""`pvbus condition set` and `get`: the conditions of one package revision, and whether it is ready."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from pvbus.cli.fleet import existing, files_of, kubeconfig_option, persist, require_served
from pvbus.cli.live import REVISION
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.packagefolder import PackageHome, folder_key, folder_option
from pvbus.cli.reading import data_option
from pvbus.cli.subcommands import Subcommands
from pvbus.core.api.kptfile import STATUSES
from pvbus.core.errors import PermanentError, PvbusError, UsageError
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import MESSAGE_CHARACTERS_MAX
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.core.variants.revisions.signatures import shown_digest
from pvbus.core.variants.revisions.validators import SET_BY, is_validators
from pvbus.ports.cluster import Cluster, Object

COLUMNS = ("TYPE", "STATUS", "GATE", "REASON", "MESSAGE")
WATCH_SECONDS = 1.0  # between two looks: who waits for a condition waits for people, and programs of minutes
OWN = ("Rendered", "RenderIdempotent")
"""Conditions of the package store: it sets them when it runs the pipeline."""
ONE_PLACE = "--folder names a package without a server, -n a namespace of one: leave one of them out"

content_option = click.option(
    "--content",
    metavar="DIGEST",
    default="",
    help="Only if the draft still has the files that pvbus diff has shown with this digest.",
)

_TYPE = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


class Wanted(NamedTuple):
    """What the command line asks for: conditions of one package revision.

    key: the package revision
    conditions: the conditions to set
    in_order: whether to set one only if all that it comes after are True
    content: the digest of the files that the person has looked at, "" for whatever files there are
    """

    key: Key
    conditions: list[Object]
    in_order: bool = False
    content: str = ""


class Written(NamedTuple):
    """A package revision after a write.

    revision: the package revision
    changed: whether the write changed it
    """

    revision: Object
    changed: bool


_output = click.option("-o", "--output", type=click.Choice(FORMATS), default="text")


@click.group(
    cls=Subcommands,
    short_help="Show and set conditions of a package revision.",
    epilog="""\b
Examples:
  pvbus condition get default/edge.web.packagevariant-1
  pvbus condition set default/edge.web.packagevariant-1 Certified=True
""",
)
def condition() -> None:
    """Show and set the conditions of one package revision, as people and programs report on it.

    A package names in its readiness gates which conditions must be True. Until all are, `pvbus propose` and
    `pvbus approve` refuse it; in a deployment repository the API server does, too.
    """


@condition.command(
    "set",
    short_help="Set conditions, and leave all others.",
    epilog="""\b
Examples:
  pvbus condition set default/edge.web.packagevariant-1 Certified=True
  pvbus condition set default/edge.web.packagevariant-1 Certified=False --reason NoLicense \\
      --message "the licence of site asia-01 has expired"
  pvbus condition set default/edge.web.packagevariant-1 Deployed=True --in-order
  pvbus condition set default/edge.web.packagevariant-1 Certified=True --content DIGEST   (see pvbus diff)
  pvbus condition set --folder packages/web Certified=True          the Kptfile of a folder, without a server
  kubectl wait packagerevision/edge.web.packagevariant-1 --for=condition=Certified

Exit codes: 0 set (also if it was so before); 1 there is no such revision, it is no draft, the server refused,
with --in-order a condition comes after one that is not True, or with --content the draft has other files;
2 bad usage.
""",
)
@object_argument("[[KIND] NAME] TYPE=STATUS...", (REVISION,), required=False)
@namespace_option
@folder_option
@click.option("--reason", default="", help="Why, in one CamelCase word, for programs.")
@click.option("--message", default="", help="Why, in a sentence, for people.")
@click.option("--in-order", is_flag=True, help="Only if all that the conditions come after is True.")
@content_option
@_output
@kubeconfig_option
@data_option
def set_(
    words: tuple[str, ...],
    namespace: str | None,
    folder: str | None,
    reason: str,
    message: str,
    in_order: bool,
    content: str,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Set conditions of a draft to True, False or Unknown.

    Only the types that are named change: who writes another one in the same moment loses nothing. A former
    reason and message go. Conditions are stored in the package's Kptfile, so git has their history.

    With --in-order a condition is set to True or False only on a revision in which all that it comes after
    is True; Unknown is always set.

    A condition is a statement on the draft's files, and becomes Unknown when they change. With --content it
    is set only if the files still are those that you have looked at; without, it is about whatever files the
    draft has at that moment.

    With --folder the package is in a folder, and no server is asked: the Kptfile is edited, and its comments
    stay.
    """
    key, assignments = revision_named(words, Scope(namespace, data, kubeconfig), folder)
    if not assignments:
        raise UsageError(f"{key}: what to set is missing: TYPE=STATUS, for example Certified=True")
    refuse_content_of_folder(content, folder)
    wanted = Wanted(key, conditions_named(assignments, reason, message), in_order, content)
    written = asyncio.run(PackageHome(data, kubeconfig, folder).run(partial(write, wanted=wanted)))
    if output != "text":
        emit({"changed": written.changed, **document_of(wanted.key, written.revision, {})}, output)
        return
    already = "" if written.changed else " already"
    for each in wanted.conditions:
        click.echo(f"{wanted.key}: {each['type']} is{already} {each['status']}")
    click.echo(readiness_line(written.revision))


@condition.command(
    "get",
    short_help="Show conditions, and whether the revision is ready.",
    epilog="""\b
Examples:
  pvbus condition get default/edge.web.packagevariant-1
  pvbus condition get default/edge.web.packagevariant-1 Certified -o json
  pvbus condition get default/edge.web.packagevariant-1 Certified --watch -o json   # a line per change
  pvbus condition get --folder packages/web

Exit codes: 0 shown, ready or not; 1 there is no such revision, or it has no condition or gate of a type
that is named; 2 bad usage.
""",
)
@object_argument("[[KIND] NAME] [TYPE...]", (REVISION,), required=False)
@namespace_option
@folder_option
@click.option("-w", "--watch", is_flag=True, help="Show them again when they change, until Ctrl-C.")
@_output
@kubeconfig_option
@data_option
def get(
    words: tuple[str, ...],
    namespace: str | None,
    folder: str | None,
    watch: bool,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Show the conditions of a package revision, what each waits for, and which gates are not met.

    A gate without a condition has the status `-`. A package may declare that a condition comes after others
    (annotation pvbus.dev/condition-order of its Kptfile): the program that sets it begins when those are
    True.
    """
    key, types = revision_named(words, Scope(namespace, data, kubeconfig), folder)

    async def show(cluster: Cluster) -> None:
        last = None
        while True:
            revision = await persist(partial(existing, cluster, REVISION, key))
            found = _Shown.of(key, revision, types)
            if found != last:
                found.print(output, is_line=watch)
            if not watch:
                return
            last = found
            await asyncio.sleep(WATCH_SECONDS)

    asyncio.run(PackageHome(data, kubeconfig, folder).run(show))


class _Shown(NamedTuple):
    """What `get` shows of a revision.

    document: the answer of `-o json` and `-o yaml`
    readiness: whether the revision is ready, in a sentence
    """

    document: dict[str, Any]
    readiness: str

    @classmethod
    def of(cls, key: Key, revision: Object, types: Sequence[str]) -> "_Shown":
        """Raises: PermanentError if a type is neither a condition nor a gate."""
        document = document_of(key, revision, gates.predecessors(revision))
        known = {each["type"] for each in document["conditions"]}
        if missing := [type_ for type_ in types if type_ not in known]:
            there = f"there are {', '.join(sorted(known))}" if known else "it has none"
            raise PermanentError(f"{key}: no condition or gate {', '.join(missing)}; {there}")
        shown = [each for each in document["conditions"] if not types or each["type"] in types]
        return cls({**document, "conditions": shown}, readiness_line(revision))

    def print(self, output: str, *, is_line: bool) -> None:
        """Print it.

        is_line: whether JSON is one line, and YAML a document, as programs read one state after the other
        """
        if output == "json" and is_line:
            click.echo(json.dumps(self.document, ensure_ascii=False))
            return
        if output == "yaml" and is_line:
            click.echo("---")
        if output != "text":
            emit(self.document, output)
            return
        columns(COLUMNS, map(_row, self.document["conditions"]))
        for line in _waiting_lines(self.document["conditions"]):
            click.echo(line)
        click.echo(self.readiness)


# ------------------------------------------------------------ the arguments


def revision_named(
    words: Sequence[str], scope: Scope, folder: str | None, *, rest_max: int | None = None
) -> tuple[Key, tuple[str, ...]]:
    """Return the key of a package revision, and the words after its name. Raises UsageError.

    folder: the folder of a package, which is named in place of a revision; None for none
    """
    if folder is not None:
        if scope.namespace is not None:
            raise UsageError(ONE_PLACE)
        if rest_max is not None and len(words) > rest_max:
            raise UsageError(f'"{words[rest_max]}" is too much: with --folder no package revision is named')
        return folder_key(folder), tuple(words)
    revision = named(words, (REVISION,), scope, rest_max=rest_max)
    return revision.key, revision.rest


def refuse_content_of_folder(content: str, folder: str | None) -> None:
    """Raise UsageError if a content is named of a folder: pvbus diff shows only what a server has."""
    if content and folder is not None:
        raise UsageError(
            "--content is for a revision on a server, where others may change the files meanwhile"
        )


def conditions_named(assignments: Sequence[str], reason: str, message: str) -> list[Object]:
    """Return the conditions that the arguments describe. Raises UsageError."""
    if reason and not _REASON.fullmatch(reason):
        raise UsageError(f'--reason "{reason}" is not one CamelCase word: put sentences into --message')
    if len(message) > MESSAGE_CHARACTERS_MAX:
        raise UsageError(f"--message has {len(message)} characters, at most {MESSAGE_CHARACTERS_MAX} fit")
    why = {key: text for key, text in (("reason", reason), ("message", message)) if text}
    found = [{"type": type_, "status": status, **why} for type_, status in map(_assigned, assignments)]
    types = [each["type"] for each in found]
    if twice := sorted({type_ for type_ in types if types.count(type_) > 1}):
        raise UsageError(f"{', '.join(twice)} is given twice: each type has one status")
    return found


def _assigned(text: str) -> tuple[str, str]:
    type_, sign, given = text.partition("=")
    status = given.capitalize()
    if not sign:
        raise UsageError(f'"{text}" is no TYPE=STATUS, for example Certified=True')
    if not _TYPE.fullmatch(type_):
        raise UsageError(f'"{type_}" cannot be the type of a condition: letters, digits, "-", "_" and "."')
    if status not in STATUSES:
        raise UsageError(f'"{text}": a status is {", ".join(STATUSES[:-1])} or {STATUSES[-1]}')
    if is_validators(type_):
        raise UsageError(f"{type_} {SET_BY}")
    if type_ in OWN:
        raise UsageError(f"{type_} is set by the package store when it runs the pipeline; only it may set it")
    return type_, status


# ------------------------------------------------------------ the work


async def write(cluster: Cluster, wanted: Wanted) -> Written:
    """Set conditions by type, anew after each conflict. Raises PermanentError, TransientError."""

    def change(revision: Object) -> Object:
        if wanted.in_order:
            check_order(wanted, revision)
        return with_conditions(revision, wanted.conditions)

    return await write_changed(cluster, wanted, change)


def check_order(wanted: Wanted, revision: Object) -> None:
    """Raise PermanentError if a condition comes after one that is not True.

    Unknown may be set at any time.
    """
    after, present = gates.predecessors(revision), gates.conditions_of(revision)
    for each in wanted.conditions:
        waiting = gates.awaited(after, present, each["type"]) if each["status"] != "Unknown" else []
        if waiting:
            why = ", ".join(map(str, waiting))
            raise PermanentError(
                f"{wanted.key}: {each['type']} is not set, as it comes after {why}", reason="NotEngaged"
            )


def with_conditions(revision: Object, wanted: Sequence[Object]) -> Object:
    """Return a package revision with some conditions set by type."""
    conditions = gates.merged(gates.conditions_of(revision), wanted)
    return {**revision, "status": {**(revision.get("status") or {}), "conditions": conditions}}


async def write_changed(cluster: Cluster, wanted: Wanted, change: Callable[[Object], Object]) -> Written:
    """Change a draft, anew after each conflict. Raises PermanentError, TransientError.

    wanted: the conditions that the draft has afterwards
    change: returns the changed revision; called with each revision that is read
    """

    async def attempt() -> Written:
        revision = await existing(cluster, REVISION, wanted.key)
        changed = change(revision)
        if wanted.content:
            await check_content(cluster, wanted)
        if _same(revision, changed):
            return Written(revision, changed=False)
        lifecycle = lifecycle_of(revision)
        types = {str(each["type"]) for each in wanted.conditions}
        is_open = lifecycle == "Proposed" and types <= gates.open_on_proposals(revision)
        if lifecycle != "Draft" and not is_open:
            then = ": reject it first (kubectl, or pvbus reject)" if lifecycle == "Proposed" else ""
            raise PermanentError(f"{wanted.key} is {lifecycle}, and only a Draft's conditions change{then}")
        answer = await _update(cluster, changed)
        stored = gates.conditions_of(answer)
        if lost := [str(each["type"]) for each in wanted.conditions if each not in stored]:
            raise PermanentError(
                f"{wanted.key}: the server took the write, but did not set {', '.join(lost)}"
            )
        return Written(answer, changed=True)

    return await persist(attempt)


async def check_content(cluster: Cluster, wanted: Wanted) -> None:
    """Raise PermanentError if the draft's files have changed since the person looked at them.

    The revision was read before, and its resourceVersion is the precondition of the write: a save in between
    is a conflict.
    """
    stored = await content_of(cluster, wanted.key)
    if stored != wanted.content:
        raise PermanentError(
            f"the files of {wanted.key} have changed since you looked at them: their content is {stored}, "
            f"and no longer {wanted.content}. Nothing was set: look again with pvbus diff",
            reason="ContentChanged",
        )


async def content_of(cluster: Cluster, key: Key) -> str:
    """Return the digest of what a condition is a statement on. Raises PermanentError without the files."""
    files = await files_of(cluster, key.namespace, key.name)
    return shown_digest(files["spec"].get("resources") or {})


def _same(one: Object, other: Object) -> bool:
    """Compare two package revisions; without conditions is the same as with none."""
    return one["spec"] == other["spec"] and gates.conditions_of(one) == gates.conditions_of(other)


async def _update(cluster: Cluster, revision: Object) -> Object:
    """Write a revision; its status alone for who may not write the rest. Porch's server has no such right."""
    resource = await require_served(cluster, REVISION)
    try:
        return await cluster.update(resource, revision)
    except PermanentError as error:
        if error.reason != "Forbidden":
            raise
        try:
            return await cluster.update(resource, revision, subresource="status")
        except PvbusError as other:
            is_forbidden = isinstance(other, PermanentError) and other.reason == "Forbidden"
            if is_forbidden or ": 404 " in str(other):
                raise error from other
            raise


# ------------------------------------------------------------ the answer


def document_of(key: Key, revision: Object, after: gates.Order) -> dict[str, Any]:
    """Return the answer of `-o json` and `-o yaml`.

    after: the order of conditions to show; empty for the answer of a write
    """
    wanted = gates.gates_of(revision)
    steps = gates.steps_in(tasks.kptfile_annotations(revision), wanted)
    present = gates.conditions_of(revision)
    unmet = gates.unmet_of(revision)
    reported = {str(each.get("type")) for each in present}
    missing = [{"type": type_} for type_ in dict.fromkeys((*wanted, *after)) if type_ not in reported]
    return {
        "revision": str(key),
        "lifecycle": lifecycle_of(revision),
        "ready": not unmet,
        "unmetGates": [each._asdict() for each in unmet],
        "conditions": [_described(each, wanted, steps, after, present) for each in (*present, *missing)],
    }


def _described(
    each: gates.Object,
    wanted: Sequence[str],
    steps: Mapping[str, str],
    after: gates.Order,
    present: Sequence[gates.Object],
) -> dict[str, Any]:
    type_ = str(each.get("type"))
    found: dict[str, Any] = {**each, "gate": type_ in wanted}
    found |= {"gateStep": steps[type_]} if type_ in steps else {}
    if type_ in after:
        waiting = gates.awaited(after, present, type_)
        found |= {"after": list(after[type_]), "engaged": not waiting}
        found |= {"waitsFor": [str(one) for one in waiting]} if waiting else {}
    return found


def _row(each: Object) -> list[str]:
    texts = [str(each.get(field) or "-") for field in ("type", "status", "reason", "message")]
    gate = each.get("gateStep", "yes") if each["gate"] else "-"
    return [*texts[:2], gate, *texts[2:]]


def _waiting_lines(shown: Sequence[Object]) -> Iterator[str]:
    for each in shown:
        if "after" not in each:
            continue
        state = f"waits for {', '.join(each['waitsFor'])}" if "waitsFor" in each else "may be set now"
        if each["engaged"] and each.get("status") == "True":
            state = "is True"
        yield f"{each['type']} comes after {', '.join(each['after'])}: {state}"


def readiness_line(revision: Object) -> str:
    """Return in a sentence whether a package revision is ready."""
    step, annotations = gates.next_step(revision), tasks.kptfile_annotations(revision)
    count = len(set(gates.gates_for(step, gates.gates_of(revision), annotations)))
    if unmet := gates.unmet_of(revision):
        return f"not ready: {gates.words(unmet)}"
    later = "" if step == "approve" else _before_approval(revision)
    met = f"all of {count} readiness gates are met" if count else "it has no readiness gates"
    return f"ready: {met}{later}"


def _before_approval(revision: Object) -> str:
    """Return which gates a draft that may be proposed does not meet for its approval, "" if it meets all."""
    unmet = gates.unmet_of({**revision, "spec": {**revision["spec"], "lifecycle": "Proposed"}})
    return f" to propose it; before its approval: {gates.words(unmet)}" if unmet else ""
