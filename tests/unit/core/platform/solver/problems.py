"""Problems in few words: `pkg("a", {"1.0.0": ["b >=1.0.0"]})`."""

from collections.abc import Mapping, Sequence

from pvbus.core.platform.solver.model import (
    AnyOf,
    Candidate,
    Installed,
    Need,
    OfferNeed,
    Package,
    PackageNeed,
    Requirement,
    Wish,
    api,
)

MAIN_API = api("some.api.org/v1", "MainAPI")


def need(text: str) -> Need:
    """Read `name range`, `name range@target`, `offer NAME`, or alternatives of these joined by ` or `."""
    if " or " in text:
        return AnyOf(alternatives=tuple(need(each) for each in text.split(" or ")))
    if text.startswith("offer "):
        return OfferNeed(offer=text.removeprefix("offer "))
    text, _, target = text.partition("@")
    name, _, range_ = text.partition(" ")
    return PackageNeed(package=name, range=range_, target=target or None)


def requirement(text: str) -> Requirement:
    """Read a need; a leading `?` makes it optional."""
    return Requirement(need=need(text.removeprefix("?")), optional=text.startswith("?"))


def pkg(
    name: str, versions: Mapping[str, Sequence[str]], provides: Mapping[str, tuple[str, ...]] | None = None
) -> Package:
    """Make a package from the requirements of its versions."""
    return Package(
        name=name,
        candidates=tuple(
            Candidate(
                version=version,
                requirements=tuple(requirement(each) for each in requirements),
                provides=(provides or {}).get(version, ()),
            )
            for version, requirements in versions.items()
        ),
    )


def wish(text: str, *, pinned: bool = False) -> Wish:
    """Read `name range` or `name range@target`."""
    text, _, target = text.partition("@")
    name, _, range_ = text.partition(" ")
    return Wish(package=name, range=range_, target=target, pinned=pinned)


def installed(text: str) -> Installed:
    """Read `name version`."""
    name, _, version = text.partition(" ")
    return Installed(package=name, version=version)
