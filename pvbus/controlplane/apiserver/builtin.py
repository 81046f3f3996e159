"""The kinds that are served without a CustomResourceDefinition, with their schemas.

Field names and types are those of Kubernetes v1.36 (core/v1, events.k8s.io/v1, apiextensions.k8s.io/v1); the
descriptions are our own. The schemas of Porch's porch.kpt.dev/v1alpha1 come from our API types.
"""

from collections.abc import Mapping

from pvbus.controlplane.apiserver.builtinschemas import (
    JsonSchema,
    boolean,
    integer,
    kind_schema,
    list_of,
    mapping,
    object_of,
    open_object,
    served_kind,
    string,
    strings,
    time,
)
from pvbus.controlplane.apiserver.builtinworkloads import STORED_KINDS
from pvbus.controlplane.apiserver.kinds import ServedKind
from pvbus.controlplane.apiserver.registry import NEW_EVENT_NAMES
from pvbus.core.api.crds import open_api
from pvbus.core.api.variants import PORCH_GROUP

_BY_TYPE: JsonSchema = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
"""The conditions of a kind, by type: an apply changes those that it names, and leaves the others."""


def _conditions(description: str) -> JsonSchema:
    condition = object_of(
        "One condition.",
        required=("type", "status"),
        type=string("What this condition is about, in CamelCase."),
        status=string("True, False or Unknown."),
        reason=string("Why, in one CamelCase word."),
        message=string("Why, for people."),
        lastTransitionTime=time("When the status last changed."),
        observedGeneration=integer("The generation this condition speaks of."),
    )
    return {**list_of(description, condition), **_BY_TYPE}


def _reference(description: str) -> JsonSchema:
    reference = object_of(
        description,
        kind=string("Kind of the object."),
        namespace=string("Namespace of the object."),
        name=string("Name of the object."),
        uid=string("UID of the object."),
        apiVersion=string("Group and version of the object."),
        resourceVersion=string("The version of the object that is meant."),
        fieldPath=string("The part of the object that is meant."),
    )
    return {**reference, "x-kubernetes-map-type": "atomic"}


NAMESPACE = served_kind(
    "",
    "v1",
    "Namespace",
    "namespaces",
    kind_schema(
        "Namespace is a scope for names; deleting it deletes what is in it.",
        spec=object_of(
            "What is wanted of the namespace.", finalizers=strings("Who must be done before it goes.")
        ),
        status=object_of(
            "What the namespace is doing.",
            phase=string("Active, or Terminating while its content is deleted."),
            conditions=_conditions("What keeps it from going."),
        ),
    ),
    short_names=("ns",),
    namespaced=False,
    subresources=frozenset({"status"}),
)

CONFIG_MAP = served_kind(
    "",
    "v1",
    "ConfigMap",
    "configmaps",
    kind_schema(
        "ConfigMap holds configuration that is not secret.",
        data=mapping("Text by key."),
        binaryData=mapping("Bytes by key, in base64.", format="byte"),
        immutable=boolean("Whether the data may not be changed any more."),
    ),
    short_names=("cm",),
)

SECRET = served_kind(
    "",
    "v1",
    "Secret",
    "secrets",
    kind_schema(
        "Secret holds data that not everybody may read.",
        data=mapping("Bytes by key, in base64.", format="byte"),
        stringData=mapping("Text by key; written into data, never read back."),
        type=string("What the data is for, such as Opaque or kubernetes.io/basic-auth."),
        immutable=boolean("Whether the data may not be changed any more."),
    ),
)

_SERIES = object_of(
    "How often it happened since.",
    count=integer("Number of occurrences."),
    lastObservedTime=time("When it last happened."),
)
_SOURCE = object_of(
    "Who saw it.", component=string("Name of the program."), host=string("Name of the machine.")
)

_EVENT_FIELDS: Mapping[str, JsonSchema] = {
    "involvedObject": _reference("The object it happened to."),
    "related": _reference("Another object that has to do with it."),
    "reason": string("What happened, in one CamelCase word."),
    "message": string("What happened, for people."),
    "type": string("Normal or Warning."),
    "action": string("What was done or attempted."),
    "source": _SOURCE,
    "reportingComponent": string("The controller that reports it."),
    "reportingInstance": string("The process that reports it."),
    "eventTime": time("When it first happened, to the microsecond."),
    "firstTimestamp": time("When it first happened."),
    "lastTimestamp": time("When it last happened."),
    "count": integer("How often it happened."),
    "series": _SERIES,
}

EVENT = served_kind(
    "",
    "v1",
    "Event",
    "events",
    kind_schema(
        "Event tells that something happened to an object. Events go after a while.",
        required=("involvedObject",),
        **_EVENT_FIELDS,
    ),
    short_names=("ev",),
)

NEW_EVENT = served_kind(
    "events.k8s.io",
    "v1",
    "Event",
    "events",
    kind_schema(
        "Event tells that something happened to an object. The same events as in v1, in newer words.",
        required=(),
        **{NEW_EVENT_NAMES.get(name, name): schema for name, schema in _EVENT_FIELDS.items()},
    ),
    short_names=("ev",),
)

_CRD_NAMES: Mapping[str, JsonSchema] = {
    "plural": string("Name of the kind in URLs."),
    "singular": string("Name of the kind on the command line; the kind in lower case if not given."),
    "kind": string("The kind, in CamelCase."),
    "listKind": string("The kind of a list of these; the kind and List if not given."),
    "shortNames": strings("Shorter names for the command line."),
    "categories": strings("Groups of kinds that may be listed together, such as all."),
}
_CRD_VERSION = object_of(
    "One version of the kind.",
    required=("name", "served", "storage"),
    name=string("The version, such as v1beta1."),
    served=boolean("Whether clients may use this version."),
    storage=boolean("Whether objects are stored in this version; true for exactly one."),
    deprecated=boolean("Whether clients are warned."),
    deprecationWarning=string("What clients are warned with."),
    schema=object_of(
        "What objects of this version look like.",
        openAPIV3Schema=open_object("A structural OpenAPI v3 schema."),
    ),
    subresources=object_of(
        "Further endpoints of each object.",
        status=open_object("If present: /status, and spec and status are written apart."),
        scale=open_object("Kept, but /scale is not served here."),
    ),
    selectableFields=list_of(
        "Kept, but these fields cannot be selected by here.",
        object_of("One field.", required=("jsonPath",), jsonPath=string("Where its value is.")),
    ),
    additionalPrinterColumns=list_of(
        "Columns of the table that kubectl prints; the age if there are none.",
        object_of(
            "One column.",
            required=("name", "type", "jsonPath"),
            name=string("Its title."),
            type=string("string, integer, number, boolean or date."),
            jsonPath=string("Where its value is."),
            format=string("Format of the type."),
            description=string("What it shows."),
            priority=integer("0: always shown; above: with -o wide."),
        ),
    ),
)

CRD = served_kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    kind_schema(
        "CustomResourceDefinition makes the API server serve another kind.",
        required=("spec",),
        spec=object_of(
            "The kind to serve.",
            required=("group", "names", "scope", "versions"),
            group=string("API group of the kind."),
            names=object_of("What the kind is called.", required=("plural", "kind"), **_CRD_NAMES),
            scope=string("Namespaced or Cluster."),
            versions=list_of("The versions of the kind.", _CRD_VERSION),
            conversion=object_of(
                "How versions become each other; only None, which changes apiVersion alone, is supported.",
                strategy=string("None."),
                webhook=open_object("Not supported here."),
            ),
            preserveUnknownFields=boolean("Must not be true."),
        ),
        status=object_of(
            "What became of it.",
            conditions=_conditions("NamesAccepted and Established."),
            acceptedNames=object_of("The names it is served by.", required=(), **_CRD_NAMES),
            storedVersions=strings("Versions in which objects may be stored."),
            observedGeneration=integer("The generation this status speaks of."),
        ),
    ),
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    namespaced=False,
    subresources=frozenset({"status"}),
)


def _loosened(schema: JsonSchema, changes: Mapping[str, JsonSchema]) -> JsonSchema:
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

PACKAGE_REVISION = served_kind(
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
            "status.conditions": _BY_TYPE,
            "status.conditions.[].status": {"enum": None},
            "status.publishTimestamp": {"nullable": True},
        },
    ),
    subresources=frozenset({"approval", "status"}),
    shares_status=True,
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)

PACKAGE_REVISION_RESOURCES = served_kind(
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
    *STORED_KINDS,
    PACKAGE_REVISION,
    PACKAGE_REVISION_RESOURCES,
)
