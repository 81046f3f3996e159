"""The Kafka bus as the contract suite wants it: workers are buses of one event loop, time is real."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import KafkaSettings
from tests.tools.pace import patience


class KafkaHarness:
    """A prefix of its own makes each harness an empty bus."""

    record_bytes_max = 10_000
    session_seconds = 10.0
    drain_seconds = 4.0  # twice the usual: a busy machine must not look like a worker that hangs
    handover_seconds = patience(6.0)  # two rebalances, each of a heartbeat, and a producer for each lease
    expiry_seconds = 30.0  # the cleaner's turns, and a segment must be closed first
    wake_seconds = 1.0
    visible_within_seconds = patience(5.0)
    margin_seconds = patience(3.0)
    suspensions_min = 2  # for its records and offsets, and for the commit

    def __init__(self, bootstrap: str, bus_class: type[KafkaBus] = KafkaBus, **settings: Any) -> None:
        self.settings = KafkaSettings(
            bootstrap=tuple(bootstrap.split(",")),
            prefix=f"test-{secrets.token_hex(4)}",
            session_seconds=self.session_seconds,
            drain_seconds=self.drain_seconds,
            record_bytes_max=self.record_bytes_max,
            **settings,
        )
        self._bus_class = bus_class
        self._buses: list[KafkaBus] = []
        self._running: dict[KafkaBus, asyncio.Event] = {}

    async def open(self) -> KafkaBus:
        bus = await self._bus_class.open(self.settings)
        self._buses.append(bus)
        return bus

    async def kill(self, bus: KafkaBus) -> None:
        await bus.abandon()
        self._buses.remove(bus)

    def freeze(self, bus: KafkaBus) -> None:
        """Hold the worker's talk with its group, in both directions; its steps still go out."""
        running = self._running[bus] = asyncio.Event()
        for membership in bus._memberships:
            coordinator = membership._consumer._coordinator
            coordinator._send_req = _held_by(running, coordinator._send_req)

    def thaw(self, bus: KafkaBus) -> None:
        self._running.pop(bus).set()

    def contended(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def close(self) -> None:
        for running in self._running.values():
            running.set()
        await asyncio.gather(*(bus.close() for bus in self._buses))


def _held_by(running: asyncio.Event, send: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def held(request: Any) -> Any:
        await running.wait()
        answer = await send(request)
        await running.wait()
        return answer

    return held
