"""Kinds of users' manifests that the server stores: their schemas, and how patches merge them."""

from typing import Any

import pytest

from tests.integration.apiserver.client import CORE, Api

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
STRATEGIC = "application/strategic-merge-patch+json"


def deployment(**spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "a:1", "env": [{"name": "A", "value": "1"}], "tty": True}
    labels = {"app": "a"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            **spec,
        },
    }


JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a"},
    "spec": {
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "a"}]}}
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a"},
    "spec": {"selector": {"app": "a"}, "ports": [{"port": 80, "targetPort": "http"}]},
}
ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "a"},
    "imagePullSecrets": [{"name": "login"}],
}


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (DEPLOYMENTS, deployment()),
        ("/apis/batch/v1/namespaces/default/jobs", JOB),
        (f"{CORE}/namespaces/default/services", SERVICE),
        (f"{CORE}/namespaces/default/serviceaccounts", ACCOUNT),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else "",
)
async def test_an_object_of_a_users_manifest_is_stored(api: Api, path: str, given: dict[str, Any]) -> None:
    """It is read back, goes with its namespace's rules, and a wrong type is refused."""
    strict = f"{path}?fieldValidation=Strict"
    created = await api.create(strict, given)
    assert created["kind"] == given["kind"]
    assert (await api.get(f"{path}/a"))["metadata"]["uid"] == created["metadata"]["uid"]
    wrong = {**given, "metadata": {"name": "b"}, "spec": "x", "imagePullSecrets": "x"}
    assert (await api.call("POST", strict, wrong)).code in (400, 422)
    await api.delete(f"{path}/a")
    assert await api.code(f"{path}/a") == 404


async def test_containers_are_merged_by_name(api: Api) -> None:
    """As kubectl set image and set env send them: what a patch does not name stays, in each depth."""
    await api.create(DEPLOYMENTS, deployment())
    change = {"name": "main", "image": "a:2", "env": [{"name": "B", "value": "2"}]}
    body = {"spec": {"template": {"spec": {"containers": [change]}}}}
    reply = await api.call("PATCH", f"{DEPLOYMENTS}/a", body, media=STRATEGIC)
    (container,) = reply.body["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["tty"]) == ("a:2", True)
    assert [each["name"] for each in container["env"]] == ["A", "B"]
    assert (reply.body["metadata"]["generation"], reply.body["spec"]["replicas"]) == (2, 1)


async def test_a_deployment_selects_its_own_pods(api: Api) -> None:
    """Others are refused, and the selector stays."""
    reply = await api.call("POST", DEPLOYMENTS, deployment(selector={"matchLabels": {"app": "b"}}))
    assert (reply.code, "does not match template" in str(reply.body)) == (422, True)
    reply = await api.call("POST", DEPLOYMENTS, deployment(selector={}))
    assert reply.code == 422
    created = await api.create(DEPLOYMENTS, deployment())
    labels = {"app": "a", "b": "c"}
    template = {**created["spec"]["template"], "metadata": {"labels": labels}}
    spec = {**created["spec"], "selector": {"matchLabels": labels}, "template": template}
    reply = await api.call("PUT", f"{DEPLOYMENTS}/a", {**created, "spec": spec})
    assert (reply.code, "immutable" in str(reply.body)) == (422, True)
