"""A table whose changes since a version can be asked for, without a log of them.

The table is in the order of the last change, so the newest rows are found from its end. Of rows that are
gone, the last GONE_MAX are known; who asks for changes since an earlier version needs the whole table.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

GONE_MAX = 20_000
"""Names of rows that are gone: 2 MB. With fewer, a large removal costs each open page a whole load."""


class Row(Protocol):
    version: int


R = TypeVar("R", bound=Row)


class Versioned(Generic[R]):
    """Rows by name. Versions rise; the caller gives them."""

    def __init__(self) -> None:
        self._rows: dict[str, R] = {}
        self._gone: deque[tuple[int, str]] = deque()
        self.floor = 0  # changes since an earlier version are not known

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, name: str) -> R | None:
        return self._rows.get(name)

    def put(self, name: str, row: R, version: int) -> None:
        """Add a row, or say that it has changed."""
        self._rows.pop(name, None)
        row.version = version
        self._rows[name] = row

    def remove(self, name: str, version: int) -> None:
        if self._rows.pop(name, None) is None:
            return
        self._gone.append((version, name))
        if len(self._gone) > GONE_MAX:
            self.floor = self._gone.popleft()[0]

    def items(self) -> Iterator[tuple[str, R]]:
        yield from self._rows.items()

    def changed(self, since: int) -> Iterator[tuple[str, R]]:
        """Yield the rows that changed after a version, the last one first."""
        for name in reversed(self._rows):
            row = self._rows[name]
            if row.version <= since:
                return
            yield name, row

    def gone(self, since: int) -> list[str]:
        """Return the names that went after a version, and are not back."""
        found = []
        for version, name in reversed(self._gone):
            if version <= since:
                break
            if name not in self._rows:
                found.append(name)
        return found
