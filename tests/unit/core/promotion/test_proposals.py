"""Who of a fleet may be proposed or approved, and why not."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.holds import SetHold
from pvbus.core.promotion.protocol.proposals import labels_of, refusal


def variant(*, annotations: Any = None, status: Any = None, ready: Any = None) -> PackageVariant:
    condition = {"type": "Ready", "status": "True", "reason": "NoErrors", "observedGeneration": 2}
    return msgspec.convert(
        {
            "metadata": {
                "name": "web-edge",
                "namespace": "default",
                "generation": 2,
                "labels": {"region": "asia", "team": "a"},
                "annotations": annotations or {},
            },
            "status": {"conditions": [condition | (ready or {})], **(status or {})},
        },
        PackageVariant,
    )


def draft(*, rendered: Any = None, gate: str = "True", annotations: Any = None, **metadata: Any) -> Any:
    conditions = [{"type": "gate", "status": gate, "message": "no Cluster asia-01"}]
    if rendered is not None:
        conditions.append({"type": "Rendered", "status": "False", **rendered})
    return {
        "metadata": {"name": "edge.web.packagevariant-1", "annotations": annotations, **metadata},
        "spec": {"lifecycle": "Draft", "readinessGates": [{"conditionType": "gate"}]},
        "status": {"conditions": conditions},
    }


CONFLICTS = "pvbus.dev/upgrade-conflicts"
FAILED = {"downstreamTargets": [{"name": "edge.web.packagevariant-1", "renderStatus": {"error": "no image"}}]}
OLD = {"downstreamTargets": [{"name": "another", "renderStatus": {"error": "no image"}}]}


@pytest.mark.parametrize(
    ("of", "revision", "reason", "words"),
    [
        (variant(), draft(), None, ""),
        (variant(annotations={"pvbus.dev/hold": "true"}), draft(), "OnHold", "pvbus unhold default/web-edge"),
        (variant(annotations={"pvbus.dev/hold": "false"}), draft(), None, ""),
        (variant(), draft(annotations={CONFLICTS: "[]"}), None, ""),
        (
            variant(),
            draft(annotations={CONFLICTS: '[{"file":"a"}]'}),
            "UpgradeConflict",
            "1 conflict of its upgrade to settle: pvbus diff default/web-edge",
        ),
        (variant(), draft(annotations={CONFLICTS: "{"}), "UpgradeConflict", "1 conflict"),
        (variant(), draft(annotations={CONFLICTS: '[{"file":"a","taken":"both"}]'}), None, ""),
        (variant(), draft(rendered={"message": "no image"}), "NotRendered", "no image"),
        (variant(), draft(rendered={"reason": "Deferred"}), "NotRendered", "Deferred"),
        (variant(status=FAILED), draft(), "NotRendered", "no image"),
        (variant(status=FAILED), draft(rendered={"status": "True"}), None, ""),
        (variant(status=OLD), draft(), None, ""),
        (variant(), draft(gate="False"), "GateNotMet", "gate (no Cluster asia-01)"),
        (
            variant(ready={"observedGeneration": 1}),
            draft(),
            "NotUpToDate",
            "have not done its last change yet",
        ),
        (
            variant(ready={"status": "False", "reason": "UpstreamChanged", "message": "it is v2"}),
            draft(),
            "NotUpToDate",
            "its variant is not ready (UpstreamChanged): it is v2",
        ),
    ],
)
def test_each_reason(of: PackageVariant, revision: Any, reason: str | None, words: str) -> None:
    found = refusal(of, revision)
    assert (found and found.reason) == reason
    assert found is None or words in found.message


def test_a_set_on_hold_holds_its_variants() -> None:
    found = refusal(variant(), draft(), set_on_hold=SetHold("web", "fair"))
    assert found == ("OnHold", "its set is on hold (fair): pvbus unhold --set default/web")


def test_a_revisions_labels_are_over_its_variants() -> None:
    found = labels_of(variant(), draft(labels={"region": "africa"}))
    assert found == {"region": "africa", "team": "a"}
