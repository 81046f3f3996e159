"""What an undo refuses, and what the history says of each revision."""

from typing import Any

import pytest

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.spechistory import change_words, entries_of, former_of
from pvbus.cli.undo import gitops_manager, with_spec, write_shown
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.objectrows import POLICY
from pvbus.core.kernel.specretention import CHANGE_CAUSE, CHANGED_AT
from pvbus.ports.cluster import Resource

RESOURCE = Resource("promotion.pvbus.dev", "v1alpha1", "RolloutPolicy", "rolloutpolicies", namespaced=True)


def revision(number: int, spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"r{number}", "annotations": annotations},
        "revision": number,
        "data": {"spec": spec},
    }


@pytest.mark.parametrize(
    ("metadata", "program", "reason"),
    [
        ({}, "", "nobody's"),
        ({"managedFields": [{"manager": "kubectl-edit"}]}, "", "a person's"),
        ({"managedFields": [{"manager": "argocd-controller"}]}, "Argo CD", "Argo CD, server-side apply"),
        ({"managedFields": [{"manager": "argocd-eu"}]}, "Argo CD", "Argo CD under another name"),
        ({"managedFields": [{"manager": "kustomize-controller"}]}, "Flux", "a Kustomization of Flux"),
        ({"managedFields": [{"manager": "helm-controller"}]}, "Flux", "a HelmRelease of Flux"),
        (
            {"managedFields": [{"manager": "argocd-controller", "subresource": "status"}]},
            "",
            "the status alone",
        ),
        ({"annotations": {"argocd.argoproj.io/tracking-id": "x"}}, "Argo CD", "tracked by an annotation"),
        ({"labels": {"kustomize.toolkit.fluxcd.io/name": "x"}}, "Flux", "labelled by Flux"),
        ({"annotations": {"objectset.rio.cattle.io/id": "x"}}, "Fleet", "a bundle of Fleet"),
    ],
)
def test_who_would_put_the_spec_back(metadata: dict[str, Any], program: str, reason: str) -> None:
    assert gitops_manager({"metadata": metadata}) == program, reason


def test_the_former_spec_is_the_newest_other_one() -> None:
    """After an undo that is the spec which was undone: twice is no change, as kubectl has it."""
    first, second, third = revision(1, {"a": 1}), revision(2, {"a": 2}), revision(3, {"a": 1})
    assert former_of([first, second], {"a": 2}) == first
    assert former_of([first, second, third], {"a": 1}) == second
    assert former_of([first], {"a": 1}) is None


def test_an_undo_has_the_version_that_was_read_and_keeps_all_but_the_spec() -> None:
    owner = {
        "metadata": {"name": "web", "resourceVersion": "7", "annotations": {"mine": "yes"}},
        "spec": {"a": 2},
    }
    wanted = with_spec(RESOURCE, owner, revision(1, {"a": 1}, **{CHANGED_AT: "then"}), "too many")
    assert (wanted["apiVersion"], wanted["kind"]) == ("promotion.pvbus.dev/v1alpha1", "RolloutPolicy")
    assert wanted["spec"] == {"a": 1}
    assert wanted["metadata"]["resourceVersion"] == "7"
    assert wanted["metadata"]["annotations"] == {
        "mine": "yes",
        CHANGE_CAUSE: "undo to revision 1 of then: too many",
    }


def test_the_history_says_which_spec_is_the_current_one_and_what_each_changed() -> None:
    retained = [revision(1, {"a": 1}), revision(2, {"a": 2})]
    first, second = entries_of(retained, {"spec": {"a": 2}})
    assert (first["changes"], first["isCurrent"], second["isCurrent"]) == ([], False, True)
    assert list(change_words(second["changes"])) == ["spec.a: 1 -> 2"]
    assert not any(entry["isCurrent"] for entry in entries_of(retained, {"spec": {"a": 3}}))


def test_many_changes_are_counted() -> None:
    changes = [{"path": f"p{number}", "before": None, "after": [1, 2]} for number in range(5)]
    assert list(change_words(changes)) == [
        *(f"p{number}: nothing -> (2 items)" for number in range(3)),
        "and 2 more",
    ]


@pytest.mark.parametrize(
    ("change", "is_written"),
    [
        ({}, True),
        ({"status": {"state": "Rolling"}}, True),
        ({"spec": {"a": 3}}, False),
        ({"metadata": {"labels": {"by": "another"}}}, False),
        ({"metadata": {"annotations": {"mine": "no"}}}, False),
    ],
)
async def test_an_undo_writes_what_a_person_saw_whatever_the_status_became(
    change: dict[str, Any], is_written: bool
) -> None:
    meta = {"namespace": "default", "name": "web", "annotations": {"mine": "yes"}}
    policy = {"apiVersion": RESOURCE.api_version, "kind": RESOURCE.kind, "metadata": meta, "spec": {"a": 2}}
    cluster = MemoryCluster([policy], now=lambda: "2026-01-01T00:00:00Z")
    resource = await cluster.resource(POLICY)
    assert resource is not None
    shown = await cluster.get(resource, "default", "web")
    assert shown is not None
    await cluster.patch(resource, "default", "web", change)
    wanted = with_spec(resource, shown, revision(1, {"a": 1}), None)
    if not is_written:
        with pytest.raises(PermanentError, match="has changed since the plan was made"):
            await write_shown(cluster, resource, shown, wanted)
        return
    await write_shown(cluster, resource, shown, wanted)
    live = await cluster.get(resource, "default", "web")
    assert live is not None
    assert live["spec"] == {"a": 1}
