"""`pvbus rollout`: shows how policies approve the proposed revisions of a fleet in waves."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click
from rich.markup import escape

from pvbus.cli.datafolder import DEFAULT
from pvbus.cli.live import REVISION, connect_live
from pvbus.cli.objectnames import Scope, namespace_option, object_argument
from pvbus.cli.output import FORMATS, counted, emit
from pvbus.cli.planinput import admitted, read_input
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.quarantines import quarantines_command, release_command
from pvbus.cli.reading import bus_option, files_option
from pvbus.cli.rolloutdocument import NO_ROWS, POLICY, QUARANTINE, Document, document_of, left_out_lines
from pvbus.cli.rolloutmoves import identity_of, laid_over
from pvbus.cli.rolloutorders import COMMANDS, policy_named
from pvbus.cli.rolloutrows import Rows, rows_of
from pvbus.cli.rolloutstatus import history, status
from pvbus.cli.stops import lift_command, stop_command
from pvbus.cli.subcommands import Subcommands
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import first_of
from pvbus.core.kernel.objectrows import STOP
from pvbus.ports.cluster import Cluster, Kind, Object, Resource

NAMES_MAX = 8
LEFT_OUT_MAX = 20
READ = (VARIANT, SET, REVISION)
OPTIONAL = (QUARANTINE, STOP)
"""Kinds of which there is nothing where the API server does not serve them."""


@click.group(
    cls=Subcommands,
    short_help="Approve proposed revisions in waves: show and steer it.",
    epilog="""\b
Examples:
  pvbus rollout plan -f policy.yaml --data .pvbus
  pvbus rollout status default/web --watch
  pvbus rollout approve default/web
""",
)
def rollout() -> None:
    """Plan, follow and steer rollouts: the approval of a fleet's proposed revisions in waves, by policies."""


for _each in (status, history, *COMMANDS, quarantines_command, release_command, stop_command, lift_command):
    rollout.add_command(_each)


@rollout.command(
    short_help="Show the waves of policies.",
    epilog="""\b
Examples:
  pvbus rollout plan -f policy.yaml --data .pvbus        a policy, tried on `pvbus up`
  pvbus rollout plan --kubeconfig ~/.kube/config         the policies of a cluster
  pvbus rollout plan -f policy.yaml -f live.json -o json  without a cluster, see pvbus export
  pvbus rollout plan -f policy.yaml --data .pvbus --failing web-edge-asia-asia-01-web

\b
Exit codes: 0 done; 1 a policy or a file is wrong; 2 bad usage.
""",
)
@object_argument("[[KIND] NAME]", (POLICY,), required=False)
@namespace_option
@files_option(
    "Manifests or exports: a file or a folder. With a live system each object replaces the one of its kind, "
    "namespace and name."
)
@click.option("--data", help="Plan for the live `pvbus up` of this data folder.")
@click.option("--kubeconfig", help="Plan for this cluster. It is only read.")
@bus_option
@click.option(
    "--failing",
    multiple=True,
    metavar="TARGET",
    help="Show what the policy does if this target is published and turns out bad. Repeatable.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
def plan(
    words: tuple[str, ...],
    namespace: str | None,
    files: tuple[Path, ...],
    data: str | None,
    kubeconfig: str | None,
    bus: str | None,
    failing: tuple[str, ...],
    output: str,
) -> int:
    """Show which proposed revisions are in which wave, in which order, and what each wave waits for.

    The plan is a rehearsal from where the rollout is now, also in the middle of an attempt: every check
    passes, people approve as soon as it is their turn, and what is approved proves good. What is quarantined,
    on hold or was in vain before is left out, with the reason. A file may change a policy, or the upstream of
    a set or of a PackageVariant: the plan is then that of the drafts that follow. Nothing is written.

    What an attempt has done so far is on the bus: that of --data, or --bus.
    """
    wanted = policy_named(words, Scope(namespace, data or DEFAULT, kubeconfig)) if words else None
    if not files and not (data or kubeconfig):
        raise UsageError(
            "nothing to plan: give manifests (-f FILE), a live system (--data DIR or --kubeconfig FILE)"
        )
    if data and kubeconfig:
        raise UsageError("--data and --kubeconfig are two live systems: give one of them")
    objects, errors = _objects(files, data, kubeconfig)
    for error in errors:
        click.echo(f"error: {error}", err=True)
    if errors:
        return 1
    rows = asyncio.run(_rows(objects, data, kubeconfig, bus)) if data or kubeconfig or bus else NO_ROWS
    document = document_of(objects, time.time(), name=wanted, failing=failing, rows=rows)
    if output != "text":
        emit(document, output)
    else:
        _print(document)
    return 1 if any(policy["problems"] for policy in document["policies"]) else 0


def _objects(
    files: Sequence[Path], data: str | None, kubeconfig: str | None
) -> tuple[list[Object], list[str]]:
    """Return the objects of the live system, replaced by those of the files, and what is wrong with these."""
    given = read_input(files)
    objects, errors = admitted(given.manifests)
    found = [item for export in given.exports for item in export.items]
    if data or kubeconfig:
        has_policy = any(obj["kind"] == POLICY.kind for obj in objects)
        found += asyncio.run(_read(data, kubeconfig, has_policy=has_policy))
    return laid_over(found, objects), errors


async def _rows(
    objects: Sequence[Object], data: str | None, kubeconfig: str | None, bus: str | None
) -> Mapping[Key, Rows | str]:
    """Read what the bus has of each policy."""
    names = [identity_of(obj) for obj in objects if obj["kind"] == POLICY.kind]
    return {
        Key(namespace, name): await rows_of(data, kubeconfig, bus, Key(namespace, name))
        for _, _, namespace, name in names
    }


async def _read(data: str | None, kubeconfig: str | None, *, has_policy: bool) -> list[Object]:
    """Read what a plan needs.

    has_policy: whether a file has a policy, so that the server need not know the kind
    """
    found: list[Object] = []
    async with connect_live(data, kubeconfig) as cluster:
        for kind in (POLICY, *OPTIONAL, *READ):
            resource = await cluster.resource(kind)
            if resource is None and (kind in OPTIONAL or (kind == POLICY and has_policy)):
                continue
            if resource is None:
                hint = (
                    "pvbus install --add promotion brings it, or give a policy with -f FILE"
                    if kind == POLICY
                    else ""
                )
                raise PermanentError(
                    f"the API server does not serve {kind.kind} ({kind.group}): "
                    f"{hint or 'check --kubeconfig'}",
                    reason="NoMatch",
                )
            found += await _read_kind(cluster, resource)
        for kind in evidence_kinds(found):
            resource = await cluster.resource(kind)
            if resource is not None:
                with suppress(PermanentError):  # a user without the right gets a plan without them
                    found += await _read_kind(cluster, resource)
    return found


async def _read_kind(cluster: Cluster, resource: Resource) -> list[Object]:
    listing = await cluster.list(resource)
    return [{"apiVersion": resource.api_version, "kind": resource.kind, **obj} for obj in listing.items]


def evidence_kinds(objects: Sequence[Object]) -> set[Kind]:
    """Return the kinds of the objects that policies take as evidence."""
    rules = [
        (obj["spec"].get("evidence") or {}).get("object") for obj in objects if obj["kind"] == POLICY.kind
    ]
    return {Kind(rule["apiVersion"].rpartition("/")[0], rule["kind"]) for rule in rules if rule}


def _print(document: Document) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if document["stops"]:
        console.print(f"[bold red]first[/]: {escape(document['stops'])}")
    for policy in document["policies"]:
        for line in policy_lines(policy):
            console.print(line)
    if document["unselected"]:
        count = document["unselected"]
        console.print(
            f"{count} {'package' if count == 1 else 'packages'} with a proposed revision: no policy"
        )


def policy_lines(policy: Document) -> Iterator[str]:
    """Yield the lines of one policy, with rich markup."""
    name = escape(f"{policy['namespace']}/{policy['name']}")
    if policy["problems"]:
        yield f"[bold]RolloutPolicy {name}[/] is not accepted:"
        yield from (f"  [red]![/] {escape(problem)}" for problem in policy["problems"])
        return
    targets = counted(policy["targets"], "target")
    attempt = f", attempt {policy['attempt']}" if policy["attempt"] > 1 else ""
    standing = f" ({policy['before']} now)" if policy["before"] in _UNDER_WAY else ""
    yield f"[bold]RolloutPolicy {name}[/]: {targets}, approval {policy['approval']}{attempt}{standing}"
    if policy["missing"]:
        yield f"  [yellow]i[/] as if no attempt were under way: {escape(policy['missing'])}"
    for condition in policy["conditions"]:
        if condition["type"] == "Overlapping" and condition["status"] == "True":
            yield f"  [yellow]i[/] {escape(condition['message'])}"
    for words in policy["evidence"]:
        yield f"  [yellow]evidence[/] {escape(words)}"
    if policy["paused"]:
        yield f"  first: a person goes on, as it is paused: pvbus rollout resume {name}"
    if policy["needsStart"] and any(wave["targets"] for wave in policy["waves"]):
        yield "  before wave 1: a person approves it"
    yield from _attempt_lines(policy)
    lines = left_out_lines(policy["leftOut"])
    for _, words in lines[:LEFT_OUT_MAX]:
        yield f"  [yellow]left out[/] {escape(words)}"
    if hidden := sum(number for number, _ in lines[LEFT_OUT_MAX:]):
        yield f"  [yellow]left out[/] {hidden} more (-o json lists all)"
    yield from _end_lines(policy)
    for each in policy["then"]:
        yield f"  then attempt {each['attempt']}, {counted(each['targets'], 'target')}:"
        yield from _attempt_lines(each)
        yield from _end_lines(each)


_UNDER_WAY = frozenset({"Rolling", "Holding", "Isolating", "Stopped", "RollingBack"})


def _attempt_lines(attempt: Document) -> Iterator[str]:
    placed = 0
    waves = [wave for wave in attempt["waves"] if wave["targets"]]
    for wave in waves:
        placed += len(wave["targets"])
        yield from _wave_lines(wave, f"{placed} of {attempt['targets']}", is_last=wave is waves[-1])
    for words in attempt["waitsFor"]:
        yield f"  [yellow]waits for[/] {escape(words)}"


def _end_lines(attempt: Document) -> Iterator[str]:
    if any(wave["targets"] for wave in attempt["waves"]):
        end = attempt["end"]
        why = f": {end['message']}" if end["message"] else f", after at least {_span(attempt['seconds'])}"
        yield f"  ends {end['state']}{escape(why)}"


def _wave_lines(wave: Document, placed: str, *, is_last: bool) -> Iterator[str]:
    share = f"{wave['percent']} %" if "percent" in wave else f"count {wave['count']}"
    names = [each["target"] for each in wave["targets"]]
    yield f"  wave {wave['number']} ({share}, {placed}): {escape(first_of(names, NAMES_MAX))}"
    before = Counter(each["before"] for each in wave["targets"] if each["before"] not in ("", "planned"))
    if before:
        words = ", ".join(f"{count} {state}" for state, count in sorted(before.items()))
        yield f"    now: {words}"
    for window in wave["windows"]:
        yield f"    only {escape(window)}"
    then = [f"hold {wave['hold']}"] if wave["hold"] else []
    then += [f"{each['name']}: {each['waitsFor']}" for each in wave["checks"]]
    if wave["needsPerson"] and not any(each["waitsFor"].startswith("a person: ") for each in wave["checks"]):
        then.append("a person approves the next wave")
    for words in then:
        yield f"    {'before the end' if is_last else 'before the next'}: {escape(words)}"
    if wave["restored"]:
        yield f"    [yellow]back to the revision before[/]: {escape(first_of(wave['restored'], NAMES_MAX))}"
    stranded = [each["target"] for each in wave["targets"] if each["state"] == "stranded"]
    if stranded:
        yield f"    [red]no revision to go back to[/]: {escape(first_of(stranded, NAMES_MAX))}"


def _span(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "m"), (left, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
