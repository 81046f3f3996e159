"""The definitions we generate: complete, described, and Porch's to the last field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.core.api.crds import (
    crds,
    open_api,
    porch_crds,
)
from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds

REPOSITORY = Path(__file__).parents[4]
PORCH = REPOSITORY / ".." / "shared" / "reference" / "crds"
ALL = (*crds(), *packaging_crds(), *crossplane_crds(), *carvel_crds())
NESTED = ("properties", "items", "additionalProperties")
WORDS = {"description", "x-kubernetes-validations"}


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every node of a schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def schemas() -> dict[str, dict[str, Any]]:
    found = {
        f"{crd['spec']['names']['kind']}/{version['name']}": version["schema"]["openAPIV3Schema"]
        for crd in ALL
        for version in crd["spec"]["versions"]
    }
    return found | open_api()


@pytest.mark.parametrize("name", sorted(schemas()))
def test_every_object_and_field_has_a_description_in_whole_sentences(name: str) -> None:
    for path, node in walk(schemas()[name]):
        if path.endswith(("{}", "[]")) and "properties" not in node:
            continue  # an entry of a list or map of scalars is described by its list or map
        if path == ".metadata" and name not in open_api():
            continue  # see test_an_api_server_accepts_what_is_said_of_metadata
        text = node.get("description", "")
        assert text.endswith("."), f"{name}{path}: {text!r}"
        assert text[0].isupper() or text[0] == "`", f"{name}{path}: {text!r}"


def test_exactly_one_version_of_a_kind_is_stored_and_it_is_served() -> None:
    for crd in ALL:
        stored = [version for version in crd["spec"]["versions"] if version["storage"]]
        assert len(stored) == 1
        assert stored[0]["served"]


@pytest.mark.parametrize("name", sorted(set(schemas()) - set(open_api())))
def test_an_api_server_accepts_what_is_said_of_metadata(name: str) -> None:
    """A definition that says more of an object's metadata than its type is refused with 422."""
    assert schemas()[name]["properties"]["metadata"] == {"type": "object"}


def test_variants_and_sets_have_columns_and_short_names() -> None:
    found = {
        crd["spec"]["names"]["plural"]: (
            crd["spec"]["names"]["shortNames"],
            [column["name"] for column in crd["spec"]["versions"][-1]["additionalPrinterColumns"]],
        )
        for crd in porch_crds()
    }
    columns = ["Ready", "Reason", "Attention", "Upstream", "Age"]
    assert found["packagevariants"] == (["pv"], columns)
    assert found["packagevariantsets"] == (["pvs"], columns)


def porch(plural: str) -> dict[str, Any]:
    file = PORCH / f"config.porch.kpt.dev_{plural}.yaml"
    if not file.exists():
        pytest.skip("Porch's definitions are not beside the checkout")
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def without_words(node: dict[str, Any]) -> dict[str, Any]:
    retained = {key: value for key, value in node.items() if key not in WORDS and key not in NESTED}
    return retained | {"rules": sorted(rule["rule"] for rule in node.get("x-kubernetes-validations", []))}


def without_added(ours: dict[str, Any], theirs: dict[str, Any], field: str) -> dict[str, Any]:
    """Return ours without a field that they leave out: columns and short names are additions."""
    return {key: value for key, value in ours.items() if key in theirs or key != field}


@pytest.mark.shared
@pytest.mark.parametrize("plural", ["packagevariants", "packagevariantsets", "repositories"])
def test_every_path_type_limit_and_rule_is_the_one_of_porch(plural: str) -> None:
    theirs = porch(plural)
    ours = next(crd for crd in crds() if crd["spec"]["names"]["plural"] == plural)
    assert ours["metadata"]["name"] == theirs["metadata"]["name"]
    names = without_added(ours["spec"]["names"], theirs["spec"]["names"], "shortNames")
    assert {**ours["spec"], "names": names, "versions": []} == {**theirs["spec"], "versions": []}
    assert len(ours["spec"]["versions"]) == len(theirs["spec"]["versions"])
    for our, their in zip(ours["spec"]["versions"], theirs["spec"]["versions"], strict=True):
        known = without_added(our, their, "additionalPrinterColumns")
        assert {**known, "schema": None} == {**their, "schema": None}
        our_nodes = dict(walk(our["schema"]["openAPIV3Schema"]))
        their_nodes = dict(walk(their["schema"]["openAPIV3Schema"]))
        assert set(our_nodes) == set(their_nodes)
        for path, node in their_nodes.items():
            assert without_words(our_nodes[path]) == without_words(node), path


@pytest.mark.shared
@pytest.mark.parametrize("plural", ["packagevariants", "packagevariantsets", "repositories"])
def test_no_description_is_a_copy_of_porchs(plural: str) -> None:
    theirs = {
        node["description"].strip()
        for version in porch(plural)["spec"]["versions"]
        for _, node in walk(version["schema"]["openAPIV3Schema"])
        if len(node.get("description", "")) > 40
    }
    ours = {node.get("description", "") for schema in schemas().values() for _, node in walk(schema)}
    assert theirs
    assert not theirs & ours
