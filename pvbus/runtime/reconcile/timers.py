"""When keys are looked at by themselves: one time per key, the last one that was set.

A key that is looked at for any reason loses its time; whoever looks sets a new one. So times never
pile up, however often a key is touched.
"""

import heapq
from typing import Generic, TypeVar

K = TypeVar("K", str, tuple[int, str])
"""What has a time: a key, or a partition with a key."""
SPARE = 100
"""Old times that may lie about besides as many as there are keys; to clear them away costs little then."""


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
        """Take off and return the keys whose time has come, the earliest first."""
        keys = []
        while (time := self.next()) is not None and time <= now:
            key = heapq.heappop(self._heap)[1]
            del self._times[key]
            keys.append(key)
        return keys

    def next(self) -> float | None:
        """Return the earliest time, None when nothing waits for one."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # its key was cancelled, or has another time
        return self._heap[0][0] if self._heap else None
