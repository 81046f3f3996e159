"""The commands of an informer to its shell: a closed union, which includes the rows to write."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from pvbus.core.kernel.objectrows import Emission
from pvbus.core.variants.ingest.events import Purpose
from pvbus.core.variants.ingest.published import Name


class _Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Options shared by all commands."""


Operation = Literal["resolve", "list", "watch", "versions"] | Purpose
"""What a shell does for an informer; one of each at a time."""

OPERATIONS: tuple[Operation, ...] = (
    "resolve", "list", "watch", "versions", "checks", "left out", "gone", "content",
)  # fmt: skip


class Resolve(_Command, frozen=True, kw_only=True):
    """Read discovery; report Served, NotServed or ResolveFailed. is_fresh: drop the cached answer first."""

    is_fresh: bool


class List(_Command, frozen=True, kw_only=True):
    """Read the served versions, then list; report Listed or ListFailed."""

    metadata_only: bool


class Watch(_Command, frozen=True, kw_only=True):
    """Watch from a version on; report Delivered for each event, then WatchEnded."""

    resource_version: str
    metadata_only: bool


class ReadVersions(_Command, frozen=True, kw_only=True):
    """Drop the cached discovery, and read the versions; report VersionsRead."""


class Read(_Command, frozen=True, kw_only=True):
    """Read objects by name; report ObjectRead for each, or ReadFailed."""

    purpose: Purpose
    names: tuple[Name, ...]


class Stop(_Command, frozen=True, kw_only=True):
    """End operations; nothing is reported for them after this."""

    operations: tuple[Operation, ...]


class Note(_Command, frozen=True, kw_only=True):
    """A line for the log."""

    level: Literal["info", "warning"]
    text: str
    fields: Mapping[str, Any] = {}


Command = Resolve | List | Watch | ReadVersions | Read | Stop | Note | Emission
