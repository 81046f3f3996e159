"""Conditions of a PackageRevision with kubectl: waited for, applied one at a time, and the rights to them."""

import json
from typing import Any

from pvbus.ports.cluster import Kind
from tests.e2e.kubectl.driver import Kubectl

REVISION = Kind("porch.kpt.dev", "PackageRevision")


def manifest(*conditions: tuple[str, str], **spec: str) -> str:
    listed = [{"type": type_, "status": status} for type_, status in conditions]
    body: dict[str, Any] = {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": "a"},
        "status": {"conditions": listed},
    }
    return json.dumps({**body, **({"spec": spec} if spec else {})})


def statuses(kubectl: Kubectl) -> dict[str, str]:
    found = kubectl.served.object(REVISION, kubectl.namespace, "a")
    assert found is not None
    return {each["type"]: each["status"] for each in found["status"]["conditions"]}


def test_wait_sees_a_condition_that_an_apply_sets_beside_others(kubectl: Kubectl) -> None:
    new = manifest(("Tested", "False"), packageName="a", repository="edge", workspaceName="v1")
    kubectl.good("create -f -", stdin=new)
    with kubectl.follow("wait --for=condition=Certified packagerevision/a --timeout=30s") as wait:
        apply = "apply --server-side --field-manager=auditor -f -"
        kubectl.good(apply, stdin=manifest(("Certified", "True")))
        wait.line("condition met")
        assert wait.end() == 0
    assert statuses(kubectl) == {"Tested": "False", "Certified": "True"}
    patch = json.dumps({"status": {"conditions": [{"type": "Tested", "status": "True"}]}})
    kubectl.good(f"patch packagerevision a --subresource=status --type merge -p '{patch}'")
    assert statuses(kubectl) == {"Tested": "True"}, "a merge patch replaces the whole list"


def test_the_right_to_override_can_be_granted_and_asked_for(kubectl: Kubectl) -> None:
    """The commands of the documents: nobody needs to know that nothing serves the subresource."""
    resource = "packagerevisions.porch.kpt.dev/override"
    role = f"override-{kubectl.namespace}"
    kubectl.good(f"create clusterrole {role} --verb=update --resource={resource}")
    kubectl.good(f"create clusterrolebinding {role} --clusterrole={role} --user={role}")
    ask = "auth can-i update packagerevisions.porch.kpt.dev --subresource=override"
    assert kubectl.run(f"{ask} --as={role}").out == "yes\n"
    assert kubectl.run(f"{ask} --as=somebody-else").out == "no\n"
