"""Comments behind scalars and on the lines of lists' keys, and the block form that they need.

A comment ends its line, so a flow collection such as `[a, b]` is rewritten in block form before one is put
into it. What cannot have a comment (JSON, a block scalar) stays as it is.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages.functions.item import Item, Scalar, scalars
from pvbus.controlplane.packages.functions.limits import check_growth, check_time
from pvbus.controlplane.packages.functions.yamltext import Path, compose, load
from pvbus.core.yaml.editor import YamlError, get, same
from pvbus.core.yaml.writer import dump

_KEY_COMMENT = re.compile(r"[ \t]*:[ \t]+(#[^\n]*)")
_COMMENT = re.compile(r"[ \t]*(?:#[^\r\n]*)?")
_KEY_LINE = re.compile(r"[ \t]*:[ \t]*(?:#[^\r\n]*)?")


class KeyedList(NamedTuple):
    """A list that is the value of a key.

    path: its path
    key: the node of the key
    node: the node of the list
    in_flow: whether it is inside a flow collection
    """

    path: Path
    key: yaml.ScalarNode
    node: yaml.SequenceNode
    in_flow: bool


def keyed_lists(node: yaml.Node | None, path: Path = (), *, in_flow: bool = False) -> Iterator[KeyedList]:
    """Yield every list that is the value of a key, parents first."""
    if isinstance(node, yaml.MappingNode):
        inside = in_flow or bool(node.flow_style)
        for key, value in node.value:
            if isinstance(value, yaml.SequenceNode) and isinstance(key, yaml.ScalarNode):
                yield KeyedList((*path, key.value), key, value, inside)
            yield from keyed_lists(value, (*path, key.value), in_flow=inside)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from keyed_lists(value, (*path, index), in_flow=in_flow or bool(node.flow_style))


def key_comment(text: str, keyed: KeyedList) -> str:
    """Return the comment on the line of a list's key, '' if there is none."""
    match = _KEY_COMMENT.match(text, keyed.key.end_mark.index)
    return match[1] if match else ""


def dotted(path: Path) -> str:
    """Return a path as in messages: `spec.images[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def with_comments(item: Item, wanted: Mapping[Path, Scalar]) -> Item:
    """Return the item with these scalars and their comments."""
    if not wanted or item.file.endswith(".json"):
        return item
    item = in_block(item, _prefixes(wanted))
    found = scalars(compose(item.text))
    return item.with_scalars([(path, wanted[path]) for path, _ in found if path in wanted])


def with_key_comments(item: Item, comments: Mapping[Path, str]) -> Item:
    """Return the item with comments on the lines of lists' keys; behind a list if it is `[]`."""
    if not comments or item.file.endswith(".json"):
        return item
    item = in_block(item, _prefixes(comments))
    edits: list[_Edit] = []
    for keyed in keyed_lists(compose(item.text)):
        if keyed.path in comments:
            start = keyed.node.end_mark.index if keyed.node.flow_style else keyed.key.end_mark.index
            found = (_COMMENT if keyed.node.flow_style else _KEY_LINE).match(item.text, start)
            colon = "" if keyed.node.flow_style else ":"
            edits.append(_Edit(start, found.end() if found else start, f"{colon} {comments[keyed.path]}"))
    return _edited(item, edits)


def with_list(text: str, keyed: KeyedList, values: list[Any], comment: str) -> str:
    """Return the text with other values in a list: in block form below its key, or as `[]` in its line."""
    end = keyed.node.end_mark.index
    if keyed.node.flow_style:
        stop = _line_end(text, end)
    else:
        # A block list ends where the next token begins; blank lines and comments between stay.
        last = [node for _, node in scalars(keyed.node)][-1]
        is_block = last.style in ("|", ">")
        stop = last.end_mark.index - 1 if is_block else _line_end(text, last.end_mark.index)
    head = text[: keyed.key.end_mark.index]
    if not values:
        return f"{head}: [] {comment}{text[stop:]}"
    column = keyed.key.start_mark.column if keyed.node.flow_style else keyed.node.start_mark.column
    return f"{head}: {comment}\n{_indented(values, column)}{text[stop:]}"


def in_block(item: Item, paths: Collection[Path]) -> Item:
    """Return the item with the outermost flow collections at these paths in block form."""
    flows = [flow for flow in _outermost_flows(compose(item.text)) if flow.path in paths]
    return _edited(item, [_block_edit(item, flow) for flow in flows])


class _Flow(NamedTuple):
    """A flow collection that is not inside another.

    path: its path
    node: its node
    column: the column of its key, if it is the value of one
    """

    path: Path
    node: yaml.Node
    column: int


class _Edit(NamedTuple):
    """Characters to replace.

    start: the position of the first one
    stop: the position behind the last one
    text: what replaces them
    """

    start: int
    stop: int
    text: str


def _outermost_flows(node: yaml.Node | None, path: Path = (), column: int = 0) -> Iterator[_Flow]:
    if isinstance(node, yaml.CollectionNode) and node.flow_style:
        yield from [_Flow(path, node, column)] if node.value else []
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _outermost_flows(value, (*path, key.value), key.start_mark.column)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _outermost_flows(value, (*path, index))


def _block_edit(item: Item, flow: _Flow) -> _Edit:
    """Return the edit that writes a flow collection in block form, its comment on the line before."""
    start, end = flow.node.start_mark.index, flow.node.end_mark.index
    stop = _line_end(item.text, end)
    comment = item.text[end:stop].rstrip()
    value = get(item.value, flow.path)
    if flow.path and isinstance(flow.path[-1], str):
        while item.text[start - 1] in " \t\r\n":
            start -= 1
        indent = flow.column if isinstance(value, list) else flow.column + 2
        return _Edit(start, stop, f"{comment}\n{_indented(value, indent)}")
    first, *rest = _indented(value, flow.node.start_mark.column).lstrip().split("\n")
    return _Edit(start, stop, "\n".join([f"{first}{comment}", *rest]))


def _edited(item: Item, edits: Sequence[_Edit]) -> Item:
    """Return the item with these edits, but for those that would change its value."""
    if not edits:
        return item
    check_time()
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits):
        pieces += [item.text[position : edit.start], edit.text]
        position = edit.stop
    together = _reworded(item, "".join([*pieces, item.text[position:]]))
    if together is not item or len(edits) < 2:
        return together
    for edit in sorted(edits, reverse=True):  # from the end, so that the positions stay valid
        check_time()
        item = _reworded(item, f"{item.text[: edit.start]}{edit.text}{item.text[edit.stop :]}")
    return item


def _prefixes(paths: Iterable[Path]) -> set[Path]:
    return {path[:length] for path in paths for length in range(len(path) + 1)}


def _line_end(text: str, position: int) -> int:
    stop = text.find("\n", position)
    return len(text) if stop < 0 else stop


def _indented(value: Any, column: int) -> str:
    return "\n".join(" " * column + line if line else line for line in dump(value).splitlines())


def _reworded(item: Item, text: str) -> Item:
    """Return the item with another text of the same value; the item itself if the text has another one."""
    try:
        if not same(load(text), item.value):
            return item
    except YamlError:
        return item
    check_growth(len(item.text), len(text))
    return msgspec.structs.replace(item, text=text)
