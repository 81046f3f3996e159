"""Comments behind scalars and on the lines of lists' keys, and the block form that they need.

A comment ends its line, so a flow collection such as `[a, b]` is rewritten in block form before one is put
into it. What cannot have a comment (JSON, a block scalar) stays as it is.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages.functions.item import Item, Scalar, line_comment, scalars
from pvbus.controlplane.packages.functions.limits import check_growth, check_time
from pvbus.controlplane.packages.functions.yamltext import Path, compose, dump, load
from pvbus.core.yaml.editor import YamlError, get, same

_KEY_COMMENT = re.compile(r"[ \t]*:[ \t]+(#[^\n]*)")
_KEY_LINE = re.compile(r"[ \t]*:[ \t]*(?:#[^\r\n]*)?")


class KeyedList(NamedTuple):
    """A list that is the value of a key. in_flow: whether it is inside a flow collection."""

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
    for path in [flow for flow in _outermost_flows(compose(item.text)) if _holds(flow, wanted)]:
        item = in_block(item, path)
    found = scalars(compose(item.text))
    return item.with_scalars([(path, wanted[path]) for path, _ in found if path in wanted])


def with_key_comment(item: Item, path: Path, comment: str) -> Item:
    """Return the item with a comment on the line of a list's key; behind the list if it is `[]`."""
    if item.file.endswith(".json"):
        return item
    for flow in _outermost_flows(compose(item.text)):
        if path[: len(flow)] == flow and get(item.value, path):
            item = in_block(item, flow)
    keyed = next(each for each in keyed_lists(compose(item.text)) if each.path == path)
    if keyed.node.flow_style:
        end = keyed.node.end_mark.index
        old = line_comment(item.text, keyed.node)
        behind = item.text.index(old, end) + len(old) if old else end
        return _reworded(item, f"{item.text[:end]} {comment}{item.text[behind:]}")
    line = _KEY_LINE.match(item.text, keyed.key.end_mark.index)
    head = item.text[: keyed.key.end_mark.index]
    return _reworded(item, f"{head}: {comment}{item.text[line.end() :]}") if line else item


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


def in_block(item: Item, path: Path) -> Item:
    """Return the item with the outermost flow collection at a path in block form, with its comment."""
    check_time()
    node, column = _node_at(compose(item.text), path)
    if node is None:
        return item
    start, end = node.start_mark.index, node.end_mark.index
    stop = _line_end(item.text, end)
    value = get(item.value, path)
    comment = item.text[end:stop].rstrip()
    if path and isinstance(path[-1], str):
        head = f"{item.text[:start].rstrip()}{comment}\n"
        indent = column if isinstance(value, list) else column + 2
        return _reworded(item, f"{head}{_indented(value, indent)}{item.text[stop:]}")
    first, *rest = _indented(value, node.start_mark.column).lstrip().split("\n")
    return _reworded(item, "\n".join([f"{item.text[:start]}{first}{comment}", *rest]) + item.text[stop:])


def _outermost_flows(node: yaml.Node | None, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each flow collection with elements that is not inside another."""
    if isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        if node.flow_style:
            yield from [path] if node.value else []
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield from _outermost_flows(value, (*path, key.value))
        else:
            for index, value in enumerate(node.value):
                yield from _outermost_flows(value, (*path, index))


def _holds(flow: Path, wanted: Mapping[Path, Scalar]) -> bool:
    return any(path[: len(flow)] == flow for path in wanted)


def _node_at(node: yaml.Node | None, path: Path) -> tuple[yaml.Node | None, int]:
    """Return the node at a path and the column of its key."""
    column = 0
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                return None, 0
            column, node = found[0].start_mark.column, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
    return node, column


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
