"""Discovery and OpenAPI documents hold what clients look for in them."""

import json
from typing import Any

from pvbus.controlplane.apiserver import discovery
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.kinds import ServedKind, from_crd
from pvbus.controlplane.apiserver.openapi import OpenApi


def thing() -> ServedKind:
    schema = {"type": "object", "properties": {"spec": {"type": "string", "description": "words"}}}
    versions = [
        {"name": name, "served": served, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}}
        for name, served in (("v1beta1", True), ("v1", True), ("v2alpha1", True), ("v3", False))
    ]
    versions[1]["subresources"] = {"status": {}}
    return from_crd(
        {
            "spec": {
                "group": "example.com",
                "scope": "Cluster",
                "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"], "categories": ["all"]},
                "versions": versions,
            }
        }
    )


KINDS = (*BUILTIN_KINDS, thing())


def test_version_priority() -> None:
    """GA comes before beta before alpha; what is not served is not there."""
    assert discovery.group_versions(KINDS)["example.com"] == ["v1", "v1beta1", "v2alpha1"]
    assert thing().preferred_version.name == "v1"
    assert thing().version("v3") is None


def test_resource_list() -> None:
    """A kind and its subresources, with the names that kubectl accepts for it."""
    document = discovery.resource_list(KINDS, "example.com", "v1")
    assert document is not None
    main, status = document["resources"]
    assert main == {
        "name": "things",
        "singularName": "thing",
        "namespaced": False,
        "kind": "Thing",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["th"],
        "categories": ["all"],
    }
    assert status["name"] == "things/status"
    assert discovery.resource_list(KINDS, "example.com", "v3") is None
    assert discovery.resource_list(KINDS, "nowhere.com", "v1") is None
    core = discovery.resource_list(KINDS, "", "v1")
    assert core is not None
    assert core["groupVersion"] == "v1"


def test_groups() -> None:
    """The core group is under /api only."""
    assert discovery.core_document("h:1")["versions"] == ["v1"]
    names = [group["name"] for group in discovery.group_list(KINDS)["groups"]]
    assert names == ["porch.kpt.dev", *sorted(set(names) - {"porch.kpt.dev"})]
    assert "" not in names
    assert "porch.kpt.dev" in names
    document = discovery.group_document(KINDS, "example.com")
    assert document is not None
    assert document["preferredVersion"] == {"groupVersion": "example.com/v1", "version": "v1"}
    assert discovery.group_document(KINDS, "nowhere.com") is None


def test_aggregated_discovery_says_the_same() -> None:
    """Both forms of discovery list the same resources with the same verbs."""
    for core in (True, False):
        for group in discovery.aggregated(KINDS, core=core)["items"]:
            name = group["metadata"].get("name", "")
            for version in group["versions"]:
                plain: Any = discovery.resource_list(KINDS, name, version["version"])
                found = {}
                for resource in version["resources"]:
                    found[resource["resource"]] = resource["verbs"]
                    for sub in resource.get("subresources", ()):
                        found[f"{resource['resource']}/{sub['subresource']}"] = sub["verbs"]
                assert found == {resource["name"]: resource["verbs"] for resource in plain["resources"]}


def test_negotiation() -> None:
    """Only version 2 of the aggregated form is offered, and only to those who ask for it."""
    assert discovery.wants_aggregated(f"{discovery.AGGREGATED},application/json")
    assert not discovery.wants_aggregated("application/json")
    old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
    assert not discovery.wants_aggregated(old)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*(references(part) for part in value.values()), set())
    if isinstance(value, list):
        return set().union(*(references(part) for part in value), set())
    return set()


def test_openapi_documents_are_complete() -> None:
    """Every group and version has a document, each reference in it leads somewhere in it."""
    api = OpenApi(KINDS)
    paths = json.loads(api.index)["paths"]
    assert {"api/v1", "apis/example.com/v1", "apis/porch.kpt.dev/v1alpha1"} <= paths.keys()
    assert "apis/example.com/v3" not in paths
    assert api.document("apis/example.com/v3") is None
    for path in paths:
        document = json.loads(api.document(path) or b"")
        names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        assert references(document) <= names
        assert names
    swagger = json.loads(api.swagger)
    assert references(swagger) <= {f"#/definitions/{name}" for name in swagger["definitions"]}


def test_openapi_of_a_custom_kind() -> None:
    """The kind is found by its group, version and kind; writes take fieldValidation and dryRun."""
    document = json.loads(OpenApi(KINDS).document("apis/example.com/v1") or b"")
    schema = document["components"]["schemas"]["com.example.v1.Thing"]
    gvk = {"group": "example.com", "version": "v1", "kind": "Thing"}
    assert schema["x-kubernetes-group-version-kind"] == [gvk]
    assert schema["properties"]["spec"]["description"] == "words"
    patch = document["paths"]["/apis/example.com/v1/things/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == gvk
    assert {"fieldValidation", "dryRun"} <= {parameter["name"] for parameter in patch["parameters"]}
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
    core = json.loads(OpenApi(KINDS).document("api/v1") or b"")
    built_in = core["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" in built_in["requestBody"]["content"]


def test_the_hash_follows_the_content() -> None:
    """A document that changed has another address, so that clients may cache for ever."""
    one, other = (json.loads(OpenApi(kinds).index)["paths"] for kinds in (BUILTIN_KINDS, KINDS))
    assert one["api/v1"] == other["api/v1"]
    changed = thing()._replace(kind="Other")
    before = json.loads(OpenApi(KINDS).index)["paths"]["apis/example.com/v1"]
    assert json.loads(OpenApi((changed,)).index)["paths"]["apis/example.com/v1"] != before
