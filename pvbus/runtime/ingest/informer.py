"""The shell of an informer: lists, watches, reads and sleeps for one kind.

`pvbus.core.variants.ingest.informer` decides. Each operation is a task that reports what happened; what an
operation reports after it was stopped is dropped. There is one timer. It may fire too early, never too late.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from pvbus.core.errors import FORBIDDEN, ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Jitter
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import Emission, rows_of
from pvbus.core.kernel.records import CheckRequest, SyncMarker
from pvbus.core.variants.ingest import commands, events
from pvbus.core.variants.ingest.checks import Batch
from pvbus.core.variants.ingest.commands import Command, Operation
from pvbus.core.variants.ingest.events import Event, Fault, Reason
from pvbus.core.variants.ingest.informer import Informer
from pvbus.core.variants.ingest.published import Emit, Name
from pvbus.core.variants.ingest.states import BackingOff
from pvbus.core.variants.ingest.view import identity_of, name_of
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import GoneError, Object, Reader, Resource, SilentError
from pvbus.runtime.backoff import uniform
from pvbus.runtime.failures import causes
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

READS_INFLIGHT_MAX = 8  # of check requests; other reads by name go one by one
_ERRORS = (TransientError, ConflictError, PermanentError, GoneError)


class InformerShell:
    """Observes one kind for one lease. `run` runs until cancelled.

    The informer is the only one that decides. An event goes through `_take`, which runs the commands that the
    informer returns; a command starts or stops a task (`_running` has one per operation), and the end of the
    task is the next event. So no two decisions overlap, and there is nothing to lock.
    """

    def __init__(
        self,
        kind: Kind,
        cluster: Reader,
        clock: Clock,
        emit: Emit,
        *,
        partitions: int,
        topics: tuple[str, ...],
        known: dict[str, dict[str, str]],
        markers: dict[str, SyncMarker],
        content: frozenset[Name],
        checks: Batch | None = None,
        jitter: Jitter = uniform,
    ) -> None:
        """Begin with what the bus has; the parameters that are not here are those of `Informer`.

        emit: called with each row, in order
        checks: the check requests of this kind that are open already
        jitter: the source of the randomness of all waits
        """
        self.kind = kind
        self.topics = topics
        self._cluster = cluster
        self._clock = clock
        self._emit = emit
        self._jitter = jitter
        self._informer = Informer(
            kind, partitions=partitions, topics=topics, known=known, markers=markers, content=content
        )
        self._resource: Resource | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._has_ended = False
        self._running: dict[Operation, asyncio.Task[None]] = {}
        self._timer: asyncio.Task[None] | None = None
        self._timer_at = math.inf
        self._content_read: asyncio.Future[Exception | None] | None = None
        self._log = get_logger("ingest")
        for key, request in (checks or {}).items():
            self.check(key, request)

    # ------------------------------------------------------------ requests

    @property
    def content(self) -> frozenset[Name]:
        return self._informer.view.content

    @property
    def observed(self) -> bool:
        """Whether the kind was listed once, or is known not to be served."""
        return self._informer.observed

    @property
    def is_served(self) -> bool:
        return not self._has_ended and self._informer.is_served

    def probe(self) -> None:
        """Probe how the kind is served, and in which versions, because its definition changed."""
        self._take(events.Probed())

    def check(self, key: str, request: CheckRequest) -> None:
        """Answer a check request by a read that begins after this call."""
        self._take(events.CheckAsked(key=key, request=request))

    def uncheck(self, key: str) -> None:
        self._take(events.CheckWithdrawn(key=key))

    def recheck(self, key: str, request: CheckRequest) -> None:
        """Answer a check request later by another read: rows of the last one could not be written."""
        self._take(events.CheckAsked(key=key, request=request, is_repeated=True))

    async def change_content(self, content: frozenset[Name]) -> bool:
        """Follow other named objects without listing again; False if that is not possible.

        Returns when their content is read, or a new list will show it. Raises the errors of a read.
        """
        if not self.is_served or not self._informer.can_change_content(content):
            return False
        self._content_read = asyncio.get_running_loop().create_future()
        self._take(events.ContentChanged(content=content))
        if "content" in self._running:
            error = await self._content_read
            if error is not None:
                raise error
        return True

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._set_timer()
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks, self._has_ended = None, True
                self._end_content(None)

    def _take(self, event: Event, *, not_before: float = -math.inf) -> None:
        """Pass an event to the informer, and run its commands.

        not_before: the earliest time to pass, in seconds of the monotonic clock
        """
        if self._has_ended:
            return
        before = self._informer.state
        now = max(self._clock.monotonic(), not_before)
        for command in self._informer.step(event, now, self._jitter(0.0, 1.0)):
            self._do(command)
        after = self._informer.state
        if after is not before and isinstance(after, BackingOff) and after.reason in ("gone", "error"):
            metrics.WATCH_RESTARTS.labels(after.reason).inc()
        self._set_timer()

    def _do(self, command: Command) -> None:
        match command:
            case Emission():
                self._emit(command)
            case commands.Resolve(is_fresh=is_fresh):
                if is_fresh:
                    self._cluster.forget_resources()
                self._begin("resolve", self._resolve())
            case commands.List(metadata_only=metadata_only):
                metrics.WATCH_RESTARTS.labels("list").inc()
                self._begin("list", self._list(metadata_only))
            case commands.Watch():
                metrics.WATCH_RESTARTS.labels("watch").inc()
                self._begin("watch", self._watch(command))
            case commands.ReadVersions():
                self._cluster.forget_resources()
                self._begin("versions", self._read_versions())
            case commands.Read(purpose=purpose):
                self._begin(purpose, self._read(command))
            case commands.Stop(operations=operations):
                for operation in operations:
                    self._stop(operation)
            case commands.Note(level=level, text=text, fields=fields):
                log = self._log.warning if level == "warning" else self._log.info
                log(text, kind=str(self.kind), **fields)

    def _begin(self, operation: Operation, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        assert operation not in self._running, operation
        self._running[operation] = self._tasks.create_task(work)

    def _stop(self, operation: Operation) -> None:
        task = self._running.pop(operation, None)
        if task is not None:
            task.cancel()
        if operation == "content":
            self._end_content(None)

    def _end_content(self, error: Exception | None) -> None:
        if self._content_read is not None and not self._content_read.done():
            self._content_read.set_result(error)

    def _report(self, operation: Operation, event: Event) -> None:
        """Report the end of an operation, unless it was stopped."""
        if self._running.get(operation) is asyncio.current_task():
            del self._running[operation]
            self._take(event)

    # ------------------------------------------------------------ time

    def _set_timer(self) -> None:
        """Set the timer to the informer's `wake_at`. An earlier timer stays: most times only move later."""
        at = self._informer.wake_at
        if self._tasks is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._tasks.create_task(self._wait(at))

    async def _wait(self, at: float) -> None:
        await self._clock.sleep(max(0.0, at - self._clock.monotonic()))
        self._timer, self._timer_at = None, math.inf
        self._take(events.Tick(), not_before=at)

    # ------------------------------------------------------------ operations

    async def _resolve(self) -> None:
        event: Event
        try:
            self._resource = await self._cluster.resource(self.kind)
            event = events.NotServed() if self._resource is None else events.Served()
        except _ERRORS as exc:
            event = events.ResolveFailed(fault=fault_of(exc))
        self._report("resolve", event)

    async def _list(self, metadata_only: bool) -> None:
        """List; make the rows of each object as soon as it is read, and keep no more of it than is needed.

        The content of an object is needed if it is asked for, and a row if the bus does not have it. What is
        asked for, and what the bus has, may change during a list that interrupts a watch, as the kind is
        served then: such a list keeps its objects and rows whole.
        """
        assert self._resource is not None
        event: Event
        whole = None if self.is_served else self.content
        rows: dict[Name, list[Emission]] = {}

        def keep(obj: Object) -> Object:
            name = name_of(obj)
            if whole is None:
                rows[name] = rows_of(self.kind, obj, self.topics)
                return obj
            rows[name] = self._informer.view.listed_rows(obj)
            return obj if name in whole else identity_of(obj)

        try:
            versions = await self._cluster.versions(self.kind)
            listing = await self._cluster.list(
                self._resource, metadata_only=metadata_only, is_followed=True, keep=keep
            )
            event = events.Listed(
                versions=versions,
                resource_version=listing.resource_version,
                items=listing.items,
                rows=[rows[name_of(obj)] for obj in listing.items],
                coverage=listing.coverage,
            )
        except _ERRORS as exc:
            event = events.ListFailed(fault=fault_of(exc))
        self._report("list", event)

    async def _watch(self, command: commands.Watch) -> None:
        assert self._resource is not None
        fault, me = None, asyncio.current_task()
        stream = self._cluster.watch(
            self._resource, command.resource_version, metadata_only=command.metadata_only
        )
        try:
            async for event in stream:
                if self._running.get("watch") is not me:
                    return
                self._take(events.Delivered(type=event.type, object=event.object, position=event.position))
        except _ERRORS as exc:
            fault = fault_of(exc)
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        self._report("watch", events.WatchEnded(fault=fault))

    async def _read_versions(self) -> None:
        versions = None
        try:
            versions = await self._cluster.versions(self.kind)
        except _ERRORS as exc:
            self._log.info("versions cannot be read", kind=str(self.kind), error=str(exc))
        self._report("versions", events.VersionsRead(versions=versions))

    async def _read(self, command: commands.Read) -> None:
        """Read objects by name, and report each as soon as it is read."""
        resource, purpose, me = self._resource, command.purpose, asyncio.current_task()
        assert resource is not None
        gate = asyncio.Semaphore(READS_INFLIGHT_MAX if purpose == "checks" else 1)
        left = set(command.names)

        async def read(name: Name) -> None:
            async with gate:
                obj = await self._cluster.get(resource, *name)
            left.discard(name)
            if self._running.get(purpose) is me:
                if not left:
                    del self._running[purpose]
                self._take(events.ObjectRead(purpose=purpose, name=name, object=obj))

        try:
            async with asyncio.TaskGroup() as tasks:
                for name in command.names:
                    tasks.create_task(read(name))
        except ExceptionGroup as group:
            error = next(causes(group))
            if not isinstance(error, _ERRORS):
                raise
            if purpose == "content":
                self._end_content(error)
            self._report(purpose, events.ReadFailed(purpose=purpose, fault=fault_of(error)))
        else:
            if purpose == "content":
                self._end_content(None)


def fault_of(error: Exception) -> Fault:
    """Return an error of the cluster port as a Fault."""
    asked = error.retry_after_seconds if isinstance(error, TransientError) else None
    reason: Reason
    match error:
        case SilentError():
            reason = "silent"
        case GoneError():
            reason = "gone"
        case PermanentError():
            reason = "permanent"
        case _:
            reason = "transient"
    is_forbidden = isinstance(error, PermanentError) and error.reason == FORBIDDEN
    return Fault(reason=reason, message=str(error), retry_after_seconds=asked, is_forbidden=is_forbidden)
