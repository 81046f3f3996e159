"""Reads what a version of a package needs and provides: `dependsOn` of Crossplane's packages, and
`dependencies`, `provides` and the gates of the platform of Carvel's.

Both the first and the merged proposal's spelling of Carvel's fields are read; docs/packages.md has them
side by side.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pvbus.core.platform.packaging.fields import FieldProblem, Fields
from pvbus.core.platform.packaging.references import reference_problem, split_reference
from pvbus.core.platform.solver.languages import highest, is_prerelease
from pvbus.core.platform.solver.model import (
    AnyOf,
    Need,
    OfferNeed,
    PackageNeed,
    PlatformNeed,
    Requirement,
    api,
)

Spec = Mapping[str, Any]

_META_FIELDS = frozenset({"crossplane", "dependsOn", "controller", "capabilities", "image"})
_PACKAGE_NAMES = ("package", "provider", "configuration", "function")
_DEPENDS_ON = (*_PACKAGE_NAMES, "crd", "crossplane")
_INSTALL_KINDS = ("Configuration", "Function", "Package", "Provider")
_DEPENDENCY = ("gvk", "package", "packageRef", "or")
_GATES = {
    "kubernetesVersionSelection": "kubernetes",
    "kappControllerVersionSelection": "kapp-controller",
}
_PACKAGE_FIELDS = frozenset(
    {
        *("refName", "version", "dependencies", "provides", "installationType", *_GATES),
        *("licenses", "releasedAt", "capacityRequirementsDescription", "releaseNotes", "template"),
        *("valuesSchema", "includedSoftware"),
    }
)

INSTALLATION_TYPES = {
    "onePerCluster": "onePerCluster",
    "onePerNamespace": "onePerNamespace",
    "noRestrictions": "noRestrictions",
    "OnePerCluster": "onePerCluster",
    "OnePerNamespace": "onePerNamespace",
    "NoRestrictions": "noRestrictions",
}
"""Every spelling of an installationType, and that of the first proposal."""

OR_DEPTH_MAX = 16
"""How often alternatives may be nested: nobody needs two levels, and Python's stack ends at some hundreds."""


# ---------------------------------------------------------------- Crossplane


def meta_requirements(fields: Fields, spec: Spec) -> tuple[Requirement, ...]:
    """Read the requirements of a package's own manifest (`meta.pkg.crossplane.io`)."""
    fields.check_known_spec(spec, "spec", _META_FIELDS)
    crossplane = fields.mapping(spec, "spec", "crossplane")
    fields.check_known(crossplane, "spec.crossplane", {"version"})
    found = [_platform(fields, crossplane, "spec.crossplane", "version")]
    found += [_depends_on(fields, path, item) for path, item in fields.items(spec, "spec", "dependsOn")]
    return tuple(each for each in found if each is not None)


def _platform(fields: Fields, value: Spec, path: str, field: str) -> Requirement | None:
    text = fields.text(value, path, field)
    text = fields.range(text, f"{path}.{field}", "masterminds") if text else ""
    return Requirement(need=PlatformNeed(platform="crossplane", range=text)) if text else None


def _depends_on(fields: Fields, path: str, item: Spec) -> Requirement | None:
    given = _only_one(fields, path, item, _DEPENDS_ON)
    fields.check_known(item, path, {*_DEPENDS_ON, "apiVersion", "kind", "version"})
    if given is None:
        return None
    if given not in _PACKAGE_NAMES:
        for field in sorted({"apiVersion", "kind", "version"} & set(item)):
            fields.wrong(f"{path}.{field}", f"has no meaning beside {given}")
    if given == "crd":
        need = gvk_need(fields, f"{path}.crd", fields.mapping(item, path, "crd"))
        return Requirement(need=need) if need else None
    if given == "crossplane":
        fields.text(item, path, "crossplane", required=True)
        return _platform(fields, item, path, "crossplane") if isinstance(item[given], str) else None
    name, version = fields.text(item, path, given, required=True), fields.text(item, path, "version")
    _check_kind(fields, path, item)
    if not name:
        return None
    source, *pin = split_reference(name)
    if any(pin) or (problem := reference_problem(name)):
        text = f"names a version: write {source}, and the version as `version`" if any(pin) else problem
        fields.wrong(f"{path}.{given}", text)
        return None
    if version.startswith("sha256:"):
        return Requirement(need=PackageNeed(package=name, digest=version))
    text = fields.range(version, f"{path}.version", "masterminds") if version else ""
    return Requirement(need=PackageNeed(package=name, range=text))


def _check_kind(fields: Fields, path: str, item: Spec) -> None:
    """Note what is wrong with the kind of the install that a dependency asks for, if it names one."""
    kind, version = fields.text(item, path, "kind"), fields.text(item, path, "apiVersion")
    if kind and kind not in _INSTALL_KINDS:
        fields.wrong(f"{path}.kind", f"must be one of {', '.join(_INSTALL_KINDS)}")
    if version and version.partition("/")[0] != "pkg.crossplane.io":
        fields.wrong(f"{path}.apiVersion", "must be of pkg.crossplane.io")


# ---------------------------------------------------------------- Carvel


def package_requirements(fields: Fields, spec: Spec) -> tuple[Requirement, ...]:
    """Read the requirements of a Carvel Package: its gates, then its dependencies."""
    fields.check_known_spec(spec, "spec", _PACKAGE_FIELDS)
    found: list[Requirement | None] = [_gate(fields, spec, *gate) for gate in _GATES.items()]
    found += [dependency(fields, path, item) for path, item in _dependencies(fields, spec)]
    return tuple(each for each in found if each is not None)


def provided(fields: Fields, spec: Spec) -> tuple[str, ...]:
    """Read the offers of a Carvel Package. An item is a group, version and kind, or has one as `gvk`."""
    found = []
    for path, item in fields.items(spec, "spec", "provides"):
        if "gvk" in item:
            fields.check_known(item, path, {"gvk"})
            need = gvk_need(fields, f"{path}.gvk", fields.mapping(item, path, "gvk"))
        else:
            need = gvk_need(fields, path, item)
        if need is not None:
            found.append(need.offer)
    return tuple(found)


def installation_type(fields: Fields, spec: Spec) -> str:
    """Return onePerCluster, onePerNamespace or noRestrictions."""
    return fields.choice(spec, "spec", "installationType", INSTALLATION_TYPES) or "noRestrictions"


def _gate(fields: Fields, spec: Spec, field: str, platform: str) -> Requirement | None:
    gate = fields.mapping(spec, "spec", field)
    text = fields.text(gate, f"spec.{field}", "constraints")
    text = fields.range(text, f"spec.{field}.constraints", "carvel") if text else ""
    need = PlatformNeed(platform=platform, range=text, language="carvel")
    return Requirement(need=need) if text else None


def _dependencies(fields: Fields, spec: Spec) -> list[tuple[str, Spec]]:
    """Return the items of `dependencies`; the first proposal's example has them in `packages` within it."""
    if not isinstance(spec.get("dependencies"), Mapping):
        return fields.items(spec, "spec", "dependencies")
    inner = spec["dependencies"]
    if "packages" not in inner:
        fields.wrong("spec.dependencies", "must be a list")
        return []
    fields.check_known(inner, "spec.dependencies", {"packages"})
    return fields.items(inner, "spec.dependencies", "packages")


def dependency(fields: Fields, path: str, item: Spec, *, is_alternative: bool = False) -> Requirement | None:
    """Read one dependency of a Carvel Package. An alternative of `or` is not optional on its own."""
    names = {*_DEPENDENCY, "name", "alias"}
    fields.check_known(item, path, names if is_alternative else {*names, "optional"})
    given = _only_one(fields, path, item, _DEPENDENCY)
    name = either(fields, item, path, "name", "alias")
    is_optional = not is_alternative and fields.flag(item, path, "optional") is True
    if given is None:
        return None
    need = _need(fields, path, item, given)
    return Requirement(need=need, optional=is_optional, name=name) if need is not None else None


def _need(fields: Fields, path: str, item: Spec, given: str) -> Need | None:
    if given == "gvk":
        return gvk_need(fields, f"{path}.gvk", fields.mapping(item, path, "gvk"))
    if given == "or":
        return _any_of(fields, path, item)
    inner, path = fields.mapping(item, path, given), f"{path}.{given}"
    name = fields.text(inner, path, "refName", required=True)
    prereleases: tuple[str, ...] | None = None
    if given == "package":
        fields.check_known(inner, path, {"refName", "version"})
        text = fields.text(inner, path, "version")
        text = fields.range(text, f"{path}.version", "carvel") if text else ""
    else:
        fields.check_known(inner, path, {"refName", "versionSelection"})
        text, prereleases = selection(fields, inner, path)
    need = PackageNeed(package=name, range=text, language="carvel", prereleases=prereleases)
    return need if name else None


def _any_of(fields: Fields, path: str, item: Spec) -> Need | None:
    alternatives = fields.items(item, path, "or")
    if not alternatives:
        fields.wrong(f"{path}.or", "must have at least one alternative")
    if path.count(".or[") >= OR_DEPTH_MAX:
        fields.wrong(f"{path}.or", f"is nested more than {OR_DEPTH_MAX} times")
        return None
    found = [dependency(fields, inner, each, is_alternative=True) for inner, each in alternatives]
    needs = tuple(each.need for each in found if each is not None)
    return AnyOf(alternatives=needs) if needs and len(needs) == len(found) else None


# ---------------------------------------------------------------- shared


def selection(
    fields: Fields, item: Spec, path: str, field: str = "versionSelection"
) -> tuple[str, tuple[str, ...] | None]:
    """Read a selection of versions of Carvel's; return the range, and the prereleases that `admits` takes.

    A range of exactly one version means that version, so it admits it if it is a prerelease.
    """
    found = fields.mapping(item, path, field)
    path = f"{path}.{field}"
    fields.check_known(found, path, {"constraints", "prereleases"})
    text = fields.text(found, path, "constraints")
    text = fields.range(text, f"{path}.constraints", "carvel") if text else ""
    if found.get("prereleases") is None:
        return text, () if is_prerelease(text) else None
    prereleases = fields.mapping(found, path, "prereleases")
    fields.check_known(prereleases, f"{path}.prereleases", {"identifiers"})
    return text, fields.texts(prereleases, f"{path}.prereleases", "identifiers")


def highest_tag(tags: Iterable[str], item: Spec, path: str) -> str | FieldProblem | None:
    """Return the highest tag that a selection `semver` admits, None if there is none."""
    fields = Fields(is_strict=True)
    constraints, prereleases = selection(fields, item, path, "semver")
    return fields.problems[0] if fields.problems else highest(tags, constraints, prereleases)


def gvk_need(fields: Fields, path: str, item: Spec) -> OfferNeed | None:
    """Read an API kind: `apiVersion` and `kind`, or `group`, `version` and `kind`."""
    if "apiVersion" in item or not {"group", "version"} & set(item):
        fields.check_known(item, path, {"apiVersion", "kind"})
        version = fields.text(item, path, "apiVersion", required=True)
    else:
        fields.check_known(item, path, {"group", "version", "kind"})
        group = fields.text(item, path, "group") if item.get("group") != "" else ""
        name = fields.text(item, path, "version", required=True)
        version = f"{group}/{name}" if group and name else name
    kind = fields.text(item, path, "kind", required=True)
    return OfferNeed(offer=api(version, kind)) if version and kind else None


def either(fields: Fields, item: Spec, path: str, first: str, second: str) -> str:
    """Return the text of a field that has two names; two different texts are a problem."""
    one, other = fields.text(item, path, first), fields.text(item, path, second)
    if one and other and one != other:
        fields.wrong(f"{path}.{second}", f"contradicts {first}")
    return one or other


def _only_one(fields: Fields, path: str, item: Spec, names: Sequence[str]) -> str | None:
    given = [name for name in names if name in item]
    if len(given) == 1:
        return given[0]
    fields.wrong(path, f"must have exactly one of {', '.join(names)}; it has {', '.join(given) or 'none'}")
    return None
