"""The kinds of the group `pkg.crossplane.io`: packages, their revisions and their lock.

Package, PackageRevision and PackageLock have the fields of Crossplane's design of packages, and under their
shipped names those that came later. Provider, Configuration and Function, their revisions and Lock are as
shipped. Same rules as `pvbus.core.api.variants`. docs/packages.md has the spellings side by side.
"""

from collections.abc import Mapping

import msgspec

from pvbus.core.api.variants import ApiStruct, ObjectMeta

PKG_GROUP = "pkg.crossplane.io"
PKG_API = f"{PKG_GROUP}/v1"
PKG_BETA_API = f"{PKG_GROUP}/v1beta1"
ACTIVATION_POLICIES = ("Automatic", "Manual")
PULL_POLICIES = ("IfNotPresent", "Always", "Never")
DESIRED_STATES = ("Active", "Inactive")


class PackageCondition(ApiStruct, frozen=True, kw_only=True):
    """A condition of Crossplane's: unlike Kubernetes' own type it may be without a message."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class LocalReference(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class KindReference(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


class TypedReference(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""


class RuntimeConfigReference(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class ServiceAccountOptions(ApiStruct, frozen=True, kw_only=True):
    annotations: Mapping[str, str] = {}


class ImageConfigRef(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    reason: str = ""


class PolicyRule(ApiStruct, frozen=True, kw_only=True):
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")
    verbs: tuple[str, ...] = ()


# ---------------------------------------------------------------- packages


class ShippedPackageSpec(ApiStruct, frozen=True, kw_only=True):
    """What Provider, Configuration and Function have."""

    package: str = ""
    revision_activation_policy: str = ""
    revision_history_limit: int | None = None
    package_pull_secrets: tuple[LocalReference, ...] = ()
    package_pull_policy: str = ""
    ignore_crossplane_constraints: bool = False
    skip_dependency_resolution: bool = False
    common_labels: Mapping[str, str] = {}
    common_annotations: Mapping[str, str] = {}


class RuntimePackageSpec(ShippedPackageSpec, frozen=True, kw_only=True):
    """What Provider and Function have, which have a runtime."""

    runtime_config_ref: RuntimeConfigReference | None = None


class PackageSpec(RuntimePackageSpec, frozen=True, kw_only=True):
    """`image_pull_secrets` and `image_pull_policy` are the design's names of the shipped fields."""

    image_pull_secrets: tuple[LocalReference, ...] = ()
    image_pull_policy: str = ""
    service_account: ServiceAccountOptions | None = None


class PackageSwitches(ApiStruct, frozen=True, kw_only=True):
    ignore_crossplane_constraints: bool = False
    skip_dependency_resolution: bool = False


class ShippedPackageStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[PackageCondition, ...] = ()
    current_revision: str = ""
    current_identifier: str = ""
    resolved_package: str = ""
    applied_image_config_refs: tuple[ImageConfigRef, ...] = ()


class PackageStatus(ShippedPackageStatus, frozen=True, kw_only=True):
    switches: PackageSwitches | None = None


class Package(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_BETA_API
    kind: str = "Package"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageSpec = PackageSpec()
    status: PackageStatus = PackageStatus()


class Provider(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_API
    kind: str = "Provider"
    metadata: ObjectMeta = ObjectMeta()
    spec: RuntimePackageSpec = RuntimePackageSpec()
    status: ShippedPackageStatus = ShippedPackageStatus()


class Configuration(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_API
    kind: str = "Configuration"
    metadata: ObjectMeta = ObjectMeta()
    spec: ShippedPackageSpec = ShippedPackageSpec()
    status: ShippedPackageStatus = ShippedPackageStatus()


class Function(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_API
    kind: str = "Function"
    metadata: ObjectMeta = ObjectMeta()
    spec: RuntimePackageSpec = RuntimePackageSpec()
    status: ShippedPackageStatus = ShippedPackageStatus()


# ---------------------------------------------------------------- revisions


class RevisionBase(ApiStruct, frozen=True, kw_only=True):
    desired_state: str = ""
    revision: int = 0
    image: str = ""
    package_pull_secrets: tuple[LocalReference, ...] = ()
    package_pull_policy: str = ""
    ignore_crossplane_constraints: bool = False
    skip_dependency_resolution: bool = False
    common_labels: Mapping[str, str] = {}
    common_annotations: Mapping[str, str] = {}


class RuntimeRevisionSpec(RevisionBase, frozen=True, kw_only=True):
    runtime_config_ref: RuntimeConfigReference | None = None
    tls_server_secret_name: str = ""
    tls_client_secret_name: str = ""


class RevisionDependency(ApiStruct, frozen=True, kw_only=True):
    """Exactly one of `package`, `crd` and `crossplane` is given."""

    package: str = ""
    version: str = ""
    crd: KindReference | None = None
    crossplane: str = ""


class RevisionController(ApiStruct, frozen=True, kw_only=True):
    service_account: ServiceAccountOptions | None = None


class RevisionPermissions(ApiStruct, frozen=True, kw_only=True):
    rules: tuple[PolicyRule, ...] = ()


class PackageRevisionSpec(RuntimeRevisionSpec, frozen=True, kw_only=True):
    custom_resource_definitions: tuple[TypedReference, ...] = ()
    infrastructure_definitions: tuple[TypedReference, ...] = ()
    compositions: tuple[TypedReference, ...] = ()
    controller: RevisionController | None = None
    permissions: RevisionPermissions | None = None
    depends_on: tuple[RevisionDependency, ...] = ()


class RevisionStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[PackageCondition, ...] = ()
    found_dependencies: int = 0
    installed_dependencies: int = 0
    invalid_dependencies: int = 0
    object_refs: tuple[TypedReference, ...] = ()
    permission_requests: tuple[PolicyRule, ...] = ()
    capabilities: tuple[str, ...] = ()
    resolved_image: str = ""
    applied_image_config_refs: tuple[ImageConfigRef, ...] = ()


class FunctionRevisionStatus(RevisionStatus, frozen=True, kw_only=True):
    endpoint: str = ""


class PackageRevisionStatus(RevisionStatus, frozen=True, kw_only=True):
    controller_ref: TypedReference | None = None
    switches: PackageSwitches | None = None


class PackageRevision(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_BETA_API
    kind: str = "PackageRevision"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageRevisionSpec = PackageRevisionSpec()
    status: PackageRevisionStatus = PackageRevisionStatus()


class ProviderRevision(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_API
    kind: str = "ProviderRevision"
    metadata: ObjectMeta = ObjectMeta()
    spec: RuntimeRevisionSpec = RuntimeRevisionSpec()
    status: RevisionStatus = RevisionStatus()


class ConfigurationRevision(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_API
    kind: str = "ConfigurationRevision"
    metadata: ObjectMeta = ObjectMeta()
    spec: RevisionBase = RevisionBase()
    status: RevisionStatus = RevisionStatus()


class FunctionRevision(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_API
    kind: str = "FunctionRevision"
    metadata: ObjectMeta = ObjectMeta()
    spec: RuntimeRevisionSpec = RuntimeRevisionSpec()
    status: FunctionRevisionStatus = FunctionRevisionStatus()


# ---------------------------------------------------------------- locks


class LockedPackage(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    dependencies: tuple[str, ...] = ()


class PackageLockSpec(ApiStruct, frozen=True, kw_only=True):
    packages: tuple[LockedPackage, ...] = ()
    compositions: Mapping[str, str] = {}
    custom_resource_definitions: Mapping[str, str] = {}
    objects: Mapping[str, str] = {}


class LockStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[PackageCondition, ...] = ()


class PackageLock(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_BETA_API
    kind: str = "PackageLock"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageLockSpec = PackageLockSpec()
    status: LockStatus = LockStatus()


class LockDependency(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    type: str = ""
    package: str = ""
    constraints: str = ""


class LockPackage(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    api_version: str = ""
    kind: str = ""
    type: str = ""
    source: str = ""
    version: str = ""
    dependencies: tuple[LockDependency, ...] = ()


class Lock(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PKG_BETA_API
    kind: str = "Lock"
    metadata: ObjectMeta = ObjectMeta()
    packages: tuple[LockPackage, ...] = ()
    status: LockStatus = LockStatus()
