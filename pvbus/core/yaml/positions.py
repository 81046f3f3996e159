"""The positions of the values of one YAML document in its text, and edits of that text.

Positions come from PyYAML's nodes. This module adds what they lack: the end of a block without
the blank lines and comments after it, the dash before an element, the comments that belong to it.
An unknown layout raises UnknownLayoutError; then the caller rewrites the document with `rewritten`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import yaml

from pvbus.core.yaml.scalars import MERGE
from pvbus.core.yaml.writer import Style, block, flow, is_multiline, scalar

Path: TypeAlias = tuple[str | int, ...]
"""Keys of mappings and indices of sequences, from the root of a document."""

_COMMENT = re.compile(r"(?m)(?:^|(?<=[ \t]))#[^\r\n]*")
_TRAILING = re.compile(r"[ \t]+#[^\r\n]*")
_DASH = re.compile(r"(?m)(?:^|(?<=[ \t]))#[^\r\n]*|(?<!\S)-(?!\S)")
_ALIAS = re.compile(r"\s*:[ \t]+\*[^\s,\[\]{}]+")


class UnknownLayoutError(Exception):
    """The text has a layout that cannot be edited in place."""


class _Nodes(yaml.CSafeLoader):
    """Composes nodes, whose tags say nothing unless one is written: `scalars` says what scalars mean.

    The parser asks for a tag, and before and after for its rules, at each node: a third of its time.
    """

    def resolve(self, _kind: Any, _value: Any, _implicit: Any) -> str:
        return ""

    def descend_resolver(self, _node: Any, _index: Any) -> None:
        return

    def ascend_resolver(self) -> None:
        return


def compose(text: str) -> Any:
    """Return the node graph of one document that `reader` accepts. Raises UnknownLayoutError."""
    try:
        return yaml.compose(text, Loader=_Nodes)
    except yaml.YAMLError as exc:
        raise UnknownLayoutError from exc


class _Entry(NamedTuple):
    """A node with its position. parent is None for the root, key for an element of a sequence."""

    parent: Any
    number: int
    key: Any
    node: Any


class Positions:
    """The composed nodes of one document and its text, which has no byte order mark."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.root = compose(text)
        self.style = _style(self.root)

    # ------------------------------------------------------------ edits: each returns the whole text

    def replace(self, path: Path, value: Any) -> str:
        """Replace a value."""
        if self.root is None:
            gap = "" if not self.text or self.text.endswith("\n") else self.newline
            return self.text + gap + self._lines(value, "") + self.newline
        return self._replace(self._find(path), value)

    def replace_scalars(self, values: Mapping[Path, Any]) -> str:
        """Replace scalars of one line that are outside of flow collections."""
        spans = []
        for path, value in values.items():
            entry = self._find(path)
            start, end = int(entry.node.start_mark.index), self._content_end(entry)
            if self.outermost_flow(path) is not None or not self._is_line(entry.node, start, end, value):
                raise UnknownLayoutError
            spans.append((start, end, scalar(value, quote=entry.node.style or "")))
        text = self.text
        for start, end, new in sorted(spans, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def add(self, path: Path, value: Any) -> str:
        """Add a key at the end of a block mapping that has others."""
        mapping = self._find(path[:-1]).node
        if not isinstance(mapping, yaml.MappingNode) or mapping.flow_style or not mapping.value:
            raise UnknownLayoutError
        first = mapping.value[0][0].start_mark.index
        end = self._line_end(self._content_end(_last(mapping)))
        return self._put_lines(end, self._lines({path[-1]: value}, " " * (first - self._line(first))))

    def insert(self, path: Path, index: int, value: Any) -> str:
        """Insert an element into a block sequence that has others."""
        sequence = self._find(path).node
        if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style or not sequence.value:
            raise UnknownLayoutError
        dash = self._dash(sequence, 0)
        line = self._line(dash)
        if self.text[line:dash].strip():
            raise UnknownLayoutError  # something else stands before the first dash
        if index < len(sequence.value):
            at = self._over_comments(self._line(self._dash(sequence, index)), dash - line)
        else:
            at = self._line_end(self._content_end(_last(sequence)))
        return self._put_lines(at, self._lines([value], " " * (dash - line)))

    def delete(self, path: Path) -> str:
        """Delete a key or an element of a block collection that has others. Its comments stay."""
        entry = self._find(path)
        if entry.parent.flow_style or len(entry.parent.value) < 2:
            raise UnknownLayoutError
        end = self._line_end(self._content_end(entry))
        start = entry.key.start_mark.index if entry.key else self._dash(entry.parent, entry.number)
        line = self._line(start)
        if not self.text[line:start].strip():
            return self._splice(line, end, "")
        if entry.number or self.text[line:start].strip(" -"):
            raise UnknownLayoutError
        following = re.compile(" *").match(self.text, end)  # moves up behind the dash
        return self._splice(start, following.end() if following else end, "")

    def comments(self) -> Iterator[tuple[Path, str]]:
        """Yield the trailing comments, each with the path of its key or element."""
        if self.root is not None:
            for path, comment, inline in _comments(self.text, self.root):
                if inline and path:
                    yield path, comment

    def comment(self, path: Path, comment: str) -> str:
        """Add a comment at the end of the line of a key or an element."""
        entry = self._find(path)
        start = int((entry.key or entry.node).start_mark.index)
        end = self._line_end(start)
        line = self.text[self._line(start) : end].rstrip()
        if "#" in line or line.endswith(("|", ">")):
            raise UnknownLayoutError
        return self._splice(self._line(start) + len(line), end, f" {comment}{self.newline}")

    def outermost_flow(self, path: Path) -> Path | None:
        """Return the path of the outermost flow-style collection on a path, None if there is none."""
        for length in range(len(path) + 1):
            try:
                node = self._find(path[:length]).node
            except KeyError:
                return None
            if isinstance(node, yaml.CollectionNode) and node.flow_style:
                return path[:length]
        return None

    # ------------------------------------------------------------ places

    def end(self) -> int:
        """Return where the content of the document ends."""
        try:
            return self._content_end(_Entry(None, 0, None, self.root))
        except UnknownLayoutError:  # the text ends with an alias: then comments behind it count, too
            start, end = int(self.root.start_mark.index), int(self.root.end_mark.index)
            return start + len(self.text[start:end].rstrip())

    def _find(self, path: Path) -> _Entry:
        """Follow a path. Raises KeyError if it ends early, UnknownLayoutError at an alias."""
        entry = _Entry(None, 0, None, self.root)
        for step in path:
            entry = self._child(entry.node, step)
            if self._is_alias(entry):
                raise UnknownLayoutError
        return entry

    def _child(self, parent: Any, step: str | int) -> _Entry:
        if isinstance(parent, yaml.SequenceNode) and isinstance(step, int):
            return _Entry(parent, step, None, parent.value[step])
        if not isinstance(parent, yaml.MappingNode):
            raise KeyError(step)
        for index in reversed(range(len(parent.value))):
            key, node = parent.value[index]
            if key.value == step and (step != MERGE or key.style is not None):
                return _Entry(parent, index, key, node)
        if not isinstance(step, str):
            raise UnknownLayoutError
        raise KeyError(step)

    @staticmethod
    def _is_alias(entry: _Entry) -> bool:
        """Tell whether a node is an alias: then its text, at the anchor, precedes this position."""
        if entry.parent is None:
            return False
        begin = entry.key.end_mark if entry.key else entry.parent.start_mark
        return bool(entry.node.start_mark.index < begin.index)

    def _line(self, index: int) -> int:
        return self.text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        newline = self.text.find("\n", index)
        return len(self.text) if newline < 0 else newline + 1

    def _dash(self, sequence: Any, index: int) -> int:
        """Find the dash of an element, after the end of the previous one."""
        begin = sequence.start_mark.index
        if index:
            begin = self._content_end(_Entry(sequence, index - 1, None, sequence.value[index - 1]))
        for match in _DASH.finditer(self.text, begin, sequence.value[index].start_mark.index + 1):
            if match[0] == "-":
                return match.start()
        raise UnknownLayoutError

    def _over_comments(self, line: int, column: int) -> int:
        """Skip comment lines of this indentation upwards: they belong to the element below."""
        above = re.compile(rf" {{{column}}}#.*\s*")
        while line and above.fullmatch(self.text, self._line(line - 1), line):
            line = self._line(line - 1)
        return line

    def _content_end(self, entry: _Entry) -> int:
        """Find the end of a node, without the blank lines and comments that follow it."""
        node = entry.node
        if self._is_alias(entry):
            match = _ALIAS.match(self.text, entry.key.end_mark.index) if entry.key else None
            if match is None:
                raise UnknownLayoutError
            return match.end()
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            return self._content_end(_last(node))
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            span = self.text[start:end]
            keeps_blank_lines = "+" in span.split("\n", 1)[0]
            return max(end - 1, start) if keeps_blank_lines else start + len(span.rstrip())
        return end

    # ------------------------------------------------------------ texts

    def _replace(self, entry: _Entry, value: Any) -> str:
        node, start, end = entry.node, int(entry.node.start_mark.index), self._content_end(entry)
        several_lines = "\n" in self.text[start:end]
        if isinstance(node, yaml.CollectionNode) and node.flow_style and node.value:
            if several_lines and _COMMENT.search(self.text, start, end):
                raise UnknownLayoutError
            if not several_lines and isinstance(value, dict | list):
                return self._splice(start, end, flow(value))
        if entry.parent is None:
            gap = self.newline if self.text[self._line(start) : start].strip() else ""
            return self._splice(start, end, gap + self._lines(value, ""))
        if self._is_line(node, start, end, value):
            text = flow(value) if isinstance(value, dict | list) else scalar(value, quote=node.style or "")
            return self._splice(start, end, text)
        return self._replace_lines(entry, end, value)

    def _is_line(self, node: Any, start: int, end: int, value: Any) -> bool:
        """Tell whether a scalar stands on one line, and the new value can."""
        is_scalar = isinstance(node, yaml.ScalarNode) and start < end
        return is_scalar and "\n" not in self.text[start:end] and not is_multiline(value)

    def _replace_lines(self, entry: _Entry, end: int, value: Any) -> str:
        """Put a value after a colon or a dash, and the comment of that line after the value's first line."""
        start = int(entry.node.start_mark.index)
        if entry.key is not None:
            mark = self.text.index(":", entry.key.end_mark.index)
            column = entry.key.start_mark.index - self._line(entry.key.start_mark.index)
            body = self._lines({"k": value}, " " * column)[column + 2 :]
        else:
            mark = self._dash(entry.parent, entry.number)
            column = mark - self._line(mark)
            body = self._lines([value], " " * column)[column + 1 :]
        if getattr(entry.node, "style", None) in ("|", ">"):
            start = self._line_end(start)  # a comment may follow the indicator of a block scalar
        comment = _COMMENT.search(self.text[mark + 1 : max(start, mark + 1)].split("\n", 1)[0])
        trailing = _TRAILING.match(self.text, end)
        if trailing is not None and (comment is None or start == end):
            comment, end = trailing, trailing.end()
        head, newline, rest = body.partition(self.newline)
        note = f" {comment[0].strip()}" if comment else ""
        return self._splice(mark + 1, end, head + note + newline + rest)

    def _lines(self, value: Any, pad: str) -> str:
        """Return block text without a newline at its end."""
        return self.newline.join(block(value, pad, self.style))

    def _put_lines(self, index: int, lines: str) -> str:
        """Insert whole lines at the start of a line, or after a last line without a newline."""
        if index and self.text[index - 1] != "\n":
            return self._splice(index, index, self.newline + lines)
        return self._splice(index, index, lines + self.newline)

    def _splice(self, start: int, end: int, text: str) -> str:
        return self.text[:start] + text + self.text[end:]


def _last(node: Any) -> _Entry:
    index = len(node.value) - 1
    if isinstance(node, yaml.MappingNode):
        key, child = node.value[index]
        return _Entry(node, index, key, child)
    return _Entry(node, index, None, node.value[index])


def _style(root: Any) -> Style:
    """Take the indentation from the first block mapping and sequence below a key."""
    step: int | None = None
    wide: bool | None = None
    for key, node in _pairs(root):
        column, begin = key.start_mark.column, node.start_mark
        if node.flow_style or begin.line <= key.start_mark.line:  # or behind an anchor, or an alias
            continue
        if isinstance(node, yaml.SequenceNode) and wide is None:
            wide = begin.column > column
        if isinstance(node, yaml.MappingNode) and step is None and begin.column > column:
            step = begin.column - column
        if step and wide is not None:
            break
    return Style(step or 2, bool(wide))


def _pairs(root: Any) -> Iterator[tuple[Any, Any]]:
    """Yield keys with the collections that are their values, outer ones first."""
    queue, seen = [root], set()
    for node in queue:
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        mapping = isinstance(node, yaml.MappingNode)
        for child in node.value:
            queue.append(child[1] if mapping else child)
            if mapping and isinstance(child[1], yaml.CollectionNode):
                yield child


def rewritten(text: str, value: Any) -> str:
    """Return a document with a new value, all of it rewritten; the text before and after it stays.

    Comments are put beside their fields; those whose field is gone come first.
    """
    positions = Positions(text)
    root = positions.root
    if root is None:
        return positions.replace((), value)
    start, end = int(root.start_mark.index), positions.end()
    lines = block(value, "", positions.style)
    line_of = {path: mark.line for mark, path in _fields(compose("\n".join(lines)), ())}
    above: dict[int, list[str]] = {}
    for path, comment, inline in _comments(text[:end], root):
        line = line_of.get(path)
        if line is not None and inline and not re.search(r"[|#\"']", lines[line]):
            lines[line] += f" {comment}"
            continue
        pad = re.match(" *", lines[line or 0])
        above.setdefault(line or 0, []).append((pad[0] if pad else "") + comment)
    body = [one for number, line in enumerate(lines) for one in (*above.get(number, ()), line)]
    head = text[: start - len(re.split(r"[^ ]", text[:start])[-1])]
    gap = "" if not head or head.endswith("\n") else positions.newline
    tail = text[end:] if text[end:].startswith(("\n", "\r")) else positions.newline + text[end:]
    return head + gap + positions.newline.join(body) + tail


def _fields(node: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    """Yield (mark, path) of each key and element in the order of the text; aliases are not followed."""
    if not isinstance(node, yaml.CollectionNode):
        return
    for index, child in enumerate(node.value):
        key, item = child if isinstance(node, yaml.MappingNode) else (None, child)
        here = (*path, index if key is None else key.value)
        if key is None and item.start_mark.index < node.start_mark.index:
            continue
        yield (item if key is None else key).start_mark, here
        if key is None or item.start_mark.index >= key.end_mark.index:
            yield from _fields(item, here)


def _comments(text: str, root: Any) -> Iterator[tuple[Path, str, bool]]:
    """Yield (path, comment, is inline): the path of the field before an inline comment, else after it."""
    fields = [(mark.index, path) for mark, path in _fields(root, ())]
    scalars = _scalar_spans(root)
    for match in _COMMENT.finditer(text, int(root.start_mark.index)):
        at = match.start()
        if any(begin < at < end for begin, end in scalars):
            continue
        inline = bool(text[text.rfind("\n", 0, at) + 1 : at].strip())
        near = [p for i, p in fields if i < at][-1:] if inline else [p for i, p in fields if i > at][:1]
        yield (near[0] if near else ()), match[0].rstrip(), inline


def _scalar_spans(root: Any) -> list[tuple[int, int]]:
    spans, queue, seen = [], [root], set()
    for node in queue:
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            spans.append((int(node.start_mark.index), int(node.end_mark.index)))
        elif isinstance(node, yaml.MappingNode):
            queue.extend(one for pair in node.value for one in pair)
        else:
            queue.extend(node.value)
    return spans
