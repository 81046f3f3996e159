"""Finds what an API server left out of a spec that it stored.

A cluster whose CustomResourceDefinition is of an older release drops the fields that it does not know, and
answers as if all were well.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from pvbus.core.api.variants import PackageVariantSpec

FIELDS_MAX = 10
"""Fields that are named; a definition that has none at all would name hundreds."""


def dropped_fields(sent: PackageVariantSpec, stored: PackageVariantSpec) -> tuple[str, ...]:
    """Return the paths of the fields of `sent` that `stored` has not, the first ones in their order."""
    if sent == stored:  # as nearly always: a twentieth of what a variant costs is saved
        return ()
    paths = _missing(msgspec.to_builtins(sent), msgspec.to_builtins(stored), "spec")
    return tuple(path for path, _ in zip(paths, range(FIELDS_MAX), strict=False))


def _missing(sent: Any, stored: Any, path: str) -> Iterator[str]:
    if isinstance(sent, dict):
        for name, value in sent.items():
            if not isinstance(stored, dict) or name not in stored:
                yield f"{path}.{name}"
            else:
                yield from _missing(value, stored[name], f"{path}.{name}")
    elif isinstance(sent, list | tuple) and isinstance(stored, list | tuple) and len(sent) == len(stored):
        for number, (one, other) in enumerate(zip(sent, stored, strict=True)):
            yield from _missing(one, other, f"{path}[{number}]")
