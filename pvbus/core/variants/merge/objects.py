"""Merges one YAML file three ways: its objects are matched by identity, their fields merged.

An object is identified by group, kind, namespace and name, and by its file. Namespace and name come from
the comment `# kpt-merge: <namespace>/<name>` at its `metadata`, if there is one, so that an object that
was renamed locally is still found.

The local text is edited, so that comments and layout stay. A file or an object that did not change locally
is replaced by upstream's text.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.conflicts import ABSENT, Conflict
from pvbus.core.variants.merge import MergeError, fields
from pvbus.core.variants.merge.schemas import schema_of
from pvbus.core.yaml import editor
from pvbus.core.yaml.editor import Document, Path, same

_BOOKKEEPING = (
    "internal.kpt.dev/",
    "internal.config.kubernetes.io/",
    "config.kubernetes.io/index",
    "config.kubernetes.io/path",
)
_MERGE_COMMENT = re.compile(r"(?m)^metadata:[ \t]*#[ \t]*kpt-merge:[ \t]*([^\s/]*)/(\S+)")
_SEPARATOR = re.compile(r"\A---[ \t]*\r?\n")


class Identity(NamedTuple):
    group: str
    kind: str
    namespace: str
    name: str


class FileMerge(NamedTuple):
    """The outcome for one file. text: None if nothing is left of the file."""

    text: str | None
    conflicts: tuple[Conflict, ...] = ()


class NotObjectsError(ValueError):
    """The file is not a list of objects: it can only be merged as a whole."""


def merge(file: str, old: str | None, local: str | None, new: str | None) -> FileMerge:
    """Merge a YAML file; None is a side without it.

    Raises: NotObjectsError; MergeError when one side has an object twice, or the text cannot be edited.
    """
    if old == new:
        return FileMerge(local)
    if local in (old, new):
        return FileMerge(new)
    sides = [_read(file, text) for text in (old, local, new)]
    merging = _FileMerging(file, *sides)
    try:
        return merging.run(local)
    except editor.YamlError as exc:
        raise MergeError(f"{file}: {exc}") from exc


def is_same(old: str, local: str) -> bool:
    """Compare the objects of two texts without the annotations that tools write into them."""
    if old == local:
        return True
    try:
        olds, locals_ = editor.values(old), editor.values(local)
    except editor.YamlError:
        return False
    return len(olds) == len(locals_) and all(
        same(without_bookkeeping(one), without_bookkeeping(other))
        for one, other in zip(olds, locals_, strict=True)
    )


def without_bookkeeping(value: Any) -> Any:
    """Return an object without the annotations that tools write into it."""
    annotations = editor.get(value, ("metadata", "annotations"))
    if not isinstance(annotations, dict):
        return value
    retained = {key: item for key, item in annotations.items() if not str(key).startswith(_BOOKKEEPING)}
    metadata = {key: item for key, item in value["metadata"].items() if key != "annotations"}
    return {**value, "metadata": metadata | ({"annotations": retained} if retained else {})}


def _read(file: str, text: str | None) -> tuple[Document, ...]:
    try:
        documents = editor.parse(text or "")
    except editor.YamlError as exc:
        raise NotObjectsError(f"{file}: {exc}") from exc
    if not all(document.value is None or isinstance(document.value, dict) for document in documents):
        raise NotObjectsError(f"{file}: not every document is an object")
    return documents


def _identified(file: str, documents: tuple[Document, ...]) -> dict[Identity, Document]:
    found: dict[Identity, Document] = {}
    for document in documents:
        if document.value is None:
            continue
        identity = identity_of(document)
        if identity in found:
            if not identity.kind:
                raise NotObjectsError(f"{file}: several documents that are no objects")
            raise MergeError(f"{file}: {words_of(document.value)} is there twice")
        found[identity] = document
    return found


def identity_of(document: Document) -> Identity:
    value = document.value
    comment = _MERGE_COMMENT.search(document.text)
    namespace, name = comment.groups() if comment else (_text(value, "namespace"), _text(value, "name"))
    group = str(value.get("apiVersion") or "").rpartition("/")[0]
    return Identity(group, str(value.get("kind") or ""), namespace, name)


def _text(value: Any, field: str) -> str:
    found = editor.get(value, ("metadata", field))
    return "" if found is None else str(found)


def words_of(value: Any) -> str:
    """Return an object's kind, namespace and name for people; missing ones are left out."""
    names = [text for text in (_text(value, "namespace"), _text(value, "name")) if text]
    return f"{value.get('kind') or 'document'} {'/'.join(names)}".strip()


class _FileMerging:
    """Merges the objects of one file, matched by identity.

    The result has the local documents in their order, then the objects that upstream adds. What one side
    deleted is settled without a look at the fields: upstream's deletion applies unless the object was changed
    locally, a local deletion always stays. Either is a conflict if the other side changed the object. An
    object that upstream left unchanged keeps its local text, and one whose local text is the old one gets
    upstream's, so that comments and layout come along. All others are merged field by field, into the local
    text.
    """

    def __init__(
        self,
        file: str,
        old: tuple[Document, ...],
        local: tuple[Document, ...],
        new: tuple[Document, ...],
    ) -> None:
        self._file = file
        self._local = local
        self._olds, self._locals, self._news = (_identified(file, side) for side in (old, local, new))
        self._conflicts: list[Conflict] = []

    def run(self, text: str | None) -> FileMerge:
        pieces: list[Document] = []
        for document in self._local:
            merged = document if document.value is None else self._present(document)
            if merged is not None:
                pieces.append(merged)
        result = "".join(piece.text for piece in pieces)
        for identity, document in self._news.items():
            if identity not in self._locals and self._is_added(identity, document):
                result = appended(result, document.text)
                pieces.append(document)
        if not any(piece.value is not None for piece in pieces):
            return FileMerge(None if self._locals else text, tuple(self._conflicts))
        return FileMerge(result, tuple(self._conflicts))

    def _present(self, local: Document) -> Document | None:
        """Merge an object that exists locally; None if upstream's deletion applies."""
        identity = identity_of(local)
        old, new = self._olds.get(identity), self._news.get(identity)
        if new is None:
            if old is None:
                return local
            if same(without_bookkeeping(old.value), without_bookkeeping(local.value)):
                return None
            self._conflict(local.value, old.value, local.value, ABSENT)
            return local
        if old is not None and same(old.value, new.value):
            return local
        if old is not None and _body(old.text) == _body(local.text):
            return new._replace(text=_in_place_of(local.text, new.text))
        return self._merge(identity, old, local, new)

    def _merge(self, identity: Identity, old: Document | None, local: Document, new: Document) -> Document:
        schema = schema_of(identity.group, identity.kind)
        merged = fields.merge({} if old is None else old.value, local.value, new.value, schema)
        words = words_of(local.value)
        self._conflicts += [
            msgspec.structs.replace(conflict, file=self._file, object=words) for conflict in merged.conflicts
        ]
        return _with_new_comments(fields.edited(local, merged.edits), old, new)

    def _is_added(self, identity: Identity, new: Document) -> bool:
        """Tell whether upstream adds an object that does not exist locally; a local deletion stays."""
        old = self._olds.get(identity)
        if old is None:
            return True
        if not same(without_bookkeeping(old.value), without_bookkeeping(new.value)):
            self._conflict(new.value, old.value, ABSENT, new.value)
        return False

    def _conflict(self, named: Mapping[str, Any], old: Any, local: Any, new: Any) -> None:
        self._conflicts.append(
            Conflict(file=self._file, object=words_of(named), old=old, local=local, new=new, taken="local")
        )


def _with_new_comments(document: Document, old: Document | None, new: Document) -> Document:
    """Add upstream's new trailing comments to the same values: a setter's comment has a meaning."""
    if "#" not in new.text:
        return document
    known = {} if old is None else editor.comments(old)
    fresh = {path: text for path, text in editor.comments(new).items() if known.get(path) != text}
    present = editor.comments(document) if fresh else {}
    for path, comment in fresh.items():
        here = _path_of_same(path, new.value, document.value)
        if here is not None and here not in present:
            document = editor.with_comment(document, here, comment)
    return document


def _path_of_same(path: Path, source: Any, target: Any) -> Path | None:
    """Return the path in `target` of the value at `path` in `source`; None if it is missing or differs."""
    found: list[str | int] = []
    for step in path:
        if isinstance(source, list) and isinstance(target, list) and isinstance(step, int):
            where = _index_of(source[step], target)
            if where is None:
                return None
            source, target = source[step], target[where]
            found.append(where)
        elif isinstance(source, dict) and isinstance(target, dict) and step in source and step in target:
            source, target = source[step], target[step]
            found.append(step)
        else:
            return None
    return tuple(found) if isinstance(source, dict | list) or same(source, target) else None


def _index_of(element: Any, elements: list[Any]) -> int | None:
    """Find an equal element, or else the only one of the same name."""
    for number, other in enumerate(elements):
        if same(element, other):
            return number
    name = editor.get(element, ("name",))
    named = [number for number, other in enumerate(elements) if name and editor.get(other, ("name",)) == name]
    return named[0] if len(named) == 1 else None


def _body(text: str) -> str:
    return _SEPARATOR.sub("", text).rstrip()


def _in_place_of(local: str, new: str) -> str:
    """Return a document's text with the separator of the one that it replaces, and a final newline."""
    separator = _SEPARATOR.match(local)
    body = _SEPARATOR.sub("", new)
    return (separator[0] if separator else "") + (body if body.endswith("\n") else f"{body}\n")


def appended(text: str, document: str) -> str:
    """Append a document to a text."""
    if not text.strip():
        return document
    if not text.endswith("\n"):
        text += "\n"
    return text + (document if _SEPARATOR.match(document) else f"---\n{document}")
