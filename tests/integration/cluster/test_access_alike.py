"""Roles, bindings and reviews on the embedded API server are judged by a real one: equal answers."""

import asyncio
import base64
import json
import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml

from pvbus.controlplane.apiserver.server import ApiServer
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
NAMESPACES = ("alike-a", "alike-b")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "escalate", "bind", "*")
GROUPS = ("", "porch.kpt.dev", "config.porch.kpt.dev", GROUP, "*")
RESOURCES = (
    *("packagerevisions", "packagerevisions/approval", "packagerevisionresources", "packagevariants"),
    *("configmaps", "secrets", "roles", "clusterroles", "*/approval", "*/status", "*"),
)
NAMES = ("one", "two", "three")
URLS = ("/version", "/api/*", "/healthz", "/metrics*", "*")
SECONDS_MAX = 60.0


class Answer(NamedTuple):
    code: int
    body: Any


class Server:
    """One of the two API servers. Every request is an administrator's, in the name of others or not."""

    def __init__(self, session: aiohttp.ClientSession, url: str, **options: Any) -> None:
        self._session, self._url, self._options = session, url, options

    async def __call__(
        self, method: str, path: str, body: Any = None, user: str = "", groups: Sequence[str] = ()
    ) -> Answer:
        headers = [("Content-Type", "application/json")]
        headers += [("Impersonate-User", user)] if user else []
        headers += [("Impersonate-Group", group) for group in groups]
        text = None if body is None else json.dumps(body)
        async with self._session.request(
            method, self._url + path, data=text, headers=headers, **self._options
        ) as answer:
            return Answer(answer.status, await answer.json())


@pytest.fixture
async def servers(real_cluster: RealCluster) -> AsyncIterator[tuple[Server, Server]]:
    """The embedded server, and the real one."""
    embedded = ApiServer(None, tls=False)
    await embedded.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(embedded.stop)
        token = {"Authorization": f"Bearer {embedded.token}"}
        ours = await stack.enter_async_context(aiohttp.ClientSession(headers=token))
        theirs = await stack.enter_async_context(aiohttp.ClientSession())
        pair = (
            Server(ours, embedded.url),
            Server(theirs, real_cluster.url, ssl=_context(real_cluster.kubeconfig)),
        )
        for server in pair:
            for namespace in NAMESPACES:
                await server("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace",
                                                            "metadata": {"name": namespace}})  # fmt: skip
        yield pair


def _context(kubeconfig: Path) -> ssl.SSLContext:
    config = yaml.safe_load(kubeconfig.read_text())
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    user = config["users"][0]["user"]
    pair = kubeconfig.with_suffix(".both")
    pair.write_bytes(
        b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
    )
    context.load_cert_chain(pair)
    return context


class Maker:
    """Makes random roles, bindings and questions. Its names begin with its prefix."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.prefix = f"alike-{seed}"
        self.users = [f"{self.prefix}-u{n}" for n in range(3)]
        self.users += [f"system:serviceaccount:{NAMESPACES[0]}:{self.prefix}"]
        self.groups = [f"{self.prefix}-g{n}" for n in range(2)]
        self.roles = [f"{self.prefix}:r{n}" for n in range(4)]

    def some(self, values: Sequence[str], most: int = 2) -> list[str]:
        return self.random.sample(values, self.random.randint(1, most))

    def rule(self, *, cluster: bool) -> dict[str, Any]:
        if cluster and self.random.random() < 0.2:
            return {"verbs": self.some(("get", "post", "*")), "nonResourceURLs": self.some(URLS)}
        rule = {"verbs": self.some(VERBS, 3), "apiGroups": self.some(GROUPS)}
        rule["resources"] = self.some(RESOURCES)
        return {**rule, **({"resourceNames": self.some(NAMES)} if self.random.random() < 0.3 else {})}

    def role(self, name: str, namespace: str) -> dict[str, Any]:
        kind = "Role" if namespace else "ClusterRole"
        rules = [self.rule(cluster=not namespace) for _ in range(self.random.randint(1, 3))]
        metadata: dict[str, Any] = {"name": name}
        if not namespace and self.random.random() < 0.5:
            metadata["labels"] = {f"{self.prefix}/gathered": self.random.choice(("true", "false"))}
        return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata, "rules": rules}

    def gathering(self) -> dict[str, Any]:
        selector = {"matchLabels": {f"{self.prefix}/gathered": "true"}}
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": f"{self.prefix}:all"},
            "aggregationRule": {"clusterRoleSelectors": [selector]},
        }

    def subject(self) -> dict[str, Any]:
        match self.random.choice(("User", "Group", "ServiceAccount")):
            case "User":
                return {"kind": "User", "name": self.random.choice(self.users), "apiGroup": GROUP}
            case "Group":
                return {"kind": "Group", "name": self.random.choice(self.groups), "apiGroup": GROUP}
            case kind:
                return {"kind": kind, "name": self.prefix, "namespace": self.random.choice(NAMESPACES)}

    def binding(self, name: str, namespace: str) -> dict[str, Any]:
        kind = self.random.choice(("Role", "ClusterRole")) if namespace else "ClusterRole"
        role = self.random.choice(
            [*self.roles, f"{self.prefix}:all", f"{self.prefix}:missing", "system:basic-user"]
        )
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
            "subjects": [self.subject() for _ in range(self.random.randint(1, 2))],
        }

    def question(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"user": self.random.choice(self.users)}
        if self.random.random() < 0.5:
            spec["groups"] = self.some(self.groups)
        if self.random.random() < 0.15:
            path = self.random.choice(("/version", "/api/v1", "/api", "/metrics/a", "/healthz", "/other"))
            spec["nonResourceAttributes"] = {"path": path, "verb": self.random.choice(("get", "post"))}
            return spec
        resource, _, subresource = self.random.choice(RESOURCES[:8]).partition("/")
        spec["resourceAttributes"] = {
            "verb": self.random.choice(VERBS[:9]),
            "group": self.random.choice(GROUPS[:4]),
            "resource": resource,
            "subresource": self.random.choice((subresource, "status", "")),
            "namespace": self.random.choice((*NAMESPACES, "")),
            "name": self.random.choice((*NAMES, "", "")),
        }
        return spec


def _path(obj: Mapping[str, Any], namespace: str) -> str:
    plural = f"{obj['kind'].lower()}s"
    return f"{RBAC}/namespaces/{namespace}/{plural}" if namespace else f"{RBAC}/{plural}"


async def _make(servers: Sequence[Server], maker: Maker) -> None:
    objects: list[tuple[dict[str, Any], str]] = [(maker.gathering(), "")]
    for scope in ("", *NAMESPACES):
        objects += [(maker.role(name, scope), scope) for name in maker.roles]
        objects += [(maker.binding(f"{maker.prefix}:b{n}", scope), scope) for n in range(4)]
    for obj, namespace in objects:
        for server in servers:
            assert (await server("POST", _path(obj, namespace), obj)).code == 201, obj
    await _wait_for_rules(servers, f"{RBAC}/clusterroles/{maker.prefix}:all")


async def _wait_for_rules(servers: Sequence[Server], path: str) -> None:
    """Wait until both servers have gathered the same rules."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            found = [(await server("GET", path)).body.get("rules") for server in servers]
            if found[0] == found[1]:
                return
            await asyncio.sleep(0.2)


async def _clear(servers: Sequence[Server], maker: Maker) -> None:
    for server in servers:
        for scope in ("", *NAMESPACES):
            prefix = "" if scope else "Cluster"
            for kind in (f"{prefix}RoleBinding", f"{prefix}Role"):
                path = _path({"kind": kind}, scope)
                for item in (await server("GET", path)).body["items"]:
                    if item["metadata"]["name"].startswith(maker.prefix):
                        await server("DELETE", f"{path}/{item['metadata']['name']}")


def _judged(answer: Answer) -> Any:
    """Return what must be equal. Which of several rules permits a request is the servers' own choice."""
    status = answer.body.get("status")
    if answer.code != 201 or not isinstance(status, dict):
        return answer.code, answer.body.get("message")
    return answer.code, status["allowed"], "" if status["allowed"] else status.get("reason", "")


def _problems(reason: Any) -> Any:
    """The order of several problems is the servers' own, too."""
    *judged, text = reason
    if not isinstance(text, str):
        return reason
    return (*judged, sorted(text.removeprefix("RBAC: ").strip("[]").split(", ")))


@pytest.mark.parametrize("seed", range(4))
async def test_the_same_requests_are_permitted(servers: tuple[Server, Server], seed: int) -> None:
    """300 access reviews about random roles and bindings have the same answers."""
    maker = Maker(seed)
    await _make(servers, maker)
    allowed = 0
    try:
        for _ in range(300):
            spec = maker.question()
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
            ours, theirs = [_judged(await server("POST", REVIEWS, review)) for server in servers]
            if ours[:2] != theirs[:2]:  # the real server authorizes by a cache, which is late at times
                await asyncio.sleep(1.0)
                theirs = _judged(await servers[1]("POST", REVIEWS, review))
            assert _problems(ours) == _problems(theirs), spec
            allowed += ours[1] is True
    finally:
        await _clear(servers, maker)
    assert 5 < allowed < 295  # otherwise the questions prove little


@pytest.mark.parametrize("seed", range(100, 104))
async def test_the_same_grants_are_refused(servers: tuple[Server, Server], seed: int) -> None:
    """Users who may write roles and bindings may grant the same, and are refused in the same words."""
    maker = Maker(seed)
    await _make(servers, maker)
    writers = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{maker.prefix}:writers"},
        "rules": [{"verbs": ["create", "get", "update", "patch"], "apiGroups": [GROUP],
                   "resources": ["roles", "clusterroles", "rolebindings", "clusterrolebindings"]}],
    }  # fmt: skip
    everybody = [{"kind": "User", "name": user, "apiGroup": GROUP} for user in maker.users]
    bound = maker.binding(f"{maker.prefix}:writers", "")
    bound["roleRef"]["name"], bound["subjects"] = f"{maker.prefix}:writers", everybody
    codes: list[int] = []
    try:
        for server in servers:
            assert (await server("POST", _path(writers, ""), writers)).code == 201
            assert (await server("POST", _path(bound, ""), bound)).code == 201
        await asyncio.sleep(1.0)  # the real server's authorizer has a cache
        for number in range(60):
            codes.append(await _grant(servers, maker, number))
    finally:
        await _clear(servers, maker)
    assert {201, 403} <= set(codes)


async def _grant(servers: tuple[Server, Server], maker: Maker, number: int) -> int:
    """Let a random user write a random role or binding on both servers, and compare the answers."""
    scope = maker.random.choice(("", *NAMESPACES))
    name = f"{maker.prefix}:new{number}"
    if maker.random.random() < 0.5:
        obj = maker.role(name, scope)
    else:
        obj = maker.binding(name, scope)
    if maker.random.random() < 0.1 and obj["kind"] == "ClusterRole":
        obj |= {"aggregationRule": maker.gathering()["aggregationRule"], "rules": None}
    user, groups = maker.random.choice(maker.users), maker.random.choice(([], maker.groups[:1]))
    change = maker.random.random() < 0.3 and "rules" in obj
    method, path = ("PUT", f"{_path(obj, scope)}/{maker.roles[0]}") if change else ("POST", _path(obj, scope))
    if change:
        obj["metadata"]["name"] = maker.roles[0]
    answers = [await server(method, path, obj, user, groups) for server in servers]
    ours, theirs = [
        (answer.code, answer.body.get("message"), answer.body.get("details")) for answer in answers
    ]
    assert ours == theirs, (method, path, user, groups, obj)
    return 201 if ours[0] in (200, 201) else ours[0]
