"""The conflicts of a merge: what both sides changed, with the values that the result lacks.

A warning is listed with them: of an element whose key both sides changed, the result has both.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

ABSENT = msgspec.UNSET
"""Stands for a field that a side does not have; `null` is a value."""


CONFLICTS = "pvbus.dev/upgrade-conflicts"
"""Annotation of an upgrade draft: what local and upstream both changed, as a JSON list of conflicts."""

CONFLICTS_BYTES_MAX = 64 * 1024
"""Of the annotation: all annotations of an object together may have 256 KiB."""

VALUE_CHARACTERS_MAX = 1000
"""Of one value in the annotation; a longer one is still in git, in the revision that it is of."""


class Conflict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that local and upstream changed differently.

    file: its path; that of a sub-package ends with a slash, and its values are files by path
    object: kind and name of the object, "" for a whole file
    field: the path of the field, "" for a whole object or file; of a warning, the path of the local element
    old, local, new: the three values; ABSENT for a side that has none
    taken: whose value the result has; `both` is a warning, which blocks nothing
    beside: of a warning, the path of upstream's element, which stays beside the local one
    """

    file: str = ""
    object: str = ""
    field: str = ""
    old: Any = ABSENT
    local: Any = ABSENT
    new: Any = ABSENT
    taken: Literal["upstream", "local", "both"] = "upstream"
    beside: str = ""

    @property
    def is_warning(self) -> bool:
        return self.taken == "both"

    @property
    def folder(self) -> str:
        """The folder of a sub-package, "" for all others."""
        return self.file.removesuffix("/") if self.file.endswith("/") else ""

    @property
    def has_values(self) -> bool:
        """Whether a report has any value: that of a link has none, as the API does not carry links."""
        return not self.old is self.local is self.new is ABSENT


_decoder = msgspec.json.Decoder(tuple[Conflict, ...])


def reported(text: str) -> tuple[Conflict, ...]:
    """Return the conflicts of an annotation's text; one that cannot be read has none."""
    try:
        return _decoder.decode(text or "[]")
    except msgspec.DecodeError:
        return ()


def joined(before: Iterable[Conflict], later: Iterable[Conflict]) -> tuple[Conflict, ...]:
    """Return the conflicts of two merges; of one local value in one place, the later one."""
    places = {(one.file, one.object, one.field, _encoded(one.local)): one for one in (*before, *later)}
    return tuple(places.values())


def _encoded(value: Any) -> bytes:
    return b"" if value is ABSENT else msgspec.json.encode(shown(value))


def where(conflict: Conflict) -> str:
    """Return the place of a conflict in words."""
    return " ".join(part for part in (conflict.file, conflict.object, conflict.field) if part)


def annotation(conflicts: Sequence[Conflict]) -> str:
    """Return the conflicts as the annotation's text; those beyond its limit are counted."""
    listed: list[Any] = []
    left = CONFLICTS_BYTES_MAX
    for conflict in conflicts:
        cut = msgspec.structs.replace(
            conflict, **{side: shown(getattr(conflict, side)) for side in ("old", "local", "new")}
        )
        left -= len(msgspec.json.encode(cut)) + 1
        if left < 0:
            listed.append({"file": f"and {len(conflicts) - len(listed)} more"})
            break
        listed.append(cut)
    return msgspec.json.encode(listed).decode()


def shown(value: Any) -> Any:
    """Return a value as JSON can hold it, as text where it is long."""
    if value is ABSENT:
        return value
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):  # a key that is a list, or a file that is no text
        value = text = str(value).encode(errors="replace").decode()
    if len(text) <= VALUE_CHARACTERS_MAX:
        return value
    return f"{value if isinstance(value, str) else text}"[:VALUE_CHARACTERS_MAX] + "..."
