"""Server-side apply with kubectl, as people, Flux and Argo CD use it."""

import json
from typing import Any

import pytest

from tests.e2e.kubectl.driver import CONFIG_MAP, WIDGET, Kubectl, Subject

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(1800)]  # the first one may have to build kubectl

both_kinds = pytest.mark.parametrize(
    "subject", [pytest.param(WIDGET, id="custom"), pytest.param(CONFIG_MAP, id="configmap")]
)
SERVER_SIDE = "apply --server-side -f -"
FLUX = f"{SERVER_SIDE} --field-manager=kustomize-controller --force-conflicts"
ARGO = f"{SERVER_SIDE} --field-manager=argocd-controller"


def owners(kubectl: Kubectl, subject: Subject) -> dict[str, Any]:
    """Return the operations by manager."""
    obj = json.loads(kubectl.good(f"get {subject.resource} a -o json --show-managed-fields"))
    return {entry["manager"]: entry["operation"] for entry in obj["metadata"].get("managedFields", ())}


def data(kubectl: Kubectl, subject: Subject) -> Any:
    found = kubectl.get(subject)
    assert found is not None
    return found[subject.holder]


@both_kinds
def test_a_conflict_names_field_and_owner(kubectl: Kubectl, subject: Subject) -> None:
    """kubectl prints what to do; nothing changed; with --force-conflicts the field changes its owner."""
    kubectl.good(f"{SERVER_SIDE} --field-manager=other", stdin=subject.manifest())
    said = kubectl.run(SERVER_SIDE, stdin=subject.manifest(size="2"))
    assert said.code == 1
    assert f'conflict with "other": .{subject.holder}.size' in said.err
    assert "--force-conflicts" in said.err
    assert data(kubectl, subject)["size"] == "1"
    kubectl.good(f"{SERVER_SIDE} --force-conflicts", stdin=subject.manifest(size="2"))
    assert data(kubectl, subject)["size"] == "2"
    assert kubectl.run(f"{SERVER_SIDE} --field-manager=other", stdin=subject.manifest(size="3")).code == 1


def test_what_an_applier_drops_goes_unless_another_owns_it(kubectl: Kubectl) -> None:
    """A key that both applied stays when one drops it, and goes with the second."""
    both = CONFIG_MAP.manifest(data={"shared": "x", "own": "z"})
    kubectl.good(SERVER_SIDE, stdin=both)
    kubectl.good(f"{SERVER_SIDE} --field-manager=other", stdin=CONFIG_MAP.manifest(data={"shared": "x"}))
    kubectl.good(SERVER_SIDE, stdin=CONFIG_MAP.manifest())
    assert data(kubectl, CONFIG_MAP) == {"size": "1", "shared": "x"}
    kubectl.good(f"{SERVER_SIDE} --field-manager=other", stdin=CONFIG_MAP.manifest())
    assert data(kubectl, CONFIG_MAP) == {"size": "1"}


@both_kinds
def test_client_side_apply_becomes_server_side(kubectl: Kubectl, subject: Subject) -> None:
    """kubectl takes over what its own client-side apply wrote: no conflict, and dropped fields go."""
    kubectl.good("apply -f -", stdin=subject.manifest(metadata={"labels": {"app": "x", "old": "z"}}))
    assert owners(kubectl, subject) == {"kubectl-client-side-apply": "Update"}
    kubectl.good(SERVER_SIDE, stdin=subject.manifest(size="2", metadata={"labels": {"app": "x"}}))
    found = kubectl.get(subject)
    assert found is not None
    assert (found[subject.holder]["size"], found["metadata"]["labels"]) == ("2", {"app": "x"})
    assert owners(kubectl, subject)["kubectl"] == "Apply"


@both_kinds
@pytest.mark.parametrize("way", ["diff -f -", "diff --server-side -f -"])
def test_diff(kubectl: Kubectl, subject: Subject, way: str) -> None:
    """diff ends with 1 and shows the line that an apply would change, with 0 if there is none."""
    kubectl.good("apply -f -" if "server" not in way else SERVER_SIDE, stdin=subject.manifest())
    same = kubectl.run(way, stdin=subject.manifest())
    assert (same.code, same.out) == (0, ""), same
    other = kubectl.run(way, stdin=subject.manifest(size="2"))
    assert other.code == 1, other
    assert '+  size: "2"' in other.out
    assert data(kubectl, subject)["size"] == "1"


@both_kinds
def test_flux_takes_over_what_kubectl_applied(kubectl: Kubectl, subject: Subject) -> None:
    """Its dry run shows the result and writes nothing; its apply wins, and a second one makes no version."""
    kubectl.good("apply -f -", stdin=subject.manifest())
    dry = kubectl.good(f"{FLUX} --dry-run=server -o json", stdin=subject.manifest(size="2"))
    assert json.loads(dry)[subject.holder]["size"] == "2"
    assert data(kubectl, subject)["size"] == "1"
    kubectl.good(FLUX, stdin=subject.manifest(size="2"))
    before = kubectl.get(subject)
    kubectl.good(FLUX, stdin=subject.manifest(size="2"))
    assert kubectl.get(subject) == before
    assert owners(kubectl, subject)["kustomize-controller"] == "Apply"


@both_kinds
def test_argo_shares_an_object_with_a_controller(kubectl: Kubectl, subject: Subject) -> None:
    """ServerSideApply=true: what a controller set beside it stays, and what it changed is a conflict."""
    kubectl.good(ARGO, stdin=subject.manifest(metadata={"labels": {"app": "x"}}))
    kubectl.good(f"label {subject.resource} a seen=yes --field-manager=controller")
    kubectl.good(ARGO, stdin=subject.manifest(size="2", metadata={"labels": {"app": "x"}}))
    found = kubectl.get(subject)
    assert found is not None
    assert found["metadata"]["labels"] == {"app": "x", "seen": "yes"}
    kubectl.good(f"label {subject.resource} a app=z --overwrite --field-manager=controller")
    said = kubectl.run(ARGO, stdin=subject.manifest(size="2", metadata={"labels": {"app": "x"}}))
    assert 'conflict with "controller"' in said.err


def test_a_status_has_owners_of_its_own(kubectl: Kubectl) -> None:
    """The owner of a status does not conflict with the one who applies the spec."""
    kubectl.good(SERVER_SIDE, stdin=WIDGET.manifest())
    patch = '{"status":{"phase":"done"}}'
    kubectl.good(f"patch widgets a --subresource=status --type=merge -p '{patch}' --field-manager=controller")
    kubectl.good(SERVER_SIDE, stdin=WIDGET.manifest(size="2"))
    found = kubectl.get(WIDGET)
    assert found is not None
    subresources = {
        entry["manager"]: entry.get("subresource", "") for entry in found["metadata"]["managedFields"]
    }
    assert subresources == {"kubectl": "", "controller": "status"}
    assert (found["spec"]["size"], found["status"]) == ("2", {"phase": "done"})
