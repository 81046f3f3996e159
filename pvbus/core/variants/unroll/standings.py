"""How a set's children stand, counted at each change, so that a roll-up need not look at all of them.

The first names of an order are taken at a cost of O(number taken), whatever the size of the set.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice

from pvbus.core.kernel.records import ChildResult, ChildRow, ChildState

REMOVING = (ChildState.WAITING, ChildState.CONFIRMED, ChildState.ORDERED)
_STALE_MAX = 100  # outdated entries of a Ranking beyond the number of its names

_Rank = tuple[int, str, str]
"""Index of the target, object and name: the order in which children are named in messages."""


class Standing(Enum):
    """How a child stands, by its row and by render's result. WANTED: there is no result for the row yet."""

    HELD = "held"
    REMOVING = "removing"
    WANTED = "wanted"
    ON_HOLD = "on hold"
    ERROR = "error"
    FAILING = "failing"
    WORKING = "working"
    READY = "ready"


COUNTED: Mapping[Standing, tuple[str, ...]] = {
    Standing.HELD: ("held",),
    Standing.REMOVING: ("removing",),
    Standing.WANTED: ("desired",),
    Standing.ON_HOLD: ("desired",),
    Standing.ERROR: ("desired", "failed"),
    Standing.FAILING: ("desired", "applied", "failed"),
    Standing.WORKING: ("desired", "applied"),
    Standing.READY: ("desired", "applied", "ready"),
}
"""The fields of `pvbus.core.kernel.records.Counts` that include a child."""


def is_undecided(row: ChildRow) -> bool:
    """Whether a row exists only for the hold of its set: the child was not compared with the targets yet."""
    return row.state is ChildState.WAITING and row.on_hold and not row.unwanted


def standing_of(row: ChildRow | None, result: ChildResult | None) -> Standing | None:
    """Return how a child stands, None if it is in no count. row: None if it has none."""
    if row is None:
        return None
    if row.state is ChildState.HELD:
        return Standing.HELD
    if row.state in REMOVING and not is_undecided(row):
        return Standing.REMOVING
    if row.state is not ChildState.PRESENT:
        return None
    if result is None:
        return Standing.WANTED
    if result.reason == "OnHold":
        return Standing.ON_HOLD
    if result.evaluated == row.digest and result.error:
        return Standing.ERROR
    if not row.digest or result.applied != row.digest:
        return Standing.WANTED
    if result.failing:
        return Standing.FAILING
    return Standing.READY if result.ready else Standing.WORKING


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


class Ranking:
    """Names whose first ones are read in the order of their ranks, whatever their number."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Rank] = {}
        self._heap: list[_Rank] = []  # has the rank of each name, and outdated ones

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, name: str) -> bool:
        return name in self._ranks

    def add(self, name: str, target: int, okey: str) -> None:
        self._ranks[name] = rank = (target, okey, name)
        heapq.heappush(self._heap, rank)

    def discard(self, name: str) -> None:
        self._ranks.pop(name, None)
        if len(self._heap) > 2 * len(self._ranks) + _STALE_MAX:
            self._heap = sorted(self._ranks.values())

    def first(self, count: int) -> list[str]:
        """Return the first names, at most `count`."""
        first_ranks: list[_Rank] = []
        while self._heap and len(first_ranks) < count:
            rank = heapq.heappop(self._heap)
            if self._ranks.get(rank[2]) == rank and rank not in first_ranks:
                first_ranks.append(rank)
        for rank in first_ranks:
            heapq.heappush(self._heap, rank)
        return [name for _, _, name in first_ranks]


class Standings:
    """The counts of a set's children, and the names of those that are not ready.

    errors: the children whose errors stall the set
    messages: message of such an error -> number of children that have it
    failing: the children that report a failure
    unfinished: the children on hold, and those that are applied and not ready yet
    needing: the children with the condition AttentionNeeded
    """

    def __init__(self) -> None:
        self._numbers: Counter[Standing] = Counter()
        self.errors = Ranking()
        self.messages: Counter[str] = Counter()
        self.failing = Ranking()
        self.unfinished = Ranking()
        self.needing = Ranking()
        self._rankings = {
            Standing.ERROR: self.errors,
            Standing.FAILING: self.failing,
            Standing.ON_HOLD: self.unfinished,
            Standing.WORKING: self.unfinished,
        }

    def add(self, name: str, row: ChildRow | None, result: ChildResult | None) -> None:
        """Count a child as its row and result are now."""
        standing = standing_of(row, result)
        if row is None or standing is None:
            return
        self._numbers[standing] += 1
        if standing in self._rankings:
            self._rankings[standing].add(name, row.target, row.okey)
        if result is not None and result.attention:
            self.needing.add(name, row.target, row.okey)
        if standing is Standing.ERROR and result is not None:
            self.messages[result.error] += 1

    def remove(self, name: str, row: ChildRow | None, result: ChildResult | None) -> None:
        """Take back what `add` counted. row, result: the same as then."""
        standing = standing_of(row, result)
        if standing is None:
            return
        self._numbers[standing] -= 1
        self.needing.discard(name)
        if standing in self._rankings:
            self._rankings[standing].discard(name)
        if standing is Standing.ERROR and result is not None:
            self.messages[result.error] -= 1
            if not self.messages[result.error]:
                del self.messages[result.error]

    def tally(self) -> dict[str, int]:
        """Return the fields of `pvbus.core.kernel.records.Counts`."""
        counts = dict.fromkeys(("desired", "applied", "ready", "failed", "held", "removing"), 0)
        for standing, number in self._numbers.items():
            for field in COUNTED[standing]:
                counts[field] += number
        return counts
