"""A sync that a Repository asks for once: spec.sync.runOnceAt."""

from datetime import UTC, datetime

from pvbus.ports.cluster import Object


def run_once_at(repository: Object | None) -> str:
    """Return the time as it is written, "" where there is none."""
    sync = ((repository or {}).get("spec") or {}).get("sync") or {}
    return str(sync.get("runOnceAt") or "")


def observed_run_once_at(repository: Object | None) -> str:
    """Return the time of the last such sync that is over."""
    return str(((repository or {}).get("status") or {}).get("observedRunOnceAt") or "")


def seconds_until(text: str) -> float | None:
    """Return how far ahead a time is, negative when it is past; None where the text is no time."""
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    except (ValueError, OverflowError):
        return None
