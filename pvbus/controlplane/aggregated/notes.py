"""The notes of changes under way, in the PackageRevs: every replica reads them, and finishes what another
one has begun and cannot finish.

A change is noted before anything is pushed, so the note does not know its commit. Git has the change if the
revision is not any more what the object shows.
"""

from contextlib import suppress

from pvbus.controlplane.aggregated import packagerevs
from pvbus.controlplane.aggregated.store import ClusterStore
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import StaleError, UnavailableError
from pvbus.controlplane.packages import answers
from pvbus.controlplane.packages.journal import IsAncestor, Note
from pvbus.controlplane.packages.revisions import Revision
from pvbus.ports.cluster import Object


class ClusterNotes:
    """The `Notes` of one Repository."""

    is_shared = True

    def __init__(self, store: ClusterStore, namespace: str, repository: str) -> None:
        self._store = store
        self._namespace = namespace
        self._repository = repository
        self._own: dict[str, str] = {}

    def _key(self, name: str) -> tuple[str, str]:
        return self._namespace, name

    def _change(self, name: str) -> packagerevs.Change | None:
        rev = self._store.rev(self._key(name))
        return packagerevs.change_of(rev) if rev is not None else None

    # Changes under way.

    async def reserve(self, name: str, note: Note) -> None:
        try:
            self._own[name] = await self._store.begin(self._key(name), self._repository, note)
        except StaleError as exc:
            raise answers.modified(name) from exc
        except UnavailableError as exc:
            raise answers.unavailable(str(exc)) from exc

    async def release(self, name: str, *, is_noted: bool) -> None:
        reservation = self._own.pop(name, "")
        if reservation:
            with suppress(UnavailableError):  # it ends when it counts as abandoned
                await self._store.end(self._key(name), reservation)

    def interrupt(self, name: str) -> None:
        self._own.pop(name, None)
        self._store.interrupt(self._key(name))

    def write(self, name: str, note: Note) -> None:
        """Do nothing: the change was noted when it was reserved."""

    def drop(self, name: str) -> None:
        """Do nothing: the write of the object has ended the change."""
        self._own.pop(name, None)

    def open(self) -> None:
        """Do nothing: the notes are in the cluster."""

    def names(self) -> list[str]:
        return []

    def version_noted(self, name: str) -> str | None:
        change = self._change(name)
        return change.version if change is not None else None

    def applied(self, name: str, revision: Revision, is_ancestor: IsAncestor) -> Note | None:
        rev = self._store.rev(self._key(name))
        if rev is None:
            return None
        change, shown = packagerevs.change_of(rev), packagerevs.shown(rev)
        if change is None:
            # It was hidden with its Repository, or Porch's server made it.
            return Note("", dict(packagerevs.kept_metadata(rev))) if shown is None else None
        if change.note.lifecycle not in ("", revision.lifecycle):
            return None
        if shown is not None and _position(shown) == (revision.commit, revision.lifecycle):
            return None
        return change.note

    def interrupted(self) -> list[str]:
        return [
            name
            for namespace, name in self._store.abandoned()
            if namespace == self._namespace and self._repository_of(name) == self._repository
        ]

    def _repository_of(self, name: str) -> str:
        rev = self._store.rev(self._key(name))
        return packagerevs.repository_of(rev) if rev is not None else ""

    def is_unknown(self, name: str) -> bool:
        return self._change(name) is not None

    def is_held(self, name: str) -> bool:
        return self._store.is_held(self._key(name))

    async def settle(self, name: str, *, is_in_git: bool) -> None:
        if self._change(name) is None:
            return
        if is_in_git:
            await self._store.end(self._key(name))
        else:
            await self._store.discard(PACKAGE_REVISION, self._key(name))

    def remote_read(self) -> None:
        """Do nothing: a change that git had not got has ended, and a late push is followed like any other."""

    # Objects of a Repository that is gone.

    async def retain(self, obj: Object) -> bool:
        await self._store.withdraw(self._key(obj["metadata"]["name"]))
        return True

    def hidden(self) -> list[str]:
        return [
            name
            for (namespace, name), rev in self._store.revs().items()
            if namespace == self._namespace
            and packagerevs.is_withdrawn(rev)
            and packagerevs.repository_of(rev) == self._repository
        ]

    # Other replicas.

    def mark(self) -> int:
        return self._store.rv

    def is_unchanged_since(self, name: str, mark: int) -> bool:
        return self._store.is_followed_since(self._key(name), mark)


def _position(obj: Object) -> tuple[str, str]:
    lock = (obj.get("status", {}).get("selfLock") or {}).get("git") or {}
    return str(lock.get("commit", "")), str((obj.get("spec") or {}).get("lifecycle", ""))
