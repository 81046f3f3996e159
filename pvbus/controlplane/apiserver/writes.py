"""Creates, updates and deletes single objects with Kubernetes' semantics.

HTTP handlers and the collectors write through this module. It awaits nothing between reading head and
queueing the write, so kinds without hooks need no locks; a kind with hooks has one lock per object. A write
of a large object is computed in another process; it is queued only if the object is still the one from which
it was computed. A method returns when the write is durable.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import bodies, changes, computing, revisions, status
from pvbus.controlplane.apiserver.apply.tracking import Tracker
from pvbus.controlplane.apiserver.changes import Sent
from pvbus.controlplane.apiserver.entries import Entry, ObjectKey, decode, opened
from pvbus.controlplane.apiserver.hooks import KindHooks, StatusError
from pvbus.controlplane.apiserver.registry import CRD, NAMESPACE, Endpoint, Registry
from pvbus.controlplane.apiserver.requests import DeleteOptions, Options
from pvbus.controlplane.apiserver.revisions import Admission, Base, Rules, generated_name, now
from pvbus.controlplane.apiserver.store import StaleError, Store
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.controlplane.apiserver.workers import Workers
from pvbus.ports.cluster import Kind, Object

IMMORTAL = ("default", "kube-system", "kube-public")

_READ_WHOLE = (NAMESPACE, CRD)
"""Kinds of which a deletion reads the spec."""

_GENERATED_NAME_TRIES = 8

COMPUTATIONS_MAX = 5
"""How often one write of a large object is computed, as others may change the object meanwhile. Writes that
are computed in another process wait for each other, so only other writes, such as those of the collectors,
come in between."""


class Deleted(NamedTuple):
    """The outcome of a deletion.

    entry: the object's last version
    gone: whether it is removed; False if finalizers still keep it
    """

    entry: Entry
    gone: bool


class _Update(NamedTuple):
    """An update to compute.

    key: namespace and name of the object
    change: returns the new object; None if the body is read only where the update is computed
    sent: the body, for an update that can be computed in another process; else None
    options: the options of the write
    subresource: the subresource that is written, "" for the object itself
    conditional: whether it is a PUT. Its object must be readable in any case, and its uid and resourceVersion
        are preconditions; a kind may require the latter.
    """

    key: ObjectKey
    change: changes.Change | None
    sent: Sent | None
    options: Options
    subresource: str
    conditional: bool

    def is_apart(self, entry: Entry | None) -> bool:
        """Return whether the update is computed in another process.

        entry: the object that it changes, None if there is none
        """
        is_large = entry is not None and bodies.is_large(entry.raw)
        return self.sent is not None and (self.change is None or is_large)


class Writer:
    """All writes with checks and hooks.

    The order of a write: compute the new object from head; check it; call the hooks of its kind; queue it in
    the store; wait until it is durable. Between head and queue nothing else may change the object. Without
    hooks nothing is awaited in between; with hooks, or a computation in another process, the object's lock is
    held, and a computation is repeated if head has changed.
    """

    def __init__(
        self, store: Store, registry: Registry, own: Mapping[Kind, Strategy], hooks: Mapping[Kind, KindHooks]
    ) -> None:
        self.workers = Workers()
        """Compute the writes of large objects; they start when they are first needed."""
        self._store = store
        self._registry = registry
        self._strategies = own
        self._hooks = hooks
        self._tracker = Tracker(registry)
        self._locks: dict[tuple[Kind, ObjectKey], tuple[asyncio.Lock, int]] = {}

    def strategy(self, endpoint: Endpoint) -> Strategy:
        return self._rules(endpoint).strategy

    def _rules(self, endpoint: Endpoint) -> Rules:
        is_hooked = endpoint.stored_kind in self._hooks
        strategy = revisions.strategy_of(endpoint, self._strategies, is_hooked=is_hooked)
        return Rules(endpoint, strategy, self._tracker, is_hooked)

    async def create(
        self, endpoint: Endpoint, obj: Object | Sent, namespace: str | None, options: Options
    ) -> Entry:
        """Store a new object; `obj` may be changed."""
        kind = endpoint.stored_kind
        hooks = self._hooks.get(kind)
        rules = self._rules(endpoint)
        if isinstance(obj, Sent) and obj.is_large and computing.crosses(rules):
            obj, generated = await self._create_apart(rules, obj, namespace, options)
        else:
            if isinstance(obj, Sent):
                obj = changes.new_object(endpoint, self._tracker, obj, options)
            obj = revisions.begun(rules, obj, namespace, options)
            await self._refresh_namespace(kind, namespace)
            obj, generated = revisions.prepare_create(
                rules, obj, self._admission(endpoint, namespace), options
            )
        if hooks is None:
            return await self._store_new(endpoint, obj, generated, options)
        metadata = obj["metadata"]
        if options.dry_run:
            return Entry.encode_unstored({**obj, "metadata": {"name": "", **metadata}})
        given = metadata.get("name")
        async with self._exclusively(kind, (metadata.get("namespace", ""), given or "")):
            obj = await hooks.on_create(obj, user=options.user)
            return await self._store_new(endpoint, obj, "", options)

    async def _create_apart(
        self, rules: Rules, sent: Sent, namespace: str | None, options: Options
    ) -> tuple[Object, str]:
        """Return the new object and the prefix of its name, computed in another process."""
        endpoint = rules.endpoint
        await self._refresh_namespace(endpoint.stored_kind, namespace)
        for _ in range(COMPUTATIONS_MAX):
            admission = self._admission(endpoint, namespace)
            task = self._task(rules, sent, options)
            result: computing.Result = await self.workers.run("create", task, namespace, admission)
            if self._is_present(endpoint):
                options.warnings[:] = result.warnings
                assert result.raw is not None
                obj = self._opened(endpoint, result.raw)
                revisions.admit(endpoint, obj["metadata"], self._admission(endpoint, namespace))
                return obj, result.generated
            endpoint = self._present(endpoint)
            rules = self._rules(endpoint)
        raise status.stale(endpoint.subject(sent.key[1]))

    def _admission(self, endpoint: Endpoint, namespace: str | None) -> Admission:
        is_kind_terminating = endpoint.kind in self._registry.terminating
        if not endpoint.served.namespaced:
            return Admission(is_kind_terminating)
        entry = self._store.head(NAMESPACE, ("", namespace or ""))
        if entry is None:
            return Admission(is_kind_terminating, "missing")
        return Admission(is_kind_terminating, "terminating" if entry.terminating else "")

    async def _refresh_namespace(self, kind: Kind, namespace: str | None) -> None:
        if kind in self._hooks and self._store.head(NAMESPACE, ("", namespace or "")) is None:
            await self._store.refresh(NAMESPACE, ("", namespace or ""))

    # --- what is computed in another process ---

    def _task(self, rules: Rules, sent: Sent, options: Options) -> computing.Task:
        endpoint = rules.endpoint
        resource = (endpoint.served.group, endpoint.version.name, endpoint.served.plural)
        family = self._registry.family(endpoint)
        return computing.Task(family, resource, rules.is_hooked, sent, options._replace(warnings=[]))

    def _opened(self, endpoint: Endpoint, raw: bytes) -> Object:
        """Return an object to store or delete; what reads more of it than its metadata gets all of it."""
        kind = endpoint.stored_kind
        return decode(raw) if kind in self._hooks or kind in _READ_WHOLE else opened(raw)

    def _is_present(self, endpoint: Endpoint) -> bool:
        return self._present(endpoint) is endpoint

    def _present(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint in its present form. Raises StatusError (404) if it is not served any more."""
        served = endpoint.served
        present = self._registry.endpoint(served.group, endpoint.version.name, served.plural)
        if present is None:
            raise status.no_such_path()
        return present

    async def _store_new(self, endpoint: Endpoint, obj: Object, generated: str, options: Options) -> Entry:
        metadata = obj["metadata"]
        kind, namespace = endpoint.stored_kind, metadata.get("namespace", "")
        tries = _GENERATED_NAME_TRIES
        while self._store.head(kind, (namespace, metadata["name"])) is not None:
            tries -= 1
            if not generated or not tries:
                present = self._store.head(kind, (namespace, metadata["name"]))
                is_terminating = present is not None and present.terminating
                subject = endpoint.subject(metadata["name"])
                raise status.already_exists(subject, is_terminating=is_terminating)
            metadata["name"] = generated_name(generated)
        if options.dry_run:
            return Entry.encode_unstored(obj)
        return await self._commit(endpoint, obj)

    async def _commit(self, endpoint: Endpoint, obj: Object) -> Entry:
        try:
            return await self._store.commit(endpoint.stored_kind, obj)
        except StaleError as exc:
            raise status.stale(endpoint.subject(obj["metadata"]["name"])) from exc

    async def _discard(self, endpoint: Endpoint, key: ObjectKey) -> Entry | None:
        try:
            return await self._store.discard(endpoint.stored_kind, key)
        except StaleError as exc:
            raise status.stale(endpoint.subject(key[1])) from exc

    def creates_by_update(self, endpoint: Endpoint, key: ObjectKey) -> bool:
        """Return whether a PUT of this object creates it."""
        creates = self.strategy(endpoint).creates_by_update
        return creates and self._store.head(endpoint.stored_kind, key) is None

    async def apply(self, endpoint: Endpoint, sent: Sent, options: Options) -> tuple[Entry, bool]:
        """Execute a server-side apply. Return the object, and whether it is new."""
        key = sent.key
        if not sent.subresource and self._store.head(endpoint.stored_kind, key) is None:
            try:
                return await self.create(endpoint, sent, key[0] or None, options), True
            except StatusError as exc:
                if exc.reason != "AlreadyExists" or self._store.head(endpoint.stored_kind, key) is None:
                    raise
            options.warnings.clear()  # somebody else was faster: this is a change of his object
        return await self.update(endpoint, key, sent, options, subresource=sent.subresource), False

    async def update(
        self,
        endpoint: Endpoint,
        key: ObjectKey,
        change: Callable[[Object], Object] | Sent,
        options: Options,
        *,
        subresource: str = "",
        conditional: bool = False,
    ) -> Entry:
        """Replace an object by the result of `change` on the current one.

        change: gets the object in the endpoint's version, returns a new one; it may raise
        subresource: the subresource that is written, "" for the object itself
        conditional: whether it is a PUT. Its object must be readable in any case, and its uid and
            resourceVersion are preconditions; a kind may require the latter.
        """
        kind = endpoint.stored_kind
        hooks = self._hooks.get(kind)
        rules = self._rules(endpoint)
        sent = change if isinstance(change, Sent) and computing.crosses(rules) else None
        if isinstance(change, Sent):
            is_read_apart = sent is not None and sent.is_large
            read = None if is_read_apart else changes.change_of(endpoint, self._tracker, change, options)
        else:
            read = change
        update = _Update(key, read, sent, options, subresource, conditional)
        if hooks is None:
            is_apart = update.is_apart(self._store.head(kind, key))
            async with self._exclusively(kind, key) if is_apart else nullcontext():
                old, new = await self._compute_update(rules, update)
                return await self._settle(endpoint, key, old, new, options)
        async with self._exclusively(kind, key):
            await self._store.refresh(kind, key)
            old, new = await self._compute_update(rules, update)
            if new is not None and not options.dry_run:
                before = old.decode()
                new = await hooks.on_update(before, new, subresource=subresource, user=options.user)
                new["metadata"].setdefault("resourceVersion", str(old.rv))
                new = None if new == before else new
            return await self._settle(endpoint, key, old, new, options)

    async def _compute_update(self, rules: Rules, update: "_Update") -> tuple[Entry, Object | None]:
        """Return the current entry and the checked new object, None if it does not change.

        Nothing is awaited after the entry is read, or found to be still the current one.
        """
        key, change, sent, options, subresource, conditional = update
        kind = rules.endpoint.stored_kind
        for _ in range(COMPUTATIONS_MAX):
            entry = self._store.head(kind, key)
            if not update.is_apart(entry):
                assert change is not None
                base = None if entry is None else Base(entry.rv, entry.uid, entry.decode())
                new = revisions.prepare_update(rules, key, base, change, options, subresource, conditional)
                assert entry is not None  # else there is an error
                return entry, new
            assert sent is not None
            stored = None if entry is None else computing.Stored(entry.rv, entry.uid, entry.raw)
            task = self._task(rules, sent, options)
            result: computing.Result = await self.workers.run("update", task, stored, conditional)
            assert entry is not None  # else there is an error
            present = self._store.head(kind, key)
            if present is not None and present.rv == entry.rv and self._is_present(rules.endpoint):
                options.warnings[:] = result.warnings
                return entry, None if result.raw is None else self._opened(rules.endpoint, result.raw)
            rules = self._rules(self._present(rules.endpoint))
        raise status.stale(rules.endpoint.subject(key[1]))

    async def _settle(
        self, endpoint: Endpoint, key: ObjectKey, old: Entry, new: Object | None, options: Options
    ) -> Entry:
        """Store an update, or remove a terminating object without finalizers."""
        kind = endpoint.stored_kind
        if new is None:
            await self._store.durable()
            return old
        if options.dry_run:
            return Entry.encode(new, old.rv)
        if "deletionTimestamp" in new["metadata"] and not _finalizers(kind, new):
            hooks = self._hooks.get(kind)
            if hooks is not None:
                await hooks.on_removed(new)
            removed = await self._discard(endpoint, key) or old
            return Entry.encode(new, removed.rv)
        if self._store.head(kind, key) is None:
            raise status.not_found(endpoint.subject(key[1]))
        return await self._commit(endpoint, new)

    async def delete(self, endpoint: Endpoint, key: ObjectKey, options: DeleteOptions) -> Deleted:
        """Delete an object, or mark it as terminating while it has finalizers."""
        if endpoint.stored_kind not in self._hooks:
            return await self._delete(endpoint, key, options)
        async with self._exclusively(endpoint.stored_kind, key):
            await self._store.refresh(endpoint.stored_kind, key)
            return await self._delete(endpoint, key, options)

    async def _delete(self, endpoint: Endpoint, key: ObjectKey, options: DeleteOptions) -> Deleted:
        """Delete an object whose lock is held, if its kind has hooks.

        An object with finalizers is stored with a deletionTimestamp; one without is removed. The policies
        Orphan and Foreground add a finalizer, which the garbage collector removes when it has dealt with the
        dependents.
        """
        kind = endpoint.stored_kind
        entry = self._store.head(kind, key)
        subject = endpoint.subject(key[1])
        if entry is None:
            raise status.not_found(subject)
        _check_preconditions(subject, entry, options)
        if kind == NAMESPACE and key[1] in IMMORTAL:
            raise status.forbidden(subject, "this namespace may not be deleted")
        obj = self._opened(endpoint, entry.raw)
        hooks = self._hooks.get(kind)
        if hooks is not None and not entry.terminating:
            await hooks.on_delete(obj, user=options.user)
        changed = self._terminating(endpoint, obj, options.propagation)
        if _finalizers(kind, changed):
            if changed == obj:
                await self._store.durable()
                return Deleted(entry, False)
            if options.dry_run:
                return Deleted(Entry.encode(changed, entry.rv), False)
            return Deleted(await self._commit(endpoint, changed), False)
        if options.dry_run:
            return Deleted(entry, True)
        if hooks is not None:
            await hooks.on_removed(obj)
        return Deleted(await self._discard(endpoint, key) or entry, True)

    def _terminating(self, endpoint: Endpoint, obj: Object, propagation: str) -> Object:
        """Return the object after a delete request: a deletionTimestamp, and finalizers for `propagation`."""
        metadata = dict(obj["metadata"])
        finalizers: list[str] = list(metadata.get("finalizers", ()))
        strategy = self.strategy(endpoint)
        first = "deletionTimestamp" not in metadata
        for finalizer, wanted in (
            ("orphan", propagation == "Orphan"),
            ("foregroundDeletion", propagation == "Foreground"),
            (strategy.finalizer, first and bool(strategy.finalizer)),
        ):
            if wanted and finalizer not in finalizers:
                finalizers.append(finalizer)
            elif not wanted and finalizer in ("orphan", "foregroundDeletion") and finalizer in finalizers:
                finalizers.remove(finalizer)
        metadata.pop("finalizers", None)
        if finalizers:
            metadata["finalizers"] = finalizers
        changed = {**obj, "metadata": metadata}
        if first:
            metadata["deletionTimestamp"] = now()
            metadata["deletionGracePeriodSeconds"] = 0
            if "generation" in metadata:
                metadata["generation"] += 1
        if endpoint.kind == NAMESPACE:
            changed["status"] = {**obj.get("status", {}), "phase": "Terminating"}
        elif endpoint.kind == CRD:
            changed = strategy.prepare(changed, obj)
        return changed

    @asynccontextmanager
    async def _exclusively(self, kind: Kind, key: ObjectKey) -> AsyncIterator[None]:
        """Hold the lock of one object; a lock exists only while it is held or awaited."""
        if not key[1]:
            yield
            return
        lock, users = self._locks.get((kind, key), (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[kind, key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[kind, key]
            if users == 1:
                del self._locks[kind, key]
            else:
                self._locks[kind, key] = (lock, users - 1)


def _finalizers(kind: Kind, obj: Object) -> list[Any]:
    """Return the finalizers of an object; a namespace also has those in its spec, for its content."""
    finalizers = list(obj["metadata"].get("finalizers", ()))
    if kind == NAMESPACE:
        finalizers += (obj.get("spec") or {}).get("finalizers") or []
    return finalizers


def _check_preconditions(subject: status.Subject, entry: Entry, options: DeleteOptions) -> None:
    """Refuse (409) to delete another object, or another version of it, than the request means."""
    by_kind = subject._replace(resource=subject.kind)
    for what, given, found, why in (
        ("UID", options.uid, entry.uid, "deleted and then recreated"),
        ("ResourceVersion", options.resource_version, str(entry.rv), "modified"),
    ):
        if given and given != found:
            raise status.conflict(
                by_kind,
                f"the {what} in the precondition ({given}) does not match the {what} in record ({found}). "
                f"The object might have been {why}",
            )
