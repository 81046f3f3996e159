"""One claim as the worker sees it: what is dirty, what is in flight, which offset is done.

Invariants: a key is never reconciled twice at once; a dirty mark set while a key is busy runs it
again; the offset that may be committed is the lowest whose keys are still dirty or busy.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from pvbus.core.effects import Put
from pvbus.ports.bus import Claim


class OpenClaim:
    """The shell's state for one claim. Plain data; the worker moves it."""

    def __init__(self, claim: Claim, inputs: Iterable[str]) -> None:
        self.claim = claim
        self.restored = False
        self.revoked = False
        self.dirty: dict[str, None] = {}
        self.busy: set[str] = set()
        self.puts: list[tuple[str, tuple[Put, ...]]] = []
        self.stepping = False
        self.attempts: dict[str, int] = {}
        self.next_offsets: dict[str, int] = {}
        self._undone: dict[str, deque[tuple[int, str]]] = {topic: deque() for topic in inputs}
        self._committed: dict[str, int] = {}

    def mark(self, key: str) -> None:
        self.dirty[key] = None

    def consumed(self, topic: str, offset: int, keys: Iterable[str]) -> None:
        """Note that a record was applied, and which keys must be done before it counts as done."""
        undone = self._undone[topic]
        for key in keys:
            undone.append((offset, key))
        self.next_offsets[topic] = offset + 1

    def done_offsets(self) -> Mapping[str, int]:
        """Return the offsets that may be committed and are higher than the last ones returned."""
        result = {}
        for topic, undone in self._undone.items():
            while undone and undone[0][1] not in self.dirty and undone[0][1] not in self.busy:
                undone.popleft()
            done = undone[0][0] if undone else self.next_offsets.get(topic, 0)
            if done > self._committed.get(topic, 0):
                result[topic] = done
        return result

    def committed(self, offsets: Mapping[str, int]) -> None:
        self._committed.update(offsets)

    def start_at(self, topic: str, offset: int, committed: int) -> None:
        """Begin at an offset; what is committed already is not committed again."""
        self.next_offsets[topic] = offset
        self._committed[topic] = committed

    @property
    def idle(self) -> bool:
        return self.restored and not self.dirty and not self.busy and not self.puts and not self.stepping
