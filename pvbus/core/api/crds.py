"""CustomResourceDefinitions and OpenAPI schemas, generated from the API types.

A Struct gives names and types; `pvbus.core.api.descriptions` adds the words for people and
`pvbus.core.api.constraints` required fields, limits and rules. Names, types, subresources and limits are
those of Porch's definitions, so that either set of files can replace the other in a cluster; columns
and short names are added where Porch has none, and kinds of a group of our own. Every field has a
description, or generation fails.
"""

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from pvbus.core.api import constraints, descriptions, rollouts_schema
from pvbus.core.api.descriptions import OBJECT_FIELDS
from pvbus.core.api.packages import (
    PackageRev,
    PackageRevision,
    PackageRevisionResources,
    RenderStatus,
    Repository,
)
from pvbus.core.api.promotion import PROMOTION_GROUP, PackageSpecializer
from pvbus.core.api.quarantines import Quarantine
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.api.stops import RolloutStop
from pvbus.core.api.v1alpha1 import OldPackageVariantSet
from pvbus.core.api.variants import (
    CONFIG_GROUP,
    PORCH_GROUP,
    DownstreamTarget,
    ObjectMeta,
    PackageVariant,
    PackageVariantSet,
)

Schema = dict[str, Any]
ApiType = type[msgspec.Struct]

DESCRIPTIONS = {**descriptions.DESCRIPTIONS, **rollouts_schema.DESCRIPTIONS}
SHAPES = {**constraints.SHAPES, **rollouts_schema.SHAPES}
TYPE_SHAPES = {**constraints.TYPE_SHAPES, **rollouts_schema.TYPE_SHAPES}
_SCALARS: Mapping[Any, str] = {str: "string", int: "integer", bool: "boolean", float: "number"}
OBJECT_SCHEMAS: Mapping[str, Schema] = {
    "apiVersion": {"type": "string", "description": OBJECT_FIELDS["api_version"]},
    "kind": {"type": "string", "description": OBJECT_FIELDS["kind"]},
    "metadata": {"type": "object"},
}
"""Schemas of the fields that every object has beside `spec` and `status`."""

_FIELD_TYPES: Mapping[tuple[ApiType, str], Any] = {(DownstreamTarget, "render_status"): RenderStatus}
"""Fields that the code does not decode, although their schema is known."""


class _Version(NamedTuple):
    name: str
    type: ApiType
    served: bool = True
    columns: tuple[tuple[str, str, str], ...] = ()
    """(name, type, JSONPath)."""


class _Kind(NamedTuple):
    plural: str
    versions: tuple[_Version, ...]
    short_names: tuple[str, ...] = ()
    group: str = CONFIG_GROUP


_REPOSITORY_COLUMNS = (
    ("Type", "string", ".spec.type"),
    ("Content", "string", ".spec.content"),
    ("Sync schedule", "string", ".spec.sync.schedule"),
    ("Deployment", "boolean", ".spec.deployment"),
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    ("Address", "string", ".spec['git','oci']['repo','registry']"),
    ("Branch", "string", ".spec.git.branch"),
    ("Age", "date", ".metadata.creationTimestamp"),
)

_VARIANT_COLUMNS = (
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
    ("Attention", "string", ".status.conditions[?(@.type=='AttentionNeeded')].reason"),
    ("Upstream", "string", ".spec.upstream.package"),
    ("Age", "date", ".metadata.creationTimestamp"),
)

_ROLLOUT_COLUMNS = (
    ("Approval", "string", ".spec.approval"),
    ("Phase", "string", ".status.phase"),
    ("Attempt", "integer", ".status.attempt"),
    ("Wave", "integer", ".status.wave"),
    ("Targets", "integer", ".status.targets.total"),
    ("Proven", "integer", ".status.targets.proven"),
    ("Failing", "integer", ".status.targets.failing"),
    ("Age", "date", ".metadata.creationTimestamp"),
)

# `pv` is PersistentVolume's short name, too. Where a cluster serves both, kubectl takes the PersistentVolume,
# because its group comes first; the embedded server has no PersistentVolumes.
_KINDS = (
    _Kind("packagevariants", (_Version("v1alpha1", PackageVariant, columns=_VARIANT_COLUMNS),), ("pv",)),
    _Kind(
        "packagevariantsets",
        (
            _Version("v1alpha1", OldPackageVariantSet, served=False),
            _Version("v1alpha2", PackageVariantSet, columns=_VARIANT_COLUMNS),
        ),
        ("pvs",),
    ),
    _Kind("repositories", (_Version("v1alpha1", Repository, columns=_REPOSITORY_COLUMNS),), ("repo",)),
)


_SPECIALIZER_COLUMNS = (
    ("Deadline", "integer", ".spec.deadlineSeconds"),
    ("After deadline", "string", ".spec.afterDeadline"),
    ("Conditions", "string", ".spec.conditionTypes"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_QUARANTINE_COLUMNS = (
    ("Upstream", "string", ".spec.upstreams[*].revision"),
    ("Policy", "string", ".spec.policy"),
    ("Attempt", "integer", ".spec.attempt"),
    ("Reason", "string", ".spec.reason"),
    ("Released by", "string", ".spec.released.by"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_STOP_COLUMNS = (
    ("By", "string", ".spec.entries[*].by"),
    ("Reason", "string", ".spec.entries[*].reason"),
    ("Lifted by", "string", ".spec.entries[*].lifted.by"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_PROMOTION_KINDS = (
    _Kind(
        "packagespecializers",
        (_Version("v1alpha1", PackageSpecializer, columns=_SPECIALIZER_COLUMNS),),
        group=PROMOTION_GROUP,
    ),
    _Kind(
        "rolloutpolicies",
        (_Version("v1alpha1", RolloutPolicy, columns=_ROLLOUT_COLUMNS),),
        ("rollout",),
        PROMOTION_GROUP,
    ),
    _Kind(
        "quarantines",
        (_Version("v1alpha1", Quarantine, columns=_QUARANTINE_COLUMNS),),
        group=PROMOTION_GROUP,
    ),
    _Kind(
        "rolloutstops",
        (_Version("v1alpha1", RolloutStop, columns=_STOP_COLUMNS),),
        group=PROMOTION_GROUP,
    ),
)

_PACKAGE_REV = _Kind("packagerevs", (_Version("v1alpha1", PackageRev),))


def cluster_crds() -> list[Schema]:
    """Return the CustomResourceDefinitions for a cluster without Porch: Porch's kinds, and PackageRev.

    The embedded server needs no PackageRevs: it stores PackageRevisions itself.
    """
    return [*porch_crds(), _definition(_PACKAGE_REV)]


def crds() -> list[Schema]:
    """Return the CustomResourceDefinitions of the kinds that users write."""
    return [*porch_crds(), *promotion_crds()]


def porch_crds() -> list[Schema]:
    """Return the CustomResourceDefinitions of PackageVariant, PackageVariantSet and Repository."""
    return [_definition(kind) for kind in _KINDS]


def promotion_crds() -> list[Schema]:
    """Return the CustomResourceDefinitions that an installation with promote has, with and without Porch."""
    return [_definition(kind) for kind in _PROMOTION_KINDS]


def open_api() -> dict[str, Schema]:
    """Return, by kind, the OpenAPI v3 schemas of the kinds that no CustomResourceDefinition defines."""
    found = {}
    for api_type in (PackageRevision, PackageRevisionResources):
        schema = object_schema(api_type)
        schema["properties"]["metadata"]["description"] = OBJECT_FIELDS["metadata"]
        kind = api_type.__name__
        schema["x-kubernetes-group-version-kind"] = [
            {"group": PORCH_GROUP, "version": "v1alpha1", "kind": kind}
        ]
        found[kind] = schema
    return found


def object_schema(api_type: ApiType) -> Schema:
    """Return the structural schema of a Kubernetes object type."""
    return _struct(api_type)


def _definition(kind: _Kind) -> Schema:
    word = kind.versions[-1].type.__name__
    names: Schema = {"shortNames": list(kind.short_names)} if kind.short_names else {}
    versions = [
        served_version(version.name, object_schema(version.type), version.columns, served=version.served)
        for version in kind.versions
    ]
    return definition(word, kind.plural, kind.group, "Namespaced", names, versions)


def definition(
    kind: str, plural: str, group: str, scope: str, names: Schema, versions: Sequence[Schema]
) -> Schema:
    """Return a CustomResourceDefinition; `names` has its short names and categories."""
    common = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": common | names, "scope": scope, "versions": list(versions)},
    }


def served_version(
    name: str, schema: Schema, columns: Iterable[tuple[str, str, str]], *, served: bool = True
) -> Schema:
    """Return a version of a definition; its status is a subresource if the schema has one.

    Args:
        columns: (name, type, JSONPath) of each.
        served: whether the version is served and stored.
    """
    out: Schema = {
        "name": name,
        "schema": {"openAPIV3Schema": schema},
        "served": served,
        "storage": served,
    }
    if "status" in schema["properties"]:
        out["subresources"] = {"status": {}}
    described = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns]
    return out | ({"additionalPrinterColumns": described} if described else {})


def _struct(api_type: ApiType) -> Schema:
    if api_type is ObjectMeta:
        # An API server knows metadata itself and refuses a definition with more than its type.
        return {"type": "object"}
    properties = {}
    for field in msgspec.structs.fields(api_type):
        schema = _type(_FIELD_TYPES.get((api_type, field.name), field.type))
        if field.type is not ObjectMeta:
            schema["description"] = _description(api_type, field.name)
        schema.update(_shape(api_type, field.name))
        properties[field.encode_name] = schema
    schema = {"type": "object", "properties": properties, **TYPE_SHAPES.get(api_type, {})}
    if "" in DESCRIPTIONS.get(api_type, {}):
        schema["description"] = DESCRIPTIONS[api_type][""]
    return schema


def _type(annotation: Any) -> Schema:
    if annotation in _SCALARS:
        return {"type": _SCALARS[annotation]}
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _type(inner)
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    if arguments in ((str, str), (str, int)):
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    return {"type": "object"}


def _lineage(api_type: ApiType) -> Iterator[type]:
    return (base for base in api_type.__mro__ if base is not msgspec.Struct)


def _description(api_type: ApiType, field: str) -> str:
    for base in _lineage(api_type):
        if field in DESCRIPTIONS.get(base, {}):
            return DESCRIPTIONS[base][field]
    if "metadata" in api_type.__struct_fields__ and field in OBJECT_FIELDS:
        return OBJECT_FIELDS[field]
    raise LookupError(f"{api_type.__name__}.{field} has no description")


def _shape(api_type: ApiType, field: str) -> Mapping[str, Any]:
    for base in _lineage(api_type):
        if field in SHAPES.get(base, {}):
            return SHAPES[base][field]
    return {}
