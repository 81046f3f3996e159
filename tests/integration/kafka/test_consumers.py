"""The example consumers rebuild the fleet's conditions from the public topics, and agree with the API server.

Ingest and conditions run as a process of their own on an API server; the test stands for inject, whose
results it writes. Another program repeats old events meanwhile, as a mirror of the topics does that lost its
offsets.
`PVBUS_TEST_EVENTS` sets the number of events, repetitions included.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pytest
from confluent_kafka import Producer

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.crds import cluster_crds
from pvbus.core.api.variants import CONFIG_GROUP, Condition
from pvbus.core.codec import encode_row
from pvbus.core.keys import partition
from pvbus.core.records import CONDITIONS, LATEST, RESULTS, ResultRow
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.process.assembly import partition_count
from tests.tools.installation import CHECKOUT, environment
from tests.tools.kafka import KafkaCluster, java_command
from tests.tools.served import serve
from tests.tools.topicreader import ReadRecord, TopicReader

EVENTS = int(os.environ.get("PVBUS_TEST_EVENTS", "1500"))
END_SECONDS_MAX = 120.0 + EVENTS / 20
"""Of one wait; a hundred times what an idle machine needs."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300 + EVENTS // 5)]

FOLDER = CHECKOUT / "examples" / "consumers"
NAMESPACE = "default"
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
VARIANTS = max(40, EVENTS // 200)
REPEATED_MAX = 2000


class Printed(NamedTuple):
    """What a consumer printed. repeated, stale: the events that it dropped."""

    lines: list[str]
    applied: int
    repeated: int
    stale: int


class Consumers:
    """The commands of the three examples, for one installation."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self._prefix = bootstrap, prefix

    def python(self, *options: str) -> list[str]:
        given = ("--bootstrap", self.bootstrap, "--prefix", self._prefix)
        return [sys.executable, str(FOLDER / "fleet_view.py"), *given, *options]

    def java(self, *options: str) -> list[str]:
        return java_command(str(FOLDER / "FleetView.java"), self.bootstrap, self._prefix, *options)

    def shell(self, folder: Path) -> list[str]:
        return [str(FOLDER / "fleet-view.sh"), self.bootstrap, self._prefix, str(folder)]


def printed(output: bytes, errors: bytes) -> Printed:
    found = re.search(rb"applied (\d+), repeated (\d+), stale (\d+)", errors)
    assert found is not None, errors.decode()
    return Printed(output.decode().splitlines(), *map(int, found.groups()))


def run(command: list[str]) -> Printed:
    done = subprocess.run(command, capture_output=True, timeout=END_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return printed(done.stdout, done.stderr)


@contextlib.contextmanager
def running(command: list[str], log: BinaryIO | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until the block ends. log: of its output; by default it is read at its end."""
    process = subprocess.Popen(
        command, stdout=log or subprocess.PIPE, stderr=log or subprocess.PIPE, env=environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[bytes]") -> Printed:
    """Let a consumer that follows read to the end, and print its view."""
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    return printed(*process.communicate(timeout=END_SECONDS_MAX))


class World:
    """The API server's variants, the results that the test writes for them, and the topics."""

    def __init__(self, cluster: HttpCluster, bootstrap: str, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 2})
        self._random = random.Random(7)
        self._wanted: dict[str, set[tuple[str, str, str]]] = {}

    async def variants(self) -> dict[str, Object]:
        resource = await self._cluster.resource(VARIANT)
        assert resource is not None
        listed = await self._cluster.list(resource, NAMESPACE)
        return {obj["metadata"]["name"]: obj for obj in listed.items}

    async def fill(self) -> None:
        """Create the variants that are not there."""
        resource = await self._cluster.resource(VARIANT)
        assert resource is not None
        present = await self.variants()
        for number in range(VARIANTS):
            name = f"web-{number:03}"
            if name not in present:
                meta = {"name": name, "namespace": NAMESPACE}
                obj = {"apiVersion": f"{CONFIG_GROUP}/v1alpha1", "kind": "PackageVariant", "metadata": meta}
                upstream = {"repo": "up", "package": "web", "revision": 1}
                spec = {"upstream": upstream, "downstream": {"repo": "edge", "package": name}}
                await self._cluster.create(resource, {**obj, "spec": spec})

    async def remove_some(self, number: int) -> None:
        resource = await self._cluster.resource(VARIANT)
        assert resource is not None
        for name, obj in list((await self.variants()).items())[number % 5 :: 10]:
            await self._cluster.delete(resource, NAMESPACE, name, uid=obj["metadata"]["uid"])
            self._wanted.pop(name, None)
            self._send(RESULTS, f"{NAMESPACE}/{name}", None)

    async def results(self, number: int) -> None:
        """Write a result for each variant: OnHold comes and goes, the others change."""
        for name, obj in (await self.variants()).items():
            found = [("Stalled", self._random.choice("TF"), f"S{number}"), ("Ready", "F", f"R{number}")]
            if self._random.random() < 0.5:
                found.append(("OnHold", "T", f"H{number}"))
            conditions = tuple(
                Condition(
                    type=kind,
                    status="True" if status == "T" else "False",
                    reason=reason,
                    message=f"round {number}",
                    observed_generation=obj["metadata"]["generation"],
                )
                for kind, status, reason in found
            )
            row = ResultRow(uid=obj["metadata"]["uid"], generation=1, conditions=conditions)
            self._wanted[name] = {(c.type, c.status, c.reason) for c in conditions}
            self._send(RESULTS, f"{NAMESPACE}/{name}", encode_row(row))
        assert self._producer.flush(60) == 0

    def _send(self, topic: str, key: str, value: bytes | None) -> None:
        number = partition(key, partition_count())
        self._producer.produce(f"{self._prefix}.{topic}", key=key, value=value, partition=number)

    def repeat(self, records: list[ReadRecord]) -> None:
        """Append events again, as they are, to their partitions."""
        for record in records:
            self._producer.produce(
                f"{self._prefix}.{CONDITIONS}",
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    async def lines(self) -> list[str]:
        """Return the view that the API server's objects give."""
        found = [
            "\t".join((f"{NAMESPACE}/{name}", c["type"], c["status"], c.get("reason", "")))
            for name, obj in (await self.variants()).items()
            for c in obj.get("status", {}).get("conditions", ())
        ]
        return sorted(found, key=str.encode)

    async def arrived(self, is_alive: Callable[[], bool]) -> None:
        """Wait until the statuses are those of the results, and the table has no variants that are gone."""
        wanted = sorted(
            (
                "\t".join((f"{NAMESPACE}/{name}", *each))
                for name, found in self._wanted.items()
                for each in found
            ),
            key=str.encode,
        )
        async with asyncio.timeout(END_SECONDS_MAX):
            while await self.lines() != wanted or await asyncio.to_thread(self._reported) != set(
                self._wanted
            ):
                assert is_alive()
                await asyncio.sleep(0.2)

    def _reported(self) -> set[str]:
        with TopicReader(self._bootstrap, self._prefix) as reader:
            keys = reader.all([LATEST]).table(LATEST)
        return {key.decode().split("|")[1].partition("/")[2] for key in keys}

    def events(self) -> list[ReadRecord]:
        with TopicReader(self._bootstrap, self._prefix) as reader:
            return list(reader.all([CONDITIONS]).records)


async def churned(world: World, is_alive: Callable[[], bool]) -> int:
    """Change all variants round by round, and repeat old events; return how many events there are then."""
    records: list[ReadRecord] = []
    number = 0
    while len(records) < EVENTS or number < 4:
        if number % 3 == 2:
            await world.remove_some(number)
            await asyncio.to_thread(world.repeat, records[:REPEATED_MAX])
        await world.fill()
        repeating = asyncio.to_thread(world.repeat, records[-REPEATED_MAX:])
        await asyncio.gather(repeating, world.results(number))
        await world.arrived(is_alive)
        records = await asyncio.to_thread(world.events)
        number += 1
    return len(records)


class Stage(NamedTuple):
    """An installation whose services run, and its world."""

    world: World
    consumers: Consumers
    is_alive: Callable[[], bool]


NEEDED = {"kcat": "kcat", "jq": "jq", "javac": "openjdk-17-jdk-headless"}
"""What the examples run on, and Debian's package of it."""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    missing = [package for name, package in NEEDED.items() if shutil.which(name) is None]
    if missing:
        reason = f"the examples need more: apt install {' '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture
async def stage(kafka_one: KafkaCluster, tmp_path: Path) -> AsyncIterator[Stage]:
    prefix = f"consumers-{secrets.token_hex(4)}"
    with serve(tmp_path / "api", cluster_crds()) as served:
        kubeconfig = served.server.kubeconfig_path
        command = [sys.executable, "-P", "-m", "pvbus.cli", "run", "ingest", "conditions"]
        command += ["--bus", f"kafka://{kafka_one.bootstrap}/{prefix}", "--kubeconfig", str(kubeconfig)]
        cluster = await HttpCluster.connect(kubeconfig)
        log = tmp_path / "services.log"
        try:
            with log.open("wb") as file, running(command, file) as services:
                async with asyncio.timeout(END_SECONDS_MAX):
                    while b'"event": "started"' not in log.read_bytes():
                        assert services.poll() is None, log.read_text()
                        await asyncio.sleep(0.1)
                world = World(cluster, kafka_one.bootstrap, prefix)
                consumers = Consumers(kafka_one.bootstrap, prefix)
                yield Stage(world, consumers, lambda: services.poll() is None)
        finally:
            await cluster.close()


async def test_three_consumers_agree_with_the_api_server_whatever_is_delivered_twice(
    stage: Stage, tmp_path: Path
) -> None:
    """Two follow all the changes, one reads them in portions; then each begins anew.

    Variants go and come back, old events come again among the new ones, and the consumer in portions reads
    again from where it once was.
    """
    world, consumers = stage.world, stage.consumers
    portions, state = consumers.shell(tmp_path / "view"), tmp_path / "view" / "state.json"
    with running(consumers.python("--follow")) as python, running(consumers.java("--follow")) as java:
        first = await asyncio.to_thread(run, portions)
        assert first.lines == []
        early = json.loads(state.read_bytes())
        count = await churned(world, stage.is_alive)
        found = {
            "Python": await asyncio.to_thread(ended, python),
            "Java": await asyncio.to_thread(ended, java),
            "shell": await asyncio.to_thread(run, portions),
        }
    wanted = await world.lines()
    assert len(wanted) > VARIANTS
    for name, each in found.items():
        print(f"{name}, of {count} events: {each[1:]}")
        assert each.lines == wanted, name
        assert each.applied > 0, name
        assert each.repeated > 0, name
        assert each.stale > 0, name
    state.write_text(json.dumps({**json.loads(state.read_bytes()), "offsets": early["offsets"]}))
    again = await asyncio.to_thread(run, portions)
    assert (again.lines, again.applied) == (wanted, 0)
    for command in (consumers.python(), consumers.java(), consumers.shell(tmp_path / "another view")):
        anew = await asyncio.to_thread(run, command)
        assert anew.lines == wanted, command


async def test_a_consumer_names_a_topic_that_is_not_there(stage: Stage, tmp_path: Path) -> None:
    """A mistyped prefix is the usual cause."""
    mistyped = Consumers(stage.consumers.bootstrap, "mistyped")
    for command in (mistyped.python(), mistyped.java(), mistyped.shell(tmp_path / "view")):
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=END_SECONDS_MAX)
        assert done.returncode == 1, command
        assert b"no topic mistyped.pvbus.conditions: check" in done.stderr, done.stderr.decode()
