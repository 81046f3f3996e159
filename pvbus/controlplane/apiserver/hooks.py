"""The interfaces of kinds with behaviour of their own, and of the store that they may use.

Most kinds are stored as they are written. PackageRevisions are stored too, but every write first calls hooks
that do the git work. PackageRevisionResources are not stored at all: they are read from git on demand. The
package store implements both, and reads and writes its objects through `Objects`, which bypasses the hooks.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from pvbus.ports.cluster import Kind, Object, WatchEvent


class StatusError(Exception):
    """An error answer of the API server, a metav1.Status.

    code: the HTTP status
    reason: Kubernetes' reason (NotFound, Conflict, AlreadyExists, Invalid, ...)
    message: the text for the client
    causes: field errors as (field path, reason, message)
    details: further fields of the details of the Status, None for none
    retry_after_seconds: sent as Retry-After, None for none
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: tuple[tuple[str, str, str], ...] = (),
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes
        self.details = details
        self.retry_after_seconds = retry_after_seconds


class KindHooks(Protocol):
    """Behaviour of a stored kind. Every method may raise StatusError; then nothing is stored.

    Hooks for one object never run concurrently. The checks of fields and metadata that hold for every kind
    come first; the returned object is stored and sent.
    """

    async def on_create(self, obj: Object, *, user: str) -> Object:
        """Return the object to store; the hook may choose metadata.name and uid."""
        ...

    async def on_update(self, old: Object, new: Object, *, subresource: str, user: str) -> Object:
        """Return the object to store; nothing is written if it equals `old`."""
        ...

    async def on_delete(self, obj: Object, *, user: str) -> None:
        """Check that this object may be deleted, before any change to it."""
        ...

    async def on_removed(self, obj: Object) -> None:
        """Undo the effects of `on_create`: the last finalizer is gone, and the object is removed next."""
        ...


class VirtualKind(Protocol):
    """A kind that is not stored: no create, no delete, no watch."""

    async def get(self, namespace: str, name: str) -> Object | None: ...

    async def list(self, namespace: str | None) -> list[Object]: ...

    async def update(self, obj: Object, *, user: str) -> Object: ...


class Objects(Protocol):
    """The stored objects, for hooks and background tasks inside the server's process."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the committed object; the caller must not change it.

        It lacks writes that are not durable yet, so an object derived from it must not be `put` back.
        """
        ...

    def list(self, kind: Kind, namespace: str | None = None) -> list[Object]: ...

    def watch(self, kind: Kind) -> AsyncIterator[WatchEvent]:
        """Yield every present object as ADDED, then a BOOKMARK, then changes as they happen."""
        ...

    async def put(self, kind: Kind, obj: Object) -> Object:
        """Create or replace an object, without hooks, validation and resourceVersion checks.

        Keeps the uid and creationTimestamp of an existing object; an equal object is not written. Returns
        once the write is durable and visible. Raises: StoreError; StaleError where others write the same
        objects, and this one was just written.
        """
        ...

    async def change(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], Object]
    ) -> Object | None:
        """Replace an object by the result of `change` on its newest version; None if there is none.

        Like `put`, but without losing concurrent writes.

        change: called at once; it must not change its argument
        """
        ...

    async def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object at once, regardless of finalizers, without hooks."""
        ...

    async def refresh(self, kind: Kind, namespace: str, name: str) -> None:
        """Make `get` of this object as new as this call, where others write the same objects."""
        ...
