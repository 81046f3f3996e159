"""Watches CustomResourceDefinitions for changes, for every kind that a worker watches.

One worker writes the rows of the definitions, but every worker must probe its kinds again when a definition
changes. So every worker watches the metadata of the definitions. Nothing is written from here.
"""

import asyncio
from collections.abc import Callable

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.core.kernel.objectrows import CRD
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import GoneError, Object, Reader, Resource
from pvbus.telemetry.logs import get_logger

BACKOFF_SECONDS = (0.2, 60.0)
ASK_SECONDS = 2.0  # how long others wait for the first list: a hanging server must not block them
STEADY_SECONDS = 5.0  # a watch that ends sooner restarts with a backoff


class Definitions:
    """Calls `on_change` with the API group of each definition that is added, changed or deleted.

    `run` runs until cancelled. A kind that is resolved after `asked` is set needs no call for earlier
    changes.

    asked: set after the first list, successful or not, or after ASK_SECONDS
    """

    def __init__(
        self,
        cluster: Reader,
        clock: Clock,
        on_change: Callable[[str], None],
        *,
        jitter: Jitter,
        is_permitted: bool = True,
    ) -> None:
        """Watch nothing until `run`.

        on_change: called with an API group
        is_permitted: whether definitions, which have no namespace, may be read. If not, each kind finds a
            change by its own probes, at most a minute late.
        """
        self.asked = asyncio.Event()
        self._cluster = cluster
        self._clock = clock
        self._on_change = on_change
        self._backoff = Backoff(*BACKOFF_SECONDS, jitter)
        self._versions: dict[str, str] = {}  # name -> resourceVersion
        self._is_first = True
        self._is_permitted = is_permitted
        self._log = get_logger("ingest")

    async def run(self) -> None:
        while not self._is_permitted:
            self.asked.set()
            await asyncio.Event().wait()
        while True:
            began, error = self._clock.monotonic(), None
            try:
                resource = await self._cluster.resource(CRD)
                if resource is not None:
                    await self._follow(resource, await self._list(resource))
            except (GoneError, TransientError, ConflictError, PermanentError) as exc:
                error = exc
                self._log.info("definitions cannot be watched; trying again", error=str(exc))
            self.asked.set()
            if self._clock.monotonic() - began > STEADY_SECONDS:
                self._backoff.reset()
            await self._clock.sleep(self._backoff.next_seconds(error))

    async def wait_asked(self) -> None:
        """Wait for the first list, at most ASK_SECONDS. A later list reports its definitions as changes."""
        waiting = [
            asyncio.create_task(self.asked.wait()),
            asyncio.create_task(self._clock.sleep(ASK_SECONDS)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        self.asked.set()

    async def _list(self, resource: Resource) -> str:
        listing = await self._cluster.list(resource, metadata_only=True, is_followed=True)
        found = {obj["metadata"]["name"]: _version(obj) for obj in listing.items}
        before, self._versions = self._versions, found
        if not self._is_first or self.asked.is_set():  # else no kind has been resolved yet
            for name in sorted(before.keys() | found.keys()):
                if before.get(name) != found.get(name):
                    self._on_change(group_of(name))
        self._is_first = False
        self.asked.set()
        return listing.resource_version

    async def _follow(self, resource: Resource, version: str) -> None:
        async for event in self._cluster.watch(resource, version, metadata_only=True):
            if event.type == "BOOKMARK":
                continue
            name = event.object["metadata"]["name"]
            if event.type == "DELETED":
                self._versions.pop(name, None)
            else:
                self._versions[name] = _version(event.object)
            self._on_change(group_of(name))


def group_of(name: str) -> str:
    """Return the API group of a definition's name, `<plural>.<group>`."""
    return name.partition(".")[2]


def _version(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))
