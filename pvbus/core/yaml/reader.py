"""Reads YAML from outside into plain values: the one reader of manifests, request bodies and package files.

It reads what kubectl reads: scalars and keys have the values of `scalars`, aliases are copied, `<<` merges
as Go does, tags that YAML does not define are ignored. Values are of JSON's types, with text keys, and never
share parts. Any text is a value or a YamlError with its line.

The input is hostile. The time is linear in its size: there are limits of bytes, depth, nodes and
documents, and a node behind an alias counts each time that it is used. The parser's events are read, as its
composer recurses in C without a limit. YAML that needs positions is edited by `editor`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from pvbus.core.yaml.scalars import HINTS, KUBECTL, MERGE, TAG, Dialect, key_of, value_of

DIRECTIVES_MAX = 32
"""`%TAG` lines of one text: the parser compares each with all before it. People write none."""


class YamlError(ValueError):
    """The text is not YAML, or an edit at a path is impossible."""


class TooLargeError(YamlError):
    """The text has more than the limits allow."""


class Limits(NamedTuple):
    """What a text may have at most."""

    bytes_max: int
    depth_max: int
    """Levels of lists and mappings. Code after this module recurses, and Python has 1,000 frames in all."""

    nodes_max: int
    """Keys, values and collections of a text, those behind aliases counted at each use. A node takes some
    100 bytes."""

    documents_max: int = 100_000
    aliased_max: int = 100_000
    """Nodes that aliases stand for: a copy of each is made. Texts that people write have some hundred."""


class Document(NamedTuple):
    """One document.

    line: the line where it begins, from 1
    doubled: the paths of its duplicate fields
    """

    value: Any
    line: int
    doubled: tuple[str, ...]


FILES = Limits(bytes_max=32 << 20, depth_max=128, nodes_max=5_000_000)
"""Of a user's own file. The largest has fewer values, unless its aliases are meant to expand; 128 levels are
those of a request body of the API server."""

PACKAGES = Limits(bytes_max=32 << 20, depth_max=128, nodes_max=500_000)
"""Of a file of a package: ten times the values of the largest CustomResourceDefinition that is in use."""

DOUBLED_MAX = 100
"""Duplicate fields that are reported."""


def documents(
    content: str | bytes, limits: Limits = FILES, dialect: Dialect = KUBECTL, *, line: int = 1
) -> Iterator[Document]:
    """Yield the documents of a text; an empty one has the value None. line: the number of the first line.

    Raises YamlError.
    """
    text = _text_of(content, limits)
    parser = yaml.CSafeLoader(text)
    try:
        yield from _Reader(parser, limits, dialect, line).documents()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"line {mark.line + line}: " if mark else ""
        raise YamlError(f"{where}{exc.problem or exc.context}") from exc
    except yaml.YAMLError as exc:
        raise YamlError(str(exc)) from exc
    finally:
        parser.dispose()


def document(
    content: str | bytes, limits: Limits = FILES, dialect: Dialect = KUBECTL, *, line: int = 1
) -> Document:
    """Return the only document of a text. Raises YamlError."""
    parts = documents(content, limits, dialect, line=line)
    first = next(parts, Document(None, 1, ()))
    for second in parts:
        raise YamlError(f"line {second.line}: a second document begins, and there must be one")
    return first


def values(content: str | bytes, limits: Limits = FILES) -> list[Any]:
    """Return the values of the documents of a text that are not empty. Raises YamlError."""
    return [value for value, _, _ in documents(content, limits) if value is not None]


def _text_of(content: str | bytes, limits: Limits) -> str:
    if len(content) > limits.bytes_max:
        raise TooLargeError(f"it has more than {limits.bytes_max} bytes")
    if isinstance(content, bytes):
        encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
        try:
            content = content.decode(encoding)
        except UnicodeDecodeError as exc:
            raise YamlError(f"it is not {encoding.upper()} text (at byte {exc.start})") from exc
    try:
        content.encode()
    except UnicodeEncodeError as exc:
        raise YamlError(f"it has half a surrogate pair (at character {exc.start})") from exc
    if content.count("%TAG") > DIRECTIVES_MAX and f"\n{content}".count("\n%TAG") > DIRECTIVES_MAX:
        raise YamlError(f"it has more than {DIRECTIVES_MAX} %TAG directives")
    return content.removeprefix("\ufeff")


class _Anchored(NamedTuple):
    """A value with an anchor. nodes: the number of its nodes, itself included."""

    value: Any
    nodes: int
    is_mapping: bool


class _Open:
    """A collection that has not ended: its parts in order, keys and values in turn for a mapping."""

    __slots__ = ("anchor", "is_flow", "is_mapping", "items", "merges", "nodes")

    def __init__(self, event: Any, nodes: int) -> None:
        self.is_mapping = type(event) is yaml.MappingStartEvent
        self.is_flow = event.flow_style
        self.anchor: str | None = event.anchor
        self.nodes = nodes
        self.items: list[Any] = []
        self.merges = False


_MERGE_KEY: Any = object()
"""Stands for the key `<<`."""


class _Reader:
    """Builds the values of one text from the parser's events."""

    def __init__(self, parser: Any, limits: Limits, dialect: Dialect, line: int) -> None:
        self._event = parser.get_event
        self._limits = limits
        self._dialect = dialect
        self._line = line
        self._anchors: dict[str, _Anchored | None] = {}
        """None for a value that has not ended."""
        self._nodes = self._copies = 0
        self._doubled: list[str] = []

    def documents(self) -> Iterator[Document]:
        self._event()  # the start of the stream
        count = 0
        while type(event := self._event()) is not yaml.StreamEndEvent:
            count += 1
            if count > self._limits.documents_max:
                raise YamlError(f"it has more than {self._limits.documents_max} documents")
            line = event.start_mark.line + self._line
            self._anchors, self._doubled = {}, []
            value = self._value()
            self._event()  # the end of the document
            yield Document(value, line, tuple(self._doubled))

    def _value(self) -> Any:
        """Read one value with all values inside; `open_` holds the collections that have not ended."""
        open_: list[_Open] = []
        next_event, nodes_max, depth_max = self._event, self._limits.nodes_max, self._limits.depth_max
        nodes = self._nodes
        while True:
            event = next_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                nodes += 1
                value = event.value
                parent = open_[-1] if open_ else None
                if parent is not None and parent.is_flow and "?" in value and not event.style:
                    self._check_question_mark(event)
                if parent is not None and parent.is_mapping and len(parent.items) % 2 == 0:
                    if event.tag is not None or (
                        event.implicit[0] and (value[:1] in HINTS or value == MERGE)
                    ):
                        value = self._key(event)
                        parent.merges = parent.merges or value is _MERGE_KEY
                elif event.tag is not None or (event.implicit[0] and value[:1] in HINTS):
                    value = self._scalar(event)
                if event.anchor is not None:
                    self._anchors[event.anchor] = _Anchored(event, 1, False)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                if len(open_) >= depth_max:
                    raise self._error(event, f"nested too deeply, more than {depth_max} levels deep")
                if event.anchor is not None:
                    self._anchors[event.anchor] = None
                open_.append(_Open(event, nodes))
                nodes += 1
                continue
            elif kind is yaml.AliasEvent:
                self._nodes = nodes
                value = self._copy_alias(event, open_)
                nodes = self._nodes
            else:
                ended = open_.pop()
                value = ended.items if not ended.is_mapping else self._mapping(event, ended, open_)
                if ended.anchor is not None:
                    self._anchors[ended.anchor] = _Anchored(value, nodes - ended.nodes, ended.is_mapping)
                if open_ and open_[-1].is_mapping and len(open_[-1].items) % 2 == 0:
                    raise self._error(event, "a key must be a text, not a list or a mapping")
            if nodes > nodes_max:
                raise TooLargeError(f"it has more than {nodes_max} values, those of its aliases included")
            if not open_:
                self._nodes = nodes
                return value
            open_[-1].items.append(value)

    def _check_question_mark(self, event: Any) -> None:
        """Refuse a plain text between brackets with a `?`, at which kubectl's parser ends the text."""
        if self._dialect.is_json:
            raise self._error(event, f"kubectl does not read a ? here: write {event.value[:80]!r} in quotes")

    def _scalar(self, event: Any) -> Any:
        try:
            return value_of(event.value, self._dialect, event.tag)
        except ValueError as exc:
            raise self._error(event, str(exc)) from exc

    def _key(self, event: Any) -> Any:
        if event.value == MERGE and (event.tag is None or event.tag == f"{TAG}merge"):
            return _MERGE_KEY
        try:
            return key_of(event.value, self._dialect, event.tag)
        except ValueError as exc:
            raise self._error(event, str(exc)) from exc

    def _copy_alias(self, event: Any, open_: list[_Open]) -> Any:
        """Return a copy of the value of an alias; as a key, it is read like one."""
        if event.anchor not in self._anchors:
            raise self._error(event, f"there is no anchor &{event.anchor[:80]} before this alias")
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise self._error(event, f"the value of &{event.anchor[:80]} contains itself")
        self._nodes += anchored.nodes
        self._copies += anchored.nodes
        if self._copies > (most := self._limits.aliased_max):
            raise TooLargeError(f"excessive aliasing: its aliases stand for more than {most} values")
        parent = open_[-1] if open_ else None
        is_key = parent is not None and parent.is_mapping and len(parent.items) % 2 == 0
        if isinstance(anchored.value, yaml.ScalarEvent):
            scalar = anchored.value
            if scalar.tag is None and not scalar.implicit[0]:
                return scalar.value
            return self._key(scalar) if is_key else self._scalar(scalar)
        if is_key:
            raise self._error(event, "a key must be a text, not a list or a mapping")
        if (
            parent is not None
            and parent.is_mapping
            and parent.items[-1] is _MERGE_KEY
            and not anchored.is_mapping
        ):
            raise self._error(event, _NO_MERGE)
        try:
            return _copy(anchored.value, self._limits.depth_max - len(open_))
        except RecursionError:
            raise self._error(
                event, f"nested too deeply, more than {self._limits.depth_max} levels deep"
            ) from None

    def _mapping(self, event: Any, ended: _Open, open_: list[_Open]) -> dict[str, Any]:
        keys, values = ended.items[::2], ended.items[1::2]
        if not ended.merges:
            result = dict(zip(keys, values, strict=True))
            if len(result) == len(keys):
                return result
        result = {}
        merged: set[str] = set()
        for key, value in zip(keys, values, strict=True):
            if key is _MERGE_KEY:
                for name, item in self._merged(event, value):
                    if self._dialect.own_keys_win and name in result and name not in merged:
                        continue
                    self._note(result, name, open_)
                    result[name] = item
                    merged.add(name)
                continue
            self._note(result, key, open_)
            result[key] = value
            merged.discard(key)
        return result

    def _merged(self, event: Any, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the fields of a merged value, the strongest last: of a list, earlier mappings win."""
        for part in reversed(value if isinstance(value, list) else [value]):
            if not isinstance(part, dict):
                raise self._error(event, _NO_MERGE)
            yield from part.items()

    def _note(self, mapping: dict[str, Any], key: str, open_: list[_Open]) -> None:
        """Note the path of a field that the mapping has already."""
        if key in mapping and len(self._doubled) < DOUBLED_MAX:
            path = ""
            for parent in open_:
                if not parent.is_mapping:
                    path += f"[{len(parent.items)}]"
                elif isinstance(parent.items[-1], str):
                    path += f".{parent.items[-1]}"
            self._doubled.append(f"{path}.{key}".removeprefix("."))

    def _error(self, event: Any, text: str) -> YamlError:
        return YamlError(f"line {event.start_mark.line + self._line}: {text}")


_NO_MERGE = "the value of `<<` must be a mapping, or a list of mappings"


def _copy(value: Any, depth: int) -> Any:
    if type(value) is dict:
        if depth <= 0:
            raise RecursionError
        return {key: _copy(item, depth - 1) for key, item in value.items()}
    if type(value) is list:
        if depth <= 0:
            raise RecursionError
        return [_copy(item, depth - 1) for item in value]
    return value
