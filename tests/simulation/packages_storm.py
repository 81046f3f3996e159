"""The course of a schedule of packages: users act, services are killed, and at rest everything is judged."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter

from tests.simulation.packages_world import SERVICES, PackagesWorld


class Storm(ABC):
    """One seed. Subclasses say what users do, and what must come of it."""

    def __init__(self, world: PackagesWorld, steps: int) -> None:
        self.world = world
        self.random = world.random
        self.steps = steps
        self.counts: Counter[str] = Counter()

    async def play(self) -> Counter[str]:
        """Play the schedule; return what was exercised. Raises AssertionError for what must not be."""
        world = self.world
        self.prepare()
        await world.begin()
        await asyncio.sleep(5.0)
        world.storm()
        for _ in range(self.steps):
            await self.act()
            await asyncio.sleep(self.random.choice([0.01, 0.3, 2.0, 15.0]))
            await self.meet_accident(self.random.random())
        self.finish()
        await world.calm()
        await world.rest()
        world.check_rest()
        problems = self.problems()
        assert problems == [], "\n".join(problems)
        await world.check_restart()
        world.check_rest()
        self.counts.update(world.judge.counts)
        self.counts.update(world.faults.counts)
        await world.close()
        return self.counts

    @abstractmethod
    def prepare(self) -> None:
        """Put what is there before the services begin."""

    @abstractmethod
    async def act(self) -> None:
        """Do what a user does."""

    @abstractmethod
    def finish(self) -> None:
        """End what keeps packages from being installed, before the faults end."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Return what is not as the rules of packages say, at rest."""

    async def meet_accident(self, luck: float) -> None:
        """Kill a service, or lose the bus, or neither. luck: from 0 to 1; below 0.2 and 0.21."""
        if luck < 0.2:
            service = self.random.choice(SERVICES)
            await self.world.kill(next(each for each in self.world.running if each.startswith(service)))
            self.counts["kills"] += 1
            await asyncio.sleep(self.random.choice([0.0, 5.0]))
            self.world.add_worker(service)
        elif luck < 0.21:
            self.counts["buses emptied"] += 1
            await self.world.empty_bus()
