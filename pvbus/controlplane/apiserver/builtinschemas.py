"""Parts of the schemas of built-in kinds, and the form in which these are served."""

from typing import Any

from pvbus.controlplane.apiserver.kinds import ALL_VERBS, ServedKind, ServedVersion

JsonSchema = dict[str, Any]


def string(description: str, **more: Any) -> JsonSchema:
    """Return the schema of a text."""
    return {"type": "string", "description": description, **more}


def time(description: str) -> JsonSchema:
    """Return the schema of a time."""
    return string(description, format="date-time", nullable=True)


def integer(description: str) -> JsonSchema:
    """Return the schema of a number."""
    return {"type": "integer", "description": description}


def boolean(description: str) -> JsonSchema:
    """Return the schema of true or false."""
    return {"type": "boolean", "description": description}


def strings(description: str) -> JsonSchema:
    """Return the schema of a list of texts."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def mapping(description: str, **value: Any) -> JsonSchema:
    """Return the schema of texts by name."""
    return {
        "type": "object",
        "additionalProperties": {"type": "string", **value},
        "description": description,
    }


def list_of(description: str, items: JsonSchema) -> JsonSchema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "description": description}


def object_of(description: str, /, required: tuple[str, ...] = (), **properties: JsonSchema) -> JsonSchema:
    """Return the schema of an object of these fields."""
    schema: JsonSchema = {"type": "object", "description": description, "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def open_object(description: str) -> JsonSchema:
    """Return the schema of an object of any fields."""
    return {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}


def label_selector(description: str) -> JsonSchema:
    """Return the schema of a selector of labels."""
    condition = object_of(
        "One condition.",
        required=("key", "operator"),
        key=string("The label."),
        operator=string("In, NotIn, Exists or DoesNotExist."),
        values=strings("Of In and NotIn."),
    )
    return object_of(
        description,
        matchLabels=mapping("Labels with these values."),
        matchExpressions=list_of("Conditions on labels.", condition),
    )


def kind_schema(description: str, required: tuple[str, ...] = (), **properties: JsonSchema) -> JsonSchema:
    """Return the schema of an object with metadata."""
    return object_of(
        description,
        required=required,
        apiVersion=string("Group and version that this object is written in."),
        kind=string("What this object is."),
        metadata={"type": "object", "description": "Name, labels and what else every object has."},
        **properties,
    )


def served_kind(
    group: str,
    version: str,
    kind: str,
    plural: str,
    schema: JsonSchema,
    *,
    short_names: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    namespaced: bool = True,
    subresources: frozenset[str] = frozenset(),
    shares_status: bool = False,
    verbs: tuple[str, ...] = ALL_VERBS,
) -> ServedKind:
    """Return a kind of one version."""
    at = ServedVersion(name=version, schema=schema, subresources=subresources, shares_status=shares_status)
    return ServedKind(
        group=group,
        kind=kind,
        list_kind=f"{kind}List",
        plural=plural,
        singular=kind.lower(),
        short_names=short_names,
        categories=categories,
        namespaced=namespaced,
        versions=(at,),
        verbs=verbs,
    )
