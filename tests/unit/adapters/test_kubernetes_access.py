"""Which requests were refused, and whether one is allowed."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pvbus.adapters.kubernetes.access import is_allowed, request_of
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PvbusError
from pvbus.core.kernel.rights import Request
from tests.unit.adapters.http_servers import SITES, connected, serving, status, write_kubeconfig

GROUP = "example.org"
OBJECT = {"metadata": {"namespace": "n", "name": "a"}}

Call = Callable[[HttpCluster], Awaitable[Any]]


async def watch(cluster: HttpCluster) -> None:
    await anext(cluster.watch(SITES, "1"))


CALLS: list[tuple[Call, Request | None]] = [
    (lambda c: c.list(SITES), Request("list", GROUP, "sites")),
    (lambda c: c.list(SITES, "n"), Request("list", GROUP, "sites")),
    (watch, Request("watch", GROUP, "sites")),
    (lambda c: c.get(SITES, "n", "a"), Request("get", GROUP, "sites")),
    (lambda c: c.get(SITES._replace(group="", namespaced=False), "", "a"), Request("get", "", "sites")),
    (lambda c: c.create(SITES, OBJECT), Request("create", GROUP, "sites")),
    (lambda c: c.update(SITES, OBJECT), Request("update", GROUP, "sites")),
    (lambda c: c.update(SITES, OBJECT, subresource="status"), Request("update", GROUP, "sites/status")),
    (lambda c: c.patch(SITES, "n", "a", {}), Request("patch", GROUP, "sites")),
    (lambda c: c.delete(SITES, "n", "a"), Request("delete", GROUP, "sites")),
    (lambda c: c.server_version(), None),
]


@pytest.mark.parametrize("code", [403, 409])
@pytest.mark.parametrize(("call", "request_"), CALLS)
async def test_what_is_forbidden_is_noted_once_with_its_client(
    tmp_path: Path, call: Call, request_: Request | None, code: int
) -> None:
    """Other refusals, and those of discovery, say nothing about rights."""

    async def handle(request: web.Request) -> web.Response:
        return status(code, "Because")

    async with serving(handle) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        for _ in range(2):
            with pytest.raises(PvbusError):
                await call(cluster.named("pvbus-render"))
        noted = {("pvbus-render", request_)} if request_ and code == 403 else set()
        assert cluster.refusals.take() == noted
        assert cluster.refusals.take() == set()


@pytest.mark.parametrize(
    ("method", "path", "verb", "namespace"),
    [
        ("DELETE", "/apis/example.org/v1/namespaces/n/sites", "deletecollection", "n"),
        ("DELETE", "/apis/example.org/v1/namespaces/n/sites/a", "delete", "n"),
        ("HEAD", "/apis/example.org/v1/sites", "list", ""),
    ],
)
def test_the_verb_depends_on_whether_one_object_is_named(
    method: str, path: str, verb: str, namespace: str
) -> None:
    assert request_of(method, path, watches=False) == Request(verb, GROUP, "sites", namespace)


@pytest.mark.parametrize("allowed", [True, False])
async def test_an_access_review_asks_for_all_namespaces(tmp_path: Path, allowed: bool) -> None:
    """A right in one namespace is not enough for us."""
    asked = []

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.path, (await request.json())["spec"]))
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    async with serving(handle) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        assert await is_allowed(cluster, Request("update", GROUP, "sites/status")) == allowed
        assert (
            await is_allowed(cluster, Request("list", GROUP, "sites"), {"user": "u", "groups": []}) == allowed
        )
    (own, own_spec), (other, other_spec) = asked
    attributes = {"verb": "update", "group": GROUP, "resource": "sites", "subresource": "status"}
    assert (own, own_spec) == (
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"resourceAttributes": attributes},
    )
    assert other == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    assert (other_spec["user"], other_spec["resourceAttributes"]["verb"]) == ("u", "list")
