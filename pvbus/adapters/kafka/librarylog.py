"""What the library logs as a warning although it is usual."""

import logging

_COORDINATOR = logging.getLogger("aiokafka.consumer.group_coordinator")
_REBALANCING = "because it is rebalancing"


class _Usual(logging.Filter):
    """Heartbeats are how members learn of a rebalance: it is a worker that came or went, and no failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _REBALANCING not in str(record.msg)


_usual = _Usual()


def leave_out_the_usual() -> None:
    """Keep it out of the log, below level debug of the library's own. May be called again."""
    if _COORDINATOR.getEffectiveLevel() > logging.DEBUG:
        _COORDINATOR.addFilter(_usual)
