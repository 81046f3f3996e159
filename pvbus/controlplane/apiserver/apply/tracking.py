"""Keeps `metadata.managedFields` in the writes of the API server, and executes server-side applies.

The set of fields is computed at each write, as in kube-apiserver, and stored with the object: readers then
cost nothing more. A write walks only what differs. Sets that were written before a change of the schema are
read in its terms at the next apply, where they count, and not at each update as in kube-apiserver. A
kind of the package store (hooks on a built-in kind) has no managedFields, as Porch's server stores none: an
apply of such an object sees every field as owned by nobody it knows.

Source: k8s.io/apiserver pkg/endpoints/handlers and k8s.io/apimachinery pkg/util/managedfields (v0.36),
behaviour only.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.apply import fieldsets, managed
from pvbus.controlplane.apiserver.apply.fieldsets import EMPTY, FieldSet
from pvbus.controlplane.apiserver.apply.fieldtypes import FieldType
from pvbus.controlplane.apiserver.apply.managed import UPDATE, Managers
from pvbus.controlplane.apiserver.apply.merging import type_errors
from pvbus.controlplane.apiserver.apply.objectfields import ItemError, compare, field_set
from pvbus.controlplane.apiserver.apply.ownership import (
    BEFORE,
    Applied,
    Conflict,
    ConflictsError,
    Writing,
    applied,
    updated,
)
from pvbus.controlplane.apiserver.bodies import is_deep
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.nodes import PROBLEMS_MAX
from pvbus.controlplane.apiserver.registry import CRD, EVENT, NAMESPACE, NEW_EVENT, Endpoint, Registry
from pvbus.controlplane.apiserver.requests import Options
from pvbus.controlplane.apiserver.strategies import NAMESPACE_LABEL
from pvbus.ports.cluster import Kind, Object

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
LAST_APPLIED_BYTES_MAX = 256 * 1024
"""kube-apiserver's limit of annotations: an object whose annotation would be longer goes without it."""

_EVENT_TIMES = {"firstTimestamp": None, "lastTimestamp": None, "eventTime": None}
_NAMES = {"plural": "", "kind": ""}
_BARE: Mapping[Kind, Object] = {
    NAMESPACE: {"spec": {}, "status": {}},
    EVENT: {
        "involvedObject": {},
        "source": {},
        "reportingComponent": "",
        "reportingInstance": "",
        **_EVENT_TIMES,
    },
    NEW_EVENT: {
        "regarding": {},
        "deprecatedSource": {},
        "reportingController": "",
        "reportingInstance": "",
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        "eventTime": None,
    },
    CRD: {"spec": {"group": "", "names": _NAMES, "scope": "", "versions": None}, "status": {}},
}
"""The fields that an object of a built-in kind has before anything is set: its structs, which nobody
therefore adds."""

_STATUS = fieldsets.of_paths(("f:status",))
_ALL_BUT_STATUS = fieldsets.of_paths(("f:spec",), ("f:metadata",))


class Tracker:
    """The owners of fields, for the writes of one server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def created(
        self, endpoint: Endpoint, obj: Object, given: Any, options: Options, now: str
    ) -> list[Object]:
        """Return the managedFields of a new object.

        obj: the object, without managedFields
        given: the managedFields of the request, None for none
        now: the time, as JSON has it
        """
        managers = {} if given is None or is_deep(given) else _readable(given) or {}
        writing = _writing(endpoint, options, "", now)
        bare = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], **_BARE.get(endpoint.kind, {})}
        if endpoint.kind == NAMESPACE:
            obj = _requested_namespace(obj)
        return managed.encoded(updated(self._view(endpoint), writing, bare, obj, managers))

    def updated(
        self, endpoint: Endpoint, old: Object, new: Object, given: Any, options: Options, sub: str, now: str
    ) -> list[Object]:
        """Return the managedFields of an updated object.

        old: the object as it is stored
        new: the object after the update, without managedFields
        given: the managedFields of the request, None for none
        sub: the subresource, "" for the object itself
        now: the time, as JSON has it
        """
        entries = old["metadata"].get("managedFields") or []
        if not sub and managed.is_reset(given):
            return []
        chosen = None if sub or given is None or given == entries or is_deep(given) else _readable(given)
        managers = chosen or managed.stored(entries)
        if not managers:
            return []  # nobody owns fields of this object until it is applied
        writing = _writing(endpoint, options, sub, now)
        view = self._view(endpoint)
        return managed.encoded(updated(view, writing, _without(old), new, managers))

    def applied(
        self, endpoint: Endpoint, old: Object | None, config: Object, options: Options, sub: str, now: str
    ) -> Object:
        """Return the object after an apply, with its managedFields.

        old: the object as it is stored, None if there is none yet
        config: the applied object
        sub: the subresource, "" for the object itself
        now: the time, as JSON has it
        Raises StatusError: a conflict (409), or a configuration that does not fit the kind.
        """
        _check_config(endpoint, config)
        writing = _writing(endpoint, options, sub, now)
        view = self._view(endpoint)
        live = old or {
            "apiVersion": endpoint.api_version,
            "kind": endpoint.served.kind,
            **_BARE.get(endpoint.kind, {}),
        }
        managers = managed.stored(live.get("metadata", {}).get("managedFields") or [])
        live = _without(live)
        if not managers:
            before = writing._replace(manager=BEFORE)
            bare = {"apiVersion": endpoint.api_version, "kind": endpoint.served.kind}
            managers = dict(updated(view, before, bare | _BARE.get(endpoint.kind, {}), live, {}))
        try:
            result = _apply(endpoint, view, writing, live, config, managers, options.force)
        except ConflictsError as exc:
            raise _conflict(exc.conflicts) from exc
        except ItemError as exc:
            raise _internal(f"failed to merge config: {exc}") from exc
        new: Object = msgspec.to_builtins(dict(live if result.obj is None else result.obj))  # a copy
        if options.manager == KUBECTL:
            _note_last_applied(new, config)
        metadata = new["metadata"] = new.get("metadata") or {}
        metadata["managedFields"] = managed.encoded(result.managers)
        return new

    def _view(self, endpoint: Endpoint) -> Any:
        """Return the function that shows an object of this endpoint in another version."""

        def served(api_version: str) -> Endpoint | None:
            if api_version == endpoint.api_version:
                return endpoint
            group, _, version = api_version.rpartition("/")
            other = self._registry.endpoint(group, version, endpoint.served.plural)
            return other if other is not None and other.stored_kind == endpoint.stored_kind else None

        def view(obj: Object, api_version: str) -> tuple[FieldType, Object] | None:
            wanted = served(api_version)
            if wanted is None:
                return None
            if obj.get("apiVersion") == api_version:
                return wanted.field_type, obj
            present = served(obj.get("apiVersion", "")) or endpoint
            return wanted.field_type, wanted.presented(present.stored(obj))

        return view


def _readable(entries: Any) -> dict[Any, Any] | None:
    """Return the owners in managedFields, None if they are not well-formed."""
    try:
        return managed.decoded(entries)
    except ValueError:
        return None


def _writing(endpoint: Endpoint, options: Options, sub: str, now: str) -> Writing:
    ignored: FieldSet = EMPTY
    if sub == "status":
        ignored = _ALL_BUT_STATUS
    elif endpoint.has_status:
        ignored = _STATUS
    return Writing(options.manager, endpoint.api_version, sub, ignored, now)


def _requested_namespace(obj: Object) -> Object:
    """Leave out the fields that the server sets in a new namespace.

    They are its finalizer, and a label of a generated name.
    """
    obj = {**obj, "spec": {}}
    metadata = obj["metadata"]
    if not metadata.get("generateName"):
        return obj
    labels = {key: value for key, value in metadata["labels"].items() if key != NAMESPACE_LABEL}
    others = {key: value for key, value in metadata.items() if key != "labels"}
    return {**obj, "metadata": {**others, "labels": labels} if labels else others}


def _without(obj: Object) -> Object:
    """Return an object without its managedFields."""
    metadata = obj.get("metadata") or {}
    if "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


# --- apply ---


def _check_config(endpoint: Endpoint, config: Object) -> None:
    """Refuse an applied object of another type, or one that does not fit the schema."""
    api_version, kind = config.get("apiVersion"), config.get("kind")
    if api_version != endpoint.api_version or kind != endpoint.served.kind:
        group, _, version = str(api_version or "").rpartition("/")
        text = f"{group}/{version}, Kind={kind or ''}"
        raise status.bad_request(f"invalid object type: {text}")
    metadata = config.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise status.bad_request("metadata.managedFields must be nil")
    if found := type_errors(endpoint.field_type, config):
        listed = found[0] if len(found) == 1 else "\n".join(["errors:", *(f"  {text}" for text in found)])
        raise _internal(f"failed to create typed patch object ({_shown(endpoint, config)}): {listed}")


def _shown(endpoint: Endpoint, config: Object) -> str:
    metadata = config.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    subject = f"{named.get('namespace') or ''}/{named.get('name') or ''}"
    group, _, version = endpoint.api_version.rpartition("/")
    return f"{subject}; {group}/{version}, Kind={endpoint.served.kind}"


def check_new(endpoint: Endpoint, obj: Object) -> None:
    """Refuse (409) to create an object for a uid, which only an existing object has."""
    metadata = obj["metadata"]
    if metadata.get("uid"):
        why = (
            f"uid mismatch: the provided object specified uid {metadata['uid']}, and no existing object was "
            "found"
        )
        raise status.conflict(endpoint.subject(metadata.get("name", "")), why)


def _internal(text: str) -> StatusError:
    return StatusError(500, "", text)


def _apply(
    endpoint: Endpoint,
    view: Any,
    writing: Writing,
    live: Object,
    config: Object,
    managers: Managers,
    force: bool,
) -> Applied:
    """Apply; kubectl may take over what its own client-side apply wrote last."""
    try:
        return applied(view, writing, live, config, managers, force=force)
    except ConflictsError as exc:
        if writing.manager != KUBECTL:
            raise
        allowed = _client_side(endpoint, live)
        if allowed is None:
            raise
        left = tuple(each for each in exc.conflicts if not fieldsets.has(allowed, each.path))
        if left:
            raise ConflictsError(left) from exc
    return applied(view, writing, live, config, managers, force=True)


def _client_side(endpoint: Endpoint, live: Object) -> FieldSet | None:
    """Return the fields that are as kubectl's client-side apply wrote them, None if it never did."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    try:
        last = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(last, dict) or last.get("apiVersion") != endpoint.api_version:
        return None
    type_ = endpoint.field_type
    if type_errors(type_, last):
        return None
    fields = field_set(type_, last)
    for part in compare(type_, last, live):
        fields = fieldsets.difference(fields, part)
    return fields


def _note_last_applied(new: dict[str, Any], config: Object) -> None:
    """Write what kubectl applied into its annotation, if the object has one: older kubectls read it."""
    metadata = new.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return
    own = copy.deepcopy(config)
    given = own.get("metadata") or {}
    if isinstance(given.get("annotations"), dict):
        given["annotations"].pop(LAST_APPLIED, None)
    text = json.dumps(own, separators=(",", ":"), sort_keys=True, ensure_ascii=False) + "\n"
    others = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
    size = sum(len(key.encode()) + len(value.encode()) for key, value in others.items())
    fits = size + len(LAST_APPLIED) + len(text.encode()) <= LAST_APPLIED_BYTES_MAX
    metadata["annotations"] = {**others, LAST_APPLIED: text} if fits else others


# --- conflicts ---


def _conflict(conflicts: tuple[Conflict, ...]) -> StatusError:
    """Return 409 with a cause for each field, and the words that kubectl prints.

    Of very many, the first `PROBLEMS_MAX` are named: 300 managers of 300 fields have 90,000.
    """
    count, more = len(conflicts), "\nand more" if len(conflicts) > PROBLEMS_MAX else ""
    conflicts = conflicts[:PROBLEMS_MAX]
    paths = [fieldsets.shown(each.path) for each in conflicts]
    causes = tuple(
        (path, "FieldManagerConflict", f"conflict with {_named(each)}")
        for each, path in zip(conflicts, paths, strict=True)
    )
    if len(conflicts) == 1:
        text = f"Apply failed with 1 conflict: conflict with {_named(conflicts[0])}: {paths[0]}"
    else:
        lines: list[str] = []
        for each, path in zip(conflicts, paths, strict=True):
            heading = f"conflicts with {_named(each)}:"
            lines += [f"- {path}"] if heading in lines else [heading, f"- {path}"]
        text = f"Apply failed with {count} conflicts: " + "\n".join(lines) + more
    return StatusError(409, "Conflict", text, causes=causes)


def _named(conflict: Conflict) -> str:
    manager = conflict.manager
    text = f'"{manager.name}"'
    if manager.subresource:
        text += f' with subresource "{manager.subresource}"'
    return f"{text} using {manager.api_version}" if manager.operation == UPDATE else text
