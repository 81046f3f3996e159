"""Nephio's packages, rendered as they are."""

import pytest

from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import RenderResult, render
from tests.unit.packages.support import CATALOG, needs_catalog, objects, package

pytestmark = needs_catalog

LABELS = """  mutators:
  - name: PackageVariant.edge-clusters-mgmt-edge01..0
    image: ghcr.io/kptdev/krm-functions-catalog/set-labels:v0.2
    configMap:
      nephio.org/site-type: edge
      nephio.org/region: us-west1
"""
REGISTRY = FunctionRegistry()


def workload_cluster(name: str) -> dict[str, str]:
    """The package as the set's variant leaves it before the render: named and with its own function."""
    resources = package(CATALOG / "infra/capi/nephio-workload-cluster")
    resources["package-context.yaml"] = resources["package-context.yaml"].replace("example", name)
    resources["Kptfile"] = resources["Kptfile"].replace("  mutators:\n", LABELS)
    return resources


def names(result: RenderResult, kind: str) -> set[str]:
    return {value["metadata"]["name"] for value in objects(result.resources) if value["kind"] == kind}


def test_a_workload_cluster_is_named_throughout() -> None:
    result = render(workload_cluster("edge01"), registry=REGISTRY)
    assert result.rendered, result.message
    variants = [value for value in objects(result.resources) if value["kind"] == "PackageVariant"]
    assert len(variants) == 10
    for value in variants:
        spec = value["spec"]
        assert value["metadata"]["name"] == spec["downstream"]["package"]
        assert value["metadata"]["name"].startswith("edge01-")
        assert [each["name"] for each in spec["injectors"]] == ["edge01"]
        (function,) = spec["pipeline"]["mutators"]
        assert function["configMap"]["nephio.org/cluster-name"] == "edge01"
        assert value["metadata"]["labels"]["nephio.org/site-type"] == "edge"
    (cluster,) = (value for value in objects(result.resources) if value["kind"] == "WorkloadCluster")
    assert (cluster["metadata"]["name"], cluster["spec"]["clusterName"]) == ("edge01", "edge01")
    assert "# Since injection only injects the spec" in result.resources["workload-cluster.yaml"]


def test_only_the_lines_that_name_the_cluster_change() -> None:
    before = workload_cluster("edge01")
    result = render(before, registry=REGISTRY)
    for file in before.keys() - {"Kptfile"}:
        retained = [line for line in before[file].splitlines() if "example" not in line]
        assert [line for line in result.resources[file].splitlines() if line in retained] == retained
    for file in ("apply-replacements.yaml", "package-context.yaml"):
        assert result.resources[file] == before[file]


def test_a_second_render_changes_nothing_where_the_name_has_no_dash() -> None:
    first = render(workload_cluster("edge01"), registry=REGISTRY)
    second = render(first.resources, registry=REGISTRY)
    assert second.resources == first.resources
    assert second.digest == first.output_digest
    assert first.warning == ""


def test_a_second_render_is_not_safe_where_it_has_one_and_the_digest_tells() -> None:
    """The pipeline replaces what is before the first dash, so whoever stores packages must not repeat it."""
    first = render(workload_cluster("edge-01"), registry=REGISTRY)
    assert "edge-01-crds" in names(first, "PackageVariant")
    second = render(first.resources, registry=REGISTRY)
    assert "edge-01-01-crds" in names(second, "PackageVariant")
    assert second.digest == first.output_digest
    assert second.digest != second.output_digest
    assert first.warning.startswith("a second run of the pipeline would change pv-cluster.yaml, ")


def test_a_package_of_unknown_images_fails_with_the_first_of_them() -> None:
    resources = package(CATALOG / "workloads/free5gc/pkg-example-upf-bp")
    result = render(resources, registry=REGISTRY)
    assert not result.rendered
    assert (result.image, result.step) == ("docker.io/nephio/nfdeploy-fn:latest", "pipeline.mutators[3]")
    assert result.image in result.message
    assert result.step in result.message
    unchanged = resources.keys() - {"Kptfile"}
    assert {file: result.resources[file] for file in unchanged} == {
        file: resources[file] for file in unchanged
    }


def test_the_functions_before_it_ran_where_that_is_asked_for() -> None:
    resources = package(CATALOG / "workloads/free5gc/pkg-example-upf-bp")
    resources["package-context.yaml"] = resources["package-context.yaml"].replace("example", "free5gc-upf")
    resources["workload-cluster.yaml"] = resources["workload-cluster.yaml"].replace(": example", ": edge01")
    result = render(resources, registry=REGISTRY, keep_partial=True)
    assert names(result, "NFDeployment") == {"upf-edge01"}
    assert names(result, "Namespace") == {"free5gc-upf"}
    assert "NFDeployment.upf-edge01" in result.resources["interface-n3.yaml"].replace("\n", " ")


@pytest.mark.parametrize(
    "directory", [str(each.parent.relative_to(CATALOG)) for each in sorted(CATALOG.rglob("Kptfile"))]
)
def test_files_that_no_function_changed_keep_their_bytes(directory: str) -> None:
    """With the pipelines taken off, a render touches nothing but the status of the Kptfile."""
    resources = package(CATALOG / directory)
    for file in resources:
        if file.endswith("Kptfile"):
            resources[file] = resources[file].partition("pipeline:")[0]
    result = render(resources, registry=REGISTRY)
    assert result.rendered, result.message
    assert result.resources["Kptfile"].startswith(resources["Kptfile"].rstrip("\n"))
    assert {**result.resources, "Kptfile": ""} == {**resources, "Kptfile": ""}
