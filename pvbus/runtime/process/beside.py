"""Keeps services from writing beside Porch's own controllers of PackageVariants and PackageVariantSets.

Two controllers of the same objects undo each other's writes, and make drafts twice. A process whose services
write them lists sets and variants at its start and watches them, metadata only, and writes nothing while
the marks of Porch's controllers are recent (`pvbus.core.platform.establish.rivals`). It says so in the log
and on /readyz. No condition says it: Porch would write the same status.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import FORBIDDEN, PermanentError, PvbusError, TransientError
from pvbus.core.platform.establish.rivals import Mark, last_mark, marked, wait_seconds
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import GoneError, Kind, Resource
from pvbus.telemetry.logs import get_logger

KINDS = (Kind(CONFIG_GROUP, "PackageVariantSet"), Kind(CONFIG_GROUP, "PackageVariant"))
WRITERS = ("render", "inject", "conditions")
RETRY_SECONDS = 5.0
UNLOOKED_SECONDS_MAX = 60.0
"""How long the first look may take. Then the services work without: rights and connection have reports of
their own."""

PATIENCE_SECONDS_MAX = 10.0
"""A write that may not be made yet is tried again after at most so long."""

_REMEDY = (
    "take packagevariants and packagevariantsets out of --reconcilers of the Deployment porch-controllers"
)


class BesidePorch:
    """Reports Porch's controllers. `run` runs until cancelled; `check` comes before each write."""

    def __init__(
        self,
        cluster: HttpCluster,
        clock: Clock,
        services: Iterable[str],
        namespaces: tuple[str, ...] = (),
        *,
        is_allowed: bool,
    ) -> None:
        """Report nothing until `run` has listed the objects.

        services: the services of this process
        namespaces: the namespaces that the services are limited to; () if they are not
        is_allowed: whether the services write beside Porch's controllers all the same (PVBUS_BESIDE_PORCH)
        """
        self._cluster = cluster
        self._clock = clock
        self._is_needed = not is_allowed and any(name in WRITERS for name in services)
        self._mark: Mark | None = None
        self._offset = clock.now() - clock.monotonic()  # of the server's clock, which does not jump with ours
        self._began = clock.monotonic()
        self._scopes = [(kind, namespace) for kind in KINDS for namespace in namespaces or (None,)]
        self._unlooked = set(self._scopes)
        self._wrote = False
        self._is_beside = False
        self._is_held = False
        self._log = get_logger("host")

    @property
    def problem(self) -> str:
        """Return why nothing is written: which write of Porch's, and what to do; "" if all is well."""
        if not self._is_needed or self._mark is None or not self._wait_seconds():
            return ""
        at = datetime.fromtimestamp(self._mark.at, UTC)
        until = datetime.fromtimestamp(self._clock.now() + self._wait_seconds(), UTC)
        return (
            f"Porch's controllers wrote {self._mark.namespace}/{self._mark.name} at {at:%Y-%m-%dT%H:%M:%SZ}: "
            f"nothing is written before {until:%H:%M:%SZ}, and later if they write again; {_REMEDY}"
        )

    def check(self) -> None:
        """Return if a write may be made. Raises TransientError if it may not be made yet."""
        if not self._is_needed:
            return
        if self._unlooked and self._clock.monotonic() - self._began < UNLOOKED_SECONDS_MAX:
            raise TransientError(
                "it is not known yet whether Porch's controllers write the same objects",
                retry_after_seconds=0.5,
                is_expected=True,
            )
        if wait := self._wait_seconds():
            raise TransientError(self.problem, retry_after_seconds=min(wait, PATIENCE_SECONDS_MAX))
        self._wrote = True

    def _wait_seconds(self) -> float:
        return wait_seconds(self._mark, self._clock.monotonic() + self._offset, beside=self._is_beside)

    async def run(self) -> None:
        if not self._is_needed:
            return
        async with asyncio.TaskGroup() as tasks:
            for scope in self._scopes:
                tasks.create_task(self._follow(*scope))
            tasks.create_task(self._narrate())

    async def _follow(self, kind: Kind, namespace: str | None) -> None:
        """List and watch one kind forever, in one namespace or in all; errors have reports elsewhere."""
        while True:
            try:
                resource = await self._cluster.resource(kind)
                if resource is None:
                    self._unlooked.discard((kind, namespace))
                else:
                    await self._list_and_watch(resource, kind, namespace)
            except (PvbusError, GoneError) as exc:
                if namespace is not None and isinstance(exc, PermanentError) and exc.reason == FORBIDDEN:
                    self._unlooked.discard((kind, namespace))  # the other namespaces need not wait for it
                self._log.debug("sets and variants cannot be read", kind=kind.kind, error=str(exc))
            await self._clock.sleep(RETRY_SECONDS)

    async def _list_and_watch(self, resource: Resource, kind: Kind, namespace: str | None) -> None:
        there = await self._cluster.server_time()
        if there is not None:
            self._offset = there - self._clock.monotonic()
        version = await self._list(resource, namespace)
        self._unlooked.discard((kind, namespace))
        while True:
            events = self._cluster.watch(resource, version, namespace=namespace, metadata_only=True)
            async for event in events:
                version = event.object["metadata"].get("resourceVersion", version)
                if event.type in ("ADDED", "MODIFIED"):
                    self._note(last_mark((event.object,)), is_new=True)

    async def _list(self, resource: Resource, namespace: str | None) -> str:
        """Note the last mark of all objects; return where a watch begins. Nothing else of the list stays: it
        has every variant."""
        listing = await self._cluster.list(
            resource, namespace, metadata_only=True, is_followed=True, keep=marked
        )
        self._note(last_mark(listing.items), is_new=False)
        return listing.resource_version

    def _note(self, mark: Mark | None, *, is_new: bool) -> None:
        """Take a mark into account.

        is_new: whether a change made it; else it was on an object that was there already
        """
        if mark is None or (self._mark is not None and mark.at <= self._mark.at):
            return
        self._is_beside = is_new and self._wrote
        self._mark = mark

    async def _narrate(self) -> None:
        """Log when writing is held back, and when it begins."""
        while True:
            problem = self.problem
            if problem and not self._is_held:
                self._log.error("Porch's controllers write the same objects", problem=problem)
            elif self._is_held and not problem:
                self._log.info("Porch's controllers no longer write the same objects")
            self._is_held = bool(problem)
            await self._clock.sleep(1.0)
