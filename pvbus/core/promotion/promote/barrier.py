"""The opening barrier: a revision is not proposed before every program that wants to work on it has seen it.

A PackageSpecializer announces such a program. It acknowledges a revision by an annotation on it, in the same
write as the readiness gates and conditions that it adds: they are in force as soon as the barrier is open.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from pvbus.core.api.promotion import OPEN, PackageSpecializerSpec
from pvbus.core.api.selectors import matches, requirements_of, selector_problems
from pvbus.core.kernel.keys import ACKNOWLEDGED_PREFIX
from pvbus.core.kernel.messages import SEPARATOR
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.records import ObjectRow
from pvbus.core.variants.revisions.observed import ObservedRevision


class Opening(NamedTuple):
    """Whether a revision may be proposed.

    closed: why the barrier is closed, "" if it is open
    until: the next deadline at which that may change, in seconds since the epoch; None if none is ahead
    """

    closed: str
    until: float | None = None


def opening(
    revision: ObservedRevision,
    labels: Mapping[str, str],
    specializers: Mapping[str, ObjectRow],
    now: float,
) -> Opening:
    """Decide whether a revision may be proposed.

    labels: the labels of the revision, over those of its variant
    specializers: name -> row of each PackageSpecializer of the namespace
    now: the time, in seconds since the epoch
    """
    closed, deadlines = [], []
    for name, spec in _concerned(revision, labels, specializers):
        deadline = _created(revision.row) + spec.deadline_seconds
        if now < deadline:
            closed.append(_waits(revision, name, spec, deadline))
            deadlines.append(deadline)
        elif spec.after_deadline != OPEN:
            closed.append(_expired(revision, name, spec))
    return Opening(SEPARATOR.join(closed), min(deadlines, default=None))


def served_types(specializers: Mapping[str, ObjectRow]) -> frozenset[str]:
    """Return the condition types that some program of the namespace says it reports."""
    specs = (row.specializer for row in specializers.values())
    return frozenset(each for spec in specs if spec is not None for each in spec.condition_types)


def _concerned(
    revision: ObservedRevision, labels: Mapping[str, str], specializers: Mapping[str, ObjectRow]
) -> Iterator[tuple[str, PackageSpecializerSpec]]:
    """Yield the specializers that select a revision and have not acknowledged it.

    An invalid selector selects everything: to wait is the safe mistake.
    """
    for name, row in sorted(specializers.items()):
        spec = row.specializer
        if spec is None or row.deleted:
            continue
        if revision.row.annotations.get(ACKNOWLEDGED_PREFIX + name) == revision.name:
            continue
        if _invalid(spec) or matches(requirements_of(spec.selector), labels):
            yield name, spec


def _invalid(spec: PackageSpecializerSpec) -> str:
    return next(selector_problems(spec.selector, "spec.selector"), "")


def _created(row: ObjectRow) -> float:
    """Return when a revision was created; one without a valid time never reaches a deadline."""
    try:
        return datetime.fromisoformat(row.created).timestamp()
    except ValueError:
        return float("inf")


def _waits(revision: ObservedRevision, name: str, spec: PackageSpecializerSpec, deadline: float) -> str:
    until = ""
    if deadline != float("inf"):
        time = timestamp(deadline)
        then = "it is proposed without" if spec.after_deadline == OPEN else "it stays closed"
        until = f"; after {time} {then}"
    return f"{_subject(revision, name, spec)} has not acknowledged it yet{until}"


def _expired(revision: ObservedRevision, name: str, spec: PackageSpecializerSpec) -> str:
    return (
        f"{_subject(revision, name, spec)} has not acknowledged it within {spec.deadline_seconds} s: see "
        "whether its program runs, or acknowledge in its place: "
        f"kubectl annotate -n {revision.namespace} packagerevision {revision.name} "
        f"{ACKNOWLEDGED_PREFIX}{name}={revision.name}"
    )


def _subject(revision: ObservedRevision, name: str, spec: PackageSpecializerSpec) -> str:
    invalid = _invalid(spec)
    note = f" (it holds every draft, as its selector is invalid: {invalid})" if invalid else ""
    return f"PackageSpecializer {revision.namespace}/{name}{note}"
