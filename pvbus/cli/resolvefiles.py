"""Reads the input of `pvbus resolve` from manifests: the packages there are, what users want, and what is
there.

Two families of kinds are read, in the forms that Crossplane and Carvel document. A field that would change
the solution, and that is not understood, is a problem; so is one that contradicts another.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.adapters.manifests import FileProblem, Manifest
from pvbus.core.kernel.installs import Install, Override
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.platform.packaging.carvelfacts import KnownPackage
from pvbus.core.platform.packaging.fields import Fields
from pvbus.core.platform.packaging.needs import meta_requirements
from pvbus.core.platform.packaging.reading import (
    CROSSPLANE_KINDS,
    DATA,
    INSTALL,
    PKG,
    PKG_BETA,
    read_carvel_package,
    read_install,
)
from pvbus.core.platform.packaging.xpkg import META_GROUP, META_KINDS, META_VERSIONS
from pvbus.core.platform.resolve.carvelproblem import is_exact, may_install, stray_override, with_overrides
from pvbus.core.platform.solver.model import Candidate, Installed, Package, Policy, Problem, Target, Wish, api

CRD = "apiextensions.k8s.io/v1"
SOURCE = "pvbus.dev/source"
VERSION = "pvbus.dev/version"
DIGEST = "pvbus.dev/digest"

_LOCKED = frozenset({"name", "apiVersion", "kind", "type", "source", "version", "dependencies"})


class ReadInput(NamedTuple):
    """The input of a resolution.

    problem: what is to be resolved
    problems: what is wrong in the manifests
    """

    problem: Problem
    problems: tuple[FileProblem, ...]


_RBAC = "rbac.authorization.k8s.io/v1"
KUBERNETES = frozenset(
    {
        *(("v1", kind) for kind in ("ConfigMap", "Namespace", "Secret", "ServiceAccount")),
        *((_RBAC, f"{scope}{kind}") for scope in ("", "Cluster") for kind in ("Role", "RoleBinding")),
    }
)
"""apiVersion and kind of what stands beside installs in manifests, and says nothing of packages."""


class Reader:
    """Collects what manifests say; every problem is kept, so that all are reported together."""

    def __init__(self) -> None:
        self.problems: list[FileProblem] = []
        self.candidates: dict[str, tuple[str, dict[str, Candidate]]] = {}
        self.wishes: list[Wish] = []
        self.installed: dict[tuple[str, str], Installed] = {}
        self.offers: set[str] = set()
        self._overriding: list[tuple[Manifest, Install]] = []
        self._overridden: dict[tuple[str, str], tuple[Override, ...]] = {}
        self._manifest: Manifest
        self._fields = Fields(is_strict=True)

    def read(self, manifest: Manifest) -> None:
        """Read one manifest."""
        self._manifest = manifest
        obj = manifest.object
        kind = (obj["apiVersion"], obj["kind"])
        reader = _READERS.get(kind)
        if reader is None and kind in KUBERNETES:
            return  # the namespaces and accounts of installs, as in a folder for `pvbus up`
        if reader is None:
            families = ", ".join(sorted({version for version, _ in _READERS}))
            self.wrong("apiVersion", f"is not read here: resolve reads {families}")
            return
        spec = obj.get("spec") or {}
        if not isinstance(spec, Mapping):
            self.wrong("spec", "is not a mapping")
            return
        self._fields = Fields(is_strict=True)
        reader(self, obj, spec)
        for problem in self._fields.problems:
            self.wrong(*problem)

    def wrong(self, field: str, message: str) -> None:
        manifest = self._manifest
        name = f"{manifest.object['kind']} {manifest.object['metadata']['name']}"
        self.problems.append(FileProblem(str(manifest.file), manifest.document, name, field, message))

    def add(self, name: str, language: str, candidate: Candidate) -> None:
        """Add a version of a package."""
        known, versions = self.candidates.setdefault(name, (language, {}))
        if known != language:
            self.wrong("metadata", f"{name} is a package of {known}'s family, too")
        elif candidate.version in versions:
            self.wrong("metadata", f"{name} {candidate.version} is given twice")
        else:
            versions[candidate.version] = candidate

    def install(self, target: str, package: str, version: str) -> None:
        """Record an installed version."""
        known = self.installed.get((target, package))
        if known is not None and known.version != version:
            self.wrong("status", f"{package} is installed as {known.version}, too; only one version can be")
        self.installed[target, package] = Installed(target=target, package=package, version=version)

    # Crossplane

    def crossplane_meta(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        annotations = annotations_of(obj)
        source, version = annotations.get(SOURCE), annotations.get(VERSION)
        for name, value in ((SOURCE, source), (VERSION, version)):
            if not isinstance(value, str) or not value:
                self.wrong(
                    f"metadata.annotations[{name}]",
                    "is missing: without it nobody knows where the package is published, and as what",
                )
        requirements = meta_requirements(self._fields, spec)
        if not isinstance(source, str) or not isinstance(version, str) or not source or not version:
            return
        if self._fields.is_version(version, f"metadata.annotations[{VERSION}]", "masterminds"):
            digest = str(annotations.get(DIGEST) or "")
            self.add(
                source, "masterminds", Candidate(version=version, digest=digest, requirements=requirements)
            )

    def crossplane_install(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        for field in ("ignoreCrossplaneConstraints", "skipDependencyResolution"):
            if spec.get(field):
                self.wrong(f"spec.{field}", "cannot be set for one package: --ignore-platforms is for all")
        install = read_install(self._fields, obj, namespace="")
        if install is None:
            return
        text = install.range
        if install.tag and not install.digest:
            text = self._fields.range(f"={install.tag}", "spec.package", "masterminds")
        self._wish(install, obj, text, is_pinned=bool(install.tag or install.digest))
        if install.installed:
            self.install("", install.package, install.installed)
        elif (obj.get("status") or {}).get("currentIdentifier"):
            self.wrong("status.currentIdentifier", "has no tag, so the installed version is unknown")

    def _wish(self, install: Install, obj: Mapping[str, Any], text: str, *, is_pinned: bool) -> None:
        if install.owner:
            return
        self.wishes.append(
            Wish(
                package=install.package,
                target=install.target,
                range=text,
                digest=install.digest,
                language=install.language,
                prereleases=install.prereleases,
                pinned=is_pinned,
                name=obj["metadata"]["name"],
            )
        )

    def crossplane_lock(self, obj: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        for path, item in self._fields.items(obj, "", "packages"):
            self._fields.check_known(item, path, _LOCKED)
            source, version = (
                self._fields.text(item, path, field, required=True) for field in ("source", "version")
            )
            if source and version:
                self.install("", source, version)

    # Carvel

    def carvel_package(self, obj: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        found = read_carvel_package(self._fields, obj)
        if found is not None:
            self.add(found[0], "carvel", found[1])

    def carvel_install(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        install = read_install(self._fields, obj, namespace="")
        if install is None:
            return
        if "dependencies" in spec:
            self._overriding.append((self._manifest, install))
        if not all(may_install(install, each) for each in (None, *install.overrides)):
            self.wrong("spec.dependencies", "resolve reads ranges, and `pvbus packages tree -f` all of it")
        self._wish(install, obj, install.range, is_pinned=is_exact(install.range))
        if install.installed:
            self.install(install.target, install.package, install.installed)

    def override(self) -> None:
        """Give the versions of packages the ranges of the installs that override their dependencies.

        A package has one list of versions for all namespaces, so two installs of it must say the same.
        """
        for manifest, install in self._overriding:
            self._manifest = manifest
            _, versions = self.candidates.get(install.package, ("", {}))
            known = [KnownPackage("", install.package, each) for each in versions.values()]
            others = {other for each, other in self._overridden.items() if each[1] == install.package}
            wanted = sum(wish.package == install.package for wish in self.wishes)
            self._overridden[install.target, install.package] = install.overrides
            if stray := stray_override(install, known):
                self.wrong("spec.dependencies", stray.removeprefix("spec.dependencies "))
            elif others - {install.overrides} or (install.overrides and wanted > len(self._sharing(install))):
                self.wrong(
                    "spec.dependencies", f"overrides what another install of {install.package} does not"
                )
            elif not others:
                for version, candidate in versions.items():
                    versions[version] = with_overrides(candidate, install)

    def _sharing(self, install: Install) -> list[Install]:
        return [each for _, each in self._overriding if each.package == install.package and not each.owner]

    def crd(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        names = self._fields.mapping(spec, "spec", "names")
        group, kind = self._fields.text(spec, "spec", "group", required=True), names.get("kind")
        for _, version in self._fields.items(spec, "spec", "versions"):
            if version.get("served"):
                self.offers.add(api(f"{group}/{version.get('name')}", str(kind)))


_Method = Callable[[Reader, Mapping[str, Any], Mapping[str, Any]], None]
_READERS: dict[tuple[str, str], _Method] = {
    **{
        (f"{META_GROUP}/{version}", kind): Reader.crossplane_meta
        for version in META_VERSIONS
        for kind in META_KINDS
    },
    **{(PKG, kind): Reader.crossplane_install for kind in CROSSPLANE_KINDS},
    (PKG_BETA, "Package"): Reader.crossplane_install,
    (PKG_BETA, "Lock"): Reader.crossplane_lock,
    (DATA, "Package"): Reader.carvel_package,
    (INSTALL, "PackageInstall"): Reader.carvel_install,
    (CRD, "CustomResourceDefinition"): Reader.crd,
}


def read_input(manifests: Iterable[Manifest], platforms: Mapping[str, str], policy: Policy) -> ReadInput:
    """Read manifests; with problems, what was read is incomplete."""
    reader = Reader()
    for manifest in manifests:
        reader.read(manifest)
    reader.override()
    targets = {wish.target for wish in reader.wishes} | {target for target, _ in reader.installed} | {""}
    packages = tuple(
        Package(name=name, language=language, candidates=tuple(versions.values()))
        for name, (language, versions) in reader.candidates.items()
    )
    problem = Problem(
        packages=packages,
        wishes=tuple(reader.wishes),
        installed=tuple(reader.installed.values()),
        targets=tuple(
            Target(name=name, offers=tuple(sorted(reader.offers)), platforms=tuple(sorted(platforms.items())))
            for name in sorted(targets)
        ),
        policy=policy,
    )
    return ReadInput(problem, tuple(reader.problems))
