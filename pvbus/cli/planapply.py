"""`pvbus apply FILE`: carries out a plan exactly, or refuses because an input of it has moved.

The command writes the user's changes, each with the state that was compared as the precondition; the services
do the rest, and the command follows until every object is in the state that the plan announces. It keeps no
memory: an object's state tells whether it is still to do, on its way or done, so the same command goes on
after a kill.
"""

import asyncio
import getpass
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from pvbus.adapters.manifests import Manifest, kind_of
from pvbus.cli.apply import rank
from pvbus.cli.fleet import kubeconfig_option, persist
from pvbus.cli.live import FILES, Export, LiveReader, connect_live
from pvbus.cli.output import counted
from pvbus.cli.plan import progress_printer
from pvbus.cli.plancost import cost_words, gate_words
from pvbus.cli.plandocument import Document
from pvbus.cli.planfile import GivenManifest, PlanFile, PlannedObject, read_plan
from pvbus.cli.planinput import PlanInput
from pvbus.cli.planpreview import Progress, Request, plan_on, quiet, settings
from pvbus.cli.planscreen import screen_lines
from pvbus.cli.plansign import signature_of
from pvbus.cli.planstanding import Standing, moved_words, standing_of
from pvbus.cli.plantext import headline
from pvbus.cli.progress import SET
from pvbus.cli.reading import data_option
from pvbus.cli.rolloutorders import user_name
from pvbus.core.errors import AlreadyExistsError, ConflictError, PermanentError, UsageError
from pvbus.core.kernel.keys import PLANNED_BY, SIGNED_PLAN
from pvbus.core.kernel.objects import timestamp
from pvbus.ports.cluster import Cluster, Kind, Object, Resource
from pvbus.runtime.preview.changes import ObjectName, replaced
from pvbus.runtime.preview.meaning import digest_of_object
from pvbus.telemetry.logs import configure

if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

FAILED, MOVED = 1, 4
MOVED_MAX = 20  # lines; the number of the rest is said
LOOK_SECONDS = 1.0  # between two looks, and at least as long as a look takes: half of the time is free
JOURNAL = "plans.jsonl"
"""In the data folder: a line for each start and end of an application."""


class MovedError(PermanentError):
    """An input of a plan is not as the plan found it."""

    def __init__(self, moved: Sequence[str]) -> None:
        shown = [f"  {words}" for words in moved[:MOVED_MAX]]
        if len(moved) > MOVED_MAX:
            shown.append(f"  and {len(moved) - MOVED_MAX} more")
        lines = ["since the plan was made, this has moved:", *shown]
        super().__init__("\n".join(lines), reason="InputMoved")


@click.command(
    short_help="Carry out a plan, exactly as it was made.",
    epilog="""\b
Examples:
  pvbus plan --data .pvbus -f changes.yaml --out p.json     look at it, or let somebody else do
  pvbus apply p.json                                        asks, applies and waits; again to go on
  pvbus apply p.json --replan                               what a plan made now would do otherwise

Exit codes: 0 applied, and everything is as announced; 1 failed, or not finished in time; 2 bad usage, or no
whole plan; 4 an input has moved, and nothing more was written.
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@kubeconfig_option
@data_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--replan", is_flag=True, help="Write nothing: show how a plan made now differs.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow the services to the end.")
@click.option("--timeout", default=3600.0, type=click.FloatRange(min=1), show_default=True,
              metavar="SECONDS", help="How long to follow them.")  # fmt: skip
def apply(
    file: Path, kubeconfig: str | None, data: str, yes: bool, replan: bool, wait: bool, timeout: float
) -> int:
    """Carry out the plan in FILE, which `pvbus plan --out FILE` wrote.

    It is refused if anything that the plan read has moved since: another spec, labels, annotations, files or
    commit, an object that is new or gone. Then nothing is written. Where it was interrupted, the same command
    goes on: what is done stays done.
    """
    configure("error")
    plan = read_plan(file)
    signature = signature_of(file, plan)
    if not (yes or replan or sys.stdin.isatty()):
        raise UsageError("cannot ask here, as this is no terminal: add --yes to apply it")

    async def run() -> int:
        async with connect_live(None if kubeconfig else data, kubeconfig) as cluster:
            if replan:
                return await _show_new_plan(cluster, plan, None if kubeconfig else data)
            journal = _journal(file, data, kubeconfig)
            return await _apply(cluster, plan, signature, journal, yes, wait, timeout)

    try:
        return asyncio.run(run())
    except MovedError as exc:
        again = f"pvbus apply {file} --replan shows what a plan made now would do otherwise"
        click.echo(f"error: {exc}\n{again}", err=True)
        return MOVED


def _journal(file: Path, data: str, kubeconfig: str | None) -> Path:
    """Return the file that records who applied which plan: in the data folder, else beside the plan."""
    return file.with_name(f"{file.name}.log") if kubeconfig else Path(data) / JOURNAL


async def _apply(
    cluster: "HttpCluster",
    plan: PlanFile,
    signature: Mapping[str, str],
    journal: Path,
    yes: bool,
    wait: bool,
    timeout: float,
) -> int:
    say = progress_printer("apply")
    standing = await look(cluster, plan, say)
    for line in _introduction(plan, standing):
        click.echo(line)
    if standing.is_complete:
        return 0
    if not yes and not click.confirm("Apply this plan?"):
        raise PermanentError("nothing was applied", reason="Declined")
    standing = await look(cluster, plan)  # a person may have thought for long
    user = await user_name(cluster) or f"{getpass.getuser()} (as the operating system has it)"
    _note(journal, plan, user, "began" if not standing.begun else "went on")
    marks = {PLANNED_BY: f"{plan.checksum} by {user} at {timestamp(time.time())}", **signature}
    written = await write_changes(cluster, plan, marks)
    click.echo(f"{counted(written, 'change')} written")
    if wait:
        await follow(cluster, plan, timeout, say)
        click.echo("applied: everything is as the plan announced")
    _note(journal, plan, user, "ended" if wait else "wrote its changes")
    return 0


def _introduction(plan: PlanFile, standing: Standing) -> Sequence[str]:
    from rich.markup import render

    if standing.is_complete:
        return [f"plan {plan.checksum} is applied already: all {standing.total} objects are as announced"]
    lines = [render(line).plain for line in screen_lines(plan.document)]
    lines.append(f"plan {plan.checksum}, made at {plan.made_at}: {cost_words(plan.cost)}")
    lines += [f"then still to pass: {words}" for words in gate_words(plan.gates)]
    if standing.begun:
        lines.append(f"it was begun: {standing.done} of {standing.total} objects are as announced")
    return lines


def _note(journal: Path, plan: PlanFile, user: str, what: str) -> None:
    """Append a line to the journal. Raises PermanentError: what cannot be recorded is not done."""
    line = {
        "at": timestamp(time.time()),
        "what": what,
        "plan": plan.seal,
        "user": user,
        "summary": plan.summary,
    }
    try:
        with os.fdopen(os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as stream:
            stream.write(msgspec.json.encode(line) + b"\n")
            os.fsync(stream.fileno())
    except OSError as exc:
        raise PermanentError(
            f"{journal}, the journal, cannot be written: {exc.strerror}", reason="Output"
        ) from exc


# ------------------------------------------------------------ looking


async def look(cluster: "HttpCluster", plan: PlanFile, progress: Progress = quiet) -> Standing:
    """Read everything that the plan read again, and compare. Raises MovedError."""
    standing = standing_of(plan, await read_again(cluster, plan, progress))
    if standing.moved:
        raise MovedError(standing.moved)
    return standing


async def read_again(cluster: "HttpCluster", plan: PlanFile, progress: Progress = quiet) -> Export:
    cluster.forget_resources()
    reader = LiveReader(cluster, "", progress)
    export = await reader.read([manifest.object for manifest in plan.manifests], every_package=False)
    for group, kind in plan.kinds:
        await reader.read_kind(Kind(group, kind))
    files = [(planned.namespace, planned.name) for planned in plan.objects if planned.key.kind == FILES]
    await reader.read_files(files, may_lack=True)
    for key in plan.deleted:
        await reader.read_kind(key.kind)
    return export


async def follow(cluster: "HttpCluster", plan: PlanFile, timeout_seconds: float, progress: Progress) -> None:
    """Wait until everything is as announced. Raises MovedError, and PermanentError at the timeout."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + timeout_seconds
    while True:
        began = clock.time()
        standing = await look(cluster, plan)
        if standing.is_complete:
            return
        progress(f"{standing.done} of {standing.total} objects are as announced")
        if clock.time() > deadline:
            raise PermanentError(
                f"not finished after {timeout_seconds:.0f} s: {standing.done} of {standing.total} objects "
                f"are as announced, and {standing.waiting[0]} is not yet. If the services run, the same "
                "command goes on; pvbus explain says what they wait for",
                reason="Timeout",
            )
        await asyncio.sleep(max(LOOK_SECONDS, clock.time() - began))


# ------------------------------------------------------------ writing


class _Change(NamedTuple):
    """A change of the user's.

    planned: the object's states in the plan
    object: what to write, None to delete it
    """

    planned: PlannedObject
    object: Object | None


async def write_changes(cluster: Cluster, plan: PlanFile, marks: Mapping[str, str]) -> int:
    """Write the changes that are not written yet, definitions first; return their number.

    marks: annotations of the written sets: who applied which plan, and its signature
    Raises MovedError before the first write to an object that has moved meanwhile.
    """
    written = 0
    for change in _changes(plan):
        written += await persist(partial(_write, cluster, change, marks))
        if change.planned.kind == "CustomResourceDefinition":
            cluster.forget_resources()
    return written


def _changes(plan: PlanFile) -> list[_Change]:
    planned = {each.key: each for each in plan.objects}
    manifests = sorted(plan.manifests, key=lambda manifest: rank(manifest.object))
    puts = [_Change(_planned_of(planned, manifest), manifest.object) for manifest in manifests]
    return [*puts, *(_Change(planned[key], None) for key in plan.deleted)]


def _planned_of(planned: dict[ObjectName, PlannedObject], manifest: GivenManifest) -> PlannedObject:
    kind, meta = kind_of(manifest.object), manifest.object["metadata"]
    for namespace in (meta.get("namespace") or "default", ""):
        if (key := ObjectName(kind, namespace, meta["name"])) in planned:
            return planned[key]
    raise PermanentError(f"{manifest.location}: the plan does not say what becomes of it: make it again")


async def _write(cluster: Cluster, change: _Change, marks: Mapping[str, str]) -> int:
    """Write a change unless it is written; return how many were. Raises ConflictError to look again."""
    planned = change.planned
    resource = await _resource(cluster, planned.key.kind)
    live = await cluster.get(resource, planned.namespace, planned.name)
    if live is not None:
        live = {"apiVersion": resource.api_version, "kind": resource.kind, **live}
    if words := moved_words(planned, live):
        raise MovedError([words])
    if planned.states.index(digest_of_object(live)) > planned.settled:
        return await _sign(cluster, resource, live, marks) if change.object is not None else 0
    if change.object is None:
        return await _delete(cluster, resource, live)
    wanted = {**replaced(change.object, live), "apiVersion": change.object["apiVersion"]}
    if digest_of_object(wanted) == digest_of_object(live):
        return await _sign(cluster, resource, live, marks)
    if planned.key.kind == SET:
        marked = {**(wanted["metadata"].get("annotations") or {}), **marks}
        wanted["metadata"] = {**wanted["metadata"], "annotations": marked}
    if live is not None:
        await cluster.update(resource, wanted)
        return 1
    if resource.namespaced:
        wanted["metadata"]["namespace"] = planned.namespace
    try:
        await cluster.create(resource, wanted)
    except AlreadyExistsError as exc:
        raise ConflictError(str(exc)) from exc
    return 1


async def _sign(cluster: Cluster, resource: Resource, live: Object | None, marks: Mapping[str, str]) -> int:
    """Give a set that is as wanted the signature of its plan; return how many objects were written."""
    if live is None or resource.kind != SET.kind or SIGNED_PLAN not in marks:
        return 0
    present = live["metadata"].get("annotations") or {}
    if present.get(SIGNED_PLAN) == marks[SIGNED_PLAN]:
        return 0
    metadata = {**live["metadata"], "annotations": {**present, **marks}}
    await cluster.update(resource, {**live, "metadata": metadata})
    return 1


async def _delete(cluster: Cluster, resource: Resource, live: Object | None) -> int:
    if live is None:
        return 0
    meta = live["metadata"]
    await cluster.delete(
        resource,
        meta.get("namespace", ""),
        meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
    )
    return 1


async def _resource(cluster: Cluster, kind: Kind) -> Resource:
    resource = await cluster.resource(kind)
    if resource is None:
        raise PermanentError(
            f"the API server serves no {kind.kind} ({kind.group or 'core'}): install its definition"
        )
    return resource


# ------------------------------------------------------------ another plan


async def _show_new_plan(cluster: "HttpCluster", plan: PlanFile, data: str | None) -> int:
    """Print how a plan that is made now differs; return MOVED if any input has moved, else 0."""
    standing = standing_of(plan, await read_again(cluster, plan, progress_printer("apply")))
    manifests = tuple(
        Manifest(Path(given.location.rpartition(", document ")[0]), number, given.object)
        for number, given in enumerate(plan.manifests, 1)
    )
    names = tuple("/".join(filter(None, (f"{k.kind}.{k.group}".rstrip("."), space, name)))
                  for k, space, name in plan.deleted)  # fmt: skip
    request = Request(PlanInput((), manifests), settings(), None, names, progress=progress_printer("apply"))
    fresh = await plan_on(cluster, request, data)
    for words in standing.moved[:MOVED_MAX]:
        click.echo(f"moved: {words}")
    done, rest = still_to_do(plan, standing)
    if done:
        click.echo(f"{done} of {len(plan.document['actions'])} writes of the plan are done already")
    lines = difference_lines(rest, fresh.document)
    for line in lines[: 2 * MOVED_MAX]:
        click.echo(line)
    if len(lines) > 2 * MOVED_MAX:
        click.echo(f"... and {len(lines) - 2 * MOVED_MAX} more")
    if not lines:
        click.echo(same_words(rest))
    if standing.moved:
        click.echo("to apply that one: pvbus plan ... --out FILE, and pvbus apply FILE")
    return MOVED if standing.moved else 0


def same_words(rest: Document) -> str:
    """Return what a plan made now has, if it differs in nothing from what is left of one."""
    left = len(rest["actions"])
    if not left:
        return "a plan made now has no writes: nothing is left to do"
    return f"a plan made now has the same {left} writes" if left > 1 else "a plan made now has the same write"


def still_to_do(plan: PlanFile, standing: Standing) -> tuple[int, Document]:
    """Return how many writes of a plan are done, and its document without them.

    An object whose last state is reached needs none of its writes any more: a plan made now has none.
    """
    moved = (words.partition(": ")[0] for words in standing.moved)
    done = {str(planned) for planned in plan.changed}.difference(standing.waiting, moved)
    actions = plan.document["actions"]
    rest = [a for a in actions if f"{a['kind']} {a['namespace']}/{a['name']}" not in done]
    return len(actions) - len(rest), {**plan.document, "actions": rest}


def difference_lines(before: Document, after: Document) -> list[str]:
    """Return the writes that only one of two plans has, or that both have with other values."""
    old, new = ({_identity(a): a for a in document["actions"]} for document in (before, after))
    lines = [f"no longer: {headline(old[key])}" for key in old if key not in new]
    lines += [f"in addition: {headline(new[key])}" for key in new if key not in old]
    lines += [
        f"otherwise: {headline(new[key])}"
        for key in new
        if key in old and _effect(old[key]) != _effect(new[key])
    ]
    lines += [f"trouble: {text}" for text in after["troubles"] if text not in before["troubles"]]
    return lines


def _identity(action: Document) -> tuple[str, ...]:
    return action["verb"], action["kind"], action["namespace"], action["name"]


def _effect(action: Document) -> bytes:
    keys = ("differences", "files", "conflicts", "reason")
    return msgspec.json.encode({key: action.get(key) for key in keys}, order="sorted")
