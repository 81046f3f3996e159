"""Lists: selectors, pages, versions of the past, and the forms of an answer."""

import base64
import json
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.apiserver.store import Store
from pvbus.ports.cluster import Kind
from tests.integration.apiserver.client import (
    ALL_WIDGETS,
    CORE,
    WIDGETS,
    Api,
    config_map,
    crd,
    serving,
    widget,
)

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
WIDGET = Kind("example.com", "Widget")


def store_of(server: ApiServer) -> Store:
    assert server._store is not None
    return server._store


async def names(api: Api, path: str) -> list[str]:
    return [item["metadata"]["name"] for item in (await api.get(path))["items"]]


async def test_a_list_is_ordered_and_says_its_version(api: Api) -> None:
    """Items come by namespace and name; resourceVersion is where a watch would go on."""
    for name in ("b", "c", "a"):
        created = await api.create(WIDGETS, widget(name))
    listed = await api.get(WIDGETS)
    assert (listed["kind"], listed["apiVersion"]) == ("WidgetList", "example.com/v1")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b", "c"]
    rv = created["metadata"]["resourceVersion"]
    assert listed["metadata"] == {"resourceVersion": rv, "continue": ""}
    assert await names(api, "/apis/example.com/v1/namespaces/kube-system/widgets") == []


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=x", ["a"]),
        ("app==x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app in (x,y)", ["a", "b"]),
        ("app notin (x)", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("rank>1", ["b"]),
        ("app,rank<2", ["a"]),
    ],
)
async def test_label_selectors(api: Api, selector: str, expected: list[str]) -> None:
    """Every operator selects what Kubernetes would."""
    labels = {"a": {"app": "x", "rank": "1"}, "b": {"app": "y", "rank": "2"}, "c": {}}
    for name, own in labels.items():
        await api.create(WIDGETS, widget(name, labels=own))
    assert await names(api, f"{ALL_WIDGETS}?labelSelector={selector}") == expected


async def test_bad_selectors_are_refused(api: Api) -> None:
    """400 for a selector that cannot be parsed and for a field that cannot be selected."""
    number = "9" * 5000
    for query in (
        "labelSelector=a%20b",
        "fieldSelector=spec.size%3D1",
        "limit=x",
        "limit=%C2%B2",
        "resourceVersion=x",
        f"resourceVersion={number}",
    ):
        reply = await api.call("GET", f"{WIDGETS}?{query}")
        assert (reply.code, reply.body["reason"]) == (400, "BadRequest"), query
    for query in ("resourceVersionMatch=Exact", "resourceVersion=1&resourceVersionMatch=Sometimes"):
        assert (await api.call("GET", f"{WIDGETS}?{query}")).code == 422


async def test_field_selectors(api: Api) -> None:
    """metadata.name and metadata.namespace of any kind, and a Secret's type."""
    for name in ("a", "b"):
        await api.create(WIDGETS, widget(name))
    assert await names(api, f"{ALL_WIDGETS}?fieldSelector=metadata.name%3Da") == ["a"]
    assert await names(api, f"{ALL_WIDGETS}?fieldSelector=metadata.namespace!%3Ddefault") == []
    secrets = f"{CORE}/namespaces/default/secrets"
    for name, type_ in (("s", "Opaque"), ("t", "example.com/t")):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": type_}
        await api.create(secrets, body)
    assert await names(api, f"{secrets}?fieldSelector=type%3Dexample.com/t") == ["t"]


async def test_pages_show_one_moment(api: Api) -> None:
    """Objects created, changed and deleted between two pages do not show in the later one."""
    for name in ("a", "b", "c", "d"):
        await api.create(WIDGETS, widget(name))
    first = await api.get(f"{WIDGETS}?limit=2")
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 2
    await api.delete(f"{WIDGETS}/c")
    await api.patch(f"{WIDGETS}/d", {"spec": {"size": 9}})
    await api.create(WIDGETS, widget("bb"))
    second = await api.get(f"{WIDGETS}?limit=2&continue={first['metadata']['continue']}")
    assert [(i["metadata"]["name"], i["spec"]["size"]) for i in second["items"]] == [("c", 1), ("d", 1)]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert second["metadata"]["continue"] == ""


async def test_a_page_after_compaction_is_gone(api: Api, server: ApiServer) -> None:
    """410 Expired when the log no longer reaches back to the first page; 400 for a made-up token."""
    for name in ("a", "b", "c"):
        await api.create(WIDGETS, widget(name))
    first = await api.get(f"{WIDGETS}?limit=1")
    await api.delete(f"{WIDGETS}/b")
    table = store_of(server).table(WIDGET)
    table.compact(len(table.changes))
    reply = await api.call("GET", f"{WIDGETS}?limit=1&continue={first['metadata']['continue']}")
    assert (reply.code, reply.body["reason"]) == (410, "Expired")
    assert (await api.call("GET", f"{WIDGETS}?continue=nonsense")).code == 400


def token_of(rv: int, mac: bytes = b"m" * 16, name: str = "a") -> str:
    content = json.dumps({"rv": rv, "start": ["default", name]}).encode()
    return base64.urlsafe_b64encode(mac + content).decode().rstrip("=")


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (token_of(999_999_999_999), 410),
        (token_of(1), 410),
        (token_of(-1), 410),
        (token_of(999_999_999_999, b""), 400),
        (token_of(1, b"short"), 400),
        ("e30", 400),
        ("%ff", 400),
        ("A" * 9, 400),
    ],
)
async def test_a_continue_token_that_was_made_up_gives_no_page(api: Api, token: str, code: int) -> None:
    """Neither an empty page nor a part of one: 410 lets clients list again, 400 is for what is no token."""
    await api.create(WIDGETS, widget("a"))
    await api.create(WIDGETS, widget("b"))
    reply = await api.call("GET", f"{WIDGETS}?limit=1&continue={token}")
    assert (reply.code, reply.body["kind"]) == (code, "Status")
    assert reply.body["reason"] == {400: "BadRequest", 410: "Expired"}[code]


async def test_a_continue_token_is_for_its_list_only(api: Api) -> None:
    """Of another kind, namespace or selector it gives no page; nor does one that was changed."""
    for name in ("a", "b", "c"):
        await api.create(WIDGETS, widget(name, labels={"x": "y"}))
    query = "?limit=1&labelSelector=x%3Dy"
    token = (await api.get(WIDGETS + query))["metadata"]["continue"]
    assert (await api.get(f"{WIDGETS}{query}&continue={token}"))["items"]
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    changed = base64.urlsafe_b64encode(raw.replace(b'"a"', b'"A"')).decode().rstrip("=")
    assert changed != token
    for path in (
        f"{WIDGETS}?limit=1&continue={token}",
        f"{WIDGETS}?limit=1&labelSelector=x%3Dz&continue={token}",
        f"{WIDGETS}?limit=1&fieldSelector=metadata.name%3Db&labelSelector=x%3Dy&continue={token}",
        f"{ALL_WIDGETS}{query}&continue={token}",
        f"{WIDGETS.replace('default', 'other')}{query}&continue={token}",
        f"{CORE}/namespaces/default/configmaps{query}&continue={token}",
        f"{WIDGETS}{query}&continue={changed}",
    ):
        reply = await api.call("GET", path)
        assert (reply.code, reply.body["reason"]) == (410, "Expired"), path


async def test_a_list_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The key is that of the data folder: a token of before is good while nothing has changed."""
    async with serving(ApiServer(tmp_path, crds=[crd()], tls=False)) as api:
        for name in ("a", "b"):
            await api.create(WIDGETS, widget(name))
        token = (await api.get(f"{WIDGETS}?limit=1"))["metadata"]["continue"]
    async with serving(ApiServer(tmp_path, crds=[crd()], tls=False)) as api:
        reply = await api.call("GET", f"{WIDGETS}?limit=1&continue={token}")
        if reply.code == 200:
            assert [item["metadata"]["name"] for item in reply.body["items"]] == ["b"]
        else:
            assert (reply.code, reply.body["reason"]) == (410, "Expired")


async def test_versions_of_the_past_and_future(api: Api) -> None:
    """Exact gives the past; a version that does not exist yet is 504 with a cause that clients know."""
    old = (await api.create(WIDGETS, widget("a")))["metadata"]["resourceVersion"]
    await api.create(WIDGETS, widget("b"))
    query = f"resourceVersion={old}&resourceVersionMatch=Exact"
    assert await names(api, f"{WIDGETS}?{query}") == ["a"]
    assert await names(api, f"{WIDGETS}?resourceVersion={old}") == ["a", "b"]
    assert await names(api, f"{WIDGETS}?resourceVersion=0") == ["a", "b"]
    reply = await api.call("GET", f"{WIDGETS}?resourceVersion=999999")
    assert (reply.code, reply.body["reason"]) == (504, "Timeout")
    assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_metadata_only(api: Api) -> None:
    """PartialObjectMetadata and its list hold metadata and nothing else."""
    created = await api.create(WIDGETS, widget("a"))
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    one = await api.get(f"{WIDGETS}/a", accept=accept)
    expected = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    assert one == {**expected, "metadata": created["metadata"]}
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    listed = await api.get(WIDGETS, accept=accept)
    assert (listed["kind"], listed["items"]) == ("PartialObjectMetadataList", [one])


async def test_tables(api: Api) -> None:
    """A list and a single object as kubectl prints them, with the kind's own columns."""
    await api.create(WIDGETS, widget("a", size=7))
    for path in (WIDGETS, f"{WIDGETS}/a"):
        table = await api.get(path, accept=TABLE)
        assert table["kind"] == "Table"
        assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size"]
        assert [row["cells"] for row in table["rows"]] == [["a", 7]]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    whole = await api.get(f"{WIDGETS}?includeObject=Object", accept=TABLE)
    assert whole["rows"][0]["object"]["spec"]["size"] == 7


async def test_yaml_is_answered_where_it_is_asked_for(api: Api) -> None:
    """application/yaml in Accept; 406 for what this server cannot write."""
    await api.create(f"{CORE}/namespaces/default/configmaps", config_map("a", data={"k": "v"}))
    path = f"{CORE}/namespaces/default/configmaps/a"
    reply = await api.call("GET", path, accept="application/yaml")
    assert b"data:\n  k: v\n" in reply.body
    assert (await api.call("GET", path, accept="application/vnd.kubernetes.protobuf")).code == 406
    mixed = "application/vnd.kubernetes.protobuf,application/json"
    assert (await api.get(path, accept=mixed))["data"] == {"k": "v"}
