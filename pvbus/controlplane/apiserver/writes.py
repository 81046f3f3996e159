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
from pvbus.controlplane.apiserver.entries import Entry, ObjectKey
from pvbus.controlplane.apiserver.hooks import KindHooks
from pvbus.controlplane.apiserver.nodes import PROBLEMS_MAX, SHOWN_MAX, FieldError
from pvbus.controlplane.apiserver.registry import CRD, NAMESPACE, Endpoint, Registry
from pvbus.controlplane.apiserver.requests import DeleteOptions, Options
from pvbus.controlplane.apiserver.store import Store
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
        obj = self._decoded(endpoint, obj, options)
        metadata = obj["metadata"]
        _set_namespace(endpoint, metadata, namespace)
        self._admit(endpoint, metadata)
        if metadata.get("resourceVersion"):
            raise status.bad_request("resourceVersion should not be set on objects to be created")
        generated = self._name(endpoint, metadata)
        begin(metadata, counts=strategy.counts_generation)
        if endpoint.has_status:
            obj.pop("status", None)
        obj = endpoint.stored(strategy.prepare(obj, None))
        # A hook of a built-in kind chooses the name; a hook of a custom kind gets objects with a name.
        self._check(endpoint, strategy, obj, None, named=hooks is None or endpoint.served.custom)
        if hooks is None:
            return await self._store_new(endpoint, obj, generated, options)
        if options.dry_run:
            return Entry.encode({**obj, "metadata": {"name": "", **metadata}}, 0)
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
                raise status.already_exists(endpoint.subject(metadata["name"]))
            metadata["name"] = _generated_name(generated)
        if options.dry_run:
            return Entry.encode(obj, 0)
        entry = self._store.put(kind, obj)
        await self._store.durable()
        return entry

    def _decoded(self, endpoint: Endpoint, obj: Object, options: Options) -> Object:
        """Return an object of this kind with clean metadata, defaults, and no unknown fields."""
        _check_type(endpoint, obj)
        unknown: list[str] = []
        given = obj.get("metadata")
        if given is None:
            given = {}
        if type(given) is not dict:
            raise status.bad_request(f"{_cannot(endpoint)}: metadata must be an object")
        try:
            metadata = meta.cleaned(given, unknown)
        except meta.MetadataTypeError as exc:
            raise status.bad_request(f"{_cannot(endpoint)}: {exc}") from exc
        obj = {**obj, "apiVersion": endpoint.api_version, "kind": endpoint.served.kind, "metadata": metadata}
        schema = endpoint.schema
        if schema is not None and not schema.is_clean(obj):
            obj = schema.defaulted(obj)
            obj, pruned = schema.pruned(obj)
            unknown += [path for path in pruned if not path.startswith("metadata.")]
            if not endpoint.served.custom:
                _check_types(endpoint, obj)
        if unknown:
            report_unknown(endpoint, [f'unknown field "{path}"' for path in unknown], options)
        return obj

    def _check(
        self, endpoint: Endpoint, strategy: Strategy, obj: Object, old: Object | None, *, named: bool
    ) -> None:
        """Raise 422 with all errors of a complete object."""
        metadata = obj["metadata"]
        found: list[FieldError] = []
        if named:
            found += meta.problems(
                metadata,
                namespaced=endpoint.served.namespaced,
                label_name=strategy.label_name,
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
            raise status.not_found(endpoint.subject(key[1]))
        strategy = self.strategy(endpoint)
        stored = entry.decode()
        old = endpoint.presented(stored)
        new = self._decoded(endpoint, change(old), options)
        metadata = new["metadata"]
        self._precondition(endpoint, strategy, entry, metadata, conditional)
        metadata["resourceVersion"] = str(entry.rv)
        if subresource == "status":
            new = {**{f: v for f, v in old.items() if f != "status"}, **_part(new, "status")}
            new["metadata"] = dict(old["metadata"])
            problems = []
        else:
            problems = meta.carried_over(metadata, old["metadata"])
            if endpoint.has_status:
                new.pop("status", None)
                new |= _part(old, "status")
        new = endpoint.stored(new)
        if subresource != "status":
            new = strategy.prepare(new, stored)
        if new == stored and not problems:
            return entry, None
        if problems:
            raise status.invalid(endpoint.subject(key[1]), problems)
        self._check(endpoint, strategy, new, stored, named=True)
        if strategy.counts_generation:
            strategies.bump_generation(new, stored, has_status=endpoint.has_status)
        return entry, new

    def _precondition(
        self, endpoint: Endpoint, strategy: Strategy, entry: Entry, metadata: Object, conditional: bool
    ) -> None:
        uid = metadata.get("uid")
        if uid and uid != entry.uid:
            raise status.conflict(endpoint.subject(entry.key[1]), _uid_differs(uid, entry.uid))
        given = metadata.get("resourceVersion")
        if not given:
            if conditional and not strategy.unconditional_update:
                problem = FieldError(
                    "metadata.resourceVersion",
                    "FieldValueInvalid",
                    "Invalid value: 0: must be specified for an update",
                )
                raise status.invalid(endpoint.subject(entry.key[1]), [problem])
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
            removed = self._store.remove(kind, key)
            await self._store.durable()
            return removed or old
        if self._store.head(kind, key) is None:
            raise status.not_found(endpoint.subject(key[1]))
        entry = self._store.put(kind, new)
        await self._store.durable()
        return entry

    async def delete(self, endpoint: Endpoint, key: ObjectKey, options: DeleteOptions) -> Deleted:
        """Delete an object, or mark it as terminating while it has finalizers."""
        if endpoint.stored_kind not in self._hooks:
            return await self._delete(endpoint, key, options)
        async with self._exclusively(endpoint.stored_kind, key):
            return await self._delete(endpoint, key, options)

    async def _delete(self, endpoint: Endpoint, key: ObjectKey, options: DeleteOptions) -> Deleted:
        kind = endpoint.stored_kind
        entry = self._store.head(kind, key)
        subject = endpoint.subject(key[1])
        if entry is None:
            raise status.not_found(subject)
        if options.uid and options.uid != entry.uid:
            raise status.conflict(subject, _uid_differs(options.uid, entry.uid))
        if options.resource_version and options.resource_version != str(entry.rv):
            raise status.conflict(
                subject,
                "Precondition failed: ResourceVersion in precondition: "
                f"{options.resource_version}, ResourceVersion in object meta: {entry.rv}",
            )
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
            entry = self._store.put(kind, changed)
            await self._store.durable()
            return Deleted(entry, False)
        if options.dry_run:
            return Deleted(entry, True)
        if hooks is not None:
            await hooks.on_removed(obj)
        removed = self._store.remove(kind, key)
        await self._store.durable()
        return Deleted(removed or entry, True)

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


def _check_types(endpoint: Endpoint, obj: Object) -> None:
    """Refuse a built-in object with a field of the wrong type (400), before any code reads its fields.

    Type errors of a custom kind are reported with the other errors of its schema (422).
    """
    assert endpoint.schema is not None
    found = [e for e in endpoint.schema.validate(obj) if e.reason == "FieldValueTypeInvalid"]
    if found:
        raise status.bad_request(f"{_cannot(endpoint)}: json: {found[0]}")


def report_unknown(endpoint: Endpoint, problems: list[str], options: Options) -> None:
    """Refuse, warn of, or ignore unknown and duplicate fields, as the options require."""
    if len(problems) > PROBLEMS_MAX:
        problems = [*problems[:PROBLEMS_MAX], f"and {len(problems) - PROBLEMS_MAX} more"]
    problems = [problem[:SHOWN_MAX] for problem in problems]
    if options.validation == "Strict":
        raise status.bad_request(f"{_cannot(endpoint)}: strict decoding error: {', '.join(problems)}")
    if options.validation == "Warn":
        options.warnings.extend(problems)


def _cannot(endpoint: Endpoint) -> str:
    kind = endpoint.served.kind
    return f'{kind} in version "{endpoint.version.name}" cannot be handled as a {kind}'


def _check_type(endpoint: Endpoint, obj: Object) -> None:
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if not kind:
        raise status.bad_request("Object 'Kind' is missing in the body of the request")
    if not api_version:
        raise status.bad_request("Object 'apiVersion' is missing in the body of the request")
    if api_version != endpoint.api_version:
        raise status.bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({endpoint.api_version})"
        )
    if kind != endpoint.served.kind:
        raise status.bad_request(f"the kind in the data ({kind}) does not match {endpoint.served.kind}")


def _set_namespace(endpoint: Endpoint, metadata: Object, namespace: str | None) -> None:
    """Set the namespace from the path. Raises 400 if the object has a different one."""
    if not endpoint.served.namespaced:
        return
    given = metadata.get("namespace")
    if namespace is None:
        raise status.bad_request("an empty namespace may not be set during creation")
    if given and given != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata["namespace"] = namespace


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


def _uid_differs(wanted: str, actual: str) -> str:
    return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}"


def now() -> str:
    """Return the current time in Kubernetes' format, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
