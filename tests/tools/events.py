"""Public events as the service `conditions` writes them, and a receiver of the sink's requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from aiohttp import web

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import LATEST, UNROLL
from pvbus.core.kernel.topics import row_partition, topic_specs
from pvbus.core.variants.publishing import Publisher
from pvbus.ports.bus import Bus, Lease, Output

PARTITIONS = 12
SOURCE = "/pvbus/test"
SECONDS_MAX = 60.0


class EventWriter:
    """Publishes changes of `Ready` of PackageVariants, each in a step of its own. Made by `writer`."""

    def __init__(self, bus: Bus, lease: Lease) -> None:
        self._bus = bus
        self._lease = lease
        self._publisher = Publisher(SOURCE)
        self._latest: dict[str, dict[str, ConditionEvent]] = {}
        self._now = 1_700_000_000.0
        self.ids: dict[str, list[str]] = {}
        """The ids of the events of each key, in their order."""

    async def change(
        self, name: str, message: str, *, type_: str = "Ready", kind: str = "PackageVariant"
    ) -> str:
        """Publish a change of an object in the namespace `default`; return the id of the event."""
        key = f"{kind}|default/{name}"
        self._now += 1
        latest = self._latest.setdefault(key, {})
        condition = Condition(type=type_, status="False", reason="Testing", message=message)
        news = self._publisher.changed(key, "uid", [condition], latest, self._now)
        outputs = []
        for put in news.puts:
            number = row_partition(put.topic, put.key, PARTITIONS)
            outputs.append(Output(put.topic, number, put.key.encode(), encode_row(put.row), put.headers))
            if put.topic == LATEST:
                assert isinstance(put.row, ConditionEvent)
                latest[type_] = put.row
        await self._bus.step(self._lease, outputs)
        self.ids.setdefault(key, []).append(latest[type_].id)
        return latest[type_].id

    async def write(self, topic: str, key: str, value: bytes | None, *headers: tuple[str, bytes]) -> None:
        """Write any record into the partition of an object's key, which begins with its kind."""
        number = partition(key.split("|")[1], PARTITIONS)
        await self._bus.step(self._lease, [Output(topic, number, key.encode(), value, headers)])


@contextlib.asynccontextmanager
async def writer(bus: Bus) -> AsyncIterator[EventWriter]:
    """Create the topics, and write to them within the block."""
    await bus.create_topics(topic_specs(PARTITIONS))
    leases: asyncio.Queue[Lease] = asyncio.Queue()

    async def revoked(lease: Lease) -> None:
        return

    membership = await bus.join("test", (UNROLL,), assigned=leases.put, revoked=revoked)
    yield EventWriter(bus, await leases.get())
    await membership.leave()


class Got(NamedTuple):
    """A request. key: `<Kind>|<namespace>/<name>`. status: of the answer."""

    key: str
    id: str
    headers: dict[str, str]
    data: dict[str, Any]
    body: bytes
    status: int


Answering = Callable[[str, dict[str, Any]], web.Response]


class WebhookReceiver:
    """Takes events; `answer` may be replaced. got: every request, in order. open: those not answered yet, by
    key, of which no key may have two."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answer: Answering = lambda id_, data: web.Response()
        self.delay_seconds = 0.0
        self.url = ""
        self.parallel_max = 0
        self._open: list[str] = []
        self.overlaps: list[str] = []

    def accepted(self) -> dict[str, list[str]]:
        """Return the ids of each key, as they were accepted, repetitions included."""
        found: dict[str, list[str]] = {}
        for each in self.got:
            if 200 <= each.status < 300:
                found.setdefault(each.key, []).append(each.id)
        return found

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        document = json.loads(body)
        is_structured = request.content_type == "application/cloudevents+json"
        data = document["data"] if is_structured else document
        id_ = document["id"] if is_structured else request.headers["ce-id"]
        key = f"{data['kind']}|{data['namespace']}/{data['name']}"
        if key in self._open:
            self.overlaps.append(key)
        self._open.append(key)
        self.parallel_max = max(self.parallel_max, len(self._open))
        await asyncio.sleep(self.delay_seconds)
        self._open.remove(key)
        response = self.answer(id_, data)
        self.got.append(Got(key, id_, dict(request.headers), data, body, response.status))
        return response


@contextlib.asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[WebhookReceiver]:
    """Run a receiver within the block."""
    receiver = WebhookReceiver()
    application = web.Application()
    application.router.add_post("/events", receiver.take)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/events"
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def until(condition: Callable[[], bool], problem: Callable[[], object]) -> None:
    """Wait until the state of the world is as wanted. problem: what is the case instead."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_MAX
    while not condition():
        assert loop.time() < deadline, problem()
        await asyncio.sleep(0.02)


def first_times(ids: list[str]) -> list[str]:
    """Return each id once, in the order of its first occurrence."""
    return list(dict.fromkeys(ids))
