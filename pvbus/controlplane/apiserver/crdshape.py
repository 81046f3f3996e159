"""The types and the size of what a CustomResourceDefinition says, before its meaning is looked at."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pvbus.controlplane.apiserver.nodes import FieldError, too_many

SCHEMA_NODES_MAX = 20_000
"""Objects in one schema. The largest definitions in use have about 15,000; this many take a second."""

RULES_MAX = 500
"""Rules in one schema; each takes some milliseconds to compile."""

Text = str | None
Flag = bool | None
Number = int | float | None
Count = int | None


class _Rule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    rule: Text = None
    message: Text = None
    message_expression: Text = None
    reason: Text = None
    field_path: Text = None
    optional_old_self: Flag = None


def _field_name(name: str) -> str:
    if name.startswith("x_"):
        return f"x-kubernetes-{name[2:].replace('_', '-')}"
    if name in ("not_", "id_"):
        return name[:-1]
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


class _Schema(msgspec.Struct, frozen=True, kw_only=True, rename=_field_name):
    """JSONSchemaProps of apiextensions.k8s.io/v1, as far as its types matter here."""

    id_: Text = None
    type: Text = None
    format: Text = None
    title: Text = None
    description: Text = None
    nullable: Flag = None
    maximum: Number = None
    exclusive_maximum: Flag = None
    minimum: Number = None
    exclusive_minimum: Flag = None
    multiple_of: Number = None
    max_length: Count = None
    min_length: Count = None
    max_items: Count = None
    min_items: Count = None
    max_properties: Count = None
    min_properties: Count = None
    pattern: Text = None
    unique_items: Flag = None
    enum: list[Any] | None = None
    required: list[str] | None = None
    items: "_Schema | list[Any] | bool | None" = None
    all_of: "list[_Schema] | None" = None
    one_of: "list[_Schema] | None" = None
    any_of: "list[_Schema] | None" = None
    not_: "_Schema | None" = None
    properties: "dict[str, _Schema] | None" = None
    additional_properties: "_Schema | bool | None" = None
    x_preserve_unknown_fields: Flag = None
    x_embedded_resource: Flag = None
    x_int_or_string: Flag = None
    x_list_type: Text = None
    x_list_map_keys: list[str] | None = None
    x_map_type: Text = None
    x_validations: list[_Rule] | None = None


class _Validation(msgspec.Struct, frozen=True, kw_only=True):
    schema: _Schema | None = msgspec.field(default=None, name="openAPIV3Schema")


class _Column(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Text = None
    type: Text = None
    json_path: Text = None
    priority: Count = None
    format: Text = None
    description: Text = None


class _Version(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: Text = None
    served: Flag = None
    storage: Flag = None
    schema: _Validation | None = None
    subresources: dict[str, Any] | None = None
    additional_printer_columns: list[_Column] | None = None


class _Names(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    plural: Text = None
    singular: Text = None
    kind: Text = None
    list_kind: Text = None
    short_names: list[str] | None = None
    categories: list[str] | None = None


class _Conversion(msgspec.Struct, frozen=True, kw_only=True):
    strategy: Text = None


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group: Text = None
    scope: Text = None
    names: _Names | None = None
    versions: list[_Version] | None = None
    conversion: _Conversion | None = None
    preserve_unknown_fields: Flag = None


class _Definition(msgspec.Struct, frozen=True, kw_only=True):
    spec: _Spec | None = None


def shape_problem(crd: Mapping[str, Any]) -> str:
    """Return which field has a type that a definition cannot have, "" if none has."""
    try:
        msgspec.convert(crd, _Definition)
    except msgspec.ValidationError as exc:
        return str(exc).replace("`$.", "`")
    except RecursionError:
        return "it is nested too deeply"
    return ""


def size_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Limit what compiling a schema and validating with it may cost."""
    nodes = rules = 0
    level: list[Any] = [schema]
    while level:
        objects = [item for item in level if isinstance(item, dict)]
        nodes += len(objects)
        rules += sum(len(item.get("x-kubernetes-validations") or ()) for item in objects)
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in level if isinstance(child, (dict, list))]
    for field, count, limit in (
        (path, nodes, SCHEMA_NODES_MAX),
        (f"{path}.x-kubernetes-validations", rules, RULES_MAX),
    ):
        if count > limit:
            yield too_many(field, count, limit)
