"""Reads texts that are equal but for names, as most texts of a fleet are, by reading two of them.

A name here is of two or more words of lower case letters and digits, joined by hyphens, that begins with two
characters, the first a letter: no number, date, word or indicator of YAML is such a name, or has a part of
one in it. So a reader does not tell two such names of one shape (letters, digits and hyphens at the same
positions) apart, and texts that are equal but for a renaming of them, which maps different names to different
ones, have values that are equal but for it. Escape sequences are the exception, so a text with a backslash
is read.

That is not taken on trust either: the second text is read, too, and only if its value is that of the first
one, renamed, the values of others are made without reading them.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from string import ascii_lowercase, digits
from typing import Any, Literal

import msgspec

NAME = re.compile(r"[a-z][a-z0-9]+(?:-[a-z0-9]+)+")
MARK = "\x01"
"""Before and after the number of a name. No YAML text has it, and JSON escapes it."""
SHAPES = str.maketrans(ascii_lowercase + digits, "a" * 26 + "0" * 10)
REMEMBERED_MAX = 500
"""Templates: of 4,000 characters at most, they take some 6 MB."""

_MARKED = re.compile(rb"\\u0001([0-9]+)\\u0001")
Same = Callable[[Any, Any], bool]


def shape_of(name: str) -> str:
    """Return a name with one letter for all, and one digit."""
    return name.translate(SHAPES)


class _Template(msgspec.Struct):
    """A value without its names: pieces of JSON, and between them the numbers of names.

    standing: how many texts have been read, or that their values are not alike
    """

    pieces: tuple[bytes, ...] = ()
    numbers: tuple[int, ...] = ()
    standing: Literal["none", "one", "equal", "different"] = "none"

    def value_with(self, names: list[bytes]) -> Any:
        parts = [self.pieces[0]]
        for number, piece in zip(self.numbers, self.pieces[1:], strict=True):
            parts += (names[number], piece)
        return msgspec.json.decode(b"".join(parts))


@lru_cache(REMEMBERED_MAX)
def _template(_text: str, _shapes: str) -> _Template:
    return _Template()


def read_alike(text: str, read: Callable[[str], Any], same: Same) -> Any:
    """Return the value of a text: read it, or make it of that of a text that is equal but for names.

    same: compares two values strictly
    Raises: what `read` raises.
    """
    if "\\" in text or MARK in text:
        return read(text)
    numbers: dict[str, int] = {}
    marked = NAME.sub(lambda match: f"{MARK}{numbers.setdefault(match[0], len(numbers))}{MARK}", text)
    if not numbers:
        return read(text)
    template = _template(marked, "\n".join(numbers).translate(SHAPES))
    if template.standing == "equal":
        return template.value_with([name.encode() for name in numbers])
    value = read(text)
    if template.standing == "none":
        template.standing = _learn(template, value, numbers, same)
    elif template.standing == "one":
        is_equal = same(template.value_with([name.encode() for name in numbers]), value)
        template.standing = "equal" if is_equal else "different"
    return value


def _learn(
    template: _Template, value: Any, numbers: dict[str, int], same: Same
) -> Literal["one", "different"]:
    """Note the value of a text without its names; what JSON cannot say is not made of others."""
    try:
        marked = msgspec.json.encode(_marked(value, numbers))
    except (TypeError, ValueError, KeyError, msgspec.MsgspecError):
        return "different"
    pieces = _MARKED.split(marked)
    template.pieces, template.numbers = tuple(pieces[::2]), tuple(map(int, pieces[1::2]))
    made = template.value_with([name.encode() for name in numbers])
    return "one" if same(made, value) else "different"


def _marked(value: Any, numbers: dict[str, int]) -> Any:
    """Return a value with numbers in place of names. Raises KeyError: a name that the text has not."""
    if isinstance(value, str):
        return NAME.sub(lambda match: f"{MARK}{numbers[match[0]]}{MARK}", value)
    if isinstance(value, dict):
        return {_marked(key, numbers): _marked(item, numbers) for key, item in value.items()}
    return [_marked(item, numbers) for item in value] if isinstance(value, list) else value
