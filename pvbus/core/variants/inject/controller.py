"""Decides for one PackageVariant: what it waits for, and when to reconcile its downstream.

The result row stores a digest of all inputs of the outcome: the spec, the upstream's identity, the
revisions of the downstream and the content of injected objects. If the digest is equal, nothing is
read or written, so a restart writes nothing.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, Downstream, PackageVariant, Upstream
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.echo import ECHO_SECONDS
from pvbus.core.kernel.effects import INTERNAL_ERROR, Effect, Outcome, Put, Reconciliation
from pvbus.core.kernel.keys import FINALIZER, RETRY, Key, TargetKey, digest, okey, sha1_head, watch_key
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import (
    APPROVALS,
    DESIRED,
    INJECTABLES,
    OBJECTS,
    RESULTS,
    VARIANTS,
    WATCHES,
    DesiredRow,
    ResultRow,
    WatchRequest,
)
from pvbus.core.variants.following import MOVED_TAGS, follows_saves, refuses_moved_tags
from pvbus.core.variants.inject import report
from pvbus.core.variants.inject.choosing import NotYetError
from pvbus.core.variants.inject.ensure import ContentName, ContentNeededError, DownstreamReconciler
from pvbus.core.variants.inject.mutations import (
    InjectionPoint,
    validate_variant,
    wanted,
)
from pvbus.core.variants.inject.requests import KnownPoints, Requests, requester
from pvbus.core.variants.inject.state import InjectState, Inputs, Pass, RefusedAttempt, Written
from pvbus.core.variants.inject.view import REPOSITORY_KIND, InjectView, PackageKey, ViewCandidates
from pvbus.core.variants.missing import missing_part, no_repository
from pvbus.core.variants.revisions.holding import Holder, holder_of, unheld, until_held
from pvbus.core.variants.revisions.observed import REVISION_KIND, ObservedRevision
from pvbus.core.variants.revisions.owning import add_finalizer, terminate

VARIANT_KIND = f"{CONFIG_GROUP}/PackageVariant"
REFUSED_RETRY_SECONDS = 60.0
TERMINATING_RETRY_SECONDS = 5.0
WAIT_REPORTED_SECONDS = 2.0  # shorter waits are part of every change; reporting them would make Ready flap
LIST_REPORTED_SECONDS = 10.0  # the first list of a large cluster takes a while, and blocks every key
TROUBLE_REPORTED_SECONDS = 5.0  # shorter trouble is the restart of another component
BACKOFF_SECONDS = (0.2, 60.0)

_variant = msgspec.json.Decoder(PackageVariant)
_desired = msgspec.json.Decoder(DesiredRow)
_result = msgspec.json.Decoder(ResultRow)
_approval = msgspec.json.Decoder(ApprovalRow)


class InjectController(KeyedController[InjectState]):
    """PackageVariants in, drafts out. No row here grows with its input beyond the bus's limit."""

    name = "inject"
    listed = (VARIANTS,)
    evaluations = 0

    def __init__(self, *, partitions: int, elapsed: Callable[[], float]) -> None:
        """Create a controller without partitions.

        partitions: how many partitions the bus has
        elapsed: returns the seconds of a clock that cannot go back
        """
        super().__init__(lambda _: InjectState())
        self.view = InjectView(partitions)
        self._elapsed = elapsed
        self._requests = Requests()
        self._points = KnownPoints()

    # ------------------------------------------------------------ records in

    def close(self, partition: int) -> None:
        for vkey in self._tables.get(partition, ()):
            self.view.forget(vkey)
        self._requests.close(partition)
        super().close(partition)

    @staticmethod
    def has_work(state: InjectState) -> bool:
        return bool(state.raw or state.result)

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == OBJECTS:
            dirty = self.view.load_object(partition, key, value)
            return self._all_keys() if dirty is None else dirty
        if topic == INJECTABLES:
            return self.view.load_injectable(partition, key, value)
        if topic == WATCHES:
            self._requests.load(key, value)
            return ()
        if partition not in self._tables:
            return ()
        if is_marker(key):
            return self.keys(partition) if self._load_marker(topic, partition, key, value) else ()
        policy = ""
        if topic == APPROVALS:
            key, policy = TargetKey.parse(key)
        seen = self._ensure_state(partition, key)
        if topic == VARIANTS:
            seen.raw = value
        elif topic == APPROVALS:
            seen.strand(policy, _approval.decode(value) if value is not None else None)
        elif topic == DESIRED:
            seen.desired = _desired.decode(value) if value is not None else None
        else:
            self._remember(partition, key, _result.decode(value) if value is not None else None)
        return (key,)

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == RESULTS and partition in self._tables:
            self._remember(partition, put.key, put.row if isinstance(put.row, ResultRow) else None)
        return ()

    def _remember(self, partition: int, key: str, row: ResultRow | None) -> None:
        seen = self._ensure_state(partition, key)
        seen.result = row
        if row is not None:
            self._requests.remember(partition, key, row.requests)
        elif seen.raw is None and seen.desired is None:
            del self._tables[partition][key]

    def failure_rows(self, partition: int, key: str, message: str, now: float) -> tuple[Put, ...]:
        seen = self.state(partition, key)
        if seen is None or seen.raw is None:
            return ()
        one = Pass(partition, key, seen, _variant.decode(seen.raw), now, self._elapsed())
        return self._end(one, report.failed_conditions(one.variant, message, reason=INTERNAL_ERROR)).puts

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        seen = self.state(partition, key)
        if seen is None:
            return Outcome()
        if seen.raw is None:
            return self._forget_absent(partition, key, seen)
        one = Pass(partition, key, seen, _variant.decode(seen.raw), now, self._elapsed())
        try:
            return (yield from self._unless_held(one))
        except NotYetError as wait:
            return self._waits(one, (str(wait),))
        except (ConflictError, TransientError) as error:
            reported = self._note_trouble(one, error)
            if reported is None:
                raise
            return reported
        except PermanentError as error:
            outcome = self._end(one, report.failed_conditions(one.variant, str(error)))
            return outcome._replace(result="failed", again_after=REFUSED_RETRY_SECONDS)

    def _unless_held(self, one: Pass) -> Reconciliation:
        seen = one.seen
        holder = holder_of(one.variant, seen.desired)
        if holder:
            conditions = report.held_conditions(one.variant, str(holder), holder.reason)
            return self._end(one, conditions, waiting=(unheld(holder),))

        def holder_now() -> Holder | None:
            return holder_of(_variant.decode(seen.raw), seen.desired) if seen.raw is not None else None

        return (yield from until_held(self._decide(one), holder_now))

    def _decide(self, one: Pass) -> Reconciliation:
        for kind in (REVISION_KIND, REPOSITORY_KIND):
            if not self.view.sync.ok(kind, one.namespace):
                problem = self.view.sync.problem(kind, one.namespace)
                words = (f"the list of {kind}" + (f" ({problem})" if problem else ""),)
                if one.result is not None:  # a relist says nothing new about this variant
                    return Outcome(result="waiting", waiting=words)
                return self._waits(one, words, reported_after=LIST_REPORTED_SECONDS)
        if one.variant.metadata.deletion_timestamp:
            return (yield from self._terminate(one))
        if self._set_will_change_it(one):
            return self._waits(one, ("its PackageVariantSet to change it",))
        return (yield from self._ensure(one))

    @staticmethod
    def _set_will_change_it(one: Pass) -> bool:
        desired = one.seen.desired
        return (
            desired is not None
            and desired.outcome == "applied"
            and desired.uid == one.uid
            and desired.spec_digest != digest(one.variant.spec)
        )

    def _forget_absent(self, partition: int, key: str, seen: InjectState) -> Outcome:
        if not self._is_listed(VARIANTS, partition, VARIANT_KIND, Key.parse(key).namespace):
            return Outcome(result="waiting", waiting=("the list of PackageVariants",))
        puts = self._requests.change(partition, key, {})
        if seen.result is not None:
            puts.append(Put(RESULTS, key, None))
        self.view.forget(key)
        if not puts and seen.desired is None:
            del self._tables[partition][key]
        return Outcome(tuple(puts), "changed" if puts else "unchanged")

    def _terminate(self, one: Pass) -> Reconciliation:
        """Release the revisions; remove the finalizer when all are gone.

        The echoes of the deleted revisions come before that of the variant: they need no second look.
        """
        row = one.seen.raw
        if row == one.seen.released:
            return Outcome(result="waiting", waiting=("the end of its deletion",))
        if FINALIZER not in one.variant.metadata.finalizers:
            return Outcome(result="waiting", waiting=("its other finalizers",))
        downstreams = dict.fromkeys(one.result.downstreams if one.result is not None else ())
        if one.variant.spec.downstream is not None:
            downstreams[one.variant.spec.downstream] = None
        for revision in self.view.owned(one.namespace, one.uid):
            downstreams[Downstream(repo=revision.facts.repository, package=revision.facts.package)] = None
        self.view.use(one.key, one.uid, downstreams=[(one.namespace, p.repo, p.package) for p in downstreams])
        left = yield from terminate(one.variant, downstreams)
        if not left:
            one.seen.released = row
            return Outcome(result="changed")
        outcome = self._end(one, report.terminating_conditions(one.variant, left), waiting=tuple(left))
        return outcome._replace(result="waiting", again_after=TERMINATING_RETRY_SECONDS)

    def _ensure(self, one: Pass) -> Reconciliation:
        if FINALIZER not in one.variant.metadata.finalizers:
            yield from add_finalizer(one.variant)
        spec = one.variant.spec
        problems = validate_variant(spec, one.variant.metadata.annotations)
        if problems:
            return self._end(one, report.invalid_conditions(one.variant, "; ".join(problems)))
        assert spec.upstream is not None
        assert spec.downstream is not None
        ends = (spec.upstream, spec.downstream)
        downstreams = [(one.namespace, end.repo, end.package) for end in ends]
        upstream = self.view.upstream(one.namespace, spec.upstream)
        if upstream is None:
            self.view.use(one.key, one.uid, downstreams=downstreams)
            message = report.upstream_missing(spec.upstream, self._missing(one.namespace, spec.upstream))
            conditions = report.invalid_conditions(one.variant, message)
            return self._end(one, conditions, waiting=(report.upstream_wanted(spec.upstream),))
        names = yield from self._content_names(one, upstream)
        puts, unknown = self._gather(one, names, downstreams)
        if unknown:
            return self._waits(one, tuple(f"the content of {what}" for what in unknown), puts)
        if puts:
            return Outcome(tuple(puts), "changed", again_after=0)
        return (yield from self._look(one, upstream))

    def _missing(self, namespace: str, upstream: Upstream) -> str:
        revisions = self.view.at(namespace, Downstream(repo=upstream.repo, package=upstream.package))
        return missing_part(
            upstream,
            namespace,
            has_repository=self.view.has_repository(namespace, upstream.repo),
            revisions=[revision.facts for revision in revisions],
        )

    def _look(self, one: Pass, upstream: ObservedRevision) -> Reconciliation:
        """Compare the inputs with those of the last attempt; make another attempt if they differ."""
        seen = one.seen
        inputs = self._inputs(one, upstream)
        if one.result is not None and one.result.input_digest == inputs.digest():
            seen.waiting_since = seen.trouble = seen.refused = None
            if one.result.generation == one.variant.metadata.generation:
                return Outcome()
            row = report.of_generation(one.result, one.variant, one.now)  # a change was reverted
            return Outcome((Put(RESULTS, one.key, row),), "changed")
        if (
            seen.refused is not None
            and seen.refused.inputs == inputs.digest()
            and one.elapsed < seen.refused.until
        ):
            return self._report_refusal(one, upstream, seen.refused)
        if seen.written is not None:
            echo = self._echo(one, inputs, seen.written)
            if echo is not None:
                return echo
        return (yield from self._attempt(one, upstream, inputs))

    def _echo(self, one: Pass, inputs: Inputs, written: Written) -> Outcome | None:
        """Return an outcome if only our own writes changed the inputs, None if anything else did."""
        observed = {r.name: r.row.resource_version for r in self._revisions(one)}
        versions = {name: observed.get(name, "") for name in written.versions}
        known = all(not v or v in written.versions[name] for name, v in versions.items())
        others = inputs.digest(without=written.versions)
        if not known or others != written.others or one.elapsed >= written.until:
            one.seen.written = None
            return None
        if any(v != written.versions[name][-1] for name, v in versions.items()):
            return Outcome(result="waiting", again_after=written.until - one.elapsed, waiting=("an echo",))
        one.seen.written = None
        assert one.result is not None
        row = msgspec.structs.replace(one.result, input_digest=inputs.digest())
        return Outcome((Put(RESULTS, one.key, report.with_attention(row, one, self.view)),), "changed")

    def _attempt(self, one: Pass, upstream: ObservedRevision, inputs: Inputs) -> Reconciliation:
        """Reconcile the downstream, and record the outcome.

        inputs: the inputs at the start; a change during the attempt needs another attempt
        """
        seen = one.seen
        reported = one.result.targets if one.result is not None else one.variant.status.downstream_targets
        before = {target.name: target for target in reported}
        candidates = ViewCandidates(self.view, one.namespace, seen.names)
        reconciler = DownstreamReconciler(one.variant, upstream, self.view, candidates, seen.names, before)
        try:
            ensured = yield from reconciler.run()
        except ContentNeededError as needed:
            seen.content = needed.names
            return Outcome(result="changed", again_after=0)
        except ConflictError:
            raise
        except PermanentError as error:
            message = self._explained(one, error)
            until = one.elapsed + REFUSED_RETRY_SECONDS
            seen.refused = RefusedAttempt(inputs.digest(), message, until, error.reason)
            return self._report_refusal(one, upstream, seen.refused)
        seen.content, seen.refused = (), None
        outcome = self._end(
            one,
            report.ensured_conditions(one.variant, ensured, one.result),
            waiting=report.awaited(ensured),
            upstream=upstream,
            ensured=ensured,
            input_digest=inputs.digest(),
            cause=one.now,
        )
        if ensured.written:
            others = inputs.digest(without=ensured.written)
            seen.written = Written(others, dict(ensured.written), one.elapsed + ECHO_SECONDS)
        return outcome

    def _explained(self, one: Pass, error: PermanentError) -> str:
        """Name the likely cause of an error that the server's own words do not explain to a person."""
        assert one.variant.spec.downstream is not None
        repo = one.variant.spec.downstream.repo
        if self.view.has_repository(one.namespace, repo):
            return str(error)
        return f"{no_repository(repo, one.namespace)}: {error}"

    def _report_refusal(self, one: Pass, upstream: ObservedRevision, refused: RefusedAttempt) -> Outcome:
        """Report a permanent failure; report it again if another result was reported since, for example
        after a change that was reverted."""
        conditions = report.refused_conditions(one.variant, refused.error, refused.reason)
        outcome = self._end(one, conditions, upstream=upstream)
        return outcome._replace(result="failed", again_after=refused.until - one.elapsed)

    # ------------------------------------------------------------ inputs

    def _content_names(
        self, one: Pass, upstream: ObservedRevision
    ) -> Generator[Effect, Any, tuple[ContentName, ...]]:
        """Return the objects that may be injected: for the points of the last result, and for those of
        the upstream if it is new."""
        injectors = one.variant.spec.injectors
        if not injectors:
            return ()
        row = one.result
        points = [
            InjectionPoint(i.file, 0, i.group, i.version, i.kind, "", i.required, i.condition_type)
            for i in (row.injected if row is not None else ())
        ]
        followed = upstream.followed(saves=follows_saves(one.variant))
        if row is None or not row.input_digest or row.upstream_identity != followed:
            points += (yield from self._points.of(one.namespace, upstream)).points
        return tuple(dict.fromkeys((*wanted(points, injectors), *one.seen.content)))

    def _gather(
        self, one: Pass, names: tuple[ContentName, ...], downstreams: list[PackageKey]
    ) -> tuple[list[Put], list[str]]:
        """Request the objects that may be injected; return the requests to write, and the unknown objects."""
        one.seen.names = names
        requests: dict[str, WatchRequest] = {}
        objects: set[str] = set()
        unknown = []
        for group, version, kind, name in names:
            request = WatchRequest(
                group=group,
                kind=kind,
                requester=requester(one.partition),
                content=True,
                namespace=one.namespace,
                name=name,
            )
            requests[watch_key(request)] = request
            objects |= {okey(group, kind, one.namespace, name), okey(group, kind, one.namespace, "")}
            if self.view.injectable(group, kind, one.namespace, name) is None:
                if not self.view.unavailable(group, version, kind, one.namespace):
                    unknown.append(f"{kind} {name}")
        kinds = {f"{group}/{kind}" for group, _, kind, _ in names}
        self.view.use(one.key, one.uid, downstreams=downstreams, objects=objects, kinds=kinds)
        return self._requests.change(one.partition, one.key, requests), unknown

    def _revisions(self, one: Pass) -> list[ObservedRevision]:
        """Return the observed revisions that the outcome depends on, by name."""
        assert one.variant.spec.downstream is not None
        found = {r.name: r for r in self.view.at(one.namespace, one.variant.spec.downstream)}
        found |= {r.name: r for r in self.view.owned(one.namespace, one.uid)}
        return [found[name] for name in sorted(found)]

    def _inputs(self, one: Pass, upstream: ObservedRevision) -> Inputs:
        contents = []
        for group, version, kind, name in sorted(set(one.seen.names)):
            row = self.view.injectable(group, kind, one.namespace, name)
            presence = self.view.injectable(group, kind, one.namespace, "")
            missing = self.view.unavailable(group, version, kind, one.namespace)
            contents.append([group, version, kind, name, row, presence, missing])
        revisions = tuple((r.name, r.row.digest) for r in self._revisions(one))
        assert one.variant.spec.downstream is not None
        downstream = self.view.has_repository(one.namespace, one.variant.spec.downstream.repo)
        identity = upstream.followed(saves=follows_saves(one.variant))
        others = [one.uid, one.variant.spec, identity, contents, downstream]
        if retry := one.variant.metadata.annotations.get(RETRY):
            others.append(retry)
        if refuses_moved_tags(one.variant):
            others.append(MOVED_TAGS)
        others += [each for each in (one.dropped, sorted(one.seen.stranded.items())) if each]
        return Inputs(revisions, digest(others))

    # ------------------------------------------------------------ ending

    def _end(
        self, one: Pass, conditions: report.Conditions, *, waiting: tuple[str, ...] = (), **facts: Any
    ) -> Outcome:
        """End with these conditions. facts: see `report.result_row`."""
        one.seen.trouble = one.seen.written = one.seen.waiting_since = None
        requests = self._requests.of(one.partition, one.key)
        old = one.result
        conditions = [*conditions, *report.dropped_conditions(one.variant, one.dropped, old)]
        row = report.result_row(one.variant, old, conditions, requests=requests, waiting=waiting, **facts)
        row = report.with_attention(row, one, self.view)
        if old is not None and msgspec.structs.replace(row, cause=old.cause) == old:
            return Outcome()
        return Outcome((Put(RESULTS, one.key, row),), "changed")

    def _waits(
        self,
        one: Pass,
        waiting: tuple[str, ...],
        puts: Iterable[Put] = (),
        *,
        reported_after: float = WAIT_REPORTED_SECONDS,
    ) -> Outcome:
        """Wait; report a long wait in the conditions."""
        seen = one.seen
        if seen.waiting_since is None:
            seen.waiting_since = one.elapsed
        rest = seen.waiting_since + reported_after - one.elapsed
        if rest > 0:
            return Outcome(tuple(puts), "waiting", rest, waiting)
        since = seen.waiting_since
        reported = self._end(one, report.waiting_conditions(one.variant, waiting), waiting=waiting)
        seen.waiting_since = since
        return Outcome((*puts, *reported.puts), "waiting", None, waiting)

    def _note_trouble(self, one: Pass, error: ConflictError | TransientError) -> Outcome | None:
        """Report transient errors that last; None if they are recent: the shell backs off."""
        seen = one.seen
        since, attempts = seen.trouble or (one.elapsed, 0)
        trouble = (since, attempts + 1)
        seen.trouble = trouble
        if one.elapsed - since < TROUBLE_REPORTED_SECONDS:
            return None
        outcome = self._end(one, report.failed_conditions(one.variant, str(error)))
        seen.trouble = trouble
        if isinstance(error, ConflictError):
            return outcome._replace(result="conflict", again_after=ECHO_SECONDS)
        spread = int(sha1_head(f"{one.key}/{attempts}"), 16) / 0xFFFFFFFF
        backoff = Backoff(
            *BACKOFF_SECONDS, lambda least, most: least + spread * (most - least), failures=attempts - 1
        )
        seconds = max(backoff.next_seconds(), error.retry_after_seconds or 0.0)
        return outcome._replace(result="transient", again_after=seconds)
