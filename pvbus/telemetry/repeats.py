"""Repeated failures in the log: the first one at once, further ones with a growing interval and a count.

A lasting failure is retried all the time. Without this limit, every attempt logs a line, and may fill the
disk.
"""

import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from pvbus.telemetry.structured import structlog

INTERVAL_SECONDS = (60.0, 3600.0)
"""The time between two lines of one failure: the first interval and the longest; each is twice the last."""

FORGET_SECONDS = 600.0
"""A failure not seen for this long counts as new. Retries are 60 s apart at most."""

FAILURES_MAX = 10_000  # stored at once, 300 bytes each; the oldest is dropped, and counts as new afterwards

_VOLATILE = frozenset(
    ("timestamp", "seconds", "retry_seconds", "duration_seconds", "offset", "attempt", "trace", "exc_info")
)
"""Fields that differ between attempts, or repeat other fields."""

_NAMES = frozenset(("key", "name", "namespace", "item", "path", "partition", "repository", "kind"))
"""Fields whose numbers identify objects."""

_TRACES = ("trace", "exc_info")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


class _Failure:
    __slots__ = ("due", "interval", "left_out", "seen")

    def __init__(self, now: float) -> None:
        self.interval = INTERVAL_SECONDS[0]
        self.due = now + self.interval
        self.seen = now
        self.left_out = 0


class Repeats:
    """Decides which repetitions of a failure are logged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, _Failure] = OrderedDict()

    def count(self, failure: Hashable) -> int | None:
        """Return how often a failure occurred since its last line, this time included; None: log nothing."""
        now = self._clock()
        known = self._failures.get(failure)
        if known is None or now - known.seen > FORGET_SECONDS:
            self._failures[failure] = _Failure(now)
            if len(self._failures) > FAILURES_MAX:
                self._failures.popitem(last=False)
            return 1
        known.seen = now
        self._failures.move_to_end(failure)
        if now < known.due:
            known.left_out += 1
            return None
        known.interval = min(known.interval * 2, INTERVAL_SECONDS[1])
        known.due = now + known.interval
        count, known.left_out = known.left_out + 1, 0
        return count

    def process(
        self, logger: object, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Filter warnings and errors by `count`, as a structlog processor; repeated ones lose their trace.

        A line with a field `cause`, which is not logged, is the same failure as every other line of its event
        with this cause, whatever object it names.
        """
        cause = event.pop("cause", None)
        if method not in ("warning", "error", "critical", "exception"):
            return event
        raised = sys.exc_info()[1] if event.get("exc_info") else None
        fields = sorted((name, str(value)) for name, value in event.items() if name not in _VOLATILE)
        failure: Hashable = (
            method,
            *((n, v if n in _NAMES else without_numbers(v)) for n, v in fields),
            _text(raised),
        )
        if cause is not None:
            failure = (method, event["event"], without_numbers(str(cause)))
        count = self.count(failure)
        if count is None:
            raise structlog.DropEvent
        if count > 1:
            for name in _TRACES:
                event.pop(name, None)
            event["repeated"] = count
            if raised is not None:
                event["error"] = f"{type(raised).__name__}: {raised}"
        return event


def _text(raised: BaseException | None) -> str:
    return f"{type(raised).__name__}: {without_numbers(str(raised))}" if raised is not None else ""


def without_numbers(text: str) -> str:
    """Return a message with its numbers replaced: the part that is equal in every attempt."""
    return _NUMBER.sub("#", text)
