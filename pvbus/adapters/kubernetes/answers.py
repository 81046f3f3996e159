"""Checks that a response comes from an API server: a proxy in between sends pages of its own.

Any other response is a TransientError: it says nothing about the objects, and the same request may reach the
server the next time.
"""

from typing import Any, TypeGuard
from urllib.parse import quote

import msgspec

from pvbus.adapters.kubernetes.errors import error_of
from pvbus.core.errors import PermanentError, TransientError
from pvbus.ports.cluster import Object, Resource, WatchEvent

QUOTED_CHARACTERS_MAX = 100  # of a foreign response: enough to recognise a proxy's page

_METADATA_FIELDS = frozenset(("apiVersion", "kind", "metadata"))

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class _Details(msgspec.Struct):
    name: str = ""
    kind: str = ""


class _NotFound(msgspec.Struct):
    kind: str = ""
    reason: str = ""
    details: _Details | None = None


def segment(text: str) -> str:
    """Return a name as one segment of a path. Raises PermanentError for an invalid one."""
    if text in (".", ".."):
        raise PermanentError(f'"{text}" cannot be part of a path of the API server', reason="Invalid")
    return quote(text, safe="")


def value_of(body: bytes, where: str) -> Object:
    """Decode a body that must be a JSON object."""
    try:
        value = _decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise _foreign(body, where, str(exc)) from exc
    if not isinstance(value, dict):
        raise _foreign(body, where, "it is no JSON object")
    return value


def page_of(value: Object, where: str) -> tuple[list[Object], str, str]:
    """Return the items of a list page, its resourceVersion, and the token of the next page.

    A server leaves the type out of the items of its own kinds, as the list says it; here they have it.
    """
    items, meta, kind = value.get("items"), value.get("metadata") or {}, str(value.get("kind") or "")
    if items is None:  # some servers encode an empty list as null
        items = []
    is_list = kind.endswith("List") and isinstance(items, list)
    if not is_list or not isinstance(meta, dict) or not all(map(_is_object, items)):
        raise _foreign(_encode(value), where, "it is no list of objects")
    head = {"apiVersion": value.get("apiVersion") or "", "kind": kind.removesuffix("List")}
    typed = [item if "kind" in item else {**head, **item} for item in items]
    return typed, meta.get("resourceVersion") or "", meta.get("continue") or ""


def metadata_of(obj: Object) -> Object:
    """Return an object without its content, which a server may send although it was not asked for."""
    if len(obj) <= 3 and obj.keys() <= _METADATA_FIELDS:
        return obj
    return {field: value for field, value in obj.items() if field in _METADATA_FIELDS}


def object_of(value: Object, name: str, where: str) -> Object:
    """Return a value, checked to be the object of this name."""
    if not _is_object(value) or value["metadata"]["name"] != name:
        raise _foreign(_encode(value), where, f'it is no object named "{name}"')
    return value


def discovery_of(value: Object, kind: str, where: str) -> Object:
    """Return a value, checked to be a discovery document of this kind."""
    if value.get("kind") != kind:
        raise _foreign(_encode(value), where, f"it is no {kind}")
    return value


def event_of(line: bytes, where: str) -> WatchEvent:
    """Decode a line of a watch. Raises the error of an ERROR event."""
    value = value_of(line, where)
    kind, obj = value.get("type"), value.get("object")
    if kind == "ERROR" and isinstance(obj, dict):
        code = obj.get("code")
        raise error_of(code if isinstance(code, int) else 500, _encode(obj), method="GET", where=where)
    if kind == "BOOKMARK" and isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
        return WatchEvent("BOOKMARK", obj)
    if kind not in ("ADDED", "MODIFIED", "DELETED") or not _is_object(obj):
        raise _foreign(line, where, "it is no event of a watch")
    return WatchEvent(kind, obj)


def says_not_found(body: bytes, resource: Resource, name: str) -> bool:
    """Return whether a 404 is about this object: not about its kind, its server, or a proxy's page."""
    details = _missing(body)
    return (
        details is not None and details.name == name and details.kind in ("", resource.plural, resource.kind)
    )


def says_kind_not_found(body: bytes) -> bool:
    """Return whether a 404 is about the kind in the path: it names no object."""
    details = _missing(body)
    return details is not None and not details.name


def _missing(body: bytes) -> "_Details | None":
    """Return the details of a Status that says NotFound; None for any other answer."""
    try:
        status = msgspec.json.decode(body, type=_NotFound)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_missing = status.kind == "Status" and status.reason == "NotFound"
    return (status.details or _Details()) if is_missing else None


def _is_object(value: Any) -> TypeGuard[Object]:
    if not isinstance(value, dict):
        return False
    meta = value.get("metadata")
    return isinstance(meta, dict) and isinstance(meta.get("name"), str)


def _foreign(body: bytes, where: str, why: str) -> TransientError:
    text = body[:QUOTED_CHARACTERS_MAX].decode(errors="replace").strip()
    return TransientError(f"{where}: the answer is not one of an API server ({why}): {text!r}")
