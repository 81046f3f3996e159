"""Versions and ranges as github.com/blang/semver/v4 reads them, and as Carvel's two forks of it do.

A space means and, `||` between spaces means or; there are `=`, `!=`, `>`, `<`, `>=`, `<=`, `!` and `x` as the
last part. The quirks are the library's: `1.x.x` is `>=1.0.0 <1.1.0`, and a single character between spaces is
dropped. A range with an empty alternative (`1.0.0 || || 2.0.0`) is refused here; the libraries accept it, and
panic when it is used.

k14s/semver and its successor carvel-dev/semver compare build metadata, too. In the latter a wildcard begins
at the prerelease 0 (`1.x` is `>=1.0.0-0 <2.0.0-0`), and an x in a prerelease is none.

Source: blang/semver v4.0.0, k14s/semver v4.0.1 and carvel-dev/semver v4.0.1, range.go and semver.go.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

from pvbus.core.platform.solver.semver import (
    DIGITS,
    GO_SPACE,
    IDENTIFIER,
    INT64_MAX,
    ConstraintError,
    Key,
    Version,
    VersionError,
    key_of,
    uint64,
)

_COMPARISONS: dict[str, Callable[[Key, Key], bool]] = {
    "": operator.eq,
    "=": operator.eq,
    "==": operator.eq,
    "!": operator.ne,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

_WILDCARDS: dict[str, tuple[str, str, bool]] = {
    ">": ("", ">=", True),
    ">=": ("", ">=", False),
    "<": ("", "<", False),
    "<=": ("", "<", True),
    "": (">=", "<", True),
    "=": (">=", "<", True),
    "==": (">=", "<", True),
    "!=": ("<", ">=", True),
    "!": ("<", ">=", True),
}
"""Operator of a wildcard -> operator of its first term ("" for none), of its last, and whether that is
incremented.
"""


class Dialect(NamedTuple):
    """How a fork differs from the library.

    orders_build: whether build metadata takes part in the order of versions
    suffix: what the bounds of a wildcard end with
    """

    orders_build: bool = False
    suffix: str = ""


BLANG = Dialect()
K14S = Dialect(orders_build=True)
CARVEL = Dialect(orders_build=True, suffix="-0")


class Range(NamedTuple):
    """Alternatives, each of comparisons that hold together."""

    text: str
    alternatives: tuple[tuple[tuple[str, Key], ...], ...]

    def matches(self, version: Version) -> bool:
        key = version.key
        return any(
            all(_COMPARISONS[comparison](key, bound) for comparison, bound in terms)
            for terms in self.alternatives
        )


def parse_version(text: str, dialect: Dialect = BLANG) -> Version:
    """Read a version of exactly three numbers. Raises VersionError."""
    numbers = text.split(".", 2)
    if len(numbers) != 3:
        raise VersionError(f'"{text}" has not the form major.minor.patch')
    rest, _, build_text = numbers[2].partition("+")
    patch_text, _, pre_text = rest.partition("-")
    major, minor, patch = (_number(text, number) for number in (numbers[0], numbers[1], patch_text))
    pre = tuple(pre_text.split(".")) if "-" in rest else ()
    build = tuple(build_text.split(".")) if "+" in numbers[2] else ()
    for part in pre:
        _check_identifier(text, part, is_number=DIGITS.issuperset(part))
        if len(part) > 1 and part[0] == "0" and DIGITS.issuperset(part):
            raise VersionError(f'"{text}": the prerelease number "{part}" begins with 0')
    for part in build:
        _check_identifier(text, part, is_number=dialect.orders_build and DIGITS.issuperset(part))
    key = key_of((major, minor, patch), pre, build if dialect.orders_build else ())
    return Version(text, major, minor, patch, pre, build, key)


def _number(text: str, digits: str) -> int:
    if len(digits) > 1 and digits[0] == "0":
        raise VersionError(f'"{text}": the number "{digits}" begins with 0')
    number = uint64(digits)
    if number is None:
        raise VersionError(f'"{text}": "{digits}" is no number of at most 64 bits')
    return number


def _check_identifier(text: str, part: str, *, is_number: bool) -> None:
    if not part or not IDENTIFIER.issuperset(part):
        raise VersionError(f'"{text}": "{part}" is no identifier')
    if is_number and uint64(part) is None:
        raise VersionError(f'"{text}": "{part}" is no number of at most 64 bits')


def parse_range(text: str, dialect: Dialect = BLANG) -> Range:
    """Read a range. Raises ConstraintError."""
    alternatives = []
    for words in _alternatives(_words(text)):
        terms = [term for word in words for term in _without_wildcard(word, dialect)]
        if not terms:
            raise ConstraintError(f'"{text}": an alternative is empty')
        alternatives.append(tuple(_comparison(term, dialect) for term in terms))
    return Range(text, tuple(alternatives))


def _words(text: str) -> list[str]:
    """Split at spaces that follow no operator; a word of one byte is dropped."""
    data = text.encode(errors="surrogatepass")
    words, last, before = [], 0, 0
    for index, byte in enumerate(data):
        if byte == 0x20 and before not in b"<=>":
            if last < index - 1:
                words.append(data[last:index])
            last = index + 1
        elif byte != 0x20:
            before = byte
    if last < len(data) - 1:
        words.append(data[last:])
    return [word.replace(b" ", b"").decode(errors="surrogatepass") for word in words]


def _alternatives(words: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for index, word in enumerate(words):
        if word != "||":
            found[-1].append(word)
        elif index == 0:
            raise ConstraintError("the range begins with ||")
        else:
            found.append([])
    if not words or words[-1] == "||":
        raise ConstraintError("the range ends with ||, or is empty")
    return found


def _split(word: str) -> tuple[str, str]:
    """Split an operator from its version, which begins at the first digit of any script."""
    at = next((index for index, char in enumerate(word) if char.isdecimal()), None)
    if at is None:
        raise ConstraintError(f'"{word}" has no version')
    return word[:at].strip(GO_SPACE), word[at:]


def _without_wildcard(word: str, dialect: Dialect) -> list[str]:
    if not _has_wildcard(word, dialect):
        return [word]
    sign, version = _split(word)
    flat = version.replace(".x.x", ".x", 1).replace(".x", ".0", 1)
    if flat.count(".") == 1:
        flat += ".0"
    flat += dialect.suffix
    first, last, increments = _WILDCARDS.get(sign, ("", "", False))
    parts = version.split(".")
    bound = flat
    if increments:
        position = {2: 0, 3: 1}.get(len(parts)) if parts[-1] == "x" else None
        bound = "" if position is None else _incremented(flat, position)
    return [*([first + flat] if first else []), last + bound]


def _has_wildcard(word: str, dialect: Dialect) -> bool:
    if not dialect.suffix:
        return "x" in word
    _split(word)
    return ".x" in word.partition("+")[0].partition("-")[0]


def _incremented(version: str, position: int) -> str:
    parts = version.split(".")
    digits = parts[position].removeprefix("-" if parts[position].startswith("-") else "+")
    number = uint64(digits)
    if number is None or number >= INT64_MAX:
        return ""
    parts[position] = str((-number if parts[position].startswith("-") else number) + 1)
    return ".".join(parts)


def _comparison(term: str, dialect: Dialect) -> tuple[str, Key]:
    sign, version = _split(term)
    if sign not in _COMPARISONS:
        raise ConstraintError(f'"{term}": "{sign}" is no operator')
    try:
        return sign, parse_version(version, dialect).key
    except VersionError as exc:
        raise ConstraintError(f'"{term}": {exc}') from exc
