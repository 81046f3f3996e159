"""The content of a package: its identity, which a person judges who approves or rejects it, and in words
what is wrong with a file that should hold Kubernetes objects."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import msgspec

from pvbus.core.api.kptfile import FILE
from pvbus.core.kernel.keys import STORE_RECORDS
from pvbus.core.yaml import editor

_canonical = msgspec.json.Encoder(order="sorted", enc_hook=str)
DIGITS = 32


def content_digest(files: Mapping[str, str]) -> str:
    """Return 32 hex digits over the files of a package, without status and the store's records.

    The status is what programs report about the content: its conditions change while the content does not.
    The commit is no such identity: Porch commits again when it proposes, and its database cache has none.
    """
    return digest_of({path: _identity(path, text, _RECORDED) for path, text in files.items()})


def source_digest(files: Mapping[str, str]) -> str:
    """Return 32 hex digits over the files of an upstream: as `content_digest`, also without the origin
    in its Kptfile. Two revisions of one content have equal digests."""
    ignored = (*_RECORDED, ("upstream",), ("upstreamLock",))
    return digest_of({path: _identity(path, text, ignored) for path, text in files.items()})


def digest_of(parts: Mapping[str, bytes]) -> str:
    """Return the digest of what counts of each file, by path."""
    hashed = hashlib.sha256()
    for path in sorted(parts):
        for piece in (path.encode(), parts[path]):
            hashed.update(len(piece).to_bytes(8, "big"))
            hashed.update(piece)
    return hashed.hexdigest()[:DIGITS]


def values_identity(text: str, ignored: Iterable[editor.Path]) -> bytes:
    """Return what counts of the documents of a YAML file: their values, without those at ignored paths.

    What the ignored values alone had filled does not count. A file that cannot be read counts as it is.
    """
    try:
        values = editor.values(text)
    except editor.YamlError:
        return text.encode()
    paths = tuple(ignored)
    return _canonical.encode([reduce(without, paths, value) for value in values])


def kptfile_identity(text: str, ignored: Iterable[editor.Path]) -> bytes:
    """Return what counts of a Kptfile: the values of its first document, and the text of any others."""
    try:
        first, *others = editor.parse(text)
    except (editor.YamlError, ValueError):
        return text.encode()
    value = reduce(without, ignored, first.value)
    return _canonical.encode(value) + "".join(each.text for each in others).encode()


def without(value: Any, path: editor.Path) -> Any:
    """Return a value without the one at a path, and without the maps on the way that it leaves empty.

    An entry of a list becomes null, so that the others keep their position.
    """
    if isinstance(value, list):
        index = int(path[0]) if str(path[0]).isdecimal() else len(value)
        inner = [None if len(path) == 1 else without(each, path[1:]) for each in value[index : index + 1]]
        return [*value[:index], *inner, *value[index + 1 :]]
    if not isinstance(value, dict) or path[0] not in value:
        return value
    others = {key: each for key, each in value.items() if key != path[0]}
    if len(path) == 1:
        return others
    left = without(value[path[0]], path[1:])
    return others if left == {} and value[path[0]] != {} else {**value, path[0]: left}


LFS_HEADER = "version https://git-lfs.github.com/spec/"
"""How each pointer of Git LFS begins (its specification, version 1)."""


def no_object(number: int, text: str, value: Any) -> str:
    """Return a sentence on a document of a YAML file that is not a map, so not a Kubernetes object.

    number: the number of the document in its file, from 0
    text: the document
    value: what the document holds
    """
    if text.lstrip("\ufeff").startswith(LFS_HEADER):
        return (
            "is a pointer of Git LFS, not the content: pvbus reads git without LFS, so commit the file "
            "itself (git lfs migrate export)"
        )
    kind = "a list" if isinstance(value, list) else "plain text" if isinstance(value, str) else "one value"
    return (
        f"document {number + 1} is {kind}, not a Kubernetes object: give it apiVersion, kind and metadata, "
        "or rename the file so that it does not end in .yaml, .yml or .json"
    )


_RECORDED: tuple[editor.Path, ...] = (
    ("status",),
    *(("metadata", "annotations", record) for record in STORE_RECORDS),
)


def _identity(path: str, text: str, ignored: Iterable[editor.Path]) -> bytes:
    """Return what counts of one file: all of its text; of the Kptfile the values, as its status is edited.

    ignored: the paths of the Kptfile that do not count
    """
    return kptfile_identity(text, ignored) if path == FILE else text.encode()
