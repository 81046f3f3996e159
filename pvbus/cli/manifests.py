"""Manifests from files and folders: YAML or JSON, many documents to a file."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pvbus.errors import UsageError

SUFFIXES = (".yaml", ".yml", ".json")


class ManifestLoader(yaml.CSafeLoader):
    """Reads timestamps as the text they are, as the API server would get them."""


ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class Manifest(NamedTuple):
    """One object and where it stands: file, and number of the document from 1."""

    file: Path
    document: int
    object: dict[str, Any]

    @property
    def place(self) -> str:
        return f"{self.file}, document {self.document}"


def read_manifests(paths: Iterable[Path]) -> list[Manifest]:
    """Read all objects of files and (recursively) folders, in order of path; `List`s are opened.

    Raises UsageError that names the file and document.
    """
    found: list[Manifest] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
        if not files:
            raise UsageError(f"{path}: holds no {', '.join(SUFFIXES)} file")
        for file in files:
            found += _objects(file)
    return found


def _objects(file: Path) -> Iterator[Manifest]:
    try:
        documents = list(yaml.load_all(file.read_text(encoding="utf-8"), Loader=ManifestLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise UsageError(f"{file}: not valid YAML: {exc}") from exc
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        for obj in document.get("items", ()) if _is_list(document) else (document,):
            problem = _problem(obj)
            if problem:
                raise UsageError(f"{file}, document {number}: {problem}")
            yield Manifest(file, number, obj)


def _is_list(document: Any) -> bool:
    return (
        isinstance(document, dict) and str(document.get("kind", "")).endswith("List") and "items" in document
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
    return ""
