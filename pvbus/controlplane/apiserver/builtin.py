"""The kinds that are served without a CustomResourceDefinition, with their schemas.

Field names and types are those of Kubernetes v1.36 (core/v1, events.k8s.io/v1,
apiextensions.k8s.io/v1) and of Porch's porch.kpt.dev/v1alpha1; the descriptions are our own.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.controlplane.apiserver.kinds import ALL_VERBS, ServedKind, ServedVersion

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


def _kind_schema(description: str, required: tuple[str, ...] = (), **properties: _Schema) -> _Schema:
    return _object(
        description,
        required=required,
        apiVersion=_string("Group and version that this object is written in."),
        kind=_string("What this object is."),
        metadata={"type": "object", "description": "Name, labels and what else every object has."},
        **properties,
    )


def _conditions(description: str, *, times: bool = True) -> _Schema:
    fields = {
        "type": _string("What this condition is about, in CamelCase."),
        "status": _string("True, False or Unknown."),
        "reason": _string("Why, in one CamelCase word."),
        "message": _string("Why, for people."),
    }
    if times:
        fields["lastTransitionTime"] = _time("When the status last changed.")
        fields["observedGeneration"] = _integer("The generation this condition speaks of.")
    return _list(description, _object("One condition.", required=("type", "status"), **fields))


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

EVENT = _kind(
    "",
    "v1",
    "Event",
    "events",
    _kind_schema(
        "Event tells that something happened to an object. Events go after a while.",
        required=("involvedObject",),
        involvedObject=_reference("The object it happened to."),
        related=_reference("Another object that has to do with it."),
        reason=_string("What happened, in one CamelCase word."),
        message=_string("What happened, for people."),
        type=_string("Normal or Warning."),
        action=_string("What was done or attempted."),
        source=_SOURCE,
        reportingComponent=_string("The controller that reports it."),
        reportingInstance=_string("The process that reports it."),
        eventTime=_time("When it first happened, to the microsecond."),
        firstTimestamp=_time("When it first happened."),
        lastTimestamp=_time("When it last happened."),
        count=_integer("How often it happened."),
        series=_SERIES,
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
        regarding=_reference("The object it happened to."),
        related=_reference("Another object that has to do with it."),
        reason=_string("What happened, in one CamelCase word."),
        note=_string("What happened, for people."),
        type=_string("Normal or Warning."),
        action=_string("What was done or attempted."),
        reportingController=_string("The controller that reports it."),
        reportingInstance=_string("The process that reports it."),
        eventTime=_time("When it first happened, to the microsecond."),
        series=_SERIES,
        deprecatedSource=_SOURCE,
        deprecatedFirstTimestamp=_time("When it first happened, as v1 says it."),
        deprecatedLastTimestamp=_time("When it last happened, as v1 says it."),
        deprecatedCount=_integer("How often it happened, as v1 says it."),
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
        openAPIV3Schema={
            "type": "object",
            "description": "A structural OpenAPI v3 schema.",
            "x-kubernetes-preserve-unknown-fields": True,
        },
    ),
    subresources=_object(
        "Further endpoints of each object.",
        status={
            "type": "object",
            "description": "If present: /status, and spec and status are written apart.",
            "x-kubernetes-preserve-unknown-fields": True,
        },
        scale={
            "type": "object",
            "description": "Kept, but /scale is not served here.",
            "x-kubernetes-preserve-unknown-fields": True,
        },
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
                webhook={
                    "type": "object",
                    "description": "Not supported here.",
                    "x-kubernetes-preserve-unknown-fields": True,
                },
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


def _revision_reference(description: str) -> _Schema:
    return _object(description, name=_string("Its name."))


_GIT_PACKAGE = _object(
    "A package in git.",
    repo=_string("URL of the repository."),
    ref=_string("Branch, tag or commit."),
    directory=_string("Folder of the package."),
    secretRef=_object("Credentials.", name=_string("Name of a Secret.")),
)
_TASK = _object(
    "How the content of this revision came to be.",
    required=("type",),
    type=_string("init, clone, edit or upgrade; the field of this name says more."),
    init=_object(
        "A new, empty package.",
        subpackage=_string("Folder of a package inside this one."),
        description=_string("What the package is for."),
        keywords=_strings("Words to find it by."),
        site=_string("Where to read about it."),
    ),
    clone=_object(
        "A copy of an upstream package.",
        upstreamRef=_object(
            "The upstream package.",
            type=_string("git or oci, for one that is not registered."),
            git=_GIT_PACKAGE,
            oci=_object("A package in an image.", image=_string("Name of the image.")),
            upstreamRef=_revision_reference("A registered PackageRevision."),
        ),
    ),
    edit=_object(
        "A new revision of the same package.",
        sourceRef=_revision_reference("The published revision to start from."),
    ),
    upgrade=_object(
        "A merge of what changed upstream into this package.",
        oldUpstreamRef=_revision_reference("The upstream that the local revision was made from."),
        newUpstreamRef=_revision_reference("The upstream to move to."),
        localPackageRevisionRef=_revision_reference("The local revision to start from."),
        strategy=_string("resource-merge, fast-forward, force-delete-replace or copy-merge."),
    ),
)


def _lock(description: str) -> _Schema:
    return _object(
        description,
        type=_string("git."),
        git=_object(
            "A place in git.",
            repo=_string("URL of the repository."),
            directory=_string("Folder of the package."),
            ref=_string("Branch or tag."),
            commit=_string("The commit."),
        ),
    )


PACKAGE_REVISION = _kind(
    "porch.kpt.dev",
    "v1alpha1",
    "PackageRevision",
    "packagerevisions",
    _kind_schema(
        "PackageRevision is one revision of a package in a Repository, kept in git.",
        spec=_object(
            "What the revision is.",
            packageName=_string("Path of the package in the Repository."),
            repository=_string("Name of the Repository."),
            workspaceName=_string("Name of this revision among those of the package."),
            revision=_integer("Number of the published revision; 0 before, -1 for what has no number."),
            parent=_revision_reference("Deprecated: the revision that this one belongs to."),
            lifecycle=_string(
                "Draft, Proposed, Published or DeletionProposed.",
                enum=["", "Draft", "Proposed", "Published", "DeletionProposed"],
            ),
            tasks=_list("How the content came to be; at most one.", _TASK),
            readinessGates=_list(
                "Conditions that must hold before it is proposed.",
                _object("One of them.", conditionType=_string("Type of the condition.")),
            ),
            packageMetadata=_object(
                "Metadata of the package itself, in its Kptfile.",
                labels=_mapping("Labels of the Kptfile."),
                annotations=_mapping("Annotations of the Kptfile."),
            ),
        ),
        status=_object(
            "What is known about the revision.",
            upstreamLock=_lock("The upstream that the content came from."),
            selfLock=_lock("Where this revision is in git."),
            publishedBy=_string("Who published it."),
            publishTimestamp=_time("When it was published."),
            deployment=_boolean("Whether the Repository is for packages that are ready to deploy."),
            conditions=_conditions("Conditions of the Kptfile.", times=False),
        ),
    ),
    subresources=frozenset({"approval"}),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)

_RESULT = _object(
    "What one function said.",
    required=("exitCode",),
    image=_string("The function."),
    exec=_string("The executable."),
    stderr=_string("What it wrote to its error output."),
    exitCode=_integer("0 if it succeeded."),
    results=_list("Its findings.", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
)

PACKAGE_REVISION_RESOURCES = _kind(
    "porch.kpt.dev",
    "v1alpha1",
    "PackageRevisionResources",
    "packagerevisionresources",
    _kind_schema(
        "PackageRevisionResources is the content of a PackageRevision of the same name.",
        spec=_object(
            "The content.",
            packageName=_string("Path of the package in the Repository."),
            repository=_string("Name of the Repository."),
            workspaceName=_string("Name of this revision among those of the package."),
            revision=_integer("Number of the published revision."),
            resources=_mapping("Text of each file, by its path in the package."),
        ),
        status=_object(
            "What the last write led to.",
            renderStatus=_object(
                "What running the package's functions led to.",
                error=_string("Why it failed."),
                result=_object(
                    "What the functions said.",
                    apiVersion=_string("Group and version of the result."),
                    kind=_string("FunctionResultList."),
                    metadata={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    exitCode=_integer("0 if all succeeded."),
                    items=_list("One per function.", _RESULT),
                ),
            ),
        ),
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
