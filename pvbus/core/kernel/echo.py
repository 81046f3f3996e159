"""The answer to a write of our own stands for the object, until the watch shows the write (its echo)."""

from typing import Any

import msgspec

ECHO_SECONDS = 10.0
SOON_SECONDS = 0.1


class _Metadata(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Versioned(msgspec.Struct):
    metadata: _Metadata


_versioned = msgspec.json.Decoder(_Versioned)
_NONE: frozenset[str] = frozenset()  # one for all objects: each new one takes 216 bytes


class ObservedObject:
    """An object that a controller writes.

    A second write may be answered before the watch shows the first, which is then older than the answer. To
    take it for the object would lead to a third write, with an old version, in vain. So the versions that
    own writes have replaced are remembered (`_replaced`) until the watch shows the last write or a later one.

    raw: as the watch showed it last, as JSON; None if it is not there.
    """

    __slots__ = ("_answer", "_expires", "_replaced", "raw")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self._answer: bytes | None = None
        self._expires = 0.0
        self._replaced = _NONE

    def observe(self, raw: bytes | None) -> None:
        """Apply what the watch shows: the echo of the last write or what is newer, or an echo before it."""
        if self._replaced and raw is not None and _version_of(raw) in self._replaced:
            self.raw = raw
            return
        self.raw, self._answer = raw, None
        self._replaced = _NONE

    def note_answer(self, answer: dict[str, Any], now: float) -> None:
        """Take the API server's answer to a write for the object. now: the wall clock, in seconds."""
        before = self._answer or self.raw
        self._answer, self._expires = msgspec.json.encode(answer), now + ECHO_SECONDS
        replaced = self._replaced | {_version_of(before) if before is not None else ""}
        self._replaced = replaced - {"", _version_of(self._answer)}

    def forget_answer(self) -> None:
        """Go on with what the watch showed: another writer was first."""
        self._answer, self._replaced = None, _NONE

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


def _version_of(raw: bytes) -> str:
    return _versioned.decode(raw).metadata.resource_version
