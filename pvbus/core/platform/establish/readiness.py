"""Whether a live object is ready, so that what a change rule puts after it may begin.

Source: kapp, pkg/kapp/resourcesmisc. An object of a kind that is not listed here is ready once it is there.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.objects import CRD, Object, key_of, kind_of, title

NOT_READY = "NotReady"
"""The reason of a refusal as an object has failed that others come after."""

_COUNTS = {
    "Deployment": ("updatedReplicas", "availableReplicas"),
    "StatefulSet": ("updatedReplicas", "readyReplicas"),
    "DaemonSet": ("updatedNumberScheduled", "numberAvailable"),
}
"""Fields of a status which say how many of its pods run as the spec says."""


def awaited_state(live: Object) -> str:
    """Return the state that an object has to reach, e.g. `available`; "" if it is ready.

    Raises RefusedError if it has failed, and will not reach it.
    """
    kind, status = kind_of(live), live.get("status") or {}
    match kind.group, kind.kind:
        case "batch", "Job":
            _refuse_failed(live, _is_true(status, "Failed"))
            return "" if _is_true(status, "Complete") else "complete"
        case "", "Pod":
            phase = status.get("phase")
            _refuse_failed(live, phase == "Failed")
            return "" if phase == "Succeeded" or _is_true(status, "Ready") else "ready"
        case "apps", ("Deployment" | "StatefulSet" | "DaemonSet") as name:
            return "" if _runs(live, status, _COUNTS[name]) else "available"
        case "packaging.carvel.dev", "PackageInstall":
            is_current = _is_observed(live, status)
            return "" if is_current and _is_true(status, "ReconcileSucceeded") else "reconciled"
        case group_kind if group_kind == CRD:
            return "" if _is_true(status, "Established") else "established"
        case _:
            return ""


def _refuse_failed(live: Object, has_failed: bool) -> None:
    if has_failed:
        raise RefusedError(NOT_READY, f"{title(key_of(live))} has failed: what comes after it is not written")


def _is_true(status: Mapping[str, Any], condition: str) -> bool:
    return any(
        each.get("type") == condition and each.get("status") == "True"
        for each in status.get("conditions") or ()
    )


def _is_observed(live: Object, status: Mapping[str, Any]) -> bool:
    return int(status.get("observedGeneration") or 0) >= int(live["metadata"].get("generation") or 0)


def _runs(live: Object, status: Mapping[str, Any], counts: tuple[str, ...]) -> bool:
    wanted = (live.get("spec") or {}).get("replicas", 1)
    if kind_of(live).kind == "DaemonSet":
        wanted = status.get("desiredNumberScheduled") or 0
    has_all = all((status.get(count) or 0) >= wanted for count in counts)
    # Without a status its controller has not seen it; a DaemonSet of no node would pass for ready.
    return bool(status) and _is_observed(live, status) and has_all
