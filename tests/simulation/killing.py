"""A world in which one service is killed before one of its turns: the code between two awaits is one turn.

A run without a kill counts the turns of each service, and notes those with an effect: a write that is about
to be sent, one that is carried out and not answered yet, and a step of the bus before and after its commit.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from pvbus.ports.bus import Lease, Output
from tests.kit.processes import Process
from tests.simulation.world import Running, SimulatedWorld


class Kill(NamedTuple):
    """What is killed.

    service: its name
    turn: of the first process of the service, from 1
    """

    service: str
    turn: int


class KillingWorld(SimulatedWorld):
    """Counts the turns of the first process of some services, and kills one of them.

    counted: the services
    kill_at: what is killed, set before the first worker is added; None for nothing
    turns: how many turns each service has taken so far
    effects: the turns of each service that a write or a step begins or ends with
    """

    counted: ClassVar[Sequence[str]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kill_at: Kill | None = None
        self.effects: dict[str, set[int]] = {service: set() for service in self.counted}
        self.turns: dict[str, int] = {}
        self.killed = asyncio.Event()

    def add_worker(self, service: str) -> Running:
        running = super().add_worker(service)
        if service not in self.counted or service in self.turns:
            return running
        self.turns[service] = 0
        running.process.before_turn = partial(self._count_turn, service, running.process)
        stepped, write, noted = running.bus.on_step, running.cluster._write, self.effects[service]

        def note_step(lease: Lease, outputs: Sequence[Output]) -> None:
            noted.update((self.turns[service], self.turns[service] + 1))
            stepped(lease, outputs)

        async def note_write(*what: Any) -> Any:
            noted.add(self.turns[service] + 1)
            try:
                return await write(*what)
            finally:
                noted.add(self.turns[service])

        running.bus.on_step = note_step
        running.cluster._write = note_write  # type: ignore[assignment,method-assign]  # the cluster has no hook for it
        return running

    def _count_turn(self, service: str, process: Process) -> None:
        self.turns[service] += 1
        if self.kill_at == (service, self.turns[service]):
            process.freeze()
            self.killed.set()

    async def obey(self) -> None:
        """Kill the service when its turn has come, and start another one."""
        await self.killed.wait()
        assert self.kill_at is not None
        service = self.kill_at.service
        await self.kill(next(name for name in self.running if name.startswith(service)))
        self.add_worker(service)
