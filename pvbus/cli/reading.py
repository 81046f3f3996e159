"""Reads a bus from outside: whole topics, or the records of one key."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.core.errors import TransientError, UsageError
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import Bus, Record, TopicSpec
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ServiceConfig, split_names

if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., object])

data_option = click.option("--data", default=DEFAULT, show_default=True, help="Data folder of `pvbus up`.")
bus_option = click.option(
    "--bus",
    envvar="PVBUS_BUS",
    help="sqlite:PATH, where there is no data folder, or kafka://HOST:PORT[,HOST:PORT...][/PREFIX] "
    "[PVBUS_BUS; a Kafka's TLS and login are settings, PVBUS_KAFKA_*]",
)


def files_option(help_text: str) -> Callable[[Command], Command]:
    """Return the option of files and folders of manifests."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        type=click.Path(path_type=Path),
        help=f"{help_text} Repeatable.",
    )


def names_of(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Return the namespaces of an option; None if it is not given. Raises UsageError."""
    return None if text is None else split_names(text)


NOTHING = (
    "nothing of pvbus is on this bus: start the services, or see whether its address has their prefix (and, "
    "where users log in, whether this one may see the topics: `pvbus topics --acls`)"
)


@asynccontextmanager
async def open_existing_bus(data: str, bus: str | None, *, create: bool = False) -> AsyncIterator[Bus]:
    """Open a bus that exists. Raises UsageError if there is none, and the errors of `open_bus`."""
    url = bus or f"sqlite:{DataPaths(Path(data)).bus}"
    opened = await open_bus(msgspec.structs.replace(load_config(ServiceConfig), bus=url), create=create)
    try:
        yield opened
    finally:
        await opened.close()


async def topic_on(bus: Bus, name: str) -> TopicSpec:
    """Return a topic as it is on the bus. Raises UsageError if it does not exist."""
    present = await bus.topics()
    if name in present:
        return present[name]
    ours = [spec.name for spec in topic_specs() if spec.name in present]
    raise UsageError(f'there is no topic "{name}"; there are {", ".join(ours)}' if ours else NOTHING)


async def read_topic(bus: Bus, topic: str, *, key: str | None = None) -> list[Record]:
    """Read a topic up to its current end, in order of partition and offset.

    key: read only the partition of this partition key.
    """
    count = (await topic_on(bus, topic)).partitions
    numbers: Iterable[int] = range(count) if key is None else (partition(key, count),)
    ends = await bus.end_offsets([(topic, number) for number in numbers])
    reader = bus.reader({tp: 0 for tp, end in ends.items() if end > 0})
    found: list[Record] = []
    try:
        while any(reader.position(tp) < end for tp, end in ends.items() if end > 0):
            records = await reader.poll(timeout_seconds=1.0, max_records=10_000)
            found += [record for record in records if record.offset < ends[record.topic, record.partition]]
    finally:
        await reader.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def read_rows(bus: Bus, topic: str, *, key: str | None = None) -> dict[str, bytes]:
    """Read the current rows of a compacted topic, by key."""
    rows: dict[str, bytes] = {}
    for record in await read_topic(bus, topic, key=key):
        key_text = record.key.decode(errors="replace")  # another program may have written any bytes
        if record.value is None:
            rows.pop(key_text, None)
        else:
            rows[key_text] = record.value
    return rows


async def live_object(data: str, kubeconfig: str | None, kind: Kind, key: tuple[str, str]) -> Object | str:
    """Read an object from the API server; return a message instead if there is no response or object."""

    async def read(cluster: "HttpCluster", resource: Resource) -> Object | None:
        return await cluster.get(resource, *key)

    found = await _live(data, kubeconfig, kind, read)
    return found if found is not None else "there is no such object"


async def live_objects(
    data: str, kubeconfig: str | None, kind: Kind, namespace: str, label: str
) -> list[Object]:
    """List the objects with a label from the API server; [] if it does not answer."""

    async def read(cluster: "HttpCluster", resource: Resource) -> list[Object]:
        return (await cluster.list(resource, namespace, label_selector=label)).items

    found = await _live(data, kubeconfig, kind, read)
    return found if isinstance(found, list) else []


async def _live(
    data: str,
    kubeconfig: str | None,
    kind: Kind,
    read: Callable[["HttpCluster", Resource], Awaitable[Result]],
) -> Result | str | None:
    """Return the result of a read, or a message if nothing was read.

    None if the API server does not serve the kind.
    """
    from pvbus.adapters.kubernetes.cluster import HttpCluster  # most commands read the bus only

    path = Path(kubeconfig) if kubeconfig else DataPaths(Path(data)).kubeconfig
    if not path.exists():
        return f"there is no {path}: the live object was not looked at"
    try:
        cluster = await HttpCluster.connect(path)
        try:
            resource = await cluster.resource(kind)
            return await read(cluster, resource) if resource is not None else None
        finally:
            await cluster.close()
    except TransientError as exc:
        return f"the API server does not answer ({exc}): the live object was not looked at"
