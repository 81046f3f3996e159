"""Decides on open PackageRevisions that opt in themselves and that no PackageVariant owns: people and other
programs make them. They are proposed by the rules of a variant's draft, less what only a variant has.

No RolloutPolicy has a revision without a variant, so a person approves it: its verdict says so, with the
command. Two kinds are left alone. What a variant has made and given up may have its last wishes half done; a
person decides on it. The draft of a rollback is release's own until that proposes it.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.kernel.holds import because, hold_reason, is_held
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, HOLD, KEPT_FOR, RESTORES, reconciled_partition
from pvbus.core.kernel.promotionrows import Verdict
from pvbus.core.kernel.records import ObjectRow
from pvbus.core.promotion.promote.barrier import Opening
from pvbus.core.promotion.promote.verdicts import (
    DELETED,
    GATE_NOT_MET,
    LOSSES,
    NOT_OPENED,
    ON_HOLD,
    PROPOSED,
    PROPOSED_BY_HAND,
    PROPOSING,
    RETURNING,
    as_object,
    unserved,
    voiding,
    was_proposed,
)
from pvbus.core.promotion.protocol.proposals import Refusal, refusal_alone
from pvbus.core.promotion.protocol.unowned import unowned_key
from pvbus.core.variants.revisions.former import MADE_BY, PLACEHOLDER
from pvbus.core.variants.revisions.observed import ObservedRevision

LEFT_BEHIND = "LeftBehind"


class Subject(NamedTuple):
    """What a verdict is made on. The fields are those of a variant's revision."""

    revision: ObservedRevision
    opening: Opening
    served: frozenset[str] = frozenset()
    returns: bool = True
    quarantined: Refusal | None = None
    void: tuple[str, ...] = ()


def judge(subject: Subject) -> Verdict:
    """Return the verdict, on the row alone: a draft that was proposed before is to be compared, too."""
    revision = subject.revision
    verdict = Verdict(revision=revision.name, row_digest=revision.row.digest, reason="")
    if revision.row.deleted:
        return replace(verdict, reason=DELETED, message="it is being deleted")
    if revision.facts.lifecycle == PROPOSED:
        return _proposal(subject, verdict)
    refused = _left_behind(revision) or subject.quarantined or _refusal(subject)
    if subject.void and (refused is None or refused.reason == GATE_NOT_MET):
        return voiding(verdict, subject.void)
    if refused is not None:
        return replace(verdict, reason=refused.reason, message=refused.message)
    if subject.opening.closed:
        return replace(verdict, reason=NOT_OPENED, message=subject.opening.closed)
    return replace(verdict, reason=PROPOSING, message="it is ready", order="propose")


def judge_held(subject: Subject, held: Refusal | None) -> Verdict:
    """As `judge`. held: the quarantine of the revision's own files, None without one."""
    return judge(subject if held is None else subject._replace(quarantined=held))


def _proposal(subject: Subject, verdict: Verdict) -> Verdict:
    waits = _waits(subject)
    if not was_proposed(subject.revision):
        return replace(verdict, reason=PROPOSED_BY_HAND, message=f"a person proposed it: {waits}")
    lost = _refusal(subject)
    if lost is None or lost.reason not in LOSSES or _left_behind(subject.revision):
        return replace(verdict, reason=PROPOSED, message=waits)
    words = f"{lost.reason}: {lost.message}"
    if not subject.returns:
        message = f"it waits for approval, but lost its readiness: {words}"
        return replace(verdict, reason=PROPOSED, message=message)
    return replace(verdict, reason=RETURNING, message=words, order="return")


def _refusal(subject: Subject) -> Refusal | None:
    revision = subject.revision
    annotations = revision.row.annotations
    if is_held(annotations):
        take_off = f"kubectl annotate -n {revision.namespace} packagerevision {revision.name} {HOLD}-"
        return Refusal(ON_HOLD, f"it is on hold{because(hold_reason(annotations))}: {take_off}")
    refused = refusal_alone(as_object(revision))
    if refused is not None and refused.reason == GATE_NOT_MET:
        return refused._replace(message=f"{refused.message}{unserved(revision, subject.served)}")
    return refused


def _left_behind(revision: ObservedRevision) -> Refusal | None:
    record = revision.row.annotations.get(KEPT_FOR) or revision.row.annotations.get(MADE_BY)
    if record is None:
        return None
    message = (
        f"PackageVariant {record.partition('@')[0]} made it and no longer owns it: a person proposes it "
        "(pvbus explain says how), or deletes it"
    )
    return Refusal(LEFT_BEHIND, message)


def _waits(subject: Subject) -> str:
    """Say who approves a proposal, and how."""
    revision, held = subject.revision, subject.quarantined
    if held is not None:
        return f"it waits for approval, but {held.message}"
    return f"it waits for the approval of a person, as no rollout has it: {approve_command(revision)}"


def approve_command(revision: ObservedRevision) -> str:
    return (
        f"kubectl patch packagerevision {revision.name} -n {revision.namespace} --subresource approval "
        '--type merge -p \'{"spec": {"lifecycle": "Published"}}\''
    )


# ------------------------------------------------------------ the table


class UnownedView:
    """The revisions that opt in and that no variant owns, by the partitions of their keys."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._rows: dict[int, dict[str, ObservedRevision]] = {}

    def load(self, namespace: str, name: str, row: ObjectRow | None) -> tuple[str, ...]:
        """Take a row of a revision; return the key that it concerns, if any."""
        key = unowned_key(namespace, name)
        rows = self._rows.setdefault(reconciled_partition(key, self._partitions), {})
        before = rows.pop(key, None)
        if row is None or row.revision is None or not _is_served(row):
            return () if before is None else (key,)
        rows[key] = ObservedRevision(namespace, name, row, row.revision)
        return (key,)

    def get(self, partition: int, key: str) -> ObservedRevision | None:
        return self._rows.get(partition, {}).get(key)

    def keys_of(self, partition: int) -> Iterable[str]:
        return self._rows.get(partition, {})

    def keys_in(self, namespace: str) -> Iterator[str]:
        for rows in self._rows.values():
            yield from (key for key, revision in rows.items() if revision.namespace == namespace)


def _is_served(row: ObjectRow) -> bool:
    facts, annotations = row.revision, row.annotations
    if facts is None or facts.revision == PLACEHOLDER or facts.lifecycle in PUBLISHED:
        return False
    if annotations.get(AUTO_LIFECYCLE) != "true" or RESTORES in annotations:
        return False
    return not any(
        owner.kind == "PackageVariant" and owner.api_version.startswith(f"{CONFIG_GROUP}/")
        for owner in row.owners
    )
