"""Brings facts of several sources into the order of their time.

Each source is read for itself, and some lag: a record is seen when its transaction has ended and its brokers
are there. A fact is handed on when every source has been read up to its time.
"""

import heapq
import itertools
from collections.abc import Callable

Fact = Callable[[], None]


class Timeline:
    """Facts wait until `drain`. sources: their names; each has to say how far it was read."""

    def __init__(self, *sources: str) -> None:
        self._read = dict.fromkeys(sources, 0.0)
        self._heap: list[tuple[float, int, Fact]] = []
        self._numbers = itertools.count()

    def put(self, time: float, fact: Fact) -> None:
        """Add a fact. Those of equal times stay in the order of their arrival."""
        heapq.heappush(self._heap, (time, next(self._numbers), fact))

    def read_until(self, source: str, time: float) -> None:
        """Note that a source has no more facts before this time."""
        self._read[source] = max(self._read[source], time)

    @property
    def horizon(self) -> float:
        return min(self._read.values())

    @property
    def waiting(self) -> int:
        return len(self._heap)

    def drain(self, begin: Callable[[float], None], *, all_facts: bool = False) -> int:
        """Hand on the facts before the horizon, or all; return how many. begin: takes each time first."""
        done = 0
        while self._heap and (all_facts or self._heap[0][0] <= self.horizon):
            time, _, fact = heapq.heappop(self._heap)
            begin(time)
            fact()
            done += 1
        return done
