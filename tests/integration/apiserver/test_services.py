"""The services as users of the embedded server: each may do what `pvbus.core.kernel.rights` says, no more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.controlplane.apiserver.rbac.access import AccessControl
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.core.api.crds import crds
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.rights import (
    OBSERVED_VERBS,
    PROMOTION_KINDS,
    SERVICE_RIGHTS,
    Request,
    requests_of,
    rights_of,
)
from pvbus.ports.cluster import Kind
from tests.integration.apiserver.client import CORE, Api, serving
from tests.kit.cluster import resource_of

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
VARIANTS = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/default/packagevariants"
SECRETS = Request("list", "", "secrets")
BEYOND = (
    SECRETS,
    Request("create", "", "secrets"),
    Request("delete", "", "namespaces"),
    Request("update", "rbac.authorization.k8s.io", "clusterroles"),
    Request("impersonate", "", "users"),
    Request("update", "config.porch.kpt.dev", "repositories"),
)


@asynccontextmanager
async def served(data: Path, namespaces: Sequence[str] = ()) -> AsyncIterator[tuple[ApiServer, Api]]:
    server = ApiServer(data, crds=crds(), tls=False, namespaces=namespaces)
    async with serving(server) as api:
        yield server, api


def headers_of(data: Path) -> dict[str, str]:
    """Return the Authorization header of each service, from the kubeconfig of the services."""
    config = yaml.safe_load((data / "services.kubeconfig").read_text())
    assert [context["name"] for context in config["contexts"]] == [f"pvbus-{name}" for name in SERVICE_RIGHTS]
    tokens = {user["name"]: user["user"]["token"] for user in config["users"]}
    return {name: f"Bearer {tokens[f'pvbus-{name}']}" for name in SERVICE_RIGHTS}


async def may(api: Api, token: str, request: Request) -> bool:
    plural, _, subresource = request.resource.partition("/")
    given = request._replace(resource=plural)._asdict() | {"subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": given},
    }
    reply = await api.call("POST", REVIEWS, review, token=token)
    assert reply.code == 201, reply.body
    return bool(reply.body["status"]["allowed"])


async def permitted(api: Api, token: str, asked: set[Request]) -> set[Request]:
    return {request for request in asked if await may(api, token, request)}


def wanted(service: str, asked: set[Request], namespace: str = "") -> set[Request]:
    """Return which of these requests the rights permit. By default ingest and rollout read every kind."""
    rights = rights_of(service, namespaced=bool(namespace))
    own = {request for right in rights for request in requests_of(right, (namespace,) if namespace else ())}
    if service in ("ingest", "rollout"):
        own |= {each for each in asked if each.verb in OBSERVED_VERBS and each.namespace == namespace}
    return own & asked


ALL = {each for rights in SERVICE_RIGHTS.values() for right in rights for each in requests_of(right)}
ASKED = ALL | set(BEYOND)


async def test_each_service_has_its_rights_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first request on: also with a collector of roles that never runs."""
    monkeypatch.setattr(AccessControl, "run", lambda self: asyncio.Event().wait())
    async with served(tmp_path) as (_, api):
        for service, token in headers_of(tmp_path).items():
            assert await permitted(api, token, ASKED) == wanted(service, ASKED), service
            reads_all = service in ("ingest", "rollout")
            assert await permitted(api, token, {SECRETS}) == ({SECRETS} if reads_all else set())


async def test_a_request_beyond_the_role_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Promote may not write variants; render may, and the object tells who did."""
    body: Any = {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blueprints", "package": "app", "revision": 1},
            "downstream": {"repo": "deploy", "package": "app"},
        },
    }
    async with served(tmp_path) as (_, api):
        tokens = headers_of(tmp_path)
        refused = await api.call("POST", VARIANTS, body, token=tokens["promote"])
        assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
        account = "system:serviceaccount:pvbus-system:pvbus-promote"
        assert f'User "{account}" cannot create resource "packagevariants"' in refused.body["message"]
        assert (await api.get(VARIANTS))["items"] == []
        assert (await api.call("POST", VARIANTS, body, token=tokens["render"])).code == 201
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        who = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        found = (await api.call("POST", who, review, token=tokens["render"])).body["status"]["userInfo"]
        assert found["username"] == "system:serviceaccount:pvbus-system:pvbus-render"
        assert "system:serviceaccounts:pvbus-system" in found["groups"]
        assert "system:masters" not in found["groups"]


async def test_limited_to_namespaces_the_rights_hold_only_there(tmp_path: Path) -> None:
    """Also in a namespace that does not exist yet; without the setting they hold everywhere again."""
    for namespaces, where in (((), ""), (("team-a",), "team-a"), ((), "")):
        async with served(tmp_path, namespaces) as (_, api):
            tokens = headers_of(tmp_path)
            assert await may(api, tokens["ingest"], SECRETS) is not bool(namespaces)
            asked = {each._replace(namespace=name) for each in ASKED for name in (where, "default")}
            for service in ("ingest", "render", "release"):
                expected = wanted(service, {each for each in asked if each.namespace == where}, where)
                if not namespaces:
                    expected |= {each for each in asked if each._replace(namespace="") in expected}
                assert await permitted(api, tokens[service], asked) == expected, service


async def test_a_restart_keeps_tokens_and_makes_the_roles_of_another_version_exact(tmp_path: Path) -> None:
    """What an older version granted and this one does not is gone; what it lacked is there. What people
    bound beside it stays, and a pinned role is theirs."""
    pinned = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}}
    too_much = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    ann = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    binding = f"{RBAC}/clusterrolebindings/pvbus-render"
    async with served(tmp_path) as (_, api):
        before = headers_of(tmp_path)
        assert (
            len({*before.values(), f"Bearer {(tmp_path / 'apiserver/token').read_text()}"})
            == len(SERVICE_RIGHTS) + 1
        )
        await api.patch(f"{RBAC}/clusterroles/pvbus-render", {"rules": [too_much]})
        await api.patch(f"{RBAC}/clusterroles/pvbus-observes-all", {**pinned, "rules": []})
        subjects = (await api.get(binding))["subjects"]
        await api.patch(binding, {"subjects": [ann, *subjects]})
        for name in ("clusterroles/pvbus-observes-promotion", "clusterrolebindings/pvbus-inject"):
            await api.delete(f"{RBAC}/{name}")
        assert await may(api, before["render"], SECRETS)
    (tmp_path / "services.kubeconfig").unlink()  # as the version before left the folder
    async with served(tmp_path) as (_, api):
        assert headers_of(tmp_path) == before
        for service in ("render", "inject"):
            assert await permitted(api, before[service], ASKED) == wanted(service, ASKED)
        assert (await api.get(binding))["subjects"] == [ann, *subjects]
        promotion = {request for right in PROMOTION_KINDS for request in requests_of(right)}
        assert await permitted(api, before["ingest"], {SECRETS, *promotion}) == promotion
        version = (await api.get(binding))["metadata"]["resourceVersion"]
    async with served(tmp_path) as (_, api):
        assert (await api.get(binding))["metadata"]["resourceVersion"] == version


async def test_the_tokens_of_the_services_end_with_that_of_the_folder(tmp_path: Path) -> None:
    """Who takes the administrator's token away takes theirs, too."""
    async with served(tmp_path) as (_, api):
        before = headers_of(tmp_path)
    (tmp_path / "apiserver" / "token").unlink()
    async with served(tmp_path) as (_, api):
        assert (await api.call("GET", VARIANTS, token=before["render"])).code == 401
        assert (await api.call("GET", VARIANTS, token=headers_of(tmp_path)["render"])).code == 200


@pytest.mark.parametrize("path", [f"{CORE}/secrets", f"{RBAC}/clusterroles", f"{CORE}/namespaces"])
async def test_unroll_may_do_nothing_but_discovery(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as (_, api):
        token = headers_of(tmp_path)["unroll"]
        assert (await api.call("GET", path, token=token)).code == 403
        assert (await api.call("GET", "/apis", token=token)).code == 200


async def test_each_service_can_get_a_kubeconfig_of_its_own(tmp_path: Path) -> None:
    """It has that account alone, for its owner only; one that asks for nothing gets none."""
    accounts = tmp_path / "accounts"
    server = ApiServer(tmp_path / "data", tls=False, accounts=accounts)
    await server.start()
    try:
        expected = headers_of(tmp_path / "data")
        assert sorted(path.name for path in accounts.iterdir()) == sorted(set(SERVICE_RIGHTS) - {"unroll"})
        for folder in accounts.iterdir():
            (file,) = folder.iterdir()
            config = yaml.safe_load(file.read_text())
            (user,) = config["users"]
            assert config["current-context"] == user["name"] == f"pvbus-{folder.name}"
            assert f"Bearer {user['user']['token']}" == expected[folder.name]
            assert file.stat().st_mode & 0o077 == 0
            assert server.token not in file.read_text()
    finally:
        await server.stop()


async def test_accounts_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "accounts").write_text("no folder")
    server = ApiServer(tmp_path / "data", tls=False, accounts=tmp_path / "accounts")
    with pytest.raises(PermanentError, match=r"ingest cannot be used .*--accounts"):
        await server.start()


async def test_services_in_one_process_are_different_users(tmp_path: Path) -> None:
    """They share connections, and neither rights nor the process's own."""
    async with served(tmp_path) as (server, _):
        cluster = await HttpCluster.connect(server.kubeconfig_path)
        try:
            users = yaml.safe_load((tmp_path / "services.kubeconfig").read_text())["users"]
            tokens = {user["name"]: user["user"]["token"] for user in users}
            variants, secrets = Kind("config.porch.kpt.dev", "PackageVariant"), Kind("", "Secret")
            for agent, kind, is_permitted in (
                ("pvbus-render", variants, True),
                ("pvbus-render", secrets, False),
                ("pvbus-unroll", variants, False),
                ("pvbus-ingest", secrets, True),
            ):
                named = cluster.named(agent, token=tokens[agent])
                resource = await resource_of(named, kind)
                with contextlib.nullcontext() if is_permitted else pytest.raises(PermanentError) as refused:
                    await named.list(resource)
                assert refused is None or refused.value.reason == "Forbidden"
                assert len((await cluster.list(resource)).items) == 0
        finally:
            await cluster.close()
