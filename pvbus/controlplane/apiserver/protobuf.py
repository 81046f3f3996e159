"""Decodes the few request bodies that kubectl and controllers always send as protobuf.

`kubectl create namespace`, `create configmap`, `create secret` and `auth can-i` send only protobuf, and so do
typed clients of client-go when they delete objects and record events. These messages are small and their
field numbers never change, so they are decoded here. Every other kind is refused, and all answers are JSON.

Source: the generated.proto files of k8s.io/api core/v1, events/v1 and authorization/v1, and of
k8s.io/apimachinery meta/v1 and runtime (v0.36).
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

MAGIC = b"k8s\x00"


class _Map(NamedTuple):
    value: Any


class _List(NamedTuple):
    item: Any


class _Time(NamedTuple):
    """Seconds and nanoseconds since 1970; no time if both are missing.

    micro: whether it is a MicroTime
    """

    micro: bool = False


class UnknownKindError(ValueError):
    """The body is valid, but its kind is not supported as protobuf."""


_Message = Mapping[int, tuple[str, Any]]

_OWNER: _Message = {
    1: ("kind", str),
    3: ("name", str),
    4: ("uid", str),
    5: ("apiVersion", str),
    6: ("controller", bool),
    7: ("blockOwnerDeletion", bool),
}
_METADATA: _Message = {
    1: ("name", str),
    2: ("generateName", str),
    3: ("namespace", str),
    5: ("uid", str),
    6: ("resourceVersion", str),
    7: ("generation", int),
    11: ("labels", _Map(str)),
    12: ("annotations", _Map(str)),
    13: ("ownerReferences", _List(_OWNER)),
    14: ("finalizers", _List(str)),
}
_ACCESS: _Message = {
    1: ("namespace", str),
    2: ("verb", str),
    3: ("group", str),
    4: ("version", str),
    5: ("resource", str),
    6: ("subresource", str),
    7: ("name", str),
}
_PATH: _Message = {1: ("path", str), 2: ("verb", str)}
_REFERENCE: _Message = {
    1: ("kind", str),
    2: ("namespace", str),
    3: ("name", str),
    4: ("uid", str),
    5: ("apiVersion", str),
    6: ("resourceVersion", str),
    7: ("fieldPath", str),
}
_SOURCE: _Message = {1: ("component", str), 2: ("host", str)}
_SERIES: _Message = {1: ("count", int), 2: ("lastObservedTime", _Time(micro=True))}
_DELETE_OPTIONS: _Message = {
    1: ("gracePeriodSeconds", int),
    2: ("preconditions", {1: ("uid", str), 2: ("resourceVersion", str)}),
    3: ("orphanDependents", bool),
    4: ("propagationPolicy", str),
    5: ("dryRun", _List(str)),
}
_RULE: _Message = {
    1: ("verbs", _List(str)),
    2: ("apiGroups", _List(str)),
    3: ("resources", _List(str)),
    4: ("resourceNames", _List(str)),
    5: ("nonResourceURLs", _List(str)),
}
_REQUIREMENT: _Message = {1: ("key", str), 2: ("operator", str), 3: ("values", _List(str))}
_SELECTOR: _Message = {1: ("matchLabels", _Map(str)), 2: ("matchExpressions", _List(_REQUIREMENT))}
_ROLE: _Message = {
    1: ("metadata", _METADATA),
    2: ("rules", _List(_RULE)),
    3: ("aggregationRule", {1: ("clusterRoleSelectors", _List(_SELECTOR))}),
}
_SUBJECT: _Message = {1: ("kind", str), 2: ("apiGroup", str), 3: ("name", str), 4: ("namespace", str)}
_BINDING: _Message = {
    1: ("metadata", _METADATA),
    2: ("subjects", _List(_SUBJECT)),
    3: ("roleRef", {1: ("apiGroup", str), 2: ("kind", str), 3: ("name", str)}),
}
_ACCESS_REVIEW: _Message = {
    1: ("metadata", _METADATA),
    2: (
        "spec",
        {
            1: ("resourceAttributes", _ACCESS),
            2: ("nonResourceAttributes", _PATH),
            3: ("user", str),
            4: ("groups", _List(str)),
            6: ("uid", str),
        },
    ),
}
_AUTHORIZATION, _RBAC = "authorization.k8s.io/v1", "rbac.authorization.k8s.io/v1"
_KINDS: Mapping[tuple[str, str], _Message] = {
    ("v1", "Event"): {
        1: ("metadata", _METADATA),
        2: ("involvedObject", _REFERENCE),
        3: ("reason", str),
        4: ("message", str),
        5: ("source", _SOURCE),
        6: ("firstTimestamp", _Time()),
        7: ("lastTimestamp", _Time()),
        8: ("count", int),
        9: ("type", str),
        10: ("eventTime", _Time(micro=True)),
        11: ("series", _SERIES),
        12: ("action", str),
        13: ("related", _REFERENCE),
        14: ("reportingComponent", str),
        15: ("reportingInstance", str),
    },
    ("events.k8s.io/v1", "Event"): {
        1: ("metadata", _METADATA),
        2: ("eventTime", _Time(micro=True)),
        3: ("series", _SERIES),
        4: ("reportingController", str),
        5: ("reportingInstance", str),
        6: ("action", str),
        7: ("reason", str),
        8: ("regarding", _REFERENCE),
        9: ("related", _REFERENCE),
        10: ("note", str),
        11: ("type", str),
        12: ("deprecatedSource", _SOURCE),
        13: ("deprecatedFirstTimestamp", _Time()),
        14: ("deprecatedLastTimestamp", _Time()),
        15: ("deprecatedCount", int),
    },
    ("v1", "Namespace"): {1: ("metadata", _METADATA), 2: ("spec", {1: ("finalizers", _List(str))})},
    ("v1", "ConfigMap"): {
        1: ("metadata", _METADATA),
        2: ("data", _Map(str)),
        3: ("binaryData", _Map(bytes)),
        4: ("immutable", bool),
    },
    ("v1", "Secret"): {
        1: ("metadata", _METADATA),
        2: ("data", _Map(bytes)),
        3: ("type", str),
        4: ("stringData", _Map(str)),
        5: ("immutable", bool),
    },
    (_AUTHORIZATION, "SelfSubjectAccessReview"): {
        1: ("metadata", _METADATA),
        2: ("spec", {1: ("resourceAttributes", _ACCESS), 2: ("nonResourceAttributes", _PATH)}),
    },
    (_AUTHORIZATION, "SelfSubjectRulesReview"): {
        1: ("metadata", _METADATA),
        2: ("spec", {1: ("namespace", str)}),
    },
    (_AUTHORIZATION, "SubjectAccessReview"): _ACCESS_REVIEW,
    (_AUTHORIZATION, "LocalSubjectAccessReview"): _ACCESS_REVIEW,
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: ("metadata", _METADATA)},
    ("authentication.k8s.io/v1", "TokenReview"): {
        1: ("metadata", _METADATA),
        2: ("spec", {1: ("token", str), 2: ("audiences", _List(str))}),
    },
    (_RBAC, "Role"): _ROLE,
    (_RBAC, "ClusterRole"): _ROLE,
    (_RBAC, "RoleBinding"): _BINDING,
    (_RBAC, "ClusterRoleBinding"): _BINDING,
}
_ENVELOPE: _Message = {1: ("type", {1: ("apiVersion", str), 2: ("kind", str)}), 2: ("raw", memoryview)}


def decode(body: bytes) -> dict[str, Any]:
    """Return the object in a Kubernetes protobuf body. Raises ValueError if it is damaged or of another kind.

    Zero values are left out, as clients always send them; fields that only a server sets are ignored.
    """
    if not body.startswith(MAGIC):
        raise ValueError("not a Kubernetes protobuf body")
    envelope = _message(memoryview(body)[len(MAGIC) :], _ENVELOPE)
    names = envelope.get("type", {})
    kind = names.get("kind", "")
    # DeleteOptions belong to every group: a client sends them in the group of the deleted objects.
    of_any_group = _DELETE_OPTIONS if kind == "DeleteOptions" else None
    message = _KINDS.get((names.get("apiVersion", ""), kind), of_any_group)
    if message is None:
        raise UnknownKindError(f"{kind[:80]} is not read from protobuf")
    return {**names, **_message(envelope.get("raw", memoryview(b"")), message)}


def _message(data: memoryview, message: _Message) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for number, raw in fields(data):
        if number not in message:
            continue
        name, kind = message[number]
        match kind:
            case _Map(value):
                key, item = _entry(raw, value)
                result.setdefault(name, {})[key] = item
            case _List(item):
                result.setdefault(name, []).append(_value(raw, item))
            case _:
                found = _value(raw, kind)
                if found or isinstance(kind, Mapping):
                    result[name] = found
    return result


def _entry(raw: Any, kind: Any) -> tuple[str, Any]:
    """Decode a map entry: a message of key and value, either of which is left out if it is empty."""
    parts = dict(fields(length_delimited(raw)))
    empty = memoryview(b"")
    return _value(parts.get(1, empty), str), _value(parts.get(2, empty), kind)


def _value(raw: Any, kind: Any) -> Any:
    if kind is bool or kind is int:
        if not isinstance(raw, int):
            raise ValueError("a number was expected")
        return bool(raw) if kind is bool else _signed(raw)
    data = length_delimited(raw)
    if isinstance(kind, _Time):
        return _time(data, micro=kind.micro)
    if isinstance(kind, Mapping):
        return _message(data, kind)
    if kind is str:
        return str(data, "utf-8")
    return b64encode(data).decode() if kind is bytes else data


def _signed(number: int) -> int:
    """Return the signed value of a 64-bit varint: two's complement."""
    return number - 2**64 if number >= 2**63 else number


def _time(data: memoryview, *, micro: bool) -> str:
    """Return a time in JSON's format, "" for none."""
    parts = dict(fields(data))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int):
        raise ValueError("a number was expected")
    if not seconds and not nanos:
        return ""
    try:
        since = timedelta(seconds=_signed(seconds), microseconds=_signed(nanos) // 1000)
        moment = datetime(1970, 1, 1, tzinfo=UTC) + since
    except OverflowError as exc:
        raise ValueError(f"the time {_signed(seconds)} is out of range") from exc
    text = moment.replace(tzinfo=None).isoformat(timespec="microseconds" if micro else "seconds")
    return f"{text}Z"


def length_delimited(raw: Any) -> memoryview:
    """Return the bytes of a field. Raises: ValueError for a number."""
    if not isinstance(raw, memoryview):
        raise ValueError("text or a message was expected")
    return raw


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (field number, number or bytes) of a message. Raises: ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                number, at = _varint(data, at)
                yield tag >> 3, number
            case 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    raise ValueError("the message ends too early")
                yield tag >> 3, data[at : at + length]
                at += length
            case wire:
                raise ValueError(f"wire type {wire} is not used by these messages")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("the message ends too early")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
