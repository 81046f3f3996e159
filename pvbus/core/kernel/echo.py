"""The answer to a write of our own stands for the object, until the watch shows the write (its echo)."""

from typing import Any

import msgspec

ECHO_SECONDS = 10.0
SOON_SECONDS = 0.1


class ObservedObject:
    """An object that a controller writes.

    raw: as the watch showed it last, as JSON; None if it is not there.
    """

    __slots__ = ("_answer", "_expires", "raw")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self._answer: bytes | None = None
        self._expires = 0.0

    def observe(self, raw: bytes | None) -> None:
        """Apply what the watch shows: it is the echo, or newer."""
        self.raw, self._answer = raw, None

    def note_answer(self, answer: dict[str, Any], now: float) -> None:
        """Take the API server's answer to a write for the object. now: the wall clock, in seconds."""
        self._answer, self._expires = msgspec.json.encode(answer), now + ECHO_SECONDS

    def forget_answer(self) -> None:
        """Go on with what the watch showed: another writer was first."""
        self._answer = None

    @property
    def is_present(self) -> bool:
        return self.raw is not None or self._answer is not None

    def current(self, now: float) -> bytes | None:
        """Return the object as it is known best, as JSON.

        The wall clock may be set back by any time. A wait that would be longer than it can be is over: else
        what was written by hand meanwhile would not be seen for so long.
        """
        if self._answer is not None and not 0 < self._expires - now <= 2 * ECHO_SECONDS:
            self._answer = None
        return self._answer if self._answer is not None else self.raw

    def echo_seconds(self, now: float) -> float | None:
        """Return when to decide again if no echo comes: it may have come before the answer."""
        return max(self._expires - now, SOON_SECONDS) if self._answer is not None else None
