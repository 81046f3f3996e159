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
from pvbus.core.kernel.promotionrows import BoundCondition, Verdict
from pvbus.core.kernel.records import ObjectRow
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.signatures import is_signature

NO_NAMES: Mapping[str, str] = {}
NOTHING_BOUND: Mapping[str, BoundCondition] = {}
GATE_REMOVED_SECONDS = 60.0
"""A draft from which a gate was removed while it was signed is not proposed for so long: a person who sees it
in the meantime can add it again, or hold the variant."""


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
    stale: Mapping[str, str] = NO_NAMES,
) -> Opening:
    """Decide whether a revision may be proposed.

    labels: the labels of the revision, over those of its variant
    specializers: name -> row of each PackageSpecializer of the namespace
    now: the time, in seconds since the epoch
    stale: as of `stale_in`
    """
    closed, deadlines = [], []
    for name, spec in _unacknowledged(revision, labels, specializers, stale):
        deadline = _created(revision.row) + spec.deadline_seconds
        if now >= deadline and spec.after_deadline == OPEN:
            continue  # also with an acknowledgement of other content: it counts as none
        if name in stale:
            closed.append(_changed(revision, name, stale[name]))
        if now < deadline:
            closed.append(_waits(revision, name, spec, deadline))
            deadlines.append(deadline)
        else:
            closed.append(_expired(revision, name, spec))
    return Opening(SEPARATOR.join(closed), min(deadlines, default=None))


def unguarded(revision: ObservedRevision, specializers: Mapping[str, ObjectRow]) -> dict[str, str]:
    """Return what has acknowledged a revision without a gate on it, with the content that it names, if any.

    An acknowledgement with a gate holds while the gate is there: its condition follows the content. One
    without is a statement on the content that there was.
    """
    found = {}
    for name, row in sorted(specializers.items()):
        of, _, content = revision.row.annotations.get(ACKNOWLEDGED_PREFIX + name, "").partition("@")
        types = row.specializer.condition_types if row.specializer is not None else ()
        if of == revision.name and not set(types) & set(revision.facts.gates):
            found[name] = content
    return found


def bound(named: Mapping[str, str], former: Mapping[str, str], content: str) -> dict[str, str]:
    """Return the content of each acknowledgement. One that names none is of what is there when it is first
    seen.

    named: as of `unguarded`
    former: what was bound before
    content: the digest of the content now, "" if it cannot be read
    """
    return {name: digest or former.get(name) or content for name, digest in named.items()}


def stale_in(acknowledged: Mapping[str, str], content: str) -> dict[str, str]:
    """Return the acknowledgements of other content, and of what cannot be read, with the content now."""
    return {name: content for name, digest in acknowledged.items() if not content or digest != content}


def served_types(specializers: Mapping[str, ObjectRow]) -> frozenset[str]:
    """Return the condition types that some program of the namespace says it reports."""
    specs = (row.specializer for row in specializers.values())
    return frozenset(each for spec in specs if spec is not None for each in spec.condition_types)


def _unacknowledged(
    revision: ObservedRevision,
    labels: Mapping[str, str],
    specializers: Mapping[str, ObjectRow],
    stale: Mapping[str, str],
) -> Iterator[tuple[str, PackageSpecializerSpec]]:
    """Yield the specializers that select a revision and have not acknowledged it.

    An invalid selector selects everything: to wait is the safe mistake.
    """
    for name, row in sorted(specializers.items()):
        spec = row.specializer
        if spec is None or row.deleted:
            continue
        of = revision.row.annotations.get(ACKNOWLEDGED_PREFIX + name, "").partition("@")[0]
        if of == revision.name and name not in stale:
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


def _changed(revision: ObservedRevision, name: str, content: str) -> str:
    """Say how to acknowledge the content that there is now."""
    value = f"{revision.name}@{content}" if content else revision.name
    return (
        f"PackageSpecializer {revision.namespace}/{name} acknowledged other content, as the draft has "
        "changed since: its program has to look at it anew, then: kubectl annotate --overwrite -n "
        f"{revision.namespace} packagerevision {revision.name} {ACKNOWLEDGED_PREFIX}{name}={value}"
    )


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


# ------------------------------------------------------------ what is remembered between two decisions


class Signed(NamedTuple):
    """The fields of a `Verdict` with these names."""

    content: str = ""
    acknowledged: Mapping[str, str] = NO_NAMES
    gates: tuple[str, ...] = ()
    settles_at: float = 0
    bound: Mapping[str, BoundCondition] = NOTHING_BOUND
    void: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdict: Verdict | None) -> "Signed":
        if verdict is None:
            return cls()
        return cls(*(getattr(verdict, field) for field in cls._fields))


def is_draft(revision: ObservedRevision) -> bool:
    return revision.facts.lifecycle == "Draft"


def settles_at(revision: ObservedRevision, before: Signed, now: float) -> float:
    """Return when a draft may be proposed after a gate was removed from it, 0 for at any time. It is never
    farther ahead than at the removal: a clock that is set back holds nothing up."""
    is_signed = any(each.status == "True" and is_signature(each.type) for each in revision.facts.conditions)
    if is_draft(revision) and is_signed and set(before.gates) - set(revision.facts.gates):
        return now + GATE_REMOVED_SECONDS
    is_settling = is_draft(revision) and before.settles_at > now
    return min(before.settles_at, now + GATE_REMOVED_SECONDS) if is_settling else 0


def settled(opened: Opening, at: float, now: float) -> Opening:
    """Close the barrier for a draft that settles anew."""
    if at <= now:
        return opened
    words = (
        "a readiness gate was removed from it while it was signed, by whom its last commits say: it is not "
        f"proposed before {timestamp(at)}"
    )
    until = at if opened.until is None else min(opened.until, at)
    return Opening(SEPARATOR.join(filter(None, (opened.closed, words))), until)
