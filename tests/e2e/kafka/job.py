"""The main job with a plan: an example fleet that is changed round by round, the same in each run.

What a round changes follows from its number alone, and nothing is changed twice before the first change
has arrived everywhere: so generations, too, are the same in each run.
"""

import asyncio
import json
import os
import random
import re
import signal
import time
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec

from pvbus.cli.supervisor import States
from pvbus.examples import fleet as example
from pvbus.runtime.process.state import ProcessState
from tests.e2e.faults.fleet import CLUSTER, SET, Fleet
from tests.tools.installation import Installation, children_of
from tests.tools.pace import patience

ROUNDS_MIN = 4  # one of each kind
SETTLED_SECONDS_MAX = patience(300.0)  # the outcome counts, not the time: machines may be slow
DOWN_MAX = 2
"""So many processes may be starting when another one is killed; with more, on a slow machine, nobody would
ever get to work."""

_state = msgspec.json.Decoder(ProcessState)


class Job(Fleet):
    """The client of both runs."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._seed = seed
        self.changes = 0

    async def round(self, number: int) -> None:
        """Change some things, no two of which concern the same variant."""
        rng = random.Random(f"{self._seed}/{number}")
        clusters = sorted(await self.items(CLUSTER), key=lambda obj: str(obj["metadata"]["name"]))
        chosen = [obj for obj in clusters if obj["metadata"]["labels"]["stage"] == "production"]
        rng.shuffle(chosen)
        match number % ROUNDS_MIN:
            case 0:
                for obj in chosen[:12]:
                    labels = {**obj["metadata"]["labels"], "tier": f"tier-{number}"}
                    await self._note(self._patch(CLUSTER, obj, {"metadata": {"labels": labels}}))
            case 1:
                await self._come_and_go(number, chosen)
            case 2:
                await self._edit_template(number)
            case _:
                for obj in chosen[:12]:
                    spec = {**obj["spec"], "replicas": 10 + number}
                    await self._note(self._patch(CLUSTER, obj, {"spec": spec}))

    async def _come_and_go(self, number: int, chosen: list[dict[str, object]]) -> None:
        """Some targets lose their label, some go altogether, and others come."""
        for obj in chosen[:3]:
            labels = {**obj["metadata"]["labels"], "stage": "staging"}  # type: ignore[index]
            await self._note(self._patch(CLUSTER, obj, {"metadata": {"labels": labels}}))
        for obj in chosen[3:5]:
            await self._note(self._delete(CLUSTER, obj))
        for index, region in enumerate(example.REGIONS):
            name = f"{region}-new-{number}"
            labels = {"region": region, "stage": "production", "tier": "new"}
            spec = {"nodes": 3, "replicas": 1, "serviceCidr": f"10.{200 + index}.{number}.0/24"}
            await self._note(
                self._create(CLUSTER, {"metadata": {"name": name, "labels": labels}, "spec": spec})
            )

    async def _edit_template(self, number: int) -> None:
        (obj,) = [obj for obj in await self.items(SET) if obj["metadata"]["name"] == "web"]
        spec = json.loads(json.dumps(obj["spec"]))
        context = spec["targets"][0]["template"]["packageContext"]
        context["dataExprs"] = [*context["dataExprs"][:1], {"key": "note", "value": f"edition-{number}"}]
        await self._note(self._patch(SET, obj, {"spec": spec}))

    async def _note(self, change: "asyncio.Future[None] | object") -> None:
        self.changes += 1
        await change  # type: ignore[misc]

    async def arrived(self, up: Installation, *, seconds_max: float = SETTLED_SECONDS_MAX) -> float:
        """Wait until the world is what it must be; returns the seconds."""
        began = time.monotonic()
        while problems := await self.differences():
            if time.monotonic() - began > seconds_max:
                text = "\n".join(problems[:20])
                raise AssertionError(f"after {seconds_max:.0f} s:\n{text}\n{up.output[-4000:]}")
            await asyncio.sleep(0.5)
        return time.monotonic() - began


# ---------------------------------------------------------------- the processes of `pvbus up`


def wait_for_server(up: Installation) -> None:
    """Wait until there is an API server to write to; blocks."""
    deadline = time.monotonic() + 60
    while "API server: " not in up.output or not up.kubeconfig.exists():
        assert up.is_running, up.output
        assert time.monotonic() < deadline, up.output
        time.sleep(0.05)


def addresses(up: Installation) -> dict[str, str]:
    """Return where each process said last that it tells of itself; "" names the one of all services."""
    found = re.findall(r"^(?:(\w+/\d+): )?metrics and health: (\S+)/metrics$", up.output, re.MULTILINE)
    return dict(found)


def ask(url: str) -> ProcessState:
    """Ask one process. Raises OSError where it is not there; blocks."""
    with urllib.request.urlopen(f"{url}/state", timeout=3.0) as answer:
        return _state.decode(answer.read())


def states(up: Installation) -> States:
    """Ask each process once; blocks."""
    reported, missing = [], []
    for name, url in addresses(up).items():
        try:
            reported.append(ask(url))
        except OSError:
            missing.append(name)
    return States(tuple(reported), tuple(missing))


async def settled(up: Installation) -> States:
    """Wait until nobody has anything to do, twice in a row."""
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    row = 0
    while True:
        found = await asyncio.to_thread(states, up)
        row = row + 1 if found.is_settled(horizon_seconds=3.0) else 0
        if row == 2:
            return found
        assert time.monotonic() < deadline, f"still at work: {found}\n{up.output[-4000:]}"
        await asyncio.sleep(0.5)


def workers(up: Installation) -> list[tuple[str, int]]:
    """Return the processes of services, as (service, process id)."""
    found = []
    for pid in children_of(up.pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"run" in command:
            found.append((command[command.index(b"run") + 1].decode(), pid))
    return sorted(found)


class Killer:
    """Kills a process of a service, chosen by chance, again and again, at most `kills_max` times.

    A machine on which a session and a start take longer than the time between two kills would never get to
    work while they go on. processes: how many there are.
    """

    def __init__(
        self, up: Installation, seed: int, *, processes: int, every_seconds: float, kills_max: int
    ) -> None:
        self.killed: Counter[str] = Counter()
        self._up = up
        self._rng = random.Random(seed)
        self._processes = processes
        self._every_seconds = every_seconds
        self._kills_max = kills_max

    @property
    def count(self) -> int:
        return self.killed.total()

    async def work(self, stop: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(self._every_seconds):
                    await stop.wait()
                return
            except TimeoutError:
                # One that has never answered yet is not among those missing: it is counted by its absence.
                answering = (await asyncio.to_thread(states, self._up)).processes
                if len(answering) < self._processes - DOWN_MAX or self.count == self._kills_max:
                    continue
                service, pid = self._rng.choice(workers(self._up))
                os.kill(pid, signal.SIGKILL)
                self.killed[service] += 1
