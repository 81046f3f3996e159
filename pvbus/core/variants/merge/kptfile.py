"""Merges a Kptfile three ways: metadata, info, pipeline, inventory and status.

Its name, namespace and upstream stay local; the upgrade of a package sets the upstream.

Source: kpt v1.0.0-beta.62.1, pkg/kptfile/kptfileutil/util.go; departures: comments stay, and tasks are merged
one by one.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.variants.merge import MergeError, fields
from pvbus.core.variants.merge.objects import FileMerge
from pvbus.core.variants.merge.questions import Sides, with_questions
from pvbus.core.variants.merge.schemas import KPTFILE
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document

FILE = "Kptfile"
_PARTS = ("info", "pipeline", "inventory", "status")
_OWN = ("upstream", "upstreamLock", "status")
"""Fields that, beside the name, differ between a package and its unchanged copy."""


def merge(file: str, old: str | None, local: str, new: str, *, with_upstream: bool) -> FileMerge:
    """Merge a Kptfile. with_upstream: take `upstream` and `upstreamLock` of the new upstream.

    Raises: MergeError for one that cannot be read or edited.
    """
    if old == new:
        return FileMerge(local)
    sides = Sides(*(_merged_parts(_object(file, text).value) for text in (old, local, new)))
    merged = fields.merge(*with_questions(sides), KPTFILE)
    documents = _documents(file, local)
    try:
        first = fields.edited(documents[0], merged.edits)
        if with_upstream:
            for part in ("upstream", "upstreamLock"):
                wanted = _object(file, new).value.get(part)
                first = (
                    editor.delete(first, (part,)) if wanted is None else editor.assign(first, (part,), wanted)
                )
    except editor.YamlError as exc:
        raise MergeError(f"{file}: {exc}") from exc
    name = editor.get(first.value, ("metadata", "name"))
    conflicts = tuple(
        msgspec.structs.replace(conflict, file=file, object=f"Kptfile {name or ''}".strip())
        for conflict in merged.conflicts
        if not conflict.field.startswith("status.")  # which belongs to the last render
    )
    return FileMerge(editor.join((first, *documents[1:])), conflicts)


def is_same(old: str, local: str) -> bool:
    """Compare two Kptfiles without name, upstream and status, which differ in every copy."""
    try:
        return editor.same(_compared(_object(FILE, old).value), _compared(_object(FILE, local).value))
    except MergeError:
        return old == local


def _compared(value: Mapping[str, Any]) -> dict[str, Any]:
    metadata = value.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        metadata["annotations"] = {
            key: item for key, item in annotations.items() if not str(key).startswith("internal.kpt.dev/")
        }
    metadata = {key: item for key, item in metadata.items() if key != "name" and item not in ({}, None)}
    return {**{key: item for key, item in value.items() if key not in _OWN}, "metadata": metadata}


def _merged_parts(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a Kptfile that are merged, at their paths."""
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    shared = {key: metadata[key] for key in ("annotations", "labels") if key in metadata}
    return {"metadata": shared, **{key: value[key] for key in _PARTS if key in value}}


def _object(file: str, text: str | None) -> Document:
    return Document("", {}) if text is None else _documents(file, text)[0]


def _documents(file: str, text: str) -> tuple[Document, ...]:
    try:
        documents = editor.parse(text)
    except editor.YamlError as exc:
        raise MergeError(f"{file}: {exc}") from exc
    if not documents or not isinstance(documents[0].value, dict):
        raise MergeError(f"{file}: it holds no object")
    return documents
