"""Writes what users read: the statuses of installs and of revisions, and the pages of the lock.

A status is written only where it differs from the live one, so that a mirror that is behind costs a read and
no write. Fields that are not ours stay. Where others install, statuses are theirs.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Delete, Effect, Get, KindRef, List, Update
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.packagekinds import DEPLOYMENT
from pvbus.core.kernel.packagerows import EstablishedRow, LockedRevision, LockRow
from pvbus.core.platform.establish.families import FAMILIES
from pvbus.core.platform.establish.objects import Object, contains
from pvbus.core.platform.establish.revisions import is_users
from pvbus.core.platform.packaging.conditions import Status, observed, with_times
from pvbus.core.platform.packaging.imageconfigs import APPLIED, Accesses
from pvbus.core.platform.packaging.statuses import (
    RUNTIME_HEALTHY,
    Runtime,
    carvel_status,
    lock_status,
    package_locks,
    package_status,
    revision_status,
    running,
)

PAGES = KindRef("pkg.crossplane.io", "PackageLock", "v1beta1")
PAGES_SECONDS = 1.0
"""Between two writes of the lock's pages: they are as large as the lock, which changes with each install."""


def install_status(
    install: Install,
    row: LockRow,
    done: EstablishedRow | None,
    healthy: Collection[str],
    troubles: Mapping[str, str],
    access: Accesses,
    runtime: Runtime | None = None,
) -> Status:
    """Return the status of an install, without times. A healthy one says what was not done, if anything.

    troubles: okey of an install that is needed -> what keeps it from being healthy
    access: returns how a source is read
    runtime: what runs the package, None without
    """
    family = FAMILIES[install.family]
    if family.has_revisions:
        status = running(package_status(install, row, done, access), runtime)
    else:
        status = carvel_status(install, row, done, healthy, troubles)
    if done is None or not done.is_healthy or not done.message:
        return status
    conditions = [
        {**each, "message": done.message}
        if each["type"] == family.success[-1] and not each.get("message")
        else each
        for each in status["conditions"]
    ]
    return {**status, "conditions": conditions}


def revision_statuses(
    row: LockRow,
    done: EstablishedRow | None,
    runtime: Runtime | None,
    references: Iterable[Mapping[str, Any]],
    access: Accesses,
    manifest: Mapping[str, Any] = {},
) -> dict[str, Status]:
    """Return the status of every revision by name.

    manifest: fields that the active one has from its package
    references: to the active one's objects
    access: returns how a source is read
    """
    found = {}
    for each in row.revisions:
        known, way = list(references) if each.is_active else [], access(each.source or row.package)
        found[each.name] = revision_status(
            each, row, done, runtime=runtime, references=known, access=way if way.applied else None
        )
        found[each.name].update(manifest if each.is_active else {})
    return found


def controller_ref(revision: str) -> Object:
    """Return the reference to the Deployment of a revision of a Package; other kinds have no field for it."""
    return {"apiVersion": "apps/v1", "kind": DEPLOYMENT.kind, "name": revision}


OPTIONAL = ("dependencies", "usefulErrorMessage", "resolvedImage", "controllerRef", APPLIED)
"""Fields of a status that are ours and not always there: without a value now, a former one goes."""


def is_shown(obj: Mapping[str, Any], wanted: Status) -> bool:
    """Return whether an object has this status already, whenever its conditions changed."""
    live = obj.get("status") or {}
    if any(field in live and field not in wanted for field in OPTIONAL):
        return False
    fields = {name: value for name, value in wanted.items() if name != "conditions"}
    return contains(live, fields) and all(
        any(_is_same(condition, one) for one in live.get("conditions") or ())
        for condition in wanted.get("conditions") or ()
    )


def _is_same(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    return all(
        (wanted.get(field) or "") == (live.get(field) or "")
        for field in ("type", "status", "reason", "message", "observedGeneration")
    )


def report(
    kind: KindRef, namespace: str, name: str, uid: str, wanted: Status, now: float, *, is_whole: bool = False
) -> Generator[Effect, Any, Status | None]:
    """Write a status if it differs; return what is stored then, None if nothing was written.

    uid: the uid of the object that is meant; another object of this name is left alone
    is_whole: whether conditions of other types are removed, as PackageInstalls have exactly one
    """
    live: Object | None = yield Get(kind, namespace, name)
    if live is None or live["metadata"].get("uid") != uid:
        return None
    return (yield from _write_status(kind, live, wanted, now, is_whole=is_whole))


def report_revision(
    kind: KindRef, locked: LockedRevision, uid: str, wanted: Status, now: float
) -> Generator[Effect, Any, None]:
    """Write the status of a revision if it differs, for the generation that the object has.

    What a user has changed in it is not observed until the lock has taken it into account.
    """
    live: Object | None = yield Get(kind, "", locked.name)
    if live is None or live["metadata"].get("uid") != uid or is_users(live, locked):
        return
    status = observed(wanted, generation_of(live))
    yield from _write_status(kind, live, status, now, ended=_ended(live, locked))


def is_revision_shown(obj: Object, locked: LockedRevision, wanted: Status) -> bool:
    """Return whether a revision has this status for its generation, or for a change that has to wait."""
    is_same = is_shown(obj, observed(wanted, generation_of(obj))) and not _ended(obj, locked)
    return is_same or is_users(obj, locked)


def _ended(obj: Mapping[str, Any], locked: LockedRevision) -> list[str]:
    """Return the types of conditions that say nothing of an inactive revision: it has no controller."""
    present = (obj.get("status") or {}).get("conditions") or ()
    types = [each["type"] for each in present if each.get("type") == RUNTIME_HEALTHY]
    return [] if locked.is_active else types


def is_behind(obj: Mapping[str, Any]) -> bool:
    """Return whether a status speaks of an older generation than the object's."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each.get("observedGeneration") not in (None, generation_of(obj)) for each in conditions)


def generation_of(obj: Mapping[str, Any]) -> int:
    return int(obj["metadata"].get("generation") or 0)


def _write_status(
    kind: KindRef,
    live: Object,
    wanted: Status,
    now: float,
    *,
    is_whole: bool = False,
    ended: Collection[str] = (),
) -> Generator[Effect, Any, Status | None]:
    """Write a status if it differs. ended: types of conditions to remove; see `report` for the rest."""
    before = live.get("status") or {}
    present = list(before.get("conditions") or ())
    types = {each["type"] for each in wanted.get("conditions") or ()}
    others = [] if is_whole else [each for each in present if each.get("type") not in {*types, *ended}]
    if is_shown(live, wanted) and len(present) == len(types) + len(others):
        return None
    conditions = wanted.get("conditions") or []
    timed = conditions if is_whole else with_times([*map(_complete, conditions)], present, timestamp(now))
    left = {name: value for name, value in before.items() if name not in OPTIONAL}
    status = {**left, **wanted, "conditions": [*others, *timed]}
    stored: Object = yield Update(kind, {**live, "status": status}, "status")
    return stored.get("status") or {}


def _complete(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a condition with every field that our definitions of the kinds require."""
    return {"reason": "", "message": "", **condition}


def write_pages(rows: Mapping[str, LockRow], now: float) -> Generator[Effect, Any, bool]:
    """Write the lock's pages where they differ; return whether one did. rows: okey -> its row.

    Without a row there is no page, unless there was one before.
    """
    try:
        listed: list[Object] = yield List(PAGES, "")
    except PermanentError as error:
        if error.reason == "NoMatch":
            return False  # a cluster of Carvel's packages alone
        raise
    live = {each["metadata"]["name"]: each for each in listed}
    if not (rows or live):
        return False
    pages = package_locks(rows)
    is_changed = False
    for page in pages:
        name = page["metadata"]["name"]
        found = live.pop(name, None)
        if found is None:
            found = yield Create(PAGES, page)
            is_changed = True
        elif (found.get("spec") or {}) != page["spec"]:
            found = yield Update(PAGES, {**found, "spec": page["spec"]})
            is_changed = True
        if name == "lock":
            uid = found["metadata"].get("uid", "")
            wanted = observed(lock_status(rows), generation_of(found))
            stored = yield from report(PAGES, "", name, uid, wanted, now)
            is_changed |= stored is not None
    for name, obj in live.items():
        if name.startswith("lock-") and name.removeprefix("lock-").isdigit():
            yield Delete(PAGES, "", name, obj["metadata"].get("uid", ""))
            is_changed = True
    return is_changed
