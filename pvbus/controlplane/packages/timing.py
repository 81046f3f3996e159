"""Decides when a Repository is synced in full: by its schedule or every hour, and once when it is asked to.

The times are in the Repository's status, so they survive a restart.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pvbus.controlplane.packages import cron
from pvbus.core.kernel.objects import timestamp

INTERVAL = timedelta(hours=1)
"""The time between full syncs without a schedule, as in Porch. Changes of the remote do not wait for one."""

_AT_ONCE = datetime.min.replace(tzinfo=UTC)


def parse_time(text: Any) -> datetime | None:
    """Return a time of the API, None if the text is not one."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def status_of(repository: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (repository or {}).get("status") or {}


def run_once_at(repository: Mapping[str, Any] | None, observed: str | None = None) -> str:
    """Return the time of the one-time sync that is still to be done, as text; "" if there is none.

    observed: the time of the last one that was done, None for what the status says
    """
    wanted = (((repository or {}).get("spec") or {}).get("sync") or {}).get("runOnceAt") or ""
    observed = status_of(repository).get("observedRunOnceAt") if observed is None else observed
    return "" if wanted == observed or parse_time(wanted) is None else str(wanted)


class FullSyncs:
    """The full syncs of one Repository. Callers pass its stored object and the present time."""

    def __init__(self, schedule: str, repository: Mapping[str, Any] | None) -> None:
        status = status_of(repository)
        self._schedule = cron.parse(schedule) if schedule else None
        self._last = parse_time(status.get("lastFullSyncTime"))
        self._observed = str(status.get("observedRunOnceAt") or "")
        self._tried: datetime | None = None
        self._asked = ""

    def _next(self, repository: Mapping[str, Any] | None) -> datetime:
        """Return when the next full sync is due."""
        if self._last is None:
            return _AT_ONCE
        regular = self._last + INTERVAL if self._schedule is None else self._schedule.after(self._last)
        once = parse_time(run_once_at(repository, self._observed))
        return min(each for each in (regular, once) if each is not None)

    def _due(self, repository: Mapping[str, Any] | None, now: datetime) -> datetime:
        """Return when the next one is due: at once if the last is in the future (a clock set back)."""
        is_ahead = self._last is not None and self._last > now
        return _AT_ONCE if is_ahead else self._next(repository)

    def seconds_left(self, repository: Mapping[str, Any] | None, now: datetime) -> float | None:
        """Return the seconds until the next full sync; None after it failed: it is tried again anyway."""
        due = self._due(repository, now)
        return None if due == self._tried else max(0.0, (due - now).total_seconds())

    def begin(self, repository: Mapping[str, Any] | None, now: datetime) -> bool:
        """Return whether a full sync is due, and remember which request for one it answers."""
        due = self._due(repository, now)
        if due > now:
            return False
        asked = run_once_at(repository, self._observed)
        when = parse_time(asked)
        self._tried, self._asked = due, asked if when is not None and when <= now else ""
        return True

    def note_success(self, now: datetime) -> None:
        """Note that the full sync that began has succeeded."""
        self._last, self._tried = now.replace(microsecond=0), None
        self._observed = self._asked or self._observed

    def status(self, repository: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the fields of the Repository's status."""
        status = {"observedRunOnceAt": self._observed} if self._observed else {}
        if self._last is not None:
            status["lastFullSyncTime"] = timestamp(self._last.timestamp())
            status["nextFullSyncTime"] = timestamp(self._next(repository).timestamp())
        return status
