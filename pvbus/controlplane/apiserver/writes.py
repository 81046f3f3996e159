"""Creates, updates and deletes single objects with Kubernetes' semantics.

HTTP handlers and the collectors write through this module. It awaits nothing between reading head and
queueing the write, so kinds without hooks need no locks; a kind with hooks has one lock per object. A method
returns when the write is durable.
"""

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import metadata as meta
from pvbus.controlplane.apiserver import status, strategies
from pvbus.controlplane.apiserver.apply.tracking import Tracker, check_new
from pvbus.controlplane.apiserver.decoding import decoded, set_namespace
from pvbus.controlplane.apiserver.entries import Entry, ObjectKey
from pvbus.controlplane.apiserver.hooks import KindHooks, StatusError
from pvbus.controlplane.apiserver.nodes import FieldError
from pvbus.controlplane.apiserver.registry import CRD, NAMESPACE, Endpoint, Registry
from pvbus.controlplane.apiserver.requests import DeleteOptions, Options
from pvbus.controlplane.apiserver.store import StaleError, Store
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.ports.cluster import Kind, Object

IMMORTAL = ("default", "kube-system", "kube-public")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_random = random.Random(secrets.randbits(256))
"""For uids, which must be unique but not secret: the kernel's randomness costs more than encoding the
object."""

_GENERATED_NAME_TRIES = 8
_GENERATED_PREFIX_MAX = 58


class Deleted(NamedTuple):
    """entry: the object's last version. gone: False if finalizers still keep the object."""

    entry: Entry
    gone: bool


class Writer:
    """All writes with checks and hooks."""

    def __init__(
        self, store: Store, registry: Registry, own: Mapping[Kind, Strategy], hooks: Mapping[Kind, KindHooks]
    ) -> None:
        self._store = store
        self._registry = registry
        self._strategies = own
        self._hooks = hooks
        self._tracker = Tracker(registry)
        self._locks: dict[tuple[Kind, ObjectKey], tuple[asyncio.Lock, int]] = {}

    def strategy(self, endpoint: Endpoint) -> Strategy:
        if endpoint.served.custom:
            return strategies.CUSTOM
        if endpoint.kind in self._hooks:
            return strategies.HOOKED
        return self._strategies.get(endpoint.kind, strategies.STORED_AS_WRITTEN)

    async def create(self, endpoint: Endpoint, obj: Object, namespace: str | None, options: Options) -> Entry:
        """Store a new object; `obj` may be changed."""
        kind = endpoint.stored_kind
        hooks = self._hooks.get(kind)
        strategy = self.strategy(endpoint)
        obj = decoded(endpoint, obj, options)
        metadata = obj["metadata"]
        set_namespace(endpoint, metadata, namespace)
        if hooks is not None and self._store.head(NAMESPACE, ("", namespace or "")) is None:
            await self._store.refresh(NAMESPACE, ("", namespace or ""))
        self._admit(endpoint, metadata)
        if metadata.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        generated = self._name(endpoint, metadata)
        given = metadata.pop("managedFields", None)
        begin(metadata, counts=strategy.counts_generation)
        if endpoint.has_status:
            obj.pop("status", None)
        obj = strategy.prepare(obj, None)
        if self._tracks(endpoint):
            entries = (
                given if options.applies else self._tracker.created(endpoint, obj, given, options, now())
            )
            _own(obj, entries)
        obj = endpoint.stored(obj)
        # A hook of a built-in kind chooses the name; a hook of a custom kind gets objects with a name.
        self._check(endpoint, strategy, obj, None, named=hooks is None or endpoint.served.custom)
        if hooks is None:
            return await self._store_new(endpoint, obj, generated, options)
        if options.dry_run:
            return Entry.unstored({**obj, "metadata": {"name": "", **metadata}})
        given = metadata.get("name")
        async with self._exclusively(kind, (metadata.get("namespace", ""), given or "")):
            obj = await hooks.on_create(obj, user=options.user)
            return await self._store_new(endpoint, obj, "", options)

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
            metadata["name"] = _generated_name(generated)
        if options.dry_run:
            return Entry.unstored(obj)
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

    def _tracks(self, endpoint: Endpoint) -> bool:
        """Return whether objects have managedFields: those of the package store have none."""
        return endpoint.served.custom or endpoint.stored_kind not in self._hooks

    async def apply(
        self, endpoint: Endpoint, key: ObjectKey, config: Object, options: Options, *, subresource: str = ""
    ) -> tuple[Entry, bool]:
        """Execute a server-side apply. Return the object, and whether it is new."""

        def change(old: Object | None) -> Object:
            new = self._tracker.applied(endpoint, old, config, options, subresource, now())
            meta.check_place(new["metadata"], key, namespaced=endpoint.served.namespaced)
            return new

        if subresource or self._store.head(endpoint.stored_kind, key) is not None:
            return await self.update(endpoint, key, change, options, subresource=subresource), False
        new = change(None)
        check_new(endpoint, new)
        new["metadata"].pop("resourceVersion", None)
        return await self.create(endpoint, new, key[0] or None, options), True

    def _check(
        self, endpoint: Endpoint, strategy: Strategy, obj: Object, old: Object | None, *, named: bool
    ) -> None:
        """Raise 422 with all errors of a complete object."""
        metadata = obj["metadata"]
        found: list[FieldError] = []
        found += meta.problems(
            metadata,
            namespaced=endpoint.served.namespaced,
            named=named,
            label_name=strategy.label_name,
            path_name=strategy.path_name,
            qualified_finalizers=endpoint.served.group == "",
        )
        found += strategy.check(obj, old)
        if endpoint.schema is not None:
            found += endpoint.schema.validate(endpoint.presented(obj), old and endpoint.presented(old))
        if found:
            raise status.invalid(endpoint.subject(metadata.get("name", "")), found)

    def _admit(self, endpoint: Endpoint, metadata: Object) -> None:
        """Refuse new objects of a terminating kind, or in a terminating or missing namespace."""
        if endpoint.kind in self._registry.terminating:
            why = "create not allowed while custom resource definition is terminating"
            raise status.forbidden(endpoint.subject(metadata.get("name", "")), why)
        if not endpoint.served.namespaced:
            return
        namespace = metadata["namespace"]
        entry = self._store.head(NAMESPACE, ("", namespace))
        if entry is None:
            raise status.not_found(status.Subject("", "namespaces", "Namespace", namespace))
        if entry.terminating:
            text = f"namespace {namespace} is being terminated"
            raise status.forbidden(
                endpoint.subject(metadata.get("name", "")),
                f"unable to create new content in namespace {namespace} because it is being terminated",
                causes=(("metadata.namespace", "NamespaceTerminating", text),),
            )

    def _name(self, endpoint: Endpoint, metadata: Object) -> str:
        """Generate a name if `generateName` requires it; return the prefix, "" if there is none."""
        prefix: str = metadata.get("generateName", "")
        if metadata.get("name") or not prefix:
            return ""
        metadata["name"] = _generated_name(prefix)
        return prefix

    async def update(
        self,
        endpoint: Endpoint,
        key: ObjectKey,
        change: Callable[[Object], Object],
        options: Options,
        *,
        subresource: str = "",
        conditional: bool = False,
    ) -> Entry:
        """Replace an object by the result of `change` on the current one.

        change: gets the object in the endpoint's version, returns a new one; it may raise.
        conditional: refuse an object without resourceVersion if the kind requires one.
        """
        hooks = self._hooks.get(endpoint.stored_kind)
        if hooks is None:
            entry = self._updated(endpoint, key, change, options, subresource, conditional)
            return await self._settle(endpoint, key, *entry, options)
        async with self._exclusively(endpoint.stored_kind, key):
            await self._store.refresh(endpoint.stored_kind, key)
            old, new = self._updated(endpoint, key, change, options, subresource, conditional)
            if new is not None and not options.dry_run:
                before = old.decode()
                new = await hooks.on_update(before, new, subresource=subresource, user=options.user)
                new["metadata"].setdefault("resourceVersion", str(old.rv))
                new = None if new == before else new
            return await self._settle(endpoint, key, old, new, options)

    def _updated(
        self,
        endpoint: Endpoint,
        key: ObjectKey,
        change: Callable[[Object], Object],
        options: Options,
        subresource: str,
        conditional: bool,
    ) -> tuple[Entry, Object | None]:
        """Return the current entry and the checked new object, None if it does not change."""
        entry = self._store.head(endpoint.stored_kind, key)
        if entry is None:
            if conditional:
                self._check_readable(endpoint, change({}), options)
            raise status.not_found(endpoint.subject(key[1]))
        strategy = self.strategy(endpoint)
        stored = entry.decode()
        old = endpoint.presented(stored)
        new = decoded(endpoint, change(old), options)
        metadata = new["metadata"]
        given = metadata.pop("managedFields", None)
        whole = new
        self._precondition(endpoint, strategy, entry, metadata, conditional)
        metadata["resourceVersion"] = str(entry.rv)
        if subresource == "status":
            new = {**{f: v for f, v in old.items() if f != "status"}, **_part(new, "status")}
            new["metadata"] = {f: v for f, v in old["metadata"].items() if f != "managedFields"}
            problems = []
        else:
            problems = meta.carried_over(metadata, old["metadata"])
            if endpoint.has_status:
                new = {**{f: v for f, v in new.items() if f != "status"}, **_part(old, "status")}
        if subresource != "status":
            new = strategy.prepare(new, endpoint.stored(old))
        if self._tracks(endpoint):
            if not options.applies:
                seen = strategy.owned(new, whole)
                given = self._tracker.updated(endpoint, old, seen, given, options, subresource, now())
            _own(new, given)
        new = endpoint.stored(new)
        if new == stored and not problems:
            return entry, None
        if problems:
            raise status.invalid(endpoint.subject(key[1]), problems)
        self._check(endpoint, strategy, new, stored, named=True)
        if strategy.counts_generation:
            strategies.bump_generation(new, stored, has_status=endpoint.has_status)
        return entry, new

    def _check_readable(self, endpoint: Endpoint, obj: Object, options: Options) -> None:
        """Refuse (400) the object of an update that cannot be read, before it is looked up."""
        try:
            decoded(endpoint, obj, options)
        except StatusError as exc:
            if exc.code == 400:
                raise

    def _precondition(
        self, endpoint: Endpoint, strategy: Strategy, entry: Entry, metadata: Object, conditional: bool
    ) -> None:
        uid = metadata.get("uid")
        if conditional and uid and uid != entry.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {entry.uid}"
            raise status.conflict(endpoint.subject(entry.key[1]), why)
        given = metadata.get("resourceVersion")
        if not given:
            if conditional and not strategy.unconditional_update:
                problem = FieldError(
                    "metadata.resourceVersion",
                    "FieldValueInvalid",
                    "Invalid value: 0: must be specified for an update",
                )
                subject = endpoint.subject(entry.key[1])
                raise status.invalid(subject._replace(kind=subject.resource), [problem])
        elif given != str(entry.rv):
            if not given.isdigit() and endpoint.kind not in self._hooks:
                problem = status.invalid_value(
                    "metadata.resourceVersion", given, "must be the version of an object"
                )
                raise status.invalid(endpoint.subject(entry.key[1]), [problem])
            raise status.stale(endpoint.subject(entry.key[1]))

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
        kind = endpoint.stored_kind
        entry = self._store.head(kind, key)
        subject = endpoint.subject(key[1])
        if entry is None:
            raise status.not_found(subject)
        _check_preconditions(subject, entry, options)
        if kind == NAMESPACE and key[1] in IMMORTAL:
            raise status.forbidden(subject, "this namespace may not be deleted")
        obj = entry.decode()
        hooks = self._hooks.get(kind)
        if hooks is not None and not entry.terminating:
            await hooks.on_delete(obj)
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


def _own(obj: Object, entries: Any) -> None:
    """Set the managedFields of an object; one without owners has none."""
    if entries:
        obj["metadata"]["managedFields"] = entries


def begin(metadata: Object, *, counts: bool) -> None:
    """Set the fields of a new object that the server decides."""
    metadata["uid"] = str(uuid.UUID(int=_random.getrandbits(128), version=4))
    metadata["creationTimestamp"] = now()
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"):
        metadata.pop(field, None)
    if counts:
        metadata["generation"] = 1


def _generated_name(prefix: str) -> str:
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
    return f"{prefix[:_GENERATED_PREFIX_MAX]}{suffix}"


def _finalizers(kind: Kind, obj: Object) -> list[Any]:
    """Return the finalizers of an object; a namespace also has those in its spec, for its content."""
    finalizers = list(obj["metadata"].get("finalizers", ()))
    if kind == NAMESPACE:
        finalizers += (obj.get("spec") or {}).get("finalizers") or []
    return finalizers


def _part(obj: Object, field: str) -> Object:
    return {field: obj[field]} if field in obj else {}


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


def now() -> str:
    """Return the current time in Kubernetes' format, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
