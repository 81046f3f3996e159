"""A one-time sync that a Repository requests: spec.sync.runOnceAt."""

from datetime import UTC, datetime

from pvbus.ports.cluster import Object


def run_once_at(repository: Object | None) -> str:
    """Return the requested time as text, "" if there is none."""
    sync = ((repository or {}).get("spec") or {}).get("sync") or {}
    return str(sync.get("runOnceAt") or "")


def observed_run_once_at(repository: Object | None) -> str:
    """Return the time of the last completed one-time sync."""
    return str(((repository or {}).get("status") or {}).get("observedRunOnceAt") or "")


def seconds_until(text: str) -> float | None:
    """Return the seconds until a time, negative if it is past; None if the text is not a time."""
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    except (ValueError, OverflowError):
        return None
