"""The conflicts of a merge: what both sides changed, with the values that the result lacks."""

from typing import Any, Literal

import msgspec

ABSENT = msgspec.UNSET
"""Stands for a field that a side does not have; `null` is a value."""


CONFLICTS = "pvbus.dev/upgrade-conflicts"
"""Annotation of an upgrade draft: what local and upstream both changed, as a JSON list of conflicts."""


class MergeError(ValueError):
    """These packages cannot be merged. The message says where and why."""


class Conflict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that local and upstream changed differently.

    object: kind and name, "" for a whole file. field: its path, "" for a whole object or file. old,
    local, new: the values; a side without the field has none.
    """

    file: str = ""
    object: str = ""
    field: str = ""
    old: Any = ABSENT
    local: Any = ABSENT
    new: Any = ABSENT
    taken: Literal["upstream", "local"] = "upstream"
