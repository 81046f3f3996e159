"""Promote, rollout and release are killed at every await: the end and the judged history stay the same.

One undisturbed run shows how many turns each service takes: the code between two awaits is one. Then there is
one run for each turn of each service, in which that service is killed before the turn, and a new one takes
over. Requests that it had sent are carried out all the same; the answers reach nobody.

Most turns only wait. Those with an effect are: a write about to be sent, a write that is carried out and not
answered yet, a step of the bus before and after its commit. CI takes a sample of these;
`PVBUS_TEST_KILLS=effects` takes all of them, `PVBUS_TEST_KILLS=all` takes every turn.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from pvbus.adapters.memory.virtual_time import run_simulated
from pvbus.core.keys import PROPOSED_CONTENT
from pvbus.core.records import APPROVALS
from pvbus.core.rollout.protocol.rows import Target
from pvbus.core.rollout.protocol.states import TargetState
from pvbus.core.topics import PROMOTION
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Object
from tests.simulation.rolling import Rolling, begin
from tests.simulation.world import RESOURCES, REVISION

SITES = 3
HEALTHY = "Healthy"
POLICY: dict[str, Any] = {
    "settle": "60s",  # longer than a killed process keeps its leases: its proposals are of the same attempt
    "waves": [{"count": 1, "hold": "3s"}, {"percent": 100}],
    "budgets": {"maxInFlight": 1, "onFailure": "RollBack"},
    "conditions": [HEALTHY],
}
KILLS = os.environ.get("PVBUS_TEST_KILLS", "sample")
SAMPLE = 8
"""Runs per service in CI: each takes half a second."""


class Kill(NamedTuple):
    """turn: of the first process of the service."""

    service: str
    turn: int


class Ending(NamedTuple):
    """moves: each lifecycle that a revision got, in order. state: of each revision at the end, its content
    with it. rollout, targets: the rows."""

    moves: dict[str, tuple[str, ...]]
    state: dict[str, tuple[str, int, str]]
    rollout: tuple[str, int]
    targets: dict[str, tuple[str, str, int]]


class Killing(Rolling):
    """kill_at: what is killed. withdrawn: the package whose next order a person withdraws. effects: the turns
    of each service that a write or a step begins or ends with. turns: taken so far."""

    def __init__(self, kill: Kill | None) -> None:
        super().__init__(in_flight_max=1)
        self.kill_at = kill
        self.moves: dict[str, list[str]] = {}
        self.effects: dict[str, set[int]] = {service: set() for service in PROMOTION}
        self.turns: dict[str, int] = {}
        self.killed: asyncio.Event = asyncio.Event()
        self.withdrawn = ""
        self.ending: Ending

    def add_worker(self, service: str) -> Any:
        running = super().add_worker(service)
        if service == "rollout":
            running.bus.on_step = self._stepped
        if service not in PROMOTION or service in self.turns:
            return running
        self.turns[service] = 0
        process = running.process
        process.before_turn = partial(self._turned, service, process)
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
        running.cluster._write = note_write  # type: ignore[assignment,method-assign]
        return running

    def _turned(self, service: str, process: Any) -> None:
        self.turns[service] += 1
        if self.kill_at == (service, self.turns[service]):
            process.freeze()
            self.killed.set()

    def _stepped(self, lease: Lease, outputs: Sequence[Output]) -> None:
        """Let a person withdraw what has just been ordered, before release can have heard of it."""
        self.watcher.stepped(lease, outputs)
        for output in outputs:
            package = self.withdrawn
            if package and output.topic == APPROVALS and f"web-r1-{package}|" in output.key.decode():
                self.withdrawn = ""
                self.reject(package)

    async def obey(self) -> None:
        """Kill the service when its turn has come, and start another one."""
        await self.killed.wait()
        assert self.kill_at is not None
        service = self.kill_at.service
        await self.kill(next(name for name in self.running if name.startswith(service)))
        self.add_worker(service)

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        if verb == "update" and subresource == "approval":
            self.judge_evidence(obj)
        if verb == "update" and obj["kind"] == REVISION.kind:
            before = self.find(REVISION, obj["metadata"]["name"])
            assert before is not None
            if before["spec"].get("lifecycle") != obj["spec"]["lifecycle"]:
                moves = self.moves.setdefault(obj["metadata"]["name"], [])
                moves.append(obj["spec"]["lifecycle"])
        super().wrote(verb, obj, subresource)

    def judge_evidence(self, obj: Object) -> None:
        """No wave begins before what was approved in the waves before is really there and good."""
        _, rows = self.rollout()
        row = next((each for each in rows.values() if each.revision == obj["metadata"]["name"]), None)
        for each in rows.values() if row is not None else ():
            if row is not None and each.attempt == row.attempt and each.wave < row.wave:
                assert self.is_good(each), f"{row.revision} of wave {row.wave} does not wait for {each}"

    def is_good(self, row: Target) -> bool:
        live = self.find(REVISION, row.revision)
        assert live is not None
        is_published = live["spec"]["lifecycle"] == "Published" and self.content(row.revision) == row.digest
        return is_published and conditions_of(live).get(HEALTHY) == "True"

    # ------------------------------------------------------------ people and programs

    def published(self, package: str) -> dict[int, Object]:
        """Return the published revisions of a package by the version of their content."""
        found = {}
        for obj in self.revisions(package):
            if obj["spec"].get("lifecycle") == "Published":
                found[version_of(self.files(obj))] = obj
        return found

    def files(self, obj: Object) -> str:
        found = self.find(RESOURCES, obj["metadata"]["name"])
        assert found is not None
        return str(found["spec"]["resources"])

    def report(self, obj: Object, *, healthy: bool) -> None:
        """Report a condition of a revision, as a program does that watches the site."""
        condition = {"type": HEALTHY, "status": str(healthy), "reason": "Looked", "message": ""}
        status = {**(obj.get("status") or {}), "conditions": [condition]}
        self.put(REVISION, obj["metadata"]["name"], status=status)

    async def until(self, find: Callable[[], Object | None]) -> Object:
        for _ in range(600):
            found = find()
            if found is not None:
                return found
            await asyncio.sleep(0.5)
        raise AssertionError(f"it never comes: {self.rollout()}")

    async def has(self, package: str, version: int) -> Object:
        return await self.until(lambda: self.published(package).get(version))

    async def becomes(self, package: str, state: TargetState) -> None:
        """Wait until the rollout has noticed."""

        def find() -> Object | None:
            row = self.rollout()[1].get(f"web-r1-{package}")
            return {} if row is not None and row.state is state else None

        await self.until(find)

    def reject(self, package: str) -> None:
        obj = next(obj for obj in self.revisions(package) if obj["spec"]["lifecycle"] == "Proposed")
        self.put(REVISION, obj["metadata"]["name"], spec={**obj["spec"], "lifecycle": "Draft"})

    def ask_again(self, package: str) -> None:
        """Have a rejected draft proposed again, as its verdict says."""
        obj = next(obj for obj in self.revisions(package) if obj["spec"]["lifecycle"] == "Draft")
        annotations = {**obj["metadata"]["annotations"]}
        del annotations[PROPOSED_CONTENT]
        self.put(REVISION, obj["metadata"]["name"], metadata={"annotations": annotations})


def conditions_of(obj: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in (obj.get("status") or {}).get("conditions") or ()}


def version_of(text: str) -> int:
    return int(text.partition("version-")[2].partition(".")[0] or 0)


# ------------------------------------------------------------ the story


async def story(world: Killing) -> None:
    """Tell what people and programs do: each act waits for what the services have done before."""
    for package in ("s0", "s1", "s2"):  # two waves, one target at a time
        world.report(await world.has(package, 1), healthy=True)
    await world.converge()

    world.move()  # a proposal is taken back and given again; the last target turns out bad: all go back
    canary = await world.has("s0", 2)
    world.reject("s2")
    await world.becomes("s2", TargetState.LEFT)
    world.report(canary, healthy=True)
    second = await world.has("s1", 2)
    world.ask_again("s2")
    await world.becomes("s2", TargetState.PLANNED)
    world.report(second, healthy=True)
    world.report(await world.has("s2", 2), healthy=False)
    await world.converge()

    world.withdrawn = "s1"  # as soon as its approval is ordered
    world.move()
    world.report(await world.has("s0", 3), healthy=True)
    world.report(await world.has("s2", 3), healthy=True)
    await world.converge()


def told(kill: Kill | None) -> Killing:
    """Run the story with one kill, and return the world at its end."""

    async def main() -> Killing:
        world = Killing(kill)
        await begin(world, sites=SITES, **POLICY)
        killing = asyncio.create_task(world.obey())
        await asyncio.gather(story(world), *([killing] if kill is not None else []))
        killing.cancel()
        world.ending = ending(world)
        await world.close()
        return world

    return run_simulated(main(), context={"kill": kill})


def ending(world: Killing) -> Ending:
    state = {}
    for obj in world.revisions():
        name, spec = obj["metadata"]["name"], obj["spec"]
        state[name] = (spec["lifecycle"], spec.get("revision", 0), world.content(name))
    rollout, rows = world.rollout()
    targets = {name: (row.revision, row.state.value, row.attempt) for name, row in rows.items()}
    moves = {name: tuple(each) for name, each in world.moves.items()}
    return Ending(moves, state, (rollout.state.value, rollout.attempt), targets)


def positions(world: Killing, service: str) -> list[int]:
    """Return the turns of a service to kill it before. world: of an undisturbed run."""
    if KILLS == "all":
        return list(range(1, world.turns[service] + 1))
    effects = sorted(world.effects[service])
    return effects if KILLS == "effects" else effects[:: max(1, len(effects) // SAMPLE)]


@pytest.fixture(scope="module")
def undisturbed() -> Killing:
    return told(None)


def test_the_story_has_all_that_it_is_about(undisturbed: Killing) -> None:
    """A proposal given twice, one returned to Draft, an order taken back, and a rollback of three."""
    moves = undisturbed.ending.moves
    assert moves["r1.s2.packagevariant-2"] == ("Proposed", "Proposed", "Published")
    assert moves["r1.s0.packagevariant-3"] == ("Proposed", "Draft", "Proposed", "Published")
    assert undisturbed.ending.targets["web-r1-s1"] == ("r1.s1.packagevariant-3", "skipped", 3)
    assert len([name for name in moves if ".rollback-2-" in name]) == SITES
    assert undisturbed.ending.rollout == ("Completed", 3)


@pytest.mark.slow
@pytest.mark.timeout(0 if KILLS != "sample" else 120)
@pytest.mark.parametrize("service", PROMOTION)
def test_a_kill_at_any_await_changes_neither_the_end_nor_the_history(
    undisturbed: Killing, service: str
) -> None:
    turns = positions(undisturbed, service)
    assert len(turns) >= SAMPLE
    for turn in turns:
        world = told(Kill(service, turn))
        assert world.ending == undisturbed.ending, f"{service} was killed before its turn {turn}"
        assert world.approved == undisturbed.approved, f"{service} was killed before its turn {turn}"
