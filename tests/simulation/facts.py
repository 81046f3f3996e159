"""The facts that a watcher records of its world: inputs, orders, moments; and how it reads objects."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import Downstream, PackageVariant, PackageVariantSet
from pvbus.core.kernel.keys import digest
from pvbus.ports.cluster import Object
from tests.kit.oracle import Expected, Thing

WITHDRAWALS = ("pvbus.dev/removal-cancelled", "pvbus.dev/kept")
"""Annotations whose change alone is a withdrawal."""


class Violation(NamedTuple):
    invariant: str
    second: float
    text: str


class Inputs(NamedTuple):
    """What users want at one moment, and the names and children that the sets had then."""

    time: float
    sets: Sequence[PackageVariantSet]
    things: Sequence[Thing]
    repositories: Sequence[Repository]
    revisions: Sequence[PackageRevision]
    unknown_kinds: tuple[str, ...]
    names: Mapping[str, Mapping[str, Downstream]]
    children: Sequence[PackageVariant]


class Order(NamedTuple):
    """An order to remove a variant: when it was written, and when the check behind it was asked."""

    time: float
    generation: int
    set_uid: str
    skey: str
    checked: tuple[float, float] | None  # from when the read may be, and when it was answered


class VariantFacts(NamedTuple):
    uid: str
    owner: str
    spec_digest: str
    ready: bool


class Moment(NamedTuple):
    """The state of the cluster since a time: variants by vkey, and the owners of package revisions."""

    time: float
    variants: Mapping[str, VariantFacts]
    packages: frozenset[tuple[str, str, str, str]]  # namespace, repository, package, owner's uid


def is_as_expected(facts: VariantFacts | None, expected: Expected) -> bool:
    return (
        facts is not None
        and facts.ready
        and facts.owner == expected.owner
        and facts.spec_digest == digest(expected.spec)
    )


def facts_of(obj: Object) -> VariantFacts:
    variant = msgspec.convert(obj, PackageVariant)
    owner = next((o.uid for o in variant.metadata.owner_references if o.controller), "")
    ready = any(c.type == "Ready" and c.status == "True" for c in variant.status.conditions)
    return VariantFacts(variant.metadata.uid, owner, digest(variant.spec), ready)


def without_withdrawal(obj: Object) -> Object:
    """Return the part of an object that a withdrawal leaves unchanged."""
    meta = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    annotations = {k: v for k, v in (meta.pop("annotations", None) or {}).items() if k not in WITHDRAWALS}
    variant = msgspec.convert({**obj, "metadata": {"name": ""}}, PackageVariant)
    return {"meta": meta, "annotations": annotations, "spec": msgspec.to_builtins(variant.spec)}
