"""Kinds of users' manifests that are stored, and that nothing here acts on.

No Pod runs, and no Service has an address. Field names and types are those of Kubernetes v1.36 (core/v1,
apps/v1, batch/v1); the descriptions are our own. The fields of a Pod are not checked, but for those that
clients merge by. Pods themselves are not served: an API server without them runs nothing.
"""

from collections.abc import Iterable
from typing import Any

from pvbus.controlplane.apiserver.builtinschemas import (
    JsonSchema,
    boolean,
    integer,
    kind_schema,
    label_selector,
    list_of,
    mapping,
    object_of,
    open_object,
    served_kind,
    string,
    strings,
)
from pvbus.controlplane.apiserver.kinds import ServedKind

_INT_OR_TEXT: JsonSchema = {"x-kubernetes-int-or-string": True}
_PROTOCOL = string("TCP, UDP or SCTP.", default="TCP")


def _by(schema: JsonSchema, *keys: str) -> JsonSchema:
    """Have the items of a list be merged by these fields."""
    return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def _items(description: str, **fields: JsonSchema) -> JsonSchema:
    """Return the schema of a list of objects, merged by the first of these fields, with any others."""
    first = next(iter(fields))
    item = {**open_object("One of them."), "required": [first], "properties": fields}
    return _by(list_of(description, item), first)


def _named(description: str, **fields: JsonSchema) -> JsonSchema:
    return _items(description, name=string("Its name."), **fields)


_CONTAINERS = {
    "image": string("The image that runs."),
    "command": strings("What is run in place of the image's entry point."),
    "args": strings("Its arguments."),
    "env": _named("Variables of the environment.", value=string("The value.")),
    "volumeMounts": _items("Volumes in its file system.", mountPath=string("Where it is.")),
}
_POD_SPEC: JsonSchema = {
    **open_object("What a Pod runs."),
    "properties": {
        "serviceAccountName": string("The account in whose name it runs."),
        "containers": _named("What runs.", **_CONTAINERS),
        "initContainers": _named("What runs before.", **_CONTAINERS),
        "volumes": _named("Volumes that containers mount."),
        "imagePullSecrets": _named("Secrets with logins of registries."),
        "nodeSelector": mapping("Labels of the nodes on which it may run."),
    },
    "required": ["containers"],
}
_TEMPLATE = object_of(
    "The Pods that are made.",
    metadata={
        **open_object("Labels and annotations of the Pods."),
        "properties": {"labels": mapping("Labels.")},
    },
    spec=_POD_SPEC,
)
_SELECTOR = label_selector("Which Pods count.")
_STATUS = open_object("What became of it; nothing here writes it.")


def _stored(
    group: str, kind: str, description: str, short_names: Iterable[str] = (), **fields: Any
) -> ServedKind:
    return served_kind(
        group,
        "v1",
        kind,
        f"{kind.lower()}s",
        kind_schema(description, **fields),
        short_names=tuple(short_names),
        categories=("all",) if kind not in ("ServiceAccount", "ControllerRevision") else (),
        subresources=frozenset({"status"}) if "status" in fields else frozenset(),
    )


SERVICE_ACCOUNT = _stored(
    "",
    "ServiceAccount",
    "ServiceAccount is an identity for programs.",
    ("sa",),
    secrets=_named("Secrets that its Pods may use."),
    imagePullSecrets=list_of(
        "Secrets with logins of registries.", object_of("One.", name=string("Its name."))
    ),
    automountServiceAccountToken=boolean("Whether Pods get a token of it."),
)
SERVICE = _stored(
    "",
    "Service",
    "Service is an address of Pods. It is stored only: none is given here.",
    ("svc",),
    spec={
        **open_object("Which Pods, and how they are reached."),
        "properties": {
            "selector": mapping("Labels of the Pods."),
            "type": string("ClusterIP, NodePort, LoadBalancer or ExternalName.", default="ClusterIP"),
            "ports": _by(
                list_of(
                    "The ports.",
                    object_of(
                        "One port.",
                        required=("port",),
                        name=string("Its name."),
                        port=integer("Its number."),
                        protocol=_PROTOCOL,
                        targetPort=_INT_OR_TEXT,
                        nodePort=integer("Its number on nodes."),
                        appProtocol=string("What is spoken there."),
                    ),
                ),
                "port",
                "protocol",
            ),
        },
    },
    status=_STATUS,
)
DEPLOYMENT = _stored(
    "apps",
    "Deployment",
    "Deployment keeps Pods running. It is stored only: none runs here.",
    ("deploy",),
    spec=object_of(
        "How many Pods of which template.",
        required=("selector", "template"),
        replicas={**integer("How many."), "default": 1},
        selector=_SELECTOR,
        template=_TEMPLATE,
        strategy=open_object("How Pods are replaced."),
        minReadySeconds=integer("Seconds until a Pod counts."),
        revisionHistoryLimit=integer("How many old ones stay."),
        paused=boolean("Whether changes wait."),
        progressDeadlineSeconds=integer("Seconds until it counts as failed."),
    ),
    status=_STATUS,
)
CONTROLLER_REVISION = _stored(
    "apps",
    "ControllerRevision",
    "ControllerRevision keeps a former state of its owner, such as the spec of a PackageVariantSet.",
    revision=integer("Its number: a later state has a higher one."),
    data=open_object("The state."),
)
JOB = _stored(
    "batch",
    "Job",
    "Job runs Pods until they are done. It is stored only: none runs here.",
    spec={
        **open_object("What is run, and how often."),
        "required": ["template"],
        "properties": {
            "parallelism": integer("How many at a time."),
            "completions": integer("How many in all."),
            "backoffLimit": integer("How many may fail."),
            "activeDeadlineSeconds": integer("Seconds until it is stopped."),
            "ttlSecondsAfterFinished": integer("Seconds until it is deleted."),
            "suspend": boolean("Whether it waits."),
            "selector": _SELECTOR,
            "template": _TEMPLATE,
        },
    },
    status=_STATUS,
)

STORED_KINDS = (SERVICE_ACCOUNT, SERVICE, DEPLOYMENT, CONTROLLER_REVISION, JOB)
