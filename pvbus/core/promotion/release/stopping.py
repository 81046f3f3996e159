"""Keeps a fleet-wide stop, and confirms it.

Each partition confirms a stop on its object, for the generation that it follows: once no order of the
partition is under way that began before the stop was seen. So nothing that it began is written after that,
except by a process that has lost its lease, which has at most one write on its way.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.stops import RolloutStop
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Effect, KindRef, Outcome, Patch
from pvbus.core.kernel.keys import reconciled_partition
from pvbus.core.promotion.protocol.stops import StopView

STOP = KindRef(PROMOTION_GROUP, "RolloutStop", "v1alpha1")
UNDER_WAY_SECONDS = 0.2
"""Between two looks whether orders that began before a stop are over."""


def confirming_key(partition: int, partitions: int) -> str:
    """Return the key under which a partition confirms stops. It has no namespace, so no variant has it."""
    keys = (f"stop-{number}" for number in count())
    return next(key for key in keys if reconciled_partition(key, partitions) == partition)


class StopGate:
    """What release knows of stops, and which orders began before it did."""

    def __init__(self, partitions: int) -> None:
        self.view = StopView(partitions)
        self._count = partitions
        self._keys = [confirming_key(number, partitions) for number in range(partitions)]
        self._seen = 0
        self._begun: Counter[tuple[int, int]] = Counter()

    def load(self, partition: int, key: str, value: bytes | None) -> tuple[list[str], bool]:
        """Apply a record; return the keys that confirm it, and whether orders are held otherwise."""
        is_news = self.view.load(partition, key, value)
        self._seen += is_news
        return list(self._keys), is_news

    def key(self, partition: int) -> str:
        return self._keys[partition]

    @contextmanager
    def carrying(self, partition: int) -> Iterator[None]:
        """Count an order while it is carried out."""
        begun = (partition, self._seen)
        self._begun[begun] += 1
        try:
            yield
        finally:
            self._begun[begun] -= 1
            if not self._begun[begun]:
                del self._begun[begun]

    def confirm(self, partition: int) -> Generator[Effect, Any, Outcome]:
        """Confirm what is not confirmed yet."""
        unconfirmed = list(self._unconfirmed(partition))
        if not unconfirmed:
            return Outcome()
        if any(at == partition and seen < self._seen for at, seen in self._begun):
            return Outcome(
                result="waiting", again_after=UNDER_WAY_SECONDS, waiting=("orders that are under way",)
            )
        for stop in unconfirmed:
            meta = stop.metadata
            status = {"partitions": self._count, "confirmed": {str(partition): meta.generation}}
            try:
                yield Patch(STOP, meta.namespace, meta.name, {"status": status}, subresource="status")
            except PermanentError as error:
                if error.reason != "NotFound":  # deleted meanwhile
                    raise
        return Outcome(result="changed")

    def _unconfirmed(self, partition: int) -> Iterable[RolloutStop]:
        return (
            stop
            for stop in self.view.stops()
            if stop.status.confirmed.get(str(partition)) != stop.metadata.generation
            or stop.status.partitions != self._count
        )
