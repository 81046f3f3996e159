"""API types: the objects users write and read, with Porch's field names and meanings.

Frozen msgspec Structs; JSON names are camelCase. A field that Porch declares as a pointer is
`None` when absent, and an explicit empty string is kept apart from it. Unknown fields are ignored
when decoding: the API server has already pruned or refused them.

The CustomResourceDefinitions in `schemas/crds` are generated from these types.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

CONFIG_GROUP = "config.porch.kpt.dev"
PORCH_GROUP = "porch.kpt.dev"
VARIANT_API = f"{CONFIG_GROUP}/v1alpha1"
SET_API = f"{CONFIG_GROUP}/v1alpha2"
PORCH_API = f"{PORCH_GROUP}/v1alpha1"


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Options shared by all API types (kw_only must be repeated)."""


class OwnerReference(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(ApiStruct, frozen=True, kw_only=True):
    """metav1.Condition. `observedGeneration` is ours: Porch never sets it."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class Upstream(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    package: str = ""
    revision: int = 0
    workspace_name: str = ""


class Downstream(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    package: str = ""


class PackageContext(ApiStruct, frozen=True, kw_only=True):
    data: Mapping[str, str] = {}
    remove_keys: tuple[str, ...] = ()


class FunctionSelector(ApiStruct, frozen=True, kw_only=True):
    """Kptfile selector: all given fields must be equal."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class Function(ApiStruct, frozen=True, kw_only=True):
    """Kptfile function."""

    name: str = ""
    image: str = ""
    tag: str = ""
    exec: str = ""
    config_path: str = ""
    config_map: Mapping[str, str] = {}
    selectors: tuple[FunctionSelector, ...] = ()
    exclude: tuple[FunctionSelector, ...] = ()


class Pipeline(ApiStruct, frozen=True, kw_only=True):
    validators: tuple[Function, ...] = ()
    mutators: tuple[Function, ...] = ()


class Injector(ApiStruct, frozen=True, kw_only=True):
    """An unset group, version or kind matches any; an empty string matches only the empty one."""

    group: str | None = None
    version: str | None = None
    kind: str | None = None
    name: str = ""


class PackageVariantSpec(ApiStruct, frozen=True, kw_only=True):
    upstream: Upstream | None = None
    downstream: Downstream | None = None
    adoption_policy: str = ""
    deletion_policy: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    package_context: PackageContext | None = None
    pipeline: Pipeline | None = None
    injectors: tuple[Injector, ...] = ()


class DownstreamTarget(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    render_status: Mapping[str, Any] | None = None


class PackageVariantStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()
    downstream_targets: tuple[DownstreamTarget, ...] = ()


class PackageVariant(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = VARIANT_API
    kind: str = "PackageVariant"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageVariantSpec = PackageVariantSpec()
    status: PackageVariantStatus = PackageVariantStatus()


class LabelSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class ObjectSelector(ApiStruct, frozen=True, kw_only=True):
    """Selects objects of one kind in the set's namespace; `name`, when given, must be equal."""

    api_version: str = ""
    kind: str = ""
    name: str | None = None
    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class RepositoryTarget(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    package_names: tuple[str, ...] = ()


class MapExpr(ApiStruct, frozen=True, kw_only=True):
    key: str | None = None
    value: str | None = None
    key_expr: str | None = None
    value_expr: str | None = None


class DownstreamTemplate(ApiStruct, frozen=True, kw_only=True):
    repo: str | None = None
    package: str | None = None
    repo_expr: str | None = None
    package_expr: str | None = None


class PackageContextTemplate(ApiStruct, frozen=True, kw_only=True):
    data: Mapping[str, str] = {}
    remove_keys: tuple[str, ...] = ()
    data_exprs: tuple[MapExpr, ...] = ()
    remove_key_exprs: tuple[str, ...] = ()


class InjectorTemplate(ApiStruct, frozen=True, kw_only=True):
    group: str | None = None
    version: str | None = None
    kind: str | None = None
    name: str | None = None
    name_expr: str | None = None


class FunctionTemplate(Function, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    config_map_exprs: tuple[MapExpr, ...] = ()


class PipelineTemplate(ApiStruct, frozen=True, kw_only=True):
    validators: tuple[FunctionTemplate, ...] = ()
    mutators: tuple[FunctionTemplate, ...] = ()


class VariantTemplate(ApiStruct, frozen=True, kw_only=True):
    downstream: DownstreamTemplate | None = None
    adoption_policy: str | None = None
    deletion_policy: str | None = None
    labels: Mapping[str, str] = {}
    label_exprs: tuple[MapExpr, ...] = ()
    annotations: Mapping[str, str] = {}
    annotation_exprs: tuple[MapExpr, ...] = ()
    package_context: PackageContextTemplate | None = None
    pipeline: PipelineTemplate | None = None
    injectors: tuple[InjectorTemplate, ...] = ()


class Target(ApiStruct, frozen=True, kw_only=True):
    """Exactly one of the first three is set. An empty list that is present is an error, so it is
    kept apart from an absent one."""

    repositories: tuple[RepositoryTarget, ...] | None = None
    repository_selector: LabelSelector | None = None
    object_selector: ObjectSelector | None = None
    template: VariantTemplate | None = None


class PackageVariantSetSpec(ApiStruct, frozen=True, kw_only=True):
    upstream: Upstream | None = None
    targets: tuple[Target, ...] = ()


class PackageVariantSetStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()


class PackageVariantSet(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = SET_API
    kind: str = "PackageVariantSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageVariantSetSpec = PackageVariantSetSpec()
    status: PackageVariantSetStatus = PackageVariantSetStatus()
