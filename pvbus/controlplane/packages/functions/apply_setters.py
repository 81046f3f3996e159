"""apply-setters: set the fields that have a setter's comment.

Source: functions/go/apply-setters v0.2.0 of the krm-functions-catalog. The comment `# kpt-set: ` holds a
pattern such as `${image}:${tag}`; names that were not given are read back from the present value.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pvbus.controlplane.packages.functions.comments import (
    KeyedList,
    dotted,
    key_comment,
    keyed_lists,
    with_list,
)
from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Result,
    Scalar,
    Value,
    config_fault,
    line_comment,
    scalars,
    text_of,
)
from pvbus.controlplane.packages.functions.limits import check_length, check_time
from pvbus.controlplane.packages.functions.yamltext import Path, compose, load
from pvbus.core.yaml.editor import YamlError, replaced, same

MARKER = "# kpt-set: "
_NOT_A_LIST = "input to array setter must be an array of values, but found {!r}"


class _List(NamedTuple):
    """A list with a setter's comment on its key's line, or after it if it is a flow list."""

    keyed: KeyedList
    pattern: str


def apply_setters(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Set every field whose pattern names one of the given setters."""
    data = (config or {}).get("data")
    setters = {name: text_of(data[name]) for name in sorted(data)} if isinstance(data, dict) else {}
    if not setters:
        raise config_fault("input setters list cannot be empty")
    changed: list[Item] = []
    results: list[Result] = []
    for item in items:
        after, paths = _set(item, setters)
        changed.append(after)
        results += [_result(after, path, text) for path, text in paths]
    if not results:
        results.append(Result(message="no matches for input setter(s)"))
    return FunctionOutput(items=tuple(changed), results=tuple(results))


def _set(item: Item, setters: Mapping[str, str]) -> tuple[Item, list[tuple[Path, str]]]:
    """Return the item with its setters applied, and the path and text of each field that was set.

    Lists are written first, one by one, as each edit moves the positions behind it. Then all scalars are
    written at once.
    """
    if MARKER not in item.text:
        return item, []
    done: list[tuple[Path, str]] = []
    for path in [found.keyed.path for found in _lists(item) if _concerns(found.pattern, setters)]:
        # Positions move with every edit, so the list is looked up again.
        check_time()
        found = next(each for each in _lists(item) if each.keyed.path == path)
        item = _with_list(item, found, setters)
        done.append((path, setters[split_pattern(found.pattern).names[0]]))
    changes: list[tuple[Path, Scalar]] = []
    for path, node in scalars(compose(item.text)):
        pattern = _pattern(line_comment(item.text, node))
        if pattern and _concerns(pattern, setters):
            text = _filled(pattern, node.value, setters)
            style = (node.style or "") if text else '"'
            changes.append((path, Scalar(text, style, is_string=bool(style))))
            done.append((path, text))
    return item.with_scalars(changes), done


def _pattern(comment: str) -> str:
    return comment.removeprefix(MARKER).strip() if comment.startswith(MARKER) else ""


class SetterPattern(NamedTuple):
    """A parsed pattern: a literal before each name, and one after the last."""

    literals: tuple[str, ...]
    names: tuple[str, ...]


def split_pattern(pattern: str) -> SetterPattern:
    """Split a pattern at its `${name}`, in one pass."""
    literals: list[str] = []
    names: list[str] = []
    position = 0
    while (start := pattern.find("${", position)) >= 0 and (end := pattern.find("}", start)) >= 0:
        literals.append(pattern[position:start])
        names.append(pattern[start + 2 : end])
        position = end + 1
    return SetterPattern((*literals, pattern[position:]), tuple(names))


def _innermost_names(text: str) -> set[str]:
    """Return the names that a replacement can match; in `${a${b}` that is b."""
    return {before.rpartition("${")[2] for before in text.split("}")[:-1] if "${" in before}


def _concerns(pattern: str, setters: Mapping[str, str]) -> bool:
    return not _innermost_names(pattern).isdisjoint(setters)


def _filled(pattern: str, present: str, setters: Mapping[str, str]) -> str:
    """Return a pattern with the values of its names.

    Given values come first, in their order, and a value may name the setters that come after it. Names
    without a given value get their present one, which is read back from the field.
    """
    text = pattern
    reached = _innermost_names(pattern)
    for name, value in (*setters.items(), *read_back(pattern, present).items()):
        if name in reached:
            token = f"${{{name}}}"
            check_time()
            check_length(len(text) + text.count(token) * (len(value) - len(token)))
            text = text.replace(token, value)
            reached |= _innermost_names(value)  # a value may name the setters that come after it
    missing = [f"${{{name}}}" for name in split_pattern(text).names]
    if missing:
        raise config_fault(f"values for setters [{' '.join(missing)}] must be provided")
    return text


def read_back(pattern: str, present: str) -> dict[str, str]:
    """Return the values of the pattern's names in the present text; all of them or none.

    Each name matches like a greedy `(.*)` within one line, the first name first. So the literals are
    searched from the end of the line, each at its last possible position, which takes linear time.
    """
    literals, names = split_pattern(pattern)
    for line in present.split("\n") if names else ():
        start = line.find(literals[0])
        if start < 0:
            continue
        values = _values(line[start + len(literals[0]) :], literals[1:])
        if values is not None:
            return dict(zip(names, values, strict=True)) if all(values) else {}
    return {}


def _values(line: str, literals: Sequence[str]) -> list[str] | None:
    """Return the text before each literal, with each literal at its last possible position."""
    # Reversed, because only `find` takes linear time for every text.
    backwards = line[::-1]
    values: list[str] = []
    position = end = 0
    for number, literal in enumerate(reversed(literals)):
        found = backwards.find(literal[::-1], position)
        if found < 0:
            return None
        if number:
            values.append(backwards[end:found][::-1])
        position = end = found + len(literal)
    values.append(backwards[end:][::-1])
    return values[::-1]


def _lists(item: Item) -> Iterator[_List]:
    for keyed in keyed_lists(compose(item.text)):
        is_flow = keyed.node.flow_style
        comment = line_comment(item.text, keyed.node) if is_flow else key_comment(item.text, keyed)
        if pattern := _pattern(comment):
            yield _List(keyed, pattern)


def _with_list(item: Item, found: _List, setters: Mapping[str, str]) -> Item:
    names = split_pattern(found.pattern).names
    if len(names) != 1 or found.pattern != f"${{{names[0]}}}":
        raise config_fault(f"invalid setter pattern for array node: {found.pattern!r}")
    text = setters[names[0]]
    try:
        values = load(text) if text else []
    except YamlError as exc:
        raise config_fault(_NOT_A_LIST.format(text)) from exc
    if not isinstance(values, list):
        raise config_fault(_NOT_A_LIST.format(text))
    keyed = found.keyed
    meant = replaced(item.value, keyed.path, values)
    written = with_list(item.text, keyed, values, f"{MARKER}{found.pattern}")
    try:
        if not keyed.in_flow and same(load(written), meant):
            return msgspec.structs.replace(item, text=written, value=meant)
    except YamlError:
        pass  # an anchor or a tag inside the list: values take precedence over spelling
    return item.with_value(meant)


def _result(item: Item, path: Path, text: str) -> Result:
    return Result(
        message=f"set field value to {msgspec.json.encode(text).decode()}",
        field={"path": dotted(path), "proposedValue": text},
        file={"path": item.file, "index": item.index},
    )
