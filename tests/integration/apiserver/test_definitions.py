"""CustomResourceDefinitions: they make a kind, change it, and take it away with its objects."""

import copy
from typing import Any

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.core.api.crds import crds
from tests.integration.apiserver.client import CRDS, WIDGETS, Api, crd, eventually, widget

GADGETS = "/apis/example.com/v1/namespaces/default/gadgets"


def gadget(name: str, version: str = "v1", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"example.com/{version}",
        "kind": "Gadget",
        "metadata": {"name": name},
        "spec": {"size": 1, **spec},
    }


async def test_a_definition_is_served_as_soon_as_it_is_answered(api: Api) -> None:
    """Its conditions say so, discovery shows the kind, and objects can be created."""
    created = await api.create(CRDS, crd("gadgets", "Gadget"))
    conditions = {c["type"]: c["status"] for c in created["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert created["status"]["storedVersions"] == ["v1"]
    assert created["status"]["acceptedNames"]["listKind"] == "GadgetList"
    assert created["spec"]["conversion"] == {"strategy": "None"}
    discovered = await api.get("/apis/example.com/v1")
    assert {"gadgets", "gadgets/status"} <= {resource["name"] for resource in discovered["resources"]}
    await api.create(GADGETS, gadget("a"))
    assert (
        "/apis/example.com/v1/namespaces/{namespace}/gadgets"
        in (await api.get("/openapi/v3/apis/example.com/v1"))["paths"]
    )


async def test_the_same_definition_again_changes_nothing(api: Api) -> None:
    """A PUT of what was read makes no new version."""
    created = await api.create(CRDS, crd("gadgets", "Gadget"))
    again = await api.call("PUT", f"{CRDS}/gadgets.example.com", created)
    assert again.body == created


async def test_bad_definitions_are_refused(api: Api) -> None:
    """422 with the field: another name than plural.group, no storage version, no structural schema."""
    named = crd("gadgets", "Gadget")
    named["metadata"]["name"] = "other.example.com"
    stored = crd("gadgets", "Gadget")
    stored["spec"]["versions"][0]["storage"] = False
    schema = crd("gadgets", "Gadget")
    del schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["type"]
    for body, field in (
        (named, "metadata.name"),
        (stored, "spec.versions"),
        (schema, "spec.validation.openAPIV3Schema.type"),
    ):
        reply = await api.call("POST", CRDS, body)
        assert reply.code == 422, reply.body
        assert any(cause["field"].startswith(field) for cause in reply.body["details"]["causes"])
    assert await api.code(GADGETS) == 404


async def test_the_definitions_that_are_shipped_are_accepted(api: Api) -> None:
    """And one that describes metadata is refused, in the words of every API server."""
    for definition in crds():
        await api.create(CRDS, definition)
    described = crd("gadgets", "Gadget")
    schema = described["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "description": "Names and labels."}
    reply = await api.call("POST", CRDS, described)
    assert (reply.code, reply.body["message"]) == (
        422,
        'CustomResourceDefinition.apiextensions.k8s.io "gadgets.example.com" is invalid: '
        "spec.validation.openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other "
        "than name and generateName, but metadata is implicitly specified",
    )


async def test_taken_names_are_not_accepted(api: Api) -> None:
    """A definition whose kind another one has is stored, but not served until that one is gone."""
    created = await api.create(CRDS, crd("widgetries", "Widget"))
    conditions = {c["type"]: (c["status"], c["message"]) for c in created["status"]["conditions"]}
    assert conditions["NamesAccepted"] == ("False", '"widget" is already in use')
    assert conditions["Established"][0] == "False"
    assert await api.code("/apis/example.com/v1/widgetries") == 404
    await api.create(WIDGETS, widget("a"))
    await api.delete(f"{CRDS}/widgets.example.com")

    async def names_are_free() -> bool:
        return await api.code("/apis/example.com/v1/widgetries") == 200

    await eventually(names_are_free)


async def test_scope_and_group_are_fixed(api: Api) -> None:
    """422 for a change of what identifies the kind."""
    created = await api.create(CRDS, crd("gadgets", "Gadget"))
    changed = copy.deepcopy(created)
    changed["spec"]["scope"] = "Cluster"
    reply = await api.call("PUT", f"{CRDS}/gadgets.example.com", changed)
    assert reply.code == 422
    assert "spec.scope" in reply.body["message"]


async def test_versions_are_served_as_they_say(api: Api) -> None:
    """Every served version shows the same objects; one that is no longer served is 404."""
    body = crd("gadgets", "Gadget")
    second = {**copy.deepcopy(body["spec"]["versions"][0]), "name": "v2", "storage": False}
    body["spec"]["versions"].append(second)
    created = await api.create(CRDS, body)
    await api.create(GADGETS, gadget("a"))
    newer = GADGETS.replace("v1", "v2")
    read = await api.get(f"{newer}/a")
    assert (read["apiVersion"], read["spec"]["size"]) == ("example.com/v2", 1)
    assert [item["apiVersion"] for item in (await api.get(newer))["items"]] == ["example.com/v2"]
    changed = await api.call("PUT", f"{newer}/a", {**read, "spec": {"size": 3}})
    assert changed.body["apiVersion"] == "example.com/v2"
    assert (await api.get(f"{GADGETS}/a"))["apiVersion"] == "example.com/v1"
    created["spec"]["versions"][1]["served"] = False
    await api.call("PUT", f"{CRDS}/gadgets.example.com", created)
    assert await api.code(newer) == 404
    assert (await api.get(f"{GADGETS}/a"))["spec"]["size"] == 3


async def test_a_new_schema_holds_at_once(api: Api) -> None:
    """After the definition changed, the next write is checked by it."""
    definition = await api.get(f"{CRDS}/widgets.example.com")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["size"]["maximum"] = 3
    changed = await api.call("PUT", f"{CRDS}/widgets.example.com", definition)
    assert changed.body["metadata"]["generation"] == 2
    assert (await api.call("POST", WIDGETS, widget("a", size=4))).code == 422
    await api.create(WIDGETS, widget("a", size=3))


async def test_deleting_a_definition_deletes_its_objects(api: Api) -> None:
    """It terminates, takes nothing new, waits for finalizers, and then the kind is 404."""
    await api.create(WIDGETS, widget("a"))
    await api.create(WIDGETS, widget("held", finalizers=["example.com/hold"]))
    leaving = await api.delete(f"{CRDS}/widgets.example.com")
    assert {c["type"] for c in leaving["status"]["conditions"]} >= {"Terminating"}

    async def first_is_gone() -> bool:
        return await api.code(f"{WIDGETS}/a") == 404

    await eventually(first_is_gone)
    refused = await api.call("POST", WIDGETS, widget("b"))
    assert (refused.code, refused.body["message"]) == (
        403,
        'widgets.example.com "b" is forbidden: create not allowed while custom resource definition is '
        "terminating",
    )
    await api.patch(f"{WIDGETS}/held", {"metadata": {"finalizers": None}})

    async def kind_is_gone() -> bool:
        return await api.code(WIDGETS) == 404 and await api.code(f"{CRDS}/widgets.example.com") == 404

    await eventually(kind_is_gone)
    assert "example.com" not in {group["name"] for group in (await api.get("/apis"))["groups"]}
    await api.create(CRDS, crd())
    assert (await api.get(WIDGETS))["items"] == []


async def test_definitions_given_at_start_are_updated(server: ApiServer) -> None:
    """A server that starts with a definition gives an existing one the new spec, without a write if equal."""
    other = crd()
    other["spec"]["names"]["shortNames"] = ["wd"]
    second = ApiServer(None, crds=[crd(), crd(), other], tls=False)
    await second.start()
    try:
        kinds = {kind.plural: kind for kind in second._registry.kinds()}
        assert kinds["widgets"].short_names == ("wd",)
    finally:
        await second.stop()
