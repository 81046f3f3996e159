"""Carries out a plan of faults on a running world, and takes each of them back."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from pvbus.core.kernel.topics import SERVICES
from pvbus.runtime.process.hosting import BUS_SECONDS_MAX
from tests.chaos.plan import LANES, PARALLEL, Kind, Planned, Strike
from tests.chaos.world import ChaosWorld
from tests.integration.kafka.faults.deployment import Deployment, ServiceProcess
from tests.tools.faultyapi import ApiFault, FaultyApi
from tests.tools.kafka import KafkaCluster, restarted

PROCESSES_EACH = 2
GIVEN_UP = f"did not answer within {BUS_SECONDS_MAX:.0f} s"
"""What a process says that ends as the bus did not answer at its start: `docs/operations.md` promises it."""
READY_SECONDS_MAX = 300.0
"""Ten processes start at once; on a busy machine that takes minutes, and it is not what is judged."""


class Event:
    """A line of the sequence of faults."""

    def __init__(self, kind: Kind, text: str) -> None:
        self.began = time.time()
        self.kind = kind
        self.text = text
        self.ended = 0.0


class Death(NamedTuple):
    """A process that ended by itself. given_up: it waited for the bus, had not begun, and said so."""

    time: float
    text: str
    given_up: bool


class Workers:
    """Each service as so many processes. A slot has one process after the other."""

    def __init__(self, made: Deployment) -> None:
        self._made = made
        self.slots = [(name, number) for name in SERVICES for number in range(PROCESSES_EACH)]
        self.processes = [self._start(slot) for slot in range(len(self.slots))]
        self.busy: set[int] = set()
        self.deaths: list[Death] = []

    def _start(self, slot: int) -> ServiceProcess:
        name, number = self.slots[slot]
        return self._made.run(f"{name}-{number}", "pvbus.cli", "run", name)

    def restart(self, slot: int) -> None:
        self.processes[slot] = self._start(slot)

    def choose(self, victim: int) -> int | None:
        """Return a slot that nothing else is done to, by a number."""
        free = [slot for slot in range(len(self.slots)) if slot not in self.busy]
        return free[victim % len(free)] if free else None

    async def ready(self) -> None:
        for process in self.processes:
            await self._made.ready(process, READY_SECONDS_MAX)

    async def watch(self) -> None:
        """Note who ends without having been killed by us, and start it again, as a supervisor does."""
        while True:
            for slot, process in enumerate(self.processes):
                if slot not in self.busy and not process.is_running:
                    code, printed = process.process.returncode, process.output
                    given_up = code == 1 and GIVEN_UP in printed and not process.has_begun
                    text = f"{self.slots[slot]} ended with {code}: {printed[-1500:]}"
                    self.deaths.append(Death(time.time(), text, given_up))
                    self.restart(slot)
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """End all as a supervisor does, and at once."""
        codes = await asyncio.gather(*(asyncio.to_thread(each.stop) for each in self.processes))
        assert not any(codes), f"exit codes {codes}"

    async def restart_all(self) -> None:
        await self.stop()
        for slot in range(len(self.slots)):
            self.restart(slot)
        await self.ready()


class Striker:
    """See the module. struck: faults by kind; events: what was done, in order."""

    def __init__(self, world: ChaosWorld, kafka: KafkaCluster, workers: Workers, api: FaultyApi) -> None:
        self.struck: Counter[Kind] = Counter()
        self.events: list[Event] = []
        self._world = world
        self._kafka = kafka
        self._workers = workers
        self._api = api

    def counts(self) -> Counter[Kind]:
        """Return the faults that struck, by kind, those of requests included."""
        found = self.struck.copy()
        for kind, count in self._api.counts.items():
            found[kind] += count
        return found

    def is_excused(self, death: Death) -> bool:
        """Whether this process gave up rightly: faults of brokers struck while it waited for the bus."""
        waited_since = death.time - BUS_SECONDS_MAX
        struck = (each for each in self.events if each.kind in LANES["brokers"])
        return death.given_up and any(
            each.began < death.time and (not each.ended or each.ended > waited_since) for each in struck
        )

    async def carry_out(self, lanes: dict[str, list[Planned]]) -> None:
        """Play all lanes at once, to their ends."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for lane, planned in lanes.items():
                tasks.create_task(self._lane(planned, began, is_parallel=lane in PARALLEL))

    async def _lane(self, planned: Sequence[Planned], began: float, *, is_parallel: bool) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in planned:
                await asyncio.sleep(began + each.at - time.monotonic())
                if is_parallel:
                    tasks.create_task(self._strike(each))
                else:
                    await self._strike(each)

    async def _strike(self, planned: Planned) -> None:
        match planned.kind:
            case ApiFault():
                self._api.arm(planned.kind)
            case Strike.SERVICE_KILLED | Strike.SERVICE_FROZEN:
                await self._strike_service(planned)
            case Strike.SERVER_KILLED | Strike.SERVER_FROZEN:
                await self._strike_server(planned)
            case Strike.COMPACTED:
                while not await self._world.compact():  # noqa: ASYNC110 - nothing was written since the last time
                    await asyncio.sleep(1.0)
                self.struck[planned.kind] += 1
            case _:
                await self._strike_brokers(planned)

    @asynccontextmanager
    async def _noted(self, kind: Kind, text: str) -> AsyncIterator[None]:
        event = Event(kind, text)
        self.events.append(event)
        yield
        event.ended = time.time()
        self.struck[kind] += 1

    async def _strike_service(self, planned: Planned) -> None:
        slot = self._workers.choose(planned.victim)
        if slot is None:
            return
        self._workers.busy.add(slot)
        process = self._workers.processes[slot]
        try:
            async with self._noted(planned.kind, f"{self._workers.slots[slot]} for {planned.seconds:.1f} s"):
                if planned.kind is Strike.SERVICE_KILLED:
                    await asyncio.to_thread(process.kill)
                    await asyncio.sleep(planned.seconds)
                    self._workers.restart(slot)
                else:
                    process.freeze()
                    try:
                        await asyncio.sleep(planned.seconds)
                    finally:
                        process.continue_()
        finally:
            self._workers.busy.discard(slot)

    async def _strike_server(self, planned: Planned) -> None:
        async with self._noted(planned.kind, f"for {planned.seconds:.1f} s"):
            if planned.kind is Strike.SERVER_KILLED:
                await self._world.kill()
                await asyncio.sleep(planned.seconds)
                await self._world.restart()
            else:
                self._world.freeze()
                try:
                    await asyncio.sleep(planned.seconds)
                finally:
                    self._world.thaw()

    async def _strike_brokers(self, planned: Planned) -> None:
        brokers = self._kafka.brokers
        count = 2 if planned.kind in (Strike.BROKERS_KILLED, Strike.BROKERS_FROZEN) else 1
        first = planned.victim % len(brokers)
        chosen = [brokers[(first + n) % len(brokers)] for n in range(count)]
        names = ", ".join(str(broker.number) for broker in chosen)
        async with self._noted(planned.kind, f"{names} for {planned.seconds:.1f} s"):
            if planned.kind in (Strike.BROKER_KILLED, Strike.BROKERS_KILLED):
                await asyncio.gather(*(asyncio.to_thread(broker.kill) for broker in chosen))
                await asyncio.sleep(planned.seconds)
                await asyncio.gather(*(restarted(broker) for broker in chosen))
            else:
                for broker in chosen:
                    broker.freeze()
                try:
                    await asyncio.sleep(planned.seconds)
                finally:
                    for broker in chosen:
                        broker.thaw()
