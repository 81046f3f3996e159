"""Builds and reads PackageVariants for render: owner, readiness, withdrawal annotation, dropped fields."""

from collections.abc import Iterator
from typing import Any

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, SET_API, VARIANT_API, PackageVariant, PackageVariantSpec
from pvbus.core.kernel.effects import KindRef
from pvbus.core.kernel.keys import FINALIZER, REMOVAL_CANCELLED, SET_UID_LABEL, Key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.records import TargetRow
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.variants.readiness import UNREADY_CHARACTERS_MAX

VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
FIELDS_MAX = 10
"""Fields that are named; a definition that has none at all would name hundreds."""


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


def attention_of(living: PackageVariant | None) -> str:
    """Return what about a PackageVariant waits for a person, "" if nothing does."""
    conditions = living.status.conditions if living is not None else ()
    attention = next(
        (condition for condition in conditions if (condition.type, condition.status) == (ATTENTION, "True")),
        None,
    )
    return part(attention.message.partition(": ")[2], UNREADY_CHARACTERS_MAX) if attention is not None else ""


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


def dropped_fields(sent: PackageVariantSpec, stored: PackageVariantSpec) -> tuple[str, ...]:
    """Return the paths of the fields of `sent` that `stored` has not, the first ones in their order.

    A cluster whose CustomResourceDefinition is of an older release drops the fields that it does not know,
    and answers as if all were well.
    """
    if sent == stored:  # as nearly always: a twentieth of what a variant costs is saved
        return ()
    paths = _missing(msgspec.to_builtins(sent), msgspec.to_builtins(stored), "spec")
    return tuple(path for path, _ in zip(paths, range(FIELDS_MAX), strict=False))


def _missing(sent: Any, stored: Any, path: str) -> Iterator[str]:
    if isinstance(sent, dict):
        for name, value in sent.items():
            if not isinstance(stored, dict) or name not in stored:
                yield f"{path}.{name}"
            else:
                yield from _missing(value, stored[name], f"{path}.{name}")
    elif isinstance(sent, list | tuple) and isinstance(stored, list | tuple) and len(sent) == len(stored):
        for number, (item, other) in enumerate(zip(sent, stored, strict=True)):
            yield from _missing(item, other, f"{path}[{number}]")
