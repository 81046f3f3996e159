"""A semantic version and its order, and the parts of Go's standard library that the ranges rely on."""

from typing import NamedTuple

UINT64_MAX = 2**64 - 1
INT64_MAX = 2**63 - 1
DIGITS = frozenset("0123456789")
IDENTIFIER = DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-")
GO_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What Go's strings.TrimSpace removes; str.strip() removes four more."""

PartKey = tuple[int, int, str]
Key = tuple[int, int, int, tuple[PartKey, ...], tuple[PartKey, ...]]

_RELEASE: tuple[PartKey, ...] = ((2, 0, ""),)
"""Sorts after every prerelease of the same number."""


class VersionError(ValueError):
    """A text that the language does not accept as a version. The text says why."""


class ConstraintError(ValueError):
    """A text that the language does not accept as a range. The text says why."""


class Version(NamedTuple):
    """A version.

    text: the version as it was written
    key: its place in the order of its language
    """

    text: str
    major: int
    minor: int
    patch: int
    pre: tuple[str, ...]
    build: tuple[str, ...]
    key: Key


def uint64(digits: str) -> int | None:
    """Return the number as Go's ParseUint does, None where that fails."""
    if not digits or not DIGITS.issuperset(digits):
        return None
    number = int(digits) if len(digits) <= 400 else UINT64_MAX + 1
    return number if number <= UINT64_MAX else None


def part_key(part: str) -> PartKey:
    """Return the place of an identifier in the order: numbers first. What exceeds 64 bits is a text."""
    number = uint64(part)
    return (1, 0, part) if number is None else (0, number, "")


def key_of(numbers: tuple[int, int, int], pre: tuple[str, ...], build: tuple[str, ...] = ()) -> Key:
    """Return the place of a version in the order. build: () where build metadata does not count."""
    return (*numbers, tuple(map(part_key, pre)) or _RELEASE, tuple(map(part_key, build)))
