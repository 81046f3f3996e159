"""Promote: from PackageVariants and their revisions to verdicts and candidates, one decision per variant, and
per revision that no variant owns (`unowned`).

It writes nothing to the cluster. A verdict with an order is carried out by release, if that runs and the
revision still is what the verdict was made on. Candidates are what the rollouts of RolloutPolicies know of a
variant. They stay as they are while the policies are not known completely; no verdict waits for these.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, PackageVariant
from pvbus.core.errors import PermanentError, PvbusError
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.effects import Effect, Get, Outcome, Put, Reconciliation
from pvbus.core.kernel.holds import SetHold
from pvbus.core.kernel.keys import PROPOSED_CONTENT, ChildKey, Key, TargetKey
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.messages import cut
from pvbus.core.kernel.objectrows import POLICY, QUARANTINE, SPECIALIZER, STOP
from pvbus.core.kernel.promotionrows import ApprovalRow, PromotionRow, ReleaseRow, Verdict
from pvbus.core.kernel.records import (
    APPROVALS,
    CANDIDATES,
    DESIRED,
    OBJECTS,
    POLICIES,
    PROMOTIONS,
    RELEASES,
    VARIANTS,
    WATCHES,
    DesiredRow,
)
from pvbus.core.kernel.requests import KindRequests
from pvbus.core.promotion.promote import unowned
from pvbus.core.promotion.promote.barrier import (
    Opening,
    Signed,
    bound,
    is_draft,
    opening,
    served_types,
    settled,
    settles_at,
    stale_in,
    unguarded,
)
from pvbus.core.promotion.promote.binding import (
    CONTENT_UNKNOWN,
    Binding,
    believed,
    bind,
    read_files,
    statements_of,
)
from pvbus.core.promotion.promote.candidates import (
    Revision,
    approved_by,
    candidates,
    doubtful_notes,
    is_asked_for,
    subject_of,
)
from pvbus.core.promotion.promote.isolation import Isolations, ensured_of
from pvbus.core.promotion.promote.policies import PolicyView
from pvbus.core.promotion.promote.state import PromoteState
from pvbus.core.promotion.promote.verdicts import (
    REJECTED,
    Subject,
    as_object,
    frozen_by,
    judge_held,
    outlived_by,
    rejected,
    was_proposed,
)
from pvbus.core.promotion.promote.view import PromoteView
from pvbus.core.promotion.protocol.proposals import Refusal, labels_of
from pvbus.core.promotion.protocol.unowned import address_of, is_unowned
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.holding import SET_KIND, holder_of
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import RESOURCES

VARIANT_KIND = f"{CONFIG_GROUP}/PackageVariant"
REQUESTED_KINDS: tuple[Kind, ...] = (SPECIALIZER, POLICY, QUARANTINE, STOP)

_variant = msgspec.json.Decoder(PackageVariant)
_desired = msgspec.json.Decoder(DesiredRow)
_promotion = msgspec.json.Decoder(PromotionRow)
_release = msgspec.json.Decoder(ReleaseRow)
_approval = msgspec.json.Decoder(ApprovalRow)

UNREADABLE_RETRY_SECONDS = 60.0  # files that the API server does not give may be readable later


class Promoted(NamedTuple):
    """The candidates of a variant.

    known, contents: the values of these fields of its PromotionRow
    again_after: seconds until the next decision, None if none is due
    """

    puts: tuple[Put, ...]
    known: dict[str, str]
    contents: dict[str, str]
    again_after: float | None = None


class PromoteController(KeyedController[PromoteState]):
    """Revisions in, verdicts and candidates out.

    A row is short: a verdict per open revision, with messages cut. Where a decision fails, the last verdict
    stays: no order can be wrong by age.
    """

    name = "promote"
    listed = (VARIANTS,)

    def __init__(self, *, partitions: int, returns: bool = True) -> None:
        """Create a controller without partitions.

        partitions: how many partitions the bus has
        returns: whether a proposal that loses its readiness goes back to Draft
        """
        super().__init__(lambda _: PromoteState())
        self.evaluations = 0
        self._returns = returns
        self._view = PromoteView(partitions)
        self._policies = PolicyView(partitions)
        self._isolations = Isolations(self._view, partitions)
        self._requests = KindRequests(self.name, REQUESTED_KINDS)

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        super().open(partition)
        self._requests.forget(partition)

    @staticmethod
    def has_work(state: PromoteState) -> bool:
        return bool(state.raw or state.row)

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == OBJECTS:
            dirty = self._view.load(partition, key, value)
            return self._all_keys() if dirty is None else dirty
        if topic == POLICIES:
            changed = self._policies.load(partition, key, value)
            isolated = self._isolations.load(partition, key, value)
            if changed is None or isolated is None:
                return self._all_keys()
            return self._keys_in({*changed, *isolated})
        if topic == WATCHES:
            self._requests.load(key, value)
            return ()
        table = self._tables.get(partition)
        if table is None:
            return ()
        if is_marker(key):
            is_news = self._load_marker(topic, partition, key, value)
            return [each for each, seen in table.items() if seen.raw is None] if is_news else ()
        policy, is_changed = "", True
        if topic == APPROVALS:
            key, policy = TargetKey.parse(key)
        seen = self._ensure_state(partition, key)
        if topic == VARIANTS:
            seen.raw = value
        elif topic == DESIRED:
            seen.desired = _desired.decode(value) if value is not None else None
        elif topic == RELEASES:
            is_changed = seen.take(_release.decode(value) if value is not None else None)
        elif topic == APPROVALS:
            is_changed = seen.freeze(policy, _approval.decode(value) if value is not None else None)
        else:
            seen.row = _promotion.decode(value) if value is not None else None
        if seen.is_empty:
            del table[key]
        elif not is_changed:
            return ()
        return (key,)

    def keys(self, partition: int) -> Iterable[str]:
        return dict.fromkeys((*super().keys(partition), *self._view.unowned.keys_of(partition)))

    def _keys_in(self, namespaces: Iterable[str]) -> list[str]:
        known = {*namespaces}
        return [key for key in self._all_keys() if address_of(key).namespace in known] if known else []

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == PROMOTIONS and partition in self._tables:
            seen = self._ensure_state(partition, put.key)
            seen.row = put.row if isinstance(put.row, PromotionRow) else None
            if seen.is_empty:
                del self._tables[partition][put.key]
        return ()

    def note_refusal(self, partition: int, puts: tuple[Put, ...], error: PermanentError) -> Iterable[str]:
        self._requests.forget(partition)
        return super().note_refusal(partition, puts, error)

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        requests = self._requests.take(partition)
        try:
            outcome = yield from self._decide(partition, key, now)
        except PvbusError:
            self._requests.forget(partition)  # the requests are lost with the outcome
            raise
        if not requests:
            return outcome
        result = "changed" if outcome.result == "unchanged" else outcome.result
        return outcome._replace(puts=(*requests, *outcome.puts), result=result)

    def _decide(self, partition: int, key: str, now: float) -> Reconciliation:
        if is_unowned(key):
            return (yield from self._decide_unowned(partition, key, now))
        seen, namespace = self.state(partition, key), Key.parse(key).namespace
        if seen is None or not (seen.row or self._view.has_open(key) or self._is_target(key, seen)):
            return Outcome()
        if seen.raw is None:
            return self._gone(partition, key, seen)
        unlisted = self._view.unlisted(namespace) or self._isolations.unlisted(namespace)
        if unlisted:
            return Outcome(result="waiting", waiting=(unlisted,))
        variant = _variant.decode(seen.raw)
        revisions = self._view.revisions_of(key, variant.metadata.uid)
        verdicts, dues, trusted = [], [], []
        followed = yield from self._isolations.of_followed(namespace, variant)
        for revision in revisions:
            former = seen.former(revision.name)
            ensured = ensured_of(variant, revision, former.source if former is not None else "")
            held = yield from self._isolations.of_open(namespace, variant, revision, ensured)
            signed = yield from self._sign(revision, former, now)
            frozen = _why_frozen(seen, variant, revision, followed)
            revision = believed(revision, signed)
            subject = self._subject(seen, variant, revision, now, signed)
            subject = subject._replace(quarantined=held, frozen=frozen, void=signed.void)
            self.evaluations += 1
            judge = partial(judge_held, subject)
            verdict = yield from self._compare(revision, variant, judge, former)
            noted = {"message": cut(verdict.message), "source": ensured, **signed._asdict()}
            verdicts.append(msgspec.structs.replace(verdict, **noted))
            trusted.append(revision)
            dues += _dues(subject.opening, revision, now)
        promoted = yield from self._promote(key, seen, variant, trusted, verdicts, now)
        if promoted.again_after is not None:
            dues.append(promoted.again_after)
        puts = (*promoted.puts, *self._changes(key, seen, variant, tuple(verdicts), promoted))
        return Outcome(puts, "changed" if puts else "unchanged", min(dues, default=None))

    def _decide_unowned(self, partition: int, key: str, now: float) -> Reconciliation:
        """Decide on a revision that no variant owns. Its row ends when a variant adopts it, too."""
        seen, revision = self.state(partition, key), self._view.unowned.get(partition, key)
        before = seen.row if seen is not None else None
        if before is None and revision is None:
            return Outcome()
        namespace = address_of(key).namespace
        unlisted = self._view.unlisted(namespace) or self._isolations.unlisted(namespace)
        if unlisted:
            return Outcome(result="waiting", waiting=(unlisted,))
        if revision is None:
            return Outcome((Put(PROMOTIONS, key, None),), "changed")
        former = seen.former(revision.name) if seen is not None else None
        signed = yield from self._sign(revision, former, now)
        revision = believed(revision, signed)
        opened = self._opening(revision, revision.row.labels, signed, now)
        served = served_types(self._view.specializers(namespace))
        held = yield from self._isolations.of_unowned(revision)
        subject = unowned.Subject(revision, opened, served, self._returns, held, signed.void)
        self.evaluations += 1
        judge = partial(unowned.judge_held, subject)
        verdict = yield from self._compare(revision, None, judge, former)
        verdict = msgspec.structs.replace(verdict, message=cut(verdict.message), **signed._asdict())
        row = PromotionRow(uid=revision.row.uid, verdicts=(verdict,))
        puts = () if row == before else (Put(PROMOTIONS, key, row),)
        due = min(_dues(opened, revision, now), default=None)
        return Outcome(puts, "changed" if puts else "unchanged", due)

    def _gone(self, partition: int, key: str, seen: PromoteState) -> Outcome:
        """Withdraw the rows of a variant that is gone, once the list of variants is complete."""
        if seen.row is None:
            return Outcome()
        if not self._is_listed(VARIANTS, partition, VARIANT_KIND, Key.parse(key).namespace):
            return Outcome(result="waiting", waiting=("the list of PackageVariants",))
        puts = (Put(CANDIDATES, _candidate_key(key, policy), None) for policy in seen.row.candidates)
        return Outcome((*puts, Put(PROMOTIONS, key, None)), "changed")

    def _sign(
        self, revision: ObservedRevision, former: Verdict | None, now: float
    ) -> Generator[Effect, Any, Signed]:
        """Return what the next decisions on a revision need to know of its content, which is read if a
        condition or an acknowledgement depends on it."""
        before, statements = Signed.of(former), statements_of(revision)
        named = unguarded(revision, self._view.specializers(revision.namespace)) if is_draft(revision) else {}
        binding = Binding(before.content, before.bound, before.void)
        is_same = former is not None and former.row_digest == revision.row.digest
        if not (named or statements):
            binding = Binding()
        elif not (is_same and binding.content and statements.keys() <= binding.bound.keys()):
            binding = bind(statements, before, (yield from read_files(revision)))
        acknowledged, gates = bound(named, before.acknowledged, binding.content), revision.facts.gates
        settling = settles_at(revision, before, now)
        return Signed(binding.content, acknowledged, gates, settling, binding.bound, binding.void)

    def _subject(
        self,
        seen: PromoteState,
        variant: PackageVariant,
        revision: ObservedRevision,
        now: float,
        signed: Signed,
    ) -> Subject:
        labels = labels_of(variant, as_object(revision))
        return Subject(
            variant,
            revision,
            self._opening(revision, labels, signed, now),
            set_on_hold=_set_on_hold(variant, seen),
            served=served_types(self._view.specializers(revision.namespace)),
            returns=self._returns,
        )

    def _opening(
        self, revision: ObservedRevision, labels: Mapping[str, str], signed: Signed, now: float
    ) -> Opening:
        specializers, hidden = self._view.specializers(revision.namespace), self._view.hidden()
        stale = stale_in(signed.acknowledged, signed.content)
        opened = Opening(hidden) if hidden else opening(revision, labels, specializers, now, stale)
        return settled(opened, signed.settles_at, now)

    def _compare(
        self,
        revision: ObservedRevision,
        variant: PackageVariant | None,
        judge: Callable[[Refusal | None], Verdict],
        former: Verdict | None,
    ) -> Generator[Effect, Any, Verdict]:
        """Judge a revision; compare a draft that was proposed before with what was proposed then, and with
        the contents that are quarantined. judge: returns the verdict, given what its own files say."""
        verdict = judge(None)
        is_compared = self._isolations.compares_files(revision.namespace, variant)
        if verdict.order != "propose" or not (was_proposed(revision) or is_compared):
            return verdict
        if former is not None and (former.row_digest, former.reason) == (verdict.row_digest, REJECTED):
            return former
        resources = yield Get(RESOURCES, revision.namespace, revision.name)
        files = resources["spec"].get("resources") or {} if resources is not None else {}
        found = content_digest(files)
        if found == revision.row.annotations.get(PROPOSED_CONTENT):
            return rejected(verdict, revision.namespace)
        held = self._isolations.of_files(revision.namespace, variant, revision, found)
        return judge(held) if held is not None else verdict

    # ------------------------------------------------------------ candidates

    def _is_target(self, key: str, seen: PromoteState) -> bool:
        """Tell whether a variant without open revisions may be a rollout's concern."""
        has_any = self._view.has_published(key) or seen.release is not None
        namespace, name = Key.parse(key)
        if has_any:
            return bool(self._policies.of(namespace))
        return self._policies.names_canary(namespace, name)

    def _promote(
        self,
        key: str,
        seen: PromoteState,
        variant: PackageVariant,
        revisions: Sequence[ObservedRevision],
        verdicts: Sequence[Verdict],
        now: float,
    ) -> Generator[Effect, Any, Promoted]:
        """Decide what the rollouts know of a variant; without a complete list of policies nothing changes."""
        before = dict(seen.row.candidates) if seen.row is not None else {}
        read = dict(seen.row.contents) if seen.row is not None else {}
        namespace, uid = Key.parse(key).namespace, variant.metadata.uid
        if not self._policies.is_known(namespace):
            return Promoted((), before, read)
        outcomes = seen.outcomes(uid)
        subject = subject_of(
            variant,
            revisions,
            self._view.published_of(key, uid, variant.spec.downstream, approved_by(outcomes)),
            set_on_hold=_set_on_hold(variant, seen),
            outcomes=outcomes,
            verdicts=verdicts,
            freezes=seen.frozen(uid),
        )
        policies, contents, is_read = self._policies.of(namespace), {}, True
        doubtful = doubtful_notes(revisions, subject, read)
        if not is_asked_for(subject, policies):
            read = {}
        else:
            wanted = tuple(subject.revisions(doubtful))
            read = yield from _read(namespace, wanted, read)
            contents = {each.name: each.noted or read.get(each.row_digest, "") for each in wanted}
            is_read = all(contents.values())
        if contents:
            name = subject.proposed.name if subject.proposed is not None else ""
            ensured = next((each.source for each in verdicts if each.revision == name), "")
            isolation = yield from self._isolations.of_target(
                namespace, variant, subject.proposed, subject.published, contents, ensured
            )
            subject, is_read = subject._replace(isolation=isolation), is_read and isolation.is_read
        self.evaluations += len(policies)
        found = candidates(subject, policies, contents, now)
        known = found.hashes()
        puts = [
            Put(CANDIDATES, _candidate_key(key, policy), row)
            for policy, row in found.rows.items()
            if known[policy] != before.get(policy)
        ]
        puts += [Put(CANDIDATES, _candidate_key(key, gone), None) for gone in before if gone not in known]
        dues = [] if is_read else [UNREADABLE_RETRY_SECONDS]
        if found.due is not None:
            dues.append(max(found.due - now, 0.1))
        return Promoted(tuple(puts), known, {**read, **doubtful}, min(dues, default=None))

    @staticmethod
    def _changes(
        key: str,
        seen: PromoteState,
        variant: PackageVariant,
        verdicts: tuple[Verdict, ...],
        promoted: Promoted,
    ) -> tuple[Put, ...]:
        row = None
        if verdicts or promoted.known:
            row = PromotionRow(
                uid=variant.metadata.uid,
                generation=variant.metadata.generation,
                verdicts=verdicts,
                candidates=promoted.known,
                contents=promoted.contents,
            )
        return () if row == seen.row else (Put(PROMOTIONS, key, row),)


def _dues(opened: Opening, revision: ObservedRevision, now: float) -> list[float]:
    """Return the seconds until a decision on a revision may be another one, though no record comes."""
    dues = [max(opened.until - now, 0.1)] if opened.until is not None else []
    is_unread = any(each.reason == CONTENT_UNKNOWN for each in revision.facts.conditions)
    return [*dues, UNREADABLE_RETRY_SECONDS] if is_unread else dues


def _candidate_key(key: str, policy: str) -> str:
    namespace, variant = Key.parse(key)
    return str(ChildKey(str(Key(namespace, policy)), variant))


def _why_frozen(
    seen: PromoteState, variant: PackageVariant, revision: ObservedRevision, followed: Refusal | None
) -> str:
    """Say why a proposal stays as it is though a newer upstream revision is there, "" if it does not.
    followed: why that one goes nowhere, None for nothing."""
    if followed is not None:
        return outlived_by(followed)
    orders = seen.frozen(variant.metadata.uid).items()
    found = (
        frozen_by(Key(revision.namespace, policy), row.attempt)
        for policy, row in orders
        if row.revision == revision.name
    )
    return next(found, "")


def _set_on_hold(variant: PackageVariant, seen: PromoteState) -> SetHold | None:
    """Return the hold of the variant's set."""
    holder = holder_of(variant, seen.desired)
    is_set = holder is not None and holder.kind == SET_KIND
    return SetHold(holder.key.name, holder.reason) if holder is not None and is_set else None


def _read(
    namespace: str, wanted: Iterable[Revision], read: dict[str, str]
) -> Generator[Effect, Any, dict[str, str]]:
    """Read the files of revisions without a noted digest, each once. Returns content digests by row digest.

    One that cannot be read is left out: it must not keep the variant's drafts from being proposed.
    """
    found = {}
    for each in wanted:
        if each.noted:
            continue
        if each.row_digest in read:
            found[each.row_digest] = read[each.row_digest]
            continue
        try:
            resources = yield Get(RESOURCES, namespace, each.name)
        except PermanentError:
            continue
        if resources is not None:
            found[each.row_digest] = content_digest(resources["spec"].get("resources") or {})
    return found
