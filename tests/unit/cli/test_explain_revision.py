"""`pvbus explain` of a package revision: each standing has its next step."""

from typing import Any

import pytest

from pvbus.cli.explainrevision import document_of, missing, revision_lines
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, SIGNATURES, Key
from pvbus.ports.cluster import Object

KEY = Key("default", "edge.web.v1")
OPTED_IN: dict[str, Any] = {"metadata": {"annotations": {AUTO_LIFECYCLE: "true"}}}
OWNED: dict[str, Any] = {
    "metadata": {"ownerReferences": [{"kind": "PackageVariant", "name": "web", "controller": True}]}
}
DRAFT_PATCH = (
    "kubectl patch packagerevision edge.web.v1 -n default --type merge "
    '-p \'{"spec": {"lifecycle": "Proposed"}}\''
)


def revision(lifecycle: str = "Draft", **parts: Any) -> Object:
    spec = {"repository": "edge", "packageName": "web", "workspaceName": "v1", "lifecycle": lifecycle}
    return {
        "metadata": {"namespace": "default", "name": KEY.name, **parts.get("metadata", {})},
        "spec": {**spec, **parts.get("spec", {})},
        "status": parts.get("status", {}),
    }


def text_of(found: Object, promotion: list[dict[str, Any]] | None = None) -> str:
    return "\n".join(revision_lines(document_of(KEY, found, promotion or [], [])))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            revision(),
            "next: no PackageVariant has it, and it is not opted in: kubectl annotate packagerevision "
            f"edge.web.v1 -n default {AUTO_LIFECYCLE}=true; or by hand: {DRAFT_PATCH}",
        ),
        (
            revision(**OPTED_IN),
            f"next: promote proposes it once it is ready, if it runs; or by hand: {DRAFT_PATCH}",
        ),
        (revision("Proposed"), "next: no PackageVariant has it, so no RolloutPolicy approves it: kubectl"),
        (
            revision("Proposed"),
            '--subresource approval --type merge -p \'{"spec": {"lifecycle": "Published"}}\'',
        ),
        (revision(**OWNED), "next: pvbus propose default/web, or promote and a RolloutPolicy"),
        (revision("Proposed", **OWNED), "next: pvbus approve default/web"),
        (revision(**OWNED), "made by: PackageVariant default/web"),
        (revision(), "made by: a person or another program"),
        (
            revision("Published", spec={"revision": 3}),
            "Published: package web of Repository edge, workspace v1, revision 3",
        ),
    ],
)
def test_who_moves_it_on_is_said(found: Object, said: str) -> None:
    assert said in text_of(found)


def test_what_is_published_has_no_next_step() -> None:
    assert "next:" not in text_of(revision("Published", **OWNED))


def test_gates_conditions_and_signers_are_said() -> None:
    signed = '{"Certified": {"content": "d", "by": "ann"}}'
    found = revision(
        spec={
            "readinessGates": [{"conditionType": "Certified"}, {"conditionType": "Tested"}],
            "packageMetadata": {"annotations": {SIGNATURES: signed}},
        },
        status={"conditions": [{"type": "Certified", "status": "True", "message": "in\norder"}]},
    )
    text = text_of(found)
    assert "  Certified=True in\\norder (signed by ann)" in text
    assert "  gate not met: Tested (nothing was reported of it yet)" in text
    assert "gate not met: Certified" not in text


def test_the_verdict_on_this_revision_is_said_and_no_other() -> None:
    verdicts = [
        {"revision": name, "reason": reason, "message": "so\nit is", "order": "", "outcome": ""}
        for name, reason in ((KEY.name, "GateNotMet"), ("edge.web.v2", "OnHold"))
    ]
    text = text_of(revision(**OWNED), verdicts)
    assert "  promotion: GateNotMet: so\\nit is" in text
    assert "OnHold" not in text


def test_what_does_not_exist_is_said() -> None:
    (first, second) = revision_lines(missing(KEY, "there is no such object"))
    assert first == "PackageRevision default/edge.web.v1"
    assert second == "  there is no such object; check namespace and name"
