"""Programs that read only the latest events learn when a change of a set has arrived everywhere.

All services but inject run as one process on an API server; the test stands for inject, whose results it
writes. `PVBUS_TEST_VARIANTS` sets how many variants the set has.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from confluent_kafka import Producer

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.crds import cluster_crds
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP, Condition
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import LATEST, RESULTS, ResultRow
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.process.assembly import partition_count
from tests.integration.kafka.consumers import Consumers, running
from tests.kit.cluster import KindClient
from tests.tools.installation import environment
from tests.tools.kafka import KafkaCluster
from tests.tools.served import serve
from tests.tools.topicreader import TopicReader

VARIANTS = int(os.environ.get("PVBUS_TEST_VARIANTS", "200"))
SECONDS_MAX = 60.0 + VARIANTS / 10
"""Of one wait; ten times what an idle machine needs."""

APART_SECONDS_MAX = 1.0
"""Between a program that reads the topic and one that polls the API server."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300 + VARIANTS // 2)]

NAMESPACE, NAME = "default", "web"
SET = Kind(CONFIG_GROUP, "PackageVariantSet")
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
REPOSITORY = Kind(CONFIG_GROUP, "Repository")
REVISION = Kind(PORCH_GROUP, "PackageRevision")
CONFIG_MAP = Kind("", "ConfigMap")
_event = msgspec.json.Decoder(ConditionEvent)


class Fleet(KindClient[HttpCluster]):
    """A set with a variant for each ConfigMap, and the results that the test writes for them."""

    def __init__(self, cluster: HttpCluster, bootstrap: str, prefix: str) -> None:
        super().__init__(cluster, NAMESPACE)
        self._bootstrap, self._prefix = bootstrap, prefix
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 2})

    async def fill(self) -> None:
        """Create what the set needs, its targets, and the set."""
        upstream = {"packageName": "web", "repository": "blueprints", "workspaceName": "v1", "revision": 1}
        await self.create(REVISION, "blueprints.web.v1", spec={**upstream, "lifecycle": "Published"})
        for name in ("blueprints", "deploy"):
            git = {"type": "git", "git": {"repo": f"https://example.org/{name}.git"}}
            await self.create(REPOSITORY, name, spec=git)
        for number in range(VARIANTS):
            await self.create(CONFIG_MAP, f"edge-{number:04}", labels={"stage": "production"})
        selector = {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": {"stage": "production"}}
        template = {"downstream": {"repo": "deploy", "packageExpr": "'web-' + target.name"}}
        spec = {
            "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
            "targets": [{"objectSelector": selector, "template": template}],
        }
        await self.create(SET, NAME, spec=spec)

    async def change(self) -> None:
        """Change the template: each variant gets a new spec."""
        obj = await self.set()
        (target,) = obj["spec"]["targets"]
        target["template"]["labels"] = {"edition": "two"}
        await self.put(SET, obj)

    async def set(self) -> Object:
        obj: Object | None = await self.get(SET, NAME)
        assert obj is not None
        return obj

    async def variants(self, generation: int) -> list[Object]:
        """Wait until each variant has the spec of this generation."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                listed = await self.items(VARIANT)
                if len(listed) == VARIANTS and all(is_at(obj, generation) for obj in listed):
                    return list(listed)
                await asyncio.sleep(0.2)

    async def publish_results(self, generation: int) -> None:
        """Write that each variant is ready with this generation."""
        for obj in await self.variants(generation):
            meta = obj["metadata"]
            ready = Condition(
                type="Ready",
                status="True",
                reason="NoErrors",
                message="made",
                observed_generation=generation,
            )
            row = ResultRow(uid=meta["uid"], generation=generation, conditions=(ready,))
            key = f"{NAMESPACE}/{meta['name']}"
            number = partition(key, partition_count())
            self._producer.produce(f"{self._prefix}.{RESULTS}", encode_row(row), key, number)
            self._producer.poll(0)
        assert await asyncio.to_thread(self._producer.flush, 60) == 0

    async def reported(self, condition: str, generation: int) -> float:
        """Poll the API server until the set's condition is True for a generation; return that moment."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                for found in (await self.set()).get("status", {}).get("conditions", ()):
                    if (found["type"], found["status"]) == (condition, "True") and (
                        found.get("observedGeneration", 0) >= generation
                    ):
                        return time.monotonic()
                await asyncio.sleep(0.05)

    def latest(self) -> list[Condition]:
        """Return the conditions Ready of the variants' last events."""
        with TopicReader(self._bootstrap, self._prefix) as reader:
            table = reader.all([LATEST]).table(LATEST)
        events = map(_event.decode, table.values())
        return [e.condition for e in events if (e.kind, e.condition.type) == ("PackageVariant", "Ready")]


def is_at(obj: Object, generation: int) -> bool:
    return int(obj["metadata"]["generation"]) == generation


class Stage(NamedTuple):
    fleet: Fleet
    consumers: Consumers


@pytest.fixture
async def stage(kafka_one: KafkaCluster, java_view: list[str], tmp_path: Path) -> AsyncIterator[Stage]:
    prefix = f"waiting-{secrets.token_hex(4)}"
    bus = f"kafka://{kafka_one.bootstrap}/{prefix}"
    command = [sys.executable, "-P", "-m", "pvbus.cli", "run", "ingest", "unroll", "render", "conditions"]
    with serve(tmp_path / "api", cluster_crds()) as served, contextlib.ExitStack() as stack:
        kubeconfig = served.server.kubeconfig_path
        log = stack.enter_context((tmp_path / "services.log").open("wb"))
        stack.enter_context(running([*command, "--bus", bus, "--kubeconfig", str(kubeconfig)], log))
        cluster = await HttpCluster.connect(kubeconfig)
        try:
            fleet = Fleet(cluster, kafka_one.bootstrap, prefix)
            await fleet.fill()
            await fleet.publish_results(1)
            await fleet.reported("Ready", 1)
            yield Stage(fleet, Consumers(kafka_one.bootstrap, prefix, java_view))
        finally:
            await cluster.close()


class Waiting:
    """A consumer that waits for a condition of the set."""

    def __init__(self, process: asyncio.subprocess.Process, wanted: str) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._wanted = process, wanted
        self._out, self._err = process.stdout, process.stderr

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, command: list[str], condition: str) -> AsyncIterator["Waiting"]:
        """Run one, from the moment that it has read all that is there."""
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        )
        waiting = cls(process, f"{NAMESPACE}/{NAME}: {condition} is True for generation 2")
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while not (line := await waiting._err.readline()).startswith(b"waiting for "):
                    assert line, command
            yield waiting
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def ended(self) -> float:
        """Wait until it says that the condition is as wanted; return that moment."""
        async with asyncio.timeout(SECONDS_MAX):
            line = await self._out.readline()
            moment = time.monotonic()
            assert line.decode().strip() == self._wanted
            assert await self._process.wait() == 0
        return moment


async def test_programs_learn_from_the_latest_events_alone_that_a_change_is_everywhere(stage: Stage) -> None:
    """Each example waits for generation 2 of the set; a poll of the API server sees it in the same second as
    the one in Python. All conditions were True before the change, and say so after it."""
    fleet, consumers = stage
    uid = (await fleet.set())["metadata"]["uid"]
    async with contextlib.AsyncExitStack() as stack:

        async def start(command: Callable[..., list[str]], condition: str) -> Waiting:
            arguments = command(f"{NAMESPACE}/{NAME}", uid, "2", condition)
            return await stack.enter_async_context(Waiting.started(arguments, condition))

        python, *others = consumers.waiting
        timed = {condition: await start(python, condition) for condition in ("TargetsApplied", "Ready")}
        waiting = [await start(command, "Ready") for command in others]
        async with asyncio.TaskGroup() as tasks:
            printed = {each: tasks.create_task(timed[each].ended()) for each in timed}
            polled = {each: tasks.create_task(fleet.reported(each, 2)) for each in timed}
            for each in waiting:
                tasks.create_task(each.ended())
            await fleet.change()
            await fleet.publish_results(2)
    for condition in timed:
        ahead = polled[condition].result() - printed[condition].result()
        print(f"{condition} of {VARIANTS:,} variants: the consumer {1000 * ahead:+.0f} ms before the poll")
        assert abs(ahead) <= APART_SECONDS_MAX
    latest = await asyncio.to_thread(fleet.latest)
    assert [(c.status, c.observed_generation) for c in latest] == [("True", 2)] * VARIANTS
