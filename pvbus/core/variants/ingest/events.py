"""The events that an informer takes: a closed union of frozen Structs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from pvbus.core.kernel.objectrows import Emission
from pvbus.core.kernel.records import CheckRequest, Coverage
from pvbus.core.variants.ingest.published import Name

REPLAY_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after the objects that a watch begins with."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Options shared by all events."""


Purpose = Literal["checks", "left out", "gone", "content"]
"""Why objects are read by name: to answer check requests; to complete a list, or a replay, of an aggregated
API; because their content is requested."""


Reason = Literal["transient", "silent", "gone", "permanent"]


class Fault(_Event, frozen=True, kw_only=True):
    """A failed request.

    reason: `gone` is a 410; `silent` is a watch that showed nothing for too long
    retry_after_seconds: the delay that the server asked for, None if it named none
    is_forbidden: whether a permanent failure is a 403
    """

    reason: Reason
    message: str = ""
    retry_after_seconds: float | None = None
    is_forbidden: bool = False


class Tick(_Event, frozen=True, kw_only=True):
    """The time `Informer.wake_at` has come."""


class Served(_Event, frozen=True, kw_only=True):
    """Discovery knows the kind."""


class NotServed(_Event, frozen=True, kw_only=True):
    """Discovery does not know the kind."""


class ResolveFailed(_Event, frozen=True, kw_only=True):
    """Discovery could not be read."""

    fault: Fault


class Listed(_Event, frozen=True, kw_only=True):
    """A complete list of the namespaces in `coverage`.

    versions: the versions that were served when the list began
    resource_version: the version of the list, "" from an aggregated API
    items: the objects; of those that have `rows`, and whose content is not asked for, `view.identity_of`
    rows: the rows of the first items, as far as they were made before
    """

    versions: tuple[str, ...]
    resource_version: str
    items: Sequence[Mapping[str, Any]]
    rows: Sequence[Sequence[Emission]] = ()
    coverage: Coverage = Coverage()


class ListFailed(_Event, frozen=True, kw_only=True):
    """The list could not be read to its end."""

    fault: Fault


class Delivered(_Event, frozen=True, kw_only=True):
    """An event of the watch. position: see `pvbus.ports.cluster.WatchEvent`."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Mapping[str, Any]
    position: str = ""


class WatchEnded(_Event, frozen=True, kw_only=True):
    """The watch ended. fault: None if the server ended it in order."""

    fault: Fault | None = None


class ObjectRead(_Event, frozen=True, kw_only=True):
    """One object of a read by name. object: None if it does not exist."""

    purpose: Purpose
    name: Name
    object: Mapping[str, Any] | None


class ReadFailed(_Event, frozen=True, kw_only=True):
    """A read by name failed; its remaining names are not read."""

    purpose: Purpose
    fault: Fault


class VersionsRead(_Event, frozen=True, kw_only=True):
    """The versions served now. None: they could not be read."""

    versions: tuple[str, ...] | None


class Probed(_Event, frozen=True, kw_only=True):
    """A definition changed: the kind may be served, or in other versions."""


class CheckAsked(_Event, frozen=True, kw_only=True):
    """A check request was added. is_repeated: its last answer could not be written."""

    key: str
    request: CheckRequest
    is_repeated: bool = False


class CheckWithdrawn(_Event, frozen=True, kw_only=True):
    """A check request was deleted."""

    key: str


class ContentChanged(_Event, frozen=True, kw_only=True):
    """The content of other objects is requested. See `Informer.can_change_content`."""

    content: frozenset[Name]


ListEvent = Served | NotServed | ResolveFailed | Listed | ListFailed
ReadEvent = ObjectRead | ReadFailed | VersionsRead
Event = (
    Tick
    | ListEvent
    | ReadEvent
    | Delivered
    | WatchEnded
    | Probed
    | CheckAsked
    | CheckWithdrawn
    | ContentChanged
)
