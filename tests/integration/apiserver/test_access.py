"""Users, roles and reviews of the embedded server, by what its requests answer."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pvbus.controlplane.apiserver.rbac.users import Account, Grant, UserFile, digest_of
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.client import ALL_WIDGETS, CORE, WIDGETS, Api, Reply, crd, serving, widget

RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
AUTHENTICATION = "/apis/authentication.k8s.io/v1"
CONFIG_MAPS = f"{CORE}/namespaces/default/configmaps"
NOTICED_SECONDS = 10.0


def _users(server: ApiServer) -> UserFile:
    return UserFile(server.kubeconfig_path.parent / "apiserver")


def _add(server: ApiServer, name: str, role: str = "", *namespaces: str, group: str = "") -> str:
    """Add a user, and return the header that authenticates him."""
    grants = (Grant(role=role, namespaces=namespaces),) if role else ()
    account = Account(
        name=name, digest=digest_of(f"token-{name}"), grants=grants, groups=(group,) if group else ()
    )
    _users(server).change(lambda users: users.update({name: account}))
    return f"Bearer token-{name}"


async def _until(api: Api, path: str, code: int, token: str) -> None:
    async with asyncio.timeout(NOTICED_SECONDS):
        while True:
            if (await api.call("GET", path, token=token)).code == code:
                return
            await asyncio.sleep(0.02)


def _role(name: str, *rules: Mapping[str, Any], kind: str = "Role", **metadata: Any) -> Any:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "rules": list(rules),
    }


def _rule(verbs: str, group: str, resources: str) -> dict[str, list[str]]:
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split()}


def _bound(name: str, role: str, user: str, kind: str = "RoleBinding", role_kind: str = "Role") -> Any:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"kind": role_kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    }


async def _as(api: Api, user: str, method: str, path: str, body: Any = None, *groups: str) -> Reply:
    """Send a request of the administrator in the name of somebody else."""
    headers = [("Impersonate-User", user), ("Content-Type", "application/json")]
    headers += [("Impersonate-Group", group) for group in groups]
    async with api._session.request(
        method, api.url + path, data=json.dumps(body) if body is not None else None, headers=headers
    ) as answer:
        return Reply(answer.status, await answer.json(), answer.headers, ())


async def test_a_user_has_the_rights_of_his_role_and_no_others(server: ApiServer, api: Api) -> None:
    """A viewer reads; what he may not do is refused in Kubernetes' words, with who and what."""
    ann = _add(server, "ann", "viewer")
    assert (await api.call("GET", CONFIG_MAPS, token=ann)).code == 200
    refused = await api.call("GET", f"{CORE}/namespaces/default/secrets", token=ann)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert refused.body["message"] == (
        'secrets is forbidden: User "ann" cannot list resource "secrets" in API group "" in the namespace '
        '"default"'
    )
    path = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisions/x/approval"
    refused = await api.call("PATCH", path, {}, media="application/merge-patch+json", token=ann)
    assert refused.body["message"] == (
        'packagerevisions.porch.kpt.dev "x" is forbidden: User "ann" cannot patch resource '
        '"packagerevisions/approval" in API group "porch.kpt.dev" in the namespace "default"'
    )
    refused = await api.call("GET", ALL_WIDGETS, token=ann)
    assert refused.body["message"] == (
        'widgets.example.com is forbidden: User "ann" cannot list resource "widgets" in API group '
        '"example.com" at the cluster scope'
    )
    refused = await api.call("POST", "/version", {}, token=ann)
    assert refused.body["message"] == 'forbidden: User "ann" cannot post path "/version"'


async def test_a_role_in_a_namespace_holds_only_there(server: ApiServer, api: Api) -> None:
    """An admin of one namespace reads its Secrets, and no others."""
    ann = _add(server, "ann", "admin", "default")
    assert (await api.call("GET", f"{CORE}/namespaces/default/secrets", token=ann)).code == 200
    assert (await api.call("GET", f"{CORE}/namespaces/kube-system/secrets", token=ann)).code == 403
    assert (await api.call("GET", f"{CORE}/secrets", token=ann)).code == 403


async def test_an_apply_that_creates_takes_the_right_to_create(server: ApiServer, api: Api) -> None:
    """Who may only patch can change what is there; else apply would be a way around the right to create."""
    role = _role("patcher", _rule("get patch", "", "configmaps"), kind="ClusterRole")
    assert (await api.call("POST", f"{RBAC}/clusterroles", role)).code == 201
    binding = _bound("patcher", "patcher", "ann", "ClusterRoleBinding", "ClusterRole")
    assert (await api.call("POST", f"{RBAC}/clusterrolebindings", binding)).code == 201
    ann = _add(server, "ann")
    config: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}

    async def apply(token: str | None = None) -> Reply:
        path = f"{CONFIG_MAPS}/a?fieldManager=ann&force=true"
        return await api.call("PATCH", path, config, media="application/apply-patch+yaml", token=token)

    refused = await apply(ann)
    assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
    assert 'cannot create resource "configmaps"' in refused.body["message"]
    assert (await apply()).code == 201
    config["data"] = {"x": "1"}
    assert (await apply(ann)).code == 200


async def test_a_running_server_notices_every_change_of_its_users(server: ApiServer, api: Api) -> None:
    """A new user is let in at once; another role, another token and removal count soon."""
    ann = _add(server, "ann")
    assert (await api.call("GET", CONFIG_MAPS, token=ann)).code == 403
    _add(server, "ann", "viewer")
    await _until(api, CONFIG_MAPS, 200, ann)
    file = _users(server)
    renewed = Account(name="ann", digest=digest_of("other"), grants=(Grant(role="viewer"),))
    file.change(lambda users: users.update(ann=renewed))
    assert (await api.call("GET", CONFIG_MAPS, token="Bearer other")).code == 200
    await _until(api, CONFIG_MAPS, 401, ann)
    file.change(lambda users: users.clear())
    await _until(api, CONFIG_MAPS, 401, "Bearer other")
    assert (await api.call("GET", CONFIG_MAPS)).code == 200


async def test_a_damaged_file_keeps_its_users_out_and_the_admin_in(server: ApiServer, api: Api) -> None:
    """The admin can repair it; nobody gets rights from half a file."""
    ann = _add(server, "ann", "admin")
    assert (await api.call("GET", CONFIG_MAPS, token=ann)).code == 200
    good = _users(server).path.read_bytes()
    _users(server).path.write_bytes(good[: len(good) // 2])
    await _until(api, CONFIG_MAPS, 401, ann)
    assert (await api.call("GET", CONFIG_MAPS)).code == 200
    _users(server).path.write_bytes(good)
    await _until(api, CONFIG_MAPS, 200, ann)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic token-ann", "Bearer x"])
async def test_nobody_gets_in_without_a_known_token(server: ApiServer, api: Api, header: str) -> None:
    """Also not with a token in another form."""
    _add(server, "ann", "admin")
    assert (await api.call("GET", CONFIG_MAPS, token=header)).code == 401


async def test_bindings_count_as_soon_as_they_are_answered(server: ApiServer, api: Api) -> None:
    """Grant, change and withdrawal of a right each hold for the next request."""
    ann = _add(server, "ann", group="readers")
    roles, bindings = f"{RBAC}/namespaces/default/roles", f"{RBAC}/namespaces/default/rolebindings"
    assert (
        await api.call("POST", roles, _role("widgets", _rule("list", "example.com", "widgets")))
    ).code == 201
    for _ in range(20):
        assert (await api.call("GET", WIDGETS, token=ann)).code == 403
        assert (await api.call("POST", bindings, _bound("ann", "widgets", "ann"))).code == 201
        assert (await api.call("GET", WIDGETS, token=ann)).code == 200
        assert (await api.call("DELETE", f"{bindings}/ann")).code == 200
    assert (await api.call("GET", WIDGETS, token=ann)).code == 403


async def test_a_user_grants_only_what_he_has(server: ApiServer, api: Api) -> None:
    """Neither by a role nor by a binding, also not by changing one, unless he may escalate or bind."""
    ann = _add(server, "ann", "admin", "default")
    roles, bindings = f"{RBAC}/namespaces/default/roles", f"{RBAC}/namespaces/default/rolebindings"
    own = _role("own", _rule("get", "", "secrets"))
    assert (await api.call("POST", roles, own, token=ann)).code == 201
    wanted = _role("more", _rule("get list", "example.com", "widgets"))
    refused = await api.call("POST", roles, wanted, token=ann)
    assert refused.code == 403
    assert refused.body["message"] == (
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "ann" (groups=["system:authenticated"]) '
        'is attempting to grant RBAC permissions not currently held:\n{APIGroups:["example.com"], '
        'Resources:["widgets"], Verbs:["get" "list"]}'
    )
    patch = {"rules": wanted["rules"]}
    media = "application/merge-patch+json"
    assert (await api.call("PATCH", f"{roles}/own", patch, media=media, token=ann)).code == 403
    bound = _bound("ann", "cluster-admin", "ann", role_kind="ClusterRole")
    assert (await api.call("POST", bindings, bound, token=ann)).code == 403
    may = _role("may", _rule("bind", GROUP, "clusterroles"), _rule("escalate", GROUP, "roles"))
    assert (await api.call("POST", roles, may)).code == 201
    assert (await api.call("POST", bindings, _bound("may", "may", "ann"))).code == 201
    assert (await api.call("POST", roles, wanted, token=ann)).code == 201
    assert (await api.call("POST", bindings, bound, token=ann)).code == 201


async def test_a_dry_run_refuses_what_the_write_would(server: ApiServer, api: Api) -> None:
    """Otherwise it would promise what the server refuses."""
    ann = _add(server, "ann", "admin", "default")
    path = f"{RBAC}/namespaces/default/roles?dryRun=All"
    assert (await api.call("POST", path, _role("more", _rule("*", "*", "*")), token=ann)).code == 403


async def test_a_cluster_role_gathers_the_rules_of_others(server: ApiServer, api: Api) -> None:
    """Rules come and go with the labelled roles; ann's rights follow."""
    ann = _add(server, "ann")
    path = f"{RBAC}/clusterroles"
    gathering = _role("all", kind="ClusterRole")
    gathering["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {"of": "all"}}]}
    assert (await api.call("POST", path, gathering)).code == 201
    bound = _bound("ann", "all", "ann", "ClusterRoleBinding", "ClusterRole")
    assert (await api.call("POST", f"{RBAC}/clusterrolebindings", bound)).code == 201
    one = _role("one", _rule("list", "example.com", "widgets"), kind="ClusterRole", labels={"of": "all"})
    assert (await api.call("POST", path, one)).code == 201
    await _until(api, WIDGETS, 200, ann)
    assert (await api.call("DELETE", f"{path}/one")).code == 200
    await _until(api, WIDGETS, 403, ann)


async def test_a_selector_of_cluster_roles_is_checked_as_a_list_is(server: ApiServer, api: Api) -> None:
    """A selector that no label can fulfil would gather nothing, without a word."""
    gathering = _role("all", kind="ClusterRole")
    selectors = [
        {"matchLabels": {"a b": "c"}},
        {"matchExpressions": [{"key": "a", "operator": "Is"}, {"key": "a", "operator": "In"}]},
    ]
    gathering["aggregationRule"] = {"clusterRoleSelectors": selectors}
    answer = await api.call("POST", f"{RBAC}/clusterroles", gathering)
    field = "aggregationRule.clusterRoleSelectors"
    assert answer.code == 422
    assert [(cause["field"], cause["reason"]) for cause in answer.body["details"]["causes"]] == [
        (f"{field}[0].matchLabels", "FieldValueInvalid"),
        (f"{field}[1].matchExpressions[0].operator", "FieldValueInvalid"),
        (f"{field}[1].matchExpressions[1].values", "FieldValueRequired"),
    ]


async def test_only_who_may_impersonate_acts_in_other_names(server: ApiServer, api: Api) -> None:
    """The administrator may; a viewer may not; groups need a user."""
    _add(server, "ann", "viewer")
    assert (await _as(api, "ann", "GET", CONFIG_MAPS)).code == 200
    assert (await _as(api, "bob", "GET", CONFIG_MAPS)).code == 403
    assert (await _as(api, "bob", "GET", CONFIG_MAPS, None, "system:masters")).code == 200
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer token-ann"}) as session:
        refused = await _as(Api(session, server.url), "bob", "GET", CONFIG_MAPS)
        assert refused.body["message"] == (
            'users "bob" is forbidden: User "ann" cannot impersonate resource "users" in API group "" at the '
            "cluster scope"
        )
    async with api._session.get(api.url + CONFIG_MAPS, headers={"Impersonate-Group": "x"}) as answer:
        assert answer.status == 400


async def test_who_am_i(server: ApiServer, api: Api) -> None:
    """Users, the administrator and impersonated accounts are told their names and groups."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = f"{AUTHENTICATION}/selfsubjectreviews"
    ann = _add(server, "ann", group="readers")
    found = (await api.call("POST", path, review, token=ann)).body["status"]["userInfo"]
    assert found == {"username": "ann", "groups": ["readers", "system:authenticated"]}
    found = (await api.call("POST", path, review)).body["status"]["userInfo"]
    assert found["username"] == "pvbus-admin"
    found = (await _as(api, "system:serviceaccount:a:b", "POST", path, review)).body["status"]["userInfo"]
    assert found["groups"] == ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]


async def test_reviews_tell_the_truth(server: ApiServer, api: Api) -> None:
    """Own rights, those of others, all of them, in one namespace, and whose a token is."""
    ann = _add(server, "ann", "viewer", "default")
    asked = {"verb": "get", "resource": "configmaps", "namespace": "default"}

    def review(kind: str, **spec: Any) -> Any:
        return {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}

    path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
    own = review("SelfSubjectAccessReview", resourceAttributes=asked)
    assert (await api.call("POST", path, own, token=ann)).body["status"]["allowed"] is True
    own = review("SelfSubjectAccessReview", resourceAttributes={**asked, "verb": "delete"})
    assert (await api.call("POST", path, own, token=ann)).body["status"] == {"allowed": False}
    other = review("SubjectAccessReview", resourceAttributes=asked, user="ann")
    path = f"{AUTHORIZATION}/subjectaccessreviews"
    assert (await api.call("POST", path, other, token=ann)).code == 403
    answer = (await api.call("POST", path, other)).body["status"]
    assert answer == {"allowed": True, "reason": 'RBAC: allowed by role "viewer" of user "ann" (pvbus user)'}
    local = review("LocalSubjectAccessReview", resourceAttributes={**asked, "namespace": "x"}, user="ann")
    path = f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews"
    assert (await api.call("POST", path, local)).code == 422
    rules = review("SelfSubjectRulesReview", namespace="default")
    listed = (await api.call("POST", f"{AUTHORIZATION}/selfsubjectrulesreviews", rules, token=ann)).body
    resources = [rule["resources"] for rule in listed["status"]["resourceRules"]]
    assert ["namespaces", "configmaps", "events"] in resources
    assert not any("secrets" in each for each in resources)
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "token-ann"}}
    answer = (await api.call("POST", f"{AUTHENTICATION}/tokenreviews", token)).body["status"]
    assert (answer["authenticated"], answer["user"]["username"]) == (True, "ann")
    token["spec"] = {"token": "wrong"}
    answer = (await api.call("POST", f"{AUTHENTICATION}/tokenreviews", token)).body["status"]
    assert not answer.get("authenticated")


async def test_an_unclear_review_is_refused(server: ApiServer, api: Api) -> None:
    """Without a question, with two, or of another kind, the answer is an error and no verdict."""
    path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
    review: dict[str, Any] = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    both: dict[str, Any] = {"resourceAttributes": {}, "nonResourceAttributes": {}}
    for body, code in (
        (review, 422),
        ({**review, "spec": both}, 422),
        ({**review, "spec": "x"}, 400),
        ({**review, "spec": {"resourceAttributes": 1}}, 400),
        ({**review, "kind": "Widget"}, 400),
        ({}, 400),
    ):
        assert (await api.call("POST", path, body)).code == code, body


async def test_rights_and_users_outlive_a_restart_and_taken_rules_come_back(tmp_path: Path) -> None:
    """What people made stays; what they took from a built-in role is there again."""
    for start in range(2):
        server = ApiServer(tmp_path, crds=[crd()], tls=False)
        async with serving(server) as api:
            viewer = f"{RBAC}/clusterroles/pvbus-viewer"
            if start == 0:
                _add(server, "ann", "viewer")
                assert (await api.call("POST", WIDGETS, widget("w"))).code == 201
                role = await api.get(viewer)
                assert (await api.call("PUT", viewer, {**role, "rules": []})).code == 200
                assert (await api.call("GET", CONFIG_MAPS, token="Bearer token-ann")).code == 403
            else:
                assert (await api.call("GET", CONFIG_MAPS, token="Bearer token-ann")).code == 200
                before = await api.get(viewer)
    server = ApiServer(tmp_path, tls=False)
    async with serving(server) as api:
        assert await api.get(viewer) == before  # a further start writes nothing
