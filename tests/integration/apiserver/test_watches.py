"""Watches: what is sent, when, to whom, and how they end."""

import asyncio
import json

import pytest

from pvbus.controlplane.apiserver import store as store_module
from pvbus.controlplane.apiserver import watching
from pvbus.controlplane.apiserver.listing import Selection
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.apiserver.shapes import Form
from tests.integration.apiserver.client import ALL_WIDGETS, WIDGETS, Api, widget
from tests.integration.apiserver.test_lists import WIDGET, store_of


async def version(api: Api) -> str:
    listed = await api.get(ALL_WIDGETS)
    return str(listed["metadata"]["resourceVersion"])


async def test_a_watch_continues_where_a_list_ended(api: Api) -> None:
    """Every change after the version arrives once, in order, with the whole object."""
    await api.create(WIDGETS, widget("before"))
    rv = await version(api)
    created = await api.create(WIDGETS, widget("a"))
    async with api.watch(f"{ALL_WIDGETS}?watch=1&resourceVersion={rv}") as watch:
        changed = await api.patch(f"{WIDGETS}/a", {"spec": {"size": 2}})
        await api.delete(f"{WIDGETS}/a")
        events = [await watch.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert [event["object"] for event in events[:2]] == [created, changed]
    last = events[2]["object"]
    assert last["spec"] == changed["spec"]
    assert int(last["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_watch_without_a_version_begins_with_what_is_there(api: Api) -> None:
    """Present objects come as ADDED, then changes."""
    for name in ("a", "b"):
        await api.create(WIDGETS, widget(name))
    for query in ("watch=true", "watch=true&resourceVersion=0"):
        async with api.watch(f"{WIDGETS}?{query}") as watch:
            assert await watch.names(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_of_one_object(api: Api) -> None:
    """GET of a single object with watch=1, and of a collection with its name as field selector."""
    rv = await version(api)
    for path in (f"{WIDGETS}/b?watch=1", f"{WIDGETS}?watch=1&fieldSelector=metadata.name%3Db"):
        async with api.watch(f"{path}&resourceVersion={rv}") as watch:
            for name in ("a", "b"):
                await api.create(WIDGETS, widget(name))
            assert await watch.names(1) == [("ADDED", "b")]
        for name in ("a", "b"):
            await api.delete(f"{WIDGETS}/{name}")
        rv = await version(api)


async def test_an_old_version_has_expired(api: Api, server: ApiServer) -> None:
    """ERROR 410 in the stream after compaction, 504 for a version of the future, 400 for none at all."""
    rv = await version(api)
    await api.create(WIDGETS, widget("a"))
    table = store_of(server).table(WIDGET)
    table.compact(len(table.changes))
    async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}") as watch:
        event = await watch.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        assert event["object"]["reason"] == "Expired"
        assert event["object"]["message"].startswith(f"too old resource version: {rv} (")
        assert await watch.next() is None
    assert (await api.call("GET", f"{WIDGETS}?watch=1&resourceVersion=999999")).code == 504
    assert (await api.call("GET", f"{WIDGETS}?watch=1&resourceVersion=abc")).code == 400


async def test_a_watcher_left_behind_is_told_and_closed(
    api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot follow gets ERROR 410 and the end of the stream; the server waits for nobody."""
    obj = await api.create(WIDGETS, widget("a"))
    store = store_of(server)
    async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={await version(api)}") as watch:
        monkeypatch.setattr(store_module, "LOG_CHANGES_MAX", 2)
        for size in range(9):
            store.put(WIDGET, {**obj, "spec": {"size": size + 10}})
        await store.durable()
        event = await watch.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        assert await watch.next() is None


async def test_a_slow_watcher_holds_nobody_up(api: Api, server: ApiServer) -> None:
    """While one watcher reads nothing of many megabytes, writes and another watcher go on."""
    rv = await version(api)
    path = f"{WIDGETS}?watch=1&resourceVersion={rv}"
    async with api.watch(path), api.watch(path) as quick:
        note = "x" * 200_000
        for number in range(60):
            await api.create(WIDGETS, widget(f"w{number}", spec={"note": note}))
            assert (await quick.next())["object"]["metadata"]["name"] == f"w{number}"


async def test_selectors_make_objects_come_and_go(api: Api) -> None:
    """An object that begins to match is ADDED, one that ceases to is DELETED, others are not sent."""
    rv = await version(api)
    async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}&labelSelector=on%3Dyes") as watch:
        await api.create(WIDGETS, widget("a"))
        on = await api.patch(f"{WIDGETS}/a", {"metadata": {"labels": {"on": "yes"}}})
        await api.patch(f"{WIDGETS}/a", {"spec": {"size": 5}})
        off = await api.patch(f"{WIDGETS}/a", {"metadata": {"labels": {"on": "no"}}})
        await api.delete(f"{WIDGETS}/a")
        await api.create(WIDGETS, widget("b", labels={"on": "yes"}))
        events = [await watch.next() for _ in range(4)]
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]
    assert events[0]["object"] == on
    assert events[2]["object"]["metadata"]["labels"] == {"on": "yes"}
    assert events[2]["object"]["metadata"]["resourceVersion"] == off["metadata"]["resourceVersion"]


async def test_namespaces_are_kept_apart(api: Api) -> None:
    """A watch of one namespace does not see another."""
    rv = await version(api)
    other = "/apis/example.com/v1/namespaces/kube-system/widgets"
    async with api.watch(f"{other}?watch=1&resourceVersion={rv}") as watch:
        await api.create(WIDGETS, widget("a"))
        await api.create(other, widget("b"))
        assert await watch.names(1) == [("ADDED", "b")]


async def test_bookmarks_follow_other_kinds(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet watcher learns the current version, which a write of another kind raised."""
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    rv = await version(api)
    async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}&allowWatchBookmarks=true") as watch:
        path = "/api/v1/namespaces/default/configmaps"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        written = await api.create(path, body)
        event = await watch.next()
    assert event["type"] == "BOOKMARK"
    assert event["object"]["kind"] == "Widget"
    assert event["object"]["metadata"] == {"resourceVersion": written["metadata"]["resourceVersion"]}


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    """sendInitialEvents: what is there, a bookmark that says so, then changes."""
    await api.create(WIDGETS, widget("a"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(f"{WIDGETS}?{query}") as watch:
        assert await watch.names(1) == [("ADDED", "a")]
        bookmark = await watch.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.create(WIDGETS, widget("b"))
        assert await watch.names(1) == [("ADDED", "b")]
    wrong = await api.call("GET", f"{WIDGETS}?watch=1&sendInitialEvents=true")
    assert wrong.code == 422


async def test_a_watch_ends_after_its_time(api: Api) -> None:
    """timeoutSeconds is kept."""
    started = asyncio.get_running_loop().time()
    async with api.watch(f"{WIDGETS}?watch=1&timeoutSeconds=1") as watch:
        assert await watch.next() is None
    assert 0.9 < asyncio.get_running_loop().time() - started < 5


async def test_watches_in_other_forms(api: Api) -> None:
    """Metadata only, and tables whose columns come with the first event."""
    await api.create(WIDGETS, widget("a"))
    await api.create(WIDGETS, widget("b"))
    partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with api.watch(f"{WIDGETS}?watch=1", accept=partial) as watch:
        event = await watch.next()
        assert sorted(event["object"]) == ["apiVersion", "kind", "metadata"]
    table = "application/json;as=Table;g=meta.k8s.io;v=v1"
    async with api.watch(f"{WIDGETS}?watch=1", accept=table) as watch:
        first, second = await watch.next(), await watch.next()
    assert first["object"]["columnDefinitions"][1]["name"] == "Size"
    assert not second["object"].get("columnDefinitions")
    assert second["object"]["rows"][0]["cells"] == ["b", 1]


async def test_the_bytes_of_an_object_are_made_once(api: Api, server: ApiServer) -> None:
    """The answer of a create, the stored row and the events of every watch hold the same bytes."""
    rv = await version(api)
    created = await api.call("POST", WIDGETS, widget("a"))
    entry = store_of(server).table(WIDGET).in_order()[0]
    assert json.loads(entry.raw) == created.body
    for _ in range(2):
        async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}") as watch:
            assert await watch.line() == b'{"type":"ADDED","object":' + entry.raw + b"}\n"


async def test_a_watch_of_a_removed_kind_ends(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the definition is deleted, its objects are reported as deleted and the stream ends."""
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.05)
    await api.create(WIDGETS, widget("a"))
    rv = await version(api)
    async with api.watch(f"{WIDGETS}?watch=1&resourceVersion={rv}") as watch:
        await api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com")
        assert await watch.names(1) == [("DELETED", "a")]
        assert await watch.next() is None


async def test_a_watch_does_not_hold_what_it_has_sent(server: ApiServer, api: Api) -> None:
    """The objects of its start would stay in memory for as long as it lasts, in old versions."""
    for name in "abc":
        await api.create(WIDGETS, widget(name))
    store, registry = store_of(server), server._registry
    endpoint = registry.storage(WIDGET)
    assert endpoint is not None
    query = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    plan = watching.plan(store, Selection(endpoint, None), Form(endpoint, ""), query)
    assert len(plan.initial) == 3
    stream = watching.stream(store, registry, plan)
    begin = bytes(await anext(stream))
    assert begin.count(b"ADDED") == 3
    assert len(plan.initial) == 0
    await api.create(WIDGETS, widget("d"))
    assert b'"name":"d"' in await anext(stream)
