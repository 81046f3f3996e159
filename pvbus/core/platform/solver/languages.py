"""The languages of versions and ranges by name, and Carvel's selection of prereleases."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from pvbus.core.platform.solver import blang, masterminds
from pvbus.core.platform.solver.semver import ConstraintError, Version, VersionError


class VersionRange(Protocol):
    """A range that was read."""

    @property
    def text(self) -> str: ...

    def matches(self, version: Version) -> bool: ...


class Language(NamedTuple):
    """How the versions and ranges of a family of packages are read."""

    name: str
    parse_version: Callable[[str], Version]
    parse_range: Callable[[str], VersionRange]


def relaxed_version(text: str) -> Version:
    """Read a version of Carvel's, with or without one leading v. Raises VersionError."""
    version = blang.parse_version(text.removeprefix("v"), blang.CARVEL)
    return version._replace(text=text)


MASTERMINDS = Language("masterminds", masterminds.parse_version, masterminds.parse_range)
BLANG = Language("blang", blang.parse_version, blang.parse_range)
K14S = Language(
    "k14s",
    partial(blang.parse_version, dialect=blang.K14S),
    partial(blang.parse_range, dialect=blang.K14S),
)
CARVEL = Language("carvel", relaxed_version, partial(blang.parse_range, dialect=blang.CARVEL))
LANGUAGES: Mapping[str, Language] = {each.name: each for each in (MASTERMINDS, BLANG, K14S, CARVEL)}


def admits(version: Version, identifiers: tuple[str, ...] | None) -> bool:
    """Say whether a selection of prereleases admits a version.

    identifiers: None admits no prerelease, () every one, else those that have one of these identifiers.
    """
    if not version.pre or identifiers == ():
        return True
    return identifiers is not None and any(part in identifiers for part in version.pre if part)


def is_prerelease(text: str) -> bool:
    """Say whether a range of Carvel's is exactly one version, and that one is a prerelease."""
    try:
        return bool(relaxed_version(text.strip().lstrip("=").lstrip()).pre)
    except VersionError:
        return False


def highest(texts: Iterable[str], constraints: str, identifiers: tuple[str, ...] | None) -> str | None:
    """Return the version that Carvel's selection chooses, None if there is none. Raises ConstraintError.

    Of equal versions the last one is chosen; what is no version is left out.
    """
    found = []
    for text in texts:
        try:
            found.append(relaxed_version(text))
        except VersionError:
            continue
    found = [version for version in found if admits(version, identifiers)]
    if constraints:
        wanted = CARVEL.parse_range(constraints)
        found = [version for version in found if wanted.matches(version)]
    return sorted(found, key=lambda version: version.key)[-1].text if found else None


__all__ = [
    "BLANG",
    "CARVEL",
    "K14S",
    "LANGUAGES",
    "MASTERMINDS",
    "ConstraintError",
    "Language",
    "Version",
    "VersionError",
    "VersionRange",
    "admits",
    "highest",
    "is_prerelease",
    "relaxed_version",
]
