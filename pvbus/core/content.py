"""The identity of a package's content: what a person judges who approves or rejects it."""

import hashlib
from collections.abc import Mapping

import msgspec

from pvbus.core.api.kptfile import FILE
from pvbus.core.keys import TASK_HISTORY
from pvbus.core.yaml import editor

_canonical = msgspec.json.Encoder(order="sorted", enc_hook=str)
DIGITS = 32


def content_digest(files: Mapping[str, str]) -> str:
    """Return 32 hex digits over the files of a package, without status and task history in its Kptfile.

    The status is what programs report about the content: its conditions change while the content does not.
    The commit is no such identity: Porch commits again when it proposes, and its database cache has none.
    """
    hashed = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode(), _identity(path, files[path])):
            hashed.update(len(part).to_bytes(8, "big"))
            hashed.update(part)
    return hashed.hexdigest()[:DIGITS]


def _identity(path: str, text: str) -> bytes:
    """Return what counts of one file: all of its text; of the Kptfile the values, as its status is edited."""
    if path != FILE:
        return text.encode()
    try:
        document = editor.parse(text)[0].value
    except editor.YamlError:
        return text.encode()
    if not isinstance(document, dict):
        return _canonical.encode(document)
    counted = {key: value for key, value in document.items() if key != "status"}
    annotations = editor.get(document, ("metadata", "annotations"))
    if isinstance(annotations, dict) and TASK_HISTORY in annotations:
        others = {key: value for key, value in annotations.items() if key != TASK_HISTORY}
        counted = editor.replaced(counted, ("metadata", "annotations"), others)
    return _canonical.encode(counted)
