"""Changes every map at a path with wildcards."""

from collections.abc import Callable
from typing import Any

from pvbus.core.errors import PermanentError

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
