"""One object of a package, as text and as values, and the output of a function.

An item keeps its source text. Functions that compute values return new values, and the difference is
edited into the text; functions that care about spelling (a scalar's quotes, the comment after it)
replace scalars in the text. Both ways parse the result and compare it with the intended value: if a
replaced scalar would change anything else, the values take precedence over the spelling.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages.functions.limits import check_growth, check_length, check_time, check_value
from pvbus.controlplane.packages.functions.yamltext import Path, compose, load, with_value
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import YamlError, get, replaced, same

LOCAL_CONFIG = "config.kubernetes.io/local-config"

Value = dict[str, Any]

_LINE_COMMENT = re.compile(r"[ \t]+(#[^\r\n]*)")

REMEMBERED_CHARACTERS_MAX = 200
"""Longest scalar in the cache of plain scalars: names and numbers repeat, long texts do not."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a package. It is never changed in place, `value` included.

    text: the object's YAML
    value: the same object, decoded
    package: the directory of its Kptfile, relative to the root of the rendered package
    file: its file, relative to the same root; "" lets the renderer choose one
    index: its position in the file, -1 if none was chosen
    id: set by the renderer; None on an item that a function created
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
        return text_of(get(self.value, ("metadata", "name")))

    @property
    def namespace(self) -> str:
        return text_of(get(self.value, ("metadata", "namespace")))

    @property
    def labels(self) -> dict[str, str]:
        return _texts(get(self.value, ("metadata", "labels")))

    @property
    def annotations(self) -> dict[str, str]:
        return _texts(get(self.value, ("metadata", "annotations")))

    @property
    def path(self) -> str:
        """The file, relative to the directory of the object's package."""
        return self.file.removeprefix(f"{self.package}/") if self.package else self.file

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

    def with_scalar(self, path: Path, scalar: "Scalar") -> "Item":
        """Return the item with the scalar at `path` written as given, with its quotes and comment.

        A scalar without a comment keeps the present comment.
        """
        return self.with_scalars([(path, scalar)])

    def with_scalars(self, changes: Sequence[tuple[Path, "Scalar"]]) -> "Item":
        """Return the item after `with_scalar` for each change.

        The paths are in the order of the text. If possible, all are replaced at once, so that the document
        is parsed once and not once per change.
        """
        if not changes:
            return self
        check_time()
        meant: Any = self.value
        for path, scalar in changes:
            meant = replaced(meant, path, scalar.value)
        text = None if self.file.endswith(".json") else self._spliced(changes)
        if text == self.text and meant == self.value:
            return self
        if text is not None:
            check_growth(len(self.text), len(text))
            if _reads_as(text, meant):
                return msgspec.structs.replace(self, text=text, value=meant)
        if len(changes) == 1:
            return self.with_value(meant)
        item = self
        for path, scalar in changes:
            item = item.with_scalar(path, scalar)
        return item

    def with_texts(self, texts: Mapping[Path, str]) -> "Item":
        """Return the item with these strings instead of scalars; each keeps its quotes and comment."""
        found = scalars(compose(self.text)) if texts else ()
        return self.with_scalars(
            [(path, Scalar(texts[path], node.style or "")) for path, node in found if path in texts]
        )

    def _spliced(self, changes: Sequence[tuple[Path, "Scalar"]]) -> str | None:
        """Return the text with these scalars in it; None where one of them cannot be spliced."""
        nodes = index_nodes(compose(self.text))
        pieces: list[str] = []
        end = length = len(self.text)
        for path, scalar in reversed(changes):
            node = nodes.get(path)
            if node is None or node.style in ("|", ">") or node.end_mark.index > end:
                return None  # the last: an alias, whose text was spliced already
            start, behind = node.start_mark.index, node.end_mark.index
            length += len(scalar.text) - (behind - start)
            check_length(length)
            written = scalar.written()
            if scalar.comment:
                old = _LINE_COMMENT.match(self.text, behind)
                behind = old.end() if old else behind
                written = f"{written} {scalar.comment}"
            pieces += [self.text[behind:end], _placed(self.text, start, written)]
            end = start
        return self.text[:end] + "".join(reversed(pieces))


class Scalar(NamedTuple):
    """A scalar with its spelling.

    text: the content without quotes
    style: YAML's indicator, "" for a plain scalar
    is_string: whether YAML reads the value as a string
    comment: the comment behind it, "" for none
    """

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


class FunctionError(PermanentError):
    """A function that failed.

    results: what the function reported before
    code: the exit code of a program, 0 without one
    """

    def __init__(self, message: str, results: tuple[Result, ...] = (), code: int = 0) -> None:
        super().__init__(message, reason="FunctionFailed")
        self.results = results
        self.code = code


class FunctionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a function.

    items: the items; with an error they are the input's and are not used
    results: what the function reported
    error: why it failed, None if it did not
    """

    items: tuple[Item, ...]
    results: tuple[Result, ...] = ()
    error: str | None = None


def index_nodes(node: yaml.Node | None) -> dict[Path, yaml.ScalarNode]:
    """Return the scalars below a node by path; of keys that are there twice the first."""
    found: dict[Path, yaml.ScalarNode] = {}
    for path, scalar in scalars(node):
        found.setdefault(path, scalar)
    return found


def scalar_at(item: Item, path: Path) -> Scalar | None:
    """Return the scalar at a path with its spelling, None if there is another kind of node."""
    node = index_nodes(compose(item.text)).get(path)
    if node is None:
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


FUNCTION_API = "fn.kpt.dev/v1alpha1"


def config_fault(message: str) -> PermanentError:
    return PermanentError(message, reason="InvalidFunctionConfig")


def config_field(config: Value | None, field: str, *kinds: str) -> Any:
    """Return the configuration of a function: `data` of a ConfigMap, or `field` of the function's own kinds.

    Raises: PermanentError for any other functionConfig.
    """
    config = config or {}
    api_version, kind = config.get("apiVersion"), config.get("kind")
    if (api_version, kind) == ("v1", "ConfigMap"):
        return config.get("data")
    if api_version == FUNCTION_API and kind in kinds:
        return config.get(field)
    raise config_fault(f"functionConfig is {kind or 'absent'}, expected `{kinds[0]}` or `ConfigMap`")


def text_of(value: Any) -> str:
    """Return a scalar as YAML writes it, '' for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _texts(value: Any) -> dict[str, str]:
    return {str(key): text_of(entry) for key, entry in value.items()} if isinstance(value, dict) else {}


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


EACH = "*"  # each element of a list

FieldPath = tuple[str, ...]
Change = Callable[[dict[str, Any] | None], dict[str, Any] | None]


def update_maps(value: Any, path: FieldPath, change: Change, *, kept_absent: frozenset[str]) -> Any:
    """Return `value` with every map at `path` changed; `change` gets None for a missing map.

    kept_absent: parts that are not created; nothing below them is, either. A `change` that returns None
    or an equal map changes nothing.
    """
    if not path:
        if value is not None and not isinstance(value, dict):
            raise PermanentError("a field that must be a map is not one", reason="InvalidResource")
        changed = change(value)
        return value if changed is None or changed == value else changed
    part, rest = path[0], path[1:]
    if part == EACH:
        if not isinstance(value, list):
            return value
        return [update_maps(each, rest, change, kept_absent=kept_absent) for each in value]
    if value is not None and not isinstance(value, dict):
        raise PermanentError(f"the parent of `{part}` is not a map", reason="InvalidResource")
    inner = (value or {}).get(part)
    if inner is None and part in kept_absent:
        return value
    changed = update_maps(inner, rest, change, kept_absent=kept_absent)
    return value if changed is inner else {**(value or {}), part: changed}
