"""Carvel's kinds: Package and PackageMetadata of `data.packaging.carvel.dev`, and PackageInstall of
`packaging.carvel.dev`.

They have the shipped fields, and for dependencies those of the first and of the merged proposal. Same rules
as `pvbus.core.api.variants`. docs/packages.md has the spellings side by side.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.api.variants import ApiStruct, ObjectMeta

INSTALLATION_TYPES = {
    "onePerCluster": "onePerCluster",
    "onePerNamespace": "onePerNamespace",
    "noRestrictions": "noRestrictions",
    "OnePerCluster": "onePerCluster",
    "OnePerNamespace": "onePerNamespace",
    "NoRestrictions": "noRestrictions",
}
"""Every spelling of an installationType, and the seed's."""

DATA_GROUP = "data.packaging.carvel.dev"
INSTALL_GROUP = "packaging.carvel.dev"
DATA_API = f"{DATA_GROUP}/v1alpha1"
INSTALL_API = f"{INSTALL_GROUP}/v1alpha1"


class Gvk(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""


class Prereleases(ApiStruct, frozen=True, kw_only=True):
    identifiers: tuple[str, ...] = ()


class VersionSelection(ApiStruct, frozen=True, kw_only=True):
    constraints: str = ""
    prereleases: Prereleases | None = None


class PackageReference(ApiStruct, frozen=True, kw_only=True):
    ref_name: str = ""
    version_selection: VersionSelection | None = None


class WantedReference(PackageReference, frozen=True, kw_only=True):
    """The reference of a dependency, whose `refName` is required."""


class PackageVersion(ApiStruct, frozen=True, kw_only=True):
    ref_name: str = ""
    version: str = ""


class InnermostDependency(ApiStruct, frozen=True, kw_only=True):
    """An alternative of an alternative: a schema cannot refer to itself, so that it ends here."""

    name: str = ""
    alias: str = ""
    gvk: Gvk | None = None
    package: PackageVersion | None = None
    package_ref: WantedReference | None = None


class AlternativeDependency(InnermostDependency, frozen=True, kw_only=True):
    or_: tuple[InnermostDependency, ...] = msgspec.field(default=(), name="or")


class Dependency(InnermostDependency, frozen=True, kw_only=True):
    """Exactly one of `gvk`, `package`, `packageRef` and `or` is given."""

    or_: tuple[AlternativeDependency, ...] = msgspec.field(default=(), name="or")
    optional: bool = False


class Provided(ApiStruct, frozen=True, kw_only=True):
    """An API kind, directly or as `gvk`."""

    api_version: str = ""
    kind: str = ""
    gvk: Gvk | None = None


class IncludedSoftware(ApiStruct, frozen=True, kw_only=True):
    display_name: str = ""
    version: str = ""
    description: str = ""


class Constraints(ApiStruct, frozen=True, kw_only=True):
    constraints: str = ""


class PackageSpec(ApiStruct, frozen=True, kw_only=True):
    ref_name: str = ""
    version: str = ""
    installation_type: str = ""
    dependencies: tuple[Dependency, ...] = ()
    provides: tuple[Provided, ...] = ()
    licenses: tuple[str, ...] = ()
    released_at: str | None = None
    capacity_requirements_description: str = ""
    release_notes: str = ""
    template: Mapping[str, Any] = {}
    values_schema: Mapping[str, Any] = {}
    included_software: tuple[IncludedSoftware, ...] = ()
    kubernetes_version_selection: Constraints | None = None
    kapp_controller_version_selection: Constraints | None = None


class Package(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = DATA_API
    kind: str = "Package"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageSpec = PackageSpec()


class Maintainer(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class PackageMetadataSpec(ApiStruct, frozen=True, kw_only=True):
    display_name: str = ""
    long_description: str = ""
    short_description: str = ""
    icon_svg_base64: str = msgspec.field(default="", name="iconSVGBase64")
    provider_name: str = ""
    maintainers: tuple[Maintainer, ...] = ()
    categories: tuple[str, ...] = ()
    support_description: str = ""


class PackageMetadata(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = DATA_API
    kind: str = "PackageMetadata"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageMetadataSpec = PackageMetadataSpec()


class SecretReference(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    key: str = ""


class InstallValues(ApiStruct, frozen=True, kw_only=True):
    secret_ref: SecretReference | None = None


class DependencyOverride(ApiStruct, frozen=True, kw_only=True):
    """The merged proposal has `name` and `packageRef`, the first one `refName` and `versionSelection`."""

    name: str = ""
    alias: str = ""
    ref_name: str = ""
    package_ref: PackageReference | None = None
    version_selection: VersionSelection | None = None
    install: bool | None = None


class DependencyValues(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    alias: str = ""
    ref_name: str = ""
    secret_ref: SecretReference | None = None


class InstallDependencies(ApiStruct, frozen=True, kw_only=True):
    """`managedBy` is the merged proposal's switch, `install` that of the first one."""

    managed_by: str = ""
    install: bool | None = None
    override: tuple[DependencyOverride, ...] = ()
    values: tuple[DependencyValues, ...] = ()


class PackageInstallSpec(ApiStruct, frozen=True, kw_only=True):
    service_account_name: str = ""
    cluster: Mapping[str, Any] = {}
    default_namespace: str = ""
    package_ref: PackageReference | None = None
    values: tuple[InstallValues, ...] = ()
    paused: bool = False
    canceled: bool = False
    sync_period: str = ""
    noop_delete: bool = False
    dependencies: InstallDependencies | None = None


class AppCondition(ApiStruct, frozen=True, kw_only=True):
    """A condition without the time of its last change: kapp-controller reports none."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PackageInstallReference(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""


class DependencyStatus(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    wanted_package_ref: PackageReference | None = None
    gvk: Gvk | None = None
    package_install_ref: PackageInstallReference | None = None
    conditions: tuple[AppCondition, ...] = ()


class PackageInstallStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    conditions: tuple[AppCondition, ...] = ()
    friendly_description: str = ""
    useful_error_message: str = ""
    version: str = ""
    last_attempted_version: str = ""
    dependencies: tuple[DependencyStatus, ...] = ()


class PackageInstall(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = INSTALL_API
    kind: str = "PackageInstall"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageInstallSpec = PackageInstallSpec()
    status: PackageInstallStatus = PackageInstallStatus()
