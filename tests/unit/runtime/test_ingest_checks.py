"""Check requests on the bus: who answers them, after which rows, and what happens at restarts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.core.errors import TooLargeError, TransientError
from pvbus.core.kernel.keys import CHECK_PREFIX, check_key, partition, watch_key
from pvbus.core.kernel.objectrows import SET, Emission
from pvbus.core.kernel.records import (
    DLQ,
    OBJECTS,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ObjectRow,
    WatchRequest,
)
from pvbus.ports.bus import Lease, Output
from pvbus.runtime.ingest.lease import IngestLease
from tests.kit.busbeside import write_beside
from tests.kit.processes import run_simulated
from tests.simulation.world import PARTITIONS, SITE, SimulatedWorld

KEY = check_key("example.org", "Site", "default/alpha")
ROW = "example.org/Site|default|a"
SITES = WatchRequest(group="example.org", kind="Site", requester="unroll-0")


def simulated(scenario: Callable[[SimulatedWorld], Awaitable[None]], *, workers: int = 1) -> None:
    async def main() -> None:
        world = SimulatedWorld(workers=workers)
        world.serve_sites()
        await world.start(["ingest"])
        relabel(world, "test")
        await write(world, watch_key(SITES), SITES)
        await world.converge(quiet=3)
        await scenario(world)
        await world.close()

    run_simulated(main())


async def write(world: SimulatedWorld, key: str, row: Any) -> None:
    """Write a record of `watches` as another service would, past any lease."""
    kind = key.removeprefix(CHECK_PREFIX).partition("|")[0]
    value = row if isinstance(row, bytes) or row is None else msgspec.json.encode(row)
    output = Output(WATCHES, partition(kind, PARTITIONS), key.encode(), value)
    await write_beside(world.bus, output)


async def ask(world: SimulatedWorld, nonce: str, *names: str, key: str = KEY) -> None:
    group, _, kind = key.split("|")[1].rpartition("/")
    await write(world, key, CheckRequest(group=group, kind=kind, nonce=nonce, names=names))


def answer(world: SimulatedWorld, key: str = KEY) -> str:
    value = world.table(OBJECTS).get(key)
    return msgspec.json.decode(value, type=CheckAnswer).nonce if value else ""


def env(world: SimulatedWorld) -> str:
    return msgspec.json.decode(world.table(OBJECTS)[ROW], type=ObjectRow).labels.get("env", "")


def relabel(world: SimulatedWorld, value: str) -> None:
    world.put(SITE, "a", metadata={"labels": {"env": value}})


def test_an_answer_comes_and_goes_with_its_request() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await ask(world, "n1")
        await world.converge(quiet=3)
        assert answer(world) == "n1"
        await ask(world, "n2", "default/a")
        await asyncio.sleep(15)
        assert answer(world) == "n2"
        await write(world, KEY, None)
        await world.converge(quiet=3)
        assert KEY not in world.table(OBJECTS)

    simulated(scenario)


def test_sets_are_checked_though_their_rows_are_elsewhere() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.set("alpha", [])
        await world.converge(quiet=3)
        key = check_key(*SET, "default/alpha")
        await ask(world, "n", "default/alpha", key=key)
        await world.converge(quiet=3)
        assert answer(world, key) == "n"

    simulated(scenario)


def test_a_kind_that_nobody_watches_is_answered_when_somebody_does() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        key = check_key("", "ConfigMap", "default/alpha")
        await ask(world, "n", key=key)
        await asyncio.sleep(100)
        assert answer(world, key) == ""
        request = WatchRequest(group="", kind="ConfigMap", requester="unroll-0")
        await write(world, watch_key(request), request)
        await world.converge(quiet=3)
        assert answer(world, key) == "n"

    simulated(scenario)


def test_nobody_answers_while_ingest_is_dead_and_a_new_read_does_afterwards() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await ask(world, "n1")
        await world.converge(quiet=3)
        await world.kill(next(iter(world.running)))
        relabel(world, "prod")
        await ask(world, "n2")
        await asyncio.sleep(3600)
        assert (answer(world), env(world)) == ("n1", "test")
        await world.start(["ingest"])
        await world.converge(quiet=3)
        assert (answer(world), env(world)) == ("n2", "prod")

    simulated(scenario)


def test_an_answer_whose_request_went_while_ingest_was_dead_is_dropped() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await ask(world, "n")
        await world.converge(quiet=3)
        await world.stop()
        await write(world, KEY, None)
        await world.start(["ingest"])
        await world.converge(quiet=3)
        assert KEY not in world.table(OBJECTS)
        await world.stop()
        ends = await world.ends()
        await world.start(["ingest"])
        await world.converge(quiet=3)
        assert await world.ends() == ends

    simulated(scenario)


def test_an_open_request_moves_with_its_lease() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        for name in list(world.running):
            running = world.running[name]
            if partition("example.org/Site", PARTITIONS) in running.service.leases():
                world.unserve(SITE)
                await ask(world, "n")
                await asyncio.sleep(5)
                await world.kill(name)
        world.serve_sites()
        await asyncio.sleep(60)  # the session of the dead worker ends, and the kind is probed
        assert (answer(world), len(world.running)) == ("n", 1)

    simulated(scenario, workers=2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failing", range(8))
def test_an_answer_is_never_there_before_its_rows(when: str, failing: int) -> None:
    """Whichever step has an unknown outcome, and however small steps are."""

    async def scenario(world: SimulatedWorld) -> None:
        (running,) = world.running.values()
        world.of("ingest")._steps.limits = world.of("ingest")._steps.limits._replace(records=1)
        step, count = running.bus.step, 0

        async def watched(lease: Any, outputs: Any, offsets: Any = None) -> None:
            nonlocal count
            count += 1
            is_failing = count == failing + 1
            if is_failing and when == "before":
                raise TransientError("no answer")
            await step(lease, outputs, offsets)
            assert answer(world) != "n" or env(world) == "prod"
            if is_failing:
                raise TransientError("no answer")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(running.cluster, "_mixed", lambda batch: [])  # the watch loses its events
            running.bus.step = watched  # type: ignore[method-assign]
            relabel(world, "prod")
            await asyncio.sleep(1)
            assert env(world) == "test"
            await ask(world, "n")
            await asyncio.sleep(1)
        await world.converge(quiet=3)
        assert (answer(world), env(world)) == ("n", "prod")
        assert count > failing

    simulated(scenario)


def test_what_the_bus_refuses_is_not_answered_for() -> None:
    """An old row must not pass for what the API server says; other objects are not held up."""

    async def scenario(world: SimulatedWorld) -> None:
        (running,) = world.running.values()
        step = running.bus.step
        limit = 600

        async def small(lease: Any, outputs: Any, offsets: Any = None) -> None:
            if any(len(output.value or b"") > limit for output in outputs):
                raise TooLargeError("a record is too large")
            await step(lease, outputs, offsets)

        running.bus.step = small  # type: ignore[method-assign]
        world.put(SITE, "a", metadata={"labels": {"env": "prod", "text": "x" * limit}})
        await world.converge(quiet=3)
        await ask(world, "n1")
        other = check_key("example.org", "Site", "default/beta")
        world.put(SITE, "b")
        await ask(world, "n2", "default/b", key=other)
        await asyncio.sleep(300)
        assert (answer(world), env(world)) == ("", "test")
        assert answer(world, other) == "n2"
        relabel(world, "prod")
        await asyncio.sleep(120)
        assert (answer(world), env(world)) == ("n1", "prod")

    simulated(scenario)


def test_rows_do_not_move_past_answers() -> None:
    opened = IngestLease(Lease(group="g", partition=0, epoch=1), SystemClock())
    for key, digest in [("a", "a1"), (KEY, "n1"), ("a", "a2"), (KEY, "n2"), ("a", "a3"), ("b", "b1")]:
        opened.add(OBJECTS, key, 0, Emission(OBJECTS, key, digest.encode(), digest))
    assert [e.digest for e in opened.pending.values()] == ["a1", "n1", "a2", "n2", "a3", "b1"]


HOSTILE = [
    (KEY, b"[]", "no object"),
    (KEY, b'{"group":"example.org","kind":"Site"}', "no nonce"),
    (KEY, b'{"group":"example.org","kind":"Site","nonce":""}', "an empty nonce"),
    (KEY, b'{"group":"example.org","kind":"Site","nonce":"%s"}' % (b"x" * 1000), "a huge nonce"),
    (KEY, b'{"group":"example.org","kind":"Site","nonce":{"a":1}}', "a nonce of a wrong type"),
    (KEY, b'{"group":"example.org","kind":"Site","nonce":"n","names":["a"]}', "a name without a namespace"),
    (KEY, b'{"group":"example.org","kind":"Site","nonce":"n","names":"abc"}', "names of a wrong type"),
    (KEY, b'{"group":"example.org","kind":"Site","nonce":"n","names":[%s"a/b"]}' % (b'"a/b",' * 20000),
     "too many names"),
    (KEY, b'{"group":"apps","kind":"Deployment","nonce":"n"}', "another kind than the key's"),
    ("check|example.org/Site", b'{"group":"example.org","kind":"Site","nonce":"n"}', "a key without a set"),
    ("check|example.org/Site|a|b", b'{"group":"example.org","kind":"Site","nonce":"n"}', "too many parts"),
    ("example.org/Site|unroll-9", b"\xff\xfe", "no text"),
    ("example.org/Site|unroll-9", b'{"group":1,"kind":"Site","requester":"unroll-9"}', "a wrong type"),
    ("example.org/Site|unroll-9", b'{"group":"","kind":"Secret","requester":"unroll-9"}', "another kind"),
    ("example.org/|unroll-9", b'{"group":"example.org","kind":"","requester":"unroll-9"}', "no kind"),
    ("example.org/Site|unroll-9", b"[" * 50_000, "deep nesting"),
    ("example.org/Site|unroll-9", b'{"group":"%s"' % (b"x" * 500_000), "huge, and cut off"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "why"), HOSTILE)
def test_a_hostile_request_is_a_dead_letter_and_changes_nothing(key: str, value: bytes, why: str) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        watched = {kind for opened in world.of("ingest").leases().values() for kind in opened.watches}
        before = {key: row for key, row in world.table(OBJECTS).items() if not key.startswith("check|")}
        await write(world, key, value)
        await world.converge(quiet=3)
        assert list(world.table(DLQ)) == [key], why
        assert {kind for opened in world.of("ingest").leases().values() for kind in opened.watches} == watched
        assert world.table(OBJECTS) == before
        await ask(world, "good", key=check_key("example.org", "Site", "default/good"))
        await world.converge(quiet=3)
        assert answer(world, check_key("example.org", "Site", "default/good")) == "good"

    simulated(scenario)


def test_a_request_with_fields_of_a_later_version_is_taken() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await write(world, KEY, b'{"group":"example.org","kind":"Site","nonce":"n","later":[1,{}]}')
        await world.converge(quiet=3)
        assert answer(world) == "n"

    simulated(scenario)
