"""Lists and watches some namespaces by requests of their own, so that rights in these suffice.

A list is complete for the namespaces that may be read (`Listing.coverage`), and names the others with what to
do. A namespace that may not be read any more, or may be read now, ends the watches of its kind, so that the
kind is listed again; the other namespaces are never in doubt. Objects of a namespace that may
not be listed count as unknown, never as deleted.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from functools import partial

from pvbus.core.errors import FORBIDDEN, ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.core.kernel.objectrows import STATIC_KINDS
from pvbus.core.kernel.records import Coverage, Refusal
from pvbus.core.kernel.rights import OBSERVED_VERBS
from pvbus.core.variants.ingest.events import REPLAY_END
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import GoneError, Kind, Listing, Object, Reader, Resource, WatchEvent

EVENTS_MAX = 100  # events of all namespaces that wait to be taken; a full queue slows the streams
LISTS_INFLIGHT_MAX = 8
REFUSED_SECONDS = (1.0, 60.0)  # between two looks whether a refused namespace may be read
CLUSTER_SCOPED = "ClusterScoped"
NAMESPACES_REFUSED = "NamespacesRefused"
"""Reasons of PermanentErrors: the kind has no namespaces, or none of the listed namespaces may be read."""

_Reported = tuple[str, WatchEvent | Exception | None]
"""The namespace, and its event, its error, or None at the end of its watch."""


class NamespacedReader:
    """Implements `pvbus.ports.cluster.Reader` for some namespaces of another one."""

    def __init__(self, cluster: Reader, namespaces: tuple[str, ...], clock: Clock, *, jitter: Jitter) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._clock = clock
        self._jitter = jitter
        self._covered: dict[Resource, tuple[str, ...]] = {}  # by the last list

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        return await self._cluster.resource(kind, version=version)

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        return await self._cluster.versions(kind)

    def forget_resources(self) -> None:
        self._cluster.forget_resources()

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return await self._cluster.get(resource, namespace, name)

    # ------------------------------------------------------------ listing

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
        """Raises PermanentError for a cluster-scoped kind, and if none of the namespaces may be read."""
        gate = asyncio.Semaphore(LISTS_INFLIGHT_MAX)
        one = partial(
            self._cluster.list,
            resource,
            label_selector=label_selector,
            field_selector=field_selector,
            metadata_only=metadata_only,
            is_followed=is_followed,
            keep=keep,
        )
        if namespace is not None:
            return await one(namespace)

        async def read(name: str) -> Listing | PermanentError:
            async with gate:
                try:
                    return await one(name)
                except PermanentError as exc:
                    if exc.reason != FORBIDDEN:
                        raise
                    return exc

        self._require_namespaced(resource)
        answers = await asyncio.gather(*map(read, self._namespaces))
        return self._join(resource, dict(zip(self._namespaces, answers, strict=True)))

    def _require_namespaced(self, resource: Resource) -> None:
        if not resource.namespaced:
            raise PermanentError(
                f"{resource.kind} is a cluster-scoped kind, and PVBUS_NAMESPACES limits ingest to "
                f"{', '.join(self._namespaces)}: to use it, unset PVBUS_NAMESPACES, and let ingest "
                f"{', '.join(OBSERVED_VERBS)} {_title(resource)} by a ClusterRole",
                reason=CLUSTER_SCOPED,
            )

    def _join(self, resource: Resource, answers: Mapping[str, Listing | PermanentError]) -> Listing:
        listings = {name: each for name, each in answers.items() if isinstance(each, Listing)}
        refused = tuple(
            Refusal(namespace=name, message=f"{each}; {remedy(resource, name)}")
            for name, each in answers.items()
            if isinstance(each, PermanentError)
        )
        if not listings:
            raise PermanentError("; ".join(each.message for each in refused), reason=NAMESPACES_REFUSED)
        self._covered[resource] = tuple(listings)
        return Listing(
            _position({name: listing.resource_version for name, listing in listings.items()}),
            [obj for listing in listings.values() for obj in listing.items],
            Coverage(namespaces=tuple(listings), refused=refused),
        )

    # ------------------------------------------------------------ watching

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        if namespace is not None:
            return self._cluster.watch(
                resource, resource_version, namespace=namespace, metadata_only=metadata_only
            )
        return self._watch_all(resource, resource_version, metadata_only=metadata_only)

    async def _watch_all(
        self, resource: Resource, resource_version: str, *, metadata_only: bool
    ) -> AsyncGenerator[WatchEvent]:
        """Watch the namespaces that the last list covered. Caller: after a list of the kind.

        Ends when the watch of one of them ends. Raises GoneError if one may not be read any more, or one that
        was refused may be read.
        """
        covered = self._covered.get(resource, self._namespaces)
        positions = dict.fromkeys(covered, "") | (json.loads(resource_version) if resource_version else {})
        replaying = set(covered)
        reported: asyncio.Queue[_Reported] = asyncio.Queue(EVENTS_MAX)
        tasks = [
            asyncio.create_task(
                self._follow(reported, name, resource, positions[name], metadata_only=metadata_only)
            )
            for name in covered
        ]
        refused = [name for name in self._namespaces if name not in covered]
        if refused:
            tasks.append(asyncio.create_task(self._await_granted(reported, resource, refused)))
        try:
            while True:
                name, found = await reported.get()
                match found:
                    case None:
                        return
                    case PermanentError(reason=reason) if reason == FORBIDDEN:
                        raise GoneError(f"{name}: {found}") from found
                    case Exception():
                        raise found
                if _ends_replay(found):
                    replaying.discard(name)
                    if replaying:
                        continue
                version = found.object["metadata"].get("resourceVersion", "")
                positions[name] = version or positions[name]
                yield found._replace(position=_position(positions))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self,
        reported: "asyncio.Queue[_Reported]",
        namespace: str,
        resource: Resource,
        position: str,
        *,
        metadata_only: bool,
    ) -> None:
        stream = self._cluster.watch(resource, position, namespace=namespace, metadata_only=metadata_only)
        end: Exception | None = None
        try:
            async for event in stream:
                await reported.put((namespace, event))
        except (TransientError, ConflictError, PermanentError, GoneError) as exc:
            end = exc
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        await reported.put((namespace, end))

    async def _await_granted(
        self, reported: "asyncio.Queue[_Reported]", resource: Resource, namespaces: Iterable[str]
    ) -> None:
        """Look at refused namespaces until one may be read."""
        backoff = Backoff(*REFUSED_SECONDS, self._jitter)
        while True:
            await self._clock.sleep(backoff.next_seconds())
            for namespace in namespaces:
                try:
                    await self._cluster.list(resource, namespace, metadata_only=True)
                except (TransientError, ConflictError, PermanentError):
                    continue
                await reported.put((namespace, GoneError(f"{namespace}: may be read now")))
                return


def remedy(resource: Resource, namespace: str) -> str:
    """Say how ingest gets the right to read a kind in a namespace."""
    if Kind(resource.group, resource.kind) in STATIC_KINDS:
        return (
            f'bind the Role pvbus-ingest in the namespace "{namespace}": pvbus install --namespaces does; '
            "or take it out of PVBUS_NAMESPACES"
        )
    return (
        f'create a Role in the namespace "{namespace}" that may {", ".join(OBSERVED_VERBS)} '
        f"{_title(resource)}, and bind it to the account of ingest: `pvbus doctor` prints the commands"
    )


def _title(resource: Resource) -> str:
    return f"{resource.plural}{'.' if resource.group else ''}{resource.group}"


def _position(versions: Mapping[str, str]) -> str:
    """Return where a watch of all namespaces begins; "" if one of them has no version."""
    return json.dumps(versions, sort_keys=True) if all(versions.values()) else ""


def _ends_replay(event: WatchEvent) -> bool:
    is_bookmark = event.type == "BOOKMARK"
    return is_bookmark and REPLAY_END in (event.object["metadata"].get("annotations") or {})
