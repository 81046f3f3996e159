"""The text of one YAML document: parses its values and nodes, and edits new values into it."""

from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

import yaml

from pvbus.controlplane.packages.alike import AlikeTexts
from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.functions.limits import check_time
from pvbus.core.yaml import positions
from pvbus.core.yaml.editor import Document, YamlError, assign, delete, edited, get, insert, parse, same

REMEMBERED_CHARACTERS_MAX = 100_000
"""Longest text in the cache of graphs; a graph takes a hundred times the memory of its text."""

REMEMBERED_EDIT_CHARACTERS_MAX = 16_000
"""The largest text with its new value whose edit is remembered: most files of a fleet's packages are equal,
and so is what a pipeline makes of them."""

REMEMBERED_EDITS_BYTES_MAX = 8 << 20
"""Of the results; with their keys, the texts and values, all together take three times as much."""

COMPARISONS_MAX = 250_000
"""Pairs of elements that are compared to keep a list's unchanged elements: some 0.1 s. Larger differences
rewrite the whole list."""

_edits: SizedCache[tuple[str, str], str] = SizedCache(REMEMBERED_EDITS_BYTES_MAX, len)
_alike = AlikeTexts(REMEMBERED_EDITS_BYTES_MAX)

Path = tuple[str | int, ...]
"""Keys of maps and indices of lists, from the root of a document."""


def load(text: str) -> Any:
    """Return the value of a text of one document. Raises: YamlError."""
    documents = parse(text)
    return documents[0].value if documents else None


def compose(text: str) -> yaml.Node | None:
    """Return the node graph of a text of one document that `load` accepts; marks count its characters.

    The graph is shared: do not change it. Its tags say nothing about values.
    """
    return _composed_before(text) if len(text) <= REMEMBERED_CHARACTERS_MAX else _composed(text)


# The same text is composed a few times in a row; graphs are large, so few are cached.
@lru_cache(maxsize=8)
def _composed_before(text: str) -> yaml.Node | None:
    return _composed(text)


def _composed(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = positions.compose(text)
    except positions.UnknownLayoutError as exc:
        raise YamlError(f"yaml: {exc.__cause__}") from exc
    return node


def with_value(text: str, old: Any, new: Any) -> str:
    """Return the text, whose value is `old`, edited to the value `new`: it changes only where they differ.

    Equal elements of a list keep their text, even if others were added or removed between them.
    """
    key = (text, repr(new))  # has what decides on the spelling: types, signs, the order of keys
    if len(text) + len(key[1]) > REMEMBERED_EDIT_CHARACTERS_MAX:
        return edited_value(text, old, new)
    return _edits.get(key, lambda: _with_value_alike(key, old, new))


def _with_value_alike(key: tuple[str, str], old: Any, new: Any) -> str:
    """Edit a text as another one of an equal object with another name was."""
    (made,) = _alike.get(key, name_in(new), lambda: (edited_value(key[0], old, new),))
    return made


def name_in(value: Any) -> str:
    """Return the name by which objects of a fleet differ: their own, of a package context the package's."""
    for path in (("data", "name"), ("metadata", "name")):
        if isinstance(name := get(value, path), str):
            return name
    return ""


def edited_value(text: str, old: Any, new: Any) -> str:
    """Edit a text as `with_value` does, without looking at what is remembered."""
    return edited(Document(text, old), lambda document: _merged(document, (), new)).text


def _merged(document: Document, path: Path, new: Any) -> Document:
    check_time()
    old = get(document.value, path)
    if old and new and isinstance(old, dict) and isinstance(new, dict):
        for key in [key for key in old if key not in new]:
            document = delete(document, (*path, key))
        for key, value in new.items():
            if key in old:
                document = _merged(document, (*path, key), value)
            else:
                document = assign(document, (*path, key), value)
        return document
    if old and new and isinstance(old, list) and isinstance(new, list):
        return _merged_list(document, path, old, new)
    return document if same(old, new) else assign(document, path, new)


def _common(one: list[str], other: list[str]) -> int:
    """Return the length of the common prefix of two lists."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _merged_list(document: Document, path: Path, old: list[Any], new: list[Any]) -> Document:
    """Edit a list into another one.

    The common beginning and end stay. Between them a difference of the two lists says which elements are
    equal; of each other block, elements are changed pair by pair, and the rest is deleted or inserted. The
    blocks are edited from the end of the list, so that the indices of the remaining edits stay valid.
    """
    one, other = [repr(each) for each in old], [repr(each) for each in new]
    head = _common(one, other)
    tail = _common(one[head:][::-1], other[head:][::-1])
    one, other = one[head : len(one) - tail], other[head : len(other) - tail]
    if len(one) * len(other) > COMPARISONS_MAX:
        return assign(document, path, new)
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for tag, *bounds in reversed(matcher.get_opcodes()):
        old_start, old_end, new_start, new_end = (bound + head for bound in bounds)
        if tag == "equal":
            continue
        paired = min(old_end - old_start, new_end - new_start)
        for index in range(old_end - 1, old_start + paired - 1, -1):
            document = delete(document, (*path, index))
        for offset in range(paired, new_end - new_start):
            document = insert(document, path, old_start + offset, new[new_start + offset])
        for offset in range(paired):
            document = _merged(document, (*path, old_start + offset), new[new_start + offset])
    return document
