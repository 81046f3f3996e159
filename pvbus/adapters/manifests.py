"""Reads manifests from files and folders: YAML or JSON, several documents per file."""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pvbus.adapters.files import open_plain, reason_of
from pvbus.core.errors import UsageError
from pvbus.core.yaml.reader import YamlError, documents
from pvbus.ports.cluster import Kind, Object

SUFFIXES = (".yaml", ".yml", ".json")
FILE_BYTES_MAX = 32 << 20
"""Limit of one file. Reading YAML takes about thirty times its size in memory, and a second per 2 MB."""


class Manifest(NamedTuple):
    """One object and its location.

    file: the file that has it
    document: the number of the document in the file, from 1
    object: the object
    source: its origin if that is not a user's file, such as an example
    """

    file: Path
    document: int
    object: dict[str, Any]
    source: str = ""

    @property
    def location(self) -> str:
        return f"{self.file}, document {self.document}"

    @property
    def origin(self) -> str:
        """The origin of this manifest, independent of the current folder."""
        return self.source or os.path.abspath(self.file)


class FileProblem(NamedTuple):
    """What is wrong in a manifest.

    file: the file
    document: the number of the document in the file, from 1
    object: kind and name of the object
    field: the field, for example `spec.targets[0].template`; "" for the whole object
    message: what is wrong, and what to do
    """

    file: str
    document: int
    object: str
    field: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}, document {self.document}: {self.object}"
        return f"{where}: {self.field}: {self.message}" if self.field else f"{where}: {self.message}"


def read_manifests(paths: Iterable[Path]) -> list[Manifest]:
    """Read all objects of files and (recursively) folders, in order of path; a `List` yields its items.

    Raises UsageError that names the file and the document.
    """
    found: list[Manifest] = []
    for path in paths:
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
            files = _files_below(path) if is_folder else [path]
        except FileNotFoundError as exc:
            raise UsageError(f"{path}: no such file or folder") from exc
        except (OSError, ValueError) as exc:
            raise UsageError(f"{path}: cannot be read ({reason_of(exc)})") from exc
        if not files:
            raise UsageError(f"{path}: holds no {', '.join(SUFFIXES)} file")
        for file in files:
            found += _objects(file)
    return found


def _files_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and not p.is_dir())


def read_text(file: Path, *, bytes_max: int = FILE_BYTES_MAX) -> str:
    """Read a regular text file. Raises UsageError that names the problem."""
    with open_plain(file) as stream:
        try:
            content = stream.read(bytes_max + 1)
        except OSError as exc:
            raise UsageError(f"{file}: cannot be read ({reason_of(exc)})") from exc
    if len(content) > bytes_max:
        raise UsageError(f"{file}: has more than {bytes_max >> 20} MB: split it into several files")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"{file}: is not UTF-8 text (at byte {exc.start}): convert it to UTF-8") from exc


def kind_of(obj: Object) -> Kind:
    return Kind(str(obj["apiVersion"]).rpartition("/")[0], str(obj["kind"]))


def objects_of(text: str, file: Path) -> Iterator[tuple[int, Any]]:
    """Yield the documents of a text that are not empty, with their numbers from 1. Raises UsageError."""
    try:
        for number, document in enumerate(documents(text), 1):
            if document.value is not None:
                yield number, document.value
    except YamlError as exc:
        raise UsageError(f"{file}: not valid YAML: {exc}") from exc


def _objects(file: Path) -> Iterator[Manifest]:
    for number, value in objects_of(read_text(file), file):
        for obj in value["items"] if _is_list(value) else (value,):
            problem = _problem(obj)
            if problem:
                raise UsageError(f"{file}, document {number}: {problem}")
            yield Manifest(file, number, obj)


def _is_list(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and str(document.get("kind", "")).endswith("List")
        and isinstance(document.get("items"), list)
    )


def _problem(obj: Any) -> str:
    if not isinstance(obj, dict):
        return "is no object"
    for field in ("apiVersion", "kind"):
        if not isinstance(obj.get(field), str) or not obj[field]:
            return f"has no {field}"
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return f"{obj['kind']} has no metadata.name"
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field) or {}, dict):
            return f"{obj['kind']} {metadata['name']}: metadata.{field} is no mapping"
    if not isinstance(metadata.get("namespace") or "", str):
        return f"{obj['kind']} {metadata['name']}: metadata.namespace is no text"
    return ""
