"""Check requests of one kind: which read answers them, what is written before, and what is not answered."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.records import CheckRequest
from pvbus.core.variants.ingest.checks import Checks, names_of
from pvbus.ports.cluster import Object
from tests.unit.runtime.watching import REVISION, SITE, Porch, Server, Watching, revision, simulated, site


def labelled(name: str, env: str) -> Object:
    return {**site(name), "metadata": {"name": name, "labels": {"env": env}}}


def behind(server: Server, change: Callable[[Server], object]) -> None:
    """Change something that the watch does not show yet."""
    server.flowing.clear()
    change(server)


def relabel(server: Server) -> None:
    server.put(labelled("a", "prod"))


def remove(server: Server) -> None:
    server.remove(SITE, "default", "a")


def flap(server: Server) -> None:
    """Let the object be another one for a moment: its row stays equal, its version does not."""
    server.put(labelled("a", "prod"))
    server.put(labelled("a", "test"))


SITUATIONS = [
    (None, (), ["!n"], 1, "a whole kind without a difference: one list, no marker"),
    (None, ("default/a",), ["!n"], 0, "an object as it was seen: one GET"),
    (None, ("default/z",), ["!n"], 1, "an object that nobody saw: a list says that it is not there"),
    (relabel, (), ["syncing", "+a=prod", "ok", "!n"], 1, "the watch is behind: the list's news come first"),
    (relabel, ("default/a",), ["syncing", "+a=prod", "ok", "!n"], 1, "a GET shows that the watch is behind"),
    (relabel, ("default/b",), ["!n"], 0, "what differs was not asked about"),
    (remove, (), ["syncing", "-a", "ok", "!n"], 1, "a deletion that the watch does not show yet"),
    (remove, ("default/a",), ["syncing", "-a", "ok", "!n"], 1, "the same, found by name"),
    (flap, ("default/a",), ["!n"], 1, "an equal row of another version: older events are still to come"),
]


@pytest.mark.parametrize(("change", "names", "expected", "lists", "why"), SITUATIONS)
def test_an_answer_follows_what_its_read_found(
    change: Callable[[Server], object] | None,
    names: tuple[str, ...],
    expected: list[str],
    lists: int,
    why: str,
) -> None:
    """Each row: what is written for one check, and by how many lists; afterwards nothing older arrives."""

    async def scenario() -> None:
        server = Server([labelled("a", "test"), labelled("b", "test")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        before = server.lists
        if change is not None:
            behind(server, change)
        watching.ask("default/s", "n", *names)
        await asyncio.sleep(1)
        assert watching.story() == expected, why
        assert server.lists - before == lists, why
        server.flowing.set()
        await asyncio.sleep(20)
        late = ["+a=prod"] if change is relabel and names == ("default/b",) else []
        assert watching.story() == late, why
        await watching.end()

    simulated(scenario)


def test_an_answer_of_a_kind_that_replays_is_confirmed_by_name() -> None:
    """Porch's lists leave out what they like: an object that is asked about is read by name as well."""

    async def scenario() -> None:
        server = Porch([revision("a")])
        watching = Watching(server, REVISION)
        await asyncio.sleep(20)
        watching.story()
        server.flowing.clear()
        server.put(revision("b"))
        server.left_out = {"a", "b"}
        watching.ask("default/s", "n", "default/a", "default/b")
        await asyncio.sleep(1)
        assert watching.story() == ["syncing", "+b=", "ok", "!n"]
        server.remove(REVISION, "default", "a")
        await asyncio.sleep(15)
        watching.ask("default/s", "n2")
        await asyncio.sleep(1)
        assert watching.story() == ["syncing", "-a", "ok", "!n2"]
        await watching.end()

    simulated(scenario)


def broken_list(server: Server) -> None:
    server.list_errors = [TransientError("503")]


def broken_get(server: Server) -> None:
    server.get_errors = [TransientError("GET /apis/example.org/v1/sites/a: no answer within 30 s")]


@pytest.mark.parametrize(("fault", "names"), [(broken_list, ()), (broken_get, ("default/a",))])
def test_a_read_that_fails_answers_nothing_and_is_repeated_after_a_minute(
    fault: Callable[[Server], None], names: tuple[str, ...]
) -> None:
    """Meanwhile the watch goes on, from where it was."""

    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        fault(server)
        watching.ask("default/s", "n", *names)
        await asyncio.sleep(5)
        server.put(site("b"))
        await asyncio.sleep(50)
        assert watching.story() == ["+b="]
        await asyncio.sleep(12)
        assert watching.story() == ["!n"]
        await watching.end()

    simulated(scenario)


def test_what_may_be_listed_but_not_read_is_listed() -> None:
    """The least rights of a static kind are list and watch."""

    async def scenario() -> None:
        server = Server([site("a")])
        server.get_errors = [PermanentError("403 Forbidden", reason="Forbidden")]
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        watching.ask("default/s", "n", "default/a")
        await asyncio.sleep(1)
        assert watching.story() == ["!n"]
        assert server.lists == 2
        await watching.end()

    simulated(scenario)


def test_a_kind_that_is_not_served_answers_when_it_is() -> None:
    async def scenario() -> None:
        server = Server()
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.ask("default/s", "n")
        await asyncio.sleep(200)
        assert watching.story() == ["unavailable"]
        server.put(site("a"))
        await asyncio.sleep(61)
        assert watching.story() == ["syncing", "+a=", "ok", "!n"]
        await watching.end()

    simulated(scenario)


def test_a_kind_that_ceases_to_be_served_is_not_answered() -> None:
    """The watch shows nothing of it; the read does."""

    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        server.list_errors = [PermanentError("404: the server could not find the requested resource")] * 10
        watching.ask("default/s", "n")
        await asyncio.sleep(30)
        assert watching.story() == ["unavailable"]
        await watching.end()

    simulated(scenario)


@pytest.mark.parametrize("fault", [None, TransientError("connection refused")])
def test_while_the_watch_is_away_a_read_decides(fault: Exception | None) -> None:
    """Where the API server answers, the check is answered; where it does not, it waits."""

    async def scenario() -> None:
        server = Server([labelled("a", "test")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        server.watch_errors = [TransientError("reset")] * 500
        server.cut.set()
        await asyncio.sleep(1)
        server.put(labelled("a", "prod"))
        if fault is not None:
            server.list_errors = [fault] * 500
        watching.ask("default/s", "n")
        await asyncio.sleep(20)
        assert watching.story() == ([] if fault else ["syncing", "+a=prod", "ok", "!n"])
        await asyncio.sleep(100)
        assert not fault or watching.story() == ["syncing"]
        server.watch_errors.clear()
        server.list_errors.clear()
        await asyncio.sleep(61)
        assert not fault or watching.story() == ["syncing", "+a=prod", "ok", "!n"]
        await watching.end()

    simulated(scenario)


def test_a_read_answers_only_what_was_asked_before_it_began() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        server.list_seconds = 5
        watching = Watching(server)
        await asyncio.sleep(1)
        watching.ask("default/early", "n1")  # the first list is under way
        await asyncio.sleep(5)
        assert "!n1" not in watching.story()
        await asyncio.sleep(5)
        assert watching.story() == ["!n1"]
        assert server.lists == 2
        watching.ask("default/s", "n2")
        await asyncio.sleep(12)  # the next list is under way
        watching.ask("default/s", "n3")
        gone = watching.ask("default/t", "n4")
        await asyncio.sleep(4)
        assert watching.story() == []  # n2 was replaced: nobody waits for it
        watching.watch.uncheck(gone)
        await asyncio.sleep(20)
        assert watching.story() == ["!n3"]
        await watching.end()

    simulated(scenario)


def test_a_request_that_is_withdrawn_while_it_is_read_is_not_answered() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        server.list_seconds = 5
        key = watching.ask("default/s", "n")
        await asyncio.sleep(2)
        watching.watch.uncheck(key)
        await asyncio.sleep(20)
        assert (watching.story(), server.lists) == ([], 2)
        await watching.end()

    simulated(scenario)


@pytest.mark.parametrize("kind", ["whole", "by name"])
def test_many_sets_that_ask_at_once_share_one_read(kind: str) -> None:
    """A thousand names of a thousand objects are one list, a few names a few reads."""

    async def scenario() -> None:
        server = Server([site(f"s{n}") for n in range(1000)])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        for n in range(1000):
            watching.ask(f"default/set-{n}", f"n{n}", *(() if kind == "whole" else (f"default/s{n}",)))
        await asyncio.sleep(1)
        assert sorted(watching.story()) == sorted(f"!n{n}" for n in range(1000))
        assert (server.lists, server.gets) == (2, 0)
        await asyncio.sleep(20)
        for n in range(10):
            watching.ask(f"default/set-{n}", f"m{n}", f"default/s{n}", f"default/s{n + 1}")
        await asyncio.sleep(1)
        assert len(watching.story()) == 10
        assert (server.lists, server.gets) == (2, 11)
        await watching.end()

    simulated(scenario)


def test_reads_are_ten_seconds_apart_however_often_is_asked() -> None:
    async def scenario() -> None:
        server = Server([site("a")])
        watching = Watching(server)
        await asyncio.sleep(20)
        watching.story()
        for n in range(120):
            watching.ask(f"default/s{n}", f"n{n}")
            await asyncio.sleep(1)
        await asyncio.sleep(15)
        assert len([word for word in watching.story() if word.startswith("!")]) == 120
        assert 12 <= server.lists - 1 <= 13
        await watching.end()

    simulated(scenario)


def request(nonce: str, *names: str) -> CheckRequest:
    return CheckRequest(group="example.org", kind="Site", nonce=nonce, names=names)


def test_the_first_request_is_due_at_once_and_the_next_after_ten_seconds() -> None:
    checks = Checks()
    assert checks.due_at == float("inf")
    checks.ask("k", request("n"), now=100)
    assert checks.due_at <= 100.1
    assert [r.nonce for _, r in checks.close(checks.open_now(), now=101)] == ["n"]
    checks.ask("k", request("m"), now=102)
    assert checks.due_at == 102 + 9
    checks.note_failure(now=111)
    assert checks.due_at == 111 + 60
    checks.note_failure(now=111, seconds=300)
    assert checks.due_at == 111 + 300


def test_a_list_for_other_reasons_does_not_delay_the_first_request() -> None:
    checks = Checks()
    checks.close(checks.open_now(), now=100)
    checks.ask("k", request("n"), now=101)
    assert checks.due_at <= 101.1


def test_names_are_those_of_all_requests_unless_one_asks_for_everything() -> None:
    asked: dict[str, Any] = {"a": request("n", "ns/x", "/y"), "b": request("m", "ns/x")}
    assert names_of(asked) == frozenset({("ns", "x"), ("", "y")})
    assert names_of({**asked, "c": request("o")}) is None
