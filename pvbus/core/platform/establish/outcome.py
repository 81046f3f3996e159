"""The outcome of one pass over an install: what is done, what is not, and when to look again."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.packagerows import EstablishedRevision, Stage
from pvbus.core.platform.packaging.statuses import Runtime


class Carried(NamedTuple):
    """How far an install is.

    revisions: the revisions of the row to write
    is_healthy: whether the active revision is whole in the cluster
    is_over: whether nothing is left of the install, so that its row goes
    reason, message: why the install is not healthy, or what of it is not done, in a word and in words
    waiting: what the install waits for, in words
    again_after: seconds until the next look, None if none is due
    references: references to the objects of the active revision, for its status; () if nobody looked at them
    runtime: the state of the package's controller, None without a controller
    stage: in which an install of Carvel's has failed
    manifest: fields of the active revision's status that come from its package; None if nobody looked
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
    stage: Stage = ""
    manifest: Mapping[str, Any] | None = None
