"""Reads manifests from files and folders: YAML or JSON, several documents per file."""

import base64
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pvbus.adapters.files import open_plain, reason_of
from pvbus.core.errors import UsageError
from pvbus.ports.cluster import Kind, Object

SUFFIXES = (".yaml", ".yml", ".json")
FILE_BYTES_MAX = 32 << 20
"""Limit of one file. Reading YAML takes about thirty times its size in memory, and a second per 2 MB."""

VALUES_MAX = 5_000_000  # the largest file has fewer, unless its aliases are meant to expand
DEPTH_MAX = 200  # far above any Kubernetes schema; Python's own limit is a few hundred levels higher


class ManifestLoader(yaml.CSafeLoader):
    """Leaves timestamps as text, as the API server would get them."""


ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class Manifest(NamedTuple):
    """One object and its location: the file, and the number of the document from 1.

    source: its origin if that is not a user's file, such as an example.
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


def _objects(file: Path) -> Iterator[Manifest]:
    try:
        documents = list(yaml.load_all(read_text(file), Loader=ManifestLoader))
    except yaml.YAMLError as exc:
        raise UsageError(f"{file}: not valid YAML: {exc}") from exc
    except RecursionError as exc:
        raise UsageError(f"{file}: is nested too deeply") from exc
    left = VALUES_MAX
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        try:
            left -= _extent(document, {})[0]
            if left < 0:
                raise ValueError(f"written out, aliases and all, it has more than {VALUES_MAX:,} values")
            plain = _plain(document)
        except ValueError as exc:
            raise UsageError(f"{file}, document {number}: {exc}") from exc
        for obj in plain["items"] if _is_list(plain) else (plain,):
            problem = _problem(obj)
            if problem:
                raise UsageError(f"{file}, document {number}: {problem}")
            yield Manifest(file, number, obj)


def _extent(value: Any, known: dict[int, tuple[int, int]], depth: int = DEPTH_MAX) -> tuple[int, int]:
    """Return the number of values after the expansion of all aliases, and the depth of their nesting.

    known: the results for visited values, by id. Raises ValueError if the nesting is too deep or cyclic.
    """
    if not isinstance(value, dict | list):
        return 1, 0
    if (found := known.get(id(value))) is not None:
        return found
    count = height = 0
    if depth > 0:
        for part in value.values() if isinstance(value, dict) else value:
            extent = _extent(part, known, depth - 1)
            count, height = count + extent[0], max(height, extent[1])
    if depth == 0 or height >= DEPTH_MAX:
        raise ValueError(f"is nested more than {DEPTH_MAX} levels deep, or an alias holds itself")
    known[id(value)] = count + 1, height + 1
    return count + 1, height + 1


def _plain(value: Any) -> Any:
    """Return a copy without shared values and with text keys, as an API server would get it.

    Raises ValueError for values that JSON does not have.
    """
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, set | tuple):
        raise ValueError("has a set or a list of pairs, which JSON does not have: write a list or a mapping")
    return value


def _key(key: Any) -> str:
    """Return a key as JSON text: numbers, booleans and null are converted."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise ValueError(f"has a key that is no text: {key!r}")


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
