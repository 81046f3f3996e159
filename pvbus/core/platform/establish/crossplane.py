"""Carries a lock's row out for Crossplane's family: revisions, their objects, their runtimes.

The order of an upgrade: the new revision's object, inactive; every check; its objects, each of which goes
from the former revision to the new one in one update; the former one inactive, then the new one active; what
only the former one has is released; its Deployment goes, then the new one's comes. A row that may not be
established any more changes nothing: what was established stays.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.errors import FORBIDDEN, PermanentError
from pvbus.core.kernel.effects import Content, Create, Effect, Pull
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.packagerows import (
    UNVERIFIED,
    WROTE,
    EstablishedRevision,
    EstablishedRow,
    LockedRevision,
    LockRow,
)
from pvbus.core.platform.establish import applying, certificates, manifests, revisions, runtime
from pvbus.core.platform.establish.applying import NotYetError, RefusedError
from pvbus.core.platform.establish.deployments import Deployments, health_of
from pvbus.core.platform.establish.objects import Object, key_of, title
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.establish.owners import Owner
from pvbus.core.platform.establish.runtimeconfigs import RuntimeConfigs
from pvbus.core.platform.packaging.imageconfigs import Access, ImageConfigs, check_access
from pvbus.core.platform.packaging.statuses import Runtime
from pvbus.core.platform.packaging.xpkg import Packaged, packaged

SOON_SECONDS = 1.0
REFUSED_SECONDS = 60.0
"""A conflict may end by a change of an object that nobody watches, as may a lack of rights."""
PENDING = "Pending"
PACKAGE_REVISION = "PackageRevision"
"""The kind of the revisions of Packages, which have fields that shipped kinds lack."""
RUNTIME_SECONDS = 30.0
"""Between two looks at a Deployment that is not available, where ingest cannot watch it. A look reads all
objects of the package."""
LOOK_SECONDS = 600.0
"""Objects of packages are not watched: what is changed in them by hand is put right after so long."""


class _Run(NamedTuple):
    """One reconciliation. live: revision name -> its live object. manifest: of the active revision's package,
    once it is read."""

    install: Install
    obj: Object
    row: LockRow
    before: EstablishedRow
    namespace: str
    live: dict[str, Object]
    images: ImageConfigs
    configs: RuntimeConfigs
    deployments: Deployments
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def kind(self) -> Any:
        return revisions.kind_of_revisions(self.install)

    @property
    def siblings(self) -> set[str]:
        known = {each.name for each in self.row.revisions} | {each.name for each in self.before.revisions}
        return known | set(self.live)

    def former(self, name: str) -> EstablishedRevision:
        found = next((each for each in self.before.revisions if each.name == name), None)
        return found or EstablishedRevision(name=name)

    def owner(self, name: str) -> Owner:
        """Return a revision as an owner; one whose object is gone has no uid."""
        live = self.live.get(name)
        kind = self.kind
        uid = live["metadata"].get("uid", "") if live is not None else self.former(name).uid
        return Owner(f"{kind.group}/{kind.version}", kind.kind, name, uid)


def reconcile_install(
    install: Install,
    obj: Object,
    row: LockRow,
    before: EstablishedRow,
    namespace: str,
    images: ImageConfigs,
    configs: RuntimeConfigs,
    deployments: Deployments,
    strays: Iterable[str] = (),
) -> Generator[Effect, Any, Carried]:
    """Carry out the lock's row of a Crossplane install.

    obj: the install's object
    before: what establish did so far for this install
    namespace: where the runtimes of packages are created
    images: what is demanded of images, and how they are read
    configs: what the runtimes of packages are made of
    deployments: those that run packages
    strays: names of revisions that may have lost the label by hand, see `revisions.list_revisions`
    """
    live = yield from revisions.list_revisions(install, Owner.of(obj), strays)
    run = _Run(install, obj, row, before, namespace, live, images, configs, deployments, {})
    for locked in sorted(row.revisions, key=lambda each: (each.is_active, each.revision)):
        live[locked.name] = yield from revisions.ensure_revision(install, obj, locked, live.get(locked.name))
    active = next((each for each in row.revisions if each.is_active), None)
    if active is None:
        done = yield from _inactive(run, row.revisions)
        return Carried(
            _in_order(run, done), reason="InactivePackageRevision", message="no revision is active"
        )
    carried = yield from _activate(run, active)
    return carried._replace(manifest=manifests.status_of(run.manifest) if run.manifest else None)


class _Whole(NamedTuple):
    """A revision to which all of its objects belong.

    keys: okeys of these objects
    references: references to them, for the revision's status
    workloads: the objects that run the package, to be written once the revision is active
    gap: what of the package has no effect here, in words, "" if nothing
    endpoint: the address at which a function answers
    lists: fields of the revision's spec that come from the package
    """

    keys: tuple[str, ...]
    references: tuple[Object, ...]
    workloads: list[applying.Item]
    gap: str
    endpoint: str
    lists: Mapping[str, Any]


def _activate(run: _Run, active: LockedRevision) -> Generator[Effect, Any, Carried]:
    """Make a revision the active one: all of it, or nothing changes."""
    try:
        whole = yield from _make_whole(run, active)
    except RefusedError as refusal:
        return (yield from _end_refused(run, active, refusal.reason, refusal.message))
    except NotYetError as leaving:
        return _pending(run, active, str(leaving))
    done = yield from _switch_on(run, active, whole)
    yield from _collect_garbage(run)
    established = _entry(run, active.name, "established", whole.keys)
    runs = _health_of(whole.workloads, whole.endpoint)
    is_watched = run.deployments.is_listed or not whole.workloads
    if runs is None and whole.gap:
        runs = Runtime("Unknown", whole.gap, is_started=False)
    return Carried(
        _in_order(run, [*done, established]),
        True,
        message=whole.gap,
        again_after=LOOK_SECONDS if is_watched or (runs and runs.health == "True") else RUNTIME_SECONDS,
        references=whole.references,
        runtime=runs,
    )


def _health_of(workloads: Iterable[applying.Item], endpoint: str) -> Runtime | None:
    """Return whether what runs a package is available, by its Deployment before this run."""
    return next((Runtime(*health_of(item.live or {}), endpoint) for item in workloads), None)


def _make_whole(run: _Run, locked: LockedRevision) -> Generator[Effect, Any, _Whole]:
    """Check all objects of a revision, then write them. Raises RefusedError or NotYetError."""
    owner = run.owner(locked.name)
    source = locked.source or run.install.package
    is_new = run.former(locked.name).state != "established"  # what runs stays, whatever is demanded later
    if is_new and (words := run.images.unverified(source, locked.version, locked.digest)):
        raise RefusedError(UNVERIFIED, words)
    access = run.images.access(source, run.install.secrets)
    content = yield from content_of(locked, access)
    run.manifest.update(content.meta)
    given = list(content.objects.values())
    certified = yield from _runtime(run, locked, content, access)
    ran = certified.runtime
    given = certificates.with_authority(given, certified.ca, ran.service, run.namespace)
    objects = [_labelled(run.install, each) for each in given]
    try:
        items = yield from applying.compare([*objects, *ran.accounts], owner, run.siblings)
        workloads = yield from applying.compare(ran.workloads, owner, ())
        yield from applying.check([*items, *workloads])
    except PermanentError as error:
        raise RefusedError(error.reason, f"{error}: nothing was changed") from error
    if certified.authority is not None:
        yield from _create_authority(run, certified.authority)
    yield from applying.write(items)
    apart = {key_of(each) for each in ran.accounts}
    own = [item.new for item in items if key_of(item.new) not in apart]
    references = tuple(
        {"apiVersion": each["apiVersion"], "kind": each["kind"], "name": each["metadata"]["name"]}
        for each in own
    )
    lists = manifests.lists_of(content.meta, references) if run.kind.kind == PACKAGE_REVISION else {}
    return _Whole(tuple(map(key_of, own)), references, workloads, ran.gap, ran.endpoint, lists)


def _create_authority(run: _Run, secret: Object) -> Generator[Effect, Any, None]:
    """Create the Secret of the authority, for one install at a time. Raises NotYetError for the others."""
    if run.configs.is_authority_written:
        raise NotYetError("another install creates the authority of certificates")
    run.configs.is_authority_written = True
    try:
        yield Create(runtime.SECRET, secret)
    finally:
        run.configs.is_authority_written = False


def _runtime(
    run: _Run, locked: LockedRevision, content: Packaged, access: Access
) -> Generator[Effect, Any, certificates.Certified]:
    """Return what runs a revision, with its certificates. Raises RefusedError."""
    kind = str(content.meta.get("kind"))
    config: Mapping[str, Any] = {}
    if kind in runtime.RUN:
        own = run.install.runtime_config
        config = run.configs.spec_of(run.images.runtime(own, access.address, locked.version, locked.digest))
    identity = runtime.RuntimeIdentity(locked.name, run.owner(locked.name).uid, run.name, run.namespace)
    ran = yield from runtime.startable(
        runtime.runtime_of(
            run.install._replace(secrets=access.secrets),
            content.meta,
            content.objects.values(),
            identity,
            image_of(locked, access.address),
            config,
        )
    )
    try:
        return (yield from certificates.certify_runtime(ran, kind, identity))
    except PermanentError as error:
        raise RefusedError(error.reason, f"the certificates of {run.name}: {error}") from error


def _switch_on(
    run: _Run, active: LockedRevision, whole: _Whole
) -> Generator[Effect, Any, list[EstablishedRevision]]:
    """Switch the other revisions off, then this one on; return the entries of the others."""
    others = [each for each in run.row.revisions if each.name != active.name]
    done = yield from _inactive(run, others)
    for name in sorted(set(run.live) - {each.name for each in run.row.revisions}):
        # One that the lock has dropped meanwhile goes last, and must not be active beside the new one.
        run.live[name] = yield from revisions.switch(run.kind, run.live[name], None, "Inactive")
    live = run.live[active.name]
    run.live[active.name] = yield from revisions.switch(
        run.kind, live, active, "Active", run.manifest, whole.lists
    )
    yield from applying.write(whole.workloads)
    return done


def image_of(locked: LockedRevision, address: str) -> str:
    """Return the image of a package, "" if it is a folder of git. address: where it is read"""
    if not address or address.startswith("git+"):
        return ""
    return f"{address}@{locked.digest}"


def _labelled(install: Install, obj: Object) -> Object:
    """Return an object with the labels and annotations that an install gives to all of its objects."""
    meta = dict(obj["metadata"])
    if install.common_labels:
        meta["labels"] = {**(meta.get("labels") or {}), **dict(install.common_labels)}
    if install.common_annotations:
        meta["annotations"] = {**(meta.get("annotations") or {}), **dict(install.common_annotations)}
    return {**obj, "metadata": meta}


def content_of(locked: LockedRevision, access: Access) -> Generator[Effect, Any, Packaged]:
    """Pull the content of a revision, and return it with those objects that the lock names.

    Raises RefusedError if it cannot be read, or lacks an object that the lock names.
    """
    try:
        yield from check_access(access)
        content: Content = yield Pull(access.address, locked.digest, access.secrets)
        found = packaged(content.files)
    except PermanentError as error:
        note = f" ({access.note})" if access.note and access.note not in str(error) else ""
        raise RefusedError(error.reason, f"{error}{note}") from error
    missing = [key for key in locked.objects if key not in found.objects]
    if missing:
        raise RefusedError(
            "InvalidContent", f"the content has no {title(missing[0])}, which the lock says it has"
        )
    return Packaged(found.meta, {key: found.objects[key] for key in locked.objects})


# ---------------------------------------------------------------- what is not active


def _inactive(
    run: _Run, others: Iterable[LockedRevision]
) -> Generator[Effect, Any, list[EstablishedRevision]]:
    """Switch revisions off, stop their runtimes, and give up their control; return their entries."""
    done = []
    for locked in others:
        former, owner = run.former(locked.name), run.owner(locked.name)
        live = run.live[locked.name]
        run.live[locked.name] = yield from revisions.switch(run.kind, live, locked, "Inactive")
        if former.state != "released" or former.uid != owner.uid:
            yield from runtime.stop(owner, run.name, run.namespace)
        keys = dict.fromkeys((*former.objects, *locked.objects))
        owned = yield from applying.release_objects(keys, owner)
        done.append(_entry(run, locked.name, "released", owned))
    return done


def _collect_garbage(run: _Run) -> Generator[Effect, Any, None]:
    """Delete revisions that are not in the lock any more, and with them what only they own.

    Only after the active one is whole. One that a user has just activated is left to the lock's next row.
    """
    retained = {each.name for each in run.row.revisions}
    for name, live in sorted(run.live.items()):
        if name in retained or (revisions.is_users(live, None) and revisions.desired_state(live) == "Active"):
            continue
        yield from runtime.stop(run.owner(name), run.name, run.namespace)
        yield from revisions.remove(run.kind, live)


# ---------------------------------------------------------------- failures


def _end_refused(
    run: _Run, active: LockedRevision, reason: str, message: str
) -> Generator[Effect, Any, Carried]:
    """End without a change. What was whole before stays whole, or becomes so again; else nothing is left."""
    former = run.former(active.name)
    if former.state == "established":
        return _failed(run, active, reason, message)
    whole = next((each for each in run.before.revisions if each.state == "established"), None)
    locked = next((each for each in run.row.revisions if whole and each.name == whole.name), None)
    try:
        if locked is not None:
            yield from applying.write((yield from _give_back(run, active, locked)))
    except RefusedError as refusal:
        message = f"{message}; {locked.name if locked else ''} cannot be put back: {refusal.message}"
    except NotYetError as leaving:
        return _pending(run, active, f"{message}; {leaving}")
    try:
        yield from applying.take_back(active.objects, run.owner(active.name))
    except PermanentError as error:
        if str(error) not in message:
            message = f"{message}; whether it has left objects is not known: {error}"
    yield from runtime.stop(run.owner(active.name), run.name, run.namespace)
    return _failed(run, active, reason, message)


def _give_back(
    run: _Run, active: LockedRevision, locked: LockedRevision
) -> Generator[Effect, Any, list[applying.Item]]:
    """Give everything back to the revision that was whole before; return what is still to be started."""
    before = yield from _make_whole(run, locked)
    live = run.live[active.name]
    run.live[active.name] = yield from revisions.switch(run.kind, live, active, "Inactive")
    live = run.live[locked.name]
    run.live[locked.name] = yield from revisions.switch(run.kind, live, locked, "Active")
    return before.workloads


def _failed(run: _Run, active: LockedRevision, reason: str, message: str) -> Carried:
    """Return an outcome in which the other revisions are as they were, and this one has failed."""
    former = run.former(active.name)
    state = "established" if former.state == "established" else "failed"
    entries = _replaced(run, active, state, reason, message)
    # A registry that refuses does not make unhealthy what is whole; somebody who took an object away does.
    is_healthy = state == "established" and reason not in (applying.CONFLICT, FORBIDDEN)
    return Carried(entries, is_healthy, reason=reason, message=message, again_after=REFUSED_SECONDS)


def _pending(run: _Run, active: LockedRevision, message: str) -> Carried:
    """Return an outcome that goes on soon."""
    former = run.former(active.name)
    state = "established" if former.state == "established" else "pending"
    entries = _replaced(run, active, state, PENDING, message)
    return Carried(entries, False, False, PENDING, message, (message,), SOON_SECONDS)


def _replaced(
    run: _Run, active: LockedRevision, state: Any, reason: str, message: str
) -> tuple[EstablishedRevision, ...]:
    """Return the entries of the row before, with that of this revision changed."""
    entries = {each.name: each for each in run.before.revisions if each.name in run.live}
    entries[active.name] = msgspec.structs.replace(
        run.former(active.name),
        uid=run.owner(active.name).uid,
        wrote=annotation(run.live[active.name], WROTE),
        state=state,
        reason=reason,
        message=message,
    )
    return _in_order(run, entries.values())


def _entry(run: _Run, name: str, state: Any, keys: Iterable[str]) -> EstablishedRevision:
    live = run.live[name]
    wrote: Any = annotation(live, WROTE)
    uid = live["metadata"].get("uid", "")
    return EstablishedRevision(name=name, uid=uid, wrote=wrote, state=state, objects=tuple(keys))


def _in_order(run: _Run, entries: Iterable[EstablishedRevision]) -> tuple[EstablishedRevision, ...]:
    numbers = {each.name: each.revision for each in run.row.revisions}
    return tuple(sorted(entries, key=lambda each: (numbers.get(each.name, 0), each.name)))
