"""The PackageRevision objects of one Repository: what git has, with the metadata that only objects have.

An object follows its revision in git. A noted change (`journal`) that git has and the object has not is
completed with the note's metadata, so that after a crash all of a change is there, or nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import StoreError
from pvbus.controlplane.packages.journal import Journal, Note
from pvbus.controlplane.packages.revisions import RepositoryFacts, Revision, to_object
from pvbus.controlplane.packages.writes import Writes
from pvbus.ports.cluster import Object

DEFER_RENDER = "pvbus.dev/defer-render"
ERROR_CHARACTERS_MAX = 1_000  # of a logged error: it may contain a whole rejected object
_log = structlog.get_logger(__name__)


class ShownRevisions:
    """Stores the objects of a Repository's revisions. Call all methods on the event loop's thread."""

    def __init__(
        self,
        objects: Objects,
        facts: RepositoryFacts,
        journal: Journal,
        is_ancestor: Callable[[str, str], bool],
    ) -> None:
        """is_ancestor: returns whether a commit (the first) is in the history of another one."""
        self.writes = Writes(self.version)
        self._objects = objects
        self._facts = facts
        self._journal = journal
        self._is_ancestor = is_ancestor

    def get(self, name: str) -> Object | None:
        return self._objects.get(PACKAGE_REVISION, self._facts.namespace, name)

    def version(self, name: str) -> str:
        """Return an object's resourceVersion, "" if there is no object."""
        current = self.get(name)
        return str(current["metadata"].get("resourceVersion", "")) if current else ""

    def all(self) -> list[Object]:
        return [
            obj
            for obj in self._objects.list(PACKAGE_REVISION, self._facts.namespace)
            if obj["spec"].get("repository") == self._facts.name
        ]

    async def remove(self, name: str) -> None:
        await self._objects.remove(PACKAGE_REVISION, self._facts.namespace, name)

    async def put_alone(self, name: str, revision: Revision) -> None:
        """Store the object of one revision; a failure is logged and does not stop the others."""
        try:
            await self._put(name, revision)
        except StoreError:
            raise  # the disk failed: the others could not be stored, either
        except Exception as exc:  # one revision must not hide the others
            _log.error(
                "package revision not shown",
                error=str(exc)[:ERROR_CHARACTERS_MAX],
                exc_info=exc,
                revision=name,
                namespace=self._facts.namespace,
                repository=self._facts.name,
            )

    async def _put(self, name: str, revision: Revision) -> None:
        note = self._noted(name, revision)

        def changed(newest: Object) -> Object:
            metadata = newest["metadata"]
            if note is not None and note.version == metadata["resourceVersion"]:
                metadata = note.applied_to(metadata)
            return self.shown(revision, metadata)

        if self.get(name) is None:
            metadata = note.metadata if note is not None and not note.version else {}
            await self._objects.put(PACKAGE_REVISION, self.shown(revision, metadata))
        else:
            await self._objects.change(PACKAGE_REVISION, self._facts.namespace, name, changed)
        self._retire(name)

    def _noted(self, name: str, revision: Revision) -> Note | None:
        """Return the note of a change that git has."""
        note = self._journal.read(name)
        if note is None or note.lifecycle not in ("", revision.lifecycle):
            return None
        return note if self._is_ancestor(note.commit, revision.commit) else None

    def _retire(self, name: str) -> None:
        """Drop a note whose change is stored: the object has another version."""
        if self.writes.is_pending(name):
            return  # a request has just begun; it may have written another note
        note = self._journal.read(name)
        if note is None or note.version != self.version(name):
            self._journal.drop(name)

    def is_interrupted(self, obj: Object) -> bool:
        """Return whether git may have a change of this object that the object has not."""
        metadata = obj["metadata"]
        if not self._journal.is_unknown(metadata["name"]):
            return False
        note = self._journal.read(metadata["name"])
        return note is not None and note.version == metadata.get("resourceVersion", "")

    def shown(self, revision: Revision, metadata: Mapping[str, Any]) -> Object:
        """Return the PackageRevision of a revision, without the annotation of a finished deferral."""
        annotations = metadata.get("annotations") or {}
        deferred = revision.note is not None and revision.note.state == "deferred"
        if DEFER_RENDER in annotations and not deferred:
            retained = {key: value for key, value in annotations.items() if key != DEFER_RENDER}
            metadata = {key: value for key, value in metadata.items() if key != "annotations"}
            if retained:
                metadata["annotations"] = retained
        return to_object(revision, self._facts, metadata)
