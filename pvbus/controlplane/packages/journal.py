"""Metadata of drafts that must survive a crash between git and the API server.

A draft is first pushed, then stored as an object; its owner, labels and annotations are only in the
object. They are written to a file before the push, so that a draft without an object after a crash gets
its owner back. The same is done for the package revisions of a deleted Repository: it may be recreated,
and with it the drafts that are still in git.
"""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class Note(NamedTuple):
    """A journal entry. metadata: of the PackageRevision; commit: its first during creation, else its last."""

    commit: str
    metadata: dict[str, Any]


class Journal:
    """A folder with one small file per noted draft."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._names = {path.name.removesuffix(".json") for path in folder.glob("*.json")}

    def write(self, name: str, note: Note) -> None:
        path = self._folder / f"{name}.json"
        scratch = path.with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(note))
        scratch.replace(path)
        self._names.add(name)

    def read(self, name: str) -> Note | None:
        try:
            return msgspec.json.decode((self._folder / f"{name}.json").read_bytes(), type=Note)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def drop(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(self._names)
