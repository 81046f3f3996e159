"""How often Carvel's objects are compared: `spec.syncPeriod`, a duration as Go writes it."""

import re

SECONDS_MIN = 30.0
"""kapp-controller's own limit: what is shorter counts as this."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def period_of(text: object, default: float) -> float:
    """Return a period in seconds; the default without one, and for what is no duration.

    Source: Go, time.ParseDuration; the API servers of both projects accept any text.
    """
    given = str(text or "").strip()
    parts = _PART.findall(given)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != given:
        return default
    return max(SECONDS_MIN, sum(float(number) * _SECONDS[unit] for number, unit in parts))
