"""Builds and reads PackageVariants for render: owner, readiness, withdrawal annotation."""

from typing import Any

import msgspec

from pvbus.core.api.variants import SET_API, VARIANT_API, PackageVariant, PackageVariantSpec
from pvbus.core.attention import ATTENTION
from pvbus.core.keys import FINALIZER, REMOVAL_CANCELLED, SET_UID_LABEL, Key
from pvbus.core.messages import part
from pvbus.core.records import TargetRow

UNREADY_CHARACTERS_MAX = 300
WORKING_REASONS = frozenset({"Waiting", "OnHold", "Terminating", "Reconciling"})  # of Ready=False: no failure


def cancel(obj: dict[str, Any], token: str) -> None:
    """Set the annotation that withdraws an order."""
    metadata = obj["metadata"]
    metadata["annotations"] = {**(metadata.get("annotations") or {}), REMOVAL_CANCELLED: token}


def is_cancelled(claim: TargetRow, living: PackageVariant) -> bool:
    """Return whether the living object has the withdrawal token of a row, or the row has none."""
    return not claim.cancelled or living.metadata.annotations.get(REMOVAL_CANCELLED) == claim.cancelled


def carried(claim: TargetRow, living: PackageVariant | None) -> str:
    """Return the living object's withdrawal token; without an object, the row's counts as written."""
    return living.metadata.annotations.get(REMOVAL_CANCELLED, "") if living is not None else claim.cancelled


def readiness(living: PackageVariant | None) -> tuple[bool, str, bool]:
    """Return whether a PackageVariant is ready at its present generation, why not (`Reason: message`), and
    whether it reports a failure."""
    if living is None:
        return False, "", False
    found = {condition.type: condition for condition in living.status.conditions}
    ready, stalled = found.get("Ready"), found.get("Stalled")
    for one in (ready, stalled):
        if one is not None and 0 < one.observed_generation < living.metadata.generation:
            return False, "Reconciling: its conditions are of an earlier generation", False
    if stalled is not None and stalled.status == "True":
        return False, f"{stalled.reason}: {stalled.message}"[:UNREADY_CHARACTERS_MAX], True
    if ready is None:
        return False, "Reconciling: it has no condition Ready yet", False
    if ready.status == "True":
        return True, "", False
    words = f"{ready.reason}: {ready.message}"[:UNREADY_CHARACTERS_MAX]
    return False, words, ready.reason not in WORKING_REASONS


def attention_of(living: PackageVariant | None) -> str:
    """Return what about a PackageVariant waits for a person, "" if nothing does."""
    conditions = living.status.conditions if living is not None else ()
    found = next((each for each in conditions if (each.type, each.status) == (ATTENTION, "True")), None)
    return part(found.message.partition(": ")[2], UNREADY_CHARACTERS_MAX) if found is not None else ""


def controller_uid(obj: PackageVariant) -> str:
    """Return the uid of an object's controller, "" if it has none."""
    for reference in obj.metadata.owner_references:
        if reference.controller:
            return reference.uid
    return ""


def new_variant(key: Key, row: TargetRow, spec: PackageVariantSpec) -> dict[str, Any]:
    """Build the PackageVariant of a set as Porch does: name, label, controller reference, finalizer."""
    metadata: dict[str, Any] = {
        "name": key.name,
        "namespace": key.namespace,
        "labels": {SET_UID_LABEL: row.set_uid},
        "finalizers": [FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": SET_API,
                "kind": "PackageVariantSet",
                "name": row.set_name,
                "uid": row.set_uid,
                "controller": True,
            }
        ],
    }
    if row.cancelled:
        metadata["annotations"] = {REMOVAL_CANCELLED: row.cancelled}
    return {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "metadata": metadata,
        "spec": msgspec.to_builtins(spec),
    }
