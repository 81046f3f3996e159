"""What the rollouts of a namespace know of one variant: a CandidateRow for each policy that selects it.

The policy of the highest rank has the target; the others are told which one that is. A policy that lost a
target, or does not select it any more, still learns what its last order came to: it waits for that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from pvbus.core.api.rollouts import RolloutPolicySpec
from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.holds import SetHold
from pvbus.core.kernel.keys import PROPOSED_CONTENT, digest
from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.objects import set_among
from pvbus.core.kernel.promotionrows import Approval, ApprovalRow, CandidateRow, Verdict
from pvbus.core.promotion.promote.isolation import Isolation
from pvbus.core.promotion.promote.policies import Policy
from pvbus.core.promotion.promote.sources import evidence_source
from pvbus.core.promotion.promote.verdicts import BLOCKING, DELETED, PROPOSED, as_object
from pvbus.core.promotion.promote.view import PublishedRevision
from pvbus.core.promotion.protocol.evidence import READY
from pvbus.core.promotion.protocol.proposals import hold_refusal, is_outdated, labels_of, unready
from pvbus.core.promotion.protocol.selection import (
    NOT_SELECTED,
    LeftOut,
    Package,
    is_current,
    is_for,
    not_selected,
    order_of,
    owner_of,
    seat_of,
    standing,
    upstream_of,
)
from pvbus.core.variants.readiness import readiness
from pvbus.core.variants.revisions.observed import ObservedRevision

NO_REVISION = "NoRevision"
NEWER = "Ready is about a newer revision"
NO_FREEZES: Mapping[str, ApprovalRow] = {}


class Revision(NamedTuple):
    """A revision whose content a rollout is about. noted: the digest in its annotation, "" if it has none."""

    name: str
    row_digest: str
    noted: str


class Subject(NamedTuple):
    """What the rows of one variant are made of.

    proposed: the newest proposal, None without one
    published: the latest published revision, None without one
    is_newer_open: whether the variant has an open revision
    outcomes: policy -> the outcome of its last order
    draft: the verdict on its newest draft, None without one
    isolation: what is known of the quarantines that concern it
    freezes: policy -> its order that a revision stays as planned
    """

    variant: PackageVariant
    package: Package | None
    proposed: ObservedRevision | None
    published: PublishedRevision | None
    is_newer_open: bool
    outcomes: Mapping[str, Approval]
    draft: Verdict | None = None
    isolation: Isolation = Isolation()
    freezes: Mapping[str, ApprovalRow] = NO_FREEZES

    def is_frozen(self, policy: str, revision: str) -> bool:
        """Tell whether a newer upstream revision changes nothing for a revision of a policy."""
        order = self.freezes.get(policy)
        return self.isolation.is_upstream_held or (order is not None and order.revision == revision)

    def revisions(self, doubtful: Mapping[str, str]) -> Iterator[Revision]:
        """Yield the revisions whose content must be known. doubtful: see `doubtful_notes`.

        Whoever may edit a published revision may write another digest into its annotation. So the note counts
        if release compared it with the files when it approved them.
        """
        if self.proposed is not None:
            name, row = self.proposed.name, self.proposed.row
            noted = row.annotations.get(PROPOSED_CONTENT, "")
            yield Revision(name, row.digest, noted if doubtful.get(name) != noted else "")
        if self.published is not None:
            name, noted = self.published.name, self.published.content
            is_compared = approved_by(self.outcomes).get(name) == noted
            yield Revision(name, self.published.row_digest, noted if is_compared else "")


class Candidates(NamedTuple):
    """The rows of one variant.

    rows: policy -> its row
    due: when the next delay is over, in seconds since the epoch; None if no delay runs
    """

    rows: dict[str, CandidateRow]
    due: float | None

    def hashes(self) -> dict[str, str]:
        return {policy: digest(row) for policy, row in self.rows.items()}


def subject_of(
    variant: PackageVariant,
    revisions: Sequence[ObservedRevision],
    published: PublishedRevision | None,
    *,
    set_on_hold: SetHold | None = None,
    outcomes: Mapping[str, Approval],
    verdicts: Sequence[Verdict] = (),
    freezes: Mapping[str, ApprovalRow] = NO_FREEZES,
) -> Subject:
    """Gather what is known of a variant. revisions: its open ones; those of a former downstream package are
    no part of it, as is the published one of such a package. verdicts: on the open ones."""
    downstream = variant.spec.downstream
    mine = [
        each
        for each in revisions
        if downstream is None
        or (each.facts.repository, each.facts.package) == (downstream.repo, downstream.package)
    ]
    proposals = (each for each in mine if each.facts.lifecycle == PROPOSED)
    proposed = max(proposals, key=lambda each: (each.row.created, each.name), default=None)
    drafts = [each for each in mine if each.facts.lifecycle != PROPOSED]
    newest = max(drafts, key=lambda each: (each.row.created, each.name), default=None)
    draft = next((each for each in verdicts if newest is not None and each.revision == newest.name), None)
    package = None
    if mine or published is not None:
        package = _package(variant, proposed, published, mine, set_on_hold)._replace(is_open=bool(mine))
    return Subject(variant, package, proposed, published, bool(mine), outcomes, draft, freezes=freezes)


def _package(
    variant: PackageVariant,
    proposed: ObservedRevision | None,
    published: PublishedRevision | None,
    mine: Sequence[ObservedRevision],
    set_on_hold: SetHold | None,
) -> Package:
    shown = proposed if proposed is not None else published or mine[0]
    if isinstance(shown, PublishedRevision):
        repository, labels = shown.downstream.repo, shown.labels
    else:
        repository, labels = shown.facts.repository, shown.row.labels
    return Package(
        variant.metadata.name,
        repository,
        as_object(proposed) if proposed is not None else None,
        {"metadata": {"name": published.name}} if published is not None else None,
        labels_of(variant, {"metadata": {"labels": labels}}),
        variant,
        set_among(variant.metadata.owner_references),
        set_on_hold,
    )


def doubtful_notes(
    revisions: Sequence[ObservedRevision], subject: Subject, before: Mapping[str, str]
) -> dict[str, str]:
    """Return by name the notes of drafts that promote proposed and a person rejected. Proposed by a person,
    such a draft may have other content than its note says. before: what was returned last."""
    name = subject.proposed.name if subject.proposed is not None else ""
    notes = {name: before[name]} if name in before else {}
    for each in revisions:
        noted = each.row.annotations.get(PROPOSED_CONTENT)
        if noted and each.facts.lifecycle != PROPOSED:
            notes[each.name] = noted
    return notes


def approved_by(outcomes: Mapping[str, Approval]) -> dict[str, str]:
    """Return the revisions that release has published for rollouts, with the digest of their content."""
    return {
        each.revision: each.digest
        for each in outcomes.values()
        if (each.order, each.outcome) == ("approve", "done")
    }


def is_asked_for(subject: Subject, policies: Sequence[Policy]) -> bool:
    """Tell whether any policy has to know of a variant."""
    package = subject.package
    return any(
        each.name in subject.outcomes or (package is not None and is_for(each.spec, package))
        for each in policies
    )


def candidates(
    subject: Subject, policies: Sequence[Policy], contents: Mapping[str, str], now: float
) -> Candidates:
    """Return the rows of a variant.

    policies: the policies of the namespace, in the order of their rank
    contents: revision name -> digest of its content
    now: the time, in seconds since the epoch
    """
    rows, dues = {}, []
    package = subject.package
    owner = owner_of([each.spec for each in policies], package) if package is not None else None
    winner = policies[owner].name if owner is not None else ""
    for policy in policies:
        known = _known(subject, subject.outcomes.get(policy.name), contents)
        if package is None or not is_for(policy.spec, package):
            if subject.variant.metadata.name in policy.spec.canaries:
                rows[policy.name] = _unselected(policy.spec, package, subject, known)
            elif policy.name in subject.outcomes:
                rows[policy.name] = replace(known, reason=NOT_SELECTED, message="it is not selected any more")
        elif winner != policy.name:
            rows[policy.name] = replace(known, winner=winner)
        else:
            rows[winner], due = _won(subject, policy, package, contents, now)
            dues += [due] if due else []
    return Candidates(rows, min(dues, default=None))


def _unselected(
    spec: RolloutPolicySpec, package: Package | None, subject: Subject, known: CandidateRow
) -> CandidateRow:
    """Return the row of a canary that is no target of its policy, with the reason."""
    if package is not None:
        return replace(known, reason=NOT_SELECTED, message=cut(not_selected(spec, package)))
    refused = unready(subject.variant)
    why = f": {refused.message}" if refused is not None else ""
    return replace(known, reason=NO_REVISION, message=cut(f"it has no package revision{why}"))


def _known(subject: Subject, outcome: Approval | None, contents: Mapping[str, str]) -> CandidateRow:
    """Return the row of a policy without the target: the outcome of its order, if it gave one."""
    uid, published = subject.variant.metadata.uid, subject.published
    if outcome is None:
        return CandidateRow(uid=uid)
    name = published.name if published is not None else ""
    return CandidateRow(uid=uid, published=name, published_digest=contents.get(name, ""), **_outcome(outcome))


def _outcome(approval: Approval | None) -> dict[str, Any]:
    """Return the fields of a row that say what the policy's last order came to."""
    if approval is None:
        return {}
    fields = {
        ("approve", "refused"): "refused",
        ("withdraw", "withdrawn"): "withdrawn",
        ("approve", "withdrawn"): "withdrawn",
        ("restore", "unrestored"): "unrestored",
    }
    field = fields.get((approval.order, approval.outcome))
    return {field: approval.attempt, "failure": approval.message} if field else {}


def _won(
    subject: Subject, policy: Policy, package: Package, contents: Mapping[str, str], now: float
) -> tuple[CandidateRow, float]:
    """Return the row of the policy that has the target, and when its delay is over (0: it has none)."""
    unit, part = seat_of(policy.spec, package)
    annotation = policy.spec.train.annotation if policy.spec.train is not None and part else ""
    revision = subject.proposed.name if subject.proposed is not None else ""
    published = subject.published.name if subject.published is not None else ""
    package = package._replace(is_frozen=subject.is_frozen(policy.name, revision))
    left_out = _left_out(subject, policy, package, contents, now)
    is_settled = is_current(package)
    is_good, verdict = evidence(
        policy.spec.conditions, subject, is_frozen=subject.is_frozen(policy.name, published)
    )
    canary, places, _ = order_of(policy.spec, package)
    if left_out is None and not revision and package.name in policy.spec.canaries:
        left_out = _unproposed(subject, package)
    row = CandidateRow(
        uid=subject.variant.metadata.uid,
        canary=canary,
        places=places,
        revision=revision,
        digest=contents.get(revision, ""),
        upstream=upstream_of(subject.variant),
        is_current=is_settled,
        is_proposed=bool(revision) and left_out is None,
        reason=left_out.reason if left_out is not None else "",
        message=cut(left_out.message) if left_out is not None else "",
        published=published,
        published_digest=contents.get(published, ""),
        is_good=is_good,
        verdict=cut(verdict),
        source=subject.isolation.source,
        files=subject.isolation.files,
        published_source=subject.isolation.published_source,
        runs=subject.isolation.runs,
        unit=unit,
        part=part,
        release=subject.isolation.release(annotation),
        published_release=subject.isolation.published_release(annotation),
        banned=subject.isolation.banned if part else (),
        is_upstream_held=subject.isolation.is_upstream_held,
        evidence=evidence_source(policy.spec, subject.variant, package.labels, subject.published),
        **_outcome(subject.outcomes.get(policy.name)),
    )
    return row, left_out.due if left_out is not None else 0


def _left_out(
    subject: Subject, policy: Policy, package: Package, contents: Mapping[str, str], now: float
) -> LeftOut | None:
    """Return why nothing may be approved now, None if nothing speaks against it."""
    proposed = subject.proposed
    name = proposed.name if proposed is not None else ""
    if policy.problems:
        return LeftOut(package.name, name, "InvalidSpec", SEPARATOR.join(policy.problems))
    if subject.variant.metadata.deletion_timestamp or (proposed is not None and proposed.row.deleted):
        return LeftOut(package.name, name, DELETED, "it is being deleted")
    if proposed is None:
        return None
    if not contents.get(name):
        return LeftOut(package.name, name, "ContentUnknown", "its files could not be read")
    if (held := subject.isolation.proposed) is not None:
        return LeftOut(package.name, name, held.reason, held.message)
    if not seat_of(policy.spec, package)[1] and (held := subject.isolation.member()) is not None:
        return LeftOut(package.name, name, held.reason, held.message)
    return standing(policy.spec, package, now)


def _unproposed(subject: Subject, package: Package) -> LeftOut | None:
    """Return why a canary has no proposal, None if it wants none."""
    name, draft = package.name, subject.draft
    if draft is not None:
        return LeftOut(name, draft.revision, draft.reason, f"{draft.revision}: {draft.message}")
    refused = hold_refusal(subject.variant, package.set_on_hold) or unready(subject.variant)
    return LeftOut(name, "", refused.reason, refused.message) if refused is not None else None


# ------------------------------------------------------------ evidence


def evidence(types: Sequence[str], subject: Subject, *, is_frozen: bool = False) -> tuple[bool | None, str]:
    """Return whether the published revision is good as far as Ready goes, and why not: False if the variant
    fails, None if it is not ready yet. types: of the policy's conditions; none stands for Ready. is_frozen:
    whether a newer revision unsays nothing of it: then it is good by its publication."""
    if subject.published is None:
        return None, ""
    if READY not in (types or (READY,)):
        return True, ""
    is_good, why = _ready(subject, subject.published, is_frozen=is_frozen)
    return is_good, "" if is_good else why


def _ready(subject: Subject, published: PublishedRevision, *, is_frozen: bool) -> tuple[bool | None, str]:
    """The variant's Ready says something of the published revision while that is the one it is about."""
    variant = subject.variant
    if subject.is_newer_open and published.name not in {
        target.name for target in variant.status.downstream_targets
    }:
        return (True, "") if is_frozen else (None, NEWER)
    ready = next((each for each in variant.status.conditions if each.type == READY), None)
    if ready is None or ready.observed_generation < variant.metadata.generation:
        return None, "Ready: the services have not done the variant's last change yet"
    if ready.status == "False" and ready.reason in BLOCKING:
        # What the variant wants next had to wait for this publication, of which Ready is no verdict.
        return (True, "") if is_frozen and is_outdated(variant) else (None, NEWER)
    is_ready, why, is_failing = readiness(variant)
    return (True if is_ready else False if is_failing else None), f"Ready: {why}"
