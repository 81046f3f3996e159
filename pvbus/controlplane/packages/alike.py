"""Remembers what edits make of texts that are equal but for one name, as most texts of a fleet are.

An edit looks at the structure of a YAML text, and copies what names it has. Names of one shape (letters,
digits and hyphens at the same positions) are equal to it: all are plain scalars of one length, which no other
scalar can be taken for. So texts that differ in such a name alone become texts that differ in it alone. That
is not taken on trust: the texts of the second name are made, too, and only if they are those of the first
one, renamed, they are remembered for others.

What is remembered must be made of its parts alone, by functions that do not ask what a name is: by edits, not
by the functions of a pipeline.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from pvbus.controlplane.packages.caching import SizedCache
from pvbus.core.yaml.alike import NAME, shape_of

Texts = tuple[str, ...]
STAND_IN = "\0"
"""Stands for the name. No YAML text has it."""
OVERHEAD_BYTES = 300


class _Entry(msgspec.Struct):
    """texts: with STAND_IN. standing: whether the texts of a second name were equal"""

    texts: Texts
    name: str
    standing: Literal["one", "equal", "different"] = "one"


class AlikeTexts:
    """A cache of what edits make. Thread-safe: at worst an edit is made more than once."""

    def __init__(self, bytes_max: int) -> None:
        """bytes_max: of the texts that are remembered; with their keys they take three times as much."""
        self._entries: SizedCache[tuple[str, ...], _Entry] = SizedCache(bytes_max, _size_of)
        self.made = 0

    def get(self, parts: Sequence[str], name: str, make: Callable[[], Texts]) -> Texts:
        """Return the texts of some parts with a name in them.

        parts: all that the texts are made of
        """
        if not NAME.fullmatch(name) or any(STAND_IN in part for part in parts):
            return self._make(make)
        key = (shape_of(name), *(part.replace(name, STAND_IN) for part in parts))
        entry = self._entries.find(key)
        if entry is not None and entry.standing == "equal":
            return tuple(text.replace(STAND_IN, name) for text in entry.texts)
        texts = self._make(make)
        if entry is None:
            renamed = tuple(text.replace(name, STAND_IN) for text in texts)
            self._entries.get(key, lambda: _Entry(renamed, name))
        elif name != entry.name:
            is_equal = tuple(text.replace(STAND_IN, name) for text in entry.texts) == texts
            entry.standing = "equal" if is_equal and entry.standing == "one" else "different"
        return texts

    def _make(self, make: Callable[[], Texts]) -> Texts:
        self.made += 1
        return make()


def _size_of(entry: _Entry) -> int:
    return sum(map(len, entry.texts)) + OVERHEAD_BYTES
