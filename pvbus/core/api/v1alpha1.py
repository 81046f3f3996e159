"""PackageVariantSet v1alpha1: declared in the CustomResourceDefinition, never served, never stored.

The only use of these types is that the definition lists the version, so that replacing Porch's
definition by ours (or the reverse) changes nothing about the versions a cluster knows.
"""

from collections.abc import Mapping

import msgspec

from pvbus.core.api.variants import (
    CONFIG_GROUP,
    LabelSelector,
    ObjectMeta,
    PackageVariantSetStatus,
)


class _Api(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Options shared by all API types (kw_only must be repeated)."""


class OldPackage(_Api, frozen=True, kw_only=True):
    repo: str = ""
    name: str = ""


class OldUpstream(_Api, frozen=True, kw_only=True):
    package: OldPackage | None = None
    revision: int = 0
    ref: str = ""


class ValueOrField(_Api, frozen=True, kw_only=True):
    value: str = ""
    from_field: str = ""


class OldSelector(_Api, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    label_selector: LabelSelector | None = None
    annotations: Mapping[str, str] = {}


class OldObjects(_Api, frozen=True, kw_only=True):
    selectors: tuple[OldSelector, ...] = ()
    repo_name: ValueOrField | None = None


class OldPackageName(_Api, frozen=True, kw_only=True):
    base_name: ValueOrField | None = None
    name_suffix: ValueOrField | None = None
    name_prefix: ValueOrField | None = None


class OldTarget(_Api, frozen=True, kw_only=True):
    package: OldPackage | None = None
    repositories: LabelSelector | None = None
    objects: OldObjects | None = None
    package_name: OldPackageName | None = None


class OldPackageVariantSetSpec(_Api, frozen=True, kw_only=True):
    upstream: OldUpstream | None = None
    targets: tuple[OldTarget, ...] = ()
    adoption_policy: str = ""
    deletion_policy: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class OldPackageVariantSet(_Api, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = f"{CONFIG_GROUP}/v1alpha1"
    kind: str = "PackageVariantSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: OldPackageVariantSetSpec = OldPackageVariantSetSpec()
    status: PackageVariantSetStatus = PackageVariantSetStatus()
