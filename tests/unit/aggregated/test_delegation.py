"""Tokens and rights are kube-apiserver's to judge; what it cannot say now is refused."""

from typing import Any

import pytest

from pvbus.controlplane.aggregated.authentication import Tokens
from pvbus.controlplane.aggregated.authorization import DelegatedAuthorizer, spec_of
from pvbus.controlplane.aggregated.caching import ENTRIES_MAX, Recent
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import Attributes, User
from pvbus.core.errors import PermanentError, TransientError
from pvbus.ports.cluster import Object, Resource

ANN = User("ann", ("team", "system:authenticated"), "7", {"scope": ("a",)})
APPROVE = Attributes(
    "update", "porch.kpt.dev", "v1alpha1", "packagerevisions", "approval", "default", "blue.web.v1"
)


class Reviewer:
    """A cluster that answers reviews. answer: a status, or what to raise."""

    def __init__(self, answer: Object | Exception) -> None:
        self.answer = answer
        self.asked: list[Object] = []

    async def create(self, resource: Resource, obj: Object) -> Object:
        self.asked.append(obj)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {**obj, "status": self.answer}


def test_a_review_asks_for_exactly_the_request() -> None:
    assert spec_of(ANN, APPROVE) == {
        "user": "ann",
        "groups": ["team", "system:authenticated"],
        "uid": "7",
        "extra": {"scope": ["a"]},
        "resourceAttributes": {
            "verb": "update",
            "group": "porch.kpt.dev",
            "version": "v1alpha1",
            "resource": "packagerevisions",
            "subresource": "approval",
            "namespace": "default",
            "name": "blue.web.v1",
        },
    }
    assert spec_of(User("ann"), Attributes("get", path="/apis")) == {
        "user": "ann",
        "groups": [],
        "nonResourceAttributes": {"path": "/apis", "verb": "get"},
    }


async def test_who_may_is_let_through_and_asked_for_once() -> None:
    reviewer = Reviewer({"allowed": True})
    authorizer = DelegatedAuthorizer(reviewer)
    for _ in range(3):
        await authorizer.authorize(ANN, APPROVE)
    assert len(reviewer.asked) == 1
    await authorizer.authorize(ANN._replace(groups=()), APPROVE)  # another user, whatever his name
    await authorizer.authorize(ANN, APPROVE._replace(name="other"))
    assert len(reviewer.asked) == 3


@pytest.mark.parametrize(
    "status", [{"allowed": False}, {}, {"allowed": "yes"}, {"allowed": True, "denied": True}], ids=str
)
async def test_anything_but_a_clear_yes_is_a_no(status: dict[str, Any]) -> None:
    with pytest.raises(StatusError) as caught:
        await DelegatedAuthorizer(Reviewer(status)).authorize(ANN, APPROVE)
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
    assert caught.value.message == (
        'packagerevisions.porch.kpt.dev "blue.web.v1" is forbidden: User "ann" cannot update resource '
        '"packagerevisions/approval" in API group "porch.kpt.dev" in the namespace "default"'
    )


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            Attributes("list", "porch.kpt.dev", "v1alpha1", "packagerevisions"),
            'packagerevisions.porch.kpt.dev is forbidden: User "ann" cannot list resource "packagerevisions" '
            'in API group "porch.kpt.dev" at the cluster scope: RBAC',
        ),
        (Attributes("get", path="/metrics"), 'forbidden: User "ann" cannot get path "/metrics": RBAC'),
    ],
)
async def test_a_refusal_has_kubernetes_words_and_the_reason(attributes: Attributes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        await DelegatedAuthorizer(Reviewer({"allowed": False, "reason": "RBAC"})).authorize(ANN, attributes)
    assert caught.value.message == message


@pytest.mark.parametrize("error", [TransientError("away"), PermanentError("403"), TimeoutError()], ids=repr)
async def test_what_cannot_be_asked_is_refused_for_now(error: Exception) -> None:
    """It is not stored: the next request asks again, and is let through."""
    reviewer = Reviewer(error)
    authorizer = DelegatedAuthorizer(reviewer)
    with pytest.raises(StatusError, match="cannot be asked for at kube-apiserver") as caught:
        await authorizer.authorize(ANN, APPROVE)
    assert (caught.value.code, caught.value.retry_after_seconds) == (503, 1)
    reviewer.answer = {"allowed": True}
    await authorizer.authorize(ANN, APPROVE)


async def test_administrators_need_no_review() -> None:
    reviewer = Reviewer(TransientError("away"))
    await DelegatedAuthorizer(reviewer).authorize(User("root", ("system:masters",)), APPROVE)
    assert reviewer.asked == []


async def test_a_token_is_reviewed_once() -> None:
    user = {"username": "robot", "uid": "9", "groups": ["g"], "extra": {"Scope": ["a"]}}
    reviewer = Reviewer({"authenticated": True, "user": user})
    tokens = Tokens(reviewer)
    for _ in range(2):
        found = await tokens.user("secret")
        assert found == User("robot", ("g", "system:authenticated"), "9", {"scope": ("a",)})
    assert [each["spec"] for each in reviewer.asked] == [{"token": "secret"}]
    await tokens.user("other")
    assert len(reviewer.asked) == 2


@pytest.mark.parametrize("status", [{}, {"authenticated": False}, {"error": "expired"}], ids=str)
async def test_an_unknown_token_is_refused(status: dict[str, Any]) -> None:
    reviewer = Reviewer(status)
    tokens = Tokens(reviewer)
    for _ in range(2):
        with pytest.raises(StatusError) as caught:
            await tokens.user("secret")
        assert caught.value.code == 401
    assert len(reviewer.asked) == 1


async def test_a_token_that_cannot_be_reviewed_is_refused_for_now() -> None:
    with pytest.raises(StatusError) as caught:
        await Tokens(Reviewer(TransientError("away"))).user("secret")
    assert caught.value.code == 503


def test_answers_expire_and_have_a_limit() -> None:
    now = [0.0]
    recent: Recent[int] = Recent(10.0, lambda: now[0])
    recent.put("a", 1)
    now[0] = 9.9
    assert recent.get("a") == 1
    now[0] = 10.0
    assert recent.get("a") is None
    for number in range(ENTRIES_MAX + 5):
        recent.put(number, number)
    assert recent.get(4) is None
    assert recent.get(5) == 5
    assert recent.get(ENTRIES_MAX + 4) == ENTRIES_MAX + 4
