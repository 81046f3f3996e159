"""The kinds that are served without a CustomResourceDefinition, with their schemas.

Field names and types are those of Kubernetes v1.36 (core/v1, events.k8s.io/v1, apiextensions.k8s.io/v1); the
descriptions are our own. The schemas of Porch's porch.kpt.dev/v1alpha1 come from our API types.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.controlplane.apiserver.kinds import ALL_VERBS, ServedKind, ServedVersion
from pvbus.controlplane.apiserver.registry import NEW_EVENT_NAMES
from pvbus.core.api.crds import open_api
from pvbus.core.api.variants import PORCH_GROUP

_Schema = dict[str, Any]


def _string(description: str, **more: Any) -> _Schema:
    return {"type": "string", "description": description, **more}


def _time(description: str) -> _Schema:
    return _string(description, format="date-time", nullable=True)


def _integer(description: str) -> _Schema:
    return {"type": "integer", "description": description}


def _boolean(description: str) -> _Schema:
    return {"type": "boolean", "description": description}


def _strings(description: str) -> _Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _mapping(description: str, **value: Any) -> _Schema:
    return {
        "type": "object",
        "additionalProperties": {"type": "string", **value},
        "description": description,
    }


def _list(description: str, items: _Schema) -> _Schema:
    return {"type": "array", "items": items, "description": description}


def _object(description: str, /, required: tuple[str, ...] = (), **properties: _Schema) -> _Schema:
    schema: _Schema = {"type": "object", "description": description, "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def _open(description: str) -> _Schema:
    return {"type": "object", "description": description, "x-kubernetes-preserve-unknown-fields": True}


def _kind_schema(description: str, required: tuple[str, ...] = (), **properties: _Schema) -> _Schema:
    return _object(
        description,
        required=required,
        apiVersion=_string("Group and version that this object is written in."),
        kind=_string("What this object is."),
        metadata={"type": "object", "description": "Name, labels and what else every object has."},
        **properties,
    )


def _conditions(description: str) -> _Schema:
    condition = _object(
        "One condition.",
        required=("type", "status"),
        type=_string("What this condition is about, in CamelCase."),
        status=_string("True, False or Unknown."),
        reason=_string("Why, in one CamelCase word."),
        message=_string("Why, for people."),
        lastTransitionTime=_time("When the status last changed."),
        observedGeneration=_integer("The generation this condition speaks of."),
    )
    return _list(description, condition)


def _reference(description: str) -> _Schema:
    return _object(
        description,
        kind=_string("Kind of the object."),
        namespace=_string("Namespace of the object."),
        name=_string("Name of the object."),
        uid=_string("UID of the object."),
        apiVersion=_string("Group and version of the object."),
        resourceVersion=_string("The version of the object that is meant."),
        fieldPath=_string("The part of the object that is meant."),
    )


def _kind(
    group: str,
    version: str,
    kind: str,
    plural: str,
    schema: _Schema,
    *,
    short_names: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    namespaced: bool = True,
    subresources: frozenset[str] = frozenset(),
    verbs: tuple[str, ...] = ALL_VERBS,
) -> ServedKind:
    return ServedKind(
        group=group,
        kind=kind,
        list_kind=f"{kind}List",
        plural=plural,
        singular=kind.lower(),
        short_names=short_names,
        categories=categories,
        namespaced=namespaced,
        versions=(ServedVersion(name=version, schema=schema, subresources=subresources),),
        verbs=verbs,
    )


NAMESPACE = _kind(
    "",
    "v1",
    "Namespace",
    "namespaces",
    _kind_schema(
        "Namespace is a scope for names; deleting it deletes what is in it.",
        spec=_object(
            "What is wanted of the namespace.", finalizers=_strings("Who must be done before it goes.")
        ),
        status=_object(
            "What the namespace is doing.",
            phase=_string("Active, or Terminating while its content is deleted."),
            conditions=_conditions("What keeps it from going."),
        ),
    ),
    short_names=("ns",),
    namespaced=False,
    subresources=frozenset({"status"}),
)

CONFIG_MAP = _kind(
    "",
    "v1",
    "ConfigMap",
    "configmaps",
    _kind_schema(
        "ConfigMap holds configuration that is not secret.",
        data=_mapping("Text by key."),
        binaryData=_mapping("Bytes by key, in base64.", format="byte"),
        immutable=_boolean("Whether the data may not be changed any more."),
    ),
    short_names=("cm",),
)

SECRET = _kind(
    "",
    "v1",
    "Secret",
    "secrets",
    _kind_schema(
        "Secret holds data that not everybody may read.",
        data=_mapping("Bytes by key, in base64.", format="byte"),
        stringData=_mapping("Text by key; written into data, never read back."),
        type=_string("What the data is for, such as Opaque or kubernetes.io/basic-auth."),
        immutable=_boolean("Whether the data may not be changed any more."),
    ),
)

_SERIES = _object(
    "How often it happened since.",
    count=_integer("Number of occurrences."),
    lastObservedTime=_time("When it last happened."),
)
_SOURCE = _object(
    "Who saw it.", component=_string("Name of the program."), host=_string("Name of the machine.")
)

_EVENT_FIELDS: Mapping[str, _Schema] = {
    "involvedObject": _reference("The object it happened to."),
    "related": _reference("Another object that has to do with it."),
    "reason": _string("What happened, in one CamelCase word."),
    "message": _string("What happened, for people."),
    "type": _string("Normal or Warning."),
    "action": _string("What was done or attempted."),
    "source": _SOURCE,
    "reportingComponent": _string("The controller that reports it."),
    "reportingInstance": _string("The process that reports it."),
    "eventTime": _time("When it first happened, to the microsecond."),
    "firstTimestamp": _time("When it first happened."),
    "lastTimestamp": _time("When it last happened."),
    "count": _integer("How often it happened."),
    "series": _SERIES,
}

EVENT = _kind(
    "",
    "v1",
    "Event",
    "events",
    _kind_schema(
        "Event tells that something happened to an object. Events go after a while.",
        required=("involvedObject",),
        **_EVENT_FIELDS,
    ),
    short_names=("ev",),
)

NEW_EVENT = _kind(
    "events.k8s.io",
    "v1",
    "Event",
    "events",
    _kind_schema(
        "Event tells that something happened to an object. The same events as in v1, in newer words.",
        required=(),
        **{NEW_EVENT_NAMES.get(name, name): schema for name, schema in _EVENT_FIELDS.items()},
    ),
    short_names=("ev",),
)

_CRD_NAMES: Mapping[str, _Schema] = {
    "plural": _string("Name of the kind in URLs."),
    "singular": _string("Name of the kind on the command line; the kind in lower case if not given."),
    "kind": _string("The kind, in CamelCase."),
    "listKind": _string("The kind of a list of these; the kind and List if not given."),
    "shortNames": _strings("Shorter names for the command line."),
    "categories": _strings("Groups of kinds that may be listed together, such as all."),
}
_CRD_VERSION = _object(
    "One version of the kind.",
    required=("name", "served", "storage"),
    name=_string("The version, such as v1beta1."),
    served=_boolean("Whether clients may use this version."),
    storage=_boolean("Whether objects are stored in this version; true for exactly one."),
    deprecated=_boolean("Whether clients are warned."),
    deprecationWarning=_string("What clients are warned with."),
    schema=_object(
        "What objects of this version look like.",
        openAPIV3Schema=_open("A structural OpenAPI v3 schema."),
    ),
    subresources=_object(
        "Further endpoints of each object.",
        status=_open("If present: /status, and spec and status are written apart."),
        scale=_open("Kept, but /scale is not served here."),
    ),
    selectableFields=_list(
        "Kept, but these fields cannot be selected by here.",
        _object("One field.", required=("jsonPath",), jsonPath=_string("Where its value is.")),
    ),
    additionalPrinterColumns=_list(
        "Columns of the table that kubectl prints; the age if there are none.",
        _object(
            "One column.",
            required=("name", "type", "jsonPath"),
            name=_string("Its title."),
            type=_string("string, integer, number, boolean or date."),
            jsonPath=_string("Where its value is."),
            format=_string("Format of the type."),
            description=_string("What it shows."),
            priority=_integer("0: always shown; above: with -o wide."),
        ),
    ),
)

CRD = _kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    _kind_schema(
        "CustomResourceDefinition makes the API server serve another kind.",
        required=("spec",),
        spec=_object(
            "The kind to serve.",
            required=("group", "names", "scope", "versions"),
            group=_string("API group of the kind."),
            names=_object("What the kind is called.", required=("plural", "kind"), **_CRD_NAMES),
            scope=_string("Namespaced or Cluster."),
            versions=_list("The versions of the kind.", _CRD_VERSION),
            conversion=_object(
                "How versions become each other; only None, which changes apiVersion alone, is supported.",
                strategy=_string("None."),
                webhook=_open("Not supported here."),
            ),
            preserveUnknownFields=_boolean("Must not be true."),
        ),
        status=_object(
            "What became of it.",
            conditions=_conditions("NamesAccepted and Established."),
            acceptedNames=_object("The names it is served by.", required=(), **_CRD_NAMES),
            storedVersions=_strings("Versions in which objects may be stored."),
            observedGeneration=_integer("The generation this status speaks of."),
        ),
    ),
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    namespaced=False,
    subresources=frozenset({"status"}),
)


def _loosened(schema: _Schema, changes: Mapping[str, _Schema]) -> _Schema:
    """Change the rules at some field paths of a schema, and return it; a rule of None is removed."""
    for path, rules in changes.items():
        field = schema
        for name in path.split("."):
            field = field["items"] if name == "[]" else field["properties"][name]
        field |= rules
        for name in [name for name, rule in rules.items() if rule is None]:
            del field[name]
    return schema


_OPEN = {"x-kubernetes-preserve-unknown-fields": True}
_SCHEMAS = open_api()

PACKAGE_REVISION = _kind(
    PORCH_GROUP,
    "v1alpha1",
    "PackageRevision",
    "packagerevisions",
    _loosened(
        _SCHEMAS["PackageRevision"],
        {  # the package store checks tasks itself, with Porch's messages; "" is also a valid lifecycle
            "spec.lifecycle": {"enum": ["", "Draft", "Proposed", "Published", "DeletionProposed"]},
            "spec.tasks.[]": {"required": ["type"]},
            "spec.tasks.[].type": {"enum": None},
            "spec.tasks.[].upgrade.strategy": {"enum": None},
            "spec.tasks.[].clone.upstreamRef.git.secretRef": {"required": None},
            "status.conditions.[].status": {"enum": None},
            "status.publishTimestamp": {"nullable": True},
        },
    ),
    subresources=frozenset({"approval"}),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)

PACKAGE_REVISION_RESOURCES = _kind(
    PORCH_GROUP,
    "v1alpha1",
    "PackageRevisionResources",
    "packagerevisionresources",
    _loosened(
        _SCHEMAS["PackageRevisionResources"],
        {  # a client may write back any function result
            "status.renderStatus": {"required": None},
            "status.renderStatus.result": {"required": None},
            "status.renderStatus.result.metadata": _OPEN,
            "status.renderStatus.result.items.[].results.[]": {"properties": None, **_OPEN},
        },
    ),
    verbs=("get", "list", "patch", "update"),
)

BUILTIN_KINDS: tuple[ServedKind, ...] = (
    NAMESPACE,
    CONFIG_MAP,
    SECRET,
    EVENT,
    NEW_EVENT,
    CRD,
    PACKAGE_REVISION,
    PACKAGE_REVISION_RESOURCES,
)
