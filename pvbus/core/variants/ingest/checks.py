"""Open check requests of one kind, and when the API server is read for them.

A check request asks whether the rows of a kind are up to date. One read answers every request that was
open when it began, and no other. Reads are at least `CHECK_SECONDS` apart; a read that failed is repeated
after `CHECK_RETRY_SECONDS`. Pure: the caller gives the monotonic time.
"""

import math
from collections.abc import Iterator, Mapping, Sized

import msgspec

from pvbus.core.kernel.backoff import Jitter
from pvbus.core.kernel.objectrows import Emission
from pvbus.core.kernel.records import OBJECTS, CheckAnswer, CheckRequest
from pvbus.core.variants.ingest.published import Name

CHECK_SECONDS = 10.0  # a removal waits longer than this anyway; a list of 100,000 objects takes seconds
CHECK_RETRY_SECONDS = 60.0  # like the probe of a kind that is not served
NAMES_MAX = 10  # objects to read by name, or this share of the kind if more; beyond, a list costs less
NAMES_SHARE_MAX = 0.02
CHECK_SETTLE_SECONDS = 0.05  # requests that arrive together are answered by one read

Batch = Mapping[str, CheckRequest]
"""The requests that one read answers, by key."""


class Checks:
    """The open requests of one kind."""

    def __init__(self) -> None:
        self._open: dict[str, CheckRequest] = {}
        self._not_before = -math.inf

    def ask(self, key: str, request: CheckRequest, now: float) -> None:
        """Add a request, or replace the one of this key."""
        if not self._open:
            self._not_before = max(self._not_before, now + CHECK_SETTLE_SECONDS)
        self._open[key] = request

    def drop(self, key: str) -> None:
        self._open.pop(key, None)

    @property
    def due_at(self) -> float:
        """Return when the next read is due; infinity if nothing is open."""
        return self._not_before if self._open else math.inf

    def open_now(self) -> Batch:
        """Return the requests that a read answers if it begins now."""
        return dict(self._open)

    def close(self, batch: Batch, now: float) -> list[tuple[str, CheckRequest]]:
        """Remove and return the requests that a successful read answers.

        A request that was deleted, or replaced by one with another nonce, while the read went on is not
        among them: the read began before the new one was known.
        """
        if batch:
            self._not_before = now + CHECK_SECONDS
        answered = [(key, request) for key, request in batch.items() if self._open.get(key) == request]
        for key, _ in answered:
            del self._open[key]
        return answered

    def answers(self, batch: Batch, now: float) -> Iterator[Emission]:
        """Yield the answers to the requests that a successful read answers, and close them."""
        for key, request in self.close(batch, now):
            value = msgspec.json.encode(CheckAnswer(nonce=request.nonce))
            yield Emission(OBJECTS, key, value, request.nonce)

    def note_failure(self, now: float, seconds: float = CHECK_RETRY_SECONDS) -> None:
        """Note that a read failed, or that its answers were not written.

        seconds: the wait before the next read
        """
        self._not_before = now + seconds


def are_many(names: Sized, count: int) -> bool:
    """Return whether a list costs less than a read of each name. count: how many objects the kind has."""
    return len(names) > max(NAMES_MAX, int(count * NAMES_SHARE_MAX))


def names_of(batch: Batch) -> frozenset[Name] | None:
    """Return (namespace, name) of the requested objects; None if a request asks about the whole kind."""
    return named_in(batch) if all(request.names for request in batch.values()) else None


def named_in(batch: Batch) -> frozenset[Name]:
    """Return (namespace, name) of the named objects, even if another request asks about the whole kind."""
    texts = (text.partition("/") for request in batch.values() for text in request.names)
    return frozenset((namespace, name) for namespace, _, name in texts)


def retry_seconds(asked_seconds: float | None, jitter: Jitter) -> float:
    """Return the wait after a failed read. asked_seconds: the wait that the server asked for."""
    wait = max(CHECK_RETRY_SECONDS, asked_seconds or 0.0)
    return jitter(wait, 1.1 * wait)
