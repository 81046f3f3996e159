"""The rows with which render reports: a result to each set that has a row, and the decision itself."""

import msgspec

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.effects import INTERNAL_ERROR, Outcome, Put
from pvbus.core.kernel.keys import ChildKey, Key, digest
from pvbus.core.kernel.records import DESIRED, SETRESULTS, ChildResult, DesiredRow, HoldingSet, TargetRow
from pvbus.core.variants.readiness import readiness
from pvbus.core.variants.render.state import RenderState
from pvbus.core.variants.render.variant import attention_of, carried

REASONS = {
    "error": "UnexpectedError",
    "refused": "UnexpectedError",
    "held": "OnHold",
    "defect": INTERNAL_ERROR,
}


def report_of(
    key: Key,
    seen: RenderState,
    winner: TargetRow,
    living: PackageVariant | None,
    *,
    spec_digest: str = "",
    outcome: str = "applied",
    error: str = "",
    dropped: tuple[str, ...] = (),
) -> Outcome:
    """Return the rows of a decision that has a winner: its result for every set, and the decision itself."""
    ready, unready, failing = readiness(living)
    result = ChildResult(
        set_uid=winner.set_uid,
        evaluated=winner.digest,
        applied=winner.digest if outcome == "applied" else "",
        reason=REASONS.get(outcome, ""),
        error=error,
        expression_failed=outcome == "error",
        ready=ready,
        unready=unready,
        failing=failing,
        cancelled=carried(winner, living),
        attention=attention_of(living),
    )
    row = DesiredRow(
        set_name=winner.set_name,
        set_uid=winner.set_uid,
        input_digest="" if outcome in ("refused", "defect") else winner.digest,
        spec_digest=spec_digest or (seen.desired.spec_digest if seen.desired else ""),
        outcome=outcome,  # type: ignore[arg-type]  # callers pass values of the field's type
        uid=living.metadata.uid if living is not None else "",
        error=error,
        dropped=dropped,
    )
    return outcome_of(key, seen, row, {winner.set_name: result})


def outcome_of(
    key: Key,
    seen: RenderState,
    row: DesiredRow,
    results: dict[str, ChildResult],
    *,
    conflict: str = "",
) -> Outcome:
    """Return the rows of a decision: a result for every set that has a row, and the decision itself.

    results: by set, for the sets of this decision; the others get a result for their own row.
    conflict: why no set may write, "" if one may.
    """
    living, desired = seen.is_present, seen.desired
    before = desired.reported if desired is not None else {}
    puts: list[Put] = []
    reported: dict[str, str] = {}
    for name, claim in seen.claims.items():
        result = results.get(name)
        if result is None and claim.state == "present":
            other = conflict or f'PackageVariant "{key.name}" is made by the set "{row.set_name}"'
            result = ChildResult(
                set_uid=claim.set_uid, evaluated=claim.digest, reason="TargetConflict", error=other
            )
        elif result is None:  # this set has no object here: there is nothing to withdraw
            result = ChildResult(set_uid=claim.set_uid, cancelled=claim.cancelled)
        reported[name] = digest(result)
        if before.get(name) != reported[name]:
            puts.append(Put(SETRESULTS, result_key(key, name), result))
    for name in before:
        if name not in reported:
            puts.append(Put(SETRESULTS, result_key(key, name), None))
    row = msgspec.structs.replace(row, reported=reported, holders=() if living else _holders(seen))
    if row != desired:
        puts.append(Put(DESIRED, str(key), row))
    word = "failed" if row.error and living else "changed"
    return Outcome(tuple(puts), word if puts or word == "failed" else "unchanged")


def release_of(key: Key, seen: RenderState) -> Outcome:
    """Return the end of a key that no set has a row for: its rows go, the PackageVariant stays."""
    desired = seen.desired
    assert desired is not None
    rows = [result_key(key, name) for name in desired.reported]
    puts = [Put(DESIRED, str(key), None), *(Put(SETRESULTS, row, None) for row in rows)]
    return Outcome(tuple(puts), "changed")


def gone_row(seen: RenderState) -> DesiredRow:
    """Return the decision on a PackageVariant that is gone: why it was removed stays with its uid."""
    before = seen.desired
    if before is None or before.outcome != "removed":
        return DesiredRow(outcome="removed")
    return DesiredRow(outcome="removed", uid=before.uid, why=before.why)


def _holders(seen: RenderState) -> tuple[HoldingSet, ...]:
    """Return the sets on hold, one of whose PackageVariants can still show up where render sees none.

    The watch may be late, or a user makes it again: services that see it before render does write nothing.
    """
    claims = sorted(seen.claims.items())
    return tuple(HoldingSet(name=n, uid=c.set_uid, reason=c.hold_reason) for n, c in claims if c.on_hold)


def result_key(key: Key, set_name: str) -> str:
    """Return the key of the row that reports a child to its set."""
    return str(ChildKey(f"{key.namespace}/{set_name}", key.name))
