"""Limits the length of messages for users: of conditions, and of lists of names in them."""

from collections.abc import Sequence

MESSAGE_CHARACTERS_MAX = 32_000
"""The CRDs allow 32,768; a status with a longer message is refused as a whole. The rest is for the note on
the omitted part."""

PART_CHARACTERS_MAX = 400  # of one part of a message: three of them stay readable
SEPARATOR = "; "


def cut(message: str, characters_max: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Shorten a message that is too long, and note how much is missing.

    A list of problems joined by "; " ends after a whole one, with the number of the others.
    """
    if len(message) <= characters_max:
        return message
    end = message.rfind(SEPARATOR, 0, characters_max)
    if end > 0:
        more = message.count(SEPARATOR, end)
        return f"{message[:end]} (and {more} more)"
    return f"{message[:characters_max]}... (and {len(message) - characters_max} more characters)"


def part(text: str, characters_max: int = PART_CHARACTERS_MAX) -> str:
    """Shorten one part of a message."""
    return text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."


def first_of(names: Sequence[str], shown_max: int, *, total: int | None = None) -> str:
    """List the first names and count the others. total: number of all names, if `names` is incomplete."""
    shown = ", ".join(names[:shown_max])
    hidden = (len(names) if total is None else total) - min(len(names), shown_max)
    return f"{shown} and {hidden} more" if hidden > 0 else shown
