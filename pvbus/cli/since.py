"""Reads `--since` of `pvbus conditions`: from when on changes are shown."""

from datetime import datetime, timedelta

from pvbus.core.errors import UsageError
from pvbus.core.promotion.protocol.rules import seconds_of

EXAMPLES = "all, now, a duration such as 10m or 1h30m, or a time such as 2026-11-27T12:00:00Z"


def since_of(text: str, now: datetime) -> datetime | None:
    """Return the time that an option names, None for `all`. Raises UsageError.

    now: the present time, with a time zone
    """
    if text == "all":
        return None
    since = now if text == "now" else _time(text, now)
    if since is None:
        raise UsageError(f'--since "{text}": give {EXAMPLES}')
    if since.tzinfo is None:
        raise UsageError(f'--since "{text}" has no time zone: end it with Z or an offset such as +02:00')
    if since > now:
        raise UsageError(f'--since "{text}" is in the future: leave it out to see what comes')
    return since


def _time(text: str, now: datetime) -> datetime | None:
    try:
        return now - timedelta(seconds=seconds_of(text)) if text else None
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def is_since(time: str, since: datetime) -> bool:
    """Return whether the time of an event, "" if it has none, is not before another."""
    return bool(time) and datetime.fromisoformat(time) >= since
