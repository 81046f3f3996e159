"""Admission of PackageInstalls on the embedded API server, by what its requests answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from pvbus.controlplane.apiserver.rbac.users import Account, UserFile, digest_of
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.packages.install_hooks import PACKAGE_INSTALL, PackageInstallHooks
from pvbus.core.platform.packaging.reading import OWNER
from tests.integration.apiserver.client import Api

INSTALLS = "/apis/packaging.carvel.dev/v1alpha1/namespaces/{}/packageinstalls"
PACKAGES = "/apis/data.packaging.carvel.dev/v1alpha1/namespaces/default/packages"
JANE = "Bearer token-jane"


def _definition(group: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    definitions = [
        _definition("packaging.carvel.dev", "PackageInstall"),
        _definition("data.packaging.carvel.dev", "Package"),
    ]
    server = ApiServer(None, crds=definitions, tls=False)
    server.install_hooks(PACKAGE_INSTALL, PackageInstallHooks(server.objects))
    await server.start()
    jane = Account(name="jane", digest=digest_of("token-jane"), groups=("system:masters",))
    users = UserFile(server.kubeconfig_path.parent / "apiserver")
    users.change(lambda accounts: accounts.update(jane=jane))
    yield server
    await server.stop()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    headers = {"Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        api = Api(session, server.url)
        async with asyncio.timeout(10):
            while True:
                if (await api.call("GET", INSTALLS.format("default"), token=JANE)).code == 200:
                    break
                await asyncio.sleep(0.02)
        yield api


def _package(installation: str) -> dict[str, Any]:
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": "db.test.dev.1.0.0"},
        "spec": {"refName": "db.test.dev", "version": "1.0.0", "installationType": installation},
    }


def _install(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": name, **metadata},
        "spec": {"packageRef": {"refName": "db.test.dev"}},
    }


@pytest.mark.parametrize("installation", ["onePerNamespace", "OnePerCluster"])
async def test_a_second_install_is_refused_with_the_name_of_the_first(api: Api, installation: str) -> None:
    """Of ten at once one is admitted; after it is gone another one is."""
    await api.create(PACKAGES, _package(installation))
    path = INSTALLS.format("default")
    replies = await asyncio.gather(
        *(api.call("POST", path, _install(f"db-{i}"), token=JANE) for i in range(10))
    )
    admitted = [each.body["metadata"]["name"] for each in replies if each.code == 201]
    assert len(admitted) == 1
    refused = [each for each in replies if each.code != 201]
    assert {each.code for each in refused} == {403}
    assert f"default/{admitted[0]} is there" in refused[0].body["message"]
    assert (await api.call("DELETE", f"{path}/{admitted[0]}")).code == 200
    assert (await api.call("POST", path, _install("db-next"))).code == 201


async def test_an_install_may_not_become_a_second_one(api: Api) -> None:
    """Its packageRef may change to what is free only; other changes are not looked at."""
    await api.create(PACKAGES, _package("onePerNamespace"))
    path = INSTALLS.format("default")
    await api.create(path, _install("first"))
    other = _install("second")
    other["spec"]["packageRef"]["refName"] = "other.test.dev"
    await api.create(path, other)
    change = {"spec": {"packageRef": {"refName": "db.test.dev"}}}
    media = "application/merge-patch+json"
    assert (await api.call("PATCH", f"{path}/second", change, media=media)).code == 403
    paused = {"spec": {"paused": True}}
    assert (await api.call("PATCH", f"{path}/first", paused, media=media)).code == 200


async def test_what_pvbus_created_is_not_for_others_to_change(api: Api) -> None:
    """The holder of the server's token, as pvbus's services are, may; another user may take it over first."""
    path = INSTALLS.format("default")
    media = "application/merge-patch+json"
    owned = _install("made", annotations={OWNER: "PackageInstall/app"})
    assert (await api.call("POST", path, owned, token=JANE)).code == 403
    await api.create(path, owned)
    change = {"spec": {"paused": True}}
    refused = await api.call("PATCH", f"{path}/made", change, media=media, token=JANE)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert "it was created for PackageInstall/app" in refused.body["message"]
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert (await api.call("PATCH", f"{path}/made", labels, media=media, token=JANE)).code == 200
    status = {"status": {"version": "1.0.0"}}
    assert (await api.call("PATCH", f"{path}/made/status", status, media=media, token=JANE)).code == 200
    assert (await api.call("PATCH", f"{path}/made", change, media=media)).code == 200
    free = {"metadata": {"annotations": {OWNER: None}}}
    assert (await api.call("PATCH", f"{path}/made", free, media=media, token=JANE)).code == 200
    change = {"spec": {"paused": False}}
    assert (await api.call("PATCH", f"{path}/made", change, media=media, token=JANE)).code == 200
