"""Finds the expressions in the plain values of a set's template."""

from collections.abc import Iterator, Mapping
from typing import Any

STATIC_MAPS = frozenset(["labels", "annotations", "data", "configMap"])
"""Fields whose keys the user chooses: a label may be named `costExpr`."""


def expressions_of(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (field path, text) of each expression below a value. `path` is the field path of the value."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            if name.endswith("Expr") and isinstance(below, str):
                yield f"{path}.{name}", below
            elif name == "removeKeyExprs":
                yield from ((f"{path}.{name}[{number}]", text) for number, text in enumerate(below))
            elif name not in STATIC_MAPS:
                yield from expressions_of(below, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, below in enumerate(value):
            yield from expressions_of(below, f"{path}[{number}]")
