"""PackageVariantSet v1alpha1: declared in the CustomResourceDefinition, never served, never stored.

The only use of these types is that the definition lists the version, so that replacing Porch's
definition by ours (or the reverse) changes nothing about the versions a cluster knows.
"""

from collections.abc import Mapping

from pvbus.core.api.variants import (
    CONFIG_GROUP,
    ApiStruct,
    LabelSelector,
    ObjectMeta,
    PackageVariantSetStatus,
)


class OldPackage(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    name: str = ""


class OldUpstream(ApiStruct, frozen=True, kw_only=True):
    package: OldPackage | None = None
    revision: int = 0
    ref: str = ""


class ValueOrField(ApiStruct, frozen=True, kw_only=True):
    value: str = ""
    from_field: str = ""


class OldSelector(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    label_selector: LabelSelector | None = None
    annotations: Mapping[str, str] = {}


class OldObjects(ApiStruct, frozen=True, kw_only=True):
    selectors: tuple[OldSelector, ...] = ()
    repo_name: ValueOrField | None = None


class OldPackageName(ApiStruct, frozen=True, kw_only=True):
    base_name: ValueOrField | None = None
    name_suffix: ValueOrField | None = None
    name_prefix: ValueOrField | None = None


class OldTarget(ApiStruct, frozen=True, kw_only=True):
    package: OldPackage | None = None
    repositories: LabelSelector | None = None
    objects: OldObjects | None = None
    package_name: OldPackageName | None = None


class OldPackageVariantSetSpec(ApiStruct, frozen=True, kw_only=True):
    upstream: OldUpstream | None = None
    targets: tuple[OldTarget, ...] = ()
    adoption_policy: str = ""
    deletion_policy: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class OldPackageVariantSet(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = f"{CONFIG_GROUP}/v1alpha1"
    kind: str = "PackageVariantSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: OldPackageVariantSetSpec = OldPackageVariantSetSpec()
    status: PackageVariantSetStatus = PackageVariantSetStatus()
