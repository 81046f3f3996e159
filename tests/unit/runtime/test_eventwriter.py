"""Kubernetes Events are written beside the work: what is repeated, refused or too much harms nobody."""

import asyncio
from collections.abc import Awaitable, Callable

from structlog.testing import capture_logs

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.effects import KindRef, Notice
from pvbus.ports.cluster import Object, Resource
from pvbus.runtime.process.eventwriter import QUEUE_MAX, REFUSED_SECONDS, EventWriter
from tests.kit.processes import run_simulated

EVENTS = Resource("events.k8s.io", "v1", "Event", "events", True)


def notice(number: int, *, name: str = "web", note: str = "made") -> Notice:
    kind = KindRef("config.porch.kpt.dev", "PackageVariant", "v1alpha1")
    time = "2030-01-01T00:00:00.000Z"
    return Notice(f"{number:016x}", kind, "default", name, f"uid-{name}", "Ready", note, False, time)


class EventWorld:
    """An API server, and the writer of its Events. trouble: what its next writes fail with."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(now=lambda: "2030-01-01T00:00:00Z")
        self.cluster.serve(EVENTS)
        self.cluster.before_write = self._fail
        self.trouble: list[Exception] = []
        self.tries = 0
        self.writer = EventWriter(self.cluster, SimulatedClock(), instance="host")

    def _fail(self, verb: str, obj: Object) -> None:
        self.tries += 1
        if self.trouble:
            raise self.trouble.pop(0)

    async def events(self) -> list[Object]:
        return list((await self.cluster.list(EVENTS, "default")).items)


def simulated(scenario: Callable[[EventWorld], Awaitable[None]]) -> list[str]:
    """Run a scenario beside the writer, and return the lines of the log."""

    async def main() -> None:
        world = EventWorld()
        running = asyncio.create_task(world.writer.run())
        await scenario(world)
        running.cancel()

    with capture_logs() as lines:
        run_simulated(main())
    return [line["event"] for line in lines]


def test_a_repetition_is_counted_in_the_event_and_made_anew_where_that_is_gone() -> None:
    async def scenario(world: EventWorld) -> None:
        for number in (1, 2, 3):
            world.writer.tell(notice(number))
        await asyncio.sleep(1)
        (event,) = await world.events()
        assert event["series"]["count"] == 3
        await world.cluster.delete(EVENTS, "default", event["metadata"]["name"])
        world.writer.tell(notice(4))
        await asyncio.sleep(1)
        (event,) = await world.events()
        assert "series" not in event

    assert simulated(scenario) == []


def test_a_refusal_is_one_warning_and_nothing_is_asked_for_a_while() -> None:
    """Then the right may have been granted."""

    async def scenario(world: EventWorld) -> None:
        refusal = PermanentError("forbidden", reason=FORBIDDEN)
        world.trouble = [refusal, refusal]
        for number in range(5):
            world.writer.tell(notice(number, note=str(number)))
        await asyncio.sleep(1)
        assert world.tries == 1
        for number in (10, 11):  # refused again, then granted
            await asyncio.sleep(REFUSED_SECONDS)
            world.writer.tell(notice(number, note=str(number)))
        await asyncio.sleep(1)
        assert [event["note"] for event in await world.events()] == ["11"]

    assert simulated(scenario) == ["Kubernetes Events are refused; everything else goes on"]


def test_an_api_server_that_is_away_for_a_moment_gets_the_event_once() -> None:
    async def scenario(world: EventWorld) -> None:
        world.trouble = [TransientError("away"), TransientError("busy", retry_after_seconds=2.0)]
        world.writer.tell(notice(1))
        world.writer.tell(notice(1, note="the same change again, after a crash"))
        await asyncio.sleep(10)
        assert [event["note"] for event in await world.events()] == ["made"]

    assert simulated(scenario) == []


def test_the_queue_is_bounded_while_the_api_server_is_slow() -> None:
    async def scenario(world: EventWorld) -> None:
        world.trouble = [TransientError("away")] * (10 * QUEUE_MAX)
        for number in range(2 * QUEUE_MAX):
            world.writer.tell(notice(number, name=f"web-{number}"))
        await asyncio.sleep(10 * QUEUE_MAX)
        assert world.tries <= 5 * QUEUE_MAX

    simulated(scenario)
