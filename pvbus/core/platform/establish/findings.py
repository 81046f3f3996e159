"""Finds out what `pvbus.core.platform.establish.states` names about an install: one finding per pass.

The questions stand in the order of `InstallFinding`, and the first answer counts. On the way an install that
is there is handed to its present holder and gets the lock's template: no later question depends on that.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.effects import Effect, Get
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.kernel.packagerows import (
    OBJECT_OWNED,
    SCOPE,
    EstablishedRevision,
    EstablishedRow,
    Installer,
    LockRow,
    ScopedKey,
)
from pvbus.core.platform.establish import carvel, installs, others
from pvbus.core.platform.establish.families import FAMILIES, family_of, kind_of_key
from pvbus.core.platform.establish.notices import trouble_of
from pvbus.core.platform.establish.objects import Object
from pvbus.core.platform.establish.state import InstallData
from pvbus.core.platform.establish.states import InstallFinding, InstallState
from pvbus.core.platform.packaging.carvelobjects import GLOBAL_NAMESPACE
from pvbus.core.platform.packaging.reading import Problem, install_of

Table = Mapping[str, InstallData]


WAITS = "WaitingForDependencies"
"""The reason of an install that waits for others."""
REASON_CHARACTERS = 300
"""Of the reason of another install in a message: its own status has the rest."""


class Pass(NamedTuple):
    """One pass over an install, with what is known as it begins.

    partition: that has the install
    before: what is established of the install
    needed_by: keys of the installs that depend on it
    now: the time, in seconds since 1970
    namespace: where runtimes and pull secrets of Crossplane's family are
    """

    partition: int
    table: Table
    key: str
    data: InstallData
    row: LockRow | None
    before: EstablishedRow
    needed_by: Iterable[str]
    now: float
    installer: Installer
    namespace: str

    @property
    def name(self) -> ObjectKey:
        return object_key(self.key)


class Found(NamedTuple):
    """A finding, with what the action on it needs.

    live: the install's object as the API server has it, None if it was not read
    install: the same, read by its family's rules
    drift: how the install differs from the lock's template by a change of somebody else, "" if it does not
    text: the installs that are waited for, or who else writes
    seconds: until the next look
    """

    finding: InstallFinding
    live: Object | None = None
    install: Install | None = None
    drift: str = ""
    text: str = ""
    seconds: float = 0.0


def look(run: Pass, state: InstallState) -> Generator[Effect, Any, Found]:
    """Return what is found out about an install."""
    row = run.row
    if row is None:
        is_recorded = run.data.done is not None
        return Found(InstallFinding.RECORDED if is_recorded else InstallFinding.NOTHING_LEFT)
    if state is InstallState.TO_MAKE:
        is_decided = row.status == "locked" and bool(row.template)
        return Found(InstallFinding.DECIDED if is_decided else InstallFinding.UNDECIDED)
    if state is InstallState.REMOVED:
        return (yield from _look_at_removed(run, row))
    return (yield from _look_at_present(run, row))


def _look_at_removed(run: Pass, row: LockRow) -> Generator[Effect, Any, Found]:
    name = run.name
    live: Object | None = yield Get(kind_of_key(name), name.namespace, name.name)
    if live is not None and not family_of(name).has_revisions and carvel.is_holding(live):
        return Found(InstallFinding.HOLDING, live)
    if live is None or (row.uid and live["metadata"].get("uid") != row.uid):
        return Found(InstallFinding.GONE)
    if not installs.is_made(live, name):
        is_going = bool(live["metadata"].get("deletionTimestamp"))
        return Found(InstallFinding.USERS_GOING if is_going else InstallFinding.USERS)
    if row.removal == "delete" or (row.removal == "keep-if-used" and not _is_needed(run)):
        return Found(InstallFinding.UNNEEDED, live)
    return Found(InstallFinding.NEEDED, live)


def _is_needed(run: Pass) -> bool:
    """Return whether an install that stays depends on this one."""
    holders = (run.table.get(key) for key in run.needed_by)
    return any(holder and holder.row and holder.row.status != "removed" for holder in holders)


def _look_at_present(run: Pass, row: LockRow) -> Generator[Effect, Any, Found]:
    data, name = run.data, run.name
    obj = data.object() if data.raw is not None else None
    if obj is None or (obj.get("metadata") or {}).get("uid") != row.uid:
        return Found(InstallFinding.BEHIND)
    install = install_of(obj, namespace=run.namespace)
    if install.is_deleted or (isinstance(install, Install) and install.is_paused):
        return Found(InstallFinding.LEFT_ALONE)
    if isinstance(install, Problem):
        return Found(InstallFinding.UNREADABLE)
    is_locked = row.status == "locked"
    drift = yield from installs.update(name, row, obj)
    if not is_locked and (run.installer == "others" or not _has_whole_version(install, row, run.before)):
        return Found(InstallFinding.BARE)
    if run.installer == "pvbus":
        if is_locked and (unmet := _unmet(run)):
            return Found(InstallFinding.UNMET, text=unmet)
        if data.looked_at and data.looked_at <= run.now < data.looked_at + data.look_after:
            return Found(InstallFinding.COMPARED, seconds=data.looked_at + data.look_after - run.now)
    live: Object | None = yield Get(kind_of_key(name), name.namespace, name.name)
    if live is None or live["metadata"].get("uid") != row.uid:
        return Found(InstallFinding.BEHIND)
    if run.installer == "others":
        return Found(InstallFinding.OTHERS, live, install, drift)
    rival, seconds = others.rival_of(install, live, run.now)
    if rival:
        return Found(InstallFinding.RIVALLED, text=rival, seconds=seconds)
    return Found(InstallFinding.READY if is_locked else InstallFinding.WHOLE, live, install, drift)


def _has_whole_version(install: Install, row: LockRow, before: EstablishedRow) -> bool:
    """Return whether an install that is refused or broken has an established version, which is kept in order.

    This version stays alone if, by the lock, another install has one of its objects.
    """
    if row.status not in ("refused", "broken") or row.reason == OBJECT_OWNED:
        return False
    whole = {each.name: each for each in before.revisions if each.state == "established"}
    if not FAMILIES[install.family].has_revisions:
        return bool(whole)
    active = next((each for each in row.revisions if each.is_active), None)
    return active is not None and active.name in whole and {*active.objects} == {*whole[active.name].objects}


def _unmet(run: Pass) -> str:
    """Return the installs that are needed and not healthy yet, in words; "" for a healthy install."""
    if run.before.order == run.data.order and run.before.is_healthy:
        return ""

    def needs(rest: str) -> list[str]:
        data = run.table.get(str(ScopedKey(SCOPE, rest)))
        dependencies = data.row.dependencies if data is not None and data.row is not None else ()
        needed = [need.install for need in dependencies if need.install and not need.is_optional]
        return [other for other in needed if not is_healthy(run.table, other)]

    rest = ScopedKey.parse(run.key).rest
    unmet = waited_for(rest, needs) if needs(rest) else ()
    return ", ".join(_title(each) + in_brackets(why_unhealthy(run.table, each)) for each in unmet)


def waited_for(start: str, needs: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the installs that an install waits for: what it needs, but not what needs it in turn.

    Packages that need each other in a cycle are one step: they wait for what any of them needs outside of the
    cycle, and not for each other.

    needs: returns what an install needs and is not healthy
    """
    needed: dict[str, list[str]] = {}
    pending = [start]
    while pending:
        name = pending.pop()
        if name not in needed:
            needed[name] = list(dict.fromkeys(needs(name)))
            pending += needed[name]
    cycle = _needing(start, needed)
    # What it needs itself comes first in a message.
    ordered = [start, *sorted(cycle - {start})]
    return list(dict.fromkeys(other for name in ordered for other in needed[name] if other not in cycle))


def _needing(start: str, needed: Mapping[str, Iterable[str]]) -> set[str]:
    """Return an install and all that need it, be it through others."""
    needing: dict[str, list[str]] = defaultdict(list)
    for name, others_needed in needed.items():
        for other in others_needed:
            needing[other].append(name)
    group: set[str] = set()
    pending = [start]
    while pending:
        name = pending.pop()
        if name not in group:
            group.add(name)
            pending += needing[name]
    return group


def why_unhealthy(table: Table, rest: str) -> str:
    """Return what keeps an install from being healthy, "" while nothing but time does. rest: of its key."""
    data = table.get(str(ScopedKey(SCOPE, rest)))
    if data is None or data.row is None or is_healthy(table, rest):
        return ""
    done = data.done or EstablishedRow()
    if (
        done.reason == WAITS
    ):  # only for what a person has to see to: else each step of a chain were told to all
        return _shortened(done.message) if "(" in done.message else ""
    trouble = trouble_of(data.row, done)
    return _shortened(trouble[1] or trouble[0]) if trouble is not None else ""


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS else f"{text[:REASON_CHARACTERS]}..."


def in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def is_healthy(table: Table, rest: str) -> bool:
    """Return whether an install is established and healthy. rest: of its key."""
    data = table.get(str(ScopedKey(SCOPE, rest)))
    return data is not None and data.done is not None and data.done.is_healthy


def established_before(name: ObjectKey, data: InstallData) -> EstablishedRow:
    """Return what is established of an install; without a row, the objects that a PackageInstall notes."""
    if data.done is not None or data.raw is None or family_of(name).has_revisions:
        return data.done or EstablishedRow()
    objects = carvel.noted(data.object())
    version = data.row.version if data.row is not None else ""
    entry = EstablishedRevision(name=version, state="pending", objects=objects)
    return EstablishedRow(revisions=(entry,) if objects else ())


def package_of(table: Table, install: Install, row: LockRow) -> Object | None:
    """Return the Carvel Package of an install's version: of its namespace, else of the common one."""
    kind, namespace = carvel.PACKAGE, ObjectKey.parse(install.okey).namespace
    for where in (namespace, GLOBAL_NAMESPACE):
        key = ScopedKey(SCOPE, okey(kind.group, kind.kind, where, f"{install.package}.{row.version}"))
        data = table.get(str(key))
        if data is not None and data.raw is not None:
            return data.object()
    return None


def _title(rest: str) -> str:
    key = ObjectKey.parse(rest)
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"


def object_key(key: str) -> ObjectKey:
    return ObjectKey.parse(ScopedKey.parse(key).rest)
