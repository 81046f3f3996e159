"""Fetches with fewer and smaller requests than the library's: incremental sessions, and a pace.

The library names every partition in every fetch, reads no session from the response, and fetches again as
soon as one record is there. `Fetches` stands between a consumer and its client: of the library's fetch it
sends only what differs from the last one to that broker, and it spaces fetches out while records stream.

Invariants. One fetch to a broker is under way at a time, as in the library. Unless the response to a fetch is
known, the next one names all partitions again and replaces the session. Source: KIP-227.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest

SESSIONS_VERSION = 7
"""The first version of a fetch that has sessions: brokers since Kafka 1.1."""

FIRST_EPOCH, LAST_EPOCH = 1, 2**31 - 1

PACE_SECONDS = 0.06
"""The time between two fetches while records stream. Shorter: each transaction costs a fetch. Longer: each
hop of a change that comes with the stream waits so long."""

QUIET_SECONDS = 0.05
"""Records that come later than this after others do not stream: the next fetch does not wait."""

STREAM_RESPONSES = 6
"""After so many responses in a row that had records, records stream. One change makes at most three: the
markers of a transaction arrive partition by partition, and the echo of the change follows it. Twice that, as
the next change may come before they are over."""

BULK_BYTES = 64 * 1024
"""A response of this size comes from a backlog: to wait would gather nothing, and delay a restore."""

REST_SECONDS = 5.0
"""After so long without a record, fetches wait longer at the broker."""

REST_WAIT_SECONDS = 1.0
"""How long they wait then. Longer: a partition that is added waits behind them."""

Position = tuple[int, int]
"""(next offset, maximum bytes) of a partition in a fetch."""

TopicPartition = tuple[str, int]


class Changes(NamedTuple):
    """What differs between two fetches: partitions to add or to move, and partitions to forget."""

    moved: Mapping[TopicPartition, Position]
    forgotten: Iterable[TopicPartition]


def changes(before: Mapping[TopicPartition, Position], now: Mapping[TopicPartition, Position]) -> Changes:
    """Return what to send so that the broker fetches as `now` says, and not as `before`."""
    moved = {partition: position for partition, position in now.items() if before.get(partition) != position}
    return Changes(moved, [partition for partition in before if partition not in now])


class FetchSession:
    """What one broker knows of our fetches.

    id: the session's id at the broker, 0 for none
    epoch: of the next fetch; 0 makes a new session in place of this one
    known: the partitions that the broker fetches since the last response
    """

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.known: Mapping[TopicPartition, Position] = {}

    def next_changes(self, wanted: Mapping[TopicPartition, Position]) -> Changes:
        """Return what the next fetch must say. Caller: restarts the session if its response is not known."""
        return changes(self.known if self.epoch else {}, wanted)

    def restart(self) -> None:
        """Name all partitions again with the next fetch, in place of the session that there may be."""
        self.epoch = 0

    def accept(self, session_id: int, wanted: Mapping[TopicPartition, Position]) -> None:
        """Note a response without an error; a broker whose sessions are all taken gives the id 0."""
        self.id = session_id
        self.epoch = (FIRST_EPOCH if self.epoch >= LAST_EPOCH else self.epoch + 1) if session_id else 0
        self.known = wanted


class Pace:
    """When the next fetch to one broker may be sent; times are seconds of the loop's clock."""

    def __init__(self, now: float) -> None:
        self._sent_at = self._records_at = now
        self._streak = 0

    def is_at_rest(self, now: float) -> bool:
        return now - self._records_at > REST_SECONDS

    def wait_seconds(self, now: float) -> float:
        """Return how long to wait with a fetch: 0 unless records stream."""
        if self._streak < STREAM_RESPONSES or now - self._records_at > QUIET_SECONDS:
            return 0.0
        return max(0.0, self._sent_at + PACE_SECONDS - now)

    def note_sent(self, now: float) -> None:
        self._sent_at = now

    def note_response(self, now: float, size: int) -> None:
        """size: the bytes of its records, 0 if the fetch ended without any."""
        if not size:
            return
        is_backlog = size >= BULK_BYTES
        wait = PACE_SECONDS if self._streak >= STREAM_RESPONSES else 0.0
        is_late = now - self._records_at > QUIET_SECONDS + wait
        self._streak = 0 if is_backlog else 1 if is_late else self._streak + 1
        self._records_at = now


class _SessionFetch(FetchRequest):  # type: ignore[misc]  # aiokafka has no types
    """A fetch of a session. The library's own has none (id 0, epoch -1)."""

    def __init__(
        self, request: FetchRequest, session: FetchSession, moves: Changes, *, is_at_rest: bool
    ) -> None:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for (topic, number), (offset, size) in moves.moved.items():
            topics.setdefault(topic, []).append((number, offset, size))
        self.__dict__.update(request.__dict__ | {"_topics": list(topics.items())})
        if is_at_rest:
            self._max_wait_ms = int(REST_WAIT_SECONDS * 1000)
        self._session = session.id, session.epoch
        self._forgotten: dict[str, list[int]] = {}
        for topic, number in moves.forgotten:
            self._forgotten.setdefault(topic, []).append(number)

    def build(self, request_struct_class: Any) -> Any:
        struct = super().build(request_struct_class)
        if request_struct_class.API_VERSION >= SESSIONS_VERSION:
            struct.session_id, struct.session_epoch = self._session
            struct.forgotten_topics_data = list(self._forgotten.items())
        return struct


class Fetches:
    """Sends the fetches of one consumer; all other requests pass unchanged."""

    def __init__(self, client: AIOKafkaClient) -> None:
        """Take the place of the client's own `send`."""
        self._send: Callable[..., Awaitable[Any]] = client.send
        self._sessions: dict[int, FetchSession] = {}
        self._paces: dict[int, Pace] = {}
        self._arrived = asyncio.Event()
        client.send = self.send

    async def arrival(self, seconds: float) -> None:
        """Wait for the next records or errors of partitions, at most so long; see `expect`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()

    def expect(self) -> None:
        """Let `arrival` wait for what arrives from now on."""
        self._arrived.clear()

    async def send(self, node: int, request: Any, **options: Any) -> Any:
        """Send a request as the library's client does, and return its response."""
        if not isinstance(request, FetchRequest):
            return await self._send(node, request, **options)
        loop = asyncio.get_running_loop()
        pace = self._paces.setdefault(node, Pace(loop.time()))
        if seconds := pace.wait_seconds(loop.time()):
            await asyncio.sleep(seconds)
        pace.note_sent(now := loop.time())
        wanted = {
            (topic, number): (offset, size)
            for topic, partitions in request.topics
            for number, offset, size in partitions
        }
        session = self._sessions.setdefault(node, FetchSession())
        moves = session.next_changes(wanted)
        fetch = _SessionFetch(request, session, moves, is_at_rest=pace.is_at_rest(now))
        response = await self._exchange(session, wanted, self._send(node, fetch, **options))
        pace.note_response(loop.time(), _record_bytes(response))
        if response.topics:
            self._arrived.set()
        return response

    async def _exchange(
        self, session: FetchSession, wanted: Mapping[TopicPartition, Position], answer: Awaitable[Any]
    ) -> Any:
        """Return a response, and note in the session what it says of it."""
        is_known = False
        try:
            response = await answer
            is_known = response.API_VERSION >= SESSIONS_VERSION and not response.error_code
        finally:  # a lost response, a cancelled fetch, or a session that the broker has dropped
            if not is_known:
                session.restart()
        if is_known:
            session.accept(response.session_id, wanted)
        return response


def _record_bytes(response: Any) -> int:
    """Return the bytes of all records in a response to a fetch."""
    return sum(len(partition[-1] or b"") for _, partitions in response.topics for partition in partitions)
