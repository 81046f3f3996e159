"""What rules permit and cover. tests/integration/cluster compares the whole with a real API server."""

import pytest

from pvbus.controlplane.apiserver.identity import Attributes, User
from pvbus.controlplane.apiserver.rbac.builtin import cluster_roles, completed, initial
from pvbus.controlplane.apiserver.rbac.impersonation import account
from pvbus.controlplane.apiserver.rbac.policy import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    Binding,
    Policy,
    Subject,
)
from pvbus.controlplane.apiserver.rbac.rules import Rule, object_of, permits_all, rules_of, uncovered
from pvbus.core.kernel.rights import PROMOTION_RIGHTS, RIGHTS, requests_of

PORCH, CONFIG, PROMOTION = "porch.kpt.dev", "config.porch.kpt.dev", "promotion.pvbus.dev"
READ = Rule(("get",), (PORCH,), ("packagerevisions",))


@pytest.mark.parametrize(
    ("rule", "asked", "permitted"),
    [
        (READ, Attributes("get", PORCH, "v1alpha1", "packagerevisions", "", "ns", "x"), True),
        (READ, Attributes("list", PORCH, "v1alpha1", "packagerevisions"), False),
        (READ, Attributes("get", "", "v1", "packagerevisions"), False),
        (READ, Attributes("get", PORCH, "v1alpha1", "packagerevisions", "approval"), False),
        (READ._replace(resources=("*/approval",)), Attributes("get", PORCH, "", "a", "approval"), True),
        (READ._replace(resources=("*/approval",)), Attributes("get", PORCH, "", "a"), False),
        (READ._replace(resources=("a/approval",)), Attributes("get", PORCH, "", "b", "approval"), False),
        (READ._replace(names=("x",)), Attributes("get", PORCH, "", "packagerevisions", "", "", "x"), True),
        (READ._replace(names=("x",)), Attributes("get", PORCH, "", "packagerevisions", "", "", "y"), False),
        (READ._replace(names=("x",)), Attributes("get", PORCH, "", "packagerevisions"), False),
        (Rule(("*",), ("*",), ("*",)), Attributes("any", "g", "v", "r", "s", "n", "o"), True),
        (Rule(("*",), ("*",), ("*",)), Attributes("get", path="/version"), False),
        (Rule(("get",), urls=("/api/*",)), Attributes("get", path="/api/v1"), True),
        (Rule(("get",), urls=("/api/*",)), Attributes("get", path="/api"), False),
        (Rule(("get",), urls=("*",)), Attributes("post", path="/api"), False),
    ],
)
def test_what_a_rule_permits(rule: Rule, asked: Attributes, permitted: bool) -> None:
    """Verb, group, resource with its subresource, name and path have to match."""
    policy = Policy()
    policy.put(CLUSTER_ROLE, {"metadata": {"name": "role"}, "rules": [object_of(rule)]})
    policy.extra = [Binding("binding", "", (CLUSTER_ROLE.kind, "role"), (Subject("User", "somebody"),))]
    assert _may(policy, User("somebody"), asked) is permitted


@pytest.mark.parametrize(
    ("owned", "wanted", "left"),
    [
        ([READ], [READ], 0),
        ([], [READ], 1),
        ([READ._replace(names=("x",))], [READ], 1),
        ([READ], [READ._replace(names=("x",))], 0),
        ([READ._replace(verbs=("get", "list"))], [READ._replace(verbs=("get", "watch"))], 1),
        ([READ._replace(resources=("*/status",))], [READ._replace(resources=("a/status", "a"))], 1),
        ([Rule(("get",), urls=("/api*",))], [Rule(("get",), urls=("/api/*", "/apis", "/other"))], 1),
        ([Rule(("*",), ("*",), ("*",))], [Rule(("get",), urls=("/api",))], 1),
    ],
)
def test_what_rules_cover(owned: list[Rule], wanted: list[Rule], left: int) -> None:
    """Only what all owned rules together leave out is an escalation."""
    assert len(uncovered(owned, wanted)) == left


def _policy() -> Policy:
    policy = Policy()
    for kind, obj in initial():
        policy.put(kind, obj)
    return policy


def _may(policy: Policy, user: User, asked: Attributes) -> bool:
    return bool(policy.answer(user, asked).reason(asked.name))


def test_the_services_have_the_rights_of_their_table_and_no_more() -> None:
    """The accounts may do what `pvbus.core.kernel.rights` says. None but inject and release writes a
    PackageRevision, and only release approves."""
    policy = _policy()
    for service, rights in {**RIGHTS, **PROMOTION_RIGHTS}.items():
        user = User(f"system:serviceaccount:pvbus-system:pvbus-{service}", ("system:authenticated",))
        for request in (request for right in rights for request in requests_of(right)):
            plural, _, subresource = request.resource.partition("/")
            asked = Attributes(request.verb, request.group, "", plural, subresource, "default")
            assert _may(policy, user, asked), (service, request)
        create = Attributes("create", PORCH, "", "packagerevisions", "", "default")
        approve = Attributes("update", PORCH, "", "packagerevisions", "approval", "default")
        assert _may(policy, user, create) is (service in {"inject", "release"})
        assert _may(policy, user, approve) is (service == "release")


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("pvbus-viewer", {"get"}),
        ("pvbus-proposer", {"get", "update"}),
        ("pvbus-editor", {"get", "update", "create", "delete", "save"}),
        ("pvbus-approver", {"get", "update", "delete", "approve", "release", "stop", "lift"}),
    ],
)
def test_what_the_roles_of_people_may_do(role: str, may: set[str]) -> None:
    """Only an approver approves, ends a quarantine and stops the fleet; only an editor changes a package.
    Nobody writes the conditions of a variant, which are evidence for a rollout."""
    (found,) = (each for each in cluster_roles() if each["metadata"]["name"] == role)
    asked = {
        verb: Attributes(verb, PORCH, "", "packagerevisions")
        for verb in ("get", "update", "create", "delete")
    }
    asked["approve"] = Attributes("update", PORCH, "", "packagerevisions", "approval")
    asked["save"] = Attributes("update", PORCH, "", "packagerevisionresources")
    asked["prove"] = Attributes("update", CONFIG, "", "packagevariants", "status")
    asked["release"] = Attributes("update", PROMOTION, "", "quarantines")
    asked["stop"] = Attributes("create", PROMOTION, "", "rolloutstops")
    asked["lift"] = Attributes("update", PROMOTION, "", "rolloutstops")
    permitted = {
        what for what, each in asked.items() if any(permits_all(rule, each) for rule in rules_of(found))
    }
    assert permitted == may


def test_what_people_added_to_a_built_in_role_stays_and_what_they_took_comes_back() -> None:
    """That is what a real API server does, and the annotation prevents it."""
    (wanted,) = (each for each in cluster_roles() if each["metadata"]["name"] == "pvbus-viewer")
    extra = {"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]}
    stored = {**wanted, "rules": [extra, *wanted["rules"][1:]]}
    after = completed(CLUSTER_ROLE, stored, wanted)
    assert extra in after["rules"]
    assert not uncovered(rules_of(after), rules_of(wanted))
    assert completed(CLUSTER_ROLE, after, wanted)["rules"] == after["rules"]
    pinned = {"rbac.authorization.kubernetes.io/autoupdate": "false"}
    left_alone = {**stored, "metadata": {**stored["metadata"], "annotations": pinned}}
    assert completed(CLUSTER_ROLE, left_alone, wanted) == left_alone


def test_a_subject_that_was_taken_from_a_built_in_binding_comes_back() -> None:
    """So nobody loses discovery for good by a slip; a binding to another role is not completed."""
    bindings = [obj for kind, obj in initial() if kind == CLUSTER_ROLE_BINDING]
    (wanted,) = (obj for obj in bindings if obj["metadata"]["name"] == "system:discovery")
    assert completed(CLUSTER_ROLE_BINDING, {**wanted, "subjects": []}, wanted) == wanted
    other = {**wanted, "subjects": [], "roleRef": {**wanted["roleRef"], "name": "other"}}
    assert completed(CLUSTER_ROLE_BINDING, other, wanted)["subjects"] == []


@pytest.mark.parametrize(
    ("user", "found"),
    [
        ("system:serviceaccount:ns:name", ("ns", "name")),
        ("system:serviceaccount:ns:name:more", ("", "")),
        ("system:serviceaccount:ns", ("", "")),
        ("ann", ("", "")),
    ],
)
def test_which_users_are_service_accounts(user: str, found: tuple[str, str]) -> None:
    """Both parts of the name are needed."""
    assert account(user) == found


def test_a_rule_for_names_holds_for_these_only() -> None:
    """Not for another name, and not for the collection."""
    policy = Policy()
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"]}
    policy.put(CLUSTER_ROLE, {"metadata": {"name": "r"}, "rules": [rule]})
    subject = {"kind": "User", "name": "ann"}
    role = {"kind": "ClusterRole", "name": "r"}
    policy.put(CLUSTER_ROLE_BINDING, {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]})
    asked = Attributes("get", "", "v1", "secrets", "", "default")
    may = {name: _may(policy, User("ann"), asked._replace(name=name)) for name in ("one", "two", "")}
    assert may == {"one": True, "two": False, "": False}
