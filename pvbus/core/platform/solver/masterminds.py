"""Versions and ranges as github.com/Masterminds/semver/v3 reads them: Crossplane's language.

Ranges have `=`, `!=`, `>`, `<`, `>=`, `<=`, `~`, `^`, `x` and hyphens; a comma or a space means and, `||`
means or. A prerelease matches only where one of the terms joined by "and" has a prerelease. Build metadata
has no precedence. The quirks are the library's: `>11` excludes 11.1.0, `1.2` is a range, and `=>` is `>=`.

Source: Masterminds/semver v3.5.0, constraints.go and version.go. Go's regular expressions are RE2's.
"""

from collections.abc import Callable
from typing import NamedTuple

import re2  # type: ignore[import-untyped]  # it has no types

from pvbus.core.platform.solver.semver import (
    DIGITS,
    ConstraintError,
    Version,
    VersionError,
    key_of,
    uint64,
)

CONSTRAINT_BYTES_MAX = 512
ALTERNATIVES_MAX = 32
VERSION_BYTES_MAX = 256

_SUFFIX = r"(-([0-9A-Za-z\-]+(\.[0-9A-Za-z\-]+)*))?(\+([0-9A-Za-z\-]+(\.[0-9A-Za-z\-]+)*))?"
_LOOSE = r"v?([0-9|x|X|\*]+)(\.[0-9|x|X|\*]+)?(\.[0-9|x|X|\*]+)?" + _SUFFIX
_OPERATORS = r"=||!=|>|<|>=|=>|<=|=<|~|~>|\^"
_VERSION = re2.compile(r"^v?([0-9]+)(\.[0-9]+)?(\.[0-9]+)?" + _SUFFIX + "$")
_TERM = re2.compile(rf"^\s*({_OPERATORS})\s*({_LOOSE})\s*$")
_TERMS = re2.compile(rf"(?:{_OPERATORS})\s*(?:{_LOOSE})")
_HYPHEN = re2.compile(rf"\s*({_LOOSE})\s+-\s+({_LOOSE})\s*")
_GROUP = re2.compile(rf"^(\s*({_OPERATORS})\s*({_LOOSE})\s*)((?:\s+|,\s*)({_OPERATORS})\s*({_LOOSE})\s*)*$")
_WILDCARDS = ("x", "X", "*")


class Term(NamedTuple):
    """One comparison. dirty: a part is a wildcard or missing, and minor_dirty and patch_dirty say from where
    on.
    """

    operator: str
    version: Version
    dirty: bool = False
    minor_dirty: bool = False
    patch_dirty: bool = False


class Range(NamedTuple):
    """Alternatives, each of terms that hold together."""

    text: str
    alternatives: tuple[tuple[Term, ...], ...]

    def matches(self, version: Version) -> bool:
        return any(_all_match(terms, version) for terms in self.alternatives)


def parse_version(text: str) -> Version:
    """Read a version; missing parts are 0; leading zeros and a v are accepted. Raises VersionError."""
    if len(text) > VERSION_BYTES_MAX:
        raise VersionError(f"the version is longer than {VERSION_BYTES_MAX} bytes")
    match = _VERSION.match(text) if text.isascii() else None
    if match is None:
        raise VersionError(f'"{text}" is no semantic version')
    numbers = [uint64((match.group(group) or "0").removeprefix(".")) for group in (1, 2, 3)]
    major, minor, patch = numbers
    if major is None or minor is None or patch is None:
        raise VersionError(f'"{text}" has a number of more than 64 bits')
    pre = tuple(match.group(5).split(".")) if match.group(5) else ()
    for part in pre:
        if len(part) > 1 and part[0] == "0" and DIGITS.issuperset(part):
            raise VersionError(f'"{text}": the prerelease number "{part}" begins with 0')
    build = tuple(match.group(8).split(".")) if match.group(8) else ()
    return Version(text, major, minor, patch, pre, build, key_of((major, minor, patch), pre))


def parse_range(text: str) -> Range:
    """Read a range. Raises ConstraintError."""
    if not text.isascii():
        raise ConstraintError(f"{text!r} has a character that no range has")
    if len(text) > CONSTRAINT_BYTES_MAX:
        raise ConstraintError(f"the range is longer than {CONSTRAINT_BYTES_MAX} bytes")
    groups = _without_hyphens(text).split("||")
    if len(groups) > ALTERNATIVES_MAX:
        raise ConstraintError(f"the range has more than {ALTERNATIVES_MAX} alternatives")
    return Range(text, tuple(_parse_group(group) for group in groups))


def _without_hyphens(text: str) -> str:
    result = text
    for match in _HYPHEN.finditer(text):
        result = result.replace(match.group(0), f">= {match.group(1)}, <= {match.group(11)} ", 1)
    return result


def _parse_group(group: str) -> tuple[Term, ...]:
    if _GROUP.match(group) is None:
        raise ConstraintError(f'"{group}" is no range')
    return tuple(_parse_term(match.group(0)) for match in _TERMS.finditer(group))


def _parse_term(text: str) -> Term:
    match = _TERM.match(text)
    if match is None:
        raise ConstraintError(f'"{text}" is no range')
    operator, version, major, minor, patch, pre = (match.group(group) or "" for group in range(1, 7))
    minor_dirty = patch_dirty = False
    dirty = True
    if _is_wildcard(major):
        version = f"0.0.0{pre}"
    elif _is_wildcard(minor):
        minor_dirty = True
        version = f"{major}.0.0{pre}"
    elif _is_wildcard(patch):
        patch_dirty = True
        version = f"{major}{minor}.0{pre}"
    else:
        dirty = False
    try:
        parsed = parse_version(version)
    except VersionError as exc:
        raise ConstraintError(f'"{text}": {exc}') from exc
    return Term(operator, parsed, dirty, minor_dirty, patch_dirty)


def _is_wildcard(part: str) -> bool:
    return not part or part.removeprefix(".") in _WILDCARDS


def _all_match(terms: tuple[Term, ...], version: Version) -> bool:
    if version.pre and not any(term.version.pre for term in terms):
        return False
    return all(_CHECKS[term.operator](version, term) for term in terms)


def _not_equal(version: Version, term: Term) -> bool:
    bound = term.version
    if not term.dirty:
        return version.key != bound.key
    if version.major != bound.major:
        return True
    if term.minor_dirty:
        return False
    if version.minor != bound.minor:
        return True
    if term.patch_dirty:
        return version.pre != bound.pre
    return version.key != bound.key


def _greater(version: Version, term: Term) -> bool:
    bound = term.version
    if not term.dirty:
        return version.key > bound.key
    if version.major != bound.major:
        return version.major > bound.major
    if term.minor_dirty:
        return False
    if term.patch_dirty:
        return version.minor > bound.minor
    return version.key > bound.key


def _less(version: Version, term: Term) -> bool:
    return version.key < term.version.key


def _at_least(version: Version, term: Term) -> bool:
    return version.key >= term.version.key


def _at_most(version: Version, term: Term) -> bool:
    bound = term.version
    if not term.dirty:
        return version.key <= bound.key
    if version.major > bound.major:
        return False
    return not (version.major == bound.major and version.minor > bound.minor and not term.minor_dirty)


def _tilde(version: Version, term: Term) -> bool:
    bound = term.version
    if version.key < bound.key:
        return False
    is_zero = (bound.major, bound.minor, bound.patch) == (0, 0, 0)
    if is_zero and not term.minor_dirty and not term.patch_dirty:
        return True
    return version.major == bound.major and (term.minor_dirty or version.minor == bound.minor)


def _tilde_or_equal(version: Version, term: Term) -> bool:
    return _tilde(version, term) if term.dirty else version.key == term.version.key


def _caret(version: Version, term: Term) -> bool:
    bound = term.version
    if version.key < bound.key or version.major != bound.major:
        return False
    if bound.major > 0 or term.minor_dirty:
        return True
    if version.minor != bound.minor:
        return False
    return bound.minor > 0 or term.patch_dirty or version.patch == bound.patch


_CHECKS: dict[str, Callable[[Version, Term], bool]] = {
    "": _tilde_or_equal,
    "=": _tilde_or_equal,
    "!=": _not_equal,
    ">": _greater,
    "<": _less,
    ">=": _at_least,
    "=>": _at_least,
    "<=": _at_most,
    "=<": _at_most,
    "~": _tilde,
    "~>": _tilde,
    "^": _caret,
}
