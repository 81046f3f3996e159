"""Reads Carvel's Packages, installs and served APIs from objects."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.platform.packaging.builtin import BUILTIN_OFFERS
from pvbus.core.platform.packaging.carvelfacts import GROUP, KIND, Facts, KnownPackage
from pvbus.core.platform.packaging.fields import Fields
from pvbus.core.platform.packaging.reading import (
    Problem,
    carvel_package,
    install_of,
    installation_type_of,
    okey_of,
)
from pvbus.core.platform.packaging.structure import REQUIRED_FIELDS, RequiredFields, required_fields
from pvbus.core.platform.solver.model import Candidate, api

GLOBAL_NAMESPACE = "kapp-controller-packaging-global"
"""Packages of this namespace can be installed from every namespace. Source: kapp-controller's default."""


def known_package(obj: Mapping[str, Any], *, everywhere: str = GLOBAL_NAMESPACE) -> KnownPackage | Problem:
    """Read a Package of Carvel.

    everywhere: the namespace whose Packages every namespace can use, as it can those of files that name none.
    """
    found = carvel_package(obj)
    if isinstance(found, Problem):
        return found
    name, candidate = found
    given = Fields(is_strict=False)
    metadata = given.mapping(obj, "", "metadata")
    fields: RequiredFields = ()
    text = given.mapping(metadata, "metadata", "annotations").get(REQUIRED_FIELDS)
    if text is not None:
        try:
            fields = required_fields(str(text))
        except ValueError as exc:
            defect = f"{candidate.defect}; {exc}" if candidate.defect else str(exc)
            candidate = msgspec.structs.replace(candidate, defect=defect)
    namespace, named = str(metadata.get("namespace") or everywhere), f"{name}.{candidate.version}"
    is_misnamed = metadata.get("name", named) != named
    if is_misnamed:
        text = f"its Package is named {metadata['name']}: name it {named}"
        candidate = Candidate(version=candidate.version, defect=text)
    return KnownPackage(
        "" if namespace == everywhere else namespace,
        name,
        candidate,
        installation_type_of(obj),
        fields,
        is_misnamed,
    )


class Served(NamedTuple):
    """APIs of CustomResourceDefinitions: offers, as `api` writes them, and the schema of each."""

    offers: frozenset[str]
    schemas: Mapping[str, Mapping[str, Any]]


def served_by(definitions: Iterable[Mapping[str, Any]]) -> Served:
    """Return the APIs that CustomResourceDefinitions serve; what of one cannot be read is not served."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for each in definitions:
        schemas |= _schemas(Fields(is_strict=False), each)
    return Served(frozenset(schemas), schemas)


def _schemas(fields: Fields, definition: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each API that a definition serves, {} with a problem in `fields`."""
    spec = fields.mapping(definition, "", "spec")
    group = fields.text(spec, "spec", "group", required=True)
    kind = fields.text(fields.mapping(spec, "spec", "names"), "spec.names", "kind", required=True)
    schemas: dict[str, Mapping[str, Any]] = {}
    for path, version in fields.items(spec, "spec", "versions"):
        name = fields.text(version, path, "name", required=True)
        schema = fields.mapping(version, path, "schema")
        if fields.flag(version, path, "served"):
            schemas[api(f"{group}/{name}", kind)] = fields.mapping(
                schema, f"{path}.schema", "openAPIV3Schema"
            )
    return {} if fields.problems else schemas


class ReadObjects(NamedTuple):
    """What was read of objects.

    facts: the facts, without rows of the lock
    problems: the objects that cannot be read and are left out, with the reasons
    """

    facts: Facts
    problems: tuple[Problem, ...]


def facts_of(objects: Iterable[Mapping[str, Any]], offers: Collection[str] = BUILTIN_OFFERS) -> ReadObjects:
    """Read PackageInstalls, Packages and CustomResourceDefinitions; other kinds are passed over.

    offers: APIs that are served beside those of the definitions.
    """
    installs: dict[str, Install] = {}
    packages: list[KnownPackage] = []
    definitions: list[Mapping[str, Any]] = []
    problems: list[Problem] = []
    for obj in objects:
        kind = (str(obj.get("apiVersion")).partition("/")[0], obj.get("kind"))
        if kind == (GROUP, KIND):
            install = install_of(obj)
            if isinstance(install, Problem):
                problems.append(install)
            else:
                installs[install.okey] = install
        elif kind == ("data.packaging.carvel.dev", "Package"):
            package = known_package(obj)
            if isinstance(package, Problem):
                problems.append(package)
            else:
                packages.append(package)
        elif kind == ("apiextensions.k8s.io", "CustomResourceDefinition"):
            fields = Fields(is_strict=False)
            _schemas(fields, obj)
            if fields.problems:
                problems.append(Problem(okey_of(obj), tuple(fields.problems)))
            definitions.append(obj)
    served = served_by(definitions)
    facts = Facts(
        installs=installs,
        packages=tuple(packages),
        offers=served.offers | frozenset(offers),
        schemas=served.schemas,
        unreadable=frozenset(each.okey for each in problems if each.bare and not each.is_deleted),
    )
    return ReadObjects(facts, tuple(problems))
