"""The informer's shell on a server: how errors, content and Porch's lists reach the informer.

`tests/unit/core/variants/test_informer.py` tests what it decides.
"""

import asyncio

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.records import INJECTABLES
from pvbus.ports.cluster import GoneError
from pvbus.runtime.ingest.informer import fault_of
from tests.unit.runtime.watching import REVISION, SITE, Porch, Server, Watching, revision, simulated, site


def test_after_410_the_difference_is_told_tombstones_last() -> None:
    async def scenario() -> None:
        server = Server([site("a"), site("b")])
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.taken()
        await watching.end()
        server.remove(SITE, "default", "a")
        server.put(site("c"))
        server.watch_errors = [GoneError("410")]
        watching.start()
        await asyncio.sleep(3)
        assert watching.taken() == ["syncing", "+c", "-a", "ok"]
        assert server.lists == 3
        await watching.end()

    simulated(scenario)


def test_status_and_foreign_fields_of_a_target_are_no_news() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.taken()
        server.put(site("a", spec={"x": 1}, status={"y": 2}))
        await asyncio.sleep(1)
        assert watching.emitted == []
        server.put({**site("a"), "metadata": {"name": "a", "labels": {"env": "prod"}}})
        await asyncio.sleep(1)
        assert watching.taken() == ["+a"]
        assert server.metadata_only == [True]
        await watching.end()

    simulated(scenario)


def test_only_a_403_is_a_missing_right() -> None:
    """Another permanent error says nothing about rights."""
    assert fault_of(PermanentError("403", reason="Forbidden")).is_forbidden
    assert not fault_of(PermanentError("405", reason="MethodNotAllowed")).is_forbidden
    assert not fault_of(TransientError("503")).is_forbidden


def test_content_is_told_of_what_was_asked_for_found_or_not() -> None:
    async def scenario() -> None:
        server = Server([site("a", spec={"x": 1}), site("b", spec={"secret": 2})])
        watching = Watching(server, content=[("default", "a"), ("default", "z"), ("default", "")])
        await asyncio.sleep(1)
        assert server.metadata_only == [False]
        found = watching.content("a")
        assert found is not None
        assert found.exists
        assert bytes(found.content) == b'{"x":1}'  # type: ignore[arg-type]
        missing = watching.content("z")
        assert missing is not None
        assert not missing.exists
        any_one = watching.content("")
        assert any_one is not None
        assert any_one.exists
        assert watching.content("b") is None
        server.put(site("z", spec={"late": True}))
        server.remove(SITE, "default", "a")
        await asyncio.sleep(1)
        late, gone = watching.content("z"), watching.content("a")
        assert late is not None
        assert late.exists
        assert gone is not None
        assert not gone.exists
        await watching.end()

    simulated(scenario)


def test_more_content_is_read_without_a_list_and_less_is_taken_back() -> None:
    async def scenario() -> None:
        server = Server([site("a", spec={"x": 1}), site("b", spec={"y": 2})])
        watching = Watching(server, content=[("default", "a")])
        await asyncio.sleep(1)
        watching.taken(INJECTABLES)
        assert await watching.watch.change_content(frozenset({("default", "a"), ("default", "b")}))
        assert watching.taken(INJECTABLES) == ["+b"]
        assert await watching.watch.change_content(frozenset({("default", "b")}))
        assert watching.taken(INJECTABLES) == ["-a"]
        assert server.lists == 1
        assert not await watching.watch.change_content(frozenset())  # metadata will do: another watch
        await watching.end()

    simulated(scenario)


def test_a_list_keeps_the_objects_whose_content_is_asked_for() -> None:
    """The others take ten times the bytes of their rows, which are made as they come."""

    async def scenario() -> None:
        server = Server([site("a", spec={"x": 1}), site("b", spec={"y": 2}, status={"z": 3})])
        watching = Watching(server, content=[("default", "a")])
        await asyncio.sleep(1)
        (listing,) = server.listings
        assert [set(obj) - {"metadata"} for obj in listing.items] == [{"apiVersion", "kind", "spec"}, set()]
        assert watching.taken() == ["syncing", "+a", "+b", "ok"]
        await watching.end()

    simulated(scenario)


def test_content_that_is_asked_for_during_a_list_beside_a_watch_is_whole() -> None:
    """A refused read makes the watch list again; meanwhile another set injects an object."""

    async def scenario() -> None:
        server = Server([site("a", spec={"x": 1}), site("b", spec={"v": 1})])
        watching = Watching(server, content=[("default", "a")])
        await asyncio.sleep(1)
        server.get_errors.append(PermanentError("get is forbidden", reason="Forbidden"))
        server.list_seconds = 5.0
        watching.ask("default/fleet", "n1", "a")
        await asyncio.sleep(2)
        assert server.lists == 2
        assert await watching.watch.change_content(frozenset({("default", "a"), ("default", "b")}))
        await asyncio.sleep(10)
        row = watching.content("b")
        assert row is not None
        assert bytes(row.content) == b'{"v":1}'  # type: ignore[arg-type]  # it has some
        await watching.end()

    simulated(scenario)


# ------------------------------------------------------------ Porch's aggregated API


def test_what_an_aggregated_list_leaves_out_is_asked_for_before_it_is_gone() -> None:
    async def scenario() -> None:
        server = Porch([revision("a"), revision("b")])
        watching = Watching(server, REVISION)
        await asyncio.sleep(1)
        assert watching.taken() == ["syncing", "+a", "+b", "ok"]
        await watching.end()
        server.left_out = {"a"}
        server.remove(REVISION, "default", "b")
        watching.start()
        await asyncio.sleep(10)
        assert watching.taken() == ["syncing", "-b", "ok"]
        await watching.end()

    simulated(scenario)
