"""The package store behind the real embedded API server, over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.api.crds import crds
from pvbus.core.kernel.keys import EDITED_BY
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Kind
from tests.integration.apiserver.client import Api, eventually
from tests.integration.packages.support import NAMESPACE, clone_of, git, refs, repository, revision, tree

REPOSITORIES = f"/apis/config.porch.kpt.dev/v1alpha1/namespaces/{NAMESPACE}/repositories"
REVISIONS = f"/apis/porch.kpt.dev/v1alpha1/namespaces/{NAMESPACE}/packagerevisions"
RESOURCES = f"/apis/porch.kpt.dev/v1alpha1/namespaces/{NAMESPACE}/packagerevisionresources"


class Served(NamedTuple):
    api: Api
    server: ApiServer
    store: PackageStore


@asynccontextmanager
async def serving(data: Path, **options: Any) -> AsyncIterator[Served]:
    """Start server and store as `pvbus up` does. options: of the store."""
    server = ApiServer(data / "api", crds=crds(), tls=False)
    store = PackageStore(
        server.objects,
        data / "packages",
        render=partial(render, registry=FunctionRegistry({})),
        options=StoreOptions(poll_seconds=0.1, fetch_seconds=0.5, **options),
    )
    server.install_hooks(PACKAGE_REVISION, store.package_revisions)
    server.install_hooks(REPOSITORY, store.repositories)
    server.install_virtual(Kind("porch.kpt.dev", "PackageRevisionResources"), store.resources)
    await server.start()
    await store.start()
    headers = {"Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        api = Api(session, server.url)
        try:
            yield Served(api, server, store)
        finally:
            await store.stop()
            await server.stop()


async def register(api: Api, blueprints: Path, edge: Path) -> None:
    await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await api.create(REPOSITORIES, repository("blue", blueprints))
    await api.create(REPOSITORIES, repository("edge", edge, deployment=True))

    async def found() -> bool:
        return await api.code(f"{REVISIONS}/blue.app.v1") == 200

    await eventually(found)


@pytest.fixture
async def served(tmp_path: Path, blueprints: Path, edge: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data") as served:
        await register(served.api, blueprints, edge)
        yield served


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"owner": "ann & bob"}}, "metadata.labels"),
        ({"labels": {"bad key!": "x"}}, "metadata.labels"),
        ({"annotations": {"a/b/c": "x"}}, "metadata.annotations"),
        ({"finalizers": ["a b"]}, "metadata.finalizers[0]"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap"}]}, "metadata.ownerReferences.name"),
    ],
)
async def test_metadata_that_no_update_could_keep_is_refused_at_creation(
    served: Served, metadata: Any, field: str
) -> None:
    """The store names a revision; all other metadata is checked before anything is pushed."""
    refused = await served.api.call("POST", REVISIONS, revision("edge", "app-1", "ws", **metadata))
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")
    assert field in {cause["field"] for cause in refused.body["details"]["causes"]}
    assert await served.api.code(f"{REVISIONS}/edge.app-1.ws") == 404


async def test_a_draft_goes_all_the_way_over_http(served: Served, edge: Path) -> None:
    api = served.api
    draft = await api.create(REVISIONS, revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    name = draft["metadata"]["name"]
    assert name == "edge.app-1.ws"
    assert draft["metadata"]["uid"] == (await api.get(f"{REVISIONS}/{name}"))["metadata"]["uid"]

    resources = await api.get(f"{RESOURCES}/{name}")
    assert resources["metadata"]["resourceVersion"] == draft["metadata"]["resourceVersion"]
    resources["spec"]["resources"]["note.txt"] = "hello\n"
    reply = await api.call("PUT", f"{RESOURCES}/{name}", resources)
    assert reply.code == 200, reply.body
    stale = await api.call("PUT", f"{RESOURCES}/{name}", resources)
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert tree(edge, "drafts/app-1/ws", "app-1")["note.txt"] == "hello\n"

    await api.patch(f"{REVISIONS}/{name}", {"spec": {"lifecycle": "Proposed"}})
    current = await api.get(f"{REVISIONS}/{name}/approval")
    current["spec"]["lifecycle"] = "Published"
    approved = await api.call("PUT", f"{REVISIONS}/{name}/approval", current)
    assert approved.code == 200, approved.body
    assert approved.body["spec"]["revision"] == 1
    assert refs(edge) == ["refs/heads/main", "refs/tags/app-1/v1"]
    assert git(edge, "log", "-1", "--format=%an", "main") == "pvbus-admin"

    refused = await api.call("DELETE", f"{REVISIONS}/{name}")
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    await api.patch(f"{REVISIONS}/{name}", {"spec": {"lifecycle": "DeletionProposed"}})
    await api.delete(f"{REVISIONS}/{name}")
    assert await api.code(f"{REVISIONS}/{name}") == 404
    assert refs(edge) == ["refs/heads/main"]


async def test_refusals_are_statuses_with_porchs_texts(served: Served) -> None:
    api = served.api
    await api.create(REVISIONS, revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    twice = await api.call("POST", REVISIONS, revision("edge", "app-1", "w2", clone_of("blue.app.v1")))
    assert twice.code == 500
    assert "`clone` cannot create a new revision for package" in twice.body["message"]
    missing = await api.call("POST", REVISIONS, revision("nowhere", "app-1", "ws"))
    assert (missing.code, missing.body["reason"]) == (404, "NotFound")
    bad = await api.call("POST", REVISIONS, revision("edge", "App", "ws"))
    assert (bad.code, bad.body["reason"]) == (422, "Invalid")
    twin = await api.call("POST", REPOSITORIES, repository("twin", "/x", git={"repo": ""}))
    assert twin.code == 422


async def test_a_finalizer_holds_a_draft_in_git_until_it_is_taken_off(served: Served, edge: Path) -> None:
    api = served.api
    wanted = revision("edge", "app-1", "ws", clone_of("blue.app.v1"), finalizers=["example.com/hold"])
    await api.create(REVISIONS, wanted)
    await api.call("DELETE", f"{REVISIONS}/edge.app-1.ws")
    assert (await api.get(f"{REVISIONS}/edge.app-1.ws"))["metadata"]["deletionTimestamp"]
    assert "refs/heads/drafts/app-1/ws" in refs(edge)
    await api.patch(f"{REVISIONS}/edge.app-1.ws", {"metadata": {"finalizers": None}})
    assert await api.code(f"{REVISIONS}/edge.app-1.ws") == 404
    assert refs(edge) == []


async def test_a_draft_goes_with_its_owner(served: Served, edge: Path) -> None:
    api = served.api
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    owner = await api.create(maps, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await api.create(
        REVISIONS, revision("edge", "app-1", "ws", clone_of("blue.app.v1"), ownerReferences=[reference])
    )
    await api.delete(f"{maps}/owner")

    async def gone() -> bool:
        return await api.code(f"{REVISIONS}/edge.app-1.ws") == 404

    await eventually(gone)
    assert refs(edge) == []


async def test_a_restart_keeps_every_object_as_it_was(tmp_path: Path, blueprints: Path, edge: Path) -> None:
    async with serving(tmp_path / "data") as served:
        await register(served.api, blueprints, edge)
        await served.api.create(
            REVISIONS, revision("edge", "app-1", "ws", clone_of("blue.app.v1"), labels={"a": "b"})
        )
        before = (await served.api.get(REVISIONS))["items"]
    async with serving(tmp_path / "data") as served:
        await served.api.get(f"{RESOURCES}/edge.app-1.ws")
        await served.api.get(f"{RESOURCES}/blue.app.v1")
        assert (await served.api.get(REVISIONS))["items"] == before


async def test_many_clients_at_once_get_one_draft_each(served: Served, edge: Path) -> None:
    names = [f"app-{number}" for number in range(40)]

    async def draft(name: str) -> Any:
        wanted = revision("edge", name, "packagevariant-1", clone_of("blue.app.v1"))
        wanted["metadata"]["annotations"] = {"pvbus.dev/defer-render": "true"}
        made = await served.api.create(REVISIONS, wanted)
        resources = await served.api.get(f"{RESOURCES}/{made['metadata']['name']}")
        resources["spec"]["resources"]["name.txt"] = name
        reply = await served.api.call("PUT", f"{RESOURCES}/{made['metadata']['name']}", resources)
        assert reply.code == 200, reply.body
        return reply.body

    await asyncio.gather(*(draft(name) for name in names))
    assert len(refs(edge)) == len(names)
    for name in names:
        files = tree(edge, f"drafts/{name}/packagevariant-1", name)
        assert files["name.txt"] == name
        assert f"name: {name}\n" in files["package-context.yaml"]
    listed = (await served.api.get(REVISIONS))["items"]
    drafts = [item for item in listed if item["spec"]["repository"] == "edge"]
    assert {item["status"]["conditions"][0]["status"] for item in drafts} == {"True"}
    assert all([*item["metadata"]["annotations"]] == [EDITED_BY] for item in drafts)
