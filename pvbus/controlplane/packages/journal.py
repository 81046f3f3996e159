"""Metadata of package revisions that must survive a crash between git and the API server.

A change is first pushed, then stored in the object; labels, annotations, owners and finalizers are only in
the object. They are written to a file before the push. After a crash git shows whether the push was done: if
so, the object gets the metadata that belongs to it, else it stays as it was. The same is done for the package
revisions of a deleted Repository: it may be recreated, and with it the drafts that are still in git.

A file survives the end of the process; it is not synced to the disk, so a power failure may lose it.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from pvbus.controlplane.packages.revisions import Revision
from pvbus.ports.cluster import Object
from pvbus.telemetry.structured import structlog

_log = structlog.get_logger(__name__)

METADATA = ("labels", "annotations", "ownerReferences", "finalizers")
"""The fields of an object's metadata that a note has."""

LATE_PUSH_SECONDS = 600.0
"""How long after a restart a push of before may still be done: the remote's hooks go on after a kill, and so
does git. If it is shorter, such a change has no metadata; if it is longer, an interrupted change is completed
by someone who does the same by hand."""


class Note(NamedTuple):
    """A journal entry: a change of a PackageRevision.

    commit: the revision's commit after the change, or an earlier one of its history
    metadata: the object's metadata after the change
    lifecycle: the revision's lifecycle after the change, "" for any
    version: the object's resourceVersion before the change, "" if there was no object
    """

    commit: str
    metadata: dict[str, Any]
    lifecycle: str = ""
    version: str = ""

    def applied_to(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object's metadata after the change.

        metadata: the object's metadata before the change
        """
        others = {key: value for key, value in metadata.items() if key not in METADATA}
        return {**others, **self.metadata}


def noted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an object's metadata for a note."""
    return {key: metadata[key] for key in METADATA if key in metadata}


IsAncestor = Callable[[str, str], bool]
"""Returns whether a commit (the first) is in the history of another one."""


class Notes(Protocol):
    """The notes of one Repository, and what other writers of the same objects must know of them."""

    async def reserve(self, name: str, note: Note) -> None:
        """Begin a change of a revision, before anything is pushed. Raises: StatusError."""
        ...

    async def release(self, name: str, *, is_noted: bool) -> None:
        """End a change that was not made.

        is_noted: whether `write` was called for it
        """
        ...

    def interrupt(self, name: str) -> None:
        """Record that the answer to the push of a change was lost."""
        ...

    def write(self, name: str, note: Note) -> None:
        """Note a change that is pushed next; may be called in any thread."""
        ...

    def drop(self, name: str) -> None:
        """Remove the note of a change that is stored."""
        ...

    def open(self) -> None:
        """Read the notes again: another user of them has ended."""
        ...

    def names(self) -> list[str]: ...

    def version_noted(self, name: str) -> str | None:
        """Return the resourceVersion before the noted change, None without a note."""
        ...

    def applied(self, name: str, revision: Revision, is_ancestor: IsAncestor) -> Note | None:
        """Return the note of a change that git has: `revision` is the result."""
        ...

    def interrupted(self) -> list[str]:
        """Return the changes that the remote may have, or may still get, and that nobody works on."""
        ...

    def is_unknown(self, name: str) -> bool:
        """Return whether it is not known yet if the remote has a change."""
        ...

    def is_held(self, name: str) -> bool:
        """Return whether another process is changing a revision just now."""
        ...

    async def settle(self, name: str, *, is_in_git: bool) -> None:
        """End an interrupted change that git has not got.

        is_in_git: whether git has the revision at all
        """
        ...

    def remote_read(self) -> None:
        """Record that the remote was read and its changes were applied."""
        ...

    async def retain(self, obj: Object) -> bool:
        """Keep the metadata of an object whose Repository is gone; return whether it is hidden already."""
        ...

    def hidden(self) -> list[str]:
        """Return the names of such objects."""
        ...

    # Where several processes write the same objects.

    @property
    def is_shared(self) -> bool: ...

    def mark(self) -> int:
        """Return the present position in the order of all writes."""
        ...

    def is_unchanged_since(self, name: str, mark: int) -> bool:
        """Return whether nobody wrote an object after a mark: git, read after it, is not older."""
        ...


class Journal:
    """A folder with one small file per noted change, the last of each revision.

    A note goes through these steps: `write` before the push; `drop` once the object is stored, or if nothing
    was pushed (`release`). A change is interrupted if its push got no answer, or if its process ended. Then
    `_interrupted` has the time, on the monotonic clock, until which the remote may still get the change:
    infinity until the remote was read once (`remote_read`), then `LATE_PUSH_SECONDS` more. The note is
    dropped at the first read after that time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._names: set[str] = set()
        self._interrupted: dict[str, float] = {}
        self.open()

    def open(self) -> None:
        """Read which notes there are: of changes that a previous process did not finish."""
        self._names = {path.name.removesuffix(".json") for path in self._folder.glob("*.json")}
        self._interrupted = dict.fromkeys(self._names, math.inf)

    def write(self, name: str, note: Note) -> None:
        path = self._folder / f"{name}.json"
        scratch = path.with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(note))
        scratch.replace(path)
        self._names.add(name)

    def read(self, name: str) -> Note | None:
        if name not in self._names:
            return None
        path = self._folder / f"{name}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Note)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as exc:
            aside = path.with_suffix(".damaged")
            _log.error(
                "the note of an interrupted change is damaged; it is set aside: compare labels, annotations, "
                "owners and finalizers of the package revision with it",
                revision=name,
                file=str(aside),
                error=str(exc),
            )
            with suppress(OSError):
                path.rename(aside)
            return None

    def drop(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            self._interrupted.pop(name, None)
            (self._folder / f"{name}.json").unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(self._names)

    def version_noted(self, name: str) -> str | None:
        note = self.read(name)
        return note.version if note is not None else None

    def applied(self, name: str, revision: Revision, is_ancestor: IsAncestor) -> Note | None:
        note = self.read(name)
        if note is None or note.lifecycle not in ("", revision.lifecycle):
            return None
        return note if is_ancestor(note.commit, revision.commit) else None

    async def retain(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        commit = ((obj.get("status", {}).get("selfLock") or {}).get("git") or {}).get("commit", "")
        if commit and not metadata.get("deletionTimestamp"):
            await asyncio.to_thread(self.write, metadata["name"], Note(commit, metadata))
        return False

    # Only this process writes the objects, and the server calls the hooks of one object one by one.

    is_shared = False

    async def reserve(self, name: str, note: Note) -> None:
        """Do nothing: no other process writes."""

    async def release(self, name: str, *, is_noted: bool) -> None:
        if is_noted:
            self.drop(name)

    def is_held(self, name: str) -> bool:
        return False

    async def settle(self, name: str, *, is_in_git: bool) -> None:
        """Do nothing: the push may come late, and the next start reads the note again."""

    def hidden(self) -> list[str]:
        return []

    def mark(self) -> int:
        return 0

    def is_unchanged_since(self, name: str, mark: int) -> bool:
        return True

    # Interrupted changes: nobody knows whether the remote has them.

    def interrupt(self, name: str) -> None:
        """Record that the answer to the push of a noted change was lost."""
        if name in self._names:
            self._interrupted[name] = math.inf

    def interrupted(self) -> list[str]:
        """Return the changes that the remote may have, or may still get."""
        return sorted(self._interrupted)

    def is_unknown(self, name: str) -> bool:
        """Return whether the remote was not read since a change was interrupted."""
        return self._interrupted.get(name) == math.inf

    def remote_read(self) -> None:
        """Record that the remote was read and its changes were applied.

        A change that the remote has not got may still come late.
        """
        now = time.monotonic()
        for name, until in list(self._interrupted.items()):
            if until == math.inf:
                self._interrupted[name] = now + LATE_PUSH_SECONDS
            elif until < now:
                self.drop(name)
