"""The conflicts of upgrades that wait for a person: those of each open draft, and equal ones as a group.

A group is what one decision settles: the same field of the same file, with the same two values, or with
whatever values. Values of Secrets are never shown, and so never compared: they count as equal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from pvbus.core.kernel.conflicts import ABSENT, CONFLICTS, Conflict, reported, where
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.records import ObjectOwner

OPEN = frozenset({"Draft", "Proposed"})
VARIANT = "PackageVariant"
HIDDEN = "(a value of a Secret)"
_MARK = CONFLICTS.encode()


class _Facts(msgspec.Struct):
    lifecycle: str = ""


class _Revision(msgspec.Struct):
    annotations: Mapping[str, str] = {}
    owners: tuple[ObjectOwner, ...] = ()
    revision: _Facts | None = None
    deleted: str = ""


_revision = msgspec.json.Decoder(_Revision)


class ConflictRow(msgspec.Struct):
    """The conflicts of one draft or proposal, without its warnings.

    variant: the variant, as `<namespace>/<name>`
    lifecycle: of the revision; a proposal is settled after it is a draft again
    """

    variant: str
    lifecycle: str
    conflicts: tuple[Conflict, ...]
    version: int = 0

    def is_as(self, other: "ConflictRow") -> bool:
        """Return whether both say the same, whenever they changed."""
        return (self.variant, self.lifecycle, self.conflicts) == (
            other.variant,
            other.lifecycle,
            other.conflicts,
        )


def conflicts_in(name: str, value: bytes | None, shared: Callable[[Any, Any], Any]) -> ConflictRow | None:
    """Return the conflicts in the row of a package revision, None if it has none or is published.

    name: of the revision, as `<namespace>/<name>`
    shared: returns the first value that it was given with a key
    """
    if value is None or _MARK not in value:
        return None
    row = _revision.decode(value)
    lifecycle = row.revision.lifecycle if row.revision is not None else ""
    owner = next((each.name for each in row.owners if each.kind == VARIANT), "")
    open_ones = tuple(each for each in reported(row.annotations.get(CONFLICTS, "")) if not each.is_warning)
    if row.deleted or lifecycle not in OPEN or not owner or not open_ones:
        return None
    variant = f"{name.partition('/')[0]}/{owner}"
    conflicts = tuple(shared(msgspec.json.encode(each), each) for each in open_ones)
    return ConflictRow(shared(variant, variant), shared(lifecycle, lifecycle), conflicts)


def is_secret(conflict: Conflict) -> bool:
    """Return whether the values of a conflict may be those of a Secret."""
    texts = (conflict.old, conflict.local, conflict.new)
    return kind_of(conflict) == "Secret" or any(
        isinstance(text, str) and "Secret" in text for text in texts if not conflict.field
    )


def kind_of(conflict: Conflict) -> str:
    """Return the kind of the object in conflict: its name often has that of the variant in it."""
    return conflict.object.partition(" ")[0]


def place_id(conflict: Conflict) -> str:
    """Return the id of all conflicts in this field of this file."""
    return digest([conflict.file, kind_of(conflict), conflict.field])


def group_id(conflict: Conflict) -> str:
    """Return the id of all conflicts in this field of this file that have the same two values."""
    values = {"old": ABSENT, **({"local": ABSENT, "new": ABSENT} if is_secret(conflict) else {})}
    return digest(replace(conflict, object=kind_of(conflict), beside="", **values))


def values_of(conflict: Conflict) -> dict[str, Any]:
    """Return the two values as JSON can hold them; a side without one is not there."""
    values = {"local": conflict.local, "upstream": conflict.new}
    hidden = is_secret(conflict)
    return {side: HIDDEN if hidden else value for side, value in values.items() if value is not ABSENT}


class Found(NamedTuple):
    """One conflict of one variant.

    revision: the draft or proposal, as `<namespace>/<name>`
    """

    variant: str
    revision: str
    lifecycle: str
    conflict: Conflict


class Group(NamedTuple):
    """Conflicts that one decision settles, in the order of their variants.

    id: of the group, the same in every process
    """

    id: str
    members: tuple[Found, ...]

    @property
    def example(self) -> Conflict:
        return self.members[0].conflict

    @property
    def words(self) -> str:
        return where(replace(self.example, object=kind_of(self.example)))


def by_draft(group: Group) -> dict[str, str]:
    """Return the variants of a group by their drafts."""
    return {member.revision: member.variant for member in group.members}


def found_in(rows: Iterable[tuple[str, ConflictRow]]) -> Iterator[Found]:
    """Yield each conflict. rows: by the name of the revision."""
    for name, row in rows:
        for conflict in row.conflicts:
            yield Found(row.variant, name, row.lifecycle, conflict)


def groups_of(members: Iterable[Found], *, by_field: bool = False) -> list[Group]:
    """Return the groups, the largest one first. by_field: whether values may differ within a group."""
    by_id: dict[str, list[Found]] = {}
    for member in members:
        by_id.setdefault((place_id if by_field else group_id)(member.conflict), []).append(member)
    groups = [Group(name, tuple(sorted(group, key=_order))) for name, group in by_id.items()]
    return sorted(groups, key=lambda group: (-len(group.members), group.words, group.id))


def _order(member: Found) -> tuple[str, str, str]:
    return member.variant, member.revision, where(member.conflict)
