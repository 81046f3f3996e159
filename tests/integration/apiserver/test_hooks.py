"""Kinds with behaviour of their own, and the objects as hooks see them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import structlog

from pvbus.controlplane.apiserver.bodies import BODY_BYTES_MAX, PACKAGE_BODY_BYTES_MAX
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.ports.cluster import Kind, Object
from tests.integration.apiserver.client import CORE, WIDGETS, Api, config_map, crd, serving, widget

REVISION = Kind("porch.kpt.dev", "PackageRevision")
RESOURCES = Kind("porch.kpt.dev", "PackageRevisionResources")
CONFIG_MAP = Kind("", "ConfigMap")
PATH = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisions"
CONTENT = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisionresources"


def revision(package: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"namespace": "default"},
        "spec": {"packageName": package, "repository": "repo", "workspaceName": "v1", **spec},
    }


class Revisions:
    """Hooks that name objects, count what runs at once, and keep a diary."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.running = 0
        self.together = 0

    async def on_create(self, obj: Object, *, user: str) -> Object:
        name = f"repo.{obj['spec']['packageName']}.v1"
        self.diary.append(f"create {name}")
        return {**obj, "metadata": {**obj["metadata"], "name": name, "uid": f"uid-of-{name}"}}

    async def on_update(self, old: Object, new: Object, *, subresource: str, user: str) -> Object:
        self.running += 1
        self.together = max(self.together, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        self.diary.append(f"update {subresource or 'main'}")
        if subresource == "approval":
            return {**old, "spec": {**old["spec"], "lifecycle": new["spec"]["lifecycle"]}}
        if new["spec"]["lifecycle"] == "DeletionProposed":
            raise StatusError(422, "Invalid", "not so")
        return new

    async def on_delete(self, obj: Object, *, user: str) -> None:
        if obj["spec"].get("lifecycle") == "Published":
            raise StatusError(403, "Forbidden", "it is published")

    async def on_removed(self, obj: Object) -> None:
        self.diary.append(f"removed {obj['metadata']['name']}")


class Contents:
    """A kind that is made when asked for."""

    def __init__(self) -> None:
        self.files = {"Kptfile": "x"}

    def _object(self) -> Object:
        metadata = {"name": "repo.a.v1", "namespace": "default", "resourceVersion": "7"}
        spec = {"packageName": "a", "resources": dict(self.files)}
        return {
            "apiVersion": "porch.kpt.dev/v1alpha1",
            "kind": "PackageRevisionResources",
            "metadata": metadata,
            "spec": spec,
        }

    async def get(self, namespace: str, name: str) -> Object | None:
        return self._object() if name == "repo.a.v1" else None

    async def list(self, namespace: str | None) -> list[Object]:
        return [self._object()]

    async def update(self, obj: Object, *, user: str) -> Object:
        self.files = obj["spec"]["resources"]
        return self._object()


@pytest.fixture
def revisions() -> Revisions:
    return Revisions()


@pytest.fixture
async def server(revisions: Revisions) -> AsyncIterator[ApiServer]:
    server = ApiServer(None, tls=False)
    server.install_hooks(REVISION, revisions)
    server.install_virtual(RESOURCES, Contents())
    await server.start()
    yield server
    await server.stop()


async def test_a_hook_chooses_name_and_uid(api: Api, revisions: Revisions) -> None:
    """An object without a name is created under the one that the hook gives it; a second is refused."""
    created = await api.create(PATH, revision("a"))
    assert created["metadata"]["name"] == "repo.a.v1"
    assert created["metadata"]["uid"] == "uid-of-repo.a.v1"
    assert (await api.call("POST", PATH, revision("a"))).code == 409
    listed = await api.get(f"{PATH}?fieldSelector=spec.packageName%3Da")
    assert listed["items"] == [created]


async def test_a_hook_may_refuse_and_nothing_is_stored(api: Api) -> None:
    """Its status is the answer."""
    created = await api.create(PATH, revision("a", lifecycle="Draft"))
    changed = {**created, "spec": {**created["spec"], "lifecycle": "DeletionProposed"}}
    reply = await api.call("PUT", f"{PATH}/repo.a.v1", changed)
    assert (reply.code, reply.body["message"]) == (422, "not so")
    assert await api.get(f"{PATH}/repo.a.v1") == created


async def test_the_approval_subresource(api: Api, revisions: Revisions) -> None:
    """PUT and PATCH of /approval reach the hook as such; what it returns is stored."""
    created = await api.create(PATH, revision("a", lifecycle="Draft"))
    body = {**created, "spec": {**created["spec"], "lifecycle": "Proposed", "packageName": "other"}}
    approved = await api.call("PUT", f"{PATH}/repo.a.v1/approval", body)
    assert approved.body["spec"] == {**created["spec"], "lifecycle": "Proposed"}
    assert revisions.diary[-1] == "update approval"


async def test_one_object_is_never_in_two_hooks(api: Api, revisions: Revisions) -> None:
    """Ten updates of one object run one after the other, and each sees the one before."""
    await api.create(PATH, revision("a", lifecycle="Draft"))
    media = "application/merge-patch+json"
    async with asyncio.TaskGroup() as group:
        for number in range(10):
            patch = {"metadata": {"labels": {f"l{number}": "x"}}}
            group.create_task(api.call("PATCH", f"{PATH}/repo.a.v1", patch, media=media))
    assert revisions.together == 1
    assert len((await api.get(f"{PATH}/repo.a.v1"))["metadata"]["labels"]) == 10


async def test_deletion_goes_through_the_hooks(api: Api, revisions: Revisions) -> None:
    """on_delete may refuse; on_removed runs when the last finalizer goes, and only then."""
    await api.create(PATH, revision("p", lifecycle="Published"))
    assert (await api.call("DELETE", f"{PATH}/repo.p.v1")).code == 403
    held = revision("a", lifecycle="Draft")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(PATH, held)
    await api.delete(f"{PATH}/repo.a.v1")
    assert "removed repo.a.v1" not in revisions.diary
    await api.patch(f"{PATH}/repo.a.v1", {"metadata": {"finalizers": None}})
    assert revisions.diary[-1] == "removed repo.a.v1"
    assert await api.code(f"{PATH}/repo.a.v1") == 404


async def test_virtual_kinds(api: Api) -> None:
    """They can be read, listed, replaced and patched, and nothing else."""
    one = await api.get(f"{CONTENT}/repo.a.v1")
    assert (await api.get(CONTENT))["items"] == [one]
    one["spec"]["resources"]["README.md"] = "hello"
    put = await api.call("PUT", f"{CONTENT}/repo.a.v1", one)
    assert (put.code, put.body["spec"]["resources"]) == (200, {"Kptfile": "x", "README.md": "hello"})
    patched = await api.patch(f"{CONTENT}/repo.a.v1", {"spec": {"resources": {"README.md": None}}})
    assert patched["spec"]["resources"] == {"Kptfile": "x"}
    assert await api.code(f"{CONTENT}/other") == 404
    assert (await api.call("DELETE", f"{CONTENT}/repo.a.v1")).code == 405
    assert (await api.call("POST", CONTENT, one)).code == 405
    assert (await api.call("GET", f"{CONTENT}?watch=1")).code == 405


async def test_packages_may_be_larger_than_other_objects(api: Api) -> None:
    """Up to 6 MiB for PackageRevisionResources."""
    one = await api.get(f"{CONTENT}/repo.a.v1")
    one["spec"]["resources"]["large"] = "x" * (BODY_BYTES_MAX + 1000)
    assert (await api.call("PUT", f"{CONTENT}/repo.a.v1", one)).code == 200
    one["spec"]["resources"]["large"] = "x" * PACKAGE_BODY_BYTES_MAX
    reply = await api.call("PUT", f"{CONTENT}/repo.a.v1", one)
    assert reply.code == 413
    assert str(PACKAGE_BODY_BYTES_MAX) in reply.body["message"]


async def test_custom_kinds_with_hooks_are_checked_first(revisions: Revisions) -> None:
    """Nothing with a bad name, or none, reaches the hook."""
    server = ApiServer(None, crds=[crd()], tls=False)
    server.install_hooks(Kind("example.com", "Widget"), revisions)
    async with serving(server) as api:
        for body in (widget("Bad"), widget(), widget("a", size="x")):
            assert (await api.call("POST", WIDGETS, body)).code == 422
    assert revisions.diary == []


async def test_objects_are_put_past_hooks_and_checks(
    api: Api, server: ApiServer, revisions: Revisions
) -> None:
    """Objects.put keeps identity and writes nothing that is equal; remove ignores finalizers."""
    obj = revision("a")
    obj["metadata"] = {"name": "a", "namespace": "default", "uid": "u", "finalizers": ["example.com/x"]}
    first = await server.objects.put(REVISION, obj)
    assert first["metadata"]["uid"] == "u"
    again = await server.objects.put(REVISION, {**obj, "metadata": {**obj["metadata"], "uid": "v"}})
    assert again == first
    changed = await server.objects.put(REVISION, {**first, "spec": {**first["spec"], "lifecycle": "Draft"}})
    assert changed["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert await api.get(f"{PATH}/a") == changed == server.objects.get(REVISION, "default", "a")
    await server.objects.remove(REVISION, "default", "a")
    assert server.objects.list(REVISION) == []
    assert revisions.diary == []


async def test_a_change_builds_on_writes_that_are_not_durable_yet(server: ApiServer) -> None:
    """Two that change different things of one object at once lose nothing of each other."""

    def labelled(name: str) -> Callable[[Object], Object]:
        def change(obj: Object) -> Object:
            labels = {**(obj["metadata"].get("labels") or {}), name: "yes"}
            return {**obj, "metadata": {**obj["metadata"], "labels": labels}}

        return change

    location = (CONFIG_MAP, "default", "a")
    assert await server.objects.change(*location, labelled("none")) is None
    await server.objects.put(CONFIG_MAP, config_map("a", namespace="default"))
    first = asyncio.create_task(server.objects.change(*location, labelled("first")))
    await asyncio.sleep(0)
    second = await server.objects.change(*location, labelled("second"))
    assert second is not None
    await first
    assert second == server.objects.get(*location)
    assert second["metadata"]["labels"] == {"first": "yes", "second": "yes"}


async def test_objects_can_be_watched_from_inside(api: Api, server: ApiServer) -> None:
    """Present objects, a bookmark, then changes, whoever made them."""
    maps = f"{CORE}/namespaces/default/configmaps"
    await api.create(maps, config_map("a"))
    events = server.objects.watch(CONFIG_MAP)
    seen = [await anext(events), await anext(events)]
    await api.create(maps, config_map("b"))
    await api.delete(f"{maps}/a")
    seen += [await anext(events), await anext(events)]
    named = [(event.type, event.object["metadata"].get("name")) for event in seen]
    assert named == [("ADDED", "a"), ("BOOKMARK", None), ("ADDED", "b"), ("DELETED", "a")]


async def test_a_failure_of_a_hook_is_an_internal_error(
    api: Api, server: ApiServer, revisions: Revisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 as a Status, logged with where it happened and without the token; the server goes on."""

    async def broken(obj: Object, *, user: str) -> Object:
        raise RuntimeError("a bug")

    monkeypatch.setattr(revisions, "on_create", broken)
    with structlog.testing.capture_logs() as logs:
        reply = await api.call("POST", PATH, revision("a"))
    assert (reply.code, reply.body["reason"]) == (500, "InternalError")
    (failure,) = [line for line in logs if line["event"] == "request failed"]
    assert "a bug" in failure["trace"]
    assert server.token not in str(logs)
    assert await api.code(PATH) == 200


async def test_stopping_ends_open_watches() -> None:
    """A server with a watcher stops at once."""
    server = ApiServer(None, tls=False)
    await server.start()
    headers = {"Authorization": f"Bearer {server.token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        Api(session, server.url).watch(f"{CORE}/configmaps?watch=1"),
        asyncio.timeout(10),
    ):
        await server.stop()
