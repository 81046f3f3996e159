"""Sorted names of children: taking the first ones costs O(number taken), whatever the size of the set."""

from collections.abc import Iterable, Iterator
from itertools import islice


class SortedNames:
    """A set of names that is read in order. It is sorted again only at the first read after an addition."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._last_first: list[str] | None = []

    def __bool__(self) -> bool:
        return bool(self._names)

    def __iter__(self) -> Iterator[str]:
        """Yield the names in order. Names that are discarded meanwhile are left out."""
        if self._last_first is None:
            self._last_first = sorted(self._names, reverse=True)
        while self._last_first and self._last_first[-1] not in self._names:
            self._last_first.pop()
        return (name for name in reversed(self._last_first) if name in self._names)

    def first(self, count: int) -> list[str]:
        return list(islice(self, count))

    def add(self, name: str) -> None:
        if name not in self._names:
            self._names.add(name)
            self._last_first = None

    def update(self, names: Iterable[str]) -> None:
        for name in names:
            self.add(name)

    def discard(self, name: str) -> None:
        self._names.discard(name)

    def clear(self) -> None:
        self._names.clear()
        self._last_first = []
