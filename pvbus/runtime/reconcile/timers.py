"""Times at which keys are reconciled without an event: one per key, the last one that was set.

Each reconciliation of a key, whatever its cause, cancels its time and may set a new one. So times never
accumulate, however often a key is touched.
"""

import heapq
from typing import Generic, TypeVar

K = TypeVar("K", str, tuple[int, str])
"""A key, or (partition, key)."""
SPARE = 100
"""Outdated times that the heap may hold beyond one per key before it is rebuilt: so rebuilds cost little."""


class Timers(Generic[K]):
    """Times by key, the earliest first."""

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []

    def set(self, key: K, time: float) -> None:
        self._times[key] = time
        heapq.heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + SPARE:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        self._times.pop(key, None)

    def due(self, now: float) -> list[K]:
        """Remove and return the keys whose time has come, the earliest first."""
        keys = []
        while (time := self.next()) is not None and time <= now:
            key = heapq.heappop(self._heap)[1]
            del self._times[key]
            keys.append(key)
        return keys

    def next(self) -> float | None:
        """Return the earliest time, None if there is none."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # its key was cancelled, or has another time
        return self._heap[0][0] if self._heap else None
