"""What evidence says: each shape of an object, each binding, each verdict; stale evidence never counts."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.core.api.rollouts import EvidenceObject
from pvbus.core.kernel.promotionrows import SeenCondition
from pvbus.core.promotion.protocol.evidence import (
    GOOD,
    Proof,
    Published,
    combined,
    commit_in,
    condition_proof,
    names,
    object_proof,
    status_digest,
    the_object,
)

DOCUMENT = Path(__file__).parents[4] / "docs" / "rollouts.md"
NEW, OLD, LATER = "a" * 40, "b" * 40, "c" * 40
REVISION = Published("edge.web.packagevariant-2", NEW)
RECIPES = {
    recipe["evidence"]["object"]["kind"]: msgspec.convert(recipe["evidence"]["object"], EvidenceObject)
    for block in re.findall(r"```yaml\n(evidence:\n.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    if "object" in (recipe := yaml.safe_load(block))["evidence"]
}
"""As the document has them."""
ARGO, SPEC = RECIPES["Application"], RECIPES["Deployment"]
FLUX, ROOT_SYNC = RECIPES["Kustomization"], RECIPES["RootSync"]
WEAK = EvidenceObject(
    kind="Site", binding="Weak", good="object.status.phase == 'Up'", bad="object.status.phase == 'Down'"
)


def application(
    revision: str = NEW,
    health: str = "Healthy",
    *,
    sync: str = "Synced",
    phase: str = "Succeeded",
    finished: str = "2026-01-01T00:00:00Z",
    reconciled: str = "2026-01-01T00:00:05Z",
) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "argocd", "name": "web"},
        "status": {
            "sync": {"status": sync, "revision": revision},
            "health": {"status": health},
            "reconciledAt": reconciled,
            "operationState": {
                "phase": phase,
                "finishedAt": finished,
                "syncResult": {"revision": revision},
            },
        },
    }


def deployment(names_: str = REVISION.name, *, observed: Any = 3, ready: int = 2, stuck: bool = False) -> Any:
    progressing = {"type": "Progressing", "status": "False" if stuck else "True"}
    return {
        "metadata": {"namespace": "default", "name": "web", "generation": 3},
        "spec": {
            "replicas": 2,
            "template": {"metadata": {"annotations": {"example.org/revision": names_}}},
        },
        "status": {
            "observedGeneration": observed,
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": ready,
            "conditions": [progressing],
        },
    }


def kustomization(
    applied: str = NEW, ready: str = "True", *, attempted: str = "", observed: int = 2
) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "flux-system", "name": "web", "generation": 2},
        "status": {
            "observedGeneration": observed,
            "lastAppliedRevision": f"main@sha1:{applied}",
            "lastAttemptedRevision": f"main@sha1:{attempted or applied}",
            "conditions": [{"type": "Ready", "status": ready, "observedGeneration": observed}],
        },
    }


def root_sync(
    commit: str = NEW,
    syncing: str = "False",
    *,
    condition: str = "",
    errors: int | None = 0,
    observed: int = 1,
) -> dict[str, Any]:
    summary = {} if errors is None else {"errorSummary": {"totalCount": errors} if errors else {}}
    return {
        "metadata": {"namespace": "config-management-system", "name": "edge", "generation": 1},
        "status": {
            "observedGeneration": observed,
            "source": {"commit": commit},
            "sync": {"commit": commit, **summary},
            "conditions": [
                {"type": "Stalled", "status": "False"},
                {"type": "Syncing", "status": syncing, "commit": condition or commit},
            ],
        },
    }


def site(phase: str) -> dict[str, Any]:
    return {"metadata": {"name": "web"}, "status": {"phase": phase}}


UP, DOWN = status_digest(site("Up")), status_digest(site("Down"))
BARE: dict[str, Any] = {"metadata": {"name": "web"}}


@pytest.mark.parametrize(
    ("reason", "rule", "found", "more", "verdict", "word"),
    [
        ("the commit", ARGO, application(), {}, True, ""),
        ("the commit, bad", ARGO, application(health="Degraded"), {}, False, "EvidenceBad"),
        ("the commit, not yet", ARGO, application(health="Progressing"), {}, None, "EvidencePending"),
        ("old health, old commit", ARGO, application(OLD), {"is_later": False}, None, "EvidenceStale"),
        ("bad, old commit", ARGO, application(OLD, "Degraded"), {"is_later": False}, None, "EvidenceStale"),
        ("other commit, not known", ARGO, application(LATER), {}, None, "EvidenceStale"),
        ("a later commit", ARGO, application(LATER), {"is_later": True}, True, ""),
        (
            "a later commit, bad",
            ARGO,
            application(LATER, "Degraded"),
            {"is_later": True},
            False,
            "EvidenceBad",
        ),
        ("compared, not synced", ARGO, application(sync="OutOfSync"), {}, None, "EvidenceStale"),
        ("sync under way", ARGO, application(phase="Running"), {}, None, "EvidenceStale"),
        (
            "new revision, old health",
            ARGO,
            application(reconciled="2025-12-31T23:59:59Z"),
            {},
            None,
            "EvidenceStale",
        ),
        (
            "old and bad health",
            ARGO,
            application(health="Degraded", reconciled="2025-12-31T23:59:59Z"),
            {},
            None,
            "EvidenceStale",
        ),
        ("no commit", ARGO, application("HEAD"), {}, None, "EvidenceStale"),
        ("no status", ARGO, BARE, {}, None, "EvidenceInvalid"),
        ("flux applied it", FLUX, kustomization(), {}, True, ""),
        ("flux applied, then it broke", FLUX, kustomization(ready="False"), {}, False, "EvidenceBad"),
        ("flux works on it", FLUX, kustomization(ready="Unknown"), {}, None, "EvidencePending"),
        ("flux has the old one", FLUX, kustomization(OLD), {"is_later": False}, None, "EvidenceStale"),
        ("flux tries another", FLUX, kustomization(attempted=LATER), {}, None, "EvidenceStale"),
        (
            "flux fails the new one",
            FLUX,
            kustomization(OLD, "False", attempted=NEW),
            {},
            None,
            "EvidenceStale",
        ),
        ("flux is late with its spec", FLUX, kustomization(observed=1), {}, None, "EvidenceStale"),
        ("flux applied a later one", FLUX, kustomization(LATER), {"is_later": True}, True, ""),
        ("config sync has it", ROOT_SYNC, root_sync(), {}, True, ""),
        ("config sync, no summary", ROOT_SYNC, root_sync(errors=None), {}, True, ""),
        ("config sync has errors", ROOT_SYNC, root_sync(errors=2), {}, False, "EvidenceBad"),
        ("config sync works on it", ROOT_SYNC, root_sync(syncing="True"), {}, None, "EvidenceStale"),
        ("config sync has the old one", ROOT_SYNC, root_sync(OLD), {}, None, "EvidenceStale"),
        ("its condition is of the old one", ROOT_SYNC, root_sync(condition=OLD), {}, None, "EvidenceStale"),
        ("config sync is late with its spec", ROOT_SYNC, root_sync(observed=0), {}, None, "EvidenceStale"),
        ("spec names it", SPEC, deployment(), {}, True, ""),
        ("spec names its commit", SPEC, deployment(NEW), {}, True, ""),
        ("spec names another", SPEC, deployment("edge.web.packagevariant-1"), {}, None, "EvidenceStale"),
        ("spec names none", SPEC, deployment(""), {}, None, "EvidenceStale"),
        ("status is of the spec before", SPEC, deployment(observed=2), {}, None, "EvidenceStale"),
        ("status is of no spec", SPEC, deployment(observed=None), {}, None, "EvidenceStale"),
        ("new spec, rolls out", SPEC, deployment(ready=1), {}, None, "EvidencePending"),
        ("new spec, stuck", SPEC, deployment(ready=1, stuck=True), {}, False, "EvidenceBad"),
        ("bad before, same spec", SPEC, deployment(observed=2, stuck=True), {}, None, "EvidenceStale"),
        ("weak, changed", WEAK, site("Up"), {"before": DOWN}, True, ""),
        ("weak, as before", WEAK, site("Up"), {"before": UP}, None, "EvidenceStale"),
        ("weak, bad as before", WEAK, site("Down"), {"before": DOWN}, None, "EvidenceStale"),
        ("weak, turned bad", WEAK, site("Down"), {"before": UP}, False, "EvidenceBad"),
        ("weak, before is not known", WEAK, site("Up"), {}, None, "EvidenceStale"),
        ("weak, was not there", WEAK, site("Up"), {"before": status_digest(None)}, True, ""),
        ("weak, no status", WEAK, BARE, {"before": UP}, None, "EvidenceInvalid"),
    ],
)
def test_an_object_proves_only_the_revision_that_it_is_bound_to(
    reason: str, rule: EvidenceObject, found: Any, more: Any, verdict: bool | None, word: str
) -> None:
    proof = object_proof(rule, found, REVISION, **more)
    assert (proof.verdict, proof.reason) == (verdict, word), (reason, proof.words)


@pytest.mark.parametrize("year", ["1999", "2026", "2199"])
def test_no_clock_of_another_machine_counts(year: str) -> None:
    """Times of one object are compared with each other alone: it may be of a cluster an age away."""
    good = application(finished=f"{year}-01-01T00:00:00Z", reconciled=f"{year}-01-01T00:00:05Z")
    assert object_proof(ARGO, good, REVISION).verdict is True
    late = application(finished=f"{year}-01-01T00:00:05Z", reconciled=f"{year}-01-01T00:00:00Z")
    assert object_proof(ARGO, late, REVISION).reason == "EvidenceStale"


def test_exact_bindings_never_fall_back_to_the_weak_one() -> None:
    """A status that has changed proves nothing where the policy wants the commit."""
    found = application(OLD)
    before = status_digest(site("other"))
    assert object_proof(ARGO, found, REVISION, is_later=False, before=before).verdict is None
    assert object_proof(ARGO, application(), Published(REVISION.name), before=before).verdict is None


@pytest.mark.parametrize(
    ("text", "commit"),
    [
        (NEW, NEW),
        (f"main@sha1:{NEW}", NEW),
        (f"main/{NEW}", NEW),
        ("d" * 64, "d" * 64),
        (f"x{NEW}", ""),
        (NEW[:39], ""),
        (f"{NEW}-dirty", ""),
        ("", ""),
    ],
)
def test_a_commit_is_read_from_what_the_tools_report(text: str, commit: str) -> None:
    assert commit_in(text) == commit


@pytest.mark.parametrize(
    ("objects", "sharers", "word", "words"),
    [
        ([application()], 1, "", ""),
        ([], 1, "EvidenceMissing", "Application web does not exist"),
        ([application(), {"metadata": {"namespace": "b"}}], 1, "EvidenceAmbiguous", "(argocd, b)"),
        ([application()], 2, "EvidenceShared", "the evidence of 2 targets"),
        ([], 2, "EvidenceShared", "2 targets"),
    ],
)
def test_one_object_speaks_of_one_target(objects: Any, sharers: int, word: str, words: str) -> None:
    proof = the_object("Application", "web", objects, sharers)
    assert (proof.verdict, proof.reason) == (None if word else True, word)
    assert words in proof.words


def seen(status: str = "True", *, is_bound: bool = True, digest: str = "now") -> SeenCondition:
    return SeenCondition(type="Synced", status=status, is_bound=is_bound, words="Synced", digest=digest)


@pytest.mark.parametrize(
    ("conditions", "is_weak", "before", "verdict", "word"),
    [
        ([seen()], False, "", True, ""),
        ([seen("False")], False, "", False, "EvidenceBad"),
        ([seen("Unknown")], False, "", None, "EvidencePending"),
        ([seen(is_bound=False)], False, "before", None, "EvidenceStale"),
        ([seen("False", is_bound=False)], False, "", None, "EvidenceStale"),
        ([], False, "", None, "EvidenceMissing"),
        ([seen(), seen()], False, "", None, "EvidenceMissing"),
        ([seen(is_bound=False)], True, "before", True, ""),
        ([seen()], True, "now", None, "EvidenceStale"),
        ([seen()], True, "", None, "EvidenceStale"),
        ([seen("False")], True, "before", False, "EvidenceBad"),
        ([seen("False")], True, "now", None, "EvidenceStale"),
    ],
)
def test_a_condition_proves_the_revision_that_it_names(
    conditions: Any, is_weak: bool, before: str, verdict: bool | None, word: str
) -> None:
    proof = condition_proof("Synced", conditions, is_weak=is_weak, before=before, revision=REVISION.name)
    assert (proof.verdict, proof.reason) == (verdict, word)


def test_a_message_names_a_revision_as_a_whole_word() -> None:
    assert names(f"on {REVISION.name}, all well.", REVISION)
    assert names(f"at {NEW}.", REVISION)
    assert not names(f"on {REVISION.name}0", REVISION)
    assert not names(NEW[:12], REVISION)
    assert not names("synced", Published("", ""))


@pytest.mark.parametrize(
    ("proofs", "expected"),
    [
        ([], GOOD),
        ([GOOD, GOOD], GOOD),
        ([GOOD, Proof(None, "A", "a"), Proof(None, "B", "b")], Proof(None, "A", "a; b")),
        ([Proof(None, "A", "a"), GOOD, Proof(False, "B", "b")], Proof(False, "B", "b")),
    ],
)
def test_all_evidence_counts_together(proofs: list[Proof], expected: Proof) -> None:
    assert combined(proofs) == expected
