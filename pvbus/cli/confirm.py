"""`pvbus confirm`: lists the deletions that the guard holds for a set, and confirms exactly those."""

import asyncio
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click
import msgspec

from pvbus.cli.fleet import api_server, kubeconfig_option
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import columns
from pvbus.cli.progress import SET
from pvbus.cli.reading import bus_option, data_option, open_existing_bus, read_rows
from pvbus.core.errors import ConflictError, PermanentError, UsageError
from pvbus.core.kernel.keys import CONFIRM_DELETION, ChildKey, Key, ObjectKey, is_child
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.kernel.records import SETRESULTS, SETS, UNROLL, ChildRow, ChildState, Hold, SetResult
from pvbus.core.kernel.topics import partition_key
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Cluster, Object, Resource

SHOWN_MAX = 20
READS_MAX = 5  # maximum reads until the rows and the hold agree: they are on different topics
COLUMNS = ("VARIANT", "DOWNSTREAM", "MADE FOR")


class Held(NamedTuple):
    """The held deletions of a set, read consistently.

    uid: the uid of the set
    hold: the hold of the guard
    rows: the rows of the variants to delete, by their names
    """

    uid: str
    hold: Hold
    rows: dict[str, ChildRow]


class NothingHeldError(Exception):
    """There is nothing to show or to confirm; the message says why."""


@click.command(
    short_help="Show deletions that are held, and confirm them.",
    epilog="""\b
Examples:
  pvbus confirm default/web --show           everything that would be deleted
  pvbus confirm default/web                  the same, shortened; confirms it after asking
  pvbus confirm web -n default --yes         without asking

Exit codes: 0 shown or confirmed, 1 nothing is held, there is no such set, or it was not confirmed,
2 bad usage.
""",
)
@object_argument("[KIND] NAME", (SET,))
@namespace_option
@click.option("--show", is_flag=True, help="List everything that is held, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@kubeconfig_option
@data_option
@bus_option
def confirm(
    words: tuple[str, ...],
    namespace: str | None,
    show: bool,
    yes: bool,
    kubeconfig: str | None,
    data: str,
    bus: str | None,
) -> int:
    """Confirm the deletions that the guard holds because they are too many at once.

    Exactly what is listed is confirmed: what is held later needs its own confirmation. Where the deletions
    are a mistake, undo the change that led to them (labels, a selector): then nothing is deleted, and
    nothing is held any more.
    """
    key = named(words, (SET,), Scope(namespace, data, kubeconfig)).key
    if not (show or yes or _is_terminal()):
        raise UsageError(
            "cannot ask here, as this is no terminal: add --yes to confirm, or --show to see what is held"
        )
    try:
        held = asyncio.run(_read(data, bus, key))
        _print(key, held, None if show else SHOWN_MAX)
        if show:
            return 0
        if not held.hold.token:
            raise NothingHeldError("the list is still being written: try again in a few seconds")
        if not yes and not click.confirm(f"Delete these {held.hold.count} variants?"):
            raise NothingHeldError("nothing was confirmed")
        click.echo(asyncio.run(_confirm(data, bus, kubeconfig, key, held)))
    except NothingHeldError as exc:
        click.echo(f"{key}: {exc}", err=True)
        return 1
    return 0


def _is_terminal() -> bool:
    return sys.stdin.isatty()


async def _read(data: str, bus_url: str | None, key: Key) -> Held:
    async with open_existing_bus(data, bus_url) as bus:
        return await read_held(bus, key)


async def read_held(bus: Bus, key: Key) -> Held:
    """Read the held deletions of a set. Raises NothingHeldError."""
    result = await _result(bus, key)
    for _ in range(READS_MAX):
        if result.hold is None:
            break
        rows = await _read_held_rows(bus, key)
        before, result = result, await _result(bus, key)
        if result.hold == before.hold and result.hold is not None:
            return Held(result.uid, result.hold, rows)
    if result.hold is not None:
        raise NothingHeldError("the list of held deletions keeps changing: try again in a few seconds")
    raise NothingHeldError("nothing is held")


async def _result(bus: Bus, key: Key) -> SetResult:
    value = (await read_rows(bus, SETRESULTS, key=str(key))).get(str(key))
    if value is not None:
        return msgspec.json.decode(value, type=SetResult)
    if str(key) in await read_rows(bus, SETS, key=str(key)):
        raise NothingHeldError("nothing is held: the set was not evaluated yet")
    raise NothingHeldError("there is no PackageVariantSet of this name; check namespace and name")


async def _read_held_rows(bus: Bus, key: Key) -> dict[str, ChildRow]:
    found = await read_rows(bus, UNROLL, key=str(key))
    rows = {
        ChildKey.parse(name).variant: msgspec.json.decode(value, type=ChildRow)
        for name, value in sorted(found.items())
        if is_child(name) and partition_key(UNROLL, name) == str(key)
    }
    return {name: row for name, row in rows.items() if row.state is ChildState.HELD}


def _print(key: Key, held: Held, shown_max: int | None) -> None:
    names = list(held.rows)[:shown_max]
    if names:
        columns(COLUMNS, (_line(key, name, held.rows[name]) for name in names))
    if len(held.rows) > len(names):
        click.echo(f"and {len(held.rows) - len(names)} more (--show lists all)")
    click.echo(f"{held.hold.count} deletions of {key} are held because they are too many at once.")
    if len(held.rows) < held.hold.count:
        reason = "the others are wanted again" if held.hold.token else "the list is still being written"
        click.echo(f"{len(held.rows)} of them are listed; {reason}.")


def _line(key: Key, name: str, row: ChildRow) -> Sequence[str]:
    origin = "an entry of a list"
    if row.okey:
        target = ObjectKey.parse(row.okey)
        origin = f"{target.kind} {target.name}"
    return f"{key.namespace}/{name}", f"{row.downstream.repo}/{row.downstream.package}", origin


async def _confirm(data: str, bus_url: str | None, kubeconfig: str | None, key: Key, shown: Held) -> str:
    """Write the annotation if the shown deletions are still the held ones. Return the message to print."""
    now = await _read(data, bus_url, key)
    if now.hold.token != shown.hold.token:
        raise NothingHeldError("what is held has changed meanwhile, and nothing was confirmed: look again")
    async with api_server(data, kubeconfig) as cluster:
        return await annotate(cluster, key, shown)


async def annotate(cluster: Cluster, key: Key, held: Held) -> str:
    """Write the token to the annotation of the live set. Raises NothingHeldError, PermanentError."""
    resource = await cluster.resource(SET)
    live = await cluster.get(resource, *key) if resource is not None else None
    if resource is None or live is None:
        raise NothingHeldError("the API server has no such PackageVariantSet (any more)")
    if live["metadata"]["uid"] != held.uid:
        raise NothingHeldError("the set was deleted and created again; what was held is not its own")
    if _token(live) == held.hold.token:
        return f"{key}: these {held.hold.count} deletions are confirmed already"
    try:
        await _patch(cluster, resource, key, held)
    except ConflictError as exc:
        raise PermanentError(f"{key}: the set has changed meanwhile ({exc}): try again") from exc
    return f"{key}: {held.hold.count} deletions confirmed"


def _token(live: Object) -> str:
    return str(annotations_of(live).get(CONFIRM_DELETION, ""))


async def _patch(cluster: Cluster, resource: Resource, key: Key, held: Held) -> None:
    metadata = {"uid": held.uid, "annotations": {CONFIRM_DELETION: held.hold.token}}
    await cluster.patch(resource, key.namespace, key.name, {"metadata": metadata})
