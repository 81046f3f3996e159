"""What differs between two values, and between the files of two packages: as data, and as text for people."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import unified_diff
from typing import Any

from rich.markup import escape

from pvbus.adapters.memory.objects import copy_of

Document = dict[str, Any]


def differences(before: Any, after: Any, path: str = "") -> list[Document]:
    """Return the fields in which two values differ, each with its path and both values in full.

    Absent, null and empty are equal, as for an API server. Lists of equal length are compared item by item;
    others as a whole.
    """
    before, after = (list(value) if isinstance(value, tuple) else value for value in (before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for key in sorted({*before, *after}, key=str)
            for found in differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            found
            for number, (one, other) in enumerate(zip(before, after, strict=True))
            for found in differences(one, other, f"{path}[{number}]")
        ]
    same = before == after and isinstance(before, bool) == isinstance(after, bool)
    if same or (_is_empty(before) and _is_empty(after)):
        return []
    return [{"path": path, "before": copy_of(before), "after": copy_of(after)}]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, dict | list | str) and not value)


def unified(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the differing files of a package as git shows them."""
    return "".join(line for path in sorted({*before, *after}) for line in _file_diff(path, before, after))


def _file_diff(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterable[str]:
    one, other = before.get(path), after.get(path)
    if one == other:
        return
    yield from (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in unified_diff(
            (one or "").splitlines(keepends=True),
            (other or "").splitlines(keepends=True),
            f"a/{path}" if one is not None else "/dev/null",
            f"b/{path}" if other is not None else "/dev/null",
        )
    )


def diff_lines(diff: str, *, indent: str = "    ") -> Iterator[str]:
    """Yield the lines of a diff with rich markup."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff.splitlines():
        colour = colours.get(line[:1])
        yield f"{indent}[{colour}]{escape(line)}[/]" if colour else f"{indent}{escape(line)}"
