"""search-replace: find fields by value, path and file; set their values or comments.

Source: functions/go/search-replace v0.2.0 of the krm-functions-catalog. `by-file-path` knows `**`, `*`
and `?`, not the other patterns of the catalog's library.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import yaml

from pvbus.controlplane.packages.functions.comments import (
    dotted,
    keyed_lists,
    with_comments,
    with_key_comments,
)
from pvbus.controlplane.packages.functions.files import path_matches
from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Result,
    Scalar,
    Value,
    config_fault,
    scalar_at,
    scalars,
    text_of,
)
from pvbus.controlplane.packages.functions.limits import check_length, check_time
from pvbus.controlplane.packages.functions.selecting import Expression, expression
from pvbus.controlplane.packages.functions.yamltext import Path, compose
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import get, replaced

_MATCHERS = ("by-value", "by-file-path", "by-value-regex", "by-path", "put-value", "put-comment")
_GROUP = re.compile(r"\$\{([0-9]+)\}")


class _Search(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The configuration of the function; a matcher or value that is not given is "".

    by_value: the value to find
    by_value_regex: an expression that the value matches
    by_path: the path of the field, with wildcards
    by_file_path: the path of the file, with wildcards
    put_value: the new value
    put_comment: the new comment
    """

    by_value: str = ""
    by_value_regex: str = ""
    by_path: str = ""
    by_file_path: str = ""
    put_value: str = ""
    put_comment: str = ""

    @property
    def puts_by_path(self) -> bool:
        """Whether the value is put at one exact path, which is created where it is missing."""
        parts = self.by_path.split(".")
        is_exact = all(part and "*" not in part and "[" not in part for part in parts)
        return bool(is_exact and self.put_value and not self.by_value and not self.by_value_regex)


class _Found(NamedTuple):
    """A field that was found or changed.

    field: its path
    value: its present value
    """

    field: str
    value: str


def search_replace(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Change, or only report, every field that fits all given matchers."""
    search = _configured(config)
    pattern = expression(search.by_value_regex, "`by-value-regex`") if search.by_value_regex else None
    action = "Mutated field value to" if search.put_value or search.put_comment else "Matched field value"
    changed: list[Item] = []
    results: list[Result] = []
    for item in items:
        after, found = item, list[_Found]()
        if not search.by_file_path or path_matches(search.by_file_path.split("/"), item.path.split("/")):
            after, found = _put(item, search) if search.puts_by_path else _searched(item, search, pattern)
        changed.append(after)
        for each in found:
            message = f"{action} {msgspec.json.encode(each.value).decode()}"
            results.append(Result(message=message, field={"path": each.field}, file={"path": item.path}))
    return FunctionOutput(items=tuple(changed), results=tuple(results) or (Result(message="no matches"),))


def _configured(config: Value | None) -> _Search:
    data = (config or {}).get("data") or {}
    if not isinstance(data, dict):
        raise config_fault("the data of the functionConfig is not a map")
    for name in data:
        if name not in _MATCHERS:
            listed = " ".join(f'"{each}"' for each in _MATCHERS)
            raise config_fault(f'invalid matcher "{name}", must be one of [{listed}]')
    search = msgspec.convert({name: text_of(value) for name, value in data.items()}, _Search)
    if search.by_value and search.by_value_regex:
        raise config_fault('only one of ["by-value", "by-value-regex"] can be provided')
    if any(char in search.by_file_path for char in "[{\\"):
        raise config_fault("`by-file-path` can have `**`, `*` and `?` only: use several functions instead")
    return search


def _put(item: Item, search: _Search) -> tuple[Item, list[_Found]]:
    """Put the value at its path; the present quotes stay."""
    path: Path = tuple(search.by_path.split("."))
    for length in range(1, len(path)):
        if not isinstance(get(item.value, path[:length]), dict | None):
            raise PermanentError(
                f"{item}: `{'.'.join(map(str, path[:length]))}` is not a map", reason="InvalidResource"
            )
    found = [_Found(search.by_path, search.put_value)]
    present = scalar_at(item, path)
    style = present.style if present else ""
    scalar = Scalar(search.put_value, style, is_string=bool(style))
    if present is None:
        return item.with_value(replaced(item.value, path, scalar.value)), found
    return item.with_scalar(path, scalar), found


def _searched(item: Item, search: _Search, pattern: Expression | None) -> tuple[Item, list[_Found]]:
    found: list[_Found] = []
    comment = f"# {search.put_comment}"
    lists = keyed_lists(compose(item.text)) if search.put_comment else ()
    marked = [each for each in lists if each.node.value and _is_at(each.path, search.by_path)]
    for keyed in marked:
        texts = [each.value for each in keyed.node.value if isinstance(each, yaml.ScalarNode)]
        found.append(_Found(f"{search.by_path} {comment}", f"[{', '.join(texts)}]"))
    item = with_key_comments(item, {keyed.path: comment for keyed in marked})
    wanted: dict[Path, Scalar] = {}
    for path, node in scalars(compose(item.text)):
        check_time()
        if not _fits(path, node.value, search, pattern):
            continue
        comment = _resolved(search.put_comment, node.value, pattern)
        value = _resolved(search.put_value, node.value, pattern) if search.put_value else node.value
        style = node.style or ""
        wanted[path] = Scalar(value, style, is_string=bool(style), comment=comment and f"# {comment}")
        found.append(_Found(dotted(path), f"{value} # {comment}" if comment else value))
    if search.put_comment:
        return with_comments(item, wanted), found
    return item.with_scalars(list(wanted.items())) if search.put_value else item, found


def _fits(path: Path, value: str, search: _Search, pattern: Expression | None) -> bool:
    is_value = search.by_value == value != "" or bool(pattern and pattern.search(value))
    if not search.by_path:
        return is_value
    return (is_value or not (search.by_value or pattern)) and _is_at(path, search.by_path)


def _is_at(path: Path, wanted: str) -> bool:
    """Return whether a field is at a path: `*` is any part, `**` any number, `a[*]` any element of a."""
    return bool(wanted) and path_matches(wanted.split("."), dotted(path).split("."), _part_matches)


def _part_matches(pattern: str, part: str) -> bool:
    if pattern in ("*", part):
        return True
    name, bracket, index = part.partition("[")
    wanted, _, wanted_index = pattern.partition("[")
    return (
        bool(bracket)
        and wanted in ("*", name)
        and wanted_index.partition("[")[0] in ("*]", index.partition("[")[0])
    )


def _resolved(pattern: str, value: str, search: Expression | None) -> str:
    """Return the pattern with the groups that the expression finds in the value."""
    match = search.search(value) if search and pattern else None
    if match is None:
        return pattern
    for number, group in enumerate(match.groups(default=""), start=1):
        check_length(len(pattern) + pattern.count(f"${{{number}}}") * len(group))
        pattern = pattern.replace(f"${{{number}}}", group)
    if _GROUP.search(pattern):
        raise config_fault("unable to resolve capture groups")
    return pattern
