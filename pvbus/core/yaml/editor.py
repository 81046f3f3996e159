"""Lossless YAML editing: the text outside an edit stays unchanged, byte for byte.

A text is split into documents; a document is its piece of text and its plain value. An edit locates
the text by the positions of the parsed nodes, changes only those characters, and reads the result
again: unless it has exactly the requested value, the document is rewritten, with its comments beside
their fields. (`edited` makes several edits, and reads their result once.) So a value is never lost,
whatever the text looks like; at worst its layout is.

Values are plain trees: anchors, aliases and merge keys are resolved when reading, and an edit
through an alias changes that field only. The values are those of `reader`, with scalars as kpt's Go tools
read them: `yes` and `on` are strings, and so are dates. Positions are those of PyYAML's nodes.
"""

import json
import re
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from pvbus.core.yaml.alike import read_alike
from pvbus.core.yaml.positions import Path, Positions, UnknownLayoutError, rewritten
from pvbus.core.yaml.rawtext import no_text
from pvbus.core.yaml.reader import Limits, YamlError, document
from pvbus.core.yaml.scalars import KPT
from pvbus.core.yaml.writer import as_json

__all__ = [
    "Document",
    "Path",
    "YamlError",
    "append",
    "assign",
    "comments",
    "delete",
    "edited",
    "get",
    "insert",
    "join",
    "parse",
    "replaced",
    "same",
    "values",
    "with_comment",
]

DEPTH_MAX = 100
"""Limit of nesting, so that no recursion here reaches Python's own limit (1000 frames, up to four of
them per level). CustomResourceDefinitions reach about 50."""

LIMITS = Limits(bytes_max=32 << 20, depth_max=DEPTH_MAX, nodes_max=1_000_000)
"""Of one document. The largest CustomResourceDefinitions have some 20,000 nodes."""

DOCUMENTS_MAX = 5_000
"""Limit of documents in one text: each takes 0.2 ms or more to read."""

REMEMBERED_MAX = 1_000
REMEMBERED_CHARACTERS_MAX = 4_000
"""Documents whose values are remembered, and their largest size. The steps from a draft's files to its commit
read most of them again and again, at 1 ms for 1,000 characters. All together take 40 MB at most."""

_BREAK = re.compile(r"(?m)^(?:---|\.\.\.)(?=[ \t\r\n]|\Z)")


class Document(NamedTuple):
    """One document: its text, with the `---` before it and comments around it, and its value."""

    text: str
    value: Any


class _Unread(Document):
    """A document in the middle of several edits: its text was not read since the first one."""


# ---------------------------------------------------------------- reading


def parse(text: str) -> tuple[Document, ...]:
    """Split a text into documents; `join` restores the text. Raises YamlError."""
    if problem := no_text(text):
        raise YamlError(f"yaml: {problem}")
    documents = []
    line = 0
    pieces = _pieces(text)
    if len(pieces) > DOCUMENTS_MAX:
        raise YamlError(f"yaml: {len(pieces)} documents in one text, at most {DOCUMENTS_MAX} are allowed")
    for piece in pieces:
        documents.append(Document(piece, _load(piece, line)))
        line += piece.count("\n")
    return tuple(documents)


def values(text: str) -> list[Any]:
    """Return the plain values of all documents that hold something."""
    return [document.value for document in parse(text) if document.value is not None]


def join(documents: tuple[Document, ...]) -> str:
    """Return the text of a whole file."""
    return "".join(document.text for document in documents)


def _pieces(text: str) -> list[str]:
    """Cut before each `---` that follows a document and after each `...`."""
    cuts = [0]
    begun = False  # whether the piece that grows already holds its `---` or some content
    end = 0
    for match in _BREAK.finditer(text):
        begun = begun or _has_content(text[end : match.start()])
        if match[0] == "---":
            if begun:
                cuts.append(match.start())
            begun = True
            end = match.end()
        else:
            newline = text.find("\n", match.end())
            end = len(text) if newline < 0 else newline + 1
            cuts.append(end)
            begun = False
    pieces = [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]
    if len(pieces) > 1 and not begun and not _has_content(text[end:]):
        pieces[-2:] = [pieces[-2] + pieces[-1]]
    return pieces


def _has_content(text: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith(("#", "%")) for line in text.split("\n"))


def _load(text: str, line: int = 0) -> Any:
    """Return the value of one document, a copy of the caller's own. line: where the document begins."""
    return msgspec.to_builtins(_read(text, line))


def _holds(text: str, value: Any) -> bool:
    """Tell whether a text has just this value. Raises YamlError."""
    return same(_read(text), value)


def _read(text: str, line: int = 0) -> Any:
    if len(text) <= REMEMBERED_CHARACTERS_MAX:
        with suppress(YamlError) if line else nullcontext():  # then it is read again, for the right line
            return _constructed(text)
    return _construct(text, line)


def _construct(text: str, line: int = 0) -> Any:
    try:
        return document(text, LIMITS, KPT, line=line + 1).value
    except YamlError as error:
        raise YamlError(f"yaml: {error}") from error


@lru_cache(REMEMBERED_MAX)
def _constructed(text: str) -> Any:
    """Return a value that nobody outside may get, only a copy of it."""
    return read_alike(text, _construct, same)


def same(one: Any, other: Any) -> bool:
    """Compare two plain values strictly: true is not 1, 1 is not 1.0; the order of keys does not matter."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


# ---------------------------------------------------------------- editing


def get(value: Any, path: Path) -> Any:
    """Return the value at a path of a plain value, None if there is none."""
    for step in path:
        if not _has(value, step):
            return None
        value = value[step]
    return value


def edited(document: Document, change: Callable[[Document], Document]) -> Document:
    """Apply a change made of several edits, and read the resulting text once for all of them.

    change: calls the other functions of this module, twice where the text has not the wanted value.
    Raises: what `change` raises.
    """
    if isinstance(document, _Unread):
        return change(document)
    try:
        found = change(_Unread(*document))
        if found.text == document.text or _holds(found.text, found.value):
            return Document(*found)
    except (UnknownLayoutError, ValueError, LookupError, TypeError, AttributeError):
        pass
    return change(document)


def assign(document: Document, path: Path, value: Any) -> Document:
    """Set the value at a path, and create the mappings that lead to it.

    A mapping that replaces a mapping is applied key by key, so that equal fields keep their text.
    Raises YamlError if a scalar or a missing element is in the way.
    """
    old = get(document.value, path)
    if same(old, value) and (old is not None or _exists(document.value, path)):
        return document
    if isinstance(old, dict) and old and isinstance(value, dict) and value:
        if (scalars := _with_scalars(document, path, old, value)) is not None:
            return scalars
        return edited(document, lambda first: _with_keys(first, path, old, value))
    while path and get(document.value, path[:-1]) is None:
        path, value = path[:-1], {path[-1]: value}
    return _edited(document, path, value, "add" if path and not _exists(document.value, path) else "replace")


def _with_keys(document: Document, path: Path, old: dict[Any, Any], new: dict[Any, Any]) -> Document:
    for key, item in new.items():
        document = assign(document, (*path, key), item)
    for key in old.keys() - new.keys():
        document = delete(document, (*path, key))
    return document


def _with_scalars(document: Document, path: Path, old: Any, new: Any) -> Document | None:
    """Replace all scalars that differ at once; None if more differs, or a layout is unusual."""
    changes = _scalar_changes(old, new, path)
    if changes is None or len(changes) < 2:
        return None
    bom = "\ufeff" if document.text.startswith("\ufeff") else ""
    wanted = replaced(document.value, path, new)
    try:
        text = Positions(document.text.removeprefix(bom)).replace_scalars(changes)
        return _made(document, bom + text, wanted) if _is_made(document, text, wanted) else None
    except (UnknownLayoutError, YamlError, KeyError):
        return None


def _scalar_changes(old: Any, new: Any, path: Path) -> dict[Path, Any] | None:
    """Return the scalars that differ, by path; None if the mappings around them differ, too."""
    if same(old, new):
        return {}
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None if isinstance(old, dict | list) or isinstance(new, dict | list) else {path: new}
    if old.keys() != new.keys():
        return None
    found: dict[Path, Any] = {}
    for key, item in new.items():
        below = _scalar_changes(old[key], item, (*path, key))
        if below is None:
            return None
        found |= below
    return found


def insert(document: Document, path: Path, index: int, value: Any) -> Document:
    """Insert an element into the sequence at a path, before `index`; a missing sequence is created."""
    old = get(document.value, path) or []
    if not isinstance(old, list):
        raise YamlError(f"{_dotted(path)} is no sequence")
    items = [*old[:index], value, *old[index:]]
    if not old:
        return assign(document, path, items)
    return _edited(document, path, items, "insert", (path, min(index, len(old)), value))


def append(document: Document, path: Path, value: Any) -> Document:
    """Add an element at the end of the sequence at a path; a missing sequence is created."""
    return insert(document, path, len(get(document.value, path) or ()), value)


def delete(document: Document, path: Path) -> Document:
    """Delete the value at a path, if there is one; an emptied collection stays, as {} or []."""
    if not path or not _exists(document.value, path):
        return document
    parent = get(document.value, path[:-1])
    rest = parent.copy()
    del rest[path[-1]]
    if not rest:
        return _edited(document, path[:-1], rest, "replace")
    return _edited(document, path[:-1], rest, "delete", (path,))


def comments(document: Document) -> dict[Path, str]:
    """Return the trailing comments of keys, values and elements, by path."""
    try:
        return dict(Positions(document.text.removeprefix("\ufeff")).comments())
    except UnknownLayoutError:
        return {}


def with_comment(document: Document, path: Path, comment: str) -> Document:
    """Add a trailing comment at a path; return the same document if there is no room for one."""
    bom = "\ufeff" if document.text.startswith("\ufeff") else ""
    try:
        text = bom + Positions(document.text.removeprefix(bom)).comment(path, comment)
        commented = Document(text, document.value)
        if _holds(text, document.value) and comments(commented).get(path) == comment:
            return commented
    except (UnknownLayoutError, YamlError, KeyError, IndexError):
        pass
    return document


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and 0 <= step < len(value)
    return isinstance(value, dict) and step in value


def _exists(value: Any, path: Path) -> bool:
    return value is not None if not path else _has(get(value, path[:-1]), path[-1])


def replaced(value: Any, path: Path, new: Any) -> Any:
    """Return a plain value with another one at a path. Only the containers on the path are copied; missing
    mappings are created. Raises YamlError if a scalar or a missing element is in the way."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(value, dict | None):
        return {**(value or {}), step: replaced((value or {}).get(step), rest, new)}
    if isinstance(value, list) and isinstance(step, int) and _has(value, step):
        return [*value[:step], replaced(value[step], rest, new), *value[step + 1 :]]
    raise YamlError(f"{_dotted(path)} cannot be set: there is no mapping that could hold it")


def _dotted(path: Path) -> str:
    return ".".join(map(str, path)) or "the document"


def _edited(document: Document, path: Path, value: Any, edit: str, args: tuple[Any, ...] = ()) -> Document:
    """Set the value at a path, by an edit of the text or by rewriting the document."""
    wanted = replaced(document.value, path, value)
    bom = "\ufeff" if document.text.startswith("\ufeff") else ""
    source = document.text.removeprefix(bom)
    if (text := _as_json(source, wanted)) is not None:
        return _made(document, bom + text, wanted)
    try:
        positions = Positions(source)
        outer = positions.outermost_flow(path)
        if outer is not None:
            text = positions.replace(outer, get(wanted, outer))
        else:
            text = getattr(positions, edit)(*(args or (path, value)))
        if _is_made(document, text, wanted):
            return _made(document, bom + text, wanted)
    except (UnknownLayoutError, YamlError, KeyError):
        pass
    try:
        text = rewritten(source, wanted)
        if _holds(text, wanted):
            return _made(document, bom + text, wanted)
    except UnknownLayoutError:
        pass
    raise YamlError(f"{_dotted(path)} cannot be set: the value cannot be written as YAML")


def _is_made(document: Document, text: str, wanted: Any) -> bool:
    """Tell whether an edit succeeded; amid several edits, the last one is followed by that question."""
    return isinstance(document, _Unread) or _holds(text, wanted)


def _made(document: Document, text: str, value: Any) -> Document:
    return type(document)(text, value)


def _as_json(text: str, value: Any) -> str | None:
    """Return JSON with the indentation of the text; None if the text is not JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except ValueError:
        return None
    found = re.search(r"\n([ \t]+)\S", text)
    compact = None if found or ": " in text else (",", ":")
    new = as_json(value, indent=found[1] if found else None, separators=compact)
    return new + text[len(text.rstrip()) :]
