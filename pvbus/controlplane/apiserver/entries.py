"""A stored object and a change of it, shared by the store, the watches and the collectors.

An object is encoded once, when it is written, and the same bytes go to the answer, the database and every
watch. The fields that selectors and the garbage collector read often are kept beside them.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from pvbus.ports.cluster import Kind, Object

ObjectKey = tuple[str, str]
"""(namespace, name); the namespace of a cluster-wide object is ""."""

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class Owner(NamedTuple):
    """An ownerReference.

    blocks: whether a foreground deletion of the owner waits for this object
    """

    uid: str
    api_version: str
    kind: str
    name: str
    blocks: bool


_NO_LABELS: dict[str, str] = {}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class Entry:
    """One version of one object; it never changes.

    key: namespace and name
    rv: the resourceVersion
    raw: the JSON
    uid: the uid
    labels: the labels
    owners: the ownerReferences
    terminating: whether its deletion has begun
    package: `spec.packageName`, "" if it has none
    """

    __slots__ = (
        *("_is_current", "_object", "key", "labels", "owners", "package", "raw", "rv", "terminating", "uid"),
    )

    def __init__(self, obj: Object, raw: bytes, rv: int) -> None:
        metadata = obj["metadata"]
        self.key: ObjectKey = (metadata.get("namespace", ""), metadata["name"])
        self.rv = rv
        self.raw = raw
        self.uid: str = metadata["uid"]
        self.labels: dict[str, str] = metadata.get("labels") or _NO_LABELS
        owners = metadata.get("ownerReferences")
        self.owners: tuple[Owner, ...] = tuple(map(_owner, owners)) if owners else ()
        self.terminating = "deletionTimestamp" in metadata
        spec = obj.get("spec")
        package = spec.get("packageName") if isinstance(spec, dict) else None
        self.package: str = package if isinstance(package, str) else ""
        self._object: Object | None = None
        self._is_current = True

    @classmethod
    def encode(cls, obj: Object, rv: int) -> "Entry":
        """Set the resourceVersion in `obj` itself, and encode it."""
        obj["metadata"]["resourceVersion"] = str(rv)
        return cls(obj, _encoder.encode(obj), rv)

    @classmethod
    def encode_unstored(cls, obj: Object) -> "Entry":
        """Encode an object of a dry run that creates it: it has no resourceVersion."""
        obj["metadata"].pop("resourceVersion", None)
        return cls(obj, _encoder.encode(obj), 0)

    @classmethod
    def load(cls, raw: bytes, rv: int) -> "Entry":
        return cls(_decoder.decode(raw), raw, rv)

    def decode(self) -> Object:
        """Return a fresh object, which the caller may change."""
        obj: Object = _decoder.decode(self.raw)
        return obj

    def opened(self) -> Object:
        """Return a fresh object, whose large parts stay encoded; see `opened`."""
        return opened(self.raw)

    def share(self) -> Object:
        """Return the object, which is cached while it is current; the caller must not change it."""
        if self._object is not None:
            return self._object
        obj = self.decode()
        if self._is_current:
            self._object = obj
        return obj

    def retire(self) -> None:
        """Drop the decoded object, which takes 5 to 10 times the bytes.

        The log of changes keeps old versions, which are rarely read.
        """
        self._is_current = False
        self._object = None


def _owner(reference: Object) -> Owner:
    return Owner(
        reference["uid"],
        reference["apiVersion"],
        reference["kind"],
        reference["name"],
        bool(reference.get("blockOwnerDeletion")),
    )


class Change:
    """One write of an object.

    kind: the kind of the object
    type: ADDED, MODIFIED or DELETED
    entry: the object after the write; for a deletion its last version, with the resourceVersion of the
        deletion
    old: the previous object, None if it was created
    """

    __slots__ = ("entry", "kind", "old", "type")

    def __init__(self, kind: Kind, type_: ChangeType, entry: Entry, old: Entry | None) -> None:
        self.kind = kind
        self.type: ChangeType = type_
        self.entry = entry
        self.old = old

    @property
    def rv(self) -> int:
        return self.entry.rv


def event_parts(event: str, raw: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the line of an event in parts, so that all watchers share the object's bytes."""
    return (b'{"type":"%b","object":' % event.encode(), raw, b"}\n")


def event_line(event: str, raw: bytes) -> bytes:
    return b"".join(event_parts(event, raw))


class _Package(msgspec.Struct):
    name: Any = msgspec.field(default=None, name="packageName")


_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_package = msgspec.json.Decoder(_Package).decode

_OPENED_BYTES = 64 * 1024
"""Smaller objects are decoded in less time than their parts are found."""


def opened(raw: bytes) -> Object:
    """Return an object of which only the metadata and the fields of an `Entry` are decoded.

    The other parts of a large one stay encoded, also the owners of fields: they are stored, or sent, as they
    are.
    """
    if len(raw) <= _OPENED_BYTES:
        whole: Object = _decoder.decode(raw)
        return whole
    obj: Object = dict(_parts(raw))
    metadata = _parts(obj["metadata"])
    obj["metadata"] = {
        field: part if field == "managedFields" else decode(part) for field, part in metadata.items()
    }
    obj |= {field: decode(obj[field]) for field in ("apiVersion", "kind") if field in obj}
    spec = obj.get("spec")
    if spec is not None and bytes(spec).startswith(b"{") and _package(spec).name is not None:
        obj["spec"] = decode(spec)
    return obj


def decode(raw: bytes | str) -> Any:
    return _decoder.decode(raw)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)
