"""`pvbus lag`: the owner, lag and progress of each partition.

Owners and committed offsets come from the bus itself, even while no service runs. Each worker reports the
rest at the address that it registered with its group (`/state`, see `pvbus.runtime.process.state`).
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

import aiohttp
import click
import msgspec

from pvbus.adapters.httpfailures import failure_of
from pvbus.cli import subscribers as readers
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import NOTHING, bus_option, data_option, open_existing_bus
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.topics import ALL_SERVICES, PLATFORM, PROMOTION, SERVICES, SINK
from pvbus.ports.bus import Bus, GroupState, TopicPartition
from pvbus.runtime.process.assembly import INPUTS
from pvbus.runtime.process.state import LeaseReport, ProcessState, defect_lines
from pvbus.telemetry.terminal import unfiltered

ANSWER_SECONDS_MAX = 2.0
"""Timeout for a worker's state. The worker takes a second at most, and all are requested in parallel."""

WATCH_SECONDS = 2.0
STALLED_SECONDS = 60.0
"""A lease with work and without progress for so long is stuck: the longest backoff of an effect."""

WIDTH = 80
"""The default width of a terminal. Names of owners are cut to fit; `-o json` has them in full."""

SUMMARY = ("SERVICE", "HELD", "WORKERS", "LAG", "DIRTY", "PROGRESS", "RESTORE")
COLUMNS = ("SERVICE", "PARTITION", "OWNER", "EPOCH", "LAG", "DIRTY", "PROGRESS", "RESTORE")
_state = msgspec.json.Decoder(ProcessState)
Show = Callable[["LagTable"], None]
Table = TypeVar("Table")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a service, as `-o json` prints it.

    service: the service
    partition: the partition
    owner: the worker that holds the lease, "" for none
    lag: the records that are not read yet; without a report they count from the committed offsets
    lease: the owner's report, None if there is none
    """

    service: str
    partition: int
    owner: str
    lag: int
    lease: LeaseReport | None

    def trouble(self) -> str | None:
        """Return the problem of the partition, None if there is none."""
        lease_name = f"{self.service} {self.partition}"
        if not self.owner:
            return f"{lease_name}: no worker holds it"
        if self.lease is None:
            return (
                f"{lease_name}: {self.lag} records behind, and {self.owner} does not answer"
                if self.lag
                else None
            )
        seconds, dirty = self.lease.seconds_since_progress, self.lease.dirty
        if seconds <= STALLED_SECONDS or (self.lease.restored and not self.lag and not dirty):
            return None
        return (
            f"{lease_name}: no progress for {seconds:.0f} s, {self.lag} records behind, {dirty} keys dirty, "
            f"{self.lease.restore_share:.0%} restored"
        )


class LagTable(NamedTuple):
    """The state of all partitions.

    rows: one row per partition
    remarks: what could not be read
    defects: the decisions that fail because of a bug
    """

    rows: list[Row]
    remarks: list[str]
    defects: list[str]


@click.command(
    short_help="Show each partition's owner, lag and progress.",
    epilog="""\b
Examples:
  pvbus lag                                   a line for each service of the data folder
  pvbus lag render --partitions               each partition of one
  pvbus lag render inject --watch             two of them, again every two seconds
  pvbus lag --bus kafka://127.0.0.1:9092      on a Kafka
  pvbus lag --check || alert                  for scripts: 1 when something is stuck
  pvbus lag -o json                           for programs
  pvbus lag --subscribers                     programs that read the public topics

\b
HELD      partitions that somebody holds, of all
WORKERS   how many hold some
OWNER     the address of the worker that holds the partition, or nobody
EPOCH     rises whenever it changes hands; a higher one fences all lower ones
LAG       records of the service's inputs not read yet (of what nobody reads: not
          committed; ingest, which reads the cluster, commits nothing). On a Kafka,
          what nobody reads counts the marks of transactions, too
DIRTY     keys that wait, or are being worked on
PROGRESS  how long ago it got on; it grows, too, when there is nothing to do. For
          a service it is that of the partition that is stuck the longest, or idle
RESTORE   how much of its tables is read; 100% is ready

-  nobody is there to tell     ?  the owner does not tell

\b
For subscribers, as they commit it:
PARTITIONS  of which the group has committed an offset, of all
STATE       in Kafka's words; Empty: no member, as of programs that choose their
            partitions themselves
LAG         from the committed offset to the end. On a Kafka the marks of
            transactions count, too: a program that commits the offset after its
            last record, not its position, keeps 1 of each partition
DELETED     what the retention deleted before it was read
""",
)
@click.argument("services", nargs=-1, type=click.Choice((*ALL_SERVICES, SINK)), metavar="[SERVICE]...")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--partitions", is_flag=True, help="Show each partition, with its owner.")
@click.option("--subscribers", is_flag=True, help="Show the consumer groups of the public topics instead.")
@click.option("-w", "--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@click.option("--check", is_flag=True, help="End with 1 when a partition has no owner, or is behind and "
              "did not get on for a minute.")  # fmt: skip
@data_option
@bus_option
def lag(
    services: tuple[str, ...],
    output: str,
    partitions: bool,
    subscribers: bool,
    watch: bool,
    check: bool,
    data: str,
    bus: str | None,
) -> int:
    """Show the owner, lag and progress of each service and partition.

    SERVICE is ingest, unroll, render, inject, conditions, promote, rollout, release, resolve, establish or
    sink; none is all of them, without the last six where these do not run.
    """
    if watch and check:
        raise click.UsageError("--check ends with an answer, --watch does not end: give one of them")
    if subscribers:
        if services or check:
            raise click.UsageError(
                "--subscribers is about programs of others: give it no SERVICE and no --check"
            )
        show_readers = partial(readers.show, output=output, partitions=partitions)
        return asyncio.run(_subscribers(show_readers, watch=watch, data=data, lease_name=bus))
    names = [name for name in (*ALL_SERVICES, SINK) if name in services]
    show = partial(_show, output=output, partitions=partitions)
    return asyncio.run(_lag(names, show, watch=watch, check=check, data=data, lease_name=bus))


async def _lag(
    names: Sequence[str], show: Show, *, watch: bool, check: bool, data: str, lease_name: str | None
) -> int:
    async with open_existing_bus(data, lease_name) as bus:
        names = names or [*SERVICES, *await _running(bus, (*PROMOTION, *PLATFORM, SINK))]
        while watch:
            await _watch_once(partial(look, bus, names), show)
            await asyncio.sleep(WATCH_SECONDS)
        table = await look(bus, names)
    show(table)
    if not check:
        return 0
    troubles = list(troubles_of(table.rows))
    for trouble in troubles:
        click.echo(trouble, err=True)
    return 1 if troubles or table.defects or {row.service for row in table.rows} != set(names) else 0


async def _subscribers(show: readers.Show, *, watch: bool, data: str, lease_name: str | None) -> int:
    async with open_existing_bus(data, lease_name) as bus:
        while watch:
            await _watch_once(partial(readers.find_positions, bus), show)
            await asyncio.sleep(WATCH_SECONDS)
        show(await readers.find_positions(bus))
    return 0


def troubles_of(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the problem of each partition that has one; a service without workers is one line."""
    for name, group in groupby(rows, key=lambda row: row.service):
        ours = list(group)
        if len(ours) > 1 and not any(row.owner for row in ours):
            yield f"{name}: no worker holds any of its {len(ours)} partitions: is it running?"
        else:
            yield from (trouble for row in ours if (trouble := row.trouble()))


async def _running(bus: Bus, services: Sequence[str]) -> list[str]:
    """Return the services of these that have workers; none if the bus does not answer."""
    groups = await _groups(bus, services, [])
    return [name for name, group in groups.items() if group.members]


async def _watch_once(look: Callable[[], Awaitable[Table]], show: Callable[[Table], None]) -> None:
    try:
        table = await look()
    except TransientError as exc:
        click.echo(f"the bus does not answer: {exc}", err=True)
        return
    if sys.stdout.isatty():
        click.echo("\033[2J\033[1;1H", nl=False, file=unfiltered(sys.stdout))
    show(table)


async def look(bus: Bus, names: Iterable[str]) -> LagTable:
    """Read the groups from the bus, then the state of every worker with an address."""
    remarks: list[str] = []
    groups = await _groups(bus, names, remarks)
    lease_names = [
        (topic, n) for name, group in groups.items() for topic in INPUTS[name] for n in group.partitions
    ]
    ends = await bus.end_offsets(sorted(set(lease_names)))
    labels = {label for group in groups.values() for label in group.members.values() if label}
    states = await _ask_all(sorted(labels), remarks)
    rows = [
        _row(name, number, group, states, ends)
        for name, group in groups.items()
        for number in sorted(group.partitions)
    ]
    services = ((name, state.services.get(name)) for state in states.values() for name in groups)
    defects = [line for name, each in services if each for line in defect_lines(name, each.defects)]
    return LagTable(rows, remarks, defects)


async def _groups(bus: Bus, names: Iterable[str], remarks: list[str]) -> dict[str, GroupState]:
    async def describe(name: str) -> GroupState | None:
        try:
            return await bus.describe(f"pvbus-{name}", INPUTS[name])
        except TransientError as exc:
            remarks.append(f"{name}: its leases change hands, or the bus does not answer ({exc})")
        except PermanentError as exc:
            if exc.reason != "UnknownTopic":
                raise
            raise UsageError(NOTHING) from exc
        return None

    wanted = list(names)
    found = await asyncio.gather(*(describe(name) for name in wanted))
    return {name: group for name, group in zip(wanted, found, strict=True) if group is not None}


async def _ask_all(labels: list[str], remarks: list[str]) -> dict[str, ProcessState]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def ask(label: str) -> ProcessState | None:
            try:
                async with session.get(f"{label}/state", allow_redirects=False) as answer:
                    answer.raise_for_status()
                    return _state.decode(await answer.read())
            except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
                reason = failure_of(exc) if str(exc) else f"within {ANSWER_SECONDS_MAX:.0f} s"
                remarks.append(f"{label} does not tell how far it is: {reason}")
                return None

        found = await asyncio.gather(*(ask(label) for label in labels))
    return {label: state for label, state in zip(labels, found, strict=True) if state is not None}


def _row(
    name: str,
    number: int,
    group: GroupState,
    states: Mapping[str, ProcessState],
    ends: Mapping[TopicPartition, int],
) -> Row:
    owner, committed = group.partitions[number]
    label = group.members.get(owner, "")
    lease = _report(states.get(label), name, number)
    lag = lease.lag if lease is not None else None
    if lag is None:
        lag = sum(max(0, ends[topic, number] - offset) for topic, offset in committed.items())
    return Row(service=name, partition=number, owner=label or owner, lag=lag, lease=lease)


def _report(state: ProcessState | None, name: str, number: int) -> LeaseReport | None:
    service = state.services.get(name) if state is not None else None
    leases = service.leases if service is not None else ()
    return next((lease for lease in leases if lease.partition == number), None)


def _show(table: LagTable, *, output: str, partitions: bool) -> None:
    if output != "text":
        emit(msgspec.to_builtins(table._asdict()), output)
        return
    groups = groupby(table.rows, key=lambda row: row.service)
    columns(SUMMARY, [_summary(name, list(rows)) for name, rows in groups])
    if partitions:
        click.echo()
        columns(COLUMNS, _fitting([_cells(row) for row in table.rows]), gap=2)
    for sentence in (*table.remarks, *table.defects):
        click.echo(sentence, err=True)


def _summary(name: str, rows: list[Row]) -> tuple[str, ...]:
    """Return the line of a service: the sums over its partitions, and the longest time without progress."""
    held = [row for row in rows if row.owner]
    leases = [row.lease for row in rows if row.lease is not None]
    missing = "?" if held else "-"
    busy = [
        lease.seconds_since_progress
        for row in rows
        if (lease := row.lease) is not None and (row.lag or lease.dirty or not lease.restored)
    ]
    share = sum(lease.restore_share for lease in leases) / max(1, len(leases))
    is_restored = all(lease.restored for lease in leases)
    return (
        name,
        f"{len(held)}/{len(rows)}",
        str(len({row.owner for row in held})),
        str(sum(row.lag for row in rows)),
        str(sum(lease.dirty for lease in leases)) if leases else missing,
        (f"{max(busy):.1f} s" if busy else "idle") if leases else missing,
        ("100%" if is_restored else f"{min(99, int(share * 100))}%") if leases else missing,
    )


def _fitting(rows: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Cut the middle of the owners, so that a line fits; their ends usually distinguish them."""
    owner = COLUMNS.index("OWNER")
    lines = [COLUMNS, *rows]
    widths = [max(len(line[n]) for line in lines) + 2 for n in range(len(COLUMNS)) if n != owner]
    room = max(WIDTH - sum(widths), len(COLUMNS[owner]))
    for row in rows:
        name = row[owner].removeprefix("http://")
        if len(name) > room:
            head = (room - 1) // 3
            name = f"{name[:head]}…{name[len(name) - (room - 1 - head) :]}"
        yield (*row[:owner], name, *row[owner + 1 :])


def _cells(row: Row) -> tuple[str, ...]:
    lease_name = (row.service, str(row.partition), row.owner or "none")
    lease = row.lease
    if lease is None:
        missing = "?" if row.owner else "-"
        return (*lease_name, missing, str(row.lag), missing, missing, missing)
    return (
        *lease_name,
        str(lease.epoch),
        str(row.lag),
        str(lease.dirty),
        f"{lease.seconds_since_progress:.1f} s",
        f"{lease.restore_share:.0%}",
    )
