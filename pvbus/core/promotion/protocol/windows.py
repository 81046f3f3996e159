"""Time windows: weekly spans of the day in a time zone. Pure, but for the system's time zone data."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pvbus.core.api.rollouts import WEEKDAYS, TimeWindow

MINUTES_OF_DAY = 24 * 60
DAYS_AHEAD = 8
"""How far to look for the next opening: a window of one weekday comes again after seven days."""


class Window(NamedTuple):
    """A compiled window. Its times are minutes of the day by the wall clock of its zone.

    days: the days of the week on which it opens, 0 for Monday
    start: when it opens
    end: when it closes; this is on the next day if it is not after `start`
    """

    days: frozenset[int]
    start: int
    end: int
    zone: tzinfo

    def spans(self, when: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the openings around and after a time, in order."""
        today = when.astimezone(self.zone).date()
        last = self.end if self.end > self.start else self.end + MINUTES_OF_DAY
        for offset in range(-1, DAYS_AHEAD):
            date = today + timedelta(days=offset)
            if date.weekday() in self.days:
                midnight = datetime(date.year, date.month, date.day)
                # Naive arithmetic first: a day of the wall clock may have 23 or 25 hours.
                first, final = (
                    (midnight + timedelta(minutes=minutes)).replace(tzinfo=self.zone).astimezone(UTC)
                    for minutes in (self.start, last)
                )
                yield first, final


def compiled(window: TimeWindow) -> Window:
    """Compile a window. Raises: ValueError with the reason."""
    start, end = _minutes(window.start), _minutes(window.end)
    if start == end:
        raise ValueError(f"start and end are both {window.start}: for whole days give 00:00 and 24:00")
    for day in window.days:
        if day not in WEEKDAYS:
            raise ValueError(f'day "{day}" is none of {", ".join(WEEKDAYS)}')
    days = frozenset(WEEKDAYS.index(day) for day in window.days or WEEKDAYS)
    return Window(days, start, end, _zone(window.time_zone))


def is_open(windows: Iterable[Window], now: float) -> bool:
    """Tell whether any window is open. now: seconds since 1970. Without windows it is always open."""
    windows = tuple(windows)
    when = datetime.fromtimestamp(now, UTC)
    return not windows or any(
        first <= when < last for window in windows for first, last in window.spans(when)
    )


def opens_at(windows: Iterable[Window], now: float) -> float:
    """Return when the next window opens, in seconds since 1970; now if one is open or there are none."""
    windows = tuple(windows)
    if is_open(windows, now):
        return now
    when = datetime.fromtimestamp(now, UTC)
    return min(first.timestamp() for window in windows for first, _ in window.spans(when) if first > when)


def _minutes(text: str) -> int:
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(hours) == len(minutes) == 2):
        raise ValueError(f'"{text}" is no time of day such as 09:00')
    found = int(hours) * 60 + int(minutes)
    if int(minutes) > 59 or found > MINUTES_OF_DAY:
        raise ValueError(f'"{text}" is no time of day such as 09:00')
    return found


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f'unknown time zone "{name}": give a name such as Europe/Berlin') from None
