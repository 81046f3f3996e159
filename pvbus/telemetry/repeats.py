"""Log lines of failures that repeat: the first at once, identical ones later at a growing interval.

A full disk or a remote that is away fails every retry of every step. The log must show that it does
and since when, and must not fill what is left of the disk.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

AGAIN_SECONDS_FIRST = 60.0
AGAIN_SECONDS_MAX = 3600.0
"""A failure that stays is logged after one minute, two more, four more, and at last every hour."""

KEYS_MAX = 1_000
"""Failures that are remembered. More at once are logged again, as if they were new."""

ERROR_CHARACTERS_MAX = 1_000
"""How much of an error's text is logged: a rejected object may be in it as a whole."""


class _Failure:
    def __init__(self, now: float) -> None:
        self.first = now
        self.interval = AGAIN_SECONDS_FIRST
        self.next_line = now + self.interval
        self.times = 1


class Repeats:
    """Logs failures of the steps of one task. Not safe to use from several threads."""

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """log: a structlog logger."""
        self._log = log
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str, str], _Failure] = OrderedDict()

    def failed(self, event: str, error: BaseException, **fields: Any) -> None:
        """Log a failure with its traceback, or count it if the same step failed alike before."""
        key = (event, _key(fields), type(error).__name__)
        now = self._clock()
        text = _shortened(str(error))
        known = self._failures.get(key)
        if known is None:
            self._failures[key] = _Failure(now)
            while len(self._failures) > KEYS_MAX:
                self._failures.popitem(last=False)
            self._log.error(event, error=text, exc_info=error, **fields)
            return
        known.times += 1
        if now < known.next_line:
            return
        known.interval = min(2 * known.interval, AGAIN_SECONDS_MAX)
        known.next_line = now + known.interval
        self._log.error(
            event, error=text, times=known.times, since_seconds=round(now - known.first), again=True, **fields
        )

    def succeeded(self, event: str, **fields: Any) -> None:
        """Forget the failures of a step, and log that they are over if there were any."""
        found = [key for key in self._failures if key[:2] == (event, _key(fields))] if self._failures else []
        for key in found:
            known = self._failures.pop(key)
            self._log.info(f"over: {event}", error=key[2], times=known.times, **fields)


def _key(fields: dict[str, Any]) -> str:
    return repr(sorted(fields.items()))


def _shortened(text: str) -> str:
    if len(text) <= ERROR_CHARACTERS_MAX:
        return text
    return f"{text[:ERROR_CHARACTERS_MAX]}... ({len(text)} characters)"
