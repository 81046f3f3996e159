"""Which rows ingest writes for the objects that packages depend on."""

from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import CRD, rows_of, topics_of
from pvbus.core.kernel.packagekinds import DEPLOYMENT, MIRRORED
from pvbus.core.kernel.records import INSTALLS, OBJECTS

PROVIDER = Kind("pkg.crossplane.io", "Provider")
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def mirrored(kind: Kind, obj: dict[str, Any]) -> tuple[str, Any]:
    (row,) = rows_of(kind, obj, (INSTALLS,))
    assert row.value is not None
    return row.key, msgspec.json.decode(row.value)


@pytest.mark.parametrize("kind", MIRRORED, ids=str)
def test_a_kind_that_is_asked_for_is_mirrored(kind: Kind) -> None:
    assert topics_of(kind, requested=True) == (INSTALLS, OBJECTS)


def test_of_deployments_only_those_that_run_packages_are_mirrored_for_packages_alone() -> None:
    """The metadata of all is on the bus only while a set or a variant asks for the kind."""
    assert topics_of(DEPLOYMENT, requested=True, has_readers=False) == (INSTALLS,)
    assert topics_of(DEPLOYMENT, requested=True) == (INSTALLS, OBJECTS)


def test_definitions_are_mirrored_only_while_somebody_asks() -> None:
    assert topics_of(CRD, requested=False) == (OBJECTS,)


def test_an_install_is_mirrored_whole_but_for_what_nobody_reads() -> None:
    obj = {
        "apiVersion": "pkg.crossplane.io/v1",
        "kind": "Provider",
        "metadata": {
            "name": "aws",
            "resourceVersion": "7",
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {APPLIED: "{}", "a": "b"},
        },
        "spec": {"package": "x:v1"},
        "status": {"currentRevision": "aws-1"},
    }
    key, value = mirrored(PROVIDER, obj)
    assert key == "cluster|pkg.crossplane.io/Provider||aws"
    meta = {"name": "aws", "resourceVersion": "7", "annotations": {"a": "b"}}
    assert value == {**obj, "metadata": meta}


def test_a_definition_is_mirrored_without_its_schemas() -> None:
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    obj = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "buckets.example.org", "resourceVersion": "7"},
        "spec": {"group": "example.org", "names": {"kind": "Bucket"}, "versions": [version]},
        "status": {"acceptedNames": {}},
    }
    _, value = mirrored(CRD, obj)
    assert value["spec"]["versions"] == [{"name": "v1", "served": True}]
    assert "resourceVersion" not in value["metadata"]
