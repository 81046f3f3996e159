"""Answers of the API server that are used again for a short time."""

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

ENTRIES_MAX = 8192
"""As in Kubernetes' own servers. An entry has about 1 kB."""

T = TypeVar("T")


class Recent(Generic[T]):
    """The latest values by key, each for a limited time."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable) -> T | None:
        """Return a value that has not expired, None if there is none."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= self._clock():
            del self._entries[key]
            return None
        return found[1]

    def put(self, key: Hashable, value: T) -> None:
        self._entries.pop(key, None)
        while len(self._entries) >= ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]  # they expire in the order they were put
        self._entries[key] = (self._clock() + self._seconds, value)
