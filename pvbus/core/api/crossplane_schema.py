"""Descriptions and limits of the API types of `pvbus.core.api.crossplane`.

The forms are those of `pvbus.core.api.rollouts_schema`.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.core.api import crossplane as m

_SKIP = "Whether the dependencies of the package are left alone. What it needs may then be missing."
_IGNORE = "Whether the package is used on any version of the platform, whatever it says."
_LABELS = "Labels for every object that the package brings."
_ANNOTATIONS = "Annotations for every object that the package brings."
_SECRETS = "Secrets for private registries, in the namespace of the package manager."
_PULL = "When the image is asked for again: `IfNotPresent` if its reference changed, `Always`, or `Never`."
_RUNTIME = "The DeploymentRuntimeConfig of the package's controller."

DESCRIPTIONS: Mapping[type, Mapping[str, str]] = {
    m.PackageCondition: {
        "": "A condition.",
        "type": "Type of the condition.",
        "status": "True, False or Unknown.",
        "reason": "Why, as a word.",
        "message": "Why, in a sentence.",
        "last_transition_time": "When the status changed last.",
        "observed_generation": "The metadata.generation that the condition speaks of.",
    },
    m.LocalReference: {"": "A reference to an object by its name.", "name": "Name of the object."},
    m.KindReference: {
        "": "An API kind.",
        "api_version": "Group and version of the API.",
        "kind": "Kind of the API.",
    },
    m.TypedReference: {
        "": "A reference to an object by its kind and name.",
        "api_version": "Group and version of the object.",
        "kind": "Kind of the object.",
        "name": "Name of the object.",
        "uid": "The metadata.uid of the object.",
    },
    m.RuntimeConfigReference: {
        "api_version": "Group and version of the configuration.",
        "kind": "Kind of the configuration.",
        "name": "Name of the configuration.",
    },
    m.ServiceAccountOptions: {
        "": "What is added to the ServiceAccount of the package's controller.",
        "annotations": "Annotations for the ServiceAccount.",
    },
    m.ImageConfigRef: {
        "": "An ImageConfig that was used for the image.",
        "name": "Name of the ImageConfig.",
        "reason": "What it was used for.",
    },
    m.PolicyRule: {
        "": "Rights that the package's controller asks for.",
        "api_groups": "API groups of the resources.",
        "resources": "Plural names of the resources.",
        "resource_names": "Names of the objects. None means every object.",
        "non_resource_urls": "Paths of the API server that are no resources.",
        "verbs": "What may be done.",
    },
    m.ShippedPackageSpec: {
        "package": "The image, with or without tag or digest.",
        "revision_activation_policy": "What becomes of a new revision: `Automatic` activates it, with "
        "`Manual` a person does.",
        "revision_history_limit": "How many inactive revisions are kept. 0 means all of them.",
        "package_pull_secrets": _SECRETS,
        "package_pull_policy": _PULL,
        "ignore_crossplane_constraints": _IGNORE,
        "skip_dependency_resolution": _SKIP,
        "common_labels": _LABELS,
        "common_annotations": _ANNOTATIONS,
    },
    m.RuntimePackageSpec: {"runtime_config_ref": _RUNTIME},
    m.PackageSpec: {
        "image_pull_secrets": "Another name of packagePullSecrets.",
        "image_pull_policy": "Another name of packagePullPolicy.",
        "service_account": "Options of the ServiceAccount of the package's controller.",
    },
    m.PackageSwitches: {
        "": "Switches of the package that are on.",
        "ignore_crossplane_constraints": "True if the version of the platform is not checked.",
        "skip_dependency_resolution": "True if the dependencies are not resolved.",
    },
    m.ShippedPackageStatus: {
        "conditions": "Whether the package is installed and healthy.",
        "current_revision": "Name of the newest revision, active or not.",
        "current_identifier": "The image that the newest revision was made of.",
        "resolved_package": "The image after the rules of ImageConfigs.",
        "applied_image_config_refs": "ImageConfigs that were used for the image.",
    },
    m.PackageStatus: {"switches": "Switches of the spec that are on."},
    m.Package: {"": "A package that shall be in the cluster, and its version."},
    m.Provider: {"": "A provider that shall be in the cluster, and its version."},
    m.Configuration: {"": "A configuration that shall be in the cluster, and its version."},
    m.Function: {"": "A function that shall be in the cluster, and its version."},
    m.RevisionBase: {
        "desired_state": "Whether the revision controls its objects.",
        "revision": "Number of the revision. The highest one is the newest.",
        "image": "The image that the revision was made of.",
        "package_pull_secrets": _SECRETS,
        "package_pull_policy": _PULL,
        "ignore_crossplane_constraints": _IGNORE,
        "skip_dependency_resolution": _SKIP,
        "common_labels": _LABELS,
        "common_annotations": _ANNOTATIONS,
    },
    m.RuntimeRevisionSpec: {
        "runtime_config_ref": _RUNTIME,
        "tls_server_secret_name": "Name of the Secret with the certificates of the controller as a server.",
        "tls_client_secret_name": "Name of the Secret with the certificates of the controller as a client.",
    },
    m.RevisionDependency: {
        "": "What the package needs: exactly one of package, crd and crossplane is given.",
        "package": "The image of another package, without tag and digest.",
        "version": "Range of versions of the other package, or a digest.",
        "crd": "An API kind that must be served.",
        "crossplane": "Range of versions of Crossplane.",
    },
    m.RevisionController: {
        "": "The controller of the package.",
        "service_account": "Options of its ServiceAccount.",
    },
    m.RevisionPermissions: {
        "": "Rights that the package's controller asks for.",
        "rules": "The rights.",
    },
    m.PackageRevisionSpec: {
        "custom_resource_definitions": "CustomResourceDefinitions that the package brings.",
        "infrastructure_definitions": "CompositeResourceDefinitions that the package brings, under the name "
        "that they had in the design.",
        "compositions": "Compositions that the package brings.",
        "controller": "The controller of the package.",
        "permissions": "Rights that the package's controller asks for.",
        "depends_on": "What the package needs.",
    },
    m.RevisionStatus: {
        "conditions": "Whether the revision and its controller are healthy.",
        "found_dependencies": "How many dependencies the package has.",
        "installed_dependencies": "How many of them are met.",
        "invalid_dependencies": "How many of them are there in a version that does not serve.",
        "object_refs": "The objects that the revision owns.",
        "permission_requests": "Rights that the package's controller asks for.",
        "capabilities": "What the package says that it can do.",
        "resolved_image": "The image after the rules of ImageConfigs.",
        "applied_image_config_refs": "ImageConfigs that were used for the image.",
    },
    m.FunctionRevisionStatus: {"endpoint": "Address at which the function answers."},
    m.PackageRevisionStatus: {
        "controller_ref": "The Deployment of the package's controller.",
        "switches": "Switches of the spec that are on.",
    },
    m.PackageRevision: {"": "The content of a package that was in the cluster once, or is now."},
    m.ProviderRevision: {"": "The content of a provider that was in the cluster once, or is now."},
    m.ConfigurationRevision: {"": "The content of a configuration that was in the cluster once, or is now."},
    m.FunctionRevision: {"": "The content of a function that was in the cluster once, or is now."},
    m.LockedPackage: {
        "": "A package and what it needs.",
        "name": "Name of the active revision.",
        "image": "The image of the active revision, by digest.",
        "dependencies": "Packages that it needs.",
    },
    m.PackageLockSpec: {
        "packages": "The packages that are installed.",
        "compositions": "For the name of each Composition, the revision that controls it.",
        "custom_resource_definitions": "For the name of each CustomResourceDefinition, the revision that "
        "controls it.",
        "objects": "For every other object, as `<group>/<kind>|<namespace>|<name>`, the revision that "
        "controls it.",
    },
    m.LockStatus: {"conditions": "Whether the dependencies of all packages are resolved."},
    m.PackageLock: {"": "A page of the lock: which packages are installed, and what they own."},
    m.LockDependency: {
        "": "What a package needs.",
        "api_version": "Group and version of the kind of package.",
        "kind": "Kind of package.",
        "type": "Kind of package, as older versions say it.",
        "package": "The image, without tag and digest.",
        "constraints": "Range of versions, or a digest.",
    },
    m.LockPackage: {
        "": "A package in the lock.",
        "name": "Name of its revision.",
        "api_version": "Group and version of the kind of package.",
        "kind": "Kind of package.",
        "type": "Kind of package, as older versions say it.",
        "source": "The image, without tag and digest.",
        "version": "The tag or the digest of the image.",
        "dependencies": "What the package needs.",
    },
    m.Lock: {"": "The packages that are installed.", "packages": "The packages that are installed."},
}

_NOT_EMPTY = {"minLength": 1}
_INT64 = {"format": "int64"}
_POLICY = {"enum": list(m.PULL_POLICIES)}
_DEFAULT_POLICY = {**_POLICY, "default": "IfNotPresent"}
_OFF = {"default": False}
_CONDITIONS = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
_RUNTIME_DEFAULT = {"default": {"name": "default"}}
_IMAGES = {"maxItems": 64}


def _same(first: str, second: str, part: str = "") -> dict[str, str]:
    """Return the rule that two fields agree. part: of the items of lists: two lists of objects never have one
    type in Kubernetes, so that these are compared by a field.
    """
    return {
        "rule": f"!has(self.{first}) || !has(self.{second}) || self.{first}{part} == self.{second}{part}",
        "message": f"{second} is another name of {first}: give one, or the same in both",
    }


SHAPES: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    m.PackageCondition: {
        "last_transition_time": {"format": "date-time"},
        "observed_generation": _INT64,
    },
    m.LocalReference: {"name": {"minLength": 1, "maxLength": 253}},
    m.RuntimeConfigReference: {
        "api_version": {"default": m.PKG_BETA_API},
        "kind": {"default": "DeploymentRuntimeConfig"},
        "name": _NOT_EMPTY,
    },
    m.ShippedPackageSpec: {
        "package": _NOT_EMPTY,
        "revision_activation_policy": {"enum": list(m.ACTIVATION_POLICIES), "default": "Automatic"},
        "revision_history_limit": {"minimum": 0, "default": 1, **_INT64},
        "package_pull_secrets": _IMAGES,
        "package_pull_policy": _DEFAULT_POLICY,
        "ignore_crossplane_constraints": _OFF,
        "skip_dependency_resolution": _OFF,
    },
    m.RuntimePackageSpec: {"runtime_config_ref": _RUNTIME_DEFAULT},
    m.PackageSpec: {
        # No defaults: what a user says under the other name would contradict them.
        "package_pull_policy": _POLICY,
        "image_pull_policy": _POLICY,
        "image_pull_secrets": _IMAGES,
        "runtime_config_ref": {},
    },
    m.ShippedPackageStatus: {"conditions": _CONDITIONS},
    m.RevisionBase: {
        "desired_state": {"enum": list(m.DESIRED_STATES)},
        "revision": {"minimum": 0, **_INT64},
        "image": _NOT_EMPTY,
        "package_pull_policy": _DEFAULT_POLICY,
        "ignore_crossplane_constraints": _OFF,
        "skip_dependency_resolution": _OFF,
    },
    m.RuntimeRevisionSpec: {"runtime_config_ref": _RUNTIME_DEFAULT},
    m.RevisionDependency: {"package": _NOT_EMPTY, "crossplane": _NOT_EMPTY},
    m.RevisionStatus: {
        "conditions": _CONDITIONS,
        "found_dependencies": _INT64,
        "installed_dependencies": _INT64,
        "invalid_dependencies": _INT64,
    },
    m.LockStatus: {"conditions": _CONDITIONS},
}

_REVISION = {"required": ["desiredState", "image", "revision"]}

TYPE_SHAPES: Mapping[type, Mapping[str, Any]] = {
    m.PackageCondition: {"required": ["lastTransitionTime", "reason", "status", "type"]},
    m.LocalReference: {"required": ["name"], "x-kubernetes-map-type": "atomic"},
    m.KindReference: {"required": ["apiVersion", "kind"]},
    m.TypedReference: {"required": ["apiVersion", "kind", "name"]},
    m.RuntimeConfigReference: {"required": ["name"]},
    m.ImageConfigRef: {"required": ["name", "reason"]},
    m.PolicyRule: {"required": ["verbs"]},
    m.ShippedPackageSpec: {"required": ["package"]},
    m.RuntimePackageSpec: {"required": ["package"]},
    m.PackageSpec: {
        "required": ["package"],
        "x-kubernetes-validations": [
            _same("packagePullSecrets", "imagePullSecrets", ".map(each, each.name)"),
            _same("packagePullPolicy", "imagePullPolicy"),
        ],
    },
    m.RevisionBase: _REVISION,
    m.RuntimeRevisionSpec: _REVISION,
    m.PackageRevisionSpec: _REVISION,
    m.RevisionDependency: {
        "oneOf": [{"required": [field]} for field in ("package", "crd", "crossplane")],
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.version) || (!has(self.crd) && !has(self.crossplane))",
                "message": "version has a meaning beside package only",
            }
        ],
    },
    m.LockedPackage: {"required": ["name", "image"]},
    m.LockDependency: {"required": ["constraints", "package"]},
    m.LockPackage: {"required": ["dependencies", "name", "source", "version"]},
    **{
        each: {"required": ["spec"]}
        for each in (
            *(m.Package, m.Provider, m.Configuration, m.Function),
            *(m.PackageRevision, m.ProviderRevision, m.ConfigurationRevision, m.FunctionRevision),
        )
    },
}
