"""The input and the output of the resolver.

A package may be installed once per target; a target is a cluster or a namespace of one, whichever the
caller's installs are unique in. What a version offers beside itself is a text: `api` makes that of an API
kind.
"""

from typing import Literal

import msgspec

Status = Literal["granted", "stays", "quarantined", "undecided"]
VersionPolicy = Literal["highest", "minimal-change", "lowest-satisfying", "pinned"]


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: frozen, and strict when decoded."""


class PackageNeed(Model, frozen=True, kw_only=True, tag_field="need", tag="package"):
    """A need of another package.

    range: the accepted versions; "" accepts every release
    digest: the one accepted content, instead of a range
    target: where the package must be, None for the target of the holder
    prereleases: see `languages.admits`; with a range it counts only where ranges hide prereleases
    """

    package: str
    range: str = ""
    digest: str = ""
    language: str = "masterminds"
    target: str | None = None
    prereleases: tuple[str, ...] | None = None


class OfferNeed(Model, frozen=True, kw_only=True, tag_field="need", tag="offer"):
    """An API kind or another capability, which the target has or an installed package provides."""

    offer: str


class PlatformNeed(Model, frozen=True, kw_only=True, tag_field="need", tag="platform"):
    """A version of the platform, for example of Kubernetes."""

    platform: str
    range: str
    language: str = "masterminds"


class AnyOf(Model, frozen=True, kw_only=True, tag_field="need", tag="anyOf"):
    """One of several needs. What exists already comes first, then the order of the list decides."""

    alternatives: tuple["Need", ...]


Need = PackageNeed | OfferNeed | PlatformNeed | AnyOf


class Requirement(Model, frozen=True, kw_only=True):
    """What a version needs. optional: whether the version does without it where it cannot be met."""

    need: Need
    optional: bool = False
    name: str = ""


class Conflict(Model, frozen=True, kw_only=True):
    """A package that must not be in the same target. range: "" means every version."""

    package: str
    range: str = ""
    language: str = "masterminds"


class Candidate(Model, frozen=True, kw_only=True):
    """One version of a package.

    defect: why it cannot be installed, in words; "" if it can
    is_read: whether its content was read; one that was not is assumed to provide whatever is wanted
    """

    version: str
    digest: str = ""
    requirements: tuple[Requirement, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    defect: str = ""
    is_read: bool = True


class Package(Model, frozen=True, kw_only=True):
    """A package and its versions, in any order.

    language: how its versions are read
    trouble: why no newer ones are known, "" if all are
    """

    name: str
    candidates: tuple[Candidate, ...]
    language: str = "masterminds"
    trouble: str = ""


class Wish(Model, frozen=True, kw_only=True):
    """A package that a user installs.

    pinned: whether the user wants exactly this version; messages say so, and such a wish is asked for before
        others, except those whose package is installed while its own is not
    """

    package: str
    target: str = ""
    range: str = ""
    digest: str = ""
    language: str = "masterminds"
    prereleases: tuple[str, ...] | None = None
    pinned: bool = False
    name: str = ""


class Installed(Model, frozen=True, kw_only=True):
    """What is there now.

    candidate: its facts, if the package's list does not have this version any more
    is_preferred: whether this version is tried before all others, whatever the policy prefers
    is_downgradable: whether a version below this one is possible, whatever the policy says
    """

    package: str
    version: str
    target: str = ""
    candidate: Candidate | None = None
    is_preferred: bool = False
    is_downgradable: bool = False


class Target(Model, frozen=True, kw_only=True):
    """A place where packages are installed.

    offers: what the target has without a package
    platforms: name and version of each platform
    """

    name: str = ""
    offers: tuple[str, ...] = ()
    platforms: tuple[tuple[str, str], ...] = ()


class Policy(Model, frozen=True, kw_only=True):
    """How to choose among the possible solutions.

    versions: which versions are preferred
        `highest`: the highest ones
        `minimal-change`: the fewest installed packages change, each to the nearest version above its own
        `lowest-satisfying`: the lowest ones, but none below what is installed
        `pinned`: no installed package changes
    downgrades: whether versions below all installed ones are possible
    search: whether a need of an offer may install the only package that provides it
    unneeded: what is done with installed packages that nobody needs
    conflicts_max: after how many conflicts a wish that is hard to decide stays undecided
    """

    versions: VersionPolicy = "highest"
    downgrades: bool = False
    search: bool = False
    ignore_platforms: bool = False
    unneeded: Literal["orphan", "delete"] = "orphan"
    conflicts_max: int = 20_000


class Problem(Model, frozen=True, kw_only=True):
    """What is known and wanted. The order of a list has no meaning, but for alternatives and requirements."""

    packages: tuple[Package, ...] = ()
    wishes: tuple[Wish, ...] = ()
    installed: tuple[Installed, ...] = ()
    targets: tuple[Target, ...] = ()
    policy: Policy = Policy()


class Edge(Model, frozen=True, kw_only=True):
    """A requirement of a chosen version, and what meets it.

    status: how the requirement is met
        `met`: the package `provider` meets it
        `exists`: the target has it without a package
        `unmet`: nothing does; the requirement is optional
    """

    requirement: Requirement
    status: Literal["met", "exists", "unmet"]
    target: str = ""
    provider: str = ""


class Chosen(Model, frozen=True, kw_only=True):
    """A version that is to be installed. edges: one for each requirement, in their order."""

    target: str
    package: str
    version: str
    digest: str = ""
    edges: tuple[Edge, ...] = ()


class Explanation(Model, frozen=True, kw_only=True):
    """Why a wish cannot be granted: all reasons together, none of which can be left out.

    unknown_platforms: which they name, and of which no version is known.
    """

    sentence: str
    reasons: tuple[str, ...]
    unknown_platforms: tuple[str, ...] = ()


class Outcome(Model, frozen=True, kw_only=True):
    """What becomes of a wish.

    status: how the wish ends
        `granted`: a version that the user wants is chosen
        `stays`: the wish is impossible; the installed version stays, and what it needs is there
        `quarantined`: nothing is done for this wish, and nothing of it is removed
        `undecided`: neither a solution nor a proof that there is none was found; as `quarantined`
    """

    wish: Wish
    status: Status
    version: str = ""
    explanation: Explanation | None = None


class Resolution(Model, frozen=True, kw_only=True):
    """The solution.

    cycles: packages that need each other, each cycle as its targets and names, in order
    unproven: how many answers about versions are possible, and not proved the best
    """

    outcomes: tuple[Outcome, ...]
    chosen: tuple[Chosen, ...]
    cycles: tuple[tuple[tuple[str, str], ...], ...] = ()
    components: int = 0
    unproven: int = 0


def api(api_version: str, kind: str) -> str:
    """Return the offer of an API kind."""
    return f"API {api_version} {kind}"


def flattened(need: Need) -> tuple[PackageNeed | OfferNeed | PlatformNeed, ...]:
    """Return the alternatives of a need in order; nested lists of alternatives are one list."""
    if isinstance(need, AnyOf):
        return tuple(leaf for each in need.alternatives for leaf in flattened(each))
    return (need,)


def is_platform(requirement: Requirement) -> bool:
    """Return whether only the versions of platforms are needed, which no install is made for."""
    return all(isinstance(leaf, PlatformNeed) for leaf in flattened(requirement.need))
