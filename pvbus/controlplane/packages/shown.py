"""The PackageRevision objects of one Repository: what git has, with the metadata that only objects have.

An object follows its revision in git. A noted change (`journal`) that git has and the object has not is
completed with the note's metadata, so that after a crash all of a change is there, or nothing. The sync does
not write objects that a request is writing (`Writes`).
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import StaleError, StoreError
from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.journal import IsAncestor, Notes
from pvbus.controlplane.packages.revisions import RepositoryFacts, Revision, to_object
from pvbus.ports.cluster import Object
from pvbus.telemetry.structured import structlog

PENDING_SECONDS = 5.0
"""How long after a request's response its object may be stored; after that, git decides."""


class _Pending(NamedTuple):
    """An object that a request is about to write.

    resource_version: its resourceVersion before the write, "" if there was no object
    until: when the reservation ends, in seconds of the monotonic clock
    """

    resource_version: str
    until: float


class Writes:
    """The pending writes of one Repository. Call all methods on the event loop's thread."""

    def __init__(self, version: Callable[[str], str]) -> None:
        """Know of no write yet.

        version: returns the resourceVersion of an object by name, "" if there is none
        """
        self._version = version
        self._pending: dict[str, _Pending] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Reserve an object for a request's write, until the server has stored it."""
        self._pending[name] = _Pending(self._version(name), float("inf"))
        try:
            yield
        except BaseException:
            self.end_write(name)
            raise
        self._pending[name] = self._pending[name]._replace(until=time.monotonic() + PENDING_SECONDS)

    def end_write(self, name: str) -> None:
        """End a write: the object will not change any more."""
        self._pending.pop(name, None)

    async def await_stored(self, name: str) -> None:
        """Wait until an earlier request's object is stored."""
        # The server's own write ends the wait, and it sends no notification.
        while self.is_pending(name):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)

    def is_pending(self, name: str) -> bool:
        pending = self._pending.get(name)
        if pending is None:
            return False
        if self._version(name) == pending.resource_version and time.monotonic() < pending.until:
            return True
        if pending.until == float("inf"):
            return True
        del self._pending[name]
        return False


DEFER_RENDER = "pvbus.dev/defer-render"
ERROR_CHARACTERS_MAX = 1_000  # of a logged error: it may contain a whole rejected object
_log = structlog.get_logger(__name__)


class ShownRevisions:
    """Stores the objects of a Repository's revisions. Call all methods on the event loop's thread.

    mark: the position of other writers before git was read last; what they have written since may be newer
        than git
    """

    def __init__(
        self,
        objects: Objects,
        facts: RepositoryFacts,
        journal: Notes,
        is_ancestor: IsAncestor,
    ) -> None:
        self.mark = 0
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

    def may_write(self, name: str) -> bool:
        """Return whether the last read of git may decide on an object.

        It may not if another replica is changing the object, or has written it since.
        """
        return not self._journal.is_held(name) and self._journal.is_unchanged_since(name, self.mark)

    async def remove(self, name: str) -> bool:
        """Remove an object that git has not; return whether that must wait until git is read again."""
        if not self.may_write(name):
            return True
        try:
            await self._objects.remove(PACKAGE_REVISION, self._facts.namespace, name)
        except StaleError:
            return True
        return False

    async def put_alone(self, name: str, revision: Revision) -> bool:
        """Store the object of one revision; a failure is logged and does not stop the others.

        Return whether it must wait until git is read again.
        """
        try:
            return await self._put(name, revision)
        except StaleError:
            return True
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
            return False

    async def _put(self, name: str, revision: Revision) -> bool:
        present = self.get(name)
        note = self._journal.applied(name, revision, self._is_ancestor)
        if note is None and present is not None and self.shown(revision, present["metadata"]) == present:
            self._retire(name)
            return False
        if not self.may_write(name):
            return True

        def changed(newest: Object) -> Object:
            metadata = newest["metadata"]
            if note is not None and note.version == metadata["resourceVersion"]:
                metadata = note.applied_to(metadata)
            return self.shown(revision, metadata)

        if present is None:
            metadata = note.metadata if note is not None and not note.version else {}
            await self._objects.put(PACKAGE_REVISION, self.shown(revision, metadata))
        else:
            await self._objects.change(PACKAGE_REVISION, self._facts.namespace, name, changed)
        self._retire(name)
        return False

    def _retire(self, name: str) -> None:
        """Drop a note whose change is stored: the object has another version."""
        if self.writes.is_pending(name):
            return  # a request has just begun; it may have written another note
        if self._journal.version_noted(name) != self.version(name):
            self._journal.drop(name)

    def is_interrupted(self, obj: Object) -> bool:
        """Return whether git may have a change of this object that the object has not."""
        metadata = obj["metadata"]
        if not self._journal.is_unknown(metadata["name"]):
            return False
        version: str = metadata.get("resourceVersion", "")
        return self._journal.version_noted(metadata["name"]) == version

    def agree(self, obj: Object, revision: Revision | None) -> bool:
        """Return whether an object shows a revision as it is in the mirror."""
        if revision is None:
            return False
        lock = (obj.get("status", {}).get("selfLock") or {}).get("git") or {}
        labels = obj["metadata"].get("labels") or {}
        return (lock.get("commit"), obj["spec"].get("lifecycle"), layout.LATEST_LABEL in labels) == (
            revision.commit,
            revision.lifecycle,
            revision.latest,
        )

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
