"""The facts that can make a wish impossible: an explanation is a set of them."""

import msgspec

from pvbus.core.platform.solver.closure import Location
from pvbus.core.platform.solver.model import Conflict, Requirement, Wish


class WishFact(msgspec.Struct, frozen=True):
    """A user wants a package. index: the wish's place in its component, as two users may want the same."""

    index: int
    wish: Wish


class StayFact(msgspec.Struct, frozen=True):
    """A wish is impossible, so the installed version of the package stays."""

    location: Location
    version: str


class NeedFact(msgspec.Struct, frozen=True):
    """The versions of a package that have a requirement need what it names."""

    location: Location
    requirement: Requirement


class ConflictFact(msgspec.Struct, frozen=True):
    """The versions of a package that have a conflict exclude another package."""

    location: Location
    conflict: Conflict


class DefectFact(msgspec.Struct, frozen=True):
    """A version cannot be installed."""

    location: Location
    version: str
    defect: str


class DowngradeFact(msgspec.Struct, frozen=True):
    """A package is installed, and nothing below its version is allowed."""

    location: Location
    version: str


class PinFact(msgspec.Struct, frozen=True):
    """A package is installed, and the policy lets nothing that is installed change."""

    location: Location
    version: str


Fact = WishFact | StayFact | NeedFact | ConflictFact | DefectFact | DowngradeFact | PinFact
