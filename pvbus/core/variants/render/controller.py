"""Render: from the targets' rows to PackageVariants, one decision per variant key.

All rows for one PackageVariant are held here, so conflicts between two sets over a name are decided in
one place. The living PackageVariant's owner wins while it has a row: present, or the order to remove
it, which frees the name. If there is no PackageVariant, the older set wins. One that has no owner, or
another owner, is never overwritten. `report` makes the rows of a decision, `removal` carries out orders.
"""

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, PackageVariant, PackageVariantSpec
from pvbus.core.cel import Budget
from pvbus.core.errors import ConflictError, PermanentError, TooLargeError
from pvbus.core.kernel.codec import encode_row, recent_decoder
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.effects import (
    Create,
    Effect,
    Outcome,
    Put,
    Reconciliation,
    Update,
)
from pvbus.core.kernel.holds import held_variant, is_held
from pvbus.core.kernel.keys import (
    Key,
    TargetKey,
    digest,
)
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import (
    DESIRED,
    TARGETS,
    VARIANTS,
    DesiredRow,
    TargetRow,
)
from pvbus.core.variants.pacing import TURN_COST, Pace
from pvbus.core.variants.render.removal import (
    REFUSED_RETRY_SECONDS,
    remove_variant,
    withdraw,
    write_withdrawal,
)
from pvbus.core.variants.render.report import gone_row, outcome_of, release_of, report_of
from pvbus.core.variants.render.state import IDLE, RenderState, desired_row
from pvbus.core.variants.render.variant import (
    VARIANT,
    cancel,
    dropped_fields,
    is_cancelled,
    new_variant,
)
from pvbus.core.variants.template import RenderError, TemplateCache, compile_ahead, render_row

VARIANT_KIND = f"{CONFIG_GROUP}/PackageVariant"
DROPPED_RETRY_SECONDS = 600.0
"""After so long a spec of which the API server drops fields is written again: its definition may have them by
then. Until it has, nothing changes; of 10,000 variants it is 17 requests per second."""

SPEC_SHARE = 0.5
"""The share of a bus record for the spec of a PackageVariant. The rest is for its metadata, its status and
the users' additions. A row that is too large is not written: the bus keeps the old one, and no service sees
the deletion, the hold or the resourceVersion of the PackageVariant any more."""
SPEC_BYTES_MAX = 500_000  # that share of the default record limit

_target_row = recent_decoder(TargetRow)


class RenderController(KeyedController[RenderState]):
    """Targets in, PackageVariants out. No row here grows with its input beyond the bus's limit."""

    name = "render"
    listed = (VARIANTS,)

    def __init__(self, *, spec_bytes_max: int = SPEC_BYTES_MAX) -> None:
        """spec_bytes_max: limit for a PackageVariant's spec as JSON; see `SPEC_SHARE`."""
        super().__init__(lambda _: RenderState())
        self.evaluations = 0
        self._spec_bytes_max = spec_bytes_max
        self._templates = TemplateCache()
        self._pace = Pace()

    # ------------------------------------------------------------ records in

    @staticmethod
    def has_work(state: RenderState) -> bool:
        return bool(state.rows or state.decision)

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if partition not in self._tables:
            return ()
        if is_marker(key):
            return self.keys(partition) if self._load_marker(topic, partition, key, value) else ()
        vkey, set_name = TargetKey.parse(key) if topic == TARGETS else (key, "")
        seen = self._ensure_state(partition, vkey)
        if topic == TARGETS:
            claims = {} if value is None else {set_name: _target_row(value)}
            others = [row for row in seen.rows if row[0] != set_name]
            seen.rows = tuple(others) if value is None else (*others, (set_name, value))
            if seen.claims is not IDLE:
                left = {name: claim for name, claim in seen.claims.items() if name != set_name}
                seen.claims = {**left, **claims}
        elif topic == DESIRED:
            if value is not None:
                desired_row(value)  # raises for a bad record, before the table has it
            seen.decision = value
        else:
            seen.observe(value)
        if not (seen.rows or seen.decision or seen.raw):
            del self._tables[partition][vkey]
            self._pace.forget(vkey)
        return (vkey,)

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == DESIRED and partition in self._tables:
            seen = self._ensure_state(partition, put.key)
            seen.decision = encode_row(put.row)
        return ()

    def failure_rows(self, partition: int, key: str, message: str, now: float) -> tuple[Put, ...]:
        seen = self.state(partition, key)
        if seen is None:
            return ()
        seen.claims = {name: _target_row(value) for name, value in seen.rows}
        try:
            return self._defect(Key.parse(key), seen, message, now)
        finally:
            seen.claims = IDLE

    def _defect(self, key: Key, seen: RenderState, message: str, now: float) -> tuple[Put, ...]:
        living = seen.living(now)
        if living is None:
            present = (row for row in seen.claims.values() if row.state == "present")
            winner = min(present, key=_age, default=None)
        else:
            winner = seen.claims.get(_owner(seen, living) or "")
        if winner is None or winner.state != "present":
            return ()
        return report_of(key, seen, winner, living, outcome="defect", error=message).puts

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        seen, vkey = self.state(partition, key), Key.parse(key)
        if seen is None or not (seen.rows or seen.decision):
            return Outcome()
        if not self._is_listed(VARIANTS, partition, VARIANT_KIND, vkey.namespace):
            return Outcome(result="waiting", waiting=("PackageVariants are being listed",))
        if not seen.rows:
            outcome = release_of(vkey, seen)
        else:
            seen.claims = {name: _target_row(value) for name, value in seen.rows}
            try:
                outcome = yield from self._decide_claims(vkey, seen, now)
            finally:
                seen.claims = IDLE
        return (
            outcome
            if outcome.again_after is not None
            else outcome._replace(again_after=seen.echo_seconds(now))
        )

    def _decide_claims(self, key: Key, seen: RenderState, now: float) -> Reconciliation:
        """Decide between the rows of all sets: the owner of the living object comes first."""
        living = seen.living(now)
        owner = _owner(seen, living) if living is not None else None
        if owner is not None and seen.claims[owner].state != "present":
            act = remove_variant if seen.claims[owner].state == "removed" else write_withdrawal
            return (yield from act(key, seen, owner, now))
        present = [row for row in seen.claims.values() if row.state == "present"]
        if not present:
            return outcome_of(key, seen, gone_row(seen), {})
        if living is None:
            winner = min(present, key=_age)
        elif owner is not None:
            winner = seen.claims[owner]
        else:
            return self._conflict(key, seen, living)
        return (yield from self._present(key, seen, winner, living, now))

    def _present(
        self, key: Key, seen: RenderState, winner: TargetRow, living: PackageVariant | None, now: float
    ) -> Reconciliation:
        """Bring the PackageVariant in line with the claim that may write."""
        if living is not None and living.metadata.deletion_timestamp:
            return self._terminating(key, seen, winner, living, now)
        if living is not None and is_held(living.metadata.annotations):
            return report_of(
                key,
                seen,
                winner,
                living,
                outcome="held",
                error=held_variant(key, living.metadata.annotations),
            )
        desired = seen.desired
        if desired is not None and desired.input_digest == winner.digest:
            if desired.outcome == "error" and (living is None or is_cancelled(winner, living)):
                return report_of(key, seen, winner, living, outcome="error", error=desired.error)
            if living is not None and self._is_applied(desired, winner, living):
                again = seen.offered + DROPPED_RETRY_SECONDS - now if desired.dropped else None
                if again is None or again > 0:
                    reported = report_of(
                        key, seen, winner, living, spec_digest=desired.spec_digest, dropped=desired.dropped
                    )
                    return reported if again is None else _again(reported, again)
        if (later := self._turn(key, winner, now)) is not None:
            return later
        try:
            spec = self._spec(key, winner)
        except RenderError as error:
            return (yield from self._not_written(key, seen, winner, now, outcome="error", error=str(error)))
        try:
            written = yield from self._write(key, seen, winner, spec, living, now)
        except PermanentError as error:
            if error.reason == "NotFound":  # deleted meanwhile: its tombstone is on the way
                raise ConflictError(str(error)) from error
            return (yield from self._not_written(key, seen, winner, now, outcome="refused", error=str(error)))
        if written is None:
            return report_of(key, seen, winner, living, spec_digest=digest(spec))
        seen.note_answer(written, now)
        living = seen.living(now)
        stored = living.spec if living is not None else spec  # what others can see, and go on with
        dropped = dropped_fields(spec, stored)
        reported = report_of(key, seen, winner, living, spec_digest=digest(stored), dropped=dropped)
        if not dropped:
            return reported
        seen.offered = now
        return _again(reported, DROPPED_RETRY_SECONDS)

    def _turn(self, key: Key, winner: TargetRow, now: float) -> Outcome | None:
        """Return what to do instead of an evaluation, if others go first; None if it is the key's turn."""
        origin = f"{key.namespace}/{winner.set_name}"
        if wait := self._pace.wait(str(key), origin, now):
            words = "other keys go first, as the expressions of its set cost much"
            return Outcome(result="waiting", again_after=wait, waiting=(words,))
        if winner.template is None or self._templates.has(winner.template):
            return None
        spent = 0
        for cost in compile_ahead((winner.template,)):
            spent += cost
            if spent >= TURN_COST:
                self._pace.note(origin, spent)
                return Outcome(again_after=0)
        return None

    def _spec(self, key: Key, winner: TargetRow) -> PackageVariantSpec:
        """Evaluate a template. Raises RenderError."""
        budget = Budget()
        try:
            self.evaluations += 1
            return render_row(winner, self._templates, budget)
        finally:
            self._pace.note(f"{key.namespace}/{winner.set_name}", budget.charged)

    def _not_written(
        self, key: Key, seen: RenderState, winner: TargetRow, now: float, *, outcome: str, error: str
    ) -> Reconciliation:
        """Report why the spec is not written; the withdrawal of an order is written all the same."""
        living, refused = yield from withdraw(seen, winner, now)
        reported = report_of(key, seen, winner, living, outcome=outcome, error=error)
        if refused or outcome == "refused":
            return reported._replace(again_after=REFUSED_RETRY_SECONDS)
        return reported

    def _terminating(
        self,
        key: Key,
        seen: RenderState,
        winner: TargetRow,
        living: PackageVariant,
        now: float,
    ) -> Outcome:
        """Wait until the former PackageVariant is gone, but evaluate the template: removals wait until
        every target of the set was evaluated, so one stuck deletion must not block them."""
        if (later := self._turn(key, winner, now)) is not None:
            return later
        try:
            self._spec(key, winner)
        except RenderError as error:
            return report_of(key, seen, winner, living, outcome="error", error=str(error))
        reported = report_of(key, seen, winner, living, outcome="waiting")
        return reported._replace(result="waiting", waiting=("the former PackageVariant is terminating",))

    @staticmethod
    def _is_applied(desired: DesiredRow, winner: TargetRow, living: PackageVariant) -> bool:
        return (
            desired.outcome == "applied"
            and desired.spec_digest == digest(living.spec)
            and is_cancelled(winner, living)
        )

    def _write(
        self,
        key: Key,
        seen: RenderState,
        winner: TargetRow,
        spec: PackageVariantSpec,
        living: PackageVariant | None,
        now: float,
    ) -> Generator[Effect, Any, dict[str, Any] | None]:
        """Create the object, or replace its spec as last seen; write nothing if it is equal.

        Raises: PermanentError if the API server refuses the write, or if the spec is too large.
        """
        raw = seen.current(now)
        is_same = living is not None and digest(living.spec) == digest(spec)
        if not is_same:
            self._require_size(spec)
        if living is None or raw is None:
            created: dict[str, Any] = yield Create(VARIANT, new_variant(key, winner, spec))
            return created
        if is_same and is_cancelled(winner, living):
            return None
        obj = msgspec.json.decode(raw)
        obj["spec"] = msgspec.to_builtins(spec)
        if winner.cancelled:
            cancel(obj, winner.cancelled)
        updated: dict[str, Any] = yield Update(VARIANT, obj)
        return updated

    def _require_size(self, spec: PackageVariantSpec) -> None:
        size = len(msgspec.json.encode(spec))
        if size > self._spec_bytes_max:
            raise TooLargeError(
                f"the spec has {size} bytes, more than the {self._spec_bytes_max} that leave room for the "
                "rest of the PackageVariant in a record of the bus: make it smaller, or raise the bus's "
                "record limit"
            )

    def _conflict(self, key: Key, seen: RenderState, living: PackageVariant) -> Outcome:
        error = f'PackageVariant "{key.name}" exists and belongs to {_belonging(seen, living)}'
        row = DesiredRow(outcome="conflict", uid=living.metadata.uid, error=error)
        return outcome_of(key, seen, row, {}, conflict=error)


def _owner(seen: RenderState, living: PackageVariant) -> str | None:
    """Return the name of the set that controls the living object, if it has a row."""
    for reference in living.metadata.owner_references:
        for name, claim in seen.claims.items():
            if reference.controller and claim.set_uid == reference.uid:
                return name
    return None


def _age(claim: TargetRow) -> tuple[str, str]:
    """Order claims by their sets, the oldest first."""
    return claim.set_created, claim.set_uid


def _belonging(seen: RenderState, living: PackageVariant) -> str:
    """Say in words whose an object is, and what can be done for the sets that want it."""
    remedy = "delete or rename it, or change this set's downstream"
    owner = next((reference for reference in living.metadata.owner_references if reference.controller), None)
    if owner is None:
        return f"no controller (created by hand?); {remedy}"
    if owner.kind == "PackageVariantSet" and owner.name in seen.claims:
        return (
            f"a former PackageVariantSet {owner.name}, of uid {owner.uid}; if that is deleted, the garbage "
            "collector of the cluster removes the variant, and this set makes it again"
        )
    return f"{owner.kind} {owner.name}; {remedy}"


def _again(outcome: Outcome, seconds: float) -> Outcome:
    """Return an outcome that is looked at again after so long at the latest."""
    earlier = outcome.again_after if outcome.again_after is not None else seconds
    return outcome._replace(again_after=min(earlier, seconds))
