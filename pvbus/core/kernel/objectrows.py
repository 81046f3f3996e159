"""Converts an object of the API server to its rows on the bus.

Pure. `rows_of` returns every row of an object. A row whose digest did not change is not written, so a change
of fields that no service reads (status of targets, managedFields, resourceVersion) writes nothing to
`pvbus.objects`.

kubectl's last-applied-configuration, a copy of the whole object, is left out of `pvbus.objects` and of the
rows of sets and policies. The rows of PackageVariants hold it: they are written back with PUT, which would
otherwise remove the annotation from the object.

A kind without a schema may hold anything in its fields: a value of an unexpected type counts as absent.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.promotion import PROMOTION_GROUP, PackageSpecializerSpec
from pvbus.core.api.stops import RolloutStopSpec, condition_of
from pvbus.core.api.variants import (
    CONFIG_GROUP,
    PORCH_GROUP,
    Condition,
    Downstream,
    LabelSelector,
    LabelSelectorRequirement,
)
from pvbus.core.kernel import questions
from pvbus.core.kernel.eventrows import EventRollout
from pvbus.core.kernel.gates import steps_in
from pvbus.core.kernel.keys import GATE_STEPS, StopKey, okey
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP, DEPLOYMENT, MIRRORED, REPORTING
from pvbus.core.kernel.packagerows import SCOPE, ScopedKey
from pvbus.core.kernel.records import (
    INJECTABLES,
    INSTALLS,
    OBJECTS,
    POLICIES,
    SETS,
    VARIANTS,
    InjectableRow,
    ObjectOwner,
    ObjectRow,
    RevisionFacts,
)

_canonical = msgspec.json.Encoder(order="sorted")
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


SET = Kind(CONFIG_GROUP, "PackageVariantSet")
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
REPOSITORY = Kind(CONFIG_GROUP, "Repository")
REVISION = Kind(PORCH_GROUP, "PackageRevision")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
SPECIALIZER = Kind(PROMOTION_GROUP, "PackageSpecializer")
POLICY = Kind(PROMOTION_GROUP, "RolloutPolicy")
QUARANTINE = Kind(PROMOTION_GROUP, "Quarantine")
STOP = Kind(PROMOTION_GROUP, "RolloutStop")
STATIC_KINDS = (CRD, REPOSITORY, REVISION, VARIANT, SET)
_REPORTING = frozenset({REPOSITORY, POLICY, *REPORTING})
WHOLE_KINDS = frozenset({*STATIC_KINDS, SPECIALIZER, POLICY, QUARANTINE, STOP, DEPLOYMENT, *MIRRORED})
UNREADABLE = PackageSpecializerSpec(
    selector=LabelSelector(match_expressions=(LabelSelectorRequirement(),)),
)
"""Stands for a spec that cannot be read. Its selector is invalid: promote takes it for one of every draft."""


class Emission(NamedTuple):
    """A row to write.

    value: the encoded row, None for a tombstone
    digest: equal digests of two rows mean that nothing is written
    partition: the partition of a marker, None for the partition of the key
    """

    topic: str
    key: str
    value: bytes | None
    digest: str
    partition: int | None = None


def topics_of(kind: Kind, *, requested: bool, has_readers: bool = True) -> tuple[str, ...]:
    """Return the topics a kind's rows and markers go to.

    has_readers: whether somebody requests the kind who reads its metadata in `pvbus.objects`
    """
    if kind == DEPLOYMENT:  # a cluster has thousands that run no package
        return (INSTALLS, OBJECTS) if has_readers else (INSTALLS,)
    if kind == SET:
        return (SETS, OBJECTS) if requested else (SETS,)
    if kind == VARIANT:
        return (VARIANTS, OBJECTS)
    if kind in (POLICY, STOP):
        return (POLICIES, OBJECTS)
    if kind == QUARANTINE:
        return (POLICIES,)
    if kind in MIRRORED and (requested or kind != CRD):
        return (INSTALLS, OBJECTS)
    return (OBJECTS,)


def rows_of(kind: Kind, obj: Mapping[str, Any], topics: tuple[str, ...]) -> list[Emission]:
    """Return an object's rows in the given topics."""
    meta = obj["metadata"]
    namespace, name = meta.get("namespace", ""), meta["name"]
    rows = []
    for topic in topics:
        if topic == OBJECTS:
            rows.append(_object_row(kind, obj, meta, okey(*kind, namespace, name)))
        elif kind == DEPLOYMENT:
            rows += _running_rows(obj, meta, okey(*kind, namespace, name))
        elif topic == INSTALLS:
            rows.append(_packaging_row(kind, obj, meta, okey(*kind, namespace, name)))
        else:
            # The resourceVersion is part of the row: it is the precondition of the next write.
            written = {k: v for k, v in meta.items() if k != "managedFields"}
            if topic != VARIANTS and _LAST_APPLIED in _map(meta.get("annotations")):
                written["annotations"] = _annotations(meta)
            value = _canonical.encode({**obj, "metadata": written})
            rows.append(Emission(topic, _whole_key(kind, namespace, name), value, _hash(value)))
    return rows


def _whole_key(kind: Kind, namespace: str, name: str) -> str:
    if kind == QUARANTINE:
        return okey(*kind, namespace, name)
    return str(StopKey(namespace, name)) if kind == STOP else f"{namespace}/{name}"


def _packaging_row(kind: Kind, obj: Mapping[str, Any], meta: Mapping[str, Any], key: str) -> Emission:
    """Return the row of an object that packages depend on: whole, but definitions without their schemas.

    Definitions of a thousand kinds have 50 MB of schemas, of which nobody reads more than one at a time.
    """
    written = {k: v for k, v in meta.items() if k != "managedFields"}
    if _LAST_APPLIED in _map(meta.get("annotations")):
        written["annotations"] = _annotations(meta)
    whole = {**obj, "metadata": written}
    if kind == CRD:
        spec = _map(obj.get("spec"))
        versions = [
            {k: v for k, v in version.items() if k != "schema"} for version in _maps(spec.get("versions"))
        ]
        whole = {**whole, "spec": {**spec, "versions": versions}, "status": {}}
        del written["resourceVersion"]
    value = _canonical.encode(whole)
    return Emission(INSTALLS, str(ScopedKey(SCOPE, key)), value, _hash(value))


def _running_rows(obj: Mapping[str, Any], meta: Mapping[str, Any], key: str) -> list[Emission]:
    """Return the row of a Deployment that runs a package: whose it is, and what is wrong with it; else none.

    It has nothing that changes while nothing goes wrong: a Deployment of many Pods is written often.
    """
    owners = [
        owner
        for owner in meta.get("ownerReferences") or ()
        if owner.get("controller") and _text(owner.get("apiVersion")).startswith(f"{CROSSPLANE_GROUP}/")
    ]
    if not owners:
        return []
    named = {field: meta[field] for field in ("namespace", "name", "uid") if field in meta}
    whole = {
        "apiVersion": "apps/v1",
        "kind": DEPLOYMENT.kind,
        "metadata": {**named, "ownerReferences": owners},
        "status": {"conditions": _telling(obj)},
    }
    value = _canonical.encode(whole)
    return [Emission(INSTALLS, str(ScopedKey(SCOPE, key)), value, _hash(value))]


def _telling(deployment: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the conditions of a Deployment that say whether it is available, and why it is not."""
    found = map(_condition, _maps(_map(deployment.get("status")).get("conditions")))
    telling = {
        "Available": ("True", "False", "Unknown"),
        "Progressing": ("False",),
        "ReplicaFailure": ("True",),
    }
    return [
        {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
        for each in found
        if each.status in telling.get(each.type, ())
    ]


def _hash(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _annotations(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    annotations = _map(meta.get("annotations"))
    if _LAST_APPLIED not in annotations:
        return annotations
    return {k: v for k, v in annotations.items() if k != _LAST_APPLIED}


def _object_row(kind: Kind, obj: Mapping[str, Any], meta: Mapping[str, Any], key: str) -> Emission:
    row = ObjectRow(
        uid=meta.get("uid", ""),
        created=meta.get("creationTimestamp") or "",
        deleted=meta.get("deletionTimestamp") or "",
        labels=meta.get("labels") or {},
        annotations=_annotations(meta),
        owners=tuple(map(_owner, meta.get("ownerReferences") or ())),
        revision=_revision(obj) if kind == REVISION else None,
        deployment=bool(_map(obj.get("spec")).get("deployment")) if kind == REPOSITORY else None,
        downstream=_downstream(obj) if kind == VARIANT else None,
        served=_served(obj) if kind == CRD else None,
        conditions=_reported(kind, obj),
        specializer=_specializer(obj) if kind == SPECIALIZER else None,
        rollout=_rollout(obj) if kind == POLICY else None,
    )
    # Porch updates the time of a Repository's condition at each of its polls: that alone is no change.
    timeless = tuple(msgspec.structs.replace(c, last_transition_time=None) for c in row.conditions)
    counted = msgspec.structs.replace(row, conditions=timeless)
    if row.revision is not None and _is_content_unnamed(row.revision):
        counted = msgspec.structs.replace(counted, resource_version=meta.get("resourceVersion", ""))
    digest = _hash(_canonical.encode(counted))
    if row.rollout is not None:  # a target more or less is no change: it comes along with the next one
        counted = msgspec.structs.replace(counted, rollout=msgspec.structs.replace(row.rollout, targets=None))
    full = msgspec.structs.replace(
        row,
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation", 0),
        digest=digest,
    )
    return Emission(OBJECTS, key, msgspec.json.encode(full), digest)


def _is_content_unnamed(facts: RevisionFacts) -> bool:
    """Tell whether nothing but the resourceVersion says that the files of a revision have changed.

    Porch's database cache has drafts and proposals in no git repository: their commit is a fixed word.
    """
    return facts.lifecycle not in PUBLISHED and not _COMMIT.fullmatch(facts.self_commit)


def _owner(reference: Mapping[str, Any]) -> ObjectOwner:
    return ObjectOwner(
        api_version=reference.get("apiVersion", ""),
        kind=reference.get("kind", ""),
        name=reference.get("name", ""),
        uid=reference.get("uid", ""),
        controller=bool(reference.get("controller")),
    )


def _downstream(obj: Mapping[str, Any]) -> Downstream:
    downstream = _map(_map(obj.get("spec")).get("downstream"))
    return Downstream(repo=_text(downstream.get("repo")), package=_text(downstream.get("package")))


def _served(obj: Mapping[str, Any]) -> tuple[str, ...]:
    versions = _maps(_map(obj.get("spec")).get("versions"))
    return tuple(_text(version.get("name")) for version in versions if version.get("served"))


def _reported(kind: Kind, obj: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the conditions that have events, one of each type."""
    if kind == STOP:
        return _of_stop(obj)
    if kind not in _REPORTING:
        return ()
    by_type: dict[str, Condition] = {}
    for c in _maps(_map(obj.get("status")).get("conditions")):
        type_, generation = _text(c.get("type")), c.get("observedGeneration")
        if type_ in by_type or not type_ or (kind == REPOSITORY and type_ != "Ready"):
            continue
        by_type[type_] = Condition(
            type=type_,
            status=_text(c.get("status")),
            reason=_text(c.get("reason")),
            message=_text(c.get("message")),
            last_transition_time=_text(c.get("lastTransitionTime")) or None,
            observed_generation=generation if isinstance(generation, int) else 0,
        )
    return tuple(by_type.values())


def _rollout(obj: Mapping[str, Any]) -> EventRollout | None:
    spec, status = _map(obj.get("spec")), _map(obj.get("status"))
    shown = {key: status[key] for key in ("phase", "attempt", "wave", "targets") if key in status}
    try:
        found = msgspec.convert({**shown, "waves": len(_maps(spec.get("waves"))) or 1}, EventRollout)
    except msgspec.ValidationError:
        return None
    return found if found.attempt else None


def _of_stop(obj: Mapping[str, Any]) -> tuple[Condition, ...]:
    try:
        return (condition_of(msgspec.convert(obj.get("spec") or {}, RolloutStopSpec)),)
    except msgspec.ValidationError:
        return ()


def _specializer(obj: Mapping[str, Any]) -> PackageSpecializerSpec:
    try:
        return msgspec.convert(obj.get("spec") or {}, PackageSpecializerSpec)
    except msgspec.ValidationError:
        return UNREADABLE


def digest_of(kind: Kind, obj: Mapping[str, Any]) -> str:
    """Return the digest of an object's row in `pvbus.objects`."""
    return _object_row(kind, obj, obj["metadata"], "").digest


def _revision(obj: Mapping[str, Any]) -> RevisionFacts:
    spec, status = _map(obj.get("spec")), _map(obj.get("status"))
    lock = _map(_map(status.get("upstreamLock")).get("git"))
    own = _map(_map(status.get("selfLock")).get("git"))
    revision, lifecycle = spec.get("revision"), _text(spec.get("lifecycle"))
    gates = tuple(_text(gate.get("conditionType")) for gate in _maps(spec.get("readinessGates")))
    conditions = tuple(map(_condition, _maps(status.get("conditions"))))
    annotations = _map(_map(spec.get("packageMetadata")).get("annotations"))
    texts = {name: _text(annotations.get(name)) for name in questions.READ}
    asked = questions.questions_of(texts, conditions, gates, lifecycle)
    return RevisionFacts(
        repository=_text(spec.get("repository")),
        package=_text(spec.get("packageName")),
        workspace=_text(spec.get("workspaceName")),
        revision=revision if isinstance(revision, int) and not isinstance(revision, bool) else 0,
        lifecycle=lifecycle,
        lock_repo=_text(lock.get("repo")),
        lock_directory=_text(lock.get("directory")),
        lock_ref=_text(lock.get("ref")),
        lock_commit=_text(lock.get("commit")),
        self_repo=_text(own.get("repo")),
        self_directory=_text(own.get("directory")),
        self_commit=_text(own.get("commit")),
        clone_upstream=_clone_upstream(spec),
        conditions=conditions,
        gates=gates,
        gate_steps=steps_in({GATE_STEPS: _text(annotations.get(GATE_STEPS))}, gates),
        tasks=tuple(asked),
        questions=asked,
    )


def _condition(reported: Mapping[str, Any]) -> Condition:
    return Condition(
        type=_text(reported.get("type")),
        status=_text(reported.get("status")),
        reason=_text(reported.get("reason")),
        message=_text(reported.get("message")),
    )


def _clone_upstream(spec: Mapping[str, Any]) -> str:
    for task in _maps(spec.get("tasks")):
        clone = _map(_map(task.get("clone")).get("upstreamRef"))
        reference = _map(clone.get("upstreamRef"))
        if reference.get("name"):
            return _text(reference["name"])
    return ""


def content_field(kind: Kind) -> str:
    """Return the field that configuration injection takes: `data` of a core ConfigMap, else `spec`."""
    return "data" if kind == Kind("", "ConfigMap") else "spec"


def injectable_row(kind: Kind, namespace: str, name: str, obj: Mapping[str, Any] | None) -> Emission:
    """Return the row of a requested object, whether or not it exists."""
    key = okey(*kind, namespace, name)
    if obj is None:
        row = InjectableRow(exists=False)
    else:
        content = obj.get(content_field(kind))
        raw = msgspec.UNSET if content is None else msgspec.Raw(_canonical.encode(content))
        digest = "" if raw is msgspec.UNSET else _hash(bytes(raw))
        row = InjectableRow(exists=True, uid=obj["metadata"].get("uid", ""), content=raw, digest=digest)
    value = msgspec.json.encode(row)
    return Emission(INJECTABLES, key, value, _hash(value))


def presence_row(kind: Kind, namespace: str, *, exists: bool) -> Emission:
    """Return the row that says whether a namespace has any object of a kind."""
    value = msgspec.json.encode(InjectableRow(exists=exists))
    return Emission(INJECTABLES, okey(*kind, namespace, ""), value, _hash(value))
