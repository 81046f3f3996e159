"""Establish: makes the cluster equal to the lock, install by install.

A row of the lock is the order; what was done is a row of its own. The packages of one scope are in one
partition, and keys run concurrently: while an install writes objects, no other one that has some of these
objects in its rows begins, so of two installs that both want an object one wins whole, even if the lock were
wrong. A crash at any effect is repaired by the next run. An install waits until those it needs are healthy.
"""

from collections.abc import Generator, Iterable
from typing import Any, assert_never

import msgspec

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.effects import Effect, Outcome, Put, Reconciliation
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.kernel.markers import SyncView, is_marker
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.packagekinds import (
    DEPLOYMENT,
    IMAGE_CONFIG,
    RUNTIME_CONFIG,
)
from pvbus.core.kernel.packagerows import (
    DEPENDENCY_CYCLE,
    SCOPE,
    WROTE,
    EstablishedRow,
    Installer,
    LockedRevision,
    LockRow,
    ScopedKey,
)
from pvbus.core.kernel.records import ESTABLISHED, INSTALLS, LOCK
from pvbus.core.platform.establish import (
    apps,
    carvel,
    crossplane,
    installs,
    others,
    reporting,
    repositories,
    revisions,
    states,
)
from pvbus.core.platform.establish.deployments import Deployments
from pvbus.core.platform.establish.families import family_of, kind_of_key
from pvbus.core.platform.establish.findings import (
    WAITS,
    Found,
    Pass,
    Table,
    established_before,
    is_healthy,
    look,
    object_key,
    package_of,
    why_unhealthy,
)
from pvbus.core.platform.establish.notices import BESIDE, notice_of
from pvbus.core.platform.establish.objects import Object
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.establish.runtimeconfigs import RuntimeConfigs
from pvbus.core.platform.establish.state import InstallData
from pvbus.core.platform.establish.states import InstallAction
from pvbus.core.platform.packaging.conditions import Status
from pvbus.core.platform.packaging.imageconfigs import Access, ImageConfigs
from pvbus.core.platform.packaging.reading import Problem, install_of

NAMESPACE = "crossplane-system"
"""Where runtimes and pull secrets of Crossplane's family are."""
BUSY_SECONDS = 0.2
"""Until an install looks again whether another one has written the objects that both have."""
RETRY_SECONDS = 60.0
PAGES = f"{SCOPE}|"
"""The key of the lock's pages: no install has it."""

_CROSSPLANE = f"{SCOPE}|{revisions.GROUP}/"
_row = msgspec.json.Decoder(LockRow)
_done = msgspec.json.Decoder(EstablishedRow)


class EstablishController(KeyedController[InstallData]):
    """The lock in, the cluster out. Where a decision fails, what was established stays."""

    name = "establish"

    def __init__(self, installer: Installer = "pvbus", *, namespace: str = NAMESPACE) -> None:
        super().__init__(lambda _: InstallData())
        self.evaluations = 0
        self._installer = installer
        self._namespace = namespace
        self._busy: dict[int, dict[str, frozenset[str]]] = {}
        self._images: dict[int, ImageConfigs] = {}
        self._configs: dict[int, RuntimeConfigs] = {}
        self._deployments: dict[int, Deployments] = {}
        self._syncs: dict[int, SyncView] = {}
        self._needed_by: dict[int, dict[str, set[str]]] = {}
        self._paged_at = 0.0
        self._is_page_due = False

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        super().open(partition)
        self._busy[partition] = {}
        self._images[partition] = ImageConfigs(self._namespace)
        self._configs[partition] = RuntimeConfigs()
        self._deployments[partition] = Deployments()
        self._syncs[partition] = SyncView(1)
        self._needed_by[partition] = {}
        self._is_page_due = False

    def close(self, partition: int) -> None:
        super().close(partition)
        for tables in (self._busy, self._images, self._configs, self._deployments, self._syncs):
            tables.pop(partition, None)
        self._needed_by.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        installs = [*super().keys(partition)]
        table = self._tables.get(partition, {}) if self._installer == "pvbus" else {}
        more = [key for key in table if key.startswith(repositories.KEYS) and key not in installs]
        return [*installs, *more, *([PAGES] if installs else [])]

    @staticmethod
    def has_work(state: InstallData) -> bool:
        return bool(state.row or state.done)

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        table = self._tables.get(partition)
        if table is None:
            return ()
        if is_marker(key):
            return self._note_marker(partition, key, value) if topic == INSTALLS else ()
        if topic == INSTALLS and object_key(key).kind in (IMAGE_CONFIG.kind, RUNTIME_CONFIG.kind):
            return self._observe_config(partition, object_key(key), value)
        if topic == INSTALLS and object_key(key).kind == DEPLOYMENT.kind:
            return self._observe_deployment(partition, ScopedKey.parse(key).rest, value)
        if topic == INSTALLS and key.startswith(repositories.KEYS):
            is_news = repositories.observe(table, key, value)
            return [key] if is_news and self._installer == "pvbus" else []
        data = table.setdefault(key, InstallData())
        edited: list[str] = []
        is_news = True
        if topic == INSTALLS:
            is_gone = value is None and data.raw is not None
            is_news, edited = self._observe(table, key, data, value)
            edited += self._look_after_loss(table, ScopedKey.parse(key).rest) if is_gone else []
        elif topic == LOCK:
            self._decide(partition, key, data, _row.decode(value) if value is not None else None)
        else:
            data.done = _done.decode(value) if value is not None else None
        dirty = [key] if is_news and (data.row is not None or data.done is not None) else []
        if data.is_empty:
            del table[key]
        dirty += edited
        if topic == LOCK and key.startswith(_CROSSPLANE) and not self._is_page_due:
            dirty.append(PAGES)
        return [*dirty, *self._waiting_for(partition, key)] if topic == ESTABLISHED else dirty

    def _note_marker(self, partition: int, key: str, value: bytes | None) -> list[str]:
        """Apply how complete a kind is; return the installs for which that matters."""
        images, configs, sync = self._images[partition], self._configs[partition], self._syncs[partition]
        sync.load(0, key, value)
        self._deployments[partition].is_listed = sync.ok(str(DEPLOYMENT), self._namespace)
        former = images.hidden, configs.hidden
        images.hidden, configs.hidden = sync.hidden(str(IMAGE_CONFIG)), sync.hidden(str(RUNTIME_CONFIG))
        return self._look_at_all(partition) if former != (images.hidden, configs.hidden) else []

    def _observe_config(self, partition: int, key: ObjectKey, value: bytes | None) -> list[str]:
        """Apply an ImageConfig or a DeploymentRuntimeConfig; return the installs for which it may matter."""
        obj = msgspec.json.decode(value, type=dict[str, Any]) if value is not None else None
        if key.kind == IMAGE_CONFIG.kind:
            is_news = self._images[partition].observe(key.name, obj)
        else:
            is_news = self._configs[partition].observe(key.name, obj)
        return self._look_at_all(partition) if is_news else []

    def _observe_deployment(self, partition: int, key: str, value: bytes | None) -> list[str]:
        """Apply a Deployment; return the install that it runs if it says something else, or is gone."""
        obj = msgspec.json.decode(value, type=dict[str, Any]) if value is not None else None
        revision = self._deployments[partition].observe(key, obj)
        table = self._tables[partition]
        data = table.get(str(ScopedKey(SCOPE, revision)))
        parent = revisions.parent_of(data.object()) if data is not None and data.raw is not None else ""
        if parent not in table:
            return []
        if value is None and ObjectKey.parse(revision).name == table[parent].active:  # it is made again
            table[parent].look_again()
        return [parent]

    def _look_at_all(self, partition: int) -> list[str]:
        """Compare all installs of Crossplane's family again; return their keys."""
        table = self._tables[partition]
        found = [key for key, data in table.items() if key.startswith(_CROSSPLANE) and data.row is not None]
        for key in found:
            table[key].look_again()
        return found

    def _observe(
        self, table: dict[str, InstallData], key: str, data: InstallData, value: bytes | None
    ) -> tuple[bool, list[str]]:
        """Apply an object; return whether it is news for its own key, and the installs whose revision it is,
        if a person has deleted or edited it."""
        name = object_key(key)
        if name.group != revisions.GROUP or not name.kind.endswith("Revision"):
            return data.observe(value), []
        former = revisions.stray_of(data.object()) if data.raw is not None else ""
        data.observe(value)
        obj = data.object() if data.raw is not None else None
        stray = revisions.stray_of(obj) if obj is not None else ""
        for parent, is_stray in ((former, False), (stray, True)):
            if parent:
                table.setdefault(parent, InstallData()).strays[name.name] = is_stray
        found = [stray] if stray and stray != former else []
        if obj is None or not annotation(obj, WROTE):
            found += self._with_revision(table, name)
        for each in found:
            table[each].look_again()
        if obj is not None and reporting.is_behind(obj):  # its status has to follow our own writes, too
            found += [each for each in (revisions.parent_of(obj),) if each in table]
        return True, found

    @staticmethod
    def _look_after_loss(table: dict[str, InstallData], lost: str) -> list[str]:
        """Compare the installs again to which an object belongs that is gone; return their keys.

        lost: its okey. Whoever deleted it, it is made again if the lock still has it.
        """
        found = [key for key, data in table.items() if lost in _objects_of(data)]
        for key in found:
            table[key].look_again()
        return found

    @staticmethod
    def _with_revision(table: dict[str, InstallData], revision: ObjectKey) -> list[str]:
        """Return the installs whose row has a revision of this name."""
        kind, found = revision.kind.removesuffix("Revision"), []
        for key, data in table.items():
            names = (each.name for each in data.row.revisions) if data.row is not None else ()
            if revision.name in names and object_key(key).kind == kind:
                found.append(key)
        return found

    def store(self, partition: int, put: Put) -> Iterable[str]:
        table = self._tables.get(partition)
        if put.topic != ESTABLISHED or table is None:
            return ()
        data = table.setdefault(put.key, InstallData())
        data.done = put.row if isinstance(put.row, EstablishedRow) else None
        if data.is_empty:
            del table[put.key]
        return [put.key, *self._waiting_for(partition, put.key)]

    def _decide(self, partition: int, key: str, data: InstallData, row: LockRow | None) -> None:
        """Apply a row of the lock, and remember what it needs."""
        needed_by = self._needed_by[partition]
        for need in data.row.dependencies if data.row is not None else ():
            needed_by.get(need.install, set()).discard(key)
        for need in row.dependencies if row is not None else ():
            if need.install:
                needed_by.setdefault(need.install, set()).add(key)
        data.decide(row)

    def _waiting_for(self, partition: int, key: str) -> list[str]:
        """Return the installs that depend on this one."""
        return sorted(self._needed_by[partition].get(ScopedKey.parse(key).rest, ()))

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        table, busy = self._tables[partition], self._busy[partition]
        if key == PAGES:
            return (yield from self._write_pages(table, now))
        data = table.get(key)
        if data is None:
            return Outcome()
        self.evaluations += 1
        if key.startswith(repositories.KEYS):
            return (yield from repositories.reconcile(key, table, now, self._syncs[partition]))
        wanted = _objects_of(data)
        if any(wanted & objects for each, objects in busy.items() if each != key):
            return Outcome(
                result="waiting",
                waiting=("another install that has one of its objects",),
                again_after=BUSY_SECONDS,
            )
        busy[key] = wanted
        before = established_before(object_key(key), data)
        needed_by = self._waiting_for(partition, key)
        run = Pass(
            partition, table, key, data, data.row, before, needed_by, now, self._installer, self._namespace
        )
        try:
            return (yield from self._reconcile_install(run))
        finally:
            busy.pop(key, None)

    def _reconcile_install(self, run: Pass) -> Generator[Effect, Any, Outcome]:
        """Take the action that follows from what is found out about an install, and say how far it is."""
        data, row, order, changes = run.data, run.row, run.data.order, run.data.changes
        state = states.state_of(row)
        try:
            found = yield from look(run, state)
            done = yield from self._act(run, states.action(state, found.finding), found)
        except PermanentError as error:
            done = Carried(
                run.before.revisions, reason=error.reason, message=str(error), again_after=RETRY_SECONDS
            )
        if done is None:
            return Outcome()
        if done.is_over or row is None:
            return (
                Outcome((Put(ESTABLISHED, run.key, None),), "changed") if data.done is not None else Outcome()
            )
        new = EstablishedRow(
            uid=row.uid,
            order=order,
            revisions=done.revisions,
            is_healthy=done.is_healthy,
            is_created=installs.is_made(data.object() if data.raw is not None else None, run.name)
            or not row.uid,
            reason=done.reason,
            message=done.message,
            stage=done.stage,
        )
        if done.references or done.runtime is not None:
            data.references, data.runtime = done.references, done.runtime
        if done.manifest is not None:
            data.manifest = done.manifest
        is_current = changes == data.changes  # what was changed meanwhile was not looked at
        if is_current and done.is_healthy and not done.waiting and done.again_after is not None:
            data.looked_at, data.look_after = run.now, done.again_after
        notice = notice_of(run.name, row, data.done, new, run.now)
        puts = (Put(ESTABLISHED, run.key, new, notice=notice),) if new != data.done else ()
        # A row that is committed is reported, no other one, nor one of what the lock has replaced meanwhile.
        if not puts and self._installer == "pvbus" and data.order == order:
            yield from self._report(run, done)
        result = "changed" if puts else "waiting" if done.waiting else "unchanged"
        return Outcome(puts, result, again_after=done.again_after, waiting=done.waiting)

    def _act(self, run: Pass, action: InstallAction, found: Found) -> Generator[Effect, Any, Carried | None]:
        """Take an action; return how far the install is, None if nothing is to be said of it."""
        row, before, live, name = run.row, run.before, found.live, run.name
        match action:
            case InstallAction.NOTHING:
                return None
            case InstallAction.FORGET:
                return Carried(is_over=True)
            case InstallAction.AWAIT:
                return Carried(before.revisions)
        assert row is not None
        match action:
            case InstallAction.MAKE:
                return (yield from installs.make(name, row))
            case InstallAction.REPORT:
                return _unchanged(before, row.reason or row.status.capitalize(), row.message)
            case InstallAction.WAIT:
                message = f"waits for {found.text}"
                return Carried(before.revisions, reason=WAITS, message=message, waiting=(found.text,))
            case InstallAction.KEEP:
                same = _unchanged(before, before.reason, before.message)
                return same._replace(again_after=found.seconds)
            case InstallAction.YIELD:
                return _unchanged(before, BESIDE, found.text)._replace(again_after=found.seconds)
        assert live is not None
        match action:
            case InstallAction.DELETE_OBJECTS:
                return (yield from carvel.remove_install(name, live, before))
            case InstallAction.DELETE:
                # What it has is deleted once it is being deleted, so the row remembers that until then.
                return (yield from installs.delete(name, live))._replace(revisions=before.revisions)
            case InstallAction.RELEASE:
                return (yield from installs.release(name, live))
        assert found.install is not None
        match action:
            case InstallAction.FOLLOW:
                done = yield from others.follow(found.install, kind_of_key(name), live, row)
            case InstallAction.APPLY:
                done = yield from self._apply_lock(run, found.install, live, row)
            case InstallAction.REPAIR:
                return _repaired((yield from self._apply_lock(run, found.install, live, row)), row, before)
            case never:
                assert_never(never)
        ring = row.message if row.reason == DEPENDENCY_CYCLE else ""
        return done._replace(message="; ".join(filter(None, (done.message, found.drift, ring))))

    def _apply_lock(
        self, run: Pass, install: Install, live: Object, row: LockRow
    ) -> Generator[Effect, Any, Carried]:
        """Compare the cluster with the row, or with what an install has that is refused, and write."""
        if install.family == "crossplane":
            if not install.account_annotations:
                account = tuple(sorted(row.account_annotations.items()))
                install = install._replace(account_annotations=account)
            strays = sorted(each for each, is_stray in run.data.strays.items() if is_stray)
            return (
                yield from crossplane.reconcile_install(
                    install,
                    live,
                    row,
                    run.before,
                    self._namespace,
                    self._images[run.partition],
                    self._configs[run.partition],
                    self._deployments[run.partition],
                    strays,
                )
            )
        if row.status != "locked":
            row = msgspec.structs.replace(row, version=run.before.revisions[-1].name)
        package = package_of(run.table, install, row)
        return (yield from carvel.reconcile_install(install, live, row, run.before, package))

    def _report(self, run: Pass, done: Carried) -> Generator[Effect, Any, None]:
        """Write the statuses of an install and of its revisions where they differ from what is mirrored."""
        table, data, now = run.table, run.data, run.now
        row, name = data.row, run.name
        if data.raw is None or row is None or done.reason == BESIDE:
            return
        obj = data.object()
        given = install_of(obj, namespace=self._namespace)
        install = given.bare if isinstance(given, Problem) else given
        if install is None or install.uid != row.uid:
            return
        if not install.package:
            install = install._replace(package=row.package)
        found = {need.install for need in row.dependencies if need.install}
        healthy = {each for each in found if is_healthy(table, each)}
        troubles = {each: why for each in found - healthy if (why := why_unhealthy(table, each))}
        images = self._images[run.partition]

        def access(source: str) -> Access:
            return images.access(source, install.secrets)

        runtime = self._deployments[run.partition].current(data.runtime, data.active, self._namespace)
        wanted = reporting.install_status(install, row, data.done, healthy, troubles, access, runtime)
        family, kind = family_of(name), kind_of_key(name)
        if data.reported is not None and not reporting.is_shown({"status": data.reported}, wanted):
            data.reported = None  # its echo is to come, and has to be put right
        if not reporting.is_shown(obj, wanted):
            stored = yield from reporting.report(
                kind, name.namespace, name.name, row.uid, wanted, now, is_whole=not family.has_revisions
            )
            data.reported = stored or data.reported
        if not family.has_revisions:
            yield from apps.report_app(name, data, package_of(table, install, row), wanted, now)
            return
        kind = revisions.kind_of_revisions(install)
        uids = {each.name: each.uid for each in data.done.revisions} if data.done is not None else {}
        given_status = dict(data.manifest)
        if kind.kind == crossplane.PACKAGE_REVISION and runtime is not None and runtime.is_started:
            given_status["controllerRef"] = reporting.controller_ref(data.active)
        statuses = reporting.revision_statuses(row, data.done, runtime, data.references, access, given_status)
        for locked in row.revisions:
            name_of, uid = okey(kind.group, kind.kind, "", locked.name), uids.get(locked.name)
            if uid and not _is_shown(table, name_of, locked, statuses[locked.name]):
                yield from reporting.report_revision(kind, locked, uid, statuses[locked.name], now)

    def _write_pages(self, table: dict[str, InstallData], now: float) -> Generator[Effect, Any, Outcome]:
        """Write the pages of the lock, at most one time a second."""
        self._is_page_due = now < self._paged_at + reporting.PAGES_SECONDS and self._paged_at <= now
        if self._is_page_due:  # rows that come until then are written with these
            return Outcome(again_after=self._paged_at + reporting.PAGES_SECONDS - now)
        self._paged_at = now
        rows = {
            ScopedKey.parse(key).rest: data.row
            for key, data in table.items()
            if data.row is not None and object_key(key).group == revisions.GROUP
        }
        is_changed = yield from reporting.write_pages(rows, now)
        # Nobody watches the pages: what a person has changed in them is put right by the next look.
        again = crossplane.LOOK_SECONDS if rows else None
        return Outcome(result="changed" if is_changed else "unchanged", again_after=again)


def _objects_of(data: InstallData) -> frozenset[str]:
    """Return the objects that an install may write; none once the lock has no row of it."""
    if data.row is None:
        return frozenset()
    # Carvel's rows have no revisions: what its installs write is in their own rows before it is written.
    known = [revision.objects for revision in data.row.revisions]
    known += [revision.objects for revision in data.done.revisions] if data.done is not None else []
    return frozenset(name for objects in known for name in objects)


def _unchanged(before: EstablishedRow, reason: str, message: str) -> Carried:
    """Return an outcome that leaves what is established as it is."""
    return Carried(before.revisions, before.is_healthy, reason=reason, message=message)


def _repaired(done: Carried, row: LockRow, before: EstablishedRow) -> Carried:
    """Return the outcome for an install that is refused: what it has, and why it does not get more."""
    is_whole = any(each.state == "established" for each in done.revisions)
    return done._replace(
        revisions=done.revisions if is_whole else before.revisions,
        reason=row.reason or row.status.capitalize(),
        message="; ".join(filter(None, (row.message, done.message))),
    )


def _is_shown(table: Table, rest: str, locked: LockedRevision, status: Status) -> bool:
    """Return whether the mirror has a revision with this status."""
    data = table.get(str(ScopedKey(SCOPE, rest)))
    if data is None or data.raw is None:
        return False
    return reporting.is_revision_shown(data.object(), locked, status)
