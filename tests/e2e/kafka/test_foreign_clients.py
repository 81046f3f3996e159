"""Clients that are not ours read the public topic, and see the groups."""

import asyncio
import json
import os
import shutil
import subprocess
from collections import defaultdict
from typing import NamedTuple

import pytest

from pvbus.cli.reading import open_existing_bus, read_topic
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import CONDITIONS
from pvbus.core.kernel.topics import SERVICES
from pvbus.core.variants.publishing import CONDITION_CHANGED
from pvbus.ports.bus import Record
from pvbus.runtime.process.assembly import INPUTS, partition_count
from pvbus.runtime.process.installation import read_installation
from tests.e2e.kafka.conftest import Installed
from tests.tools.kafka import tool
from tests.tools.topicreader import TopicReader

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def through_the_port(installed: Installed) -> list[Record]:
    """Read the public topic as pvbus does."""

    async def read() -> list[Record]:
        async with open_existing_bus("", installed.bus) as bus:
            return await read_topic(bus, CONDITIONS)

    return asyncio.run(read())


def incarnation(installed: Installed) -> str:
    """Return the id of the installation."""

    async def read() -> str:
        async with open_existing_bus("", installed.bus) as bus:
            found = await read_installation(bus)
        assert found is not None
        return found.incarnation

    return asyncio.run(read())


class Printed(NamedTuple):
    """A record as kcat prints it."""

    partition: int
    offset: int
    key: str
    headers: dict[str, str]
    data: dict[str, object]


@pytest.fixture
def kcat() -> str:
    found = shutil.which("kcat")
    if found is None:
        reason = "kcat is not there (Debian: apt install kcat)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def printed_by(kcat: str, installed: Installed) -> list[Printed]:
    """Let kcat read the topic to its end."""
    command = [kcat, "-b", installed.bootstrap, "-t", f"{installed.prefix}.{CONDITIONS}", "-C", "-e", "-q"]
    command += ["-X", "isolation.level=read_committed", "-f", "%p\t%o\t%k\t%h\t%s\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = []
    for line in done.stdout.splitlines():
        number, offset, key, headers, value = line.split("\t")
        attributes = dict(header.split("=", 1) for header in headers.split(","))
        found.append(Printed(int(number), int(offset), key, attributes, json.loads(value)))
    return found


def test_kcat_reads_conditions_with_their_cloudevents_headers(installed: Installed, kcat: str) -> None:
    """Each record is a CloudEvent 1.0 in binary mode: attributes as headers, data as JSON, once."""
    events = printed_by(kcat, installed)
    source = f"/pvbus/{incarnation(installed)}/{installed.prefix}"
    assert {(event.partition, event.offset) for event in events} == {
        (record.partition, record.offset) for record in through_the_port(installed)
    }
    assert len(events) > 100
    assert len({event.headers["ce_id"] for event in events}) == len(events)
    for event in events:
        condition = event.data["condition"]
        assert isinstance(condition, dict)
        subject = "/".join(str(event.data[name]) for name in ("kind", "namespace", "name"))
        assert event.headers == {
            "ce_specversion": "1.0",
            "ce_id": event.data["id"],
            "ce_source": source,
            "ce_type": CONDITION_CHANGED,
            "ce_subject": f"{subject}/{condition['type']}",
            "ce_time": event.data["time"],
            "content-type": "application/json",
        }
        object_key = f"{event.data['namespace']}/{event.data['name']}"
        assert event.key == f"{event.data['kind']}|{object_key}"
        assert event.partition == partition(object_key, partition_count())


def test_librdkafka_sees_each_event_once(installed: Installed) -> None:
    """A read_committed consumer sees what the bus's own reader sees, record by record, and no id twice."""
    ours = through_the_port(installed)
    with TopicReader(installed.bootstrap, installed.prefix) as reader:
        theirs = reader.all([CONDITIONS]).records
    assert sorted(tuple(record) for record in theirs) == sorted(tuple(record) for record in ours)
    ids = [dict(record.headers)["ce_id"] for record in theirs]
    assert len(set(ids)) == len(ids) > 100


def test_kafkas_own_tool_shows_the_groups(installed: Installed) -> None:
    """Every service is a group of two members that share its partitions, and has every record behind it.

    The tool's own lag counts the markers that end transactions, too, which nobody reads. ingest commits no
    offsets: it reads the requests for its watches anew, whenever it takes a lease.
    """
    with TopicReader(installed.bootstrap, installed.prefix) as reader:
        everything = reader.all({topic for name in SERVICES for topic in INPUTS[name]})
    address = ("--bootstrap-server", installed.bootstrap)
    listed = console(*address, "--list").split()
    groups = {name: f"{installed.prefix}.pvbus-{name}" for name in SERVICES}
    assert set(groups.values()) <= set(listed)
    for name, group in groups.items():
        rows = described(console(*address, "--describe", "--group", group))
        topics = {f"{installed.prefix}.{topic}" for topic in INPUTS[name]}
        addresses = {(topic, number) for topic in topics for number in range(partition_count())}
        shares: dict[str, set[int]] = defaultdict(set)
        owners: dict[int, set[str]] = defaultdict(set)
        for row in rows:
            shares[row["CONSUMER-ID"]].add(int(row["PARTITION"]))
            owners[int(row["PARTITION"])].add(row["CONSUMER-ID"])
        assert {(row["TOPIC"], int(row["PARTITION"])) for row in rows} >= addresses, name
        assert sorted(map(len, shares.values())) == [6, 6], name
        assert all(len(members) == 1 for members in owners.values()), name
        reached = {(row["TOPIC"], int(row["PARTITION"])): row["CURRENT-OFFSET"] for row in rows}
        unread = {
            (record.topic, record.partition, record.offset)
            for record in everything.records
            if name != "ingest"
            and record.topic in INPUTS[name]
            and not _is_before(record.offset, reached[f"{installed.prefix}.{record.topic}", record.partition])
        }
        assert unread == set(), name


def _is_before(offset: int, reached: str) -> bool:
    return reached != "-" and offset < int(reached)


def console(*arguments: str) -> str:
    command = tool("consumer.group.ConsumerGroupCommand", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


def described(text: str) -> list[dict[str, str]]:
    """Read the tool's table."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], line, strict=True)) for line in lines[head + 1 :]]
