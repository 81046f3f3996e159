"""The cluster port: the part of the Kubernetes API that the services use.

Objects are plain JSON values (`dict`), as the API server sends them, unless `metadata_only` asks
for PartialObjectMetadata. Errors are those of `pvbus.core.errors`: 404 is None where a value is
returned; ConflictError (409, failed precondition; AlreadyExistsError for a create);
PermanentError (400, 403, 405, 413, 422, business rules; `reason` is the Status reason); an update of a
missing object is a ConflictError, too;
TransientError (401, 429, 5xx, timeouts, connection; `retry_after_seconds` from Retry-After).
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from pvbus.core.errors import TransientError
from pvbus.core.kernel.kinds import Kind as Kind
from pvbus.core.kernel.records import Coverage

Object = dict[str, Any]


class Resource(NamedTuple):
    """A served kind.

    group: its API group, "" for the core group
    version: its preferred version, or the requested one
    kind: its kind
    plural: its name in paths
    namespaced: whether its objects have namespaces
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class Listing(NamedTuple):
    """A complete, consistent list.

    resource_version: where a following watch starts, "" if none can
    items: the objects
    coverage: the namespaces that the list is complete for
    """

    resource_version: str
    items: list[Object]
    coverage: Coverage = Coverage()


class WatchEvent(NamedTuple):
    """One event of a watch.

    type: what happened to the object
    object: the object after it; of a BOOKMARK its metadata only
    position: where a following watch starts; "" if that is the resourceVersion of the object
    """

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Object
    position: str = ""


class GoneError(Exception):
    """The watch cannot continue from its resourceVersion (410): list again."""


class SilentError(TransientError):
    """A running watch received nothing for so long that its connection may be dead."""


class Reader(Protocol):
    """The reading part of one API server."""

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        """Return the resource of a kind, None if it is not served. Cached until `forget_resources`."""
        ...

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        """Return the served versions of a kind, preferred one first; () if it is not served."""
        ...

    def forget_resources(self) -> None:
        """Drop cached discovery: a CustomResourceDefinition changed."""
        ...

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        is_followed: bool = False,
        keep: Callable[[Object], Object] | None = None,
    ) -> Listing:
        """List everything or nothing, as a consistent read (never resourceVersion=0).

        is_followed: whether a watch follows, so that the caller may watch the kind: the list may be a stream.
        keep: returns what the listing has in place of an object, None for the object. It is called as soon as
            the object is read: whole lists as JSON values take some ten times the bytes that were sent.
        """
        ...

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        """Watch one or all namespaces from a resourceVersion on, with bookmarks.

        Ends when the server ends the stream. Raises GoneError on 410. Raises SilentError if nothing came
        for longer than the bookmark interval.
        """
        ...

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read one object, consistently. None only if the server reports that this object does not exist."""
        ...


class Cluster(Reader, Protocol):
    """One API server."""

    def acting(self, *, as_user: str = "", is_dry_run: bool = False) -> "Cluster":
        """Return a cluster whose writes differ; do not close it.

        as_user: in whose name the writes are, "" for our own; the API server gives a ServiceAccount its
            groups
        is_dry_run: whether the API server only checks. It checks a create or an update in full and answers
            with the object that it would store. A delete only reports whether there is such an object.
        """
        ...

    async def create(self, resource: Resource, obj: Object) -> Object: ...

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        """PUT. metadata.resourceVersion is the precondition."""
        ...

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Object:
        """JSON merge patch; metadata.resourceVersion (and uid) in it are preconditions."""
        ...

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
    ) -> bool:
        """Delete with preconditions; return False if there was no such object."""
        ...

    async def close(self) -> None: ...
