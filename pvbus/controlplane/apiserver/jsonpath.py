"""The JSONPath of printer columns: the part of kubectl's dialect that columns use.

Fields (`.a.b`, `['a']`, `\\.` for a dot in a name), unions (`['a','b']`), indexes, slices, wildcards,
and filters such as `[?(@.type=="Ready")]`. A missing field yields nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

_Step = Callable[[Any], Iterable[Any]]
_NAME = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)")
# The alternatives are disjoint: otherwise an unterminated expression takes exponential time.
_BRACKET = re.compile(r"""\[((?:"[^"]*"|'[^']*'|\((?:"[^"]*"|'[^']*'|[^)"'])*\)|[^\]"'(])*)\]""")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*""")
_FILTER = re.compile(r"""\?\(\s*(@[^\s=!<>]*)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)""", re.DOTALL)
_SLICE = re.compile(r"(-?\d*)(?::(-?\d*))?(?::(-?\d*))?")


def find(path: str, obj: Any) -> list[Any]:
    """Return all values at the path, in order. Raises ValueError for an invalid path."""
    values = [obj]
    for step in _steps(path):
        values = [found for value in values for found in step(value)]
    return values


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[_Step, ...]:
    """Compile a path such as `.status.conditions[0].type`."""
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$").removeprefix("@")
    steps: list[_Step] = []
    at = 0
    while at < len(text):
        if match := _NAME.match(text, at):
            name = re.sub(r"\\(.)", r"\1", match.group(1))
            steps.append(_all if name == "*" else _field(name))
        elif match := _BRACKET.match(text, at):
            steps.append(_bracket(match.group(1).strip(), path))
        elif text[at] == "." and text[at + 1 : at + 2] in ("[", ""):
            at += 1
            continue
        else:
            raise ValueError(f"unrecognized JSONPath {path!r} at {text[at:]!r}")
        at = match.end()
    return tuple(steps)


def _field(name: str) -> _Step:
    return lambda value: [value[name]] if isinstance(value, Mapping) and name in value else []


def _all(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _bracket(inside: str, path: str) -> _Step:
    if inside == "*":
        return _all
    if match := _FILTER.fullmatch(inside):
        return _filter(*match.groups())
    if _QUOTED.match(inside):
        names = [single or double or "" for single, double in _QUOTED.findall(inside)]
        fields = [_field(re.sub(r"\\(.)", r"\1", name)) for name in names]
        return lambda value: [found for field in fields for found in field(value)]
    if re.fullmatch(r"-?\d+(\s*,\s*-?\d+)*", inside):
        numbers = [int(number) for number in inside.split(",")]
        return lambda value: [
            value[n] for n in numbers if isinstance(value, list) and -len(value) <= n < len(value)
        ]
    if (match := _SLICE.fullmatch(inside)) and ":" in inside:
        bounds = slice(*(int(part) if part else None for part in match.groups()))
        return lambda value: value[bounds] if isinstance(value, list) else []
    raise ValueError(f"unrecognized JSONPath {path!r} at {inside!r}")


def _filter(left: str, operator: str | None, right: str | None) -> _Step:
    def holds(item: Any) -> bool:
        found = find(left, item)
        if operator is None or right is None:
            return bool(found)
        wanted = find(right, item) if right.startswith("@") else [_literal(right)]
        return bool(found) and bool(wanted) and _compare(found[0], operator, wanted[0])

    return lambda value: [item for item in value if holds(item)] if isinstance(value, list) else []


def _literal(text: str) -> Any:
    if match := _QUOTED.fullmatch(text):
        return match.group(1) if match.group(1) is not None else match.group(2)
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        return text


def _compare(left: Any, operator: str, right: Any) -> bool:
    if operator == "==":
        return type(left) is type(right) and bool(left == right)
    if operator == "!=":
        return not (type(left) is type(right) and left == right)
    try:
        order = (left > right) - (left < right)
    except TypeError:
        return False
    return bool({"<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0}[operator])
