"""Watches that end, fall silent or are refused: how often they are begun again, and what is believed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import TransientError
from pvbus.ports.cluster import GoneError, Kind, Resource, SilentError, WatchEvent
from pvbus.runtime.ingest.definitions import Definitions
from tests.unit.runtime.watching import Porch, Server, Watching, simulated, site


class Ending(Server):
    """A server, or a proxy before it, whose watches end at once in some way."""

    ending = "clean"

    async def watch(
        self, resource: Resource, resource_version: str, **options: Any
    ) -> AsyncIterator[WatchEvent]:
        self.watches += 1
        match self.ending:
            case "bookmark":
                yield WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": resource_version}})
            case "error":
                raise TransientError("GET /apis/example.org/v1/sites (watch): 503")
            case "silent":
                raise SilentError("GET /apis/example.org/v1/sites (watch): nothing came for 90 s")
            case "events":
                for obj in (await self.list(resource)).items:
                    yield WatchEvent("MODIFIED", obj)


@pytest.mark.parametrize("ending", ["clean", "bookmark", "error", "silent", "events"])
def test_a_watch_that_ends_at_once_is_begun_again_with_a_backoff(ending: str) -> None:
    """Counted over five minutes: at most one in two seconds, and at least one in ten."""

    async def scenario() -> None:
        server = Ending([site("a")])
        server.ending = ending
        watching = Watching(server)
        await asyncio.sleep(300)
        assert 30 <= server.watches <= 150
        await watching.end()

    simulated(scenario)


@pytest.mark.parametrize("error", [None, TransientError("503"), GoneError("410")])
def test_a_replay_that_ends_at_once_is_listed_again_with_a_backoff(error: Exception | None) -> None:
    """Porch's lists are slow: counted over five minutes."""

    class Cut(Porch):
        async def watch(
            self, resource: Resource, resource_version: str, **options: Any
        ) -> AsyncIterator[WatchEvent]:
            self.watches += 1
            if error is not None:
                raise error
            return
            yield

    async def scenario() -> None:
        server = Cut()
        server.put(site("a"))
        watching = Watching(server)
        await asyncio.sleep(300)
        assert 10 <= server.lists <= 25
        await watching.end()

    simulated(scenario)


def test_a_watch_that_never_stays_is_no_watch() -> None:
    """After thirty seconds without an event its rows are in doubt, and they are listed."""

    async def scenario() -> None:
        server = Ending([site("a")])
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.taken()
        await asyncio.sleep(25)
        assert watching.taken() == []
        server.put(site("b"))
        await asyncio.sleep(15)
        assert watching.taken() == ["syncing", "syncing", "+b", "ok"]
        await watching.end()

    simulated(scenario)


class Silent(Server):
    """Watches show nothing for 90 seconds and are cut then; from `dead_at` on they cannot be begun."""

    dead_at = float("inf")

    async def watch(
        self, resource: Resource, resource_version: str, **options: Any
    ) -> AsyncIterator[WatchEvent]:
        self.watches += 1
        now = asyncio.get_running_loop().time
        if now() >= self.dead_at:
            await asyncio.sleep(20)
            raise TransientError("GET /apis/example.org/v1/sites (watch): no answer within 20 s")
        await asyncio.sleep(90)
        raise SilentError("GET /apis/example.org/v1/sites (watch): nothing came for 90 s")
        yield


def test_a_quiet_kind_is_believed_and_a_frozen_server_is_not() -> None:
    """Silence alone proves nothing; that the watch cannot be begun again does."""

    async def scenario() -> None:
        server = Silent([site("a")])
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.taken()
        await asyncio.sleep(600)
        assert watching.taken() == []
        assert server.watches <= 8
        server.dead_at = asyncio.get_running_loop().time()
        server.list_errors = [TransientError("no answer within 30 s")] * 100
        await asyncio.sleep(55)  # the last watch is cut, and the next one cannot be begun
        assert watching.taken() == ["syncing"]
        await watching.end()

    simulated(scenario)


@pytest.mark.parametrize("location", ["list", "watch"])
def test_retry_after_is_honoured(location: str) -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        slow_down = TransientError("429 TooManyRequests", retry_after_seconds=20)
        if location == "list":
            server.list_errors = [slow_down]
        watching = Watching(server)
        await asyncio.sleep(1)
        if location == "watch":
            server.watch_errors = [slow_down]
            server.cut.set()
        await asyncio.sleep(0.1)
        before = (server.lists, server.watches)
        await asyncio.sleep(18)
        assert (server.lists, server.watches) == before
        await asyncio.sleep(5)
        assert sum((server.lists, server.watches)) > sum(before)
        await watching.end()

    simulated(scenario)


def test_nobody_can_ask_for_more_than_five_minutes() -> None:
    assert TransientError("429", retry_after_seconds=86_400).retry_after_seconds == 300
    assert TransientError("429", retry_after_seconds=-5).retry_after_seconds == 0
    assert TransientError("429").retry_after_seconds is None


def definition(name: str, *versions: str) -> dict[str, Any]:
    group = name.partition(".")[2]
    spec = {"group": group, "names": {"kind": "Site"}, "versions": [{"name": v} for v in versions]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_definitions_are_noticed_by_event_and_by_list() -> None:
    """The first list is no news; what changed while there was no watch is."""

    async def scenario() -> None:
        server = Server([definition("sites.example.org", "v1"), definition("cells.example.net", "v1")])
        groups: list[str] = []
        definitions = Definitions(server, SimulatedClock(), groups.append, jitter=lambda least, most: most)
        task = asyncio.create_task(definitions.run())
        await definitions.asked.wait()
        await asyncio.sleep(1)
        assert groups == []
        server.put(definition("sites.example.org", "v1", "v2"))
        await asyncio.sleep(1)
        assert groups == ["example.org"]
        server.watch_errors = [TransientError("reset")]
        server.list_errors = [TransientError("503")] * 3
        server.cut.set()
        await asyncio.sleep(0.1)
        server.remove(Kind("apiextensions.k8s.io", "CustomResourceDefinition"), "", "cells.example.net")
        await asyncio.sleep(20)
        assert groups == ["example.org", "example.net"]
        task.cancel()
        await asyncio.wait({task})

    simulated(scenario)


def test_when_the_first_list_of_definitions_fails_kinds_are_looked_at_again() -> None:
    async def scenario() -> None:
        server = Server([definition("sites.example.org", "v1")])
        server.list_errors = [TransientError("503")]
        groups: list[str] = []
        definitions = Definitions(server, SimulatedClock(), groups.append, jitter=lambda least, most: most)
        task = asyncio.create_task(definitions.run())
        await definitions.asked.wait()
        assert groups == []
        await asyncio.sleep(5)
        assert groups == ["example.org"]
        task.cancel()
        await asyncio.wait({task})

    simulated(scenario)


def test_a_list_of_definitions_that_hangs_holds_nobody_up() -> None:
    """What it brings in the end is reported as news: kinds were looked up before."""

    async def scenario() -> None:
        server = Server([definition("sites.example.org", "v1")])
        server.list_seconds = 20
        groups: list[str] = []
        definitions = Definitions(server, SimulatedClock(), groups.append, jitter=lambda least, most: most)
        task = asyncio.create_task(definitions.run())
        async with asyncio.timeout(3):
            await definitions.wait_asked()
        assert groups == []
        await asyncio.sleep(30)
        assert groups == ["example.org"]
        task.cancel()
        await asyncio.wait({task})

    simulated(scenario)


class Discovering(Server):
    """Discovery shows a new version some seconds after its definition."""

    shown: tuple[str, ...] = ("v1",)

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        return self.shown


@pytest.mark.parametrize("delay", [0, 5, 25])
def test_a_version_that_is_newly_served_is_noticed(delay: int) -> None:
    """Without it a set that names the version would wait until ingest is restarted."""

    async def scenario() -> None:
        server = Discovering([site("a")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.taken()
        watching.watch.probe()
        await asyncio.sleep(delay)
        server.shown = ("v2", "v1")
        await asyncio.sleep(delay + 2)
        assert watching.markers["pvbus.objects"].versions == ("v2", "v1")
        assert watching.taken() == ["syncing", "ok"]
        await asyncio.sleep(200)
        assert watching.taken() == []
        await watching.end()

    simulated(scenario)


def test_a_list_that_fails_does_not_hide_a_new_version() -> None:
    async def scenario() -> None:
        server = Discovering([site("a")])
        watching = Watching(server)
        await asyncio.sleep(20)
        server.shown = ("v2", "v1")
        server.list_errors = [TransientError("503")]
        watching.ask("default/s", "n")
        await asyncio.sleep(1)
        watching.watch.probe()
        await asyncio.sleep(1)
        assert watching.markers["pvbus.objects"].versions == ("v2", "v1")
        await watching.end()

    simulated(scenario)
