"""Which installs a change can matter for: those that are linked with it, in groups that share nothing.

What is linked: an install with its package, its holders and what it is a holder of, a package with all that
its versions may need, and whoever needs or brings the same API kind. So the rows of a group follow from its
own inputs, and a group that nothing has changed in keeps its rows.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple


class Member(NamedTuple):
    """A member of a group: an install by its okey, a source by its name, or an API kind."""

    kind: Literal["install", "source", "offer"]
    name: str


Link = tuple[Member, Member]


class Groups:
    """A partition of members, as the last decisions found it."""

    def __init__(self) -> None:
        self._groups: dict[Member, set[Member]] = {}

    def linked(self, members: Iterable[Member]) -> set[Member]:
        """Return members with all others of their groups."""
        found: set[Member] = set()
        for each in members:
            if each not in found:
                found |= self._groups.get(each, {each})
        return found

    def replace(self, members: Iterable[Member], links: Iterable[Link]) -> None:
        """Forget groups of which these are all members, and make groups of the links instead."""
        for each in members:
            self._groups.pop(each, None)
        for one, other in links:
            self._join(self._group(one), self._group(other))

    def _group(self, member: Member) -> set[Member]:
        return self._groups.setdefault(member, {member})

    def _join(self, one: set[Member], other: set[Member]) -> None:
        if one is other:
            return
        large, small = (one, other) if len(one) >= len(other) else (other, one)
        large |= small
        for each in small:
            self._groups[each] = large


class Changes:
    """What has changed since the last decision.

    members: the single installs and sources that changed
    is_all: whether more than single members changed
    is_owning: whether the objects that some install has changed
    is_carvel: whether an input of Carvel's part changed
    unstored: member -> its row in a settled decision, until the row is stored
    """

    def __init__(self) -> None:
        self.members: set[Member] = set()
        self.unstored: dict[Member, object] = {}
        self.is_all = True
        self.is_owning = True
        self.is_carvel = True

    def install(self, okey: str) -> None:
        self.members.add(Member("install", okey))

    def source(self, name: str) -> None:
        self.members.add(Member("source", name))

    def take_echo(self, member: Member, row: object) -> bool:
        """Return whether this is a row of a settled decision, which then is stored."""
        if row is None or self.unstored.get(member) is not row:
            return False
        del self.unstored[member]
        return True

    def clear(self) -> None:
        self.members, self.unstored = set(), {}
        self.is_all, self.is_owning, self.is_carvel = False, False, False


def installs_of(members: Iterable[Member]) -> Iterator[str]:
    return (each.name for each in members if each.kind == "install")


def sources_of(members: Iterable[Member]) -> Iterator[str]:
    return (each.name for each in members if each.kind == "source")
