"""Records in the data folder which manifests were applied, and from which files.

A manifest is applied if it is new, or if its content differs from the content that was last applied from the
same file. A restart does not apply it again, so later edits with kubectl stay. The record belongs to one API
server: a new one, for example after its data were removed, starts with an empty record.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pvbus.adapters.files import check_seal, own_file, sealed, write_private
from pvbus.adapters.manifests import Manifest
from pvbus.core.errors import PermanentError, UsageError
from pvbus.ports.cluster import Object

FORMAT = 1
_REMEDY = (
    "it is the record of what was applied: start without PATH and --example; or remove it: then everything "
    "is applied again, and takes back edits made with kubectl"
)
News = Literal["new", "changed", "same"]
_encoder = msgspec.json.Encoder(order="sorted")


class AppliedEntry(msgspec.Struct, rename="camel"):
    """One object that was applied.

    kind: its kind
    namespace: its namespace, "" for none
    name: its name
    sources: file -> digest of the manifest in it, empty if no file contains the object any more
    last: the digest of the manifest that was applied last
    last_source: the file of that manifest
    labels: the keys that this manifest set, so that keys which it drops later can be removed
    annotations: likewise the keys of annotations
    """

    kind: str
    namespace: str
    name: str
    sources: dict[str, str] = {}
    last: str = ""
    last_source: str = ""
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class _Document(msgspec.Struct, rename="camel"):
    format: int
    cluster: str
    objects: dict[str, AppliedEntry]
    seal: str = ""


_decoder = msgspec.json.Decoder(_Document)


def identity(obj: Object) -> str:
    """Return an object's identity: group, kind, namespace (or "default") and name, but not the version."""
    group = str(obj["apiVersion"]).rpartition("/")[0]
    namespace = obj["metadata"].get("namespace") or "default"
    return f"{group}/{obj['kind']}|{namespace}|{obj['metadata']['name']}"


def name_of(obj: Object) -> str:
    """Return an object's kind and name, for messages."""
    namespace, name = obj["metadata"].get("namespace"), obj["metadata"]["name"]
    return f"{obj['kind']} {namespace}/{name}" if namespace else f"{obj['kind']} {name}"


def digest(obj: Object) -> str:
    return hashlib.sha256(_encoder.encode(obj)).hexdigest()[:32]


def distinct(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Leave out repetitions. Raises UsageError if manifests of one object differ."""
    found: dict[str, Manifest] = {}
    problems = []
    for manifest in manifests:
        first = found.setdefault(identity(manifest.object), manifest)
        if first is not manifest and digest(first.object) != digest(manifest.object):
            name = name_of(manifest.object)
            problems.append(
                f"{manifest.location}: {name} differs from {first.location}: leave one of them out"
            )
    if problems:
        raise UsageError("manifests contradict each other:\n  " + "\n  ".join(problems))
    return list(found.values())


class AppliedRecord:
    """The record of a data folder. Changes are on disk after `save`, all of them or none."""

    def __init__(self, path: Path, objects: dict[str, AppliedEntry], cluster: str) -> None:
        self._path = path
        self._cluster = cluster
        self._objects = objects
        self._written = b""

    @classmethod
    def open(cls, path: Path, cluster: str) -> "AppliedRecord":
        """Read the record of this API server. Raises PermanentError if it is damaged.

        cluster: identifies the API server; the record of another one is ignored.
        """
        with own_file(path, _REMEDY):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return cls(path, {}, cluster)
            document = _decoder.decode(content)
            check_seal(content)
        if document.format != FORMAT:
            raise PermanentError(
                f"{path} has format {document.format}, this pvbus reads {FORMAT}: start with the pvbus that "
                "wrote it, or without PATH and --example",
                reason="DataFolder",
            )
        return cls(path, document.objects if document.cluster == cluster else {}, cluster)

    def save(self) -> None:
        """Write the record. Raises PermanentError."""
        document = _Document(format=FORMAT, cluster=self._cluster, objects=self._objects)
        content = sealed(msgspec.json.format(_encoder.encode(document), indent=1) + b"\n")
        if content == self._written:
            return
        try:
            write_private(self._path, content)
        except OSError as exc:
            raise PermanentError(
                f"{self._path}, the record of what was applied, cannot be written ({exc.strerror}): make "
                "room or give yourself the right to write there, and start again",
                reason="DataFolder",
            ) from exc
        self._written = content

    def news(self, manifest: Manifest) -> News:
        """Return whether a manifest is new, or differs from the content last applied from its file.

        A renamed file, or a second file with the same content, is not a change.
        """
        entry = self._objects.get(identity(manifest.object))
        if entry is None or not entry.sources:
            return "new"
        found = digest(manifest.object)
        return "same" if found == entry.sources.get(manifest.origin, entry.last) else "changed"

    def former(self, manifest: Manifest) -> AppliedEntry | None:
        return self._objects.get(identity(manifest.object))

    def superseded(self, manifest: Manifest) -> str:
        """Return the file from which different content was applied since this one, "" if there is none."""
        entry = self._objects.get(identity(manifest.object))
        is_so = entry is not None and entry.last != digest(manifest.object)
        return entry.last_source if entry is not None and is_so else ""

    def note(self, manifest: Manifest) -> None:
        """Record that a manifest was applied just now."""
        metadata = manifest.object["metadata"]
        entry = self._entry(manifest)
        entry.last = entry.sources[manifest.origin] = digest(manifest.object)
        entry.last_source = manifest.origin
        entry.labels = tuple(sorted(metadata.get("labels") or ()))
        entry.annotations = tuple(sorted(metadata.get("annotations") or ()))

    def note_same(self, manifest: Manifest) -> None:
        """Record a file whose content was applied before."""
        self._entry(manifest).sources[manifest.origin] = digest(manifest.object)

    def _entry(self, manifest: Manifest) -> AppliedEntry:
        obj = manifest.object
        namespace = obj["metadata"].get("namespace") or ""
        made = AppliedEntry(kind=obj["kind"], namespace=namespace, name=obj["metadata"]["name"])
        return self._objects.setdefault(identity(obj), made)

    def left(self, manifests: Sequence[Manifest], scope: Sequence[str]) -> Mapping[str, AppliedEntry]:
        """Return the objects, by identity, that came from these files and folders and are gone from them.

        Their files are removed from the record, so that such an object is new when it comes back.
        """
        present: dict[str, set[str]] = {}
        for manifest in manifests:
            present.setdefault(identity(manifest.object), set()).add(manifest.origin)
        found = {}
        for key, entry in self._objects.items():
            for source in [source for source in entry.sources if _is_within(source, scope)]:
                if source not in present.get(key, ()):
                    del entry.sources[source]
            if not entry.sources and key not in present and _is_within(entry.last_source, scope):
                found[key] = entry
        return found

    def forget(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._objects.pop(key, None)


def _is_within(source: str, scope: Sequence[str]) -> bool:
    return any(
        source == location or source.startswith(location.rstrip(os.sep) + os.sep) for location in scope
    )
