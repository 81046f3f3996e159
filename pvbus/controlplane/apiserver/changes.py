"""The body of a write, and the object or the change that it asks for. Everything here is pure.

A body is read once for each computation: where it is large, in another process (`computing`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import bodies, status
from pvbus.controlplane.apiserver.apply.tracking import Tracker, check_new
from pvbus.controlplane.apiserver.decoding import report_unknown
from pvbus.controlplane.apiserver.entries import ObjectKey
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.metadata import check_place
from pvbus.controlplane.apiserver.patch import (
    APPLY_PATCH,
    STRATEGIC_PATCH,
    json_patch,
    merge_patch,
    strategic_merge_patch,
)
from pvbus.controlplane.apiserver.registry import Endpoint
from pvbus.controlplane.apiserver.requests import Options
from pvbus.controlplane.apiserver.revisions import now
from pvbus.ports.cluster import Object

Change = Callable[[Object], Object]
"""Gets the object in the endpoint's version, which has no fields if there is none; returns a new one."""

_GIT_GROUPS = ("porch.kpt.dev", "config.porch.kpt.dev")
"""Groups whose objects name packages, branches and files: these texts reach git and the file system."""


class Sent(NamedTuple):
    """The body of a POST, PUT or PATCH.

    method: the HTTP method
    media: the media type of the body, without parameters
    body: the body
    key: namespace and name of the object in the path; without a name for a POST
    subresource: the subresource in the path, "" for the object itself
    """

    method: str
    media: str
    body: bodies.Body
    key: ObjectKey
    subresource: str

    @property
    def is_large(self) -> bool:
        return bodies.is_large(self.body)


def change_of(endpoint: Endpoint, tracker: Tracker, sent: Sent, options: Options) -> Change:
    """Return the change that a PUT or PATCH asks for; its body is read at once. Raises StatusError (400)."""
    if options.applies:
        return _applier(endpoint, tracker, sent, options)
    return patcher(endpoint, sent) if sent.method == "PATCH" else replacer(endpoint, sent, options)


def new_object(endpoint: Endpoint, tracker: Tracker, sent: Sent, options: Options) -> Object:
    """Return the object that a POST, a PUT or an apply creates. Raises StatusError."""
    if sent.method == "POST":
        return _read(endpoint, sent, options)
    new = change_of(endpoint, tracker, sent, options)({})
    if options.applies:
        check_new(endpoint, new)
    # It may name the version that it replaces.
    metadata = {key: value for key, value in (new.get("metadata") or {}).items() if key != "resourceVersion"}
    return {**new, "metadata": metadata}


def _read(endpoint: Endpoint, sent: Sent, options: Options) -> Object:
    """Decode the object of a POST or PUT; duplicate fields are reported like unknown ones."""
    obj, doubled = bodies.read_object(sent.body, sent.media, duplicates=options.validation != "Ignore")
    if endpoint.served.group in _GIT_GROUPS:
        bodies.refuse_nul(obj, sent.body, sent.media)
    if doubled:
        report_unknown(endpoint, [f'duplicate field "{path}"' for path in doubled], options)
    if not obj.get("kind") and not endpoint.served.custom:
        # Like kube-apiserver, take the type of a built-in kind from the path.
        obj = {
            **obj,
            "kind": endpoint.served.kind,
            "apiVersion": obj.get("apiVersion") or endpoint.api_version,
        }
    return obj


def replacer(endpoint: Endpoint, sent: Sent, options: Options) -> Change:
    """Return the function that puts the object of a PUT in the place of another."""
    obj = _read(endpoint, sent, options)
    check_place(obj.get("metadata"), sent.key, namespaced=True)
    if endpoint.served.namespaced:
        obj["metadata"]["namespace"] = sent.key[0]
    return lambda old: obj


def _applier(endpoint: Endpoint, tracker: Tracker, sent: Sent, options: Options) -> Change:
    config = bodies.read_config(sent.body, strict=options.validation == "Strict")
    if endpoint.served.group in _GIT_GROUPS:
        bodies.refuse_nul(config, sent.body, APPLY_PATCH)

    def apply(old: Object) -> Object:
        new = tracker.applied(endpoint, old or None, config, options, sent.subresource, now())
        check_place(new["metadata"], sent.key, namespaced=endpoint.served.namespaced)
        return new

    return apply


def patcher(endpoint: Endpoint, sent: Sent) -> Change:
    """Return the function that applies a patch."""
    assert isinstance(sent.body, bytes)  # patches are JSON
    patch = bodies.read_json(sent.body)
    served = endpoint.served
    if served.group in _GIT_GROUPS:
        bodies.refuse_nul(patch, sent.body, sent.media)

    def apply(old: Object) -> Object:
        try:
            new: Any
            if sent.media == STRATEGIC_PATCH:
                new = strategic_merge_patch(old, patch, group=served.group, kind=served.kind)
            elif sent.media == "application/json-patch+json":
                new = json_patch(old, patch)
            else:
                new = merge_patch(old, patch)
        except RecursionError as exc:
            raise _deepened() from exc
        if type(new) is not dict:
            raise status.bad_request("the patch does not leave an object")
        if bodies.is_deep(_unowned(new)):
            raise _deepened()
        check_place(new.get("metadata"), sent.key, namespaced=served.namespaced)
        return new

    return apply


def _unowned(obj: Object) -> Object:
    """Return an object without its managedFields, which are as deep as the fields that they name."""
    metadata = obj.get("metadata")
    if type(metadata) is not dict or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def _deepened() -> StatusError:
    """Return the error for a patch whose operations nest an object too deeply."""
    text = f"the patch leaves an object that is more than {bodies.DEPTH_MAX} levels deep"
    return StatusError(422, "Invalid", text)
