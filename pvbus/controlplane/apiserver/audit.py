"""Who changed which package: one line of the log per write, with what the write itself knows of it.

Every write that was made has its line. Of those that were refused, a user has some lines in a while, and then
one with the number of the others: a flood of refused requests does not fill the disk.

The front knows the user and the request; a hook knows what becomes of the object, and notes it here while the
request is answered.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pvbus.controlplane.apiserver.identity import Attributes, User
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.telemetry.structured import structlog

REFUSALS_MAX = 10
REFUSALS_SECONDS = 60.0
"""Lines of refused writes for a user in a while."""

USERS_MAX = 1_000
"""Users whose refused writes are counted; beyond it counting begins anew."""

_READS = frozenset({"get", "list", "watch"})

_facts: ContextVar[dict[str, str] | None] = ContextVar("facts", default=None)
_log = structlog.get_logger(__name__)


def is_wanted(attributes: Attributes) -> bool:
    """Return whether a request has a line: it writes a package."""
    return attributes.group == PORCH_GROUP and attributes.verb not in _READS


@contextmanager
def request() -> Iterator[dict[str, str]]:
    """Collect the facts that hooks note in the block."""
    facts: dict[str, str] = {}
    token = _facts.set(facts)
    try:
        yield facts
    finally:
        _facts.reset(token)


def note(**facts: str) -> None:
    """Add facts to the line of the request that this task answers; nothing if it answers none."""
    present = _facts.get()
    if present is not None:
        present.update(facts)


class Refusals:
    """Counts the refused writes of each user. What was left out is said with the next line that is logged."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, int]] = {}

    def count_refusal(self, user: str, now: float) -> int | None:
        """Count a refused write; return None if it has no line, else how many before it have none."""
        since, count = self._counts.get(user, (now, 0))
        if now - since < REFUSALS_SECONDS:
            self._counts[user] = (since, count + 1)
            return 0 if count < REFUSALS_MAX else None
        if len(self._counts) >= USERS_MAX:
            self._counts.clear()
        self._counts[user] = (now, 1)
        return max(0, count - REFUSALS_MAX)


_refusals = Refusals()


def log(user: User, attributes: Attributes, code: int, facts: dict[str, str]) -> None:
    """Write the line of a write that was answered."""
    resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
    line = {"user": user.name, "verb": attributes.verb, "resource": resource}
    where = {"namespace": attributes.namespace, "name": attributes.name}
    if code < 300:
        _log.info("package written", **line, **{**where, **facts}, code=code)
        return
    left_out = _refusals.count_refusal((user.sender or user).name, time.monotonic())
    if left_out is None:
        return
    if left_out:
        _log.info("more packages not written", user=user.name, count=left_out)
    _log.info("package not written", **line, **{**where, **facts}, code=code)
