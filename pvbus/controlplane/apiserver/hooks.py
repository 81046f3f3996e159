"""What a kind's own behaviour looks like to the API server, and what such behaviour may use.

Most kinds are stored as they are written. PackageRevisions are stored too, but every write goes
through hooks that do the git work first. PackageRevisionResources are not stored at all: they are
made from git when asked for. The package store implements both and reads and writes its objects
through `Objects`, which goes past the hooks.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from pvbus.ports.cluster import Kind, Object, WatchEvent


class StatusError(Exception):
    """An answer of the API server that is a metav1.Status.

    code: HTTP status; reason: Kubernetes' word (NotFound, Conflict, AlreadyExists, Invalid, ...);
    causes: field errors as (field path, reason, message); retry_after_seconds: sent as Retry-After.
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
    """Behaviour of a stored kind. Each may raise StatusError; then nothing is stored.

    One object is never in two hooks at once. Field and metadata checks that hold for every kind
    were done before; the returned object is what is stored and sent.
    """

    async def on_create(self, obj: Object, *, user: str) -> Object:
        """Return the object as it is to be stored; the hook may choose metadata.name and uid."""
        ...

    async def on_update(self, old: Object, new: Object, *, subresource: str, user: str) -> Object:
        """Return what is stored. Equal to `old`: nothing is written."""
        ...

    async def on_delete(self, obj: Object) -> None:
        """Check, before anything happens to it, that this object may be deleted."""
        ...

    async def on_removed(self, obj: Object) -> None:
        """The last finalizer is gone: undo what on_create made, before the object disappears."""
        ...


class VirtualKind(Protocol):
    """A kind that is not stored: no create, no delete, no watch."""

    async def get(self, namespace: str, name: str) -> Object | None: ...

    async def list(self, namespace: str | None) -> list[Object]: ...

    async def update(self, obj: Object, *, user: str) -> Object: ...


class Objects(Protocol):
    """The stored objects, for hooks and background tasks inside the server's process."""

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object as everybody sees it; the caller must not change it.

        A write that is not durable yet is not in it: what is made from it must not be `put` back.
        """
        ...

    def list(self, kind: Kind, namespace: str | None = None) -> list[Object]: ...

    def watch(self, kind: Kind) -> AsyncIterator[WatchEvent]:
        """Yield every present object as ADDED, then a BOOKMARK, then changes as they happen."""
        ...

    async def put(self, kind: Kind, obj: Object) -> Object:
        """Create or replace, past hooks, validation and resourceVersion checks.

        Keeps uid and creationTimestamp of what is there; an equal object is not written. Returns
        once it is durable and visible.
        """
        ...

    async def change(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], Object]
    ) -> Object | None:
        """Replace an object by what `change` makes of its newest version; None where there is none.

        As `put`, but no write of anybody else is lost. change: is called at once, and must not change
        what it gets.
        """
        ...

    async def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove at once, finalizers or not, past hooks."""
        ...
