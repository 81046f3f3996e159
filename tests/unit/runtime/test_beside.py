"""A process beside Porch's own controllers: when it writes, and what it says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast
from weakref import ref

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.platform.establish.rivals import QUIET_SECONDS, RELAPSE_SECONDS
from pvbus.ports.cluster import Kind, Listing, Object, Resource, WatchEvent
from pvbus.runtime.process.beside import UNLOOKED_SECONDS_MAX, BesidePorch

NOW = 1_767_268_800.0


class Clock:
    """Goes only when a test says so; sleeps last one turn of the loop."""

    def __init__(self) -> None:
        self.time = NOW
        self.jump = 0.0

    def now(self) -> float:
        return self.time + self.jump

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def variant(name: str, at: float, manager: str = "porch-controllers") -> Object:
    time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = [{"manager": manager, "time": time}]
    return {
        "metadata": {"namespace": "default", "name": name, "resourceVersion": "1", "managedFields": fields}
    }


class Sent(dict[str, Any]):
    """An object as a list has it: unlike a dict it can be looked for later."""


class Server:
    """An API server with some variants, whose watches deliver what a test gives."""

    def __init__(self, *variants: Object, ahead: float = 0.0, error: Exception | None = None) -> None:
        self.variants, self.ahead, self.error = variants, ahead, error
        self.refused: tuple[str, ...] = ()
        self.events: asyncio.Queue[Object] = asyncio.Queue()
        self.listed: list[str | None] = []
        self.sent: list[ref[Sent]] = []

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        return Resource(kind.group, "v1", kind.kind, kind.kind.lower(), True)

    async def server_time(self) -> float | None:
        return NOW + self.ahead

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        metadata_only: bool,
        is_followed: bool,
        keep: Callable[[Object], Object],
    ) -> Listing:
        self.listed.append(namespace)
        if self.error:
            raise self.error
        if namespace in self.refused:
            raise PermanentError(f"may not list in {namespace}", reason=FORBIDDEN)
        if resource.kind != "PackageVariant":
            return Listing("1", [])
        sent = [Sent(each) for each in self.variants]
        self.sent += map(ref, sent)
        return Listing("1", [*map(keep, sent)])

    async def watch(
        self, resource: Resource, version: str, *, namespace: str | None, metadata_only: bool
    ) -> AsyncIterator[WatchEvent]:
        while resource.kind == "PackageVariant":
            yield WatchEvent("MODIFIED", await self.events.get())
        await asyncio.Event().wait()


@asynccontextmanager
async def running(
    server: Server,
    clock: Clock,
    services: Sequence[str] = ("render",),
    namespaces: tuple[str, ...] = (),
    *,
    is_allowed: bool = False,
) -> AsyncIterator[BesidePorch]:
    beside = BesidePorch(cast(HttpCluster, server), clock, services, namespaces, is_allowed=is_allowed)
    task = asyncio.create_task(beside.run())
    try:
        yield beside
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def may_write(beside: BesidePorch) -> bool:
    try:
        beside.check()
    except TransientError:
        return False
    return True


async def test_nothing_is_written_before_the_first_look() -> None:
    """A start must not make drafts twice in its first second."""
    async with running(Server(), Clock()) as beside:
        assert not may_write(beside)
        await settle()
        assert may_write(beside)
        assert beside.problem == ""


async def test_services_of_some_namespaces_look_in_these_alone() -> None:
    """Roles permit no list of the whole cluster. Nothing is written before all of them were looked at."""
    server = Server()
    async with running(server, Clock(), namespaces=("east", "west")) as beside:
        assert not may_write(beside)
        await settle()
        assert may_write(beside)
    assert sorted(server.listed, key=str) == ["east", "east", "west", "west"]


async def test_nothing_of_the_list_stays_while_it_watches() -> None:
    """It has every variant of the fleet, and the watch may last for weeks."""
    server = Server(variant("web", NOW), variant("mine", NOW, "pvbus"))
    async with running(server, Clock()) as beside:
        await settle()
        assert "default/web" in beside.problem
        assert [sent() for sent in server.sent] == [None, None]


async def test_a_namespace_that_may_not_be_looked_at_does_not_hold_the_others() -> None:
    """Its Roles are gone: the others go on at once. What Porch writes in them still counts."""
    server = Server(variant("web", NOW - QUIET_SECONDS))
    server.refused = ("west",)
    async with running(server, Clock(), namespaces=("east", "west")) as beside:
        assert not may_write(beside)
        await settle()
        assert may_write(beside)
        server.events.put_nowait(variant("web", NOW))
        await settle()
        assert not may_write(beside)


async def test_after_a_recent_write_of_porch_it_waits_and_then_writes() -> None:
    """Right after a change-over: a minute, said with the object, the time and what to do."""
    clock = Clock()
    async with running(Server(variant("web", NOW - 20)), clock) as beside:
        await settle()
        with pytest.raises(TransientError, match="wrote default/web at 2026-01-01T11:59:40Z"):
            beside.check()
        assert "--reconcilers" in beside.problem
        assert "before 12:00:40Z" in beside.problem
        clock.time += QUIET_SECONDS - 20
        assert may_write(beside)
        assert beside.problem == ""


@pytest.mark.parametrize("age", [QUIET_SECONDS, 3600.0])
async def test_a_porch_that_was_switched_off_is_no_danger(age: float) -> None:
    """Its marks stay on the objects for ever."""
    async with running(Server(variant("web", NOW - age), variant("x", NOW, "kubectl")), Clock()) as beside:
        await settle()
        assert may_write(beside)


async def test_an_idle_porch_that_answers_a_write_stops_the_services_for_longer() -> None:
    """Its answer proves that it is on: ten minutes, unless somebody restarts."""
    clock, server = Clock(), Server(variant("web", NOW - 3600))
    async with running(server, clock) as beside:
        await settle()
        assert may_write(beside)
        clock.time += 2
        server.events.put_nowait(variant("web", NOW + 2))
        await settle()
        assert not may_write(beside)
        clock.time += QUIET_SECONDS
        assert not may_write(beside)
        clock.time += RELAPSE_SECONDS
        assert may_write(beside)


async def test_the_clock_of_the_server_counts() -> None:
    """Ours may be wrong by an hour: the marks are by the server's."""
    for ahead in (-3600.0, 3600.0):
        async with running(Server(variant("web", NOW + ahead - 10), ahead=ahead), Clock()) as beside:
            await settle()
            assert not may_write(beside)
        async with running(Server(variant("web", NOW + ahead - 61), ahead=ahead), Clock()) as beside:
            await settle()
            assert may_write(beside)


async def test_a_clock_that_jumps_changes_no_wait() -> None:
    """Ours is set by an hour while the services run: no write comes too early, and none an hour late."""
    for jump in (-3600.0, 3600.0):
        clock = Clock()
        async with running(Server(variant("web", NOW - 10)), clock) as beside:
            await settle()
            clock.jump = jump
            assert not may_write(beside)
            clock.time += QUIET_SECONDS
            assert may_write(beside)


async def test_who_wants_it_or_writes_nothing_is_not_kept() -> None:
    """The setting, and services that write no variants: nothing is looked at."""
    server = Server(variant("web", NOW))
    for services, is_allowed in ((("render", "inject"), True), (("ingest", "unroll"), False)):
        async with running(server, Clock(), services, is_allowed=is_allowed) as beside:
            assert may_write(beside)
            await settle()
            assert beside.problem == ""


async def test_a_server_that_does_not_let_us_look_stops_nothing_for_long() -> None:
    """The right is missing: that is reported elsewhere, and after a minute the work goes on."""
    clock = Clock()
    async with running(Server(error=PermanentError("forbidden", reason="Forbidden")), clock) as beside:
        await settle()
        assert not may_write(beside)
        clock.time += UNLOOKED_SECONDS_MAX
        assert may_write(beside)
