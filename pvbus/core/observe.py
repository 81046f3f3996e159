"""From an object as the API server sends it to its rows on the bus.

Pure. `rows_of` names every row an object has; a row whose digest did not change is not written, so
what nobody reads (status of targets, managedFields, resourceVersion) never reaches the bus.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.ids import okey
from pvbus.core.model import CONFIG_GROUP, PORCH_GROUP, Condition, Downstream
from pvbus.core.records import (
    INJECTABLES,
    OBJECTS,
    SETS,
    VARIANTS,
    InjectableRow,
    ObjectRow,
    Owner,
    RevisionFacts,
)

_canonical = msgspec.json.Encoder(order="sorted")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class KindName(NamedTuple):
    """A group and kind."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{self.group}/{self.kind}"


SET = KindName(CONFIG_GROUP, "PackageVariantSet")
VARIANT = KindName(CONFIG_GROUP, "PackageVariant")
REPOSITORY = KindName(CONFIG_GROUP, "Repository")
REVISION = KindName(PORCH_GROUP, "PackageRevision")
CRD = KindName("apiextensions.k8s.io", "CustomResourceDefinition")
STATIC_KINDS = (CRD, REPOSITORY, REVISION, VARIANT, SET)
WHOLE_KINDS = frozenset({SET, VARIANT, REPOSITORY, REVISION, CRD})


class ObservedRow(NamedTuple):
    """One encoded row; digest decides whether it is news."""

    topic: str
    key: str
    value: bytes
    digest: str


def topics_of(kind: KindName, *, requested: bool) -> tuple[str, ...]:
    """Return the topics a kind's rows and markers go to."""
    if kind == SET:
        return (SETS, OBJECTS) if requested else (SETS,)
    if kind == VARIANT:
        return (VARIANTS, OBJECTS)
    return (OBJECTS,)


def rows_of(kind: KindName, obj: Mapping[str, Any], topics: tuple[str, ...]) -> list[ObservedRow]:
    """Return an object's rows in the given topics."""
    meta = obj["metadata"]
    namespace, name = meta.get("namespace", ""), meta["name"]
    rows = []
    for topic in topics:
        if topic == OBJECTS:
            rows.append(_object_row(kind, obj, meta, okey(*kind, namespace, name)))
        else:
            # The resourceVersion is told as well: it is the precondition of whoever writes next.
            meta = {k: v for k, v in meta.items() if k != "managedFields"}
            value = _canonical.encode({**obj, "metadata": meta})
            rows.append(ObservedRow(topic, f"{namespace}/{name}", value, _hash(value)))
    return rows


def _hash(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]


def _object_row(kind: KindName, obj: Mapping[str, Any], meta: Mapping[str, Any], key: str) -> ObservedRow:
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k != _LAST_APPLIED}
    row = ObjectRow(
        uid=meta.get("uid", ""),
        created=meta.get("creationTimestamp") or "",
        deleted=meta.get("deletionTimestamp") or "",
        labels=meta.get("labels") or {},
        annotations=annotations,
        owners=tuple(
            Owner(
                api_version=o.get("apiVersion", ""),
                kind=o.get("kind", ""),
                name=o.get("name", ""),
                uid=o.get("uid", ""),
                controller=bool(o.get("controller")),
            )
            for o in meta.get("ownerReferences") or ()
        ),
        revision=_revision(obj) if kind == REVISION else None,
        deployment=bool((obj.get("spec") or {}).get("deployment")) if kind == REPOSITORY else None,
        downstream=_downstream(obj) if kind == VARIANT else None,
        served=_served(obj) if kind == CRD else None,
        ready=_ready(obj) if kind == REPOSITORY else None,
    )
    # Porch writes the time of a Repository's condition at each of its looks: that alone is no news.
    timeless = row.ready and msgspec.structs.replace(row.ready, last_transition_time=None)
    digest = _hash(_canonical.encode(msgspec.structs.replace(row, ready=timeless)))
    full = msgspec.structs.replace(
        row,
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation", 0),
        digest=digest,
    )
    return ObservedRow(OBJECTS, key, msgspec.json.encode(full), digest)


def _downstream(obj: Mapping[str, Any]) -> Downstream:
    place = (obj.get("spec") or {}).get("downstream") or {}
    return Downstream(repo=place.get("repo", ""), package=place.get("package", ""))


def _served(obj: Mapping[str, Any]) -> tuple[str, ...]:
    versions = (obj.get("spec") or {}).get("versions") or ()
    return tuple(v["name"] for v in versions if v.get("served"))


def _ready(obj: Mapping[str, Any]) -> Condition | None:
    for c in (obj.get("status") or {}).get("conditions") or ():
        if c.get("type") == "Ready":
            return Condition(
                type="Ready",
                status=c.get("status", ""),
                reason=c.get("reason", ""),
                message=c.get("message", ""),
                last_transition_time=c.get("lastTransitionTime"),
                observed_generation=c.get("observedGeneration", 0),
            )
    return None


def _revision(obj: Mapping[str, Any]) -> RevisionFacts:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    lock = (status.get("upstreamLock") or {}).get("git") or {}
    own = (status.get("selfLock") or {}).get("git") or {}
    return RevisionFacts(
        repository=spec.get("repository", ""),
        package=spec.get("packageName", ""),
        workspace=spec.get("workspaceName", ""),
        revision=spec.get("revision", 0),
        lifecycle=spec.get("lifecycle", ""),
        lock_repo=lock.get("repo", ""),
        lock_directory=lock.get("directory", ""),
        lock_ref=lock.get("ref", ""),
        lock_commit=lock.get("commit", ""),
        self_repo=own.get("repo", ""),
        self_directory=own.get("directory", ""),
        self_commit=own.get("commit", ""),
        clone_upstream=_clone_upstream(spec),
        conditions=tuple(
            Condition(
                type=c.get("type", ""),
                status=c.get("status", ""),
                reason=c.get("reason", ""),
                message=c.get("message", ""),
            )
            for c in status.get("conditions") or ()
        ),
        gates=tuple(g.get("conditionType", "") for g in spec.get("readinessGates") or ()),
    )


def _clone_upstream(spec: Mapping[str, Any]) -> str:
    for task in spec.get("tasks") or ():
        reference = ((task.get("clone") or {}).get("upstreamRef") or {}).get("upstreamRef") or {}
        if reference.get("name"):
            return str(reference["name"])
    return ""


def content_field(kind: KindName) -> str:
    """Return the field that configuration injection takes: `data` of a core ConfigMap, else `spec`."""
    return "data" if kind == KindName("", "ConfigMap") else "spec"


def injectable_row(kind: KindName, namespace: str, name: str, obj: Mapping[str, Any] | None) -> ObservedRow:
    """Return the row of a requested object, present or looked for in vain."""
    key = okey(*kind, namespace, name)
    if obj is None:
        row = InjectableRow(exists=False)
    else:
        content = obj.get(content_field(kind))
        raw = msgspec.UNSET if content is None else msgspec.Raw(_canonical.encode(content))
        digest = "" if raw is msgspec.UNSET else _hash(bytes(raw))
        row = InjectableRow(exists=True, uid=obj["metadata"].get("uid", ""), content=raw, digest=digest)
    value = msgspec.json.encode(row)
    return ObservedRow(INJECTABLES, key, value, _hash(value))


def presence_row(kind: KindName, namespace: str, *, exists: bool) -> ObservedRow:
    """Return the row that tells whether a namespace has any object of a kind."""
    value = msgspec.json.encode(InjectableRow(exists=exists))
    return ObservedRow(INJECTABLES, okey(*kind, namespace, ""), value, _hash(value))
