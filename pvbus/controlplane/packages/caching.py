"""Caches limited by what they hold, not by how many: packages differ a thousandfold in size.

`StoreActivity` has the one that all syncs of a store share, and counts what they do.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from pvbus.controlplane.packages.filesets import File

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class SizedCache(Generic[_K, _V]):
    """Keeps the most recently used values. Thread-safe."""

    def __init__(self, bytes_max: int, size_of: Callable[[_V], int]) -> None:
        """Begin empty.

        bytes_max: the limit of all values together
        size_of: returns the approximate bytes of a value; a value above the limit is not cached
        """
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: _K) -> _V | None:
        """Return the value of a key, None if it is missing."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Return the value of a key; make it if it is missing, at worst in several threads."""
        found = self.find(key)
        if found is not None:
            return found
        value = make()
        size = self._size_of(value)
        with self._lock:
            if key not in self._entries and size <= self._bytes_max:
                self._entries[key] = value, size
                self.bytes += size
                while self.bytes > self._bytes_max:
                    _, (_, freed) = self._entries.popitem(last=False)
                    self.bytes -= freed
        return value


FILES_BYTES_MAX = 64 * 1024 * 1024
FILE_OVERHEAD_BYTES = 300
"""Package content in memory: thousands of usual packages, ten of the largest."""


def bytes_of_files(files: Mapping[str, File]) -> int:
    """Return the approximate memory of a package's files."""
    return sum(len(path) + len(file.data) + FILE_OVERHEAD_BYTES for path, file in files.items())


class StoreActivity:
    """The number of repository syncs and of requests in progress, and a cache of package content.

    seats: group -> how many of its members may wait for the last one, of the groups that wait
    """

    def __init__(self) -> None:
        self.files: SizedCache[str, Mapping[str, File]] = SizedCache(FILES_BYTES_MAX, bytes_of_files)
        self.seats: dict[object, int] = {}
        self.keepers = 0
        self.requests = 0
