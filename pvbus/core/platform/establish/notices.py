"""What `kubectl describe` tells people of an install: that it is installed, and why it is not.

A notice goes with the row of what was done, so it comes once per change of that, and also where the statuses
are others'. Work that goes on has none. The reasons are Crossplane's and those of the conditions.
Source: Crossplane, internal/controller/pkg/manager and internal/controller/pkg/revision.
"""

from pvbus.core.kernel.effects import KindRef, Notice
from pvbus.core.kernel.keys import ObjectKey, digest
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.packagerows import DEPENDENCY_CYCLE, SOURCE_FAILS, WAITING, EstablishedRow, LockRow
from pvbus.core.platform.establish.families import family_of, kind_of_key
from pvbus.core.platform.packaging.statuses import DELETE_FAILED

NOTE_BYTES_MAX = 1000
"""Kubernetes takes 1024; what is longer stands in the condition."""
BESIDE = "AnotherInstaller"
"""The reason as Crossplane or kapp-controller installs the same package."""
_UNDER_WAY = frozenset(
    {"WaitingForDependencies", "Pending", "Reconciling", "Creating", "Deleting", "InactivePackageRevision"}
)
"""Reasons of an install that is not healthy yet and needs no person to get so."""
REPORTER = "pvbus.dev/establish"


def notice_of(
    key: ObjectKey, row: LockRow, before: EstablishedRow | None, done: EstablishedRow, now: float
) -> Notice | None:
    """Return the notice of what was done for an install, None if it is not worth one.

    before: what was done before, None for a new install
    """
    if not row.uid or (row.status == "removed" and done.reason != DELETE_FAILED):
        return None
    trouble = trouble_of(row, done)
    former = before if before is not None and before.uid == row.uid else None
    family = family_of(key)
    if trouble is not None:
        if former is not None and (former.reason, former.message) == (done.reason, done.message):
            return None
        reason, note = trouble
        reason = family.words.get(reason, reason)
    elif done.is_healthy and (
        former is None or not former.is_healthy or _names(former) != _names(done) or _is_new_ring(row, former)
    ):
        reason = family.installed
        note = f"{row.package} {row.version or row.digest} is installed"
        note += f"; {done.message}" if done.message else ""
    else:
        return None
    kind, is_warning = kind_of_key(key), trouble is not None
    return notice_for(key, kind, row.uid, reason, note, now, is_warning=is_warning)


def notice_for(
    key: ObjectKey, kind: KindRef, uid: str, reason: str, note: str, now: float, *, is_warning: bool
) -> Notice:
    """Return a notice of what was done for an object."""
    return Notice(
        id=digest((str(key), uid, reason, note, now))[:32],
        kind=kind,
        namespace=key.namespace,
        name=key.name,
        uid=uid,
        reason=reason,
        note=note.encode()[:NOTE_BYTES_MAX].decode(errors="ignore"),
        is_warning=is_warning,
        time=timestamp(now).removesuffix("Z") + ".000Z",
        reporter=REPORTER,
    )


def trouble_of(row: LockRow, done: EstablishedRow) -> tuple[str, str] | None:
    """Return reason and words of what a person has to look at, None without."""
    if row.status in ("refused", "broken") or row.reason == SOURCE_FAILS:
        return row.reason or row.status.capitalize(), row.message
    if row.status == "locked" and row.reason == WAITING:
        return WAITING, row.message
    if done.reason in (BESIDE, DELETE_FAILED):
        return done.reason, done.message
    failed = next((each for each in done.revisions if each.state == "failed"), None)
    if failed is not None:
        return failed.reason or done.reason or "InstallFailed", failed.message or done.message
    if (
        row.status == "locked"
        and done.message
        and not done.is_healthy
        and done.reason not in {"", *_UNDER_WAY}
    ):
        return done.reason, done.message
    return None


def _is_new_ring(row: LockRow, former: EstablishedRow) -> bool:
    return row.reason == DEPENDENCY_CYCLE and row.message not in former.message


def _names(done: EstablishedRow) -> set[str]:
    return {each.name for each in done.revisions if each.state == "established"}
