"""Judges the answers of the sink's receiver.

An answer says something of the event (`Refused`), or of the receiver (`Failed`). Only the former ends the
event at once: a wrong address or token, which refuse every event, must not empty the topic into dead letters.
"""

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from pvbus.core.errors import RETRY_AFTER_SECONDS_MAX

EXCERPT_CHARACTERS_MAX = 200


class Accepted(NamedTuple):
    """2xx."""


class Refused(NamedTuple):
    """No retry of this event helps."""

    message: str


class Failed(NamedTuple):
    """A retry may help. retry_after_seconds: as the receiver asks, for all events; None if it does not."""

    message: str
    retry_after_seconds: float | None = None


Answer = Accepted | Refused | Failed

_LATER = frozenset({408, 425, 429})
_RECEIVER: Mapping[int, str] = {
    401: "check the token in PVBUS_SINK_TOKEN_FILE",
    403: "check what the token in PVBUS_SINK_TOKEN_FILE may do",
    404: "check the path of PVBUS_SINK_URL",
    405: "PVBUS_SINK_URL must take POST: check its path",
    407: "a proxy asks for a login; the sink has none",
    410: "the receiver is gone: check PVBUS_SINK_URL",
}
"""Client errors that are about the receiver's settings, and not about one event."""


def answer_of(status: int, headers: Mapping[str, str], excerpt: str, now: float) -> Answer:
    """Judge an HTTP answer.

    excerpt: the beginning of its body
    now: the time, in seconds since the epoch
    """
    if 200 <= status < 300:
        return Accepted()
    said = " ".join(excerpt.split())[:EXCERPT_CHARACTERS_MAX]
    text = f"the receiver answers {status}" + (f": {said}" if said else "")
    if 300 <= status < 400:
        where = headers.get("Location", "")
        target = f" to {where[:EXCERPT_CHARACTERS_MAX]}" if where else ""
        return Failed(
            f"the receiver answers {status}, a redirect{target}: redirects are not followed; set "
            "PVBUS_SINK_URL to the final address"
        )
    if status in _RECEIVER:
        return Failed(f"{text}; {_RECEIVER[status]}")
    if 400 <= status < 500 and status not in _LATER:
        return Refused(text)
    return Failed(text, retry_after(headers.get("Retry-After", ""), now))


def retry_after(text: str, now: float) -> float | None:
    """Return the seconds of a Retry-After header, limited; None for a missing or invalid one.

    Source: RFC 9110, section 10.2.3: seconds, or a date.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_SECONDS_MAX)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(0.0, date.timestamp() - now), RETRY_AFTER_SECONDS_MAX)


class Trials:
    """The failures of one event that are the event's own.

    A receiver that is down fails every event: that is no reason to give any of them up. A failure counts
    against an event only if the receiver has accepted another one since the event's failure before.
    """

    def __init__(self, accepted: int) -> None:
        """accepted: how many events the receiver accepted so far."""
        self._accepted = accepted
        self.strikes = 0

    def count_failure(self, accepted: int) -> int:
        """Count a failure; return how many are the event's own."""
        if accepted > self._accepted:
            self.strikes += 1
            self._accepted = accepted
        return self.strikes
