"""Fields in kustomize's form: a path such as `spec/manifest/images[]/image` in objects of a group and kind.

Source: kustomize api v0.20.1 filters/fieldspec. A list on the way stands for each of its elements, with or
without `[]`; `\\/` is a slash inside a key.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pvbus.controlplane.packages.functions.item import (
    EACH,
    FieldPath,
    Item,
    Value,
    config_fault,
    text_of,
)
from pvbus.controlplane.packages.functions.yamltext import Path
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import DEPTH_MAX, get

_SLASH = re.compile(r"(?<!\\)/")


class FieldSpec(NamedTuple):
    """A field of some kinds.

    path: the path of the field
    kind: the kind, "" for any
    group: the API group, "" for any; `core` is the empty API group
    version: the version, "" for any
    create: whether the field is created where it is missing
    """

    path: FieldPath
    kind: str = ""
    group: str = ""
    version: str = ""
    create: bool = False

    def matches(self, item: Item) -> bool:
        group = "" if self.group == "core" else self.group
        return (
            self.kind in ("", item.kind)
            and (not self.group or group == item.group)
            and self.version in ("", item.version)
        )

    def find(self, value: Any) -> Iterator[Path]:
        """Yield where the field is in an object. Raises: PermanentError if a scalar is in the way."""
        return _found(value, tuple(part for part in self.path if part != EACH))


def parse_path(text: str) -> FieldPath:
    """Split a path; `EACH` follows a part with `[]`."""
    parts: list[str] = []
    for part in _SLASH.split(text.strip("/")):
        part = part.replace("\\/", "/")
        parts += [part.removesuffix("[]"), EACH] if part.endswith("[]") else [part]
    return tuple(parts)


def additional_fields(config: Value | None, field: str, old: str = "") -> list[FieldSpec]:
    """Return the fields that a function's own kind adds, under their present or their old name.

    Raises: PermanentError if an entry is not one.
    """
    if not config or config["kind"] == "ConfigMap":
        return []
    if config.get(field) and config.get(old):
        raise config_fault(
            f"`{old}` and `{field}` cannot be used together: `{old}` has been deprecated, please rename it "
            f"to `{field}`"
        )
    specs = config.get(field) or config.get(old) or []
    if not isinstance(specs, list):
        raise config_fault(f"`{field}` is not a list")
    return [_parsed(spec, field) for spec in specs]


def _parsed(spec: Any, field: str) -> FieldSpec:
    path = get(spec, ("path",))
    if not isinstance(path, str) or not path.strip("/"):
        raise config_fault(f"an entry of `{field}` has no path")
    parts = parse_path(path)
    if len(parts) > DEPTH_MAX:
        raise config_fault(f"a path of `{field}` has more than {DEPTH_MAX} parts: {path[:80]}...")
    kind, group, version = (text_of(spec.get(name)) for name in ("kind", "group", "version"))
    return FieldSpec(parts, kind, group, version, spec.get("create") is True)


def _found(value: Any, path: FieldPath) -> Iterator[Path]:
    if not path:
        yield ()
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from ((index, *rest) for rest in _found(each, path))
    elif isinstance(value, dict):
        if path[0] in value:
            yield from ((path[0], *rest) for rest in _found(value[path[0]], path[1:]))
    elif value is not None:
        raise PermanentError(f"the parent of `{path[0]}` is not a map or a list", reason="InvalidResource")
