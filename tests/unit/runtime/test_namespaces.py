"""Kinds that are observed in some namespaces, and what becomes of the others."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.adapters.namespaces import NamespacedReader
from pvbus.core.errors import FORBIDDEN, PermanentError
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import OBJECTS, SyncMarker
from pvbus.ports.cluster import Listing, Object, Resource, WatchEvent
from tests.kit.cluster import resource_of
from tests.unit.runtime.watching import REVISION, SITE, Porch, Server, Watching, revision, simulated, site


class Guarded(Server):
    """A server that lets nobody list or watch but in the granted namespaces."""

    def __init__(self, objects: Iterable[Object] = (), *, granted: Iterable[str] = ()) -> None:
        super().__init__(objects)
        self.granted = set(granted)

    def permit(self, resource: Resource, namespace: str | None) -> None:
        if namespace not in self.granted:
            raise PermanentError(f'{resource.plural} is forbidden in "{namespace}"', reason=FORBIDDEN)

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Listing:
        self.permit(resource, namespace)
        return await super().list(resource, namespace, **options)

    async def watch(
        self, resource: Resource, resource_version: str, **options: Any
    ) -> AsyncIterator[WatchEvent]:
        self.permit(resource, options.get("namespace"))
        async for event in super().watch(resource, resource_version, **options):
            self.permit(resource, options.get("namespace"))
            yield event


def at(namespace: str, name: str, **labels: str) -> Object:
    found = site(name)
    found["metadata"] |= {"namespace": namespace, "labels": labels}
    return found


class Limited(Watching):
    """An informer of Sites in some namespaces."""

    def __init__(self, server: Server, *namespaces: str, kind: Kind = SITE) -> None:
        reader = NamespacedReader(server, namespaces, SimulatedClock(), jitter=lambda least, most: most)
        super().__init__(server, kind, reader=reader)

    def marker(self) -> SyncMarker:
        """Return the last marker of the objects topic."""
        found = [e.value for e in self.emitted if e.topic == OBJECTS and is_marker(e.key)]
        return msgspec.json.decode(found[-1] or b"", type=SyncMarker)

    def limit_to(self, *namespaces: str) -> None:
        self.reader = NamespacedReader(
            self.server, namespaces, SimulatedClock(), jitter=lambda least, most: most
        )


def test_only_the_namespaces_of_the_list_are_seen_and_followed() -> None:
    async def scenario() -> None:
        server = Guarded([at("a", "one"), at("b", "two"), at("c", "three")], granted="ab")
        watching = Limited(server, "a", "b")
        await asyncio.sleep(1)
        marker = watching.marker()
        assert (marker.state, marker.coverage.namespaces, marker.coverage.refused) == ("ok", ("a", "b"), ())
        assert [marker.coverage.covers(name) for name in "abc"] == [True, True, False]
        assert "PVBUS_NAMESPACES" in marker.coverage.problem("c")
        assert sorted(watching.taken()) == ["+one", "+two", "ok", "syncing"]
        server.put(at("b", "two", env="new"))
        server.put(at("c", "four"))
        server.remove(SITE, "a", "one")
        await asyncio.sleep(1)
        assert sorted(watching.taken()) == ["+two", "-one"]
        await watching.end()

    simulated(scenario)


def test_a_namespace_off_the_list_is_unknown_before_its_rows_go() -> None:
    """Rows go only under a marker that takes them from nobody; back on the list, they are there again."""

    async def scenario() -> None:
        server = Guarded([at("a", "one"), at("b", "two")], granted="ab")
        watching = Limited(server, "a", "b")
        await asyncio.sleep(1)
        await watching.end()
        watching.emitted.clear()
        watching.limit_to("a")
        watching.start()
        await asyncio.sleep(1)
        assert watching.marker().coverage.namespaces == ("a",)
        assert watching.taken() == ["syncing", "-two", "ok"]
        await watching.end()
        watching.limit_to("a", "b")
        watching.start()
        await asyncio.sleep(1)
        assert watching.taken() == ["syncing", "+two", "ok"]
        await watching.end()

    simulated(scenario)


def test_a_namespace_that_may_not_be_read_leaves_the_others_alone() -> None:
    """One of three is refused: it is named with what to do, in the log once, and followed once granted."""

    async def scenario() -> None:
        server = Guarded([at("a", "one"), at("b", "two"), at("c", "three")], granted="ac")
        watching = Limited(server, "a", "b", "c")
        with capture_logs() as lines:
            await asyncio.sleep(300)
            coverage = watching.marker().coverage
            assert coverage.namespaces == ("a", "c")
            assert [each.namespace for each in coverage.refused] == ["b"]
            assert 'create a Role in the namespace "b"' in coverage.problem("b")
            assert sorted(watching.taken()) == ["+one", "+three", "ok", "syncing"]
            server.put(at("c", "three", env="new"))
            await asyncio.sleep(1)
            assert watching.taken() == ["+three"]
            server.granted.add("b")
            await asyncio.sleep(65)
        assert watching.taken() == ["syncing", "+two", "ok"]
        warnings = [line for line in lines if line["log_level"] == "warning"]
        assert [(line["event"], line["namespace"]) for line in warnings] == [
            ("kind cannot be observed in a namespace", "b")
        ]
        assert "kind is observed in a namespace again" in [line["event"] for line in lines]
        await watching.end()

    simulated(scenario)


def test_a_right_that_is_taken_away_takes_one_namespace_and_deletes_nothing() -> None:
    """The kind is never `unavailable` meanwhile: sets of the other namespaces go on."""

    async def scenario() -> None:
        server = Guarded([at("a", "one"), at("b", "two")], granted="ab")
        watching = Limited(server, "a", "b")
        await asyncio.sleep(10)
        watching.emitted.clear()
        server.granted.discard("b")
        server.put(at("b", "two", env="new"))  # the watch ends at its next event
        await asyncio.sleep(10)
        assert watching.marker().coverage.namespaces == ("a",)
        assert watching.taken() == ["syncing", "-two", "ok"]
        await watching.end()

    simulated(scenario)


def test_without_any_namespace_the_kind_is_unavailable_and_each_is_named() -> None:
    async def scenario() -> None:
        watching = Limited(Guarded([at("a", "one")]), "a", "b")
        await asyncio.sleep(1)
        marker = watching.marker()
        assert marker.state == "unavailable"
        assert all(f'"{name}"' in marker.message for name in "ab")
        await watching.end()

    simulated(scenario)


def test_a_cluster_scoped_kind_is_refused_in_words() -> None:
    """No list is sent: with a ClusterRole for it, it would show the whole cluster."""

    async def scenario() -> None:
        server = Guarded(granted="ab")
        watching = Limited(server, "a", kind=Kind("", "Namespace"))
        await asyncio.sleep(1)
        marker = watching.marker()
        assert (marker.state, server.lists) == ("unavailable", 0)
        assert "Namespace is a cluster-scoped kind, and PVBUS_NAMESPACES limits ingest to a" in marker.message
        assert "ClusterRole" in marker.message
        await watching.end()

    simulated(scenario)


class GuardedPorch(Porch):
    """Porch's aggregated API, of which each namespace replays its own objects."""


def test_a_replay_is_over_when_every_namespace_has_replayed() -> None:
    """An object of the slower namespace is not looked for by name, and none is taken for deleted."""

    async def scenario() -> None:
        server = GuardedPorch()
        for namespace in "ab":
            found = revision(f"r{namespace}")
            found["metadata"]["namespace"] = namespace
            server.put(found)
        watching = Limited(server, "a", "b", kind=REVISION)
        await asyncio.sleep(30)
        assert server.gets == 0
        assert sorted(watching.taken()) == ["+ra", "+rb", "ok", "syncing"]
        server.remove(REVISION, "b", "rb")
        await asyncio.sleep(1)
        assert watching.taken() == ["-rb"]
        await watching.end()

    simulated(scenario)


@pytest.mark.parametrize("namespaces", [("a",), ("a", "b")])
def test_a_cut_watch_resumes_where_each_namespace_was(namespaces: tuple[str, ...]) -> None:
    """Nothing is listed again, and no event is missed or shown twice."""

    async def scenario() -> None:
        server = Guarded([at("a", "one")], granted="ab")
        watching = Limited(server, *namespaces)
        await asyncio.sleep(10)
        watching.taken()
        lists = server.lists
        server.put(at("a", "two"))
        await asyncio.sleep(1)
        server.cut.set()
        await asyncio.sleep(0.1)
        server.put(at("a", "three"))
        await asyncio.sleep(10)
        assert watching.taken() == ["+two", "+three"]
        assert server.lists == lists
        await watching.end()

    simulated(scenario)


def test_a_list_of_one_namespace_changes_nothing_for_the_others() -> None:
    """It is passed on as it is, also for a namespace that is not in the list."""

    async def scenario() -> None:
        server = Guarded([at("a", "one"), at("b", "two"), at("c", "three")], granted="abc")
        watching = Limited(server, "a", "b")
        await asyncio.sleep(1)
        watching.taken()
        resource = await resource_of(watching.reader, SITE)
        listing = await watching.reader.list(resource, "c")
        assert [obj["metadata"]["name"] for obj in listing.items] == ["three"]
        server.cut.set()
        await asyncio.sleep(10)
        server.put(at("b", "two", env="new"))
        await asyncio.sleep(1)
        assert watching.taken() == ["+two"]
        await watching.end()

    simulated(scenario)
