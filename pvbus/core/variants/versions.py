"""Ranges of semantic versions as `spec.upstream.workspaceName`: an extension of Porch's API.

A text that begins with one of `^ ~ > < =`, or has a space, a comma, a `|` or a `*` in it, is a range; any
other is the name of a workspace. A range selects the highest published revision in it: number 3 is version
3.0.0, a tag without a number, such as `app/v2.0.1`, is what it says.

Source: node-semver, without hyphen ranges. A pre-release is in a range only if the range names one of the
same three numbers.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import Upstream
from pvbus.core.kernel.records import RevisionFacts

_NUMBERS = r"v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?"
_SUFFIX = r"(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?" + _SUFFIX)
_COMPARATOR = re.compile(r"(\^|~|>=|<=|>|<|=)?\s*" + _NUMBERS + _SUFFIX)

T = TypeVar("T")


class Version(NamedTuple):
    """In the order of semantic versions. suffix: the identifiers of a pre-release; a release has one that
    is higher than any."""

    numbers: tuple[int, int, int]
    suffix: tuple[Any, ...]


_RELEASE = ((2, 0, ""),)
_LOWEST: tuple[Any, ...] = ()

Bound = tuple[str, Version]
Alternatives = tuple[tuple[Bound, ...], ...]


def is_range(text: str) -> bool:
    return text[:1] in tuple("^~><=") or any(char in text for char in " ,|*")


def highest(upstream: Upstream, items: Iterable[T], facts: Callable[[T], RevisionFacts]) -> T | None:
    """Return the item with the highest published revision in an upstream's range. With a revision above 0,
    that number is the only choice. An invalid range has none."""
    try:
        wanted = _parsed(upstream.workspace_name)
    except ValueError:
        return None
    matches: list[tuple[Version, T]] = []
    for item in items:
        version = _version_of(facts(item))
        if version is None or (upstream.revision > 0 and facts(item).revision != upstream.revision):
            continue
        if any(_is_in(version, bounds) for bounds in wanted):
            matches.append((version, item))
    return max(matches, key=lambda match: match[0])[1] if matches else None


def problem(upstream: Upstream) -> str:
    """Return what is wrong with an upstream's range, "" if nothing is, or if it has none."""
    try:
        if is_range(upstream.workspace_name):
            _parsed(upstream.workspace_name)
    except ValueError as error:
        return str(error)
    return ""


def _version_of(facts: RevisionFacts) -> Version | None:
    if facts.lifecycle not in PUBLISHED:
        return None
    if facts.revision > 0:
        return Version((facts.revision, 0, 0), _RELEASE)
    match = _VERSION.fullmatch(facts.workspace)
    if match is None:
        return None
    major, minor, patch = (int(number or 0) for number in match.groups()[:3])
    return Version((major, minor, patch), _suffix(match[4]))


def _suffix(text: str | None) -> tuple[Any, ...]:
    if not text:
        return _RELEASE
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in text.split("."))


_TESTS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": lambda version, bound: version >= bound,
    ">": lambda version, bound: version > bound,
    "<=": lambda version, bound: version <= bound,
    "<": lambda version, bound: version < bound,
}


def _is_in(version: Version, bounds: tuple[Bound, ...]) -> bool:
    if version.suffix != _RELEASE and not any(
        bound.numbers == version.numbers and bound.suffix not in (_RELEASE, _LOWEST) for _, bound in bounds
    ):
        return False
    return all(_TESTS[operator](version, bound) for operator, bound in bounds)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Alternatives:
    """Raises: ValueError with what is wrong."""
    return tuple(tuple(_bounds(text, part.replace(",", " ").strip())) for part in text.split("||"))


def _bounds(text: str, part: str) -> Iterator[Bound]:
    at = 0
    while at < len(part) or not part:
        match = _COMPARATOR.match(part, at)
        if match is None or part[match.end() : match.end() + 1].strip():
            raise ValueError(
                f'"{text}" is not a range of versions: "{part[at:]}" is no comparator such as ^1.4, ~1.2.3, '
                "=1.x or >=1.2 <2 (|| separates alternatives)"
            )
        yield from _comparator(match)
        at = match.end() + len(part[match.end() :]) - len(part[match.end() :].lstrip())


def _comparator(match: re.Match[str]) -> Iterator[Bound]:
    given = [int(number) for number in _until_wildcard(match.groups()[1:4])]
    if not given:
        if match[1] in (">", "<"):
            yield "<", Version((0, 0, 0), _LOWEST)  # nothing is above or below all
        return
    major, minor, patch = (*given, 0, 0)[:3]
    version = Version((major, minor, patch), _suffix(match[5]))
    is_full = len(given) == 3
    match match[1] or "=":
        case "^":
            fixed = next((index for index, number in enumerate(given) if number), len(given) - 1)
            yield from ((">=", version), ("<", _next(given, fixed)))
        case "~":
            yield from ((">=", version), ("<", _next(given, min(1, len(given) - 1))))
        case "=" if is_full:
            yield from ((">=", version), ("<=", version))
        case "=":
            yield from ((">=", version), ("<", _next(given, len(given) - 1)))
        case ">" if not is_full:
            yield ">=", _next(given, len(given) - 1)
        case "<=" if not is_full:
            yield "<", _next(given, len(given) - 1)
        case operator:
            yield operator, version


def _until_wildcard(numbers: Iterable[str | None]) -> Iterator[str]:
    for number in numbers:
        if number is None or not number.isdecimal():
            return
        yield number


def _next(given: list[int], index: int) -> Version:
    """Return the lowest version whose number at an index is higher; its pre-releases come before it."""
    numbers = (*given[:index], given[index] + 1, 0, 0)[:3]
    return Version((numbers[0], numbers[1], numbers[2]), _LOWEST)
