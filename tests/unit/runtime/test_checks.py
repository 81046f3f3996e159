"""Check requests of one kind on a server: how many reads answer them, and what a failed read means.

`tests/unit/core/variants/test_informer.py` tests which read answers which request.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pvbus.core.errors import TransientError
from pvbus.core.kernel.records import CheckRequest
from pvbus.core.variants.ingest.checks import Checks, names_of
from pvbus.ports.cluster import Object
from tests.unit.runtime.watching import Server, Watching, simulated, site


def labelled(name: str, env: str) -> Object:
    return {**site(name), "metadata": {"name": name, "labels": {"env": env}}}


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
