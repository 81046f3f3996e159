"""Cron schedules: five fields, or a word such as `@daily`. Times are UTC. Pure.

Source: robfig/cron v3, ParseStandard, which Porch uses; without time zones.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple

DAYS_MAX = 8 * 366
"""How far to look ahead: February 29 comes at least every eight years."""

_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EVERY = re.compile(r"@every (?=\d)(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?")
_ANY = re.compile(r"[*?](?:/0?1)?")  # robfig/cron takes a step of one for none
_TERM = re.compile(r"([*?]|\w{1,3})(?:-(\w{1,3}))?(?:/(\d{1,2}))?")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Schedule(NamedTuple):
    """The times of a schedule: those at which every field matches, or those at a fixed interval.

    minutes: the minutes, 0 to 59
    hours: the hours, 0 to 23
    days: the days of the month, 1 to 31
    months: the months, 1 to 12
    weekdays: the days of the week, 0 to 6 from Sunday on
    either_day: whether one of the two day fields suffices, as cron has it where both are limited
    every: the interval, zero for a schedule with fields
    """

    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    either_day: bool = False
    every: timedelta = timedelta()

    def after(self, when: datetime) -> datetime | None:
        """Return the first time after another one, None if there is none."""
        if self.every:
            return when + self.every
        first = (when + timedelta(minutes=1)).replace(second=0, microsecond=0)
        for days in range(DAYS_MAX):
            date = first.date() + timedelta(days=days)
            if date.month in self.months and self._is_day(date.day, date.isoweekday() % 7):
                times = (
                    time(hour, minute, tzinfo=UTC)
                    for hour in sorted(self.hours)
                    for minute in sorted(self.minutes)
                )
                found = next((at for each in times if (at := datetime.combine(date, each)) >= first), None)
                if found is not None:
                    return found
        return None

    def _is_day(self, day: int, weekday: int) -> bool:
        matches = (day in self.days, weekday in self.weekdays)
        return any(matches) if self.either_day else all(matches)


def parse(text: str) -> Schedule:
    """Read a schedule. Raises: ValueError with the reason."""
    if every := _EVERY.fullmatch(text.strip()):
        hours, minutes, seconds = (int(part or 0) for part in every.groups())
        if interval := timedelta(hours=hours, minutes=minutes, seconds=seconds):
            return Schedule(every=interval)
    fields = _WORDS.get(text.strip().lower(), text).lower().split()
    if len(fields) != 5:
        raise ValueError(
            "a schedule has five fields (minute hour day month weekday), or is one of "
            f"{', '.join(_WORDS)}, @every 1h30m"
        )
    minute, hour, day, month, weekday = fields
    limited = [not any(map(_ANY.fullmatch, field.split(","))) for field in (day, weekday)]
    schedule = Schedule(
        _field("minute", minute, 0, 59),
        _field("hour", hour, 0, 23),
        _field("day", day, 1, 31),
        _field("month", month, 1, 12, _MONTHS),
        _field("weekday", weekday, 0, 6, _DAYS),
        all(limited),
    )
    if schedule.after(datetime(2000, 1, 1, tzinfo=UTC)) is None:
        raise ValueError("no date matches this schedule")
    return schedule


def _field(name: str, text: str, least: int, most: int, words: Sequence[str] = ()) -> frozenset[int]:
    values: set[int] = set()
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        if match is None:
            raise ValueError(f"{name} {term!r} is not *, a value, or a range such as {least}-{most} or */2")
        first, last, step = match.groups()
        anything = first in ("*", "?")
        low = least if anything else _value(name, first, least, most, words)
        high = _value(name, last, least, most, words) if last else most if anything or step else low
        if low > high or (anything and last) or step == "0":
            raise ValueError(f"{name} {term!r} is not a range")
        values.update(range(low, high + 1, int(step or 1)))
    return frozenset(values)


def _value(name: str, text: str, least: int, most: int, words: Sequence[str]) -> int:
    value = words.index(text) + least if text in words else int(text) if text.isdecimal() else -1
    if not least <= value <= most:
        raise ValueError(f"{name} {text!r} is not between {least} and {most}")
    return value
