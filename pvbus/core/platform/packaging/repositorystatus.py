"""The stages of what Carvel's kinds do, and the status of a PackageRepository, as kapp-controller has them.

Source: kapp-controller, pkg/apis/kappctrl/v1alpha1/{types,status}.go.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.packagerows import EstablishedRow, Stage
from pvbus.core.platform.packaging.conditions import Status, condition
from pvbus.core.platform.packaging.statuses import DELETE_FAILED

STAGES = ("fetch", "template", "deploy")


def stage_statuses(failed: Stage, message: str, now: str) -> Status:
    """Return the status of each stage that was begun. failed: the one that ended the work, "" for none."""
    found: Status = {}
    for stage in STAGES:
        is_failed = stage == failed
        found[stage] = {"exitCode": int(is_failed), "updatedAt": now}
        if stage != "template":
            found[stage]["startedAt"] = now
        if stage == "deploy":
            found[stage]["finished"] = True
        if is_failed:
            found[stage]["error"] = message
            break
    return found


def repository_status(obj: Mapping[str, Any], row: EstablishedRow | None, now: float) -> Status:
    """Return the status of a repository after a look at it. row: how the look ended, None while it is paused.

    It has exactly one condition, as kapp-controller's has.
    """
    found: Status = {"observedGeneration": int(obj["metadata"].get("generation") or 0), "conditions": []}
    if row is None:
        return {**found, "friendlyDescription": "Canceled/paused"}
    if row.reason == DELETE_FAILED:
        kind, words = DELETE_FAILED, "Delete failed"
    elif row.is_healthy:
        kind, words = "ReconcileSucceeded", "Reconcile succeeded"
    else:
        kind, words = "ReconcileFailed", "Reconcile failed"
    found["conditions"] = [condition(kind, "True", row.reason, row.message)]
    found["friendlyDescription"] = f"{words}: {row.message}" if row.message else words
    if not row.is_healthy:
        found["usefulErrorMessage"] = row.message
    before = obj.get("status") or {}
    for word, is_counted in (("Successes", row.is_healthy), ("Failures", not row.is_healthy)):
        field = f"consecutiveReconcile{word}"
        found[field] = int(before.get(field) or 0) + 1 if is_counted else 0
    if row.reason != DELETE_FAILED:
        found |= stage_statuses(row.stage if not row.is_healthy else "", row.message, timestamp(now))
    return found
