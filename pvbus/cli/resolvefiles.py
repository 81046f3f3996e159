"""Reads the input of `pvbus resolve` from manifests: the packages there are, what users want, and what is
there.

Two families of kinds are read, in the forms that Crossplane and Carvel document. A field that would change
the solution, and that is not understood, is a problem; so is one that contradicts another.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.cli.manifests import Manifest
from pvbus.core.resolve.languages import CARVEL, LANGUAGES, ConstraintError, VersionError
from pvbus.core.resolve.model import (
    AnyOf,
    Candidate,
    Installed,
    Need,
    OfferNeed,
    Package,
    PackageNeed,
    PlatformNeed,
    Policy,
    Problem,
    Requirement,
    Target,
    Wish,
    api,
)

META = "meta.pkg.crossplane.io/v1"
PKG = "pkg.crossplane.io/v1"
LOCK = "pkg.crossplane.io/v1beta1"
DATA = "data.packaging.carvel.dev/v1alpha1"
INSTALL = "packaging.carvel.dev/v1alpha1"
CRD = "apiextensions.k8s.io/v1"
CROSSPLANE_KINDS = ("Configuration", "Function", "Provider")
SOURCE = "pvbus.dev/source"
VERSION = "pvbus.dev/version"
DIGEST = "pvbus.dev/digest"
RANGE = "pvbus.dev/range"
OWNER = "kapp-controller.carvel.dev/owner"
"""Carvel's mark of an install that another install created: no user wants it for itself."""

_IGNORED_META = frozenset({"controller", "capabilities", "image"})
_IGNORED_PKG = frozenset(
    {
        *("revisionActivationPolicy", "revisionHistoryLimit", "packagePullSecrets", "packagePullPolicy"),
        *("commonLabels", "commonAnnotations", "runtimeConfigRef", "controllerConfigRef"),
    }
)
_IGNORED_DATA = frozenset(
    {
        *("licenses", "releasedAt", "capacityRequirementsDescription", "releaseNotes", "template"),
        *("valuesSchema", "includedSoftware"),
    }
)
_LOCKED = frozenset({"name", "apiVersion", "kind", "type", "source", "version", "dependencies"})
_IGNORED_INSTALL = frozenset({"serviceAccountName", "values", "syncPeriod", "paused", "canceled"})


class FileProblem(NamedTuple):
    """What is wrong in a manifest. field: for example `spec.dependsOn[0].version`."""

    file: str
    document: int
    object: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}, document {self.document}: {self.object}: {self.field}: {self.message}"


class ReadInput(NamedTuple):
    problem: Problem
    problems: tuple[FileProblem, ...]


class Reader:
    """Collects what manifests say; every problem is kept, so that all are reported together."""

    def __init__(self) -> None:
        self.problems: list[FileProblem] = []
        self.candidates: dict[str, tuple[str, dict[str, Candidate]]] = {}
        self.wishes: list[Wish] = []
        self.installed: dict[tuple[str, str], Installed] = {}
        self.offers: set[str] = set()
        self._manifest: Manifest

    def read(self, manifest: Manifest) -> None:
        """Read one manifest."""
        self._manifest = manifest
        obj = manifest.object
        kind = (obj["apiVersion"], obj["kind"])
        reader = _READERS.get(kind)
        if reader is None:
            families = ", ".join(sorted({version for version, _ in _READERS}))
            self.wrong("apiVersion", f"is not read here: resolve reads {families}")
            return
        spec = obj.get("spec") or {}
        if not isinstance(spec, Mapping):
            self.wrong("spec", "is not a mapping")
            return
        reader(self, obj, spec)

    def wrong(self, field: str, message: str) -> None:
        manifest = self._manifest
        name = f"{manifest.object['kind']} {manifest.object['metadata']['name']}"
        self.problems.append(FileProblem(str(manifest.file), manifest.document, name, field, message))

    # what both families share

    def known(self, value: Mapping[str, Any], path: str, fields: Iterable[str]) -> None:
        """Report every field of a mapping that is not among those that have a meaning."""
        for field in sorted(set(value) - set(fields)):
            self.wrong(f"{path}.{field}", "has no meaning here: remove it, or correct its name")

    def text(self, value: Mapping[str, Any], path: str, field: str, *, required: bool = False) -> str:
        found = value.get(field)
        if found is None and not required:
            return ""
        if not isinstance(found, str) or not found:
            self.wrong(f"{path}.{field}", "must be a text that is not empty")
            return ""
        return found

    def mapping(self, value: Mapping[str, Any], path: str, field: str) -> Mapping[str, Any]:
        found = value.get(field)
        if found is None or isinstance(found, Mapping):
            return found or {}
        self.wrong(f"{path}.{field}", "must be a mapping")
        return {}

    def items(self, value: Mapping[str, Any], path: str, field: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the mappings of a list, each with its path."""
        found = value.get(field)
        if found is None:
            return []
        if not isinstance(found, Sequence) or isinstance(found, str):
            self.wrong(f"{path}.{field}", "must be a list")
            return []
        result = []
        for index, each in enumerate(found):
            if isinstance(each, Mapping):
                result.append((f"{path}.{field}[{index}]", each))
            else:
                self.wrong(f"{path}.{field}[{index}]", "must be a mapping")
        return result

    def range(self, text: str, path: str, language: str) -> str:
        """Check a range; return "" if it is none."""
        try:
            LANGUAGES[language].parse_range(text)
        except ConstraintError as exc:
            self.wrong(path, f"{exc}; the language is {language}'s")
            return ""
        return text

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
        annotations = obj["metadata"].get("annotations") or {}
        source, version = annotations.get(SOURCE), annotations.get(VERSION)
        for name, value in ((SOURCE, source), (VERSION, version)):
            if not isinstance(value, str) or not value:
                self.wrong(
                    f"metadata.annotations[{name}]",
                    "is missing: without it nobody knows where the package is published, and as what",
                )
        self.known(spec, "spec", {"crossplane", "dependsOn", *_IGNORED_META})
        requirements = [each for each in self._platform(spec) if each is not None]
        for path, item in self.items(spec, "spec", "dependsOn"):
            requirement = self._depends_on(path, item)
            if requirement is not None:
                requirements.append(requirement)
        if isinstance(source, str) and isinstance(version, str) and source and version:
            try:
                LANGUAGES["masterminds"].parse_version(version)
            except VersionError as exc:
                self.wrong(f"metadata.annotations[{VERSION}]", str(exc))
                return
            digest = str(annotations.get(DIGEST) or "")
            candidate = Candidate(version=version, digest=digest, requirements=tuple(requirements))
            self.add(source, "masterminds", candidate)

    def _platform(self, spec: Mapping[str, Any]) -> list[Requirement]:
        crossplane = self.mapping(spec, "spec", "crossplane")
        self.known(crossplane, "spec.crossplane", {"version"})
        text = self.text(crossplane, "spec.crossplane", "version")
        text = self.range(text, "spec.crossplane.version", "masterminds") if text else ""
        return [Requirement(need=PlatformNeed(platform="crossplane", range=text))] if text else []

    def _depends_on(self, path: str, item: Mapping[str, Any]) -> Requirement | None:
        names = ("package", "provider", "configuration", "function", "crd", "crossplane")
        given = [name for name in names if name in item]
        self.known(item, path, {*names, "apiVersion", "kind", "version"})
        if len(given) != 1:
            listed = ", ".join(names)
            self.wrong(path, f"must have exactly one of {listed}; it has {', '.join(given) or 'none'}")
            return None
        if given[0] == "crd":
            crd = self.mapping(item, path, "crd")
            return self._gvk(f"{path}.crd", crd)
        if given[0] == "crossplane":
            text = self.text(item, path, "crossplane", required=True)
            text = self.range(text, f"{path}.crossplane", "masterminds") if text else ""
            return Requirement(need=PlatformNeed(platform="crossplane", range=text)) if text else None
        name, version = self.text(item, path, given[0], required=True), self.text(item, path, "version")
        if not name:
            return None
        if version.startswith("sha256:"):
            return Requirement(need=PackageNeed(package=name, digest=version))
        text = self.range(version, f"{path}.version", "masterminds") if version else ""
        return Requirement(need=PackageNeed(package=name, range=text))

    def crossplane_install(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        annotations = obj["metadata"].get("annotations") or {}
        refused = {"skipDependencyResolution", "ignoreCrossplaneConstraints"}
        self.known(spec, "spec", {"package", *refused, *_IGNORED_PKG})
        for field in sorted(refused):
            if spec.get(field):
                self.wrong(f"spec.{field}", "cannot be set for one package: --ignore-platforms is for all")
        reference = self.text(spec, "spec", "package", required=True)
        if not reference:
            return
        source, tag, digest = split_reference(reference)
        text = annotations.get(RANGE)
        if text is not None and (tag or digest):
            self.wrong(f"metadata.annotations[{RANGE}]", "excludes a tag or a digest in spec.package")
            return
        if text is not None:
            text = self.range(str(text), f"metadata.annotations[{RANGE}]", "masterminds")
        elif tag:
            text = self.range(f"={tag}", "spec.package", "masterminds")
        self.wishes.append(
            Wish(
                package=source,
                range="" if digest else text or "",
                digest=digest,
                pinned=bool(tag or digest),
                name=obj["metadata"]["name"],
            )
        )
        status = self.mapping(obj, "", "status")
        current = self.text(status, "status", "currentIdentifier")
        if current:
            version = split_reference(current)[1]
            if version:
                self.install("", source, version)
            else:
                self.wrong("status.currentIdentifier", "has no tag, so the installed version is unknown")

    def crossplane_lock(self, obj: Mapping[str, Any], _: Mapping[str, Any]) -> None:
        for path, item in self.items(obj, "", "packages"):
            path = path.removeprefix(".")
            self.known(item, path, _LOCKED)
            source, version = (self.text(item, path, field, required=True) for field in ("source", "version"))
            if source and version:
                self.install("", source, version)

    # Carvel

    def carvel_package(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        used = {"refName", "version", "dependencies", "provides", "installationType"}
        gates = {
            "kubernetesVersionSelection": "kubernetes",
            "kappControllerVersionSelection": "kapp-controller",
        }
        self.known(spec, "spec", {*used, *gates, *_IGNORED_DATA})
        name, version = (self.text(spec, "spec", field, required=True) for field in ("refName", "version"))
        requirements = []
        for field, platform in gates.items():
            gate = self.mapping(spec, "spec", field)
            text = self.text(gate, f"spec.{field}", "constraints")
            text = self.range(text, f"spec.{field}.constraints", "carvel") if text else ""
            if text:
                need = PlatformNeed(platform=platform, range=text, language="carvel")
                requirements.append(Requirement(need=need))
        for path, item in self.items(spec, "spec", "dependencies"):
            requirement = self._dependency(path, item)
            if requirement is not None:
                requirements.append(requirement)
        provides = []
        for path, item in self.items(spec, "spec", "provides"):
            inner = self.mapping(item, path, "gvk") if "gvk" in item else item
            gvk = self._gvk(f"{path}.gvk" if "gvk" in item else path, inner)
            if gvk is not None and isinstance(gvk.need, OfferNeed):
                provides.append(gvk.need.offer)
        if not name or not version:
            return
        try:
            CARVEL.parse_version(version)
        except VersionError as exc:
            self.wrong("spec.version", str(exc))
            return
        candidate = Candidate(version=version, requirements=tuple(requirements), provides=tuple(provides))
        self.add(name, "carvel", candidate)

    def _dependency(
        self, path: str, item: Mapping[str, Any], *, alternative: bool = False
    ) -> Requirement | None:
        kinds = ("gvk", "package", "packageRef", "or")
        given = [kind for kind in kinds if kind in item]
        self.known(item, path, {*kinds, "name"} if alternative else {*kinds, "name", "optional"})
        if len(given) != 1:
            listed = ", ".join(kinds)
            self.wrong(path, f"must have exactly one of {listed}; it has {', '.join(given) or 'none'}")
            return None
        optional = item.get("optional", False)
        if not isinstance(optional, bool):
            self.wrong(f"{path}.optional", "must be true or false")
        need: Need | None
        if given[0] == "gvk":
            gvk = self._gvk(f"{path}.gvk", self.mapping(item, path, "gvk"))
            need = gvk.need if gvk else None
        elif given[0] == "or":
            found = [self._dependency(p, each, alternative=True) for p, each in self.items(item, path, "or")]
            if not found:
                self.wrong(f"{path}.or", "must have at least one alternative")
            needs = tuple(each.need for each in found if each is not None)
            need = AnyOf(alternatives=needs) if needs and len(needs) == len(found) else None
        else:
            need = self._package_need(f"{path}.{given[0]}", self.mapping(item, path, given[0]), given[0])
        if need is None:
            return None
        return Requirement(need=need, optional=optional is True, name=str(item.get("name") or ""))

    def _package_need(self, path: str, item: Mapping[str, Any], form: str) -> Need | None:
        name = self.text(item, path, "refName", required=True)
        if form == "package":
            self.known(item, path, {"refName", "version"})
            text = self.text(item, path, "version")
            text = self.range(text, f"{path}.version", "carvel") if text else ""
            return PackageNeed(package=name, range=text, language="carvel") if name else None
        self.known(item, path, {"refName", "versionSelection"})
        text, prereleases = self._selection(item, path)
        need = PackageNeed(package=name, range=text, language="carvel", prereleases=prereleases)
        return need if name else None

    def _selection(self, item: Mapping[str, Any], path: str) -> tuple[str, tuple[str, ...] | None]:
        selection = self.mapping(item, path, "versionSelection")
        path = f"{path}.versionSelection"
        self.known(selection, path, {"constraints", "prereleases"})
        text = self.text(selection, path, "constraints")
        text = self.range(text, f"{path}.constraints", "carvel") if text else ""
        if selection.get("prereleases") is None:
            return text, None
        prereleases = self.mapping(selection, path, "prereleases")
        self.known(prereleases, f"{path}.prereleases", {"identifiers"})
        identifiers = prereleases.get("identifiers") or []
        if not isinstance(identifiers, Sequence) or not all(isinstance(each, str) for each in identifiers):
            self.wrong(f"{path}.prereleases.identifiers", "must be a list of texts")
            return text, ()
        return text, tuple(identifiers)

    def _gvk(self, path: str, item: Mapping[str, Any]) -> Requirement | None:
        self.known(item, path, {"apiVersion", "kind"})
        version, kind = (self.text(item, path, field, required=True) for field in ("apiVersion", "kind"))
        return Requirement(need=OfferNeed(offer=api(version, kind))) if version and kind else None

    def carvel_install(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.known(spec, "spec", {"packageRef", *_IGNORED_INSTALL})
        reference = self.mapping(spec, "spec", "packageRef")
        self.known(reference, "spec.packageRef", {"refName", "versionSelection"})
        name = self.text(reference, "spec.packageRef", "refName", required=True)
        text, prereleases = self._selection(reference, "spec.packageRef")
        target = obj["metadata"].get("namespace") or "default"
        if not name:
            return
        if OWNER not in (obj["metadata"].get("annotations") or {}):
            self.wishes.append(
                Wish(
                    package=name,
                    target=target,
                    range=text,
                    language="carvel",
                    prereleases=prereleases,
                    pinned=_is_exact(text),
                    name=obj["metadata"]["name"],
                )
            )
        version = self.text(self.mapping(obj, "", "status"), "status", "version")
        if version:
            self.install(target, name, version)

    def crd(self, obj: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        names = self.mapping(spec, "spec", "names")
        group, kind = self.text(spec, "spec", "group", required=True), names.get("kind")
        for _, version in self.items(spec, "spec", "versions"):
            if version.get("served"):
                self.offers.add(api(f"{group}/{version.get('name')}", str(kind)))


_Method = Callable[[Reader, Mapping[str, Any], Mapping[str, Any]], None]
_READERS: dict[tuple[str, str], _Method] = {
    **{(META, kind): Reader.crossplane_meta for kind in CROSSPLANE_KINDS},
    **{(PKG, kind): Reader.crossplane_install for kind in CROSSPLANE_KINDS},
    (LOCK, "Lock"): Reader.crossplane_lock,
    (DATA, "Package"): Reader.carvel_package,
    (INSTALL, "PackageInstall"): Reader.carvel_install,
    (CRD, "CustomResourceDefinition"): Reader.crd,
}


def read_input(manifests: Iterable[Manifest], platforms: Mapping[str, str], policy: Policy) -> ReadInput:
    """Read manifests; with problems, what was read is incomplete."""
    reader = Reader()
    for manifest in manifests:
        reader.read(manifest)
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


def split_reference(reference: str) -> tuple[str, str, str]:
    """Split an image's reference into its source, its tag and its digest, "" for what it has not."""
    rest, _, digest = reference.partition("@")
    head, slash, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag, digest


def _is_exact(text: str) -> bool:
    try:
        CARVEL.parse_version(text.removeprefix("=").strip())
    except VersionError:
        return False
    return True
