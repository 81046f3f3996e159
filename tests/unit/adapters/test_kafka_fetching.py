"""Fetches that name only what changed, and their pace: against a broker that keeps sessions as in KIP-227."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchResponse_v11
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.adapters.kafka.fetching import (
    BULK_BYTES,
    PACE_SECONDS,
    QUIET_SECONDS,
    REST_SECONDS,
    REST_WAIT_SECONDS,
    STREAM_RESPONSES,
    Fetches,
    Pace,
)
from tests.kit.processes import run_simulated

NODE = 1
UNKNOWN_SESSION, WRONG_EPOCH = 70, 71
Wanted = Mapping[tuple[str, int], int]


class SessionBroker:
    """Answers fetches without records, and remembers which partitions the last one made it look at.

    loses_response: the next fetch is served, and its response does not arrive
    has_room: whether new sessions are kept
    """

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, dict[tuple[str, int], int]]] = {}
        self.looked_at: Wanted = {}
        self.named = 0
        self.wait_ms = 0
        self.records = b""
        self.loses_response = False
        self.has_room = True
        self._made = 0

    async def send(self, node: int, request: Any, **options: Any) -> Any:
        struct = request.build(FetchRequest_v11)
        struct.encode()  # it fits the protocol
        error, session = self._serve(struct)
        await asyncio.sleep(0)
        if self.loses_response:
            self.loses_response = False
            raise KafkaConnectionError("the response is lost")
        partitions: list[Any] = [(0, 0, 1, 1, 0, [], -1, self.records)]
        topics = [("t", partitions)] if self.records else []
        return FetchResponse_v11(0, error, session, topics)

    def _serve(self, struct: Any) -> tuple[int, int]:
        named = {(topic, part[0]): part[2] for topic, parts in struct.topics for part in parts}
        self.named, self.wait_ms = len(named), struct.max_wait_time
        if struct.session_epoch == 0:
            self.sessions.pop(struct.session_id, None)
            self.looked_at = named
            if not self.has_room:
                return 0, 0
            self._made += 1
            self.sessions[self._made] = 1, dict(named)
            return 0, self._made
        if struct.session_id not in self.sessions:
            return UNKNOWN_SESSION, 0
        epoch, partitions = self.sessions[struct.session_id]
        if epoch != struct.session_epoch:
            return WRONG_EPOCH, 0
        for topic, numbers in struct.forgotten_topics_data:
            for number in numbers:
                del partitions[topic, number]
        partitions |= named
        self.looked_at = dict(partitions)
        self.sessions[struct.session_id] = epoch + 1, partitions
        return 0, struct.session_id


def fetch_of(wanted: Wanted) -> FetchRequest:
    """Return a fetch as the library makes it."""
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, number), offset in wanted.items():
        topics.setdefault(topic, []).append((number, offset, 1_000))
    return FetchRequest(250, 1, 10_000, 1, list(topics.items()))


PARTITIONS = st.tuples(st.sampled_from("ab"), st.integers(0, 3))
FAULTS = st.sampled_from(["", "", "", "lost", "cancelled", "evicted", "full", "room"])
FETCHES = st.lists(st.tuples(st.dictionaries(PARTITIONS, st.integers(0, 3), max_size=6), FAULTS), max_size=30)


@settings(max_examples=200, deadline=None)
@given(FETCHES)
def test_the_broker_looks_at_what_the_library_wants(run: list[tuple[Wanted, str]]) -> None:
    """Whatever was added, moved, paused, lost, cancelled or evicted: one retry at most, and both agree."""

    async def main() -> None:
        client = SessionBroker()
        broker_send = client.send
        fetches = Fetches(client)
        assert client.send != broker_send
        for wanted, fault in run:
            client.loses_response = fault == "lost"
            client.has_room = {"full": False, "room": True}.get(fault, client.has_room)
            if fault == "evicted":
                client.sessions.clear()
            task = asyncio.create_task(fetches.send(NODE, fetch_of(wanted)))
            if fault == "cancelled":
                await asyncio.sleep(0)
                task.cancel()
            with contextlib.suppress(KafkaConnectionError, asyncio.CancelledError):
                response = await task
                if response.error_code:
                    response = await fetches.send(NODE, fetch_of(wanted))
                assert response.error_code == 0
                assert client.looked_at == wanted

    run_simulated(main())


def test_partitions_at_their_ends_are_not_named() -> None:
    """After the first fetch only what moved, came or went is sent."""

    async def main() -> list[int]:
        client, named = SessionBroker(), []
        fetches = Fetches(client)
        everything = {("t", number): 0 for number in range(12)}
        steps: Iterable[Wanted] = (
            everything, everything, everything | {("t", 3): 7}, everything | {("t", 3): 7, ("u", 0): 0},
            {("t", 3): 7},
        )  # fmt: skip
        for wanted in steps:
            await fetches.send(NODE, fetch_of(wanted))
            named.append(client.named)
        return named

    assert run_simulated(main()) == [12, 0, 1, 1, 0]


async def send_all(fetches: Fetches, client: SessionBroker, gaps: Iterable[tuple[float, int]]) -> list[float]:
    """Send fetches, each after a gap with so many bytes in its response; return how long each one took."""
    loop, took = asyncio.get_running_loop(), []
    for gap, size in gaps:
        await asyncio.sleep(gap)
        client.records = b"r" * size
        began = loop.time()
        await fetches.send(NODE, fetch_of({("t", 0): 0}))
        took.append(loop.time() - began)
    return took


STREAM = [(0.002, 100)] * STREAM_RESPONSES


@pytest.mark.parametrize(
    ("gaps", "seconds", "reason"),
    [
        ([(0.002, 100)] * (STREAM_RESPONSES - 1), 0.0, "a change and its echo do not stream"),
        (STREAM, PACE_SECONDS, "records stream"),
        ([*STREAM, (0.002, BULK_BYTES)], 0.0, "a backlog is read at once"),
        ([*STREAM, (0.002, 0), (QUIET_SECONDS, 0)], 0.0, "the stream is over"),
        ([*STREAM, *STREAM], PACE_SECONDS, "the pace does not end the stream"),
        ([(QUIET_SECONDS + 0.01, 100)] * 20, 0.0, "single records, one after the other"),
    ],
)
def test_fetches_wait_only_while_records_stream(
    gaps: list[tuple[float, int]], seconds: float, reason: str
) -> None:
    """The fetch after these responses waits as long as it should."""

    async def main() -> float:
        client = SessionBroker()
        fetches = Fetches(client)
        await send_all(fetches, client, gaps)
        return (await send_all(fetches, client, [(0.0, 0)]))[0]

    took = run_simulated(main())
    assert took == pytest.approx(seconds, abs=0.003), reason


def test_a_reader_at_rest_asks_seldom() -> None:
    """A fetch waits longer at the broker after seconds without a record, and not before."""

    async def main() -> list[int]:
        client, waits = SessionBroker(), []
        fetches = Fetches(client)
        for gap, size in (
            (0.0, 0),
            (REST_SECONDS - 1, 100),
            (1.5, 0),
            (REST_SECONDS, 0),
            (0.0, 10),
            (0.0, 0),
        ):
            await send_all(fetches, client, [(gap, size)])
            waits.append(client.wait_ms)
        return waits

    rest = int(REST_WAIT_SECONDS * 1000)
    assert run_simulated(main()) == [250, 250, 250, rest, rest, 250]


def test_whoever_waits_is_woken_by_records_only() -> None:
    """A response without partitions wakes nobody; one with records wakes at once."""

    async def main() -> list[bool]:
        client, loop, woken = SessionBroker(), asyncio.get_running_loop(), []
        fetches = Fetches(client)
        for size in (0, 10):
            client.records = b"r" * size
            fetches.expect()
            began, waiting = loop.time(), asyncio.create_task(fetches.arrival(1.0))
            await fetches.send(NODE, fetch_of({("t", 0): 0}))
            await waiting
            woken.append(loop.time() - began < 0.5)
        return woken

    assert run_simulated(main()) == [False, True]


def test_a_new_pace_is_not_at_rest() -> None:
    """A restore has a reader of its own: its first fetches wait at the broker as briefly as others."""
    assert not Pace(100.0).is_at_rest(100.0)
    assert Pace(100.0).is_at_rest(100.1 + REST_SECONDS)
