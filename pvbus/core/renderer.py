"""Render: from the targets' rows to PackageVariants, one decision per variant key.

All claims of one PackageVariant are held here, so two sets that want the same name are settled in
one place. The living PackageVariant's owner wins while it claims; where there is none, the older
set. What belongs to nobody, to a person or to a former set is never overwritten.
"""

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from pvbus.core.effects import (
    Create,
    Delete,
    Effect,
    Get,
    KindRef,
    Outcome,
    Put,
    Reconciliation,
    Update,
)
from pvbus.core.expressions import Engine
from pvbus.core.ids import FINALIZER, HOLD, KEPT, SET_UID_LABEL, Key, digest
from pvbus.core.model import CONFIG_GROUP, SET_API, VARIANT_API, PackageVariant, PackageVariantSpec
from pvbus.core.records import (
    DESIRED,
    SETRESULTS,
    TARGETS,
    VARIANTS,
    ChildResult,
    DesiredRow,
    TargetRow,
)
from pvbus.core.render import RenderError, TemplateCache, render_row
from pvbus.core.tables import SyncView, is_marker
from pvbus.errors import ConflictError, PermanentError

VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
SET = KindRef(CONFIG_GROUP, "PackageVariantSet", "v1alpha2")
VARIANT_KIND = f"{CONFIG_GROUP}/PackageVariant"
ECHO_SECONDS = 10.0  # how long a response stands in for the observed object
REFUSED_RETRY_SECONDS = 60.0  # what the API server refuses may be allowed later (rights, webhooks)
REASONS = {"error": "UnexpectedError", "refused": "UnexpectedError", "held": "OnHold"}

_target = msgspec.json.Decoder(TargetRow)
_variant = msgspec.json.Decoder(PackageVariant)
_desired = msgspec.json.Decoder(DesiredRow)


class Seen:
    """One variant key: its claims, the living PackageVariant, and what was last decided."""

    __slots__ = ("claims", "desired", "expires", "response", "variant")

    def __init__(self) -> None:
        self.claims: dict[str, TargetRow] = {}
        self.variant: bytes | None = None
        self.response: bytes | None = None
        self.expires = 0.0
        self.desired: DesiredRow | None = None

    def stored(self, now: float) -> bytes | None:
        """Return the object as last seen: our own write's response stands in for the echo."""
        if self.response is not None and now >= self.expires:
            self.response = None
        return self.response if self.response is not None else self.variant

    def living(self, now: float) -> PackageVariant | None:
        raw = self.stored(now)
        return _variant.decode(raw) if raw is not None else None


class RenderController:
    """Targets in, PackageVariants out. See `pvbus.core.effects.Controller`."""

    name = "render"
    inputs = (TARGETS, VARIANTS)
    memory = (DESIRED,)
    broadcast = ()

    def __init__(self, *, engine: Engine) -> None:
        self.evaluations = 0
        self._templates = TemplateCache(engine)
        self._keys: dict[int, dict[str, Seen]] = {}
        self._sync: dict[int, SyncView] = {}

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        self._keys[partition] = {}
        self._sync[partition] = SyncView(1)

    def close(self, partition: int) -> None:
        self._keys.pop(partition, None)
        self._sync.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        return [key for key, seen in self._keys.get(partition, {}).items() if seen.claims or seen.desired]

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        table = self._keys.get(partition)
        if table is None:
            return ()
        if is_marker(key):
            changed = topic == VARIANTS and self._sync[partition].load(partition, key, value)
            return self.keys(partition) if changed else ()
        vkey, _, set_name = key.partition("|")
        seen = table.get(vkey)
        if seen is None:
            seen = table[vkey] = Seen()
        if topic == TARGETS:
            if value is None:
                seen.claims.pop(set_name, None)
            else:
                seen.claims[set_name] = _target.decode(value)
        elif topic == DESIRED:
            seen.desired = _desired.decode(value) if value is not None else None
        else:
            seen.variant, seen.response = value, None
        if not (seen.claims or seen.desired or seen.variant):
            del table[vkey]
        return (vkey,)

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == DESIRED and partition in self._keys:
            seen = self._keys[partition].setdefault(put.key, Seen())
            seen.desired = put.row if isinstance(put.row, DesiredRow) else None
        return ()

    # ------------------------------------------------------------ deciding

    def _seen(self, key: str) -> tuple[int, Seen] | None:
        for partition, table in self._keys.items():
            if key in table:
                return partition, table[key]
        return None

    def reconcile(self, key: str, now: float) -> Reconciliation:
        found = self._seen(key)
        if found is None:
            return Outcome()
        partition, seen = found
        if not seen.claims and seen.desired is None:
            return Outcome()
        if not self._sync[partition].ok(VARIANT_KIND):
            return Outcome(result="waiting", waiting=("PackageVariants are being listed",))
        present = {name: row for name, row in seen.claims.items() if row.state == "present"}
        if present:
            outcome = yield from self._present(Key.parse(key), seen, present, now)
        elif seen.claims:
            outcome = yield from self._removed(Key.parse(key), seen, now)
        else:
            outcome = self._let_go(key, seen)
        if seen.response is not None and outcome.again_after is None:
            # Should its echo have come before the response did, there may be no other one.
            return outcome._replace(again_after=max(seen.expires - now, 0.1))
        return outcome

    def _let_go(self, key: str, seen: Seen) -> Outcome:
        """No set speaks of this key any more: forget it, touch nothing."""
        desired = seen.desired
        assert desired is not None
        skeys = [f"{Key.parse(key).namespace}/{name}|{Key.parse(key).name}" for name in desired.told]
        puts = [Put(DESIRED, key, None), *(Put(SETRESULTS, skey, None) for skey in skeys)]
        return Outcome(tuple(puts), "changed")

    @staticmethod
    def _winner(present: dict[str, TargetRow], living: PackageVariant | None) -> TargetRow | None:
        """Choose the claim that may write; None when the living object belongs to none of them."""
        if living is not None:
            owner = controller_uid(living)
            return next((row for row in present.values() if row.set_uid == owner), None)
        return min(present.values(), key=lambda row: (row.set_created, row.set_uid))

    def _present(self, key: Key, seen: Seen, present: dict[str, TargetRow], now: float) -> Reconciliation:
        living = seen.living(now)
        winner = self._winner(present, living)
        if winner is None:
            assert living is not None
            return self._conflict(key, seen, present, living)
        if living is not None and living.metadata.deletion_timestamp:
            return self._terminating(key, seen, present, winner, living)
        if living is not None and living.metadata.annotations.get(HOLD) == "true":
            return self._told(
                key, seen, present, winner, living, outcome="held", error="on hold by annotation"
            )
        desired = seen.desired
        if desired is not None and desired.input_digest == winner.digest:
            if desired.outcome == "error":
                return self._told(key, seen, present, winner, living, outcome="error", error=desired.error)
            if living is not None and self._is_applied(desired, winner, living):
                return self._told(key, seen, present, winner, living, spec_digest=desired.spec_digest)
        try:
            self.evaluations += 1
            spec = render_row(winner, self._templates)
        except RenderError as error:
            return self._told(key, seen, present, winner, living, outcome="error", error=str(error))
        try:
            written = yield from self._write(key, seen, winner, spec, living, now)
        except PermanentError as error:
            if error.reason == "NotFound":  # deleted meanwhile: its tombstone is on the way
                raise ConflictError(str(error)) from error
            outcome = self._told(key, seen, present, winner, living, outcome="refused", error=str(error))
            return outcome._replace(again_after=REFUSED_RETRY_SECONDS)
        if written is not None:
            seen.response, seen.expires = msgspec.json.encode(written), now + ECHO_SECONDS
            living = seen.living(now)
        return self._told(key, seen, present, winner, living, spec_digest=digest(spec))

    def _terminating(
        self,
        key: Key,
        seen: Seen,
        present: dict[str, TargetRow],
        winner: TargetRow,
        living: PackageVariant,
    ) -> Outcome:
        """Wait for the former PackageVariant to go, but evaluate: what hangs must not hold up others,
        whose removal waits until every target of the set was evaluated."""
        try:
            self.evaluations += 1
            render_row(winner, self._templates)
        except RenderError as error:
            return self._told(key, seen, present, winner, living, outcome="error", error=str(error))
        told = self._told(key, seen, present, winner, living, outcome="waiting")
        return told._replace(result="waiting", waiting=("the former PackageVariant is terminating",))

    @staticmethod
    def _is_applied(desired: DesiredRow, winner: TargetRow, living: PackageVariant) -> bool:
        return (
            desired.outcome == "applied"
            and desired.spec_digest == digest(living.spec)
            and (not winner.kept or living.metadata.annotations.get(KEPT) == winner.kept)
        )

    def _write(
        self,
        key: Key,
        seen: Seen,
        winner: TargetRow,
        spec: PackageVariantSpec,
        living: PackageVariant | None,
        now: float,
    ) -> Generator[Effect, Any, dict[str, Any] | None]:
        """Create, or replace the spec of the object as it was seen; nothing where it is equal."""
        raw = seen.stored(now)
        if living is None or raw is None:
            created: dict[str, Any] = yield Create(VARIANT, new_variant(key, winner, spec))
            return created
        kept = winner.kept and living.metadata.annotations.get(KEPT) != winner.kept
        if digest(living.spec) == digest(spec) and not kept:
            return None
        obj = msgspec.json.decode(raw)
        obj["spec"] = msgspec.to_builtins(spec)
        if kept:
            obj["metadata"].setdefault("annotations", {})[KEPT] = winner.kept
        updated: dict[str, Any] = yield Update(VARIANT, obj)
        return updated

    def _conflict(
        self, key: Key, seen: Seen, present: dict[str, TargetRow], living: PackageVariant
    ) -> Outcome:
        owners = [f"{o.kind} {o.name}" for o in living.metadata.owner_references if o.controller]
        owner = owners[0] if owners else "nobody (made by hand?)"
        error = (
            f'PackageVariant "{key.name}" exists and belongs to {owner}; delete or rename it, or '
            "change this set's downstream"
        )
        puts: list[Put] = []
        told: dict[str, str] = {}
        for name, row in present.items():
            result = ChildResult(
                set_uid=row.set_uid, evaluated=row.digest, reason="TargetConflict", error=error
            )
            puts += self._tell(key, seen, name, result, told)
        memory = DesiredRow(outcome="conflict", uid=living.metadata.uid, error=error, told=told)
        return self._outcome(key, seen, memory, puts, "failed")

    def _told(
        self,
        key: Key,
        seen: Seen,
        present: dict[str, TargetRow],
        winner: TargetRow,
        living: PackageVariant | None,
        *,
        spec_digest: str = "",
        outcome: str = "applied",
        error: str = "",
    ) -> Outcome:
        """End with what every claiming set is told, and the memory of this decision."""
        puts: list[Put] = []
        told: dict[str, str] = {}
        for name, row in present.items():
            if row is winner:
                result = ChildResult(
                    set_uid=row.set_uid,
                    evaluated=row.digest,
                    applied=row.digest if outcome == "applied" else "",
                    reason=REASONS.get(outcome, ""),
                    error=error,
                    ready=living is not None and is_ready(living),
                )
            else:
                other = f'PackageVariant "{key.name}" is made by the set "{winner.set_name}"'
                result = ChildResult(
                    set_uid=row.set_uid, evaluated=row.digest, reason="TargetConflict", error=other
                )
            puts += self._tell(key, seen, name, result, told)
        memory = DesiredRow(
            set_name=winner.set_name,
            set_uid=winner.set_uid,
            input_digest="" if outcome == "refused" else winner.digest,
            spec_digest=spec_digest or (seen.desired.spec_digest if seen.desired else ""),
            outcome=outcome,  # type: ignore[arg-type]  # callers pass words of the field's type
            uid=living.metadata.uid if living is not None else "",
            error=error,
            told=told,
        )
        return self._outcome(key, seen, memory, puts, "failed" if error else "changed")

    def _tell(
        self, key: Key, seen: Seen, set_name: str, result: ChildResult, told: dict[str, str]
    ) -> list[Put]:
        told[set_name] = digest(result)
        if seen.desired is not None and seen.desired.told.get(set_name) == told[set_name]:
            return []
        return [Put(SETRESULTS, f"{key.namespace}/{set_name}|{key.name}", result)]

    def _outcome(self, key: Key, seen: Seen, row: DesiredRow, puts: list[Put], result: str) -> Outcome:
        """Add the memory where it changed, and take back what sets were told that claim no more."""
        before = seen.desired.told if seen.desired is not None else {}
        for set_name in before:
            if set_name not in row.told:
                puts.append(Put(SETRESULTS, f"{key.namespace}/{set_name}|{key.name}", None))
        if row != seen.desired:
            puts.append(Put(DESIRED, str(key), row))
        return Outcome(tuple(puts), result if puts or result == "failed" else "unchanged")

    # ------------------------------------------------------------ removing

    def _removed(self, key: Key, seen: Seen, now: float) -> Reconciliation:
        """Delete what a set no longer wants: only its own, and only after a live look at the set."""
        living = seen.living(now)
        if living is None or living.metadata.deletion_timestamp:
            return self._outcome(key, seen, DesiredRow(outcome="removed"), [], "changed")
        owner = controller_uid(living)
        order = next((row for row in seen.claims.values() if row.set_uid == owner), None)
        if order is None:
            return self._outcome(key, seen, DesiredRow(outcome="removed"), [], "changed")
        if living.metadata.annotations.get(HOLD) == "true":
            row = DesiredRow(outcome="held", uid=living.metadata.uid, error="on hold by annotation")
            return self._outcome(key, seen, row, [], "held")
        current = yield Get(SET, key.namespace, order.set_name)
        if (
            current is None
            or current["metadata"].get("deletionTimestamp")
            or current["metadata"]["uid"] != order.set_uid
            or current["metadata"].get("generation", 0) != order.generation
        ):
            return Outcome(result="waiting", waiting=("the set changed; it decides again",))
        yield Delete(
            VARIANT,
            key.namespace,
            key.name,
            uid=living.metadata.uid,
            resource_version=living.metadata.resource_version,
        )
        return self._outcome(key, seen, DesiredRow(outcome="removed", uid=living.metadata.uid), [], "changed")


def controller_uid(obj: PackageVariant) -> str:
    """Return the uid of the owner that controls an object, "" if none does."""
    return next((o.uid for o in obj.metadata.owner_references if o.controller), "")


def is_ready(obj: PackageVariant) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in obj.status.conditions)


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
    if row.kept:
        metadata["annotations"] = {KEPT: row.kept}
    return {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "metadata": metadata,
        "spec": msgspec.to_builtins(spec),
    }
