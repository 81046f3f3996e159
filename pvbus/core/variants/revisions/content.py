"""The content of a package: its identity, which a person judges who approves or rejects it, and in words
what is wrong with a file that should hold Kubernetes objects."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.api.kptfile import FILE
from pvbus.core.kernel.keys import TASK_HISTORY
from pvbus.core.yaml import editor

_canonical = msgspec.json.Encoder(order="sorted", enc_hook=str)
DIGITS = 32


def content_digest(files: Mapping[str, str]) -> str:
    """Return 32 hex digits over the files of a package, without status and task history in its Kptfile.

    The status is what programs report about the content: its conditions change while the content does not.
    The commit is no such identity: Porch commits again when it proposes, and its database cache has none.
    """
    return _digest(files, ("status",))


def source_digest(files: Mapping[str, str]) -> str:
    """Return 32 hex digits over the files of an upstream: as `content_digest`, also without the origin
    in its Kptfile. Two revisions of one content have equal digests."""
    return _digest(files, ("status", "upstream", "upstreamLock"))


def _digest(files: Mapping[str, str], left_out: tuple[str, ...]) -> str:
    hashed = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode(), _identity(path, files[path], left_out)):
            hashed.update(len(part).to_bytes(8, "big"))
            hashed.update(part)
    return hashed.hexdigest()[:DIGITS]


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


def _identity(path: str, text: str, left_out: tuple[str, ...]) -> bytes:
    """Return what counts of one file: all of its text; of the Kptfile the values, as its status is edited.

    left_out: the fields of the Kptfile that do not count
    """
    if path != FILE:
        return text.encode()
    try:
        document = editor.parse(text)[0].value
    except editor.YamlError:
        return text.encode()
    if not isinstance(document, dict):
        return _canonical.encode(document)
    counted = {key: value for key, value in document.items() if key not in left_out}
    annotations = editor.get(document, ("metadata", "annotations"))
    if isinstance(annotations, dict) and TASK_HISTORY in annotations:
        others = {key: value for key, value in annotations.items() if key != TASK_HISTORY}
        counted = editor.replaced(counted, ("metadata", "annotations"), others)
    return _canonical.encode(counted)
