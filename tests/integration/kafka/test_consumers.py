"""The example consumers rebuild the fleet's conditions from the public topics, and agree with the API server.

Ingest and conditions run as a process of their own on an API server; the test stands for inject, whose
results it writes. Services and consumers are killed meanwhile, consumers begin again at the oldest change,
another program repeats old events, as a mirror of the topics does that lost its offsets, and the topic of the
latest events is compacted. `PVBUS_TEST_EVENTS` sets the number of events, repetitions not counted.
"""

import asyncio
import contextlib
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.crds import cluster_crds
from pvbus.core.api.variants import CONFIG_GROUP, Condition
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import CONDITIONS, LATEST, RESULTS, ResultRow
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.process.assembly import partition_count
from tests.integration.kafka.consumers import (
    Consumers,
    Follower,
    Printed,
    following,
    killed_half_way,
    run,
    timed,
)
from tests.kit.cluster import resource_of
from tests.tools.installation import environment
from tests.tools.kafka import KafkaCluster
from tests.tools.served import serve
from tests.tools.topicreader import ReadRecord, TopicReader

EVENTS = int(os.environ.get("PVBUS_TEST_EVENTS", "2000"))
END_SECONDS_MAX = 120.0 + EVENTS / 20
"""Of one wait; a hundred times what an idle machine needs."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300 + EVENTS // 5)]

NAMESPACE = "default"
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
VARIANTS = max(200, EVENTS // 100)
REPEATED_MAX = 1000
CRASHES = 4 if EVENTS > 10_000 else 1
"""So often services and consumers are killed. It takes a session, of 6 s, until others may write."""

_event = msgspec.json.Decoder(ConditionEvent)


class Services:
    """Ingest and conditions in one process, which may be killed and started again."""

    def __init__(self, bus: str, kubeconfig: Path, log: Path) -> None:
        self._command = [sys.executable, "-P", "-m", "pvbus.cli", "run", "ingest", "conditions"]
        self._command += ["--bus", bus, "--kubeconfig", str(kubeconfig)]
        self._log = log
        self.start()

    def start(self) -> None:
        """Start it, also after `kill`."""
        with self._log.open("ab") as log:
            settings = {"PVBUS_KAFKA_SESSION_SECONDS": "6"}
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment(settings))

    async def started(self) -> None:
        async with asyncio.timeout(END_SECONDS_MAX):
            while b'"event": "started"' not in self._log.read_bytes():
                self.check()
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-5000:]


class Published:
    """The events on the topic, read once, in parts; and their fold."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap, self._prefix = bootstrap, prefix
        self._ends: dict[tuple[str, int], int] = {}
        self._last: dict[tuple[str, str, str, str], ConditionEvent] = {}
        self.count = 0
        self.ids: set[str] = set()
        self.oldest: list[ReadRecord] = []
        self.newest: list[ReadRecord] = []

    def read(self) -> None:
        """Read what is new. Every event is later than those before it of the same condition, or known."""
        with TopicReader(self._bootstrap, self._prefix) as reader:
            found = reader.all([CONDITIONS], since=self._ends)
        self._ends |= found.ends
        self.count += len(found.records)
        for record in found.records:
            event = _event.decode(record.value or b"")
            key = (event.kind, event.namespace, event.name, event.condition.type)
            if event.id in self.ids:
                continue
            last = self._last.get(key)
            assert last is None or event.time > last.time, event
            self.ids.add(event.id)
            self._last[key] = event
        self.oldest = [*self.oldest, *found.records][:REPEATED_MAX]
        self.newest = [*self.newest, *found.records][-REPEATED_MAX:]

    def latest(self) -> dict[bytes, str]:
        """Return the ids of the last events of the conditions that have not ended."""
        return {
            f"{kind}|{namespace}/{name}|{type_}".encode(): event.id
            for (kind, namespace, name, type_), event in self._last.items()
            if not event.last
        }

    def table(self) -> tuple[dict[bytes, str], int]:
        """Return the ids in the topic of the latest events, and how many records it has."""
        with TopicReader(self._bootstrap, self._prefix) as reader:
            found = reader.all([LATEST])
        ids = {key: _event.decode(value).id for key, value in found.table(LATEST).items()}
        return ids, len(found.records)


class ConsumerWorld:
    """The API server's variants, the results that the test writes for them, and the topics."""

    def __init__(self, cluster: HttpCluster, services: Services, bootstrap: str, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 2})
        self._looking = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"{prefix}.never-used", "log_level": 2}
        )
        self._random = random.Random(7)
        self._wanted: dict[str, set[tuple[str, str, str]]] = {}
        self.services = services
        self.published = Published(bootstrap, prefix)
        self.copies = 0

    async def variants(self) -> dict[str, Object]:
        resource = await resource_of(self._cluster, VARIANT)
        listed = await self._cluster.list(resource, NAMESPACE)
        return {obj["metadata"]["name"]: obj for obj in listed.items}

    async def fill(self) -> None:
        """Create the variants that are not there."""
        resource = await resource_of(self._cluster, VARIANT)
        present = await self.variants()
        for number in range(VARIANTS):
            name = f"web-{number:04}"
            if name not in present:
                meta = {"name": name, "namespace": NAMESPACE}
                obj = {"apiVersion": f"{CONFIG_GROUP}/v1alpha1", "kind": "PackageVariant", "metadata": meta}
                upstream = {"repo": "up", "package": "web", "revision": 1}
                spec = {"upstream": upstream, "downstream": {"repo": "edge", "package": name}}
                await self._cluster.create(resource, {**obj, "spec": spec})

    async def remove_some(self, number: int) -> None:
        resource = await resource_of(self._cluster, VARIANT)
        for name, obj in list((await self.variants()).items())[number % 5 :: 10]:
            await self._cluster.delete(resource, NAMESPACE, name, uid=obj["metadata"]["uid"])
            self._wanted.pop(name, None)
            self._send(RESULTS, f"{NAMESPACE}/{name}", None)

    async def results(self, number: int, share: slice = slice(None)) -> None:
        """Write a result for each variant, or some: OnHold comes and goes, the others change."""
        for name, obj in list((await self.variants()).items())[share]:
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
        await asyncio.to_thread(self.flush)

    def _send(self, topic: str, key: str, value: bytes | None) -> None:
        number = partition(key, partition_count())
        self._producer.produce(f"{self._prefix}.{topic}", key=key, value=value, partition=number)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

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
        self.flush()
        self.copies += len(records)

    def ends(self) -> list[int]:
        """Return where the partitions of the topic of changes end."""
        topic = f"{self._prefix}.{CONDITIONS}"
        return [
            self._looking.get_watermark_offsets(TopicPartition(topic, number), 60)[1]
            for number in range(partition_count())
        ]

    def compact_often(self) -> None:
        """Have the topic of the latest events compacted all the time: its segments are closed at once."""
        settings = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, f"{self._prefix}.{LATEST}", incremental_configs=entries)
        with AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 2}) as admin:
            for answer in admin.incremental_alter_configs([resource]).values():
                answer.result(60)

    async def lines(self) -> list[str]:
        """Return the view that the API server's objects give."""
        found = [
            "\t".join((f"{NAMESPACE}/{name}", c["type"], c["status"], c.get("reason", "")))
            for name, obj in (await self.variants()).items()
            for c in obj.get("status", {}).get("conditions", ())
        ]
        return sorted(found, key=str.encode)

    def wanted(self) -> list[str]:
        """Return the view that the results give."""
        found = (
            "\t".join((f"{NAMESPACE}/{name}", *each))
            for name, conditions in self._wanted.items()
            for each in conditions
        )
        return sorted(found, key=str.encode)

    async def arrived(self) -> None:
        """Wait until the statuses are those of the results, and the table has no variants that are gone."""
        wanted = self.wanted()
        async with asyncio.timeout(END_SECONDS_MAX):
            while await self.lines() != wanted or await asyncio.to_thread(self._reported) != set(
                self._wanted
            ):
                self.services.check()
                await asyncio.sleep(0.2 + VARIANTS / 2000)

    def _reported(self) -> set[str]:
        return {key.decode().split("|")[1].partition("/")[2] for key in self.published.table()[0]}


class Churn:
    """Changes all variants round by round, while everything that may happen to a consumer happens."""

    def __init__(
        self, world: ConsumerWorld, followers: list[Follower], portions: list[str], folder: Path
    ) -> None:
        self._world, self._followers = world, followers
        self._portions, self._folder = portions, folder
        self.kills = self.unfinished = 0
        """Conditions that the API server did not have yet when the services were killed."""

    async def run(self) -> None:
        published = self._world.published
        number = crashes = 0
        while len(published.ids) < EVENTS or number < 4:
            is_crash = crashes < CRASHES and len(published.ids) >= EVENTS * (crashes + 1) // (CRASHES + 1)
            await self._round(number, is_crash=is_crash)
            crashes += is_crash
            number += 1
        assert crashes == CRASHES

    async def _round(self, number: int, *, is_crash: bool) -> None:
        world, published = self._world, self._world.published
        if number % 3 == 2:
            await world.remove_some(number)
            await asyncio.to_thread(world.repeat, published.oldest)
        await world.fill()
        if is_crash:
            await self._crash(number)
        else:
            repeating = asyncio.to_thread(world.repeat, published.newest)
            await asyncio.gather(repeating, world.results(number))
        await world.arrived()
        await asyncio.to_thread(published.read)
        await asyncio.to_thread(run, self._portions, END_SECONDS_MAX)

    async def _crash(self, number: int) -> None:
        """Kill the services once they publish half of the changes, and each consumer while it reads."""
        world = self._world
        before = await asyncio.to_thread(world.ends)
        await world.results(number, slice(0, None, 2))
        async with asyncio.timeout(END_SECONDS_MAX):
            while await asyncio.to_thread(world.ends) == before:
                world.services.check()
        world.services.kill()
        self.unfinished += len(set(world.wanted()) - set(await world.lines()))
        await world.results(number, slice(1, None, 2))
        world.services.start()
        for each in self._followers:
            await asyncio.to_thread(each.restart_from_the_oldest)
            self.kills += 1
        async with asyncio.timeout(END_SECONDS_MAX):
            while not await asyncio.to_thread(killed_half_way, self._portions, self._folder, END_SECONDS_MAX):
                pass  # it was faster
        self.kills += 1


class Stage(NamedTuple):
    """An installation whose services run, and its world."""

    world: ConsumerWorld
    consumers: Consumers


@pytest.fixture
async def stage(kafka_one: KafkaCluster, java_view: list[str], tmp_path: Path) -> AsyncIterator[Stage]:
    prefix = f"consumers-{secrets.token_hex(4)}"
    with serve(tmp_path / "api", cluster_crds()) as served:
        kubeconfig = served.server.kubeconfig_path
        services = Services(f"kafka://{kafka_one.bootstrap}/{prefix}", kubeconfig, tmp_path / "services.log")
        with contextlib.ExitStack() as stack:
            stack.callback(services.kill)
            await services.started()
            cluster = await HttpCluster.connect(kubeconfig)
            try:
                world = ConsumerWorld(cluster, services, kafka_one.bootstrap, prefix)
                yield Stage(world, Consumers(kafka_one.bootstrap, prefix, java_view))
            finally:
                await cluster.close()


async def test_three_consumers_agree_with_the_api_server_whatever_is_delivered_twice(
    stage: Stage, tmp_path: Path
) -> None:
    """Two follow all the changes, one reads them in portions; all are killed; then each begins anew, once
    from the latest events, and once from the oldest change."""
    world, consumers = stage.world, stage.consumers
    folder = tmp_path / "view"
    portions, state = consumers.shell(folder), folder / "state.json"
    began = time.perf_counter()
    async with following(consumers.python(), consumers.java()) as followers:
        first = await asyncio.to_thread(run, portions, END_SECONDS_MAX)
        assert first.lines == []
        early = json.loads(state.read_bytes())
        await asyncio.to_thread(world.compact_often)
        churn = Churn(world, followers, portions, folder)
        await churn.run()
        seconds = time.perf_counter() - began
        found = {
            name: await asyncio.to_thread(each.ended, END_SECONDS_MAX)
            for name, each in zip(("Python", "Java"), followers, strict=True)
        }
        found["shell"] = await asyncio.to_thread(run, portions, END_SECONDS_MAX)
    wanted = await world.lines()
    assert len(wanted) > VARIANTS
    for name, each in found.items():
        report(name, each)
        assert each.lines == wanted, name
    await check_topics(world)
    published = world.published
    print(
        f"{len(published.ids):,} events of {VARIANTS:,} variants in {seconds:.0f} s, {world.copies:,} "
        f"repetitions on the topic; services killed {CRASHES} times, {churn.unfinished:,} conditions open; "
        f"consumers killed {churn.kills} times"
    )
    for name in ("Python", "Java"):
        assert found[name].repeated > 0, name
        assert found[name].stale > 0, name
    state.write_text(json.dumps({**json.loads(state.read_bytes()), "offsets": early["offsets"]}))
    again = await asyncio.to_thread(run, portions, END_SECONDS_MAX)
    report("shell, again from its first offsets", again)
    assert (again.lines, again.applied, again.read) == (wanted, 0, published.count)
    await check_beginnings(consumers, early, wanted, published, tmp_path)


def report(name: str, found: Printed, seconds: float = 0.0) -> None:
    speed = f", {found.read / seconds:,.0f} events/s" if seconds else ""
    print(f"{name}: applied {found.applied:,}, dropped {found.repeated:,} + {found.stale:,}{speed}")


async def check_topics(world: ConsumerWorld) -> None:
    """Nothing was published twice, the table is the fold of the changes, and it was compacted."""
    published = world.published
    assert published.count == len(published.ids) + world.copies
    async with asyncio.timeout(END_SECONDS_MAX):
        while True:
            table, records = await asyncio.to_thread(published.table)
            assert table == published.latest()
            if records < len(published.ids) // 2:
                break
            await asyncio.sleep(0.5)
    print(f"{records:,} records of {len(published.ids):,} are left of the latest events")


async def check_beginnings(
    consumers: Consumers, early: dict[str, object], wanted: list[str], published: Published, folder: Path
) -> None:
    """Each consumer begins anew: with the latest events alone, with all changes after these, and the shell's
    with the changes alone."""
    for command in (consumers.python(), consumers.java(), consumers.shell(folder / "another view")):
        anew = await asyncio.to_thread(run, command, END_SECONDS_MAX)
        assert (anew.lines, anew.read) == (wanted, 0), command
    beginning = folder / "from the changes"
    beginning.mkdir()
    (beginning / "state.json").write_text(json.dumps({"offsets": early["offsets"], "events": {}}))
    for name, command in {
        "Python": consumers.python("--replay"),
        "Java": consumers.java("--replay"),
        "shell": consumers.shell(beginning),
    }.items():
        replayed, seconds = await asyncio.to_thread(timed, command, END_SECONDS_MAX)
        report(f"{name}, from the oldest change", replayed, seconds)
        assert (replayed.lines, replayed.read) == (wanted, published.count), name


async def test_a_consumer_names_a_topic_that_is_not_there(
    kafka_one: KafkaCluster, java_view: list[str], tmp_path: Path
) -> None:
    """A mistyped prefix is the usual cause."""
    mistyped = Consumers(kafka_one.bootstrap, "mistyped", java_view)
    for command in (mistyped.python(), mistyped.java(), mistyped.shell(tmp_path / "view")):
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=END_SECONDS_MAX)
        assert done.returncode == 1, command
        assert b"no topic mistyped.pvbus.conditions: check" in done.stderr, done.stderr.decode()
