"""What a write makes of an object: the complete new one, checked. Nothing here reads or changes the store.

So a write of a large object is computed in another process (`computing`), and any other at once.
"""

import random
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pvbus.controlplane.apiserver import metadata as meta
from pvbus.controlplane.apiserver import status, strategies
from pvbus.controlplane.apiserver.apply.tracking import Tracker
from pvbus.controlplane.apiserver.decoding import decode_object, set_namespace
from pvbus.controlplane.apiserver.entries import ObjectKey
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.nodes import FieldError
from pvbus.controlplane.apiserver.registry import Endpoint
from pvbus.controlplane.apiserver.requests import Options
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.core.kernel.objects import timestamp
from pvbus.ports.cluster import Kind, Object

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_random = random.Random(secrets.randbits(256))
"""For uids, which must be unique but not secret: the kernel's randomness costs more than encoding the
object."""

_GENERATED_PREFIX_MAX = 58


class Rules(NamedTuple):
    """The rules for writes of one kind.

    endpoint: the kind in the version of the request
    strategy: the behaviour of the kind
    tracker: computes the owners of fields
    is_hooked: whether hooks judge the object, too
    """

    endpoint: Endpoint
    strategy: Strategy
    tracker: Tracker
    is_hooked: bool

    @property
    def tracks(self) -> bool:
        """Whether objects have managedFields: those of the package store have none."""
        return self.endpoint.served.custom or not self.is_hooked


class Base(NamedTuple):
    """The stored object that a write replaces.

    rv: its resourceVersion
    uid: its uid
    obj: the object
    """

    rv: int
    uid: str
    obj: Object


class Admission(NamedTuple):
    """Whether there may be new objects: the state of their kind and of their namespace."""

    is_kind_terminating: bool = False
    namespace: Literal["", "missing", "terminating"] = ""


def strategy_of(endpoint: Endpoint, own: Mapping[Kind, Strategy], *, is_hooked: bool) -> Strategy:
    """Return the strategy of a kind.

    own: the strategies that are made for one kind
    is_hooked: whether hooks judge the objects of the kind
    """
    if endpoint.served.custom:
        return strategies.CUSTOM_OF.get(endpoint.kind, strategies.CUSTOM)
    if is_hooked:
        return strategies.HOOKED
    return own.get(endpoint.kind, strategies.STORED_AS_WRITTEN)


# --- create ---


def begun(rules: Rules, obj: Object, namespace: str | None, options: Options) -> Object:
    """Return the object of a create as it is decoded, with its namespace."""
    obj = decode_object(rules.endpoint, obj, options)
    set_namespace(rules.endpoint, obj["metadata"], namespace)
    return obj


def prepare_create(rules: Rules, obj: Object, admission: Admission, options: Options) -> tuple[Object, str]:
    """Return a new object, and the prefix of its name if that is generated.

    obj: the object as `begun` returned it
    """
    endpoint, strategy, tracker, is_hooked = rules
    metadata = obj["metadata"]
    admit(endpoint, metadata, admission)
    if metadata.get("resourceVersion"):
        raise status.bad_request("resourceVersion should not be set on objects to be created")
    generated = _name(metadata)
    given = metadata.pop("managedFields", None)
    begin(metadata, counts=strategy.counts_generation)
    if endpoint.has_status:
        obj.pop("status", None)
    obj = strategy.prepare(obj, None)
    if rules.tracks:
        _own(obj, given if options.applies else tracker.created(endpoint, obj, given, options, now()))
    obj = endpoint.stored(obj)
    # A hook of a built-in kind chooses the name; a hook of a custom kind gets objects with a name.
    _check(rules, obj, None, named=not is_hooked or endpoint.served.custom)
    options.warnings.extend(strategy.advice(obj))
    return obj, generated


def admit(endpoint: Endpoint, metadata: Object, admission: Admission) -> None:
    """Refuse new objects of a terminating kind, or in a terminating or missing namespace."""
    if admission.is_kind_terminating:
        why = "create not allowed while custom resource definition is terminating"
        raise status.forbidden(endpoint.subject(metadata.get("name", "")), why)
    if not endpoint.served.namespaced:
        return
    namespace = metadata["namespace"]
    if admission.namespace == "missing":
        raise status.not_found(status.Subject("", "namespaces", "Namespace", namespace))
    if admission.namespace == "terminating":
        text = f"namespace {namespace} is being terminated"
        raise status.forbidden(
            endpoint.subject(metadata.get("name", "")),
            f"unable to create new content in namespace {namespace} because it is being terminated",
            causes=(("metadata.namespace", "NamespaceTerminating", text),),
        )


def _name(metadata: Object) -> str:
    """Generate a name if `generateName` requires it; return the prefix, "" if there is none."""
    prefix: str = metadata.get("generateName", "")
    if metadata.get("name") or not prefix:
        return ""
    metadata["name"] = generated_name(prefix)
    return prefix


# --- update ---


def prepare_update(
    rules: Rules,
    key: ObjectKey,
    base: Base | None,
    change: Callable[[Object], Object],
    options: Options,
    subresource: str,
    conditional: bool,
) -> Object | None:
    """Return the checked new object, None if it does not change.

    base: the stored object, None if there is none
    change: returns the new object for the stored one
    subresource: the subresource that is written, "" for the object itself
    conditional: whether it is a PUT. Its object must be readable in any case, and its uid and resourceVersion
        are preconditions; a kind may require the latter.
    """
    endpoint, strategy, tracker, _ = rules
    if base is None:
        if conditional:
            _check_readable(endpoint, change({}), options)
        raise status.not_found(endpoint.subject(key[1]))
    stored = base.obj
    old = endpoint.presented(stored)
    new = decode_object(endpoint, change(old), options)
    metadata = new["metadata"]
    given = metadata.pop("managedFields", None)
    whole = new
    _precondition(rules, key, base, metadata, conditional)
    metadata["resourceVersion"] = str(base.rv)
    if subresource == "status":
        new = {**{f: v for f, v in old.items() if f != "status"}, **_part(new, "status")}
        new["metadata"] = {f: v for f, v in old["metadata"].items() if f != "managedFields"}
        problems = []
    else:
        problems = meta.carry_over(metadata, old["metadata"])
        if endpoint.has_status:
            new = {**{f: v for f, v in new.items() if f != "status"}, **_part(old, "status")}
    if subresource != "status":
        new = strategy.prepare(new, endpoint.stored(old))
    if rules.tracks:
        if not options.applies:
            seen = strategy.owned(new, whole)
            given = tracker.updated(endpoint, old, seen, given, options, subresource, now())
        _own(new, given)
    new = endpoint.stored(new)
    if new == stored and not problems:
        return None
    if problems:
        raise status.invalid(endpoint.subject(key[1]), problems)
    _check(rules, new, stored, named=True)
    if subresource != "status":
        options.warnings.extend(strategy.advice(new))
    if strategy.counts_generation:
        strategies.bump_generation(new, stored, has_status=endpoint.has_status)
    return new


def _check_readable(endpoint: Endpoint, obj: Object, options: Options) -> None:
    """Refuse (400) the object of an update that cannot be read, before it is looked up."""
    try:
        decode_object(endpoint, obj, options)
    except StatusError as exc:
        if exc.code == 400:
            raise


def _precondition(rules: Rules, key: ObjectKey, base: Base, metadata: Object, conditional: bool) -> None:
    endpoint, strategy = rules.endpoint, rules.strategy
    uid = metadata.get("uid")
    if conditional and uid and uid != base.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {base.uid}"
        raise status.conflict(endpoint.subject(key[1]), why)
    given = metadata.get("resourceVersion")
    if not given:
        if conditional and not strategy.unconditional_update:
            problem = FieldError(
                "metadata.resourceVersion",
                "FieldValueInvalid",
                "Invalid value: 0: must be specified for an update",
            )
            subject = endpoint.subject(key[1])
            raise status.invalid(subject._replace(kind=subject.resource), [problem])
    elif given != str(base.rv):
        if not given.isdigit() and not rules.is_hooked:
            problem = status.invalid_value(
                "metadata.resourceVersion", given, "must be the version of an object"
            )
            raise status.invalid(endpoint.subject(key[1]), [problem])
        raise status.stale(endpoint.subject(key[1]))


def _part(obj: Object, field: str) -> Object:
    return {field: obj[field]} if field in obj else {}


# --- both ---


def _check(rules: Rules, obj: Object, old: Object | None, *, named: bool) -> None:
    """Raise 422 with all errors of a complete object."""
    endpoint, strategy = rules.endpoint, rules.strategy
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


def generated_name(prefix: str) -> str:
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
    return f"{prefix[:_GENERATED_PREFIX_MAX]}{suffix}"


def now() -> str:
    """Return the current time in Kubernetes' format, in whole seconds."""
    return timestamp(time.time())
