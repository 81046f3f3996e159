"""Cron schedules: their times, by hand and by trying every minute; and what is wrong with bad ones."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.controlplane.packages import cron


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "following"),
    [
        ("* * * * *", "2026-03-01 10:00:00", "2026-03-01 10:01:00"),
        ("* * * * *", "2026-12-31 23:59:59", "2027-01-01 00:00:00"),
        ("*/15 * * * *", "2026-03-01 10:15:00", "2026-03-01 10:30:00"),
        ("5/20 * * * *", "2026-03-01 10:46:00", "2026-03-01 11:05:00"),
        ("0 3 * * *", "2026-03-01 03:00:00", "2026-03-02 03:00:00"),
        ("0 3 * * *", "2026-03-01 02:59:59", "2026-03-01 03:00:00"),
        ("30 8-10,20 * * MON-FRI", "2026-03-06 20:30:00", "2026-03-09 08:30:00"),  # from Friday to Monday
        ("0 0 1,15 * *", "2026-03-02 00:00:00", "2026-03-15 00:00:00"),
        ("0 0 13 * 5", "2026-03-01 00:00:00", "2026-03-06 00:00:00"),  # the 13th or a Friday
        ("0 0 */10 * 5", "2026-03-01 00:00:00", "2026-03-06 00:00:00"),
        ("0 0 */1 * 5", "2026-03-01 00:00:00", "2026-03-06 00:00:00"),  # a step of one limits nothing
        ("0 0 13 * ?/1", "2026-03-01 00:00:00", "2026-03-13 00:00:00"),
        ("0 0 ? jan sun", "2026-03-01 00:00:00", "2027-01-03 00:00:00"),
        ("0 0 29 2 *", "2097-01-01 00:00:00", "2104-02-29 00:00:00"),
        ("@daily", "2026-03-01 10:00:00", "2026-03-02 00:00:00"),
        ("@weekly", "2026-03-01 10:00:00", "2026-03-08 00:00:00"),
        ("@yearly", "2026-03-01 10:00:00", "2027-01-01 00:00:00"),
        ("@every 1h30m", "2026-03-01 10:00:10", "2026-03-01 11:30:10"),
    ],
)
def test_the_next_time_of_a_schedule(schedule: str, after: str, following: str) -> None:
    assert cron.parse(schedule).after(at(after)) == at(following)


NUMBERS = st.sampled_from(["*", "*/3", "1-4", "3,5", "2", "0"])
LATER = st.sampled_from(["*", "*/2", "1-4", "3,5", "2"])


@given(NUMBERS, st.sampled_from(["*", "3", "*/11"]), LATER, LATER, NUMBERS, st.integers(0, 10**7))
def test_no_minute_is_left_out(
    minute: str, hour: str, day: str, month: str, weekday: str, minutes: int
) -> None:
    """Every minute up to the next time is tried against the fields, term by term."""
    start = at("2024-01-01 00:00:00") + timedelta(minutes=minutes, seconds=1)
    schedule = cron.parse(f"{minute} {hour} {day} {month} {weekday}")
    found = schedule.after(start)
    assert found is not None
    when = start.replace(second=0)
    for _ in range(2_000):
        when += timedelta(minutes=1)
        days = (when.day in schedule.days, (when.weekday() + 1) % 7 in schedule.weekdays)
        is_day = any(days) if "*" not in (day, weekday) else all(days)
        fits = (
            when.month in schedule.months and when.hour in schedule.hours and when.minute in schedule.minutes
        )
        assert (fits and is_day) == (when == found)
        if when == found:
            return


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("", "has five fields"),
        ("0 3 * *", "has five fields"),
        ("0 0 3 * * *", "has five fields"),
        ("@often", "has five fields"),
        ("@every", "has five fields"),
        ("@every 0s", "has five fields"),
        ("@every 5", "has five fields"),
        ("CRON_TZ=Europe/Berlin 0 3 * * *", "has five fields"),
        ("60 * * * *", "minute '60' is not between 0 and 59"),
        ("* 24 * * *", "hour '24' is not between 0 and 23"),
        ("* * 0 * *", "day '0' is not between 1 and 31"),
        ("* * * foo *", "month 'foo' is not between 1 and 12"),
        ("* * * * 7", "weekday '7' is not between 0 and 6"),
        ("* * * * ٣x", "weekday '٣x' is not between 0 and 6"),
        ("*/0 * * * *", r"minute '\*/0' is not a range"),
        ("9-3 * * * *", "minute '9-3' is not a range"),
        ("*-3 * * * *", r"minute '\*-3' is not a range"),
        ("1,,2 * * * *", r"minute '' is not \*, a value, or a range"),
        ("a-b-c * * * *", "minute 'a-b-c' is not"),
        ("0 0 31 feb *", "no date matches this schedule"),
    ],
)
def test_a_bad_schedule_is_refused_with_the_reason(schedule: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cron.parse(schedule)
