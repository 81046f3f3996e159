"""create-setters: put a setter's comment behind every field with one of the given values.

Source: functions/go/create-setters v0.1.0 of the krm-functions-catalog. `apply_setters` reads the comments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages.functions.apply_setters import MARKER
from pvbus.controlplane.packages.functions.comments import (
    KeyedList,
    dotted,
    in_block,
    keyed_lists,
    with_comments,
    with_key_comments,
)
from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Result,
    Scalar,
    Value,
    config_fault,
    scalars,
    text_of,
)
from pvbus.controlplane.packages.functions.limits import check_time
from pvbus.controlplane.packages.functions.selecting import Expression, any_of
from pvbus.controlplane.packages.functions.yamltext import Path, compose
from pvbus.core.yaml.editor import YamlError

_INTERNAL = (".annotations.internal.config.kubernetes.io", ".annotations.config.kubernetes.io")


class _Setters(NamedTuple):
    """The names of setters by their values.

    names: scalar value -> name
    lists: sorted list of values -> name
    pattern: matches any of the scalar values, the longest first; None if there are none
    """

    names: Mapping[str, str]
    lists: Mapping[tuple[str, ...], str]
    pattern: Expression | None

    def commented(self, value: str) -> str:
        """Return a value with names in place of the setters' values."""
        return self.pattern.sub(self._named, value) if self.pattern else value

    def _named(self, match: Any) -> str:
        check_time()
        return f"${{{self.names[match[0]]}}}"


def create_setters(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Put comments behind the fields that have a setter's value, or contain it."""
    setters = _configured(config)
    changed: list[Item] = []
    results: list[Result] = []
    for item in items:
        after, found = _commented(item, setters)
        changed.append(after)
        results += found
    if not results:
        raise config_fault("failed to create setters: no matches for the input list of setters")
    return FunctionOutput(items=tuple(changed), results=tuple(results))


def _configured(config: Value | None) -> _Setters:
    data = (config or {}).get("data")
    if not isinstance(data, dict) or not data:
        raise config_fault("failed to create setters: config map cannot be empty")
    names: dict[str, str] = {}
    lists: dict[tuple[str, ...], str] = {}
    for name in sorted(data):
        text = text_of(data[name])
        try:
            node = compose(text)
        except YamlError:
            node = None
        if node is None:
            raise config_fault(f"failed to create setters: parsing error: the value of `{name}` is not YAML")
        if isinstance(node, yaml.SequenceNode):
            lists.setdefault(_texts(node), name)
        elif isinstance(node, yaml.ScalarNode):
            names.setdefault(text, name)
    longest_first = sorted(names, key=lambda value: -len(value.encode()))
    return _Setters(names, lists, any_of(longest_first) if longest_first else None)


def _texts(node: yaml.SequenceNode) -> tuple[str, ...]:
    """Return the elements of a list, sorted; '' for one that is not a scalar."""
    return tuple(sorted(each.value if isinstance(each, yaml.ScalarNode) else "" for each in node.value))


def _commented(item: Item, setters: _Setters) -> tuple[Item, list[Result]]:
    if item.file.endswith(".json"):
        return item, []  # it cannot have comments
    results: list[Result] = []
    lists = list(keyed_lists(compose(item.text)))
    item = in_block(
        item, {each.path for each in lists if each.node.flow_style and _has_setter(each, setters)}
    )
    comments: dict[Path, str] = {}
    for keyed in lists:
        values = _texts(keyed.node)
        if values in setters.lists:
            comments[keyed.path] = f"{MARKER}${{{setters.lists[values]}}}"
            results.append(_result(item, keyed.path, f"[{' '.join(values)}]", comments[keyed.path]))
    item = with_key_comments(item, comments)
    wanted: dict[Path, Scalar] = {}
    for path, node in scalars(compose(item.text)):
        comment = setters.commented(node.value)
        if comment != node.value and _takes_comment(node, path):
            comment = f"{MARKER}{comment}"
            style = node.style or ""
            wanted[path] = Scalar(node.value, style, is_string=bool(style), comment=comment)
            results.append(_result(item, path, node.value, comment))
    return with_comments(item, wanted), results


def _has_setter(keyed: KeyedList, setters: _Setters) -> bool:
    return any(setters.commented(text) != text for text in _texts(keyed.node))


def _takes_comment(node: yaml.ScalarNode, path: Path) -> bool:
    is_internal = any(each in f".{dotted(path)}" for each in _INTERNAL)
    return "\n" not in node.value and node.style not in ("|", ">") and not is_internal


def _result(item: Item, path: Path, value: str, comment: str) -> Result:
    text = msgspec.json.encode(comment.removeprefix("# ")).decode()
    return Result(
        message=f"Added line comment {text} for field with value {msgspec.json.encode(value).decode()}",
        field={"path": dotted(path)},
        file={"path": item.path},
    )
