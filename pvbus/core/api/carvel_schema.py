"""Descriptions and limits of the API types of `pvbus.core.api.carvel`.

The forms are those of `pvbus.core.api.rollouts_schema`.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.core.api import carvel as m
from pvbus.core.api.carvel import INSTALLATION_TYPES

_ONE_OF = "Exactly one of gvk, package, packageRef and or is given."
_RANGE = "Range of versions, such as `>=1.2.0 <2.0.0`."

DESCRIPTIONS: Mapping[type, Mapping[str, str]] = {
    m.Gvk: {"": "An API kind.", "api_version": "Group and version of the API.", "kind": "Kind of the API."},
    m.Prereleases: {
        "": "Which prereleases may be chosen. Without it none may be.",
        "identifiers": "Identifiers of which a prerelease must have one. None means every prerelease.",
    },
    m.VersionSelection: {
        "": "Which versions may be chosen.",
        "constraints": f"{_RANGE} None means every release.",
        "prereleases": "Which prereleases may be chosen.",
    },
    m.PackageReference: {
        "ref_name": "Name of the package, without a version.",
        "version_selection": "Versions that may be chosen.",
    },
    m.WantedReference: {"ref_name": "Name of the package, without a version."},
    m.PackageVersion: {
        "ref_name": "Name of the package, without a version.",
        "version": f"{_RANGE} None means every release.",
    },
    m.InnermostDependency: {
        "": "An alternative. Exactly one of gvk, package and packageRef is given.",
        "name": "Name of the dependency, which installs use to override it.",
        "alias": "Another name of the field name.",
        "gvk": "An API that must be served.",
        "package": "A package that must be installed, and its versions.",
        "package_ref": "A package that must be installed, and its versions.",
    },
    m.AlternativeDependency: {
        "": f"An alternative. {_ONE_OF}",
        "or_": "Alternatives, of which one is enough. They are tried in order.",
    },
    m.Dependency: {
        "": f"What the package needs. {_ONE_OF}",
        "or_": "Alternatives, of which one is enough. They are tried in order.",
        "optional": "Whether the package is installed without it if need be.",
    },
    m.Provided: {
        "": "An API kind that the package brings: apiVersion and kind, or both within gvk.",
        "api_version": "Group and version of the API.",
        "kind": "Kind of the API.",
        "gvk": "The API kind.",
    },
    m.IncludedSoftware: {
        "": "Software that the package has in it.",
        "display_name": "Name of the software.",
        "version": "Version of the software.",
        "description": "What it is.",
    },
    m.Constraints: {"constraints": _RANGE},
    m.PackageSpec: {
        "ref_name": "Name of the package, without a version.",
        "version": "Semantic version of the package.",
        "installation_type": "How often the package may be installed.",
        "dependencies": "What the package needs.",
        "provides": "API kinds that the package brings.",
        "licenses": "Licenses of the package.",
        "released_at": "When the version was released.",
        "capacity_requirements_description": "What the package needs of the cluster, in words.",
        "release_notes": "What is new in the version.",
        "template": "How the package is fetched, templated and deployed: the spec of an App.",
        "values_schema": "Schema of the values that an install may give.",
        "included_software": "Software that the package has in it.",
        "kubernetes_version_selection": "Versions of Kubernetes that the package works with.",
        "kapp_controller_version_selection": "Versions of kapp-controller that the package works with.",
    },
    m.Package: {"": "A version of a package that can be installed."},
    m.Maintainer: {"": "A maintainer of the package.", "name": "Name of the maintainer."},
    m.PackageMetadataSpec: {
        "display_name": "Name of the package for people.",
        "long_description": "What the package is, at length.",
        "short_description": "What the package is, in a line.",
        "icon_svg_base64": "Icon of the package: SVG in base64.",
        "provider_name": "Who publishes the package.",
        "maintainers": "Who maintains the package.",
        "categories": "Categories of the package.",
        "support_description": "How support is given.",
    },
    m.PackageMetadata: {"": "What all versions of a package have in common."},
    m.SecretReference: {
        "": "A Secret in the namespace of the install.",
        "name": "Name of the Secret.",
        "key": "The only key that is used. None means all keys.",
    },
    m.InstallValues: {"": "Values for the package.", "secret_ref": "The Secret with the values."},
    m.DependencyOverride: {
        "": "What this install says of a dependency. name, alias or refName says of which one.",
        "name": "Name of the dependency.",
        "alias": "Another name of the field name.",
        "ref_name": "Name of the package that the dependency needs.",
        "package_ref": "The package, and the versions that may be chosen instead of the dependency's.",
        "version_selection": "Versions that may be chosen instead of the dependency's.",
        "install": "Whether the dependency may be installed. The default is what holds for all.",
    },
    m.DependencyValues: {
        "": "Values for a dependency. name, alias or refName says for which one.",
        "name": "Name of the dependency.",
        "alias": "Another name of the field name.",
        "ref_name": "Name of the package that the dependency needs.",
        "secret_ref": "The Secret with the values.",
    },
    m.InstallDependencies: {
        "managed_by": "Who installs dependencies: `Auto` means that it is done, `User` that it is only "
        "checked whether they are there.",
        "install": "Another form of managedBy: true is `Auto`, false is `User`.",
        "override": "Other versions for dependencies.",
        "values": "Values for dependencies.",
    },
    m.PackageInstallSpec: {
        "service_account_name": "ServiceAccount that the package is installed with.",
        "cluster": "Another cluster that the package is installed in.",
        "default_namespace": "Namespace of objects without one.",
        "package_ref": "The package, and its versions.",
        "values": "Values for the package.",
        "paused": "Whether nothing is changed for now.",
        "canceled": "Whether running changes are stopped.",
        "sync_period": "How often the package is applied again, as a duration.",
        "noop_delete": "Whether the objects of the package stay when the install is deleted.",
        "dependencies": "What this install says of the dependencies of the package.",
    },
    m.AppCondition: {
        "": "A condition.",
        "type": "Type of the condition.",
        "status": "True, False or Unknown.",
        "reason": "Why, as a word.",
        "message": "Why, in a sentence.",
    },
    m.PackageInstallReference: {
        "name": "Name of the PackageInstall.",
        "namespace": "Namespace of the PackageInstall.",
    },
    m.DependencyStatus: {
        "": "What is known of a dependency.",
        "name": "Name of the dependency.",
        "wanted_package_ref": "The package and the versions that are wanted.",
        "gvk": "The API kind that is wanted.",
        "package_install_ref": "The install that meets the dependency.",
        "conditions": "What is known of the dependency.",
    },
    m.PackageInstallStatus: {
        "observed_generation": "The metadata.generation that this status speaks of.",
        "conditions": "Whether the package is installed.",
        "friendly_description": "The state in a line.",
        "useful_error_message": "Why it failed.",
        "version": "The version that was chosen.",
        "last_attempted_version": "The version that was tried last.",
        "dependencies": "What is known of each dependency.",
    },
    m.PackageInstall: {"": "A package that shall be installed in a namespace, and its versions."},
}

_NOT_EMPTY = {"minLength": 1}
_ANY = {"x-kubernetes-preserve-unknown-fields": True}
_ITEMS = {"maxItems": 256}
_ALTERNATIVES = {"minItems": 1, "maxItems": 64}
_INT64 = {"format": "int64"}

SHAPES: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    m.Gvk: {"api_version": _NOT_EMPTY, "kind": _NOT_EMPTY},
    m.WantedReference: {"ref_name": _NOT_EMPTY},
    m.PackageVersion: {"ref_name": _NOT_EMPTY},
    m.AlternativeDependency: {"or_": _ALTERNATIVES},
    m.Dependency: {"or_": _ALTERNATIVES},
    m.PackageSpec: {
        "ref_name": _NOT_EMPTY,
        "version": _NOT_EMPTY,
        "installation_type": {"enum": list(INSTALLATION_TYPES)},
        "dependencies": _ITEMS,
        "provides": {"maxItems": 1024},
        "released_at": {"format": "date-time", "nullable": True},
        "template": _ANY,
        "values_schema": _ANY,
    },
    m.SecretReference: {"name": _NOT_EMPTY},
    m.InstallDependencies: {
        "managed_by": {"enum": ["Auto", "User"]},
        "override": _ITEMS,
        "values": _ITEMS,
    },
    m.PackageInstallSpec: {"cluster": _ANY, "values": _ITEMS},
    m.PackageInstallStatus: {"observed_generation": _INT64},
}


def _one_of(*fields: str) -> list[dict[str, Any]]:
    return [{"required": [field]} for field in fields]


# Rules in CEL would cost too much on alternatives of alternatives, by the estimate of the API server.
_ONE_NAME = {"not": {"required": ["name", "alias"]}}
_NAMED = {
    "rule": "has(self.name) || has(self.alias) || has(self.refName)"
    " || (has(self.packageRef) && has(self.packageRef.refName))",
    "message": "must have the name of a dependency, or the refName of its package",
}

TYPE_SHAPES: Mapping[type, Mapping[str, Any]] = {
    m.Gvk: {"required": ["apiVersion", "kind"]},
    m.PackageVersion: {"required": ["refName"]},
    m.WantedReference: {"required": ["refName"]},
    m.InnermostDependency: {"oneOf": _one_of("gvk", "package", "packageRef"), **_ONE_NAME},
    m.AlternativeDependency: {"oneOf": _one_of("gvk", "package", "packageRef", "or"), **_ONE_NAME},
    m.Dependency: {"oneOf": _one_of("gvk", "package", "packageRef", "or"), **_ONE_NAME},
    m.Provided: {"oneOf": [{"required": ["gvk"]}, {"required": ["apiVersion", "kind"]}]},
    m.PackageSpec: {"required": ["refName", "version"]},
    m.Package: {"required": ["spec"]},
    m.PackageMetadata: {"required": ["spec"]},
    m.Maintainer: {"required": ["name"]},
    m.SecretReference: {"required": ["name"]},
    m.DependencyOverride: {
        **_ONE_NAME,
        "x-kubernetes-validations": [
            _NAMED,
            {
                "rule": "!has(self.packageRef) || !has(self.versionSelection)",
                "message": "versionSelection stands in packageRef, too: remove one",
            },
        ],
    },
    m.DependencyValues: {
        "required": ["secretRef"],
        **_ONE_NAME,
        "x-kubernetes-validations": [
            {
                "rule": "has(self.name) || has(self.alias) || has(self.refName)",
                "message": _NAMED["message"],
            },
        ],
    },
    m.InstallDependencies: {
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.managedBy) || !has(self.install)"
                " || self.install == (self.managedBy == 'Auto')",
                "message": "install is another form of managedBy: give one, or the same in both",
            }
        ]
    },
    m.AppCondition: {"required": ["status", "type"]},
    m.PackageInstall: {"required": ["spec"]},
}
