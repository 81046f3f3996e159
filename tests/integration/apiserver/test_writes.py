"""Create, update, patch and delete of single objects, as Kubernetes defines them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.apiserver.store import Store
from tests.integration.apiserver.client import (
    CORE,
    WIDGETS,
    Api,
    config_map,
    crd,
    eventually,
    serving,
    widget,
)
from tests.unit.apiserver.test_protobuf import body as protobuf
from tests.unit.apiserver.test_protobuf import field

CONFIG_MAPS = f"{CORE}/namespaces/default/configmaps"
CONFLICT = (
    'Operation cannot be fulfilled on widgets.example.com "a": the object has been modified; please apply '
    "your changes to the latest version and try again"
)


async def test_create_fills_in_what_the_server_decides(api: Api) -> None:
    """A new object gets uid, creationTimestamp, generation 1, defaults, its owners, and no status."""
    given = widget("a", managedFields=[{"manager": "x"}], uid="mine", generation=7)
    created = await api.create(WIDGETS, {**given, "status": {"ready": True}})
    metadata = created["metadata"]
    assert metadata["uid"] not in ("", "mine")
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert metadata["namespace"] == "default"
    assert [entry["operation"] for entry in metadata["managedFields"]] == ["Update"]
    assert created["spec"] == {"size": 1, "color": "blue"}
    assert "status" not in created
    assert await api.get(f"{WIDGETS}/a") == created


async def test_a_second_create_is_refused(api: Api) -> None:
    """409 AlreadyExists, with Kubernetes' text and details."""
    await api.create(WIDGETS, widget("a"))
    reply = await api.call("POST", WIDGETS, widget("a"))
    assert reply.code == 409
    assert reply.body["reason"] == "AlreadyExists"
    assert reply.body["message"] == 'widgets.example.com "a" already exists'
    assert reply.body["details"] == {"name": "a", "group": "example.com", "kind": "widgets"}


async def test_what_a_refusal_is_about_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told of a conflict and reads again finds the newer object, however slow the disk is."""
    commit = Store._write

    def slow(store: Store, changes: Any) -> None:
        time.sleep(0.1)
        commit(store, changes)

    monkeypatch.setattr(Store, "_write", slow)
    async with serving(ApiServer(tmp_path, crds=[crd()], tls=False)) as api:

        async def write(body: Any) -> tuple[int, str]:
            reply = await api.call("PUT", f"{WIDGETS}/a", body)
            return reply.code, (await api.get(f"{WIDGETS}/a"))["metadata"]["resourceVersion"]

        version = (await api.create(WIDGETS, widget("a")))["metadata"]["resourceVersion"]
        bodies = [widget("a", size=size, resourceVersion=version) for size in (2, 3)]
        answers = dict(await asyncio.gather(*map(write, bodies)))
        assert sorted(answers) == [200, 409]
        assert answers[409] == answers[200] != version


async def test_generate_name_makes_different_names(api: Api) -> None:
    """Each create with generateName makes another object with that prefix and five more characters."""
    names = {(await api.create(WIDGETS, widget(generateName="w-")))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("w-") and len(name) == 7 for name in names)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_dry_run_changes_nothing(api: Api, method: str) -> None:
    """dryRun=All answers as the real request would, and nothing is stored."""
    before: Any = None if method == "POST" else await api.create(WIDGETS, widget("a"))
    body: Any = None if method == "DELETE" else widget("a", size=5)
    if method == "PUT":
        body["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
    media = "application/merge-patch+json" if method == "PATCH" else "application/json"
    path = WIDGETS if method == "POST" else f"{WIDGETS}/a"
    reply = await api.call(method, f"{path}?dryRun=All", body, media=media)
    assert reply.code in (200, 201)
    if method in ("PUT", "PATCH"):
        assert reply.body["spec"]["size"] == 5
    if before is None:
        assert await api.code(f"{WIDGETS}/a") == 404
    else:
        assert await api.get(f"{WIDGETS}/a") == before


async def test_an_unknown_dry_run_is_refused(api: Api) -> None:
    """422 for any other value than All."""
    reply = await api.call("POST", f"{WIDGETS}?dryRun=maybe", widget("a"))
    assert reply.code == 422
    assert "dryRun" in reply.body["message"]


async def test_put_needs_the_current_resource_version(api: Api) -> None:
    """409 with Kubernetes' text for a stale one, 422 for none where the kind wants one."""
    first = await api.create(WIDGETS, widget("a"))
    second = await api.patch(f"{WIDGETS}/a", {"spec": {"size": 2}})
    stale = await api.call("PUT", f"{WIDGETS}/a", {**first, "spec": {"size": 3}})
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert stale.body["message"] == CONFLICT
    without = await api.call("PUT", f"{WIDGETS}/a", widget("a", size=3))
    assert without.code == 422
    assert without.body["details"]["causes"][0]["field"] == "metadata.resourceVersion"
    fresh = await api.call("PUT", f"{WIDGETS}/a", {**second, "spec": {"size": 3}})
    assert (fresh.code, fresh.body["spec"]["size"]) == (200, 3)


async def test_a_patch_with_a_stale_resource_version_conflicts(api: Api) -> None:
    """A patch carries a precondition when it names resourceVersion or uid."""
    first = await api.create(WIDGETS, widget("a"))
    await api.patch(f"{WIDGETS}/a", {"spec": {"size": 2}})
    stale = {"resourceVersion": first["metadata"]["resourceVersion"]}
    for metadata, answer in ((stale, (409, "Conflict")), ({"uid": "other"}, (422, "Invalid"))):
        reply = await api.call(
            "PATCH", f"{WIDGETS}/a", {"metadata": metadata}, media="application/merge-patch+json"
        )
        assert (reply.code, reply.body["reason"]) == answer


async def test_put_does_not_create(api: Api) -> None:
    """404 for a PUT of an object that does not exist."""
    reply = await api.call("PUT", f"{WIDGETS}/a", widget("a", resourceVersion="1"))
    assert (reply.code, reply.body["message"]) == (404, 'widgets.example.com "a" not found')


async def test_a_write_that_changes_nothing_makes_no_version(api: Api) -> None:
    """PUT and PATCH of the same content leave the resourceVersion, also with empty or null metadata."""
    created = await api.create(WIDGETS, widget("a"))
    put = await api.call("PUT", f"{WIDGETS}/a", created)
    patched = await api.patch(f"{WIDGETS}/a", {"spec": {"size": 1}, "metadata": {"labels": {}}})
    empty = {**created["metadata"], "finalizers": None, "annotations": {}, "managedFields": None}
    again = await api.call("PUT", f"{WIDGETS}/a", {**created, "metadata": empty})
    assert created == put.body == patched == again.body


async def test_generation_counts_changes_of_spec_only(api: Api) -> None:
    """Labels and status leave the generation alone; spec raises it."""
    await api.create(WIDGETS, widget("a"))
    labelled = await api.patch(f"{WIDGETS}/a", {"metadata": {"labels": {"x": "y"}}})
    reported = await api.patch(f"{WIDGETS}/a/status", {"status": {"ready": True}})
    resized = await api.patch(f"{WIDGETS}/a", {"spec": {"size": 2}})
    assert [o["metadata"]["generation"] for o in (labelled, reported, resized)] == [1, 1, 2]
    versions = [int(o["metadata"]["resourceVersion"]) for o in (labelled, reported, resized)]
    assert versions == sorted(set(versions))


async def test_the_status_subresource_and_the_rest_do_not_mix(api: Api) -> None:
    """A write of /status changes status only, any other write everything but status."""
    created = await api.create(WIDGETS, widget("a"))
    change = {**created, "spec": {"size": 9}, "status": {"ready": True}}
    change["metadata"] = {**created["metadata"], "labels": {"x": "y"}}
    reported = (await api.call("PUT", f"{WIDGETS}/a/status", change)).body
    assert (reported["spec"], reported["status"]) == (created["spec"], {"ready": True})
    assert "labels" not in reported["metadata"]
    retained = await api.patch(f"{WIDGETS}/a", {"status": {"ready": False}, "spec": {"size": 3}})
    assert (retained["status"], retained["spec"]["size"]) == ({"ready": True}, 3)
    assert (await api.get(f"{WIDGETS}/a/status"))["status"] == {"ready": True}


async def test_kinds_without_a_subresource_have_none(api: Api) -> None:
    """404 for /status of a ConfigMap."""
    await api.create(CONFIG_MAPS, config_map("a"))
    assert await api.code(f"{CONFIG_MAPS}/a/status") == 404


async def test_identity_cannot_be_changed(api: Api) -> None:
    """creationTimestamp and deletionTimestamp are the server's; name and namespace those of the URL."""
    created = await api.create(WIDGETS, widget("a"))
    body = {**created, "metadata": {**created["metadata"], "creationTimestamp": "2001-01-01T00:00:00Z"}}
    assert (await api.call("PUT", f"{WIDGETS}/a", body)).body == created
    renamed = await api.call("PUT", f"{WIDGETS}/a", widget("b"))
    assert renamed.code == 400
    assert "does not match the name on the URL" in renamed.body["message"]
    moved = await api.call("POST", WIDGETS, widget("b", namespace="kube-system"))
    assert moved.code == 400
    body["metadata"] = {**created["metadata"], "deletionTimestamp": "2001-01-01T00:00:00Z"}
    assert (await api.call("PUT", f"{WIDGETS}/a", body)).body == created


async def test_delete_honours_preconditions(api: Api) -> None:
    """409 for another uid or resourceVersion; the object stays."""
    created = await api.create(WIDGETS, widget("a"))
    for preconditions in ({"uid": "other"}, {"resourceVersion": "1"}):
        reply = await api.call("DELETE", f"{WIDGETS}/a", {"preconditions": preconditions})
        assert (reply.code, reply.body["reason"]) == (409, "Conflict")
        assert "in the precondition" in reply.body["message"]
    metadata = created["metadata"]
    right = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    gone = await api.delete(f"{WIDGETS}/a", {"preconditions": right})
    assert (gone["kind"], gone["status"], gone["details"]["uid"]) == ("Status", "Success", metadata["uid"])
    assert await api.code(f"{WIDGETS}/a") == 404


async def test_finalizers_delay_deletion(api: Api) -> None:
    """The object terminates, can lose finalizers but gain none, and goes with the last one."""
    await api.create(WIDGETS, widget("a", finalizers=["example.com/one", "example.com/two"]))
    leaving = await api.delete(f"{WIDGETS}/a")
    assert leaving["metadata"]["deletionTimestamp"]
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 0
    assert leaving["metadata"]["generation"] == 2
    assert await api.delete(f"{WIDGETS}/a") == leaving
    added = {"metadata": {"finalizers": ["example.com/one", "example.com/three"]}}
    refused = await api.call("PATCH", f"{WIDGETS}/a", added, media="application/merge-patch+json")
    assert refused.code == 422
    assert "no new finalizers" in refused.body["message"]
    await api.patch(f"{WIDGETS}/a", {"metadata": {"finalizers": ["example.com/two"]}})
    assert await api.code(f"{WIDGETS}/a") == 200
    await api.patch(f"{WIDGETS}/a", {"metadata": {"finalizers": None}})
    assert await api.code(f"{WIDGETS}/a") == 404


async def test_delete_collection_takes_what_is_selected(api: Api) -> None:
    """DELETE of a collection with a selector leaves the others."""
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        await api.create(WIDGETS, widget(name, labels={"l": label}))
    reply = await api.delete(f"{WIDGETS}?labelSelector=l%3Dx")
    assert [item["metadata"]["name"] for item in reply["items"]] == ["a", "b"]
    left = await api.get(WIDGETS)
    assert [item["metadata"]["name"] for item in left["items"]] == ["c"]


async def test_json_patch_tests_and_changes(api: Api) -> None:
    """A JSON patch applies in order; a failing test refuses the whole."""
    await api.create(WIDGETS, widget("a"))
    steps = [
        {"op": "test", "path": "/spec/size", "value": 1},
        {"op": "replace", "path": "/spec/size", "value": 4},
    ]
    media = "application/json-patch+json"
    assert (await api.call("PATCH", f"{WIDGETS}/a", steps, media=media)).body["spec"]["size"] == 4
    assert (await api.call("PATCH", f"{WIDGETS}/a", steps, media=media)).code == 422
    assert (await api.get(f"{WIDGETS}/a"))["spec"]["size"] == 4


async def test_strategic_patch_is_for_built_in_kinds(api: Api) -> None:
    """It merges finalizers of a ConfigMap, and is 415 for a custom kind."""
    media = "application/strategic-merge-patch+json"
    await api.create(CONFIG_MAPS, config_map("a", finalizers=["example.com/one"]))
    patch = {"metadata": {"finalizers": ["example.com/two"]}}
    merged = await api.call("PATCH", f"{CONFIG_MAPS}/a", patch, media=media)
    assert sorted(merged.body["metadata"]["finalizers"]) == ["example.com/one", "example.com/two"]
    await api.create(WIDGETS, widget("a"))
    assert (await api.call("PATCH", f"{WIDGETS}/a", patch, media=media)).code == 415


async def test_secrets_encode_string_data(api: Api) -> None:
    """stringData joins data in base64; the type is Opaque unless given, and fixed."""
    path = f"{CORE}/namespaces/default/secrets"
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}}
    created = await api.create(path, body)
    assert (created["data"], created["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "stringData" not in created
    change = {**created, "type": "other"}
    assert (await api.call("PUT", f"{path}/s", change)).code == 422
    wrong = {**body, "metadata": {"name": "t"}, "stringData": None, "data": {"a": "not base64!"}}
    assert (await api.call("POST", path, wrong)).code == 400


async def test_immutable_config_maps_stay_as_they_are(api: Api) -> None:
    """422 for a change of data, 200 for a change of labels."""
    await api.create(CONFIG_MAPS, {**config_map("a", data={"k": "v"}), "immutable": True})
    media = "application/merge-patch+json"
    assert (await api.call("PATCH", f"{CONFIG_MAPS}/a", {"data": {"k": "w"}}, media=media)).code == 422
    labelled = await api.patch(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"x": "y"}}})
    assert labelled["data"] == {"k": "v"}


async def test_both_event_groups_show_the_same_objects(api: Api) -> None:
    """What is written as events.k8s.io/v1 is read as v1 in its own words, and selected by them."""
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Widget", "name": "a", "namespace": "default"},
        "reason": "Tried",
        "action": "Try",
        "note": "it went well",
        "type": "Normal",
        "reportingController": "example.com/tester",
        "reportingInstance": "tester-1",
    }
    await api.create("/apis/events.k8s.io/v1/namespaces/default/events", body)
    core = f"{CORE}/namespaces/default/events"
    seen = (await api.get(f"{core}?fieldSelector=involvedObject.name%3Da"))["items"]
    assert [(e["apiVersion"], e["message"], e["involvedObject"]["kind"]) for e in seen] == [
        ("v1", "it went well", "Widget")
    ]
    new = (await api.get("/apis/events.k8s.io/v1/namespaces/default/events/e"))["note"]
    assert new == "it went well"
    assert (await api.get(f"{core}?fieldSelector=involvedObject.name%3Db"))["items"] == []


async def test_objects_of_a_missing_namespace_are_refused(api: Api) -> None:
    """404 for the namespace, as NamespaceLifecycle says it."""
    reply = await api.call("POST", f"{CORE}/namespaces/none/configmaps", config_map("a"))
    assert (reply.code, reply.body["message"]) == (404, 'namespaces "none" not found')


@pytest.mark.parametrize("metadata", [None, {}, {"labels": {"a": "b"}}])
async def test_a_namespace_without_a_name_is_refused(api: Api, metadata: Any) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    reply = await api.call("POST", f"{CORE}/namespaces", space)
    message = 'Namespace "" is invalid: metadata.name: Required value: name or generateName is required'
    assert (reply.code, reply.body["message"]) == (422, message)


async def test_initial_namespaces_stay(api: Api) -> None:
    """default and kube-system exist and may not be deleted."""
    for name in ("default", "kube-system"):
        reply = await api.call("DELETE", f"{CORE}/namespaces/{name}")
        assert (reply.code, reply.body["reason"]) == (403, "Forbidden")
        assert (await api.get(f"{CORE}/namespaces/{name}"))["status"]["phase"] == "Active"


async def test_a_namespace_goes_with_its_content(api: Api) -> None:
    """It terminates, takes nothing new, waits for finalizers in it, and then is gone."""
    await api.create(
        f"{CORE}/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t"}}
    )
    inside = f"{CORE}/namespaces/t/configmaps"
    await api.create(inside, config_map("a"))
    await api.create(inside, config_map("held", finalizers=["example.com/hold"]))
    leaving = await api.delete(f"{CORE}/namespaces/t")
    assert leaving["status"]["phase"] == "Terminating"

    async def first_is_gone() -> bool:
        return await api.code(f"{inside}/a") == 404

    await eventually(first_is_gone)
    refused = await api.call("POST", inside, config_map("b"))
    assert refused.code == 403
    assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    assert await api.code(f"{CORE}/namespaces/t") == 200
    await api.patch(f"{inside}/held", {"metadata": {"finalizers": None}})

    async def namespace_is_gone() -> bool:
        return await api.code(f"{CORE}/namespaces/t") == 404

    await eventually(namespace_is_gone)


PROTOBUF = "application/vnd.kubernetes.protobuf"


async def test_clients_delete_and_record_events_in_protobuf(api: Api) -> None:
    """As typed clients of client-go do; preconditions hold, and both versions of Event are stored."""
    created = await api.create(WIDGETS, widget("a"))
    for uid, code in (("other", 409), (created["metadata"]["uid"], 200)):
        options = protobuf("example.com/v1", "DeleteOptions", field(2, field(1, uid)))
        reply = await api.call("DELETE", f"{WIDGETS}/a", options, media=PROTOBUF)
        assert reply.code == code, reply.body
    metadata = field(1, "e") + field(3, "default")
    about = field(1, "Widget") + field(2, "default") + field(3, "a")
    event = protobuf(
        "v1", "Event", field(1, metadata) + field(2, about) + field(3, "Why") + field(9, "Normal")
    )
    stored = await api.call("POST", f"{CORE}/namespaces/default/events", event, media=PROTOBUF)
    assert (stored.code, stored.body["involvedObject"]["name"]) == (201, "a")
    metadata = field(1, "n") + field(3, "default")
    new = protobuf("events.k8s.io/v1", "Event", field(1, metadata) + field(8, about) + field(10, "said"))
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert (await api.call("POST", path, new, media=PROTOBUF)).code == 201
    assert (await api.get(f"{CORE}/namespaces/default/events/n"))["message"] == "said"
    damaged = await api.call("POST", path, new[:-10], media=PROTOBUF)
    assert (damaged.code, "not valid protobuf" in damaged.body["message"]) == (400, True)
