"""Server-side apply and the owners of fields, through the API."""

from typing import Any

import pytest

from tests.integration.apiserver.client import WIDGETS, Api, config_map, widget

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
MAPS = "/api/v1/namespaces/default/configmaps"


async def apply(api: Api, config: Any, query: str = "fieldManager=alice") -> Any:
    return await api.call("PATCH", f"{WIDGETS}/a?{query}", config, media=APPLY)


def owners(obj: Any) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", ())}


async def test_an_apply_creates_and_then_updates(api: Api) -> None:
    """201 and then 200; an equal apply makes no version, and a dry run stores nothing."""
    first = await apply(api, widget("a"))
    assert first.code == 201
    again = await apply(api, widget("a"))
    assert (again.code, again.body) == (200, first.body)
    dry = await apply(api, widget("a", spec={"size": 2}), "fieldManager=alice&dryRun=All")
    assert dry.body["spec"]["size"] == 2
    assert await api.get(f"{WIDGETS}/a") == first.body


async def test_the_conflict_of_an_apply_has_a_cause_per_field(api: Api) -> None:
    """409 with the field and its owner, which clients print; force takes the field over."""
    await apply(api, widget("a", spec={"size": 1}))
    refused = await apply(api, widget("a", spec={"size": 2}), "fieldManager=bob")
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "alice"', "field": ".spec.size"}
    ]
    forced = await apply(api, widget("a", spec={"size": 2}), "fieldManager=bob&force=true")
    assert owners(forced.body)["bob"]["f:spec"] == {"f:size": {}}
    assert "f:size" not in owners(forced.body).get("alice", {}).get("f:spec", {})


async def test_an_old_resource_version_is_a_conflict(api: Api) -> None:
    """An applier may state which version it has seen."""
    first = (await apply(api, widget("a"))).body
    await apply(api, widget("a", spec={"size": 2}))
    stale = widget("a", resourceVersion=first["metadata"]["resourceVersion"], spec={"size": 3})
    assert (await apply(api, stale)).code == 409


@pytest.mark.parametrize(
    ("query", "code"), [("", 422), ("fieldManager=", 422), (f"fieldManager={'x' * 129}", 422)]
)
async def test_an_apply_needs_a_manager(api: Api, query: str, code: int) -> None:
    """The name of the owner is not taken from the program here."""
    assert (await apply(api, widget("a"), query)).code == code


async def test_the_program_owns_what_it_writes(api: Api) -> None:
    """The manager of another write is the first part of the User-Agent, or `fieldManager`."""
    created = await api.create(MAPS, config_map("a", data={"x": "1"}))
    assert list(owners(created)) == ["Python"]
    changed = await api.call("PATCH", f"{MAPS}/a?fieldManager=bob", {"data": {"x": "2"}}, media=MERGE)
    assert owners(changed.body) == {"Python": {"f:data": {}}, "bob": {"f:data": {"f:x": {}}}}


async def test_owners_are_forgotten_on_request_only(api: Api) -> None:
    """managedFields of [{}] drop all owners; the next apply then conflicts with what was there before."""
    await apply(api, widget("a", spec={"size": 1}))
    left = await api.patch(f"{WIDGETS}/a", {"metadata": {"managedFields": None}})
    assert list(owners(left)) == ["alice"]
    reset = await api.patch(f"{WIDGETS}/a", {"metadata": {"managedFields": [{}]}})
    assert not owners(reset)
    refused = await apply(api, widget("a", spec={"size": 2}))
    assert 'conflict with "before-first-apply"' in refused.body["message"]


async def test_nobody_owns_the_finalizers_that_the_server_gives_a_namespace(api: Api) -> None:
    """An update leaves them out; as on kube-apiserver they are retained, and no manager owns them."""
    space: Any = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "plain"}}
    for manager in ("kubectl", "alice"):
        path = f"/api/v1/namespaces/plain?fieldManager={manager}"
        made = (await api.call("PATCH", path, space, media=APPLY)).body
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    bare = {**space, "metadata": {**space["metadata"], **version}}
    left = (await api.call("PUT", "/api/v1/namespaces/plain", bare)).body
    assert left["spec"] == {"finalizers": ["kubernetes"]}
    assert not any("f:spec" in fields for fields in owners(left).values())


async def test_an_object_of_the_cluster_has_no_owner_in_a_namespace(api: Api) -> None:
    """Such a reference means nothing, so the garbage collector leaves the object."""
    owner = await api.create(MAPS, config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    space: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace"}
    space["metadata"] = {"name": "held", "ownerReferences": [reference]}
    await api.create("/api/v1/namespaces", space)
    await api.create(MAPS, config_map("dependent", ownerReferences=[{**reference, "uid": "gone"}]))
    while await api.code(f"{MAPS}/dependent") == 200:  # the collector comes by
        pass
    found = await api.get("/api/v1/namespaces/held")
    assert "deletionTimestamp" not in found["metadata"]


async def test_an_answer_names_no_more_than_a_hundred_conflicts(api: Api) -> None:
    """Many managers of many fields have a conflict for each pair: the number is said, and the first ones."""
    data = {f"k{n}": "v" for n in range(60)}
    path = "/api/v1/namespaces/default/configmaps/m"
    media = "application/apply-patch+yaml"
    owned = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}
    for manager in range(5):
        reply = await api.call("PATCH", f"{path}?fieldManager=m{manager}", owned, media=media)
        assert reply.code in (200, 201), reply.body
    other = {**owned, "data": dict.fromkeys(data, "other")}
    reply = await api.call("PATCH", f"{path}?fieldManager=other", other, media=media)
    assert (reply.code, len(reply.body["details"]["causes"])) == (409, 100)
    assert reply.body["message"].startswith("Apply failed with 300 conflicts: ")
    assert reply.body["message"].endswith("and more")
