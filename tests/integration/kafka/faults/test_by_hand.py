"""What people do to topics and groups behind the services' backs, with Kafka's own tools."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import (
    DESIRED,
    DLQ,
    LATEST,
    OBJECTS,
    RESULTS,
    SETRESULTS,
    TARGETS,
    UNROLL,
    VARIANTS,
    WATCHES,
)
from pvbus.core.kernel.topics import SERVICES, partition_key
from tests.e2e.faults.fleet import REVISION, SET, VARIANT
from tests.integration.kafka.faults.deployment import (
    PARTITIONS,
    Deployment,
    ServiceProcess,
    deployment,
)
from tests.tools.kafka import FAULTS, KafkaCluster, tool

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = 2  # clusters per region
ENDS_SECONDS_MAX = 40.0
"""Two looks at the topics, and an orderly end without some of them."""

GROUPS = [f"pvbus-{service}" for service in SERVICES]


def kafka_tool(made: Deployment, main_class: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = tool(main_class, "--bootstrap-server", made.kafka.bootstrap, *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def reset(made: Deployment, *how: str) -> str:
    """Move the offsets of all groups; returns what the tool says."""
    groups = [word for group in GROUPS for word in ("--group", f"{made.prefix}.{group}")]
    arguments = ("--reset-offsets", "--all-topics", *how, "--execute")
    done = kafka_tool(made, "consumer.group.ConsumerGroupCommand", *groups, *arguments)
    return done.stdout + done.stderr


def forget(made: Deployment) -> None:
    """Delete the offsets, with the groups."""
    groups = [word for group in GROUPS for word in ("--group", f"{made.prefix}.{group}")]
    done = kafka_tool(made, "consumer.group.ConsumerGroupCommand", *groups, "--delete")
    assert "successful" in done.stdout, done.stdout + done.stderr


async def settled_after(made: Deployment, running: ServiceProcess) -> None:
    """The system still follows changes, and keeps every promise."""
    stop = asyncio.Event()
    load = asyncio.create_task(made.fleet.work(stop))
    await asyncio.sleep(3.0)
    stop.set()
    await load
    await made.converged()
    await made.promises_kept(running)


async def test_offsets_moved_by_hand(three_proxied: KafkaCluster, tmp_path: Path) -> None:
    """Offsets moved backwards, forwards or deleted while the services are stopped: nothing is written twice
    and nothing is missed. While they run, Kafka refuses."""
    async with deployment(three_proxied, tmp_path, clusters_per_region=SMALL) as (made, steady):
        reported = await asyncio.to_thread(reset, made, "--to-earliest")
        assert "inactive" in reported, reported
        for meanwhile in (lambda: moved(made, "--to-earliest"), lambda: forget(made)):
            steady = await made.restarts_quietly(steady, meanwhile)
        await asyncio.to_thread(steady.stop)
        await missed(made)
        await asyncio.to_thread(moved, made, "--to-latest")
        steady = made.run_all()
        await made.ready(steady)
        await made.converged()
        await settled_after(made, steady)


async def missed(made: Deployment) -> None:
    """Let one service after the other write what the next ones will find behind moved offsets."""
    stop = asyncio.Event()
    load = asyncio.create_task(made.fleet.work(stop))
    first = made.run("first", "pvbus.cli", "run", "ingest", "unroll")
    await made.ready(first)
    await asyncio.sleep(3.0)
    stop.set()
    await load
    assert await asyncio.to_thread(first.stop) == 0
    now = await asyncio.to_thread(made.snapshot)
    committed = {tp: offset for tp, offset in now.offsets.items() if tp[0] == "pvbus-render"}
    unread = [
        row
        for row in now.rows
        if row.topic == TARGETS and row.offset >= committed.get(("pvbus-render", row.partition, TARGETS), 0)
    ]
    assert unread, "there is something to miss"


def moved(made: Deployment, *how: str) -> None:
    reported = reset(made, *how)
    assert "Error" not in reported, reported


@pytest.mark.parametrize("topic", [TARGETS, OBJECTS][: max(1, FAULTS // 10)])
async def test_a_deleted_topic(three_proxied: KafkaCluster, tmp_path: Path, topic: str) -> None:
    """Workers end and name the topic and what to do; a restart refuses; done as told, all is made anew from
    the cluster, and nothing in the cluster changes."""
    async with deployment(three_proxied, tmp_path, clusters_per_region=SMALL) as (made, steady):
        before = await lasting(made)
        name = f"{made.prefix}.{topic}"
        done = await asyncio.to_thread(
            kafka_tool, made, "TopicCommand", "--delete", "--topic", re.escape(name)
        )
        assert done.returncode == 0, done.stderr
        reported = await ended(made, steady)
        assert f"topic {name} was deleted" in reported
        assert "pvbus topics --create" in reported
        again = made.run_all()
        assert topic in await ended(made, again)
        made_by_hand = made.run(
            "create", "pvbus.cli", "topics", "--create", "--bus", made.settings["PVBUS_BUS"]
        )
        assert topic in await ended(made, made_by_hand)
        pattern = re.search(r"--delete --topic '([^']+)'", reported)
        assert pattern is not None, reported
        done = await asyncio.to_thread(kafka_tool, made, "TopicCommand", "--delete", "--topic", pattern[1])
        assert done.returncode == 0, done.stderr
        anew = made.run_all()
        await made.ready(anew)
        await made.converged()
        assert await lasting(made) == before
        await settled_after(made, anew)


async def lasting(made: Deployment) -> dict[str, object]:
    """What the cluster has, less the conditions: they tell of the making anew."""
    return {
        f"{kind}/{obj['metadata']['name']}": (
            obj["metadata"]["uid"],
            obj["metadata"].get("generation"),
            obj["spec"],
        )
        for kind in (SET, VARIANT, REVISION)
        for obj in await made.fleet.items(kind)
    }


async def test_more_partitions(three_proxied: KafkaCluster, tmp_path: Path) -> None:
    """With more partitions keys would be looked for in the wrong one: workers end, name both counts, and
    refuse to start."""
    async with deployment(three_proxied, tmp_path, clusters_per_region=SMALL) as (made, steady):
        name = f"{made.prefix}.{DESIRED}"
        more = ("--alter", "--topic", re.escape(name), "--partitions", str(PARTITIONS + 1))
        done = await asyncio.to_thread(kafka_tool, made, "TopicCommand", *more)
        assert done.returncode == 0, done.stderr
        reported = await ended(made, steady)
        assert f"topic {name} has {PARTITIONS + 1} partitions now and had {PARTITIONS}" in reported
        again = made.run_all()
        assert f"{PARTITIONS + 1} partitions instead of {PARTITIONS}" in await ended(made, again)


async def ended(made: Deployment, process: ServiceProcess) -> str:
    """Wait until a process has ended by itself, as failed; returns the line with its error."""
    await made.until(lambda: not process.is_running, ENDS_SECONDS_MAX, process)
    assert process.process.returncode == 1, process.output[-3000:]
    errors = [line for line in process.output.splitlines() if line.startswith("error: ")]
    assert errors, process.output[-3000:]
    assert "Traceback" not in process.output, process.output[-3000:]
    return "\n".join(errors)


GARBAGE = [
    *((topic, b"default/garbage", b"{") for topic in (VARIANTS, DESIRED, RESULTS, SETRESULTS, "pvbus.sets")),
    *((topic, b"default/garbage", b'{"metadata": 5, "uid": 5}') for topic in (VARIANTS, RESULTS, SETRESULTS)),
    (TARGETS, b"default/garbage|web", b'"perhaps"'),
    (TARGETS, b"no bar", b"[]"),
    (OBJECTS, b"no object", b"{}"),
    (OBJECTS, b"fleet.example.dev/Cluster|default|garbage", b'{"uid": {}}'),
    ("pvbus.injectables", b"fleet.example.dev/Cluster|default|garbage", b"null"),
    (WATCHES, b"fleet.example.dev/Cluster|garbage", b'"watch everything"'),
    (WATCHES, b"\xff\xfe", b"{}"),
    (VARIANTS, b"\xff\xfe", b"{}"),
    (VARIANTS, b"!sync|config.porch.kpt.dev/PackageVariant", b'{"state": "fine"}'),
]

READ_AT_START_ONLY = [
    (UNROLL, b"default/web|garbage", b"[]"),
    (LATEST, b"PackageVariant", b"[]"),
    (LATEST, b"PackageVariant|default/garbage|Ready", b"{"),
]
"""What only its writer reads, when it starts, gets no letter: whoever lost it makes it again."""


async def test_garbage_on_every_topic(three_proxied: KafkaCluster, tmp_path: Path) -> None:
    """What cannot be decoded goes to the dead letters, once or more and with its place; everything else
    goes on, and after a restart too."""
    async with deployment(three_proxied, tmp_path, clusters_per_region=SMALL) as (made, steady):
        topic_partitions = await asyncio.to_thread(litter, made, GARBAGE)
        await asyncio.to_thread(litter, made, READ_AT_START_ONLY)
        stop = asyncio.Event()
        load = asyncio.create_task(made.fleet.work(stop))
        try:
            await made.until(lambda: not topic_partitions - lettered(made), 30.0, steady)
        except AssertionError:
            raise AssertionError(f"no letters of {sorted(topic_partitions - lettered(made))}") from None
        stop.set()
        await load
        await made.converged()
        assert steady.is_running
        await asyncio.to_thread(steady.stop)
        again = made.run_all()
        await made.ready(again)
        await settled_after(made, again)


def litter(made: Deployment, garbage: list[tuple[str, bytes, bytes]]) -> set[tuple[str, int, int]]:
    """Write garbage as any client could; returns where it stands."""
    producer = Producer({"bootstrap.servers": made.kafka.bootstrap, "log_level": 4})
    topic_partitions: set[tuple[str, int, int]] = set()
    for topic, key, value in garbage:
        text = key.decode(errors="replace")
        number = partition(partition_key(topic, text) if "|" in text else text, PARTITIONS)

        def written(error: object, message: object, topic: str = topic) -> None:
            assert error is None, error
            topic_partitions.add((topic, message.partition(), message.offset()))  # type: ignore[attr-defined]

        name = f"{made.prefix}.{topic}"
        producer.produce(name, key=key, value=value, partition=number, on_delivery=written)
    producer.flush(30)
    assert len(topic_partitions) == len(garbage)
    return topic_partitions


def lettered(made: Deployment) -> set[tuple[str, int, int]]:
    with made.reader() as reader:
        letters = [json.loads(record.value or b"") for record in reader.all((DLQ,)).records]
    return {(letter["topic"], letter["partition"], letter["offset"]) for letter in letters}
