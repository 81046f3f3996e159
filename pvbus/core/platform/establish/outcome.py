"""What the carrying out of a lock's row ended with."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.packagerows import EstablishedRevision
from pvbus.core.platform.packaging.statuses import Runtime


class Carried(NamedTuple):
    """How far an install is.

    revisions: of the row to write. is_healthy: the active one is whole in the cluster. is_over: nothing is
    left of the install, and its row goes. reason, message: why it is not healthy, or what is not done.
    waiting: for what, in words. again_after: seconds until the next look. references: to the objects of the
    active revision, for its status; () if they were not looked at. runtime: of its controller, None without.
    """

    revisions: tuple[EstablishedRevision, ...] = ()
    is_healthy: bool = False
    is_over: bool = False
    reason: str = ""
    message: str = ""
    waiting: tuple[str, ...] = ()
    again_after: float | None = None
    references: tuple[Mapping[str, Any], ...] = ()
    runtime: Runtime | None = None
