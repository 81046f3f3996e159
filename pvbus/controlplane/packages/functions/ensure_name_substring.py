"""ensure-name-substring: put a text before or behind every name that does not have it.

Source: functions/go/ensure-name-substring v0.2.0 of the krm-functions-catalog. Objects that are for the
package itself are renamed, too. References to renamed objects follow (`name_references`).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pvbus.controlplane.packages.functions.fieldspecs import FieldSpec, additional_fields, parse_path
from pvbus.controlplane.packages.functions.item import (
    FunctionOutput,
    Item,
    Value,
    config_fault,
    config_field,
    text_of,
)
from pvbus.controlplane.packages.functions.name_references import Rename, follow
from pvbus.controlplane.packages.functions.set_namespace import DEPENDS_ON
from pvbus.controlplane.packages.functions.yamltext import Path
from pvbus.core.yaml.editor import get, replaced

_NAME = FieldSpec(parse_path("metadata/name"), create=True)
_MODES = ("prepend", "append")
_SKIPPED = (
    FieldSpec((), "CustomResourceDefinition"),
    FieldSpec((), "APIService", "apiregistration.k8s.io"),
    FieldSpec((), "Namespace"),
    FieldSpec((), "Kptfile", "kpt.dev"),
)
_DEPENDENCY = re.compile(r"([-.\w]*)/(?:namespaces/[-.\w]*/)?([-.\w]*)/([-.\w]*)", re.ASCII)


class _Edit(NamedTuple):
    """The text, and whether it is put behind the name."""

    substring: str
    appended: bool

    def applied(self, name: str) -> str:
        return f"{name}{self.substring}" if self.appended else f"{self.substring}{name}"


def ensure_name_substring(items: Sequence[Item], config: Value | None) -> FunctionOutput:
    """Put the configured text into every name, and the new names into what refers to them."""
    edit = _configured(config)
    fields = (_NAME, *additional_fields(config, "additionalNameFields", "fieldSpecs"))
    present = {(item.group, item.kind, item.name) for item in items}
    renamed = [Rename(item, _renamed(item, edit, fields, present)) for item in items]
    return FunctionOutput(items=tuple(follow(renamed)))


def _configured(config: Value | None) -> _Edit:
    given = config_field(config, "substring", "EnsureNameSubstring")
    if config and config["kind"] != "ConfigMap":
        mode, substring = text_of(config.get("editMode")) or _MODES[0], text_of(given)
    else:
        entries = list((given if isinstance(given, dict) else {}).items())
        if len(entries) != 1:
            raise config_fault(f"only 1 entry is allowed in the ConfigMap, but got: {len(entries)}")
        mode, substring = entries[0][0], text_of(entries[0][1])
    if mode not in _MODES:
        raise config_fault(f"unknown editMode: {mode}, only {' and '.join(_MODES)} are allowed")
    if not substring:
        raise config_fault("substring must not be empty")
    return _Edit(substring, mode == "append")


def _renamed(
    item: Item, edit: _Edit, fields: Sequence[FieldSpec], present: set[tuple[str, str, str]]
) -> Item:
    changed = item
    for field in () if any(each.matches(item) for each in _SKIPPED) else fields:
        if field.matches(item):
            changed = _edited(changed, field, edit)
    return changed if changed is item else _with_dependency(changed, edit, present)


def _edited(item: Item, field: FieldSpec, edit: _Edit) -> Item:
    texts: dict[Path, str] = {}
    paths = list(field.find(item.value))
    for path in paths:
        value = get(item.value, path)
        if isinstance(value, dict | list):
            raise config_fault(f"{item}: `{'/'.join(map(str, path))}` is not a name, but a map or a list")
        if edit.substring not in text_of(value):
            texts[path] = edit.applied(text_of(value))
    if not paths and field.create:
        return item.with_value(replaced(item.value, field.path, edit.substring))
    return item.with_texts(texts)


def _with_dependency(item: Item, edit: _Edit, present: set[tuple[str, str, str]]) -> Item:
    """Return the item with the new name in its annotation, if that names an object of the package."""
    path = ("metadata", "annotations", DEPENDS_ON)
    match = _DEPENDENCY.fullmatch(text_of(get(item.value, path)))
    if not match or (match[1], match[2], match[3]) not in present:
        return item
    return item.with_texts({path: f"{match[0][: match.start(3)]}{edit.applied(match[3])}"})
