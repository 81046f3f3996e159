"""One object of a package, as text and as values, and the output of a function.

An item keeps its source text. Functions that compute values return new values, and the difference is
edited into the text; functions that care about spelling (a scalar's quotes, the comment after it)
replace scalars in the text. Both ways parse the result and compare it with the intended value: if a
replaced scalar would change anything else, the values take precedence over the spelling.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages.functions.limits import check_growth, check_length, check_time, check_value
from pvbus.controlplane.packages.functions.yamltext import Path, compose, load, with_value
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import YamlError, same

LOCAL_CONFIG = "config.kubernetes.io/local-config"

Value = dict[str, Any]

_LINE_COMMENT = re.compile(r"[ \t]+(#[^\r\n]*)")
_ABSENT = object()

REMEMBERED_CHARACTERS_MAX = 200
"""Longest scalar in the cache of plain scalars: names and numbers repeat, long texts do not."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One object: never changed in place, `value` included.

    package, file: the directory of its Kptfile and its file, both relative to the root of the rendered
    package; with an empty file the renderer chooses one. index: its position in the file, -1 if not
    chosen. id: set by the renderer, None on items that a function created.
    """

    text: str
    value: Value
    package: str = ""
    file: str = ""
    index: int = -1
    id: int | None = None

    @property
    def api_version(self) -> str:
        return text_of(self.value.get("apiVersion"))

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def kind(self) -> str:
        return text_of(self.value.get("kind"))

    @property
    def name(self) -> str:
        return text_of(lookup(self.value, ("metadata", "name")))

    @property
    def namespace(self) -> str:
        return text_of(lookup(self.value, ("metadata", "namespace")))

    @property
    def labels(self) -> dict[str, str]:
        return _texts(lookup(self.value, ("metadata", "labels")))

    @property
    def annotations(self) -> dict[str, str]:
        return _texts(lookup(self.value, ("metadata", "annotations")))

    @property
    def is_local_config(self) -> bool:
        """Whether the object is for the package itself, not for a cluster."""
        return self.annotations.get(LOCAL_CONFIG, "false") != "false"

    def __str__(self) -> str:
        scope = f"{self.namespace}/" if self.namespace else ""
        return f"{self.api_version} {self.kind} {scope}{self.name}"

    def with_value(self, value: Value) -> "Item":
        """Return the item with other values; text changes only where values differ."""
        if same(value, self.value):
            return self
        check_time()
        check_value(value)
        if self.file.endswith(".json"):
            text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        else:
            text = with_value(self.text, self.value, value)
        check_growth(len(self.text), len(text))
        return msgspec.structs.replace(self, text=text, value=value)

    def with_scalars(self, changes: Sequence[tuple[Path, "Scalar"]]) -> "Item":
        """Return the item after `with_scalar` for each change.

        The paths are in the order of the text. If possible, all are replaced at once, so that the document
        is parsed once and not once per change.
        """
        meant: Any = self.value
        root = None if self.file.endswith(".json") else compose(self.text)
        pieces: list[str] = []
        end = length = len(self.text)
        nodes = index_nodes(root) if len(changes) > 1 else {}
        for path, scalar in reversed(changes):
            node = nodes.get(path)
            if not isinstance(node, yaml.ScalarNode) or node.style in ("|", ">") or scalar.comment:
                break
            meant = replaced(meant, path, scalar.value)
            start = node.start_mark.index
            if node.end_mark.index > end:
                break  # an alias: its text was replaced already
            pieces.append(self.text[node.end_mark.index : end])
            pieces.append(_placed(self.text, start, scalar.written()))
            length += len(scalar.text)
            check_length(length)
            end = start
        else:
            text = self.text[:end] + "".join(reversed(pieces))
            check_growth(len(self.text), len(text))
            if changes and _reads_as(text, meant):
                return msgspec.structs.replace(self, text=text, value=meant)
        item = self
        for path, scalar in changes:
            item = item.with_scalar(path, scalar)
        return item

    def with_scalar(self, path: Path, scalar: "Scalar") -> "Item":
        """Return the item with the scalar at `path` written as given, with its quotes and comment.

        A scalar without a comment keeps the present comment.
        """
        check_time()
        meant = replaced(self.value, path, scalar.value)
        node = None if self.file.endswith(".json") else find(compose(self.text), path)
        if isinstance(node, yaml.ScalarNode) and node.style not in ("|", ">"):
            text = _spliced(self.text, node, scalar)
            check_growth(len(self.text), len(text))
            if _reads_as(text, meant):
                return msgspec.structs.replace(self, text=text, value=meant)
        return self.with_value(meant)


class Scalar(NamedTuple):
    """A scalar with its spelling. text: content without quotes; style: YAML's indicator, '' for plain."""

    text: str
    style: str = ""
    is_string: bool = True
    comment: str = ""

    @property
    def value(self) -> Any:
        """The parsed value: untyped plain scalars are resolved."""
        return self.text if self.style or self.is_string or not _is_plain(self.text) else load(self.text)

    def written(self) -> str:
        """Return the scalar's text inside a line; quoted if the plain text had another meaning."""
        if self.style == "'" and "\n" not in self.text:
            return "'" + self.text.replace("'", "''") + "'"
        if self.style != '"' and _is_plain(self.text) and (not self.is_string or _is_text(self.text)):
            return self.text
        return json.dumps(self.text, ensure_ascii=not self.text.isprintable())


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One result of a function, in the form of the ResourceList protocol."""

    message: str
    severity: str = "info"
    resource_ref: Mapping[str, Any] = {}
    field: Mapping[str, Any] = {}
    file: Mapping[str, Any] = {}


class FunctionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a function. With an error, the items are the input's and are not used."""

    items: tuple[Item, ...]
    results: tuple[Result, ...] = ()
    error: str | None = None


def find(node: yaml.Node | None, path: Path) -> yaml.Node | None:
    """Return the node at a path, None if there is none."""
    for part in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        else:
            return None
    return node


def index_nodes(node: yaml.Node | None) -> dict[Path, yaml.ScalarNode]:
    """Return the scalars below a node by path; for duplicate keys the first one, like `find`."""
    found: dict[Path, yaml.ScalarNode] = {}
    for path, scalar in scalars(node):
        found.setdefault(path, scalar)
    return found


def scalar_at(item: Item, path: Path) -> Scalar | None:
    """Return the scalar at a path with its spelling, None if there is another kind of node."""
    node = find(compose(item.text), path)
    if not isinstance(node, yaml.ScalarNode):
        return None
    style = node.style or ""
    return Scalar(
        node.value, style, bool(style) or isinstance(load(node.value), str), line_comment(item.text, node)
    )


def line_comment(text: str, node: yaml.Node) -> str:
    """Return the comment after a node on its last line, '' if there is none."""
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return ""
    match = _LINE_COMMENT.match(text, node.end_mark.index)
    return match[1].rstrip() if match else ""


def scalars(node: yaml.Node | None, path: Path = ()) -> Iterator[tuple[Path, yaml.ScalarNode]]:
    """Yield every scalar value (not key) below a node with its path, in the order of the text."""
    if isinstance(node, yaml.ScalarNode):
        yield path, node
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield from scalars(child, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            yield from scalars(child, (*path, key.value))


def lookup(value: Any, path: Path, default: Any = None) -> Any:
    """Return the value at a path, `default` if there is none."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part, _ABSENT)
        elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
            value = value[part]
        else:
            return default
        if value is _ABSENT:
            return default
    return value


def replaced(value: Any, path: Path, new: Any) -> Any:
    """Return `value` with `new` at a path; only the path is copied, missing maps are created."""
    if not path:
        return new
    part, rest = path[0], path[1:]
    if isinstance(part, int) and isinstance(value, list):
        return [*value[:part], replaced(value[part], rest, new), *value[part + 1 :]]
    if value is not None and not isinstance(value, dict):
        raise PermanentError(f"cannot set {part!r}: its parent is not a map", reason="InvalidResource")
    inner = (value or {}).get(part)
    return {**(value or {}), part: replaced(inner, rest, new)}


def text_of(value: Any) -> str:
    """Return a scalar as YAML writes it, '' for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _texts(value: Any) -> dict[str, str]:
    return {str(key): text_of(entry) for key, entry in value.items()} if isinstance(value, dict) else {}


def _spliced(text: str, node: yaml.ScalarNode, scalar: Scalar) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    written = _placed(text, start, scalar.written())
    if not scalar.comment:
        return text[:start] + written + text[end:]
    old = _LINE_COMMENT.match(text, end)
    return f"{text[:start]}{written} {scalar.comment}{text[old.end() if old else end :]}"


def _placed(text: str, start: int, written: str) -> str:
    """Return the text to write at a position; after a colon it needs a space."""
    return f" {written}" if start and text[start - 1] == ":" else written


def _is_plain(text: str) -> bool:
    """Return whether YAML reads the unquoted text as one scalar with the same text, of any type."""
    return _looked_plain(text) if len(text) <= REMEMBERED_CHARACTERS_MAX else _looks_plain(text)


@lru_cache(maxsize=1024)
def _looked_plain(text: str) -> bool:
    return _looks_plain(text)


def _looks_plain(text: str) -> bool:
    if "\n" in text or text != text.strip():
        return False
    try:
        load(text)
        node = compose(text)
    except YamlError:
        return False
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value == text


def _is_text(text: str) -> bool:
    return isinstance(load(text), str)


def _reads_as(text: str, value: Any) -> bool:
    try:
        found = load(text)
    except YamlError:
        return False
    return same(found, value)
