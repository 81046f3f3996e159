"""Keys, names, partitions and digests: every encoding that two services must agree on.

Source of the object name: Porch v1.5.8, packagevariantset_controller.go; of the workspace name:
packagevariant_controller.go; checked against the conformance cases.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

NAME_BYTES_MAX = 63
NAME_HEAD_BYTES = 54
WORKSPACE_PREFIX = "packagevariant-"
FINALIZER = "config.porch.kpt.dev/packagevariants"
SET_UID_LABEL = "config.porch.kpt.dev/packagevariantset"
CONFIRM_DELETION = "pvbus.dev/confirm-deletion"
REMOVAL_CANCELLED = "pvbus.dev/removal-cancelled"
REMOVALS_MAX = "pvbus.dev/removals-max"
REMOVALS_SHARE = "pvbus.dev/removals-share"
HOLD = "pvbus.dev/hold"

_INT64_MAX = 2**63 - 1

_canonical = msgspec.json.Encoder(order="sorted")


class Key(NamedTuple):
    """A namespace and a name: of a PackageVariant (vkey) or a PackageVariantSet (skey)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        namespace, _, name = text.partition("/")
        return cls(namespace, name)


def okey(group: str, kind: str, namespace: str, name: str) -> str:
    """Encode an object's key: `<group>/<kind>|<namespace>|<name>`."""
    return f"{group}/{kind}|{namespace}|{name}"


class ObjectKey(NamedTuple):
    """A decoded okey."""

    group: str
    kind: str
    namespace: str
    name: str


def parse_okey(text: str) -> ObjectKey:
    gk, namespace, name = text.split("|", 2)
    group, _, kind = gk.rpartition("/")
    return ObjectKey(group, kind, namespace, name)


def partition(partition_key: str, partitions: int) -> int:
    """Choose the partition of a key: CRC-32 modulo N, stable across languages and releases."""
    return crc32(partition_key.encode()) % partitions


def digest(value: Any) -> str:
    """Return 16 hex digits over the canonical JSON of a value (Structs and dicts alike)."""
    return hashlib.sha1(_canonical.encode(value), usedforsecurity=False).hexdigest()[:16]


def sha1_head(text: str) -> str:
    """Return the first 8 hex digits of SHA-1."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def variant_name(set_name: str, repository: str, package: str) -> str:
    """Return Porch's name of a set's PackageVariant: at most 63 bytes."""
    identifier = f"{set_name}-{repository}-{package}"
    raw = identifier.encode()
    if len(raw) <= NAME_BYTES_MAX:
        return identifier
    return f"{raw[:NAME_HEAD_BYTES].decode(errors='ignore')}-{sha1_head(identifier)}"


def colliding_variant_name(set_name: str, repository: str, package: str) -> str:
    """Return the name of a downstream whose Porch name is taken by another one of the set."""
    head = f"{set_name}-{repository}-{package}".encode()[:NAME_HEAD_BYTES].decode(errors="ignore")
    return f"{head}-{sha1_head(f'{set_name}/{repository}/{package}')}"


def revision_name(repository: str, package: str, workspace: str) -> str:
    """Return the name Porch's server gives to a PackageRevision."""
    return f"{repository}.{package.replace('/', '.')}.{workspace}"


def next_workspace(workspaces: Iterable[str]) -> str:
    """Return `packagevariant-N`, N one above the highest in use.

    A suffix counts as Go's strconv.Atoi reads it: a sign is part of the number, digits are ASCII, and what
    is no number or does not fit into 64 bits is 0.
    """
    highest = 0
    for workspace in workspaces:
        if workspace.startswith(WORKSPACE_PREFIX):
            suffix = workspace.removeprefix(WORKSPACE_PREFIX)
            number = int(suffix) if re.fullmatch(r"[+-]?[0-9]+", suffix) else 0
            highest = max(highest, number if number <= _INT64_MAX else 0)
    return f"{WORKSPACE_PREFIX}{highest + 1}"


def hold_token(hold: str, children: Iterable[tuple[str, str]]) -> str:
    """Return the token that confirms exactly these removals (vkey, uid) of a hold, whose id is unique."""
    return digest([hold, *(f"{vkey} {uid}" for vkey, uid in sorted(children))])
