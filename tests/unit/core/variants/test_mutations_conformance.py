"""The shared conformance cases of packages and validation, applied to the pure functions."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PermanentError
from pvbus.core.variants.inject.mutations import (
    CandidateListing,
    Mutation,
    injection_points,
    mutate,
    validate_variant,
)

SHARED = Path(__file__).parents[4] / ".." / "shared" / "conformance"
PACKAGE_CASES = sorted((SHARED / "cases").glob("pv-mutate/*.yaml")) + sorted(
    (SHARED / "cases").glob("pv-inject/*.yaml")
)
VALIDATION_CASES = sorted((SHARED / "cases").glob("pv-validate/*.yaml"))

DEPARTURES = {
    "junk.yaml: failed to extract objects: unhandled node kind 8": (
        "junk.yaml: failed to extract objects: document 1 is plain text, not a Kubernetes object: give it "
        "apiVersion, kind and metadata, or rename the file so that it does not end in .yaml, .yml or .json"
    ),
}
"""Porch's messages that say nothing to a person, with ours: this is its YAML library's, as the case notes."""

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no shared folder beside the checkout"),
]


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """The conformance runner's own comparisons."""
    spec = importlib.util.spec_from_file_location("conformance_run", SHARED / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def load(runner: ModuleType, path: Path) -> Any:
    case = yaml.load(path.read_text(), Loader=runner.Loader)
    return runner.overlay(case, False)


class Cluster:
    """The objects of a case, as candidates."""

    def __init__(self, objects: list[Any], *, unknown_kinds: bool) -> None:
        self.objects = objects
        self.unknown_kinds = unknown_kinds

    def listing(self, group: str, version: str, kind: str) -> CandidateListing:
        api_version = f"{group}/{version}" if group else version
        found = [o for o in self.objects if (o["apiVersion"], o["kind"]) == (api_version, kind)]
        if not found and self.unknown_kinds:
            return CandidateListing({}, f'no matches for kind "{kind}" in version "{api_version}"')
        field = "data" if (group, kind) == ("", "ConfigMap") else "spec"
        return CandidateListing({o["metadata"]["name"]: o.get(field) for o in found})


def run(case: Any, resources: dict[str, str]) -> Mutation:
    obj = next(o for o in case["given"] if o["kind"] == "PackageVariant")
    variant = msgspec.convert(obj, PackageVariant)
    package = case["package"]
    cluster = Cluster(case["given"], unknown_kinds="no matches for kind" in str(case["expect"]))
    return mutate(resources, variant, cluster, revision_name=package["name"], namespace=package["namespace"])


def check_errors(runner: ModuleType, expected: list[Any], text: str) -> None:
    for error in expected:
        assert runner.says(error, text)
        assert error.get("loose") or DEPARTURES.get(error["message"], error["message"]) == text


@pytest.mark.parametrize("path", PACKAGE_CASES, ids=label)
def test_a_case_gives_the_files_that_porch_gives(runner: ModuleType, path: Path) -> None:
    """Files, errors, whether to write, and the injection points are those of the case."""
    case = load(runner, path)
    expect = case["expect"]
    points = injection_points(case["resources"])
    if expect.get("injectionPoints") is not None:
        reported = [(p["file"], p["conditionType"], p["required"]) for p in expect["injectionPoints"]]
        assert sorted(reported) == sorted((p.file, p.condition_type, p.required) for p in points.points)
    if expect.get("errors"):
        with pytest.raises(PermanentError) as caught:
            run(case, case["resources"])
        check_errors(runner, expect["errors"], str(caught.value))
        return
    assert points.problem == ""
    mutation = run(case, case["resources"])
    assert mutation.changed == expect.get("changed", False)
    if expect.get("resources") is not None:
        runner.same_files("resources", expect["resources"], mutation.resources)
    kptfile = runner.parse(mutation.resources["Kptfile"])[0]
    if expect.get("conditions") is not None:
        got = (kptfile.get("status") or {}).get("conditions") or []
        assert {c["type"]: c for c in got} == {c["type"]: c for c in expect["conditions"]}
    if expect.get("readinessGates") is not None:
        gates = (kptfile.get("info") or {}).get("readinessGates") or []
        assert sorted(g["conditionType"] for g in gates) == sorted(expect["readinessGates"])
    again = run(case, mutation.resources)
    assert again.resources == mutation.resources
    assert not again.changed


@pytest.mark.parametrize("path", VALIDATION_CASES, ids=label)
def test_a_case_gives_the_problems_that_porch_finds(runner: ModuleType, path: Path) -> None:
    """Validation finds exactly the problems of the case, in order, and none in a valid spec."""
    case = load(runner, path)
    obj = next(o for o in case["given"] if o["kind"] == "PackageVariant")
    problems = validate_variant(msgspec.convert(obj, PackageVariant).spec)
    stalled = next(c for c in case["expect"]["conditions"] if c["type"] == "Stalled")
    if (
        stalled["status"] == "True"
        and stalled["reason"] == "ValidationError"
        and "spec." in stalled["message"]
    ):
        assert "; ".join(problems) == stalled["message"]
        assert problems == [error["message"] for error in case["expect"]["errors"]]
    else:
        assert problems == []


def test_the_cases_are_found() -> None:
    """An emptied folder of cases cannot pass for a green suite."""
    assert len(PACKAGE_CASES) == 78
    assert len(VALIDATION_CASES) == 31
