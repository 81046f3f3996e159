"""Who changed which package: one line of the log per write, with what the write itself knows of it.

The front knows the user and the request; a hook knows what becomes of the object, and notes it here while the
request is answered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import structlog

from pvbus.controlplane.apiserver.identity import Attributes, User
from pvbus.core.api.variants import PORCH_GROUP

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


def log(user: User, attributes: Attributes, code: int, facts: dict[str, str]) -> None:
    """Write the line of a write that was answered."""
    resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
    line = {"user": user.name, "verb": attributes.verb, "resource": resource}
    where = {"namespace": attributes.namespace, "name": attributes.name}
    _log.info(
        "package written" if code < 300 else "package not written", **line, **{**where, **facts}, code=code
    )
