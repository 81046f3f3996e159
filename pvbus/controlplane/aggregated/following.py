"""Follows one kind in the cluster: a list, then a watch, and again whenever the watch cannot continue.

Two rules make it safe to act on what is missing. Only a complete list counts. And an object that a list lacks
is read by its name before it is reported as deleted: a server that restores a backup, or serves another
version for a while, must not delete anything here.
"""

import asyncio
from collections.abc import Callable, Sequence

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.ports.cluster import Cluster, GoneError, Kind, Object, Resource, WatchEvent
from pvbus.telemetry.structured import structlog

RETRY_SECONDS = (0.2, 15.0)
"""Shortest and longest wait after a failure: a restarting API server is away for seconds, and each replica
asks it again this often."""

_log = structlog.get_logger(__name__)
Key = tuple[str, str]

Sink = Callable[[Sequence[WatchEvent], str, bool], None]
"""Gets changes in order, the resourceVersion after them, and whether a list was their source: then the states
in between are not known."""


class Follower:
    """The present objects of one kind. `run` runs until it is cancelled.

    `_known` has the objects that were reported, so that a new list is reported as changes; `_at` is where the
    watch continues, "" to list again.

    listed: set after the first complete list
    problem: why the objects may be outdated, "" if they are not
    """

    def __init__(
        self, cluster: Cluster, kind: Kind, sink: Sink, *, jitter: Jitter, metadata_only: bool = False
    ) -> None:
        """Follow nothing until `run`.

        sink: called with every change, and for a bookmark with no change
        metadata_only: whether the objects are read without their content
        """
        self.kind = kind
        self.listed = asyncio.Event()
        self.problem = "it has not been listed yet"
        self._cluster = cluster
        self._sink = sink
        self._metadata_only = metadata_only
        self._backoff = Backoff(*RETRY_SECONDS, jitter)
        self._known: dict[Key, Object] = {}
        self._at = ""

    async def run(self) -> None:
        """Follow the kind forever; failures are in `problem` until they are over."""
        while True:
            try:
                resource = await self.resource()
                if not self._at:
                    await self._list(resource)
                await self._watch(resource)  # until the server ends the stream: the next one continues there
            except GoneError:
                self._at = ""
            except (TransientError, PermanentError, ConflictError) as exc:
                await self._note_failure(exc)
            await asyncio.sleep(0)

    async def resource(self) -> Resource:
        """Return the served resource. Raises: PermanentError if its definition is not installed."""
        found = await self._cluster.resource(self.kind)
        if found is None:
            self._cluster.forget_resources()
            raise PermanentError(
                f"the API server does not serve {self.kind.kind}.{self.kind.group}: install pvbus's "
                "CustomResourceDefinitions (kubectl apply -k deploy/crds)",
                reason="KindNotServed",
            )
        return found

    def _note_success(self) -> None:
        if self.problem:
            self.problem = ""
            _log.info("following", kind=str(self.kind))
        self._backoff.reset()

    async def _note_failure(self, error: Exception) -> None:
        if self.problem != str(error):
            self.problem = str(error)
            _log.warning("cannot follow", kind=str(self.kind), error=str(error))
        await asyncio.sleep(self._backoff.next_seconds(error))

    async def _list(self, resource: Resource) -> None:
        listing = await self._cluster.list(resource, metadata_only=self._metadata_only)
        present = {_key(obj): obj for obj in listing.items}
        events = [
            WatchEvent("MODIFIED" if key in self._known else "ADDED", obj)
            for key, obj in sorted(present.items(), key=lambda item: _version(item[1]))
            if _version(self._known.get(key)) != _version(obj)
        ]
        for key in self._known.keys() - present.keys():
            live = await self._cluster.get(resource, *key)
            if live is None:
                events.append(WatchEvent("DELETED", self._known[key]))
        self._take(events, listing.resource_version, is_list=True)
        self._at = listing.resource_version
        self._note_success()
        self.listed.set()

    async def _watch(self, resource: Resource) -> None:
        async for event in self._cluster.watch(resource, self._at, metadata_only=self._metadata_only):
            self._at = event.object["metadata"]["resourceVersion"]
            self._take([] if event.type == "BOOKMARK" else [event], self._at, is_list=False)
            self._note_success()

    def _take(self, events: Sequence[WatchEvent], version: str, *, is_list: bool) -> None:
        for event in events:
            if event.type == "DELETED":
                self._known.pop(_key(event.object), None)
            else:
                self._known[_key(event.object)] = event.object
        self._sink(events, version, is_list)


def _key(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(obj: Object | None) -> int:
    """Return a resourceVersion as a number: since Kubernetes 1.35 they may be compared."""
    return int(obj["metadata"]["resourceVersion"]) if obj is not None else 0
