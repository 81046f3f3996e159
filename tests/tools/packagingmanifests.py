"""The manifests of `tests/data/packaging`, and objects that the definitions of packages must refuse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pvbus.core.yaml.editor import values
from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds

DEFINITIONS = (*packaging_crds(), *crossplane_crds(), *carvel_crds())
PLURALS = {(each["spec"]["group"], each["spec"]["names"]["kind"]): each for each in DEFINITIONS}
DATA = Path(__file__).parents[1] / "data" / "packaging"
_DATA_API = "data.packaging.carvel.dev/v1alpha1"
_GVK = {"apiVersion": "example.org/v1", "kind": "Zone"}
_REF = {"refName": "cache.example.org"}


def manifests() -> list[dict[str, Any]]:
    """Return every object of the files, by file."""
    return [each for file in sorted(DATA.glob("*.yaml")) for each in values(file.read_text(encoding="utf-8"))]


def path(obj: Mapping[str, Any]) -> str:
    """Return the path at which an object is created, in the namespace `default` if it has one."""
    group, _, version = obj["apiVersion"].partition("/")
    spec = PLURALS[group, obj["kind"]]["spec"]
    namespace = "" if spec["scope"] == "Cluster" else "namespaces/default/"
    return f"/apis/{group}/{version}/{namespace}{spec['names']['plural']}"


def contains(found: Any, wanted: Any) -> bool:
    """Return whether an object has all that another one has."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(contains(found.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return bool(found == wanted)


class Refused(NamedTuple):
    """An object that is refused. field: where, as the API server names it. words: in its message."""

    object: dict[str, Any]
    field: str
    words: str


def is_named(case: Refused, status: Mapping[str, Any]) -> bool:
    """Return whether the answer of an API server names the field of a case, and the reason.

    Kubernetes names the field of `oneOf` and `not` in the message only.
    """
    causes = [(each["field"], each["message"]) for each in status["details"]["causes"]]
    return any(
        case.words in message and (field == case.field or f'"{case.field}"' in message)
        for field, message in causes
    )


def _carvel(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": _DATA_API,
        "kind": "Package",
        "metadata": {"name": "x"},
        "spec": {"refName": "x", "version": "1.0.0", **spec},
    }


def _install(dependencies: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": "x"},
        "spec": {"packageRef": _REF, "dependencies": dict(dependencies)},
    }


def _package(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pkg.crossplane.io/v1beta1",
        "kind": "Package",
        "metadata": {"name": "x"},
        "spec": {"package": "r/x", **spec},
    }


def refused() -> list[Refused]:
    """Return objects that mean nothing, or two things."""
    dependencies = "spec.dependencies[0]"
    nested = [{"or": [{"gvk": _GVK, "package": _REF}]}]
    revision: dict[str, Any] = {
        "apiVersion": "pkg.crossplane.io/v1beta1",
        "kind": "PackageRevision",
        "metadata": {"name": "x"},
        "spec": {"desiredState": "Active", "image": "r/x", "revision": 1},
    }
    return [
        Refused(_carvel(dependencies=[{"gvk": _GVK, "packageRef": _REF}]), dependencies, "oneOf"),
        Refused(_carvel(dependencies=[{"gvk": _GVK, "package": _REF}]), dependencies, "oneOf"),
        Refused(_carvel(dependencies=[{"name": "d"}]), dependencies, "oneOf"),
        Refused(_carvel(dependencies=[{"or": []}]), f"{dependencies}.or", "at least 1"),
        Refused(_carvel(dependencies=nested), f"{dependencies}.or[0]", "oneOf"),
        Refused(_carvel(dependencies={"packages": []}), "spec.dependencies", "array"),
        Refused(_carvel(dependencies=[{"gvk": {"kind": "A"}}]), f"{dependencies}.gvk", "oneOf"),
        Refused(_carvel(dependencies=[{"gvk": {**_GVK, "version": "v1"}}]), f"{dependencies}.gvk", "oneOf"),
        Refused(_carvel(dependencies=[{"gvk": {"version": "v1"}}]), f"{dependencies}.gvk.kind", "Required"),
        Refused(_carvel(dependencies=[{"packageRef": {}}]), f"{dependencies}.packageRef.refName", "Required"),
        Refused(_carvel(dependencies=[{"name": "a", "alias": "b", "gvk": _GVK}]), dependencies, "(not)"),
        Refused(_carvel(installationType="onePer"), "spec.installationType", "Unsupported value"),
        Refused(_install({"managedBy": "Auto", "install": False}), "spec.dependencies", "another form"),
        Refused(_install({"managedBy": "Manual"}), "spec.dependencies.managedBy", "Unsupported value"),
        Refused(_install({"override": [{"install": False}]}), "spec.dependencies.override[0]", "name of a"),
        Refused(
            _install({"override": [{"name": "d", "packageRef": {}, "versionSelection": {}}]}),
            "spec.dependencies.override[0]",
            "stands in packageRef",
        ),
        Refused(_install({"values": [{"name": "d"}]}), "spec.dependencies.values[0].secretRef", "Required"),
        Refused(
            _package(packagePullSecrets=[{"name": "a"}], imagePullSecrets=[{"name": "b"}]),
            "spec",
            "imagePullSecrets is another name of packagePullSecrets",
        ),
        Refused(
            _package(packagePullPolicy="Never", imagePullPolicy="Always"),
            "spec",
            "imagePullPolicy is another name of packagePullPolicy",
        ),
        Refused(_package(revisionHistoryLimit=-1), "spec.revisionHistoryLimit", "greater than or equal to 0"),
        Refused(_package(revisionActivationPolicy="Never"), "spec.revisionActivationPolicy", "Unsupported"),
        Refused(_package(package=""), "spec.package", "at least 1"),
        Refused(
            {
                **revision,
                "spec": {**revision["spec"], "dependsOn": [{"package": "r/y", "crossplane": ">=1"}]},
            },
            "spec.dependsOn[0]",
            "oneOf",
        ),
        Refused(
            {**revision, "spec": {**revision["spec"], "dependsOn": [{"crossplane": ">=1", "version": "1"}]}},
            "spec.dependsOn[0]",
            "beside package only",
        ),
    ]
