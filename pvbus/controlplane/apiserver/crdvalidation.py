"""Validates a CustomResourceDefinition before it is served: types and sizes first, then semantics.

Source of the rules: Kubernetes' "structural schema" documentation and the validation of
apiextensions-apiserver (v0.36); only rules that affect the meaning of stored objects are enforced.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from pvbus.controlplane.apiserver.nodes import (
    FieldError,
    forbidden,
    invalid,
    required,
    shown,
    too_many,
    unsupported,
)
from pvbus.controlplane.apiserver.rules import Rule
from pvbus.controlplane.apiserver.structural import compile_schema
from pvbus.core.cel.patterns import go_pattern

SCHEMA_NODES_MAX = 20_000
"""Maximum objects in one schema. The largest definitions in use have about 15,000; so many take a second."""

RULES_MAX = 500
"""Maximum rules in one schema; each takes some milliseconds to compile."""

RULE_BYTES_MAX = 64 * 1024
"""Maximum bytes of the different rules and message expressions of a definition. They are compiled in one
piece, at some 5 microseconds a byte, so all take 0.3 s."""

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
    """JSONSchemaProps of apiextensions.k8s.io/v1: the fields whose types matter here."""

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
    """Return the error for the first field with a wrong type, "" if there is none."""
    try:
        msgspec.convert(crd, _Definition)
    except msgspec.ValidationError as exc:
        return str(exc).replace("`$.", "`")
    except RecursionError:
        return "it is nested too deeply"
    return ""


def size_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Limit the cost of compiling a schema and validating with it."""
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


def _rule_bytes(schemas: Sequence[Any]) -> int:
    """Return the size of the rules and message expressions of schemas; equal ones are compiled once."""
    texts: set[str] = set()
    level = list(schemas)
    while level:
        rules = [
            rule
            for item in level
            if isinstance(item, dict) and isinstance(item.get("x-kubernetes-validations"), list)
            for rule in item["x-kubernetes-validations"]
            if isinstance(rule, dict)
        ]
        found = [rule.get(field) for rule in rules for field in ("rule", "messageExpression")]
        texts.update(text for text in found if isinstance(text, str))
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
        level = [child for child in level if isinstance(child, (dict, list))]
    return sum(len(text.encode()) for text in texts)


_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_FORBIDDEN = {
    "$ref": "$ref is not supported",
    "definitions": "definitions is not supported",
    "dependencies": "dependencies is not supported",
    "patternProperties": "patternProperties is not supported",
    "additionalItems": "additionalItems is not supported",
    "id": "id is not supported",
}
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LIST_TYPES = ("atomic", "set", "map")
_ONLY_STRUCTURAL = ("type", "default", "nullable", "additionalProperties", "description", "title")
"""Fields that anyOf, oneOf, allOf and not must not contain: these only restrict the schema outside."""


def validate_crd(crd: Mapping[str, Any]) -> list[FieldError]:
    """Return the errors that prevent serving this CustomResourceDefinition (apiextensions.k8s.io/v1)."""
    if problem := shape_problem(crd):
        return [FieldError("spec", "FieldValueTypeInvalid", f"Invalid value: {problem}")]
    spec = crd.get("spec") or {}
    return [*_name_errors(crd, spec), *_version_errors(spec.get("versions") or [])]


def _name_errors(crd: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[FieldError]:
    names = spec.get("names") or {}
    group, plural, kind = spec.get("group") or "", names.get("plural") or "", names.get("kind") or ""
    name = (crd.get("metadata") or {}).get("name")
    if name != f"{plural}.{group}":
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    if not group:
        yield required("spec.group")
    elif len(group) > 253:
        yield invalid("spec.group", group, "must be no more than 253 bytes")
    elif _SUBDOMAIN.fullmatch(group) is None:
        yield invalid("spec.group", group, "should be a domain with at least one dot")
    for path, value in (("spec.names.plural", plural), ("spec.names.kind", kind.lower())):
        if not value:
            yield required(path)
        elif _LABEL.fullmatch(value) is None:
            yield invalid(path, value, "a DNS-1035 label must consist of lower case alphanumeric characters")
    scope = spec.get("scope")
    if not scope:
        yield required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        yield unsupported("spec.scope", scope, ("Cluster", "Namespaced"))
    if spec.get("preserveUnknownFields"):
        yield invalid(
            "spec.preserveUnknownFields", True, "must be false in apiextensions.k8s.io/v1 to use defaults"
        )
    strategy = (spec.get("conversion") or {}).get("strategy", "None")
    if strategy != "None":
        yield unsupported("spec.conversion.strategy", strategy, ("None",))


def _version_errors(versions: list[Mapping[str, Any]]) -> Iterator[FieldError]:
    if not versions:
        yield required("spec.versions", "must have at least one version")
        return
    if sum(bool(version.get("storage")) for version in versions) != 1:
        found = [version.get("name") for version in versions if version.get("storage")]
        yield invalid("spec.versions", found, "must have exactly one version marked as storage version")
    schemas: list[Any] = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    size = _rule_bytes([schema for schema in schemas if isinstance(schema, dict)])
    if size > RULE_BYTES_MAX:
        why = f"the rules in x-kubernetes-validations have {size} bytes, of at most {RULE_BYTES_MAX}"
        yield FieldError("spec.versions", "FieldValueTooLong", f"Too long: {why}: shorten or remove some")
        return
    # A schema that all versions share is reported once, at its path in Kubernetes' internal version.
    shared = isinstance(schemas[0], Mapping) and all(schema == schemas[0] for schema in schemas)
    seen = set()
    for index, version in enumerate(versions):
        path, name = f"spec.versions[{index}]", version.get("name") or ""
        if _LABEL.fullmatch(name) is None:
            yield invalid(f"{path}.name", name, "must be a DNS-1035 label")
        if name in seen:
            yield FieldError(f"{path}.name", "FieldValueDuplicate", f"Duplicate value: {shown(name)}")
        seen.add(name)
        path += ".schema.openAPIV3Schema"
        if not isinstance(schemas[index], Mapping):
            yield required(path, "schemas are required")
        elif not shared:
            yield from _root_errors(schemas[index], path)
        yield from _column_errors(version, f"spec.versions[{index}]")
    if shared:
        yield from _root_errors(schemas[0], "spec.validation.openAPIV3Schema")


JSON_PATH_MAX = 1024
"""Longest path of a printer column; the time to compile one grows with the square of its length."""


def _column_errors(version: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        at = f"{path}.additionalPrinterColumns[{index}]"
        for field in ("name", "type", "jsonPath"):
            if not column.get(field):
                yield required(f"{at}.{field}")
        if len(column.get("jsonPath") or "") > JSON_PATH_MAX:
            why = f"Too long: may not be more than {JSON_PATH_MAX} bytes"
            yield FieldError(f"{at}.jsonPath", "FieldValueTooLong", why)


def _root_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Check a whole schema."""
    too_large = list(size_errors(schema, path))
    yield from too_large
    if too_large:
        return
    found = list(_schema_errors(schema, path, "root"))
    yield from found
    if not found:  # with errors, a pattern or rule may not compile
        for at, _, error in compile_schema(schema).default_errors():
            yield error._replace(path=f"{path}{at}.{error.path}")


_Level = Literal["root", "field", "item"]
_WITHOUT_TYPE: Mapping[_Level, str] = {
    "root": "must not be empty at the root",
    "field": "must not be empty for specified object fields",
    "item": "must not be empty for specified array items",
}


_METADATA_IS_IMPLICIT = (
    "must not specify anything other than name and generateName, but metadata is implicitly specified"
)


def _schema_errors(schema: Mapping[str, Any], path: str, level: _Level) -> Iterator[FieldError]:
    """Check one level and all levels below it."""
    yield from _level_errors(schema, path, level)
    yield from _identity_errors(schema, path, level)
    yield from _list_errors(schema, path)
    for name in ("anyOf", "oneOf", "allOf", "not"):
        branches = schema.get(name) or []
        for index, branch in enumerate(branches if isinstance(branches, list) else [branches]):
            at = f"{path}.{name}" if name == "not" else f"{path}.{name}[{index}]"
            if not schema.get("x-kubernetes-int-or-string"):
                yield from _branch_errors(branch, at)
    for name, child in (schema.get("properties") or {}).items():
        yield from _schema_errors(child, f"{path}.properties[{name}]", "field")
    for name, below in _BELOW:
        if isinstance(schema.get(name), Mapping):
            yield from _schema_errors(schema[name], f"{path}.{name}", below)


_BELOW: tuple[tuple[str, _Level], ...] = (("items", "item"), ("additionalProperties", "field"))


def _identity_errors(schema: Mapping[str, Any], path: str, level: _Level) -> Iterator[FieldError]:
    """Check the fields that every object has: a root schema may restrict only names in metadata."""
    if level != "root" and not schema.get("x-kubernetes-embedded-resource"):
        return
    properties = schema.get("properties") or {}
    for name, wanted in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        if name in properties and properties[name].get("type") != wanted:
            found = properties[name].get("type", "")
            yield invalid(f"{path}.properties[{name}].type", found, f"must be {wanted}")
    if level == "root" and "metadata" in properties:
        said = {key for key, value in properties["metadata"].items() if value} - {"type", "default"}
        restricted = set(properties["metadata"].get("properties") or ())
        if said - {"properties"} or restricted - {"name", "generateName"}:
            yield forbidden(f"{path}.properties[metadata]", _METADATA_IS_IMPLICIT)


def _level_errors(schema: Mapping[str, Any], path: str, level: _Level) -> Iterator[FieldError]:
    for name, why in _FORBIDDEN.items():
        if name in schema:
            yield forbidden(f"{path}.{name}", why)
    free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    kind = schema.get("type")
    if not kind and not free:
        yield required(f"{path}.type", _WITHOUT_TYPE[level])
    elif kind and kind not in _TYPES:
        yield unsupported(f"{path}.type", kind, _TYPES)
    elif level == "root" and kind != "object":
        yield invalid(f"{path}.type", kind, "must be object at the root")
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        why = "must be true or undefined"
        yield invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, why)
    extra = schema.get("additionalProperties")
    if extra is not None and level == "root":
        yield forbidden(f"{path}.additionalProperties", "must not be used at the root")
    if extra is not None and schema.get("properties"):
        why = "additionalProperties and properties are mutual exclusive"
        yield forbidden(f"{path}.additionalProperties", why)
    elif extra is False:
        yield forbidden(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    if schema.get("pattern"):
        try:
            go_pattern(schema["pattern"])
        except ValueError as error:
            yield invalid(
                f"{path}.pattern",
                schema["pattern"],
                f"must be a valid regular expression, but isn't: {error}",
            )
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        at = f"{path}.x-kubernetes-validations[{index}].rule"
        try:
            Rule(rule)
        except KeyError:
            yield required(at)
        except ValueError as error:
            yield invalid(at, rule["rule"], f"compilation failed: {error}")


def _list_errors(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", why)
    items = schema.get("items")
    if schema.get("type") == "array" and not isinstance(items, Mapping):
        yield required(f"{path}.items", "must be specified")
        return
    list_type = schema.get("x-kubernetes-list-type")
    if list_type is not None and list_type not in _LIST_TYPES:
        yield unsupported(f"{path}.x-kubernetes-list-type", list_type, _LIST_TYPES)
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if list_type == "map" and not keys:
        yield required(
            f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"
        )
    if list_type == "map" and isinstance(items, Mapping):
        properties, demanded = items.get("properties") or {}, items.get("required") or ()
        for index, key in enumerate(keys):
            at = f"{path}.x-kubernetes-list-map-keys[{index}]"
            if key not in properties:
                yield invalid(at, key, "must be a property of the items")
            elif key not in demanded and "default" not in properties[key]:
                yield required(
                    f"{path}.items.properties[{key}].default",
                    "it is a list map key, so must be required or have a default",
                )


def _branch_errors(branch: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for name in _ONLY_STRUCTURAL:
        if name in branch:
            yield forbidden(f"{path}.{name}", "must be empty to be structural")
    for name, child in (branch.get("properties") or {}).items():
        yield from _branch_errors(child, f"{path}.properties[{name}]")
    if isinstance(branch.get("items"), Mapping):
        yield from _branch_errors(branch["items"], f"{path}.items")
