"""Reads installs, and what is published, from objects in the forms of Crossplane and Carvel.

The same functions read files for `pvbus resolve` and live objects for the services. docs/packages.md has the
spellings side by side.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from pvbus.core.kernel.installs import Family, Install, Override
from pvbus.core.kernel.keys import okey
from pvbus.core.platform.packaging.fields import FieldProblem, Fields
from pvbus.core.platform.packaging.needs import (
    either,
    installation_type,
    package_requirements,
    provided,
    selection,
)
from pvbus.core.platform.packaging.references import reference_problem, split_reference
from pvbus.core.platform.packaging.xpkg import candidate_of, package_meta
from pvbus.core.platform.solver.model import Candidate

__all__ = [
    "FieldProblem",
    "Problem",
    "candidate_of",
    "carvel_package",
    "install_of",
    "installation_type_of",
    "okey_of",
    "package_meta",
    "read_carvel_package",
    "read_install",
    "split_reference",
]

PKG_GROUP = "pkg.crossplane.io"
PKG = "pkg.crossplane.io/v1"
PKG_BETA = "pkg.crossplane.io/v1beta1"
DATA = "data.packaging.carvel.dev/v1alpha1"
INSTALL_GROUP = "packaging.carvel.dev"
INSTALL = "packaging.carvel.dev/v1alpha1"
CROSSPLANE_KINDS = ("Configuration", "Function", "Provider")

OWNER = "kapp-controller.carvel.dev/owner"
"""On a PackageInstall that another one created, in the same namespace: `PackageInstall/<name>`."""
CROSSPLANE_OWNER = "pvbus.dev/owner"
"""On an install of Crossplane's family that another one created: `<kind>/<name>`."""
RANGE = "pvbus.dev/range"
"""On an install of Crossplane's family without tag and digest: the versions that it may have."""
PAUSED = "crossplane.io/paused"
DOWNGRADABLE = "packaging.carvel.dev/downgradable"
"""Carvel's permission of a version below the installed one, whatever its value."""
DOWNGRADES = "pvbus.dev/downgrades"
"""The same for Crossplane's family, with the value "true"."""
RESOLVES = "pvbus.dev/resolves-dependencies"
"""On an install of Crossplane's family, with the value "true": its skipDependencyResolution is for
Crossplane, and pvbus decides on its dependencies. pvbus writes both at once where Crossplane installs."""
REMOVAL = "pvbus.dev/dependency-removal"
STRATEGY = "pvbus.dev/dependency-strategy"
_REMOVALS = {name: name for name in ("orphan", "delete", "keep-if-used")}
_STRATEGIES = {name: name for name in ("direct", "closure")}
_ACTIVATIONS = {name: name for name in ("Automatic", "Manual")}
_PULL_POLICIES = {name: name for name in ("IfNotPresent", "Always", "Never")}
_MANAGED_BY = {name: name for name in ("Auto", "User")}

_PKG_FIELDS = frozenset(
    {
        *("package", "revisionActivationPolicy", "revisionHistoryLimit", "packagePullSecrets"),
        *("imagePullSecrets", "packagePullPolicy", "imagePullPolicy", "serviceAccount"),
        *("ignoreCrossplaneConstraints", "skipDependencyResolution", "commonLabels", "commonAnnotations"),
        *("runtimeConfigRef", "controllerConfigRef"),
    }
)
_INSTALL_FIELDS = frozenset(
    {
        *("packageRef", "dependencies", "serviceAccountName", "values", "syncPeriod", "paused", "canceled"),
        *("cluster", "noopDelete", "defaultNamespace"),
    }
)


class Problem(NamedTuple):
    """Why an object cannot be used.

    okey: the okey of the object
    fields: everything that is wrong, in order
    bare: an install without what it asks for, which suffices to report the problem and to end the install
    """

    okey: str
    fields: tuple[FieldProblem, ...]
    bare: Install | None = None

    @property
    def message(self) -> str:
        return "; ".join(map(str, self.fields))

    @property
    def is_deleted(self) -> bool:
        return self.bare is not None and self.bare.is_deleted


# ---------------------------------------------------------------- installs


def install_of(obj: Mapping[str, Any], *, namespace: str = "crossplane-system") -> Install | Problem:
    """Read an install: a Package, Provider, Configuration, Function or PackageInstall.

    namespace: of the pull secrets of Crossplane's family, whose objects have none.
    """
    fields = Fields(is_strict=False)
    install = read_install(fields, obj, namespace=namespace)
    if install is None or fields.problems:
        family: Family = "carvel" if obj.get("apiVersion") == INSTALL else "crossplane"
        return Problem(okey_of(obj), tuple(fields.problems), _common(Fields(is_strict=False), obj, family))
    return install


def read_install(fields: Fields, obj: Mapping[str, Any], *, namespace: str) -> Install | None:
    """Read an install; None, and a problem in `fields`, if it asks for no package."""
    identity = (str(obj.get("apiVersion")), str(obj.get("kind")))
    if identity in _CROSSPLANE_INSTALLS:
        return _crossplane_install(fields, obj, namespace)
    if identity == (INSTALL, "PackageInstall"):
        return _carvel_install(fields, obj)
    fields.wrong("kind", f"{identity[0]} {identity[1]} is not an install of a package")
    return None


_CROSSPLANE_INSTALLS = {*((PKG, kind) for kind in CROSSPLANE_KINDS), (PKG_BETA, "Package")}


def _crossplane_install(fields: Fields, obj: Mapping[str, Any], namespace: str) -> Install | None:
    spec = fields.mapping(obj, "", "spec")
    fields.check_known_spec(spec, "spec", _PKG_FIELDS)
    annotations = _annotations(fields, obj)
    reference = fields.text(spec, "spec", "package", required=True)
    source, tag, digest = split_reference(reference)
    if reference and (problem := reference_problem(reference)):
        fields.wrong("spec.package", problem)
    account = fields.mapping(spec, "spec", "serviceAccount")
    runtime = fields.mapping(spec, "spec", "runtimeConfigRef")
    install = _common(fields, obj, "crossplane")._replace(
        package=source,
        tag=tag,
        digest=digest,
        range=_range(fields, annotations, tag or digest),
        owner=_owner(fields, annotations, CROSSPLANE_OWNER, PKG_GROUP, ""),
        secrets=_secrets(fields, spec, namespace),
        is_manual=fields.choice(spec, "spec", "revisionActivationPolicy", _ACTIVATIONS) == "Manual",
        history_max=fields.number(spec, "spec", "revisionHistoryLimit", 1),
        skips_dependencies=fields.flag(spec, "spec", "skipDependencyResolution") is True
        and annotations.get(RESOLVES) != "true",
        ignores_platform=fields.flag(spec, "spec", "ignoreCrossplaneConstraints") is True,
        downgrades=annotations.get(DOWNGRADES) == "true",
        is_paused=annotations.get(PAUSED) == "true",
        installed=_crossplane_version(fields, obj),
        pull_policy=_pull_policy(fields, spec),
        common_labels=fields.pairs(spec, "spec", "commonLabels"),
        common_annotations=fields.pairs(spec, "spec", "commonAnnotations"),
        runtime_config=fields.text(runtime, "spec.runtimeConfigRef", "name") if runtime else "",
        account_annotations=fields.pairs(account, "spec.serviceAccount", "annotations"),
    )
    return install if source else None


def _common(fields: Fields, obj: Mapping[str, Any], family: Family) -> Install:
    """Return what both families have, without a package."""
    metadata = fields.mapping(obj, "", "metadata")
    annotations = _annotations(fields, obj)
    removal = fields.choice(annotations, "metadata.annotations", REMOVAL, _REMOVALS)
    strategy = fields.choice(annotations, "metadata.annotations", STRATEGY, _STRATEGIES)
    fields.text(metadata, "metadata", "name", required=True)
    return Install(
        okey=okey_of(obj),
        family=family,
        uid=fields.text(metadata, "metadata", "uid"),
        generation=fields.number(metadata, "metadata", "generation", 0),
        package="",
        removal=cast(Literal["orphan", "delete", "keep-if-used"], removal or "orphan"),
        strategy=cast(Literal["direct", "closure"], strategy or "direct"),
        is_deleted=bool(metadata.get("deletionTimestamp")),
    )


def _range(fields: Fields, annotations: Mapping[str, str], pin: str) -> str:
    text = annotations.get(RANGE)
    path = f"metadata.annotations[{RANGE}]"
    if text is None:
        return ""
    if pin:
        fields.wrong(path, "excludes a tag or a digest in spec.package")
        return ""
    return fields.range(text, path, "masterminds")


def _secrets(fields: Fields, spec: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    """Return the keys of the pull secrets. The seed says `imagePullSecrets`, Crossplane says
    `packagePullSecrets`."""
    found = []
    for name in ("packagePullSecrets", "imagePullSecrets"):
        items = fields.items(spec, "spec", name)
        names = [fields.text(item, path, "name", required=True) for path, item in items]
        found.append(tuple(f"{namespace}/{each}" for each in names if each))
    shipped, seed = found
    if shipped and seed and shipped != seed:
        fields.wrong("spec.imagePullSecrets", "contradicts packagePullSecrets")
    return shipped or seed


def _pull_policy(fields: Fields, spec: Mapping[str, Any]) -> Literal["IfNotPresent", "Always", "Never"]:
    for name in ("packagePullPolicy", "imagePullPolicy"):
        fields.choice(spec, "spec", name, _PULL_POLICIES)
    found = either(fields, spec, "spec", "packagePullPolicy", "imagePullPolicy")
    return cast(Literal["IfNotPresent", "Always", "Never"], _PULL_POLICIES.get(found, "IfNotPresent"))


def _crossplane_version(fields: Fields, obj: Mapping[str, Any]) -> str:
    status = fields.mapping(obj, "", "status")
    return split_reference(fields.text(status, "status", "currentIdentifier"))[1]


def _carvel_install(fields: Fields, obj: Mapping[str, Any]) -> Install | None:
    spec = fields.mapping(obj, "", "spec")
    fields.check_known_spec(spec, "spec", _INSTALL_FIELDS)
    annotations = _annotations(fields, obj)
    reference = fields.mapping(spec, "spec", "packageRef")
    fields.check_known(reference, "spec.packageRef", {"refName", "versionSelection"})
    name = fields.text(reference, "spec.packageRef", "refName", required=True)
    text, prereleases = selection(fields, reference, "spec.packageRef")
    namespace = _namespace(obj)
    dependencies = fields.mapping(spec, "spec", "dependencies")
    fields.check_known(dependencies, "spec.dependencies", {"install", "managedBy", "override", "values"})
    install = _common(fields, obj, "carvel")._replace(
        package=name,
        target=namespace,
        range=text,
        language="carvel",
        prereleases=prereleases,
        owner=_owner(fields, annotations, OWNER, INSTALL_GROUP, namespace),
        installs_dependencies=_installs(fields, dependencies),
        overrides=_overrides(fields, dependencies),
        service_account=fields.text(spec, "spec", "serviceAccountName"),
        downgrades=DOWNGRADABLE in annotations,
        is_paused=any(fields.flag(spec, "spec", name) is True for name in ("paused", "canceled")),
        installed=fields.text(fields.mapping(obj, "", "status"), "status", "version"),
    )
    return install if name else None


def _installs(fields: Fields, dependencies: Mapping[str, Any]) -> bool:
    """Return whether dependencies are installed: `install` of the first proposal, or `managedBy`."""
    seed = fields.flag(dependencies, "spec.dependencies", "install")
    merged = fields.choice(dependencies, "spec.dependencies", "managedBy", _MANAGED_BY)
    if seed is not None and merged and seed != (merged == "Auto"):
        fields.wrong("spec.dependencies.managedBy", "contradicts install")
    return merged == "Auto" if merged else seed is not False


def _overrides(fields: Fields, dependencies: Mapping[str, Any]) -> tuple[Override, ...]:
    """Return one Override per dependency. An item has `name` (merged), `refName` (seed), or both."""
    found: dict[tuple[str, str], Override] = {}
    for path, item in fields.items(dependencies, "spec.dependencies", "override"):
        override = _override(fields, path, item)
        identity = (override.dependency, override.package)
        if identity in found:
            fields.wrong(path, "overrides the same dependency as an item before it")
        elif any(identity):
            found[identity] = override
    for path, item in fields.items(dependencies, "spec.dependencies", "values"):
        fields.check_known(item, path, {"name", "alias", "refName", "secretRef"})
        identity = _identity(fields, path, item, item)
        reference = fields.mapping(item, path, "secretRef")
        fields.check_known(reference, f"{path}.secretRef", {"name", "key"})
        secret = fields.text(reference, f"{path}.secretRef", "name", required=True)
        key = fields.text(reference, f"{path}.secretRef", "key")
        if any(identity) and secret:
            known = found.get(identity, Override(*identity))
            found[identity] = known._replace(
                values=(*known.values, secret), value_keys=(*known.value_keys, key)
            )
    return tuple(found.values())


def _override(fields: Fields, path: str, item: Mapping[str, Any]) -> Override:
    """Read an override; `versionSelection` is a field of its own in the first proposal, and of `packageRef`
    in the merged one."""
    fields.check_known(item, path, {"name", "alias", "refName", "packageRef", "versionSelection", "install"})
    inner, inner_path = item, path
    if "packageRef" in item:
        inner, inner_path = fields.mapping(item, path, "packageRef"), f"{path}.packageRef"
        fields.check_known(inner, inner_path, {"refName", "versionSelection"})
        if "versionSelection" in item:
            fields.wrong(f"{path}.versionSelection", "stands in packageRef, too: remove one")
    name, package = _identity(fields, path, item, inner)
    text, prereleases = selection(fields, inner, inner_path)
    return Override(name, package, text, prereleases, fields.flag(item, path, "install"))


def _identity(
    fields: Fields, path: str, item: Mapping[str, Any], inner: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the names of the dependency and of its package that an item is for."""
    name = either(fields, item, path, "name", "alias")
    package = fields.text(item, path, "refName")
    nested = fields.text(inner, f"{path}.packageRef", "refName") if inner is not item else ""
    if package and nested and package != nested:
        fields.wrong(f"{path}.packageRef.refName", "contradicts refName")
    if not name and not package and not nested:
        fields.wrong(path, "must have the name of a dependency, or the refName of its package")
    return name, package or nested


# ---------------------------------------------------------------- Carvel's Packages


def carvel_package(obj: Mapping[str, Any]) -> tuple[str, Candidate] | Problem:
    """Read a Carvel Package: its refName, and the version that it is.

    A version with a problem is a Candidate with a defect; it is a Problem if refName or version is missing.
    """
    fields = Fields(is_strict=False)
    found = read_carvel_package(fields, obj)
    if found is None:
        return Problem(okey_of(obj), tuple(fields.problems))
    name, candidate = found
    if fields.problems:
        message = "; ".join(map(str, fields.problems))
        candidate = Candidate(version=candidate.version, provides=candidate.provides, defect=message)
    return name, candidate


def read_carvel_package(fields: Fields, obj: Mapping[str, Any]) -> tuple[str, Candidate] | None:
    """Read a Carvel Package; None, and a problem in `fields`, without a refName or version."""
    spec = fields.mapping(obj, "", "spec")
    name, version = (fields.text(spec, "spec", field, required=True) for field in ("refName", "version"))
    requirements, offers = package_requirements(fields, spec), provided(fields, spec)
    installation_type(fields, spec)
    if not name or not version or not fields.is_version(version, "spec.version", "carvel"):
        return None
    return name, Candidate(version=version, requirements=requirements, provides=offers)


def installation_type_of(
    obj: Mapping[str, Any],
) -> Literal["onePerCluster", "onePerNamespace", "noRestrictions"]:
    """Return how often a Carvel Package may be installed; noRestrictions if it does not say that rightly."""
    fields = Fields(is_strict=False)
    found = installation_type(fields, fields.mapping(obj, "", "spec"))
    return cast(Literal["onePerCluster", "onePerNamespace", "noRestrictions"], found)


# ---------------------------------------------------------------- shared


def _annotations(fields: Fields, obj: Mapping[str, Any]) -> Mapping[str, str]:
    found = fields.mapping(fields.mapping(obj, "", "metadata"), "metadata", "annotations")
    return {str(name): each for name, each in found.items() if isinstance(each, str)}


def _owner(fields: Fields, annotations: Mapping[str, str], name: str, group: str, namespace: str) -> str:
    """Return the okey of the install that an annotation `<kind>/<name>` names, "" without one."""
    text = annotations.get(name)
    if text is None:
        return ""
    kind, slash, owner = text.partition("/")
    if not kind or not slash or not owner or "/" in owner or "|" in text:
        fields.wrong(f"metadata.annotations[{name}]", "must be a kind and a name: PackageInstall/name")
        return ""
    return okey(group, kind, namespace, owner)


def _namespace(obj: Mapping[str, Any]) -> str:
    metadata = obj.get("metadata")
    found = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, str) and found else "default"


def okey_of(obj: Mapping[str, Any]) -> str:
    """Return the okey of an object, whatever it has for metadata."""
    group = str(obj.get("apiVersion")).rpartition("/")[0]
    metadata = obj.get("metadata")
    name = str(metadata.get("name")) if isinstance(metadata, Mapping) else ""
    namespace = _namespace(obj) if group not in (PKG_GROUP, "apiextensions.k8s.io") else ""
    return okey(group, str(obj.get("kind")), namespace, name)
