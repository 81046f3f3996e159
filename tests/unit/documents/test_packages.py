"""docs/packages.md names fields that the definitions have, and those that they refuse they do not have."""

import re
from typing import Any

from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds
from tests.e2e.cli.command import REPOSITORY

TEXT = (REPOSITORY / "docs" / "packages.md").read_text(encoding="utf-8")
SCHEMAS = {
    (each["spec"]["group"], each["spec"]["names"]["kind"]): each["spec"]["versions"][0]["schema"]
    for each in (*packaging_crds(), *crossplane_crds(), *carvel_crds())
}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a text: rows of cells, without heads."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.M)
    return [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
        for table in found
    ]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def properties(group: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS[group, kind]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


def test_the_fields_of_crossplanes_installs_are_those_of_the_definitions() -> None:
    """X1: every name is taken, and none is missing."""
    rows = tables(section("Crossplane"))[0]
    shipped = {name for row in rows for name in names(row[1])}
    assert shipped == set(properties("pkg.crossplane.io", "Provider"))
    assert shipped | {name for row in rows for name in names(row[0])} == set(
        properties("pkg.crossplane.io", "Package")
    )


def test_annotations_are_those_that_the_reader_knows() -> None:
    """Each of the table is read, and each that is read is in the document."""
    reading = (REPOSITORY / "pvbus/core/platform/packaging/reading.py").read_text(encoding="utf-8")
    known = {
        name
        for name in re.findall(r'^[A-Z_]+ = "([a-z.-]+/[a-z-]+)"$', reading, re.M)
        if not name.endswith("/v1")
    }
    assert known
    assert {row[0].strip("`") for row in tables(section("Crossplane"))[1]} <= known
    assert all(f"`{name}`" in TEXT for name in known)


def test_the_fields_of_a_carvel_dependency_are_those_of_the_definition() -> None:
    """C1, C2: every name of the tables is a property somewhere below the fields that they are for."""
    package, install = tables(section("Carvel"))

    def below(schema: dict[str, Any]) -> set[str]:
        inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else ())]
        return set(schema.get("properties", {})).union(*(below(each) for each in inner))

    for rows, kind in (
        (package, ("data.packaging.carvel.dev", "Package")),
        (install, ("packaging.carvel.dev", "PackageInstall")),
    ):
        known = below({"properties": properties(*kind)})
        words = {
            part.removesuffix("[]")
            for row in rows
            for cell in row[:2]
            for name in names(cell)
            if name not in ("onePerCluster", "OnePerCluster", "dependencies.packages")
            for part in name.partition(":")[0].split(".")
        }
        assert words
        assert words <= known, words - known


def test_fields_that_are_refused_are_in_no_definition() -> None:
    """A field that means nothing is not taken."""
    for group, kind in SCHEMAS:
        if kind == "Lock":
            continue
        for name in ("contraints", "installJobRef", "infrastructurePublications", "controllerConfigRef"):
            assert name not in str(SCHEMAS[group, kind]), (kind, name)
            assert f"`{name}`" in section("What is refused")
    for name in ("source", "crd"):
        assert name not in properties("pkg.crossplane.io", "Package")
