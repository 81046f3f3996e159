"""The clock of the running services. It lives with the adapters, which need it too."""

from pvbus.adapters.clock import SystemClock

__all__ = ["SystemClock"]
