"""Keeps values on disk: for previews of fleets whose objects and writes would not fit into memory.

The file has no name, and goes with its process. A table has its keys in memory, 0.2 kB each, and reads a
value anew each time, so each caller has its own. Values that the file cannot hold as they are stay in memory.
"""

import errno
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

import msgspec

K = TypeVar("K")
V = TypeVar("V")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Held(NamedTuple):
    """A value in memory."""

    value: Any


Span = tuple[int, int] | Held
"""Offset and length of a value in the file, or the value."""


class Spill:
    """A file of values."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="pvbus-") as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._end = 0

    def put(self, value: Any) -> Span:
        """Write a plain JSON value, and return where it is."""
        try:
            content = _encode(value)
        except (TypeError, ValueError, OverflowError):  # half a surrogate pair, a number of 80 bits
            return Held(msgspec.to_builtins(value))
        if os.pwrite(self._file, content, self._end) != len(content):
            raise OSError(errno.ENOSPC, f"no room in {tempfile.gettempdir()} for what a preview makes")
        start, self._end = self._end, self._end + len(content)
        return start, len(content)

    def get(self, span: Span) -> Any:
        """Return the value of a span, which is the caller's own."""
        if isinstance(span, Held):
            return msgspec.to_builtins(span.value)
        start, length = span
        return _decode(os.pread(self._file, length, start))


class SpilledTable(MutableMapping[K, Any], Generic[K]):
    """A table whose values are on disk. A value that was put is not changed afterwards: it is copied."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._spans: dict[K, Span] = {}

    def __getitem__(self, key: K) -> Any:
        return self._spill.get(self._spans[key])

    def __setitem__(self, key: K, value: Any) -> None:
        self._spans[key] = self._spill.put(value)

    def __delitem__(self, key: K) -> None:
        del self._spans[key]

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __iter__(self) -> Iterator[K]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


class LazyList(Sequence[V]):
    """A list whose items are made each time they are read."""

    def __init__(self, items: Sequence[K], make: Callable[[K], V]) -> None:
        self._items, self._make = items, make

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        if isinstance(index, slice):
            return [self._make(item) for item in self._items[index]]
        return self._make(self._items[index])

    def __len__(self) -> int:
        return len(self._items)
