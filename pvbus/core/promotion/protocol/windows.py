"""Time windows: spans of the day by the wall clock of a time zone. Pure, but for the system's zone data.

A window is open whenever its zone's clock shows a time within it. So an hour that the clock leaves out in
spring is in no window, and one that comes twice in autumn is in its window twice. The clock of a denied span
wins over all windows.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from math import inf
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pvbus.core.api.rollouts import WEEKDAYS, DenyWindow, TimeWindow

MINUTES_OF_DAY = 24 * 60
DAYS_AHEAD = 90
"""How far to look for the next opening. Less, and the freeze of a quarter has none; more costs time."""
_DAY = timedelta(days=1)


class Window(NamedTuple):
    """A compiled window. Its times are minutes of the day by the wall clock of its zone.

    days: the days of the week on which it opens, 0 for Monday
    start: when it opens
    end: when it closes; this is on the next day if it is not after `start`
    first, last: the dates between which it opens, both included
    """

    days: frozenset[int]
    start: int
    end: int
    zone: tzinfo
    first: date = date.min
    last: date = date.max

    @property
    def final(self) -> int:
        return self.end if self.end > self.start else self.end + MINUTES_OF_DAY

    def holds(self, when: datetime) -> bool:
        local = when.astimezone(self.zone)
        today, minute = local.date(), local.hour * 60 + local.minute
        return self._has(today, minute) or self._has(today - _DAY, minute + MINUTES_OF_DAY)

    def _has(self, day: date, minute: int) -> bool:
        """Tell whether a minute is in the span that begins on a day."""
        is_on = self.first <= day <= self.last and day.weekday() in self.days
        return is_on and self.start <= minute < self.final

    def times(self, day: date, minutes: int) -> Iterator[datetime]:
        """Yield when the clock shows a minute of a day: twice where it is set back."""
        wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)
        for fold in (0, 1):
            yield wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)


class Calendar(NamedTuple):
    """When something may be approved: in any window, or always without one; never in a denied one."""

    windows: tuple[Window, ...] = ()
    denied: tuple[Window, ...] = ()

    def is_denied(self, now: float) -> bool:
        when = datetime.fromtimestamp(now, UTC)
        return any(window.holds(when) for window in self.denied)

    def is_open(self, now: float) -> bool:
        """Tell whether it is open. now: seconds since 1970."""
        when = datetime.fromtimestamp(now, UTC)
        is_within = not self.windows or any(window.holds(when) for window in self.windows)
        return is_within and not self.is_denied(now)

    def opens_at(self, now: float) -> float:
        """Return when it opens next, in seconds since 1970: now if it is open, infinity if not in 90 days."""
        if self.is_open(now):
            return now
        end = now + DAYS_AHEAD * _DAY.total_seconds()
        times = {time.timestamp() for time in self._changes(datetime.fromtimestamp(now, UTC).date())}
        return next((at for at in sorted(times) if now < at <= end and self.is_open(at)), inf)

    def _changes(self, today: date) -> Iterator[datetime]:
        """Yield when it may open: at a window's start, a denied span's end, a change of a clock."""
        zones = {window.zone for window in (*self.windows, *self.denied)}
        for offset in range(-2, DAYS_AHEAD + 2):  # a span has up to two days, and a zone up to 14 hours
            day = today + timedelta(days=offset)
            for window in self.windows:
                yield from window.times(day, window.start)
            for window in self.denied:
                yield from window.times(day, window.final)
            for zone in zones:
                yield from _clock_changes(zone, datetime(day.year, day.month, day.day, tzinfo=UTC))


def _clock_changes(zone: tzinfo, begin: datetime) -> Iterator[datetime]:
    """Yield when a zone's clock is changed in the 24 hours after a time."""

    def offset(minute: int) -> timedelta | None:
        return (begin + timedelta(minutes=minute)).astimezone(zone).utcoffset()

    former = offset(0)
    if offset(MINUTES_OF_DAY) != former:
        minutes = range(MINUTES_OF_DAY)
        at = bisect_left(minutes, True, key=lambda minute: offset(minute) != former)
        yield begin + timedelta(minutes=at)


def compiled(window: TimeWindow | DenyWindow) -> Window:
    """Compile a window. Raises: ValueError with all reasons."""
    if problems := list(window_problems(window)):
        raise ValueError("; ".join(problems))
    days = frozenset(WEEKDAYS.index(day) for day in window.days or WEEKDAYS)
    span = (days, _minutes(window.start or "00:00"), _minutes(window.end or "24:00"), _zone(window.time_zone))
    if isinstance(window, TimeWindow) or not window.first_date:
        return Window(*span)
    last = date.fromisoformat(window.last_date or window.first_date)
    return Window(*span, date.fromisoformat(window.first_date), last)


def window_problems(window: TimeWindow | DenyWindow) -> Iterator[str]:
    """Yield everything that is wrong with a window."""
    start, end = window.start, window.end
    if isinstance(window, DenyWindow):
        yield from _date_problems(window)
        start, end = start or "00:00", end or "24:00"
    wrong = [text for text in (start, end) if _minutes(text) < 0]
    yield from (f'"{text}" is no time of day such as 09:00' for text in wrong)
    if not wrong and _minutes(start) == _minutes(end):
        yield f"start and end are both {start}: for whole days give 00:00 and 24:00"
    for day in window.days:
        if day not in WEEKDAYS:
            yield f'day "{day}" is none of {", ".join(WEEKDAYS)}'
    try:
        _zone(window.time_zone)
    except ValueError as exc:
        yield str(exc)


def _date_problems(window: DenyWindow) -> Iterator[str]:
    given = [text for text in (window.first_date, window.last_date) if text]
    wrong = [text for text in given if not _is_date(text)]
    yield from (f'"{text}" is no date such as 2026-12-24' for text in wrong)
    if window.last_date and not window.first_date:
        yield "lastDate is given without firstDate"
    elif len(given) == 2 and not wrong and window.last_date < window.first_date:
        yield f"lastDate {window.last_date} is before firstDate {window.first_date}"
    if not (given or window.days or window.start or window.end):
        yield "it denies all times: give days, start and end, or dates"


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _minutes(text: str) -> int:
    """Return the minute of the day, -1 if the text is no time of day."""
    hours, colon, minutes = text.partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(hours) == len(minutes) == 2):
        return -1
    found = int(hours) * 60 + int(minutes)
    return found if int(minutes) <= 59 and found <= MINUTES_OF_DAY else -1


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f'unknown time zone "{name}": give a name such as Europe/Berlin') from None
