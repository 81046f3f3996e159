"""One kind observed: what reaches the bus, under which markers, when watches and lists go wrong."""

import asyncio
from typing import Any

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.records import INJECTABLES
from pvbus.ports.cluster import GoneError, Kind, Resource
from pvbus.runtime.ingest.informer import fault_of
from tests.unit.runtime.watching import REVISION, SITE, Porch, Server, Watching, revision, simulated, site


def test_a_first_list_is_told_between_its_markers() -> None:
    async def scenario() -> None:
        watching = Watching(Server([site("a"), site("b")]))
        await asyncio.sleep(1)
        assert watching.taken() == ["syncing", "+a", "+b", "ok"]
        await watching.end()

    simulated(scenario)


def test_a_list_without_news_writes_nothing() -> None:
    async def scenario() -> None:
        watching = Watching(Server([site("a")]))
        await asyncio.sleep(1)
        watching.taken()
        await watching.end()
        watching.start()
        await asyncio.sleep(1)
        assert watching.emitted == []
        await watching.end()

    simulated(scenario)


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


def test_a_kind_that_is_not_served_is_unavailable_until_it_is() -> None:
    async def scenario() -> None:
        server = Server()
        watching = Watching(server)
        await asyncio.sleep(1)
        assert watching.taken() == ["unavailable"]
        server.put(site("a"))
        await asyncio.sleep(1)
        assert watching.emitted == []
        watching.watch.probe()
        await asyncio.sleep(1)
        assert watching.taken() == ["syncing", "+a", "ok"]
        await watching.end()

    simulated(scenario)


def test_a_definition_that_is_told_before_it_is_served_is_looked_for_again_soon() -> None:
    async def scenario() -> None:
        server = Server()
        watching = Watching(server)
        await asyncio.sleep(1)
        assert watching.taken() == ["unavailable"]
        watching.watch.probe()
        await asyncio.sleep(0.5)
        server.put(site("a"))
        await asyncio.sleep(2)
        assert watching.taken() == ["syncing", "+a", "ok"]
        await watching.end()

    simulated(scenario)


def test_a_probe_that_comes_while_the_kind_is_asked_for_is_not_lost() -> None:
    watched: list[Watching] = []

    class Late(Server):
        """Serves the kind right after having said that it does not."""

        async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
            found = await super().resource(kind, version=version)
            if found is None:
                self.put(site("a"))
                watched[0].watch.probe()
            return found

    async def scenario() -> None:
        watching = Watching(Late())
        watched.append(watching)
        await asyncio.sleep(0.5)
        assert watching.taken()[-2:] == ["+a", "ok"]
        await watching.end()

    simulated(scenario)


def test_without_a_probe_an_unavailable_kind_is_looked_for_each_minute() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        server.list_errors = [PermanentError("403 Forbidden", reason="Forbidden")]
        watching = Watching(server)
        await asyncio.sleep(1)
        assert watching.taken() == ["unavailable"]
        await asyncio.sleep(61)
        assert watching.taken() == ["syncing", "+a", "ok"]
        await watching.end()

    simulated(scenario)


def test_only_a_403_is_a_missing_right() -> None:
    """Another permanent error says nothing about rights."""
    assert fault_of(PermanentError("403", reason="Forbidden")).is_forbidden
    assert not fault_of(PermanentError("405", reason="MethodNotAllowed")).is_forbidden
    assert not fault_of(TransientError("503")).is_forbidden


def test_a_short_interruption_is_no_reason_for_doubt_and_a_long_one_is() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.taken()
        server.watch_errors = [TransientError("reset")] * 5
        server.cut.set()
        await asyncio.sleep(20)
        server.put(site("b"))
        await asyncio.sleep(1)
        assert watching.taken() == ["+b"]
        server.watch_errors = [TransientError("reset")] * 45
        server.cut.set()
        await asyncio.sleep(1)
        server.put(site("c"))
        server.list_errors = [TransientError("503")] * 5
        await asyncio.sleep(31)
        assert watching.taken() == ["syncing"]
        server.watch_errors.clear()
        await asyncio.sleep(60)
        assert watching.taken() == ["syncing", "+c", "ok"]
        await watching.end()

    simulated(scenario)


def test_a_list_that_fails_says_nothing_about_what_is_missing() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.taken()
        await watching.end()
        server.list_errors = [TransientError("503")] * 4
        watching.start()
        await asyncio.sleep(3)
        assert watching.emitted == []
        await asyncio.sleep(30)
        assert server.list_errors == []
        assert watching.emitted == []
        await watching.end()

    simulated(scenario)


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


def test_what_a_slow_read_brings_does_not_undo_what_the_watch_told() -> None:
    async def scenario() -> None:
        server = Server([site("a", spec={"x": 1}), site("b", spec={"v": 1})])
        watching = Watching(server, content=[("default", "a")])
        await asyncio.sleep(1)
        get = server.get

        async def slow(*location: Any) -> Any:
            found = await get(*location)
            await asyncio.sleep(5)
            return found

        server.get = slow  # type: ignore[method-assign, assignment]
        reading = asyncio.create_task(
            watching.watch.change_content(frozenset({("default", "a"), ("default", "b")}))
        )
        await asyncio.sleep(1)
        server.put(site("b", spec={"v": 2}))
        await reading
        row = watching.content("b")
        assert row is not None
        assert bytes(row.content) == b'{"v":2}'  # type: ignore[arg-type]
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


def test_a_deletion_between_two_watches_is_found_by_the_replay() -> None:
    for bookmark in (True, False):

        async def scenario(bookmark: bool = bookmark) -> None:
            server = Porch([revision("a"), revision("b")], bookmark=bookmark)
            watching = Watching(server, REVISION)
            await asyncio.sleep(1)
            watching.taken()
            listed = asyncio.Event()
            original = server.list

            async def late(*location: Any, **options: Any) -> Any:
                found = await original(*location, **options)
                listed.set()
                server.remove(REVISION, "default", "a")
                return found

            server.list = late  # type: ignore[method-assign]
            server.cut.set()
            await listed.wait()
            await asyncio.sleep(7)  # without a bookmark: five seconds of silence end the replay
            assert watching.taken() == ["-a"]
            await watching.end()

        simulated(scenario)


def test_events_after_the_replay_are_told_and_the_list_is_repeated() -> None:
    async def scenario() -> None:
        server = Porch([revision("a")])
        watching = Watching(server, REVISION)
        await asyncio.sleep(20)
        watching.taken()
        server.put(revision("c"))
        await asyncio.sleep(1)
        assert watching.taken() == ["+c"]
        lists = server.lists
        await asyncio.sleep(620)
        assert server.lists == lists + 1
        assert watching.emitted == []
        await watching.end()

    simulated(scenario)
