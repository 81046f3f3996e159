"""The example consumers take what docs/events.md says may come; `pvbus lag --subscribers` shows their lag.

The events are made by the code that makes those of the service conditions.
"""

import asyncio
import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import settings_of
from pvbus.cli.subscribers import find_positions
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.variants.publishing import CONDITION_CHANGED
from tests.integration.kafka.consumers import Consumers, following, run
from tests.tools.events import PARTITIONS, EventWriter, writer
from tests.tools.installation import pvbus
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS_MAX = 60.0
LAST: dict[str, Any] = {
    "last": True,
    "condition": {"type": "Ready", "status": "Unknown", "reason": "Withdrawn"},
}


class Stage(NamedTuple):
    events: EventWriter
    consumers: Consumers
    bus: KafkaBus
    url: str


@pytest.fixture
async def stage(kafka_one: KafkaCluster, java_view: list[str]) -> AsyncIterator[Stage]:
    prefix = f"contract-{secrets.token_hex(4)}"
    url = f"kafka://{kafka_one.bootstrap}/{prefix}"
    bus = await KafkaBus.open(settings_of(url))
    try:
        async with writer(bus) as events:
            yield Stage(events, Consumers(kafka_one.bootstrap, prefix, java_view), bus, url)
    finally:
        await bus.close()


def line(name: str, reason: str = "Testing", *, type_: str = "Ready", status: str = "False") -> str:
    return "\t".join((f"default/{name}", type_, status, reason))


async def write(
    events: EventWriter,
    topic: str,
    name: str,
    *,
    time: str = "2030-01-01T00:00:00.000Z",
    event_type: str = CONDITION_CHANGED,
    header: tuple[str, bytes] = ("ce_specversion", b"1.0"),
    **changed: Any,
) -> None:
    """Write an event of a release that may be a later one."""
    condition = {"type": "Ready", "status": "False", "reason": "Testing"}
    data: dict[str, Any] = {"kind": "PackageVariant", "namespace": "default", "name": name, "uid": "uid"}
    data |= {"id": secrets.token_hex(8), "time": time, "condition": condition, **changed}
    key = f"PackageVariant|default/{name}"
    if topic == LATEST:
        key = f"{key}|{data['condition']['type']}"
    value = json.dumps(data).encode()
    await events.write(topic, key, value, ("ce_type", event_type.encode()), header)


async def publish_all(events: EventWriter) -> list[str]:
    """Write all that may be on the two topics; return the view that it gives."""
    for name in ("plain", "gone", "withdrawn", "reborn"):
        await events.change(name, "first")
    await events.write(
        LATEST, "PackageVariant|default/gone|Ready", None
    )  # with the last event of the other topic
    await write(events, CONDITIONS, "gone", **LAST)
    await write(events, CONDITIONS, "withdrawn", **LAST)
    await events.write(LATEST, "PackageVariant|default/withdrawn|Ready", None)
    await write(events, CONDITIONS, "withdrawn", time="2029-12-31T23:59:59.999Z")  # an old one, again
    for topic in (LATEST, CONDITIONS):
        await write(events, topic, "reborn", time="2031-01-01T00:00:00.000Z")
        await write(events, topic, "newer", newField={"a": [1]}, header=("ce_dataschema", b"v9"))
        await write(events, topic, "newer", condition=_of("Fresh"), header=("pvbus-schema", b"99"))
        await write(
            events, topic, "strange", event_type="dev.pvbus.condition.changed.v2", condition=_of("Two")
        )
        await write(events, topic, "cluster", kind="ClusterVariant")
    strange = ("ce_type", b"dev.pvbus.package.renamed.v1")
    await events.write(CONDITIONS, "PackageVariant|default/strange", b"[]", strange)
    await events.write(CONDITIONS, "PackageVariant|default/strange", b"not JSON", strange)
    return [
        line("newer", type_="Fresh"),
        line("newer"),
        line("plain"),
        line("reborn"),
    ]


def _of(type_: str) -> dict[str, str]:
    return {"type": type_, "status": "False", "reason": "Testing"}


async def test_consumers_take_what_a_later_release_may_send(stage: Stage, tmp_path: Path) -> None:
    """Tombstones, last events, unknown fields, headers, kinds, condition types and event types: as changes,
    and as the latest events that a consumer begins with."""
    events, consumers = stage.events, stage.consumers
    folder = tmp_path / "view"
    groups = [consumers.group(name) for name in ("python", "java")]
    commands = consumers.python("--group", groups[0]), consumers.java("--group", groups[1])
    async with following(*commands) as (python, java):
        await asyncio.to_thread(run, consumers.shell(folder), SECONDS_MAX)
        await until_lag(stage.bus, groups, is_zero)  # they follow
        wanted = await publish_all(events)
        found = {
            "Python": await asyncio.to_thread(python.ended, SECONDS_MAX),
            "Java": await asyncio.to_thread(java.ended, SECONDS_MAX),
            "shell": await asyncio.to_thread(run, consumers.shell(folder), SECONDS_MAX),
        }
    for name, each in found.items():
        assert each.lines == wanted, name
        assert (each.stale, each.unknown) == (1, 3), name
    for command in (consumers.python(), consumers.java(), consumers.shell(tmp_path / "another")):
        anew = await asyncio.to_thread(run, command, SECONDS_MAX)
        assert anew.lines == wanted, command


async def test_changes_that_were_deleted_before_they_were_read_are_noticed(
    stage: Stage, tmp_path: Path
) -> None:
    """Consumers that stood still for longer than the retention begin anew; the shell's says how to."""
    events, consumers, bus = stage.events, stage.consumers, stage.bus
    folder = tmp_path / "view"
    await events.change("web", "first")
    await asyncio.to_thread(run, consumers.shell(folder), SECONDS_MAX)
    groups = [consumers.group(name) for name in ("python", "java")]
    commands = consumers.python("--group", groups[0]), consumers.java("--group", groups[1])
    async with following(*commands) as followers:
        await events.change("web", "second")
        await until_lag(bus, groups, is_zero)
        for each in followers:
            each.freeze()
        for number in range(3):  # the first one may have been asked for already
            await events.change("web", str(number))
            await events.change("edge", str(number))
        await asyncio.to_thread(delete_changes, consumers, ("web", "edge"))
        for each in followers:
            each.thaw()
        await events.change("late", "after all")
        await until_lag(bus, groups, is_zero)
        views = [await asyncio.to_thread(each.ended, SECONDS_MAX) for each in followers]
    wanted = [line("edge"), line("late"), line("web")]
    for view in views:
        assert view.lines == wanted, view
        assert "changes were deleted before they were read: beginning anew" in view.errors
    done = await asyncio.to_thread(
        subprocess.run, consumers.shell(folder), capture_output=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 1
    assert f"remove the folder {folder} to begin anew".encode() in done.stderr, done.stderr
    anew = await asyncio.to_thread(run, consumers.shell(tmp_path / "another"), SECONDS_MAX)
    assert anew.lines == wanted


async def test_offsets_beyond_the_end_are_noticed(stage: Stage, tmp_path: Path) -> None:
    """They are those of topics that were deleted and made again."""
    consumers, folder = stage.consumers, tmp_path / "view"
    await asyncio.to_thread(run, consumers.shell(folder), SECONDS_MAX)
    state = json.loads((folder / "state.json").read_bytes())
    (folder / "state.json").write_text(
        json.dumps(
            {**state, "offsets": {number: offset + 1000 for number, offset in state["offsets"].items()}}
        )
    )
    done = await asyncio.to_thread(
        subprocess.run, consumers.shell(folder), capture_output=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 1
    assert b"to begin anew" in done.stderr


def delete_changes(consumers: Consumers, names: Sequence[str]) -> None:
    """Delete all changes of the partitions of these objects, as the retention does."""
    numbers = {partition(f"default/{name}", PARTITIONS) for name in names}
    end = -1  # Kafka's word for the high watermark
    asked = [TopicPartition(f"{consumers.prefix}.{CONDITIONS}", number, end) for number in numbers]
    with AdminClient({"bootstrap.servers": consumers.bootstrap, "log_level": 2}) as admin:
        for answer in admin.delete_records(asked).values():
            answer.result(SECONDS_MAX)


def is_zero(lag: int) -> bool:
    return lag == 0


async def until_lag(bus: KafkaBus, groups: Sequence[str], is_so: Callable[[int], bool]) -> None:
    """Wait until the committed offsets of these groups say so."""
    partitions = [(CONDITIONS, number) for number in range(PARTITIONS)]
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            ends = await bus.end_offsets(partitions)
            found = await bus.readers_of([CONDITIONS])
            lags = [
                sum(ends[each] - found[group].committed.get(each, 0) for each in partitions)
                for group in groups
                if group in found
            ]
            if len(lags) == len(groups) and all(map(is_so, lags)):
                return
            await asyncio.sleep(0.1)


async def test_the_lag_of_each_subscriber_is_visible(stage: Stage) -> None:
    """Of a consumer that stands still, not of one that reads; with what was deleted before it was read."""
    events, consumers, bus, url = stage
    groups = {name: consumers.group(name) for name in ("python", "java")}
    async with following(
        consumers.python("--group", groups["python"]), consumers.java("--group", groups["java"])
    ) as (python, _):
        await events.change("web", "first")
        await until_lag(bus, list(groups.values()), is_zero)
        python.freeze()
        for number in range(3):
            await events.change("web", str(number))
        await until_lag(bus, [groups["java"]], is_zero)
        rows = await find_positions(bus)
        lags = {group: sum(row.lag for row in rows if row.group == group) for group in groups.values()}
        assert lags[groups["java"]] == 0
        assert lags[groups["python"]] == 6  # each event, and the mark of its transaction
        await asyncio.to_thread(delete_changes, consumers, ("web",))
        (row,) = [row for row in await find_positions(bus) if row.group == groups["python"] and row.deleted]
        assert (row.partition, row.lag, row.deleted) == (partition("default/web", PARTITIONS), 0, 6)
        text = await asyncio.to_thread(pvbus, "lag", "--subscribers", "--bus", url)
        assert text.returncode == 0, text.stderr
        header, *lines = text.stdout.splitlines()
        assert header.split() == ["GROUP", "TOPIC", "PARTITIONS", "STATE", "LAG", "DELETED"]
        assert [each.split() for each in lines if consumers.prefix in each] == [
            [groups["java"], CONDITIONS, "12/12", "Empty", "0", "0"],
            [groups["python"], CONDITIONS, "12/12", "Empty", "0", "6"],
        ]
