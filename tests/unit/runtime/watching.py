"""A running InformerShell, and servers that it watches: some fail, some are Porch's."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.kernel.keys import CHECK_PREFIX, check_key, okey
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.objectrows import Emission, topics_of
from pvbus.core.kernel.records import (
    INJECTABLES,
    OBJECTS,
    CheckAnswer,
    CheckRequest,
    InjectableRow,
    ObjectRow,
    SyncMarker,
)
from pvbus.ports.cluster import Listing, Object, Reader, Resource, WatchEvent
from pvbus.runtime.ingest.informer import InformerShell
from tests.kit.processes import run_simulated

SITE = Kind("example.org", "Site")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
PARTITIONS = 2


def site(name: str, **fields: Any) -> Object:
    return {"apiVersion": "example.org/v1", "kind": "Site", "metadata": {"name": name}, **fields}


class Server(MemoryCluster):
    """A cluster in memory whose lists and watches can be made to fail."""

    def __init__(self, objects: Iterable[Object] = ()) -> None:
        super().__init__(objects, now=lambda: "2026-01-01T00:00:00Z")
        self.lists = 0
        self.listings: list[Listing] = []
        self.gets = 0
        self.watches = 0
        self.list_seconds = 0.0
        self.get_errors: list[Exception] = []
        self.flowing = asyncio.Event()  # while it is not set, watches show nothing
        self.flowing.set()
        self.metadata_only: list[bool] = []
        self.list_errors: list[Exception] = []
        self.watch_errors: list[Exception] = []
        self.cut = asyncio.Event()

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Listing:
        self.lists += 1
        self.metadata_only.append(bool(options.get("metadata_only")))
        if self.list_errors:
            raise self.list_errors.pop(0)
        listing = await super().list(resource, namespace, **options)
        self.listings.append(listing)
        if self.list_seconds:
            await asyncio.sleep(self.list_seconds)
        return listing

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        self.gets += 1
        if self.get_errors:
            raise self.get_errors.pop(0)
        return await super().get(resource, namespace, name)

    async def watch(
        self, resource: Resource, resource_version: str, **options: Any
    ) -> AsyncIterator[WatchEvent]:
        self.watches += 1
        stream = super().watch(resource, resource_version, namespace=options.get("namespace"))
        while True:
            await self.flowing.wait()
            if self.watch_errors:
                raise self.watch_errors.pop(0)
            step = asyncio.ensure_future(anext(stream))
            cut = asyncio.ensure_future(self.cut.wait())
            await asyncio.wait({step, cut}, return_when=asyncio.FIRST_COMPLETED)
            cut.cancel()
            if not step.done():
                step.cancel()
                self.cut.clear()
                if self.watch_errors:
                    raise self.watch_errors.pop(0)
                return
            event = step.result()
            await self.flowing.wait()
            yield event


class Porch(Server):
    """An aggregated API: no resourceVersion, every watch begins with everything, lists leave things out."""

    def __init__(self, objects: Iterable[Object] = (), *, bookmark: bool = True) -> None:
        super().__init__(objects)
        self.left_out: set[str] = set()
        self.bookmark = bookmark

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Listing:
        listing = await super().list(resource, namespace, **options)
        return Listing("", [o for o in listing.items if o["metadata"]["name"] not in self.left_out])

    async def watch(
        self, resource: Resource, resource_version: str, **options: Any
    ) -> AsyncIterator[WatchEvent]:
        listing = await MemoryCluster.list(self, resource, options.get("namespace"))
        version = listing.resource_version
        for obj in listing.items:
            yield WatchEvent("ADDED", obj)
        if self.bookmark:
            annotations = {"k8s.io/initial-events-end": "true"}
            yield WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "0", "annotations": annotations}})
        async for event in super().watch(resource, version, **options):
            yield event


class Watching:
    """A running InformerShell, and everything it emitted."""

    def __init__(
        self,
        server: Server,
        kind: Kind = SITE,
        content: Iterable[tuple[str, str]] = (),
        *,
        reader: Reader | None = None,
    ) -> None:
        """reader: what is observed, if that is not the server itself."""
        self.server = server
        self.reader = reader or server
        self.kind = kind
        self.emitted: list[Emission] = []
        self.known: dict[str, dict[str, str]] = {
            t: {} for t in (*topics_of(kind, requested=True), INJECTABLES)
        }
        self.markers: dict[str, SyncMarker] = {}
        self.checks: dict[str, CheckRequest] = {}
        self.start(content)

    def start(self, content: Iterable[tuple[str, str]] = ()) -> None:
        self.watch = InformerShell(
            self.kind,
            self.reader,
            SimulatedClock(),
            self.emitted.append,
            partitions=PARTITIONS,
            topics=topics_of(self.kind, requested=True),
            known=self.known,
            markers=self.markers,
            content=frozenset(content),
            checks=self.checks,
            jitter=lambda least, most: most,
        )
        self.task = asyncio.create_task(self.watch.run())

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    def taken(self, topic: str = OBJECTS) -> list[str]:
        """Take what was emitted to a topic since the last time: +name, -name, or a marker's state."""
        reported: list[str] = []
        for emission in self.emitted:
            if emission.topic != topic:
                continue
            if is_marker(emission.key):
                if emission.partition == PARTITIONS - 1:
                    reported.append(msgspec.json.decode(emission.value or b"", type=SyncMarker).state)
            else:
                name = emission.key.split("|")[2]
                reported.append(f"{'-' if emission.value is None else '+'}{name}")
        self.emitted.clear()
        return reported

    def ask(self, skey: str, nonce: str, *names: str) -> str:
        """Ask as the set `skey` whether the rows are up to date; return the key of the answer."""
        key = check_key(*self.kind, skey)
        request = CheckRequest(group=self.kind.group, kind=self.kind.kind, nonce=nonce, names=names)
        self.watch.check(key, request)
        return key

    def story(self) -> list[str]:
        """Take what was emitted to the objects topic: +name=label, -name, markers, !nonce of answers."""
        story: list[str] = []
        for emission in self.emitted:
            key, value = emission.key, emission.value or b""
            if emission.topic != OBJECTS or emission.partition not in (None, PARTITIONS - 1):
                continue
            if is_marker(key):
                story.append(msgspec.json.decode(value, type=SyncMarker).state)
            elif key.startswith(CHECK_PREFIX):
                story.append(f"!{msgspec.json.decode(value, type=CheckAnswer).nonce}")
            elif value:
                env = msgspec.json.decode(value, type=ObjectRow).labels.get("env", "")
                story.append(f"+{key.split('|')[2]}={env}")
            else:
                story.append(f"-{key.split('|')[2]}")
        self.emitted.clear()
        return story

    def content(self, name: str) -> InjectableRow | None:
        key = okey(*self.kind, "default", name)
        values = [e.value for e in self.emitted if e.topic == INJECTABLES and e.key == key]
        return msgspec.json.decode(values[-1], type=InjectableRow) if values and values[-1] else None


def simulated(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    run_simulated(main())


def revision(name: str) -> Object:
    spec = {"repository": "r", "packageName": name, "workspaceName": "v1"}
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": name},
        "spec": spec,
    }
