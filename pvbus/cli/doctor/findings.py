"""What the doctor found: one line per thing that it looked at."""

from typing import Literal, NamedTuple

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Object, Resource

State = Literal["ok", "wrong", "unknown"]
"""unknown: it could not be looked at, for a reason that is not wrong in itself."""


class Finding(NamedTuple):
    """The state of one thing.

    area: rights, definitions and so on
    subject: what was looked at
    state: how it is
    message: what is wrong, or what is known of it
    action: what to do about it, "" if nothing
    """

    area: str
    subject: str
    state: State
    message: str = ""
    action: str = ""


async def look_at(cluster: HttpCluster, resource: Resource, namespace: str, name: str) -> Object | str | None:
    """Read an object; return the reason instead if the API server refuses it to us."""
    try:
        return await cluster.get(resource, namespace, name)
    except PermanentError as exc:
        return str(exc)
