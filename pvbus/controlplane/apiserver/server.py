"""The embedded API server: an HTTPS listener, on loopback by default, in front of a store.

It owns what an API server without a cluster needs: the data folder with token, certificates and kubeconfig,
the built-in kinds, namespaces, and the garbage collector. `frontend` answers the requests.

It removes Events an hour after they were last written, as kube-apiserver does (--event-ttl, a lease in etcd).
The time is that of the write, not one that a client sends; after a restart it is that of the managedFields.
Finalizers do not keep an Event.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.crds import Definitions
from pvbus.controlplane.apiserver.datafolder import DataFolder
from pvbus.controlplane.apiserver.documents import Documents
from pvbus.controlplane.apiserver.entries import Change, ObjectKey
from pvbus.controlplane.apiserver.frontend import Access, Api, Frontend, Origin
from pvbus.controlplane.apiserver.garbage import Collector
from pvbus.controlplane.apiserver.hooks import KindHooks, StatusError, VirtualKind
from pvbus.controlplane.apiserver.identity import (
    ADMIN,
    ADMINS_GROUP,
    AUTHENTICATED_GROUP,
    User,
)
from pvbus.controlplane.apiserver.listing import Tokens
from pvbus.controlplane.apiserver.namespaces import Cleaner, create_initial
from pvbus.controlplane.apiserver.objects import StoredObjects
from pvbus.controlplane.apiserver.rbac.access import AccessControl
from pvbus.controlplane.apiserver.rbac.kinds import RBAC_KINDS, REVIEW_KINDS
from pvbus.controlplane.apiserver.rbac.services import user_of
from pvbus.controlplane.apiserver.registry import CRD, NAMESPACE, Registry
from pvbus.controlplane.apiserver.resources import Resources
from pvbus.controlplane.apiserver.store import Store, StoreError
from pvbus.controlplane.apiserver.strategies import BUILTIN
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Kind, Object
from pvbus.telemetry.loopwatch import loop_problem
from pvbus.telemetry.structured import structlog

EVENT = Kind("", "Event")
EVENT_SECONDS = 3600.0
"""Kubernetes' own time. With a longer one, Events of a busy fleet would take much memory."""

SWEEP_SECONDS_MAX = 30.0
"""How late an Event goes at most."""

TOGETHER_MAX = 500
"""Removals of one transaction: others write in between."""

_log = structlog.get_logger(__name__)


class EventExpiry:
    """Records when each Event was written last. `run` removes old Events until it is cancelled."""

    def __init__(self, store: Store, seconds: float = EVENT_SECONDS) -> None:
        self._store = store
        self._seconds = seconds
        self._writes: dict[ObjectKey, float] = {}  # the oldest first
        store.observe(self._observe)

    def begin(self) -> None:
        """Take note of the Events that are there at the start."""
        now, today = time.monotonic(), time.time()
        ages = {
            entry.key: max(today - _seconds(entry.decode()["metadata"]), 0.0)
            for entry in self._store.table(EVENT).in_order()
        }
        for key in sorted(ages, key=lambda key: -ages[key]):
            self._writes[key] = now - ages[key]

    def _observe(self, change: Change) -> None:
        if change.kind == EVENT:
            self._writes.pop(change.entry.key, None)
            if change.type != "DELETED":
                self._writes[change.entry.key] = time.monotonic()

    async def run(self) -> None:
        while True:
            try:
                while old := self._older_than(time.monotonic() - self._seconds):
                    for key in old:
                        self._store.remove(EVENT, key)
                    await self._store.durable()  # then they are out of the table of writes
            except StoreError as exc:
                _log.warning("old Events stay for now", error=str(exc))
            await asyncio.sleep(min(self._seconds / 10, SWEEP_SECONDS_MAX))

    def _older_than(self, moment: float) -> list[ObjectKey]:
        """Return the first Events that were last written before a moment."""
        first = islice(self._writes.items(), TOGETHER_MAX)
        return [key for key, _ in takewhile(lambda item: item[1] < moment, first)]


def _seconds(metadata: dict[str, Any]) -> float:
    """Return when an object was last written, as the server noted it."""
    times = [entry.get("time") or "" for entry in metadata.get("managedFields", ())]
    return datetime.fromisoformat(max(metadata["creationTimestamp"], *times, "")).astimezone(UTC).timestamp()


HOST = "127.0.0.1"
ANY_HOST = "0.0.0.0"  # every interface, if `advertise` is set


class ApiServer:
    """A Kubernetes API in this process. Create it, install hooks, `start`, use it, `stop`."""

    def __init__(
        self,
        data: Path | None,
        port: int = 0,
        *,
        crds: Sequence[Object] = (),
        tls: bool = True,
        advertise: str = "",
        namespaces: Sequence[str] = (),
        accounts: Path | None = None,
        event_seconds: float = EVENT_SECONDS,
    ) -> None:
        """Serve nothing until `start`.

        data: the data folder, None for memory
        port: the port to listen at; 0 takes any free one, which is saved in `data`
        crds: CustomResourceDefinitions to create at the start; existing ones get their spec
        tls: whether to serve HTTPS
        advertise: name or address by which other machines reach this one; "" serves this machine only
        namespaces: the namespaces that the services are limited to; () if they are not
        accounts: a folder for a kubeconfig of each service alone, None for none
        event_seconds: how long Events are retained
        """
        self.objects = StoredObjects()
        self._folder = DataFolder(data, accounts)
        self._asked_port = port
        self._hooks: dict[Kind, KindHooks] = {}
        self._virtual: dict[Kind, VirtualKind] = {}
        self._crds = crds
        self._tls = tls
        self._advertise = advertise
        self._namespaces = namespaces
        self._event_seconds = event_seconds
        self._background: list[asyncio.Task[None]] = []
        self._frontend: Frontend | None = None
        self._store: Store | None = None
        self.url = ""

    def install_hooks(self, kind: Kind, hooks: KindHooks) -> None:
        """Add behaviour to a stored kind. Call before `start`."""
        self._hooks[kind] = hooks

    def install_virtual(self, kind: Kind, virtual: VirtualKind) -> None:
        """Serve a kind that is not stored. Call before `start`."""
        self._virtual[kind] = virtual

    @property
    def token(self) -> str:
        return self._folder.token

    @property
    def kubeconfig_path(self) -> Path:
        return self._folder.kubeconfig

    async def start(self) -> None:
        """Open the data and serve. Raises PermanentError: data in use or damaged, disk full, port in use."""
        self._folder.open()
        try:
            await self._open()
            await self._listen()
        except StoreError as exc:
            await self.stop()
            raise PermanentError(str(exc), reason="DiskFull") from exc
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        self._store = store = Store(self._folder.database)
        self._registry = registry = Registry((*BUILTIN_KINDS, *RBAC_KINDS, *REVIEW_KINDS))
        self._access = access = AccessControl(store, registry, self._folder.users, self._namespaces)
        strategies = {**BUILTIN, CRD: Definitions(registry).strategy, **access.strategies}
        writer = Writer(store, registry, strategies, self._hooks)
        cleaner = Cleaner(store, registry, writer)
        collector = Collector(store, registry, writer)
        expiry = EventExpiry(store, self._event_seconds)
        tokens = Tokens(self._folder.key_of("continued lists"))
        self._resources = Resources(store, registry, writer, self._virtual, tokens)
        self.objects.bind(store)
        store.start()
        await create_initial(store, strategies[NAMESPACE])
        await access.begin(writer)
        cleaner.begin()
        for crd in self._crds:
            await _install(writer, registry, crd)
        collector.begin()
        expiry.begin()
        self._background = [
            asyncio.create_task(cleaner.work.run(), name="apiserver-cleaner"),
            asyncio.create_task(collector.work.run(), name="apiserver-garbage"),
            asyncio.create_task(access.run(), name="apiserver-roles"),
            asyncio.create_task(expiry.run(), name="apiserver-events"),
            asyncio.create_task(store.expire_forever(), name="apiserver-expiry"),
            asyncio.create_task(store.probe_forever(), name="apiserver-probe"),
        ]

    async def _listen(self) -> None:
        assert self._store is not None
        certificates = self._folder.certificates(self._advertise) if self._tls else None
        store = self._store
        documents = Documents(self._registry, lambda: store.write_problem or loop_problem())
        admin = User(ADMIN, (ADMINS_GROUP, AUTHENTICATED_GROUP))
        services = {token: user_of(service) for service, token in self._folder.service_tokens().items()}
        self._access.admit({self.token: admin, **services})
        names = frozenset({"localhost", *([self._advertise.lower()] if self._advertise else ())})
        scheme = "https" if self._tls else "http"
        self._frontend = Frontend(
            Api(self._store, self._registry, self._resources, documents),
            Access(self._access, self._access, self._access),
            Origin(names, scheme),
        )
        asked = self._asked_port or self._folder.kept_port()
        host = ANY_HOST if self._advertise else HOST
        try:
            port = await self._frontend.listen(host, asked, certificates.context if certificates else None)
        except OSError as exc:
            raise PermanentError(
                f"port {asked} on {host} is in use: stop the program that has it, or choose another one "
                "with --port (0 takes any free one once "
                f"{self._folder.port_file} is removed)",
                reason="PortInUse",
            ) from exc
        documents.address = f"{self._advertise or HOST}:{port}"
        self.url = f"{scheme}://{documents.address}"
        self._folder.keep_port(port)
        self._folder.write_kubeconfigs(self.url, authority=certificates.authority if certificates else None)

    async def stop(self) -> None:
        """Close connections, commit queued writes, release the data folder."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background = []
        if self._frontend is not None:
            await self._frontend.stop()
            self._frontend = None
        if self._store is not None:
            await self._store.stop()
            self._store = None
        self._folder.close()


async def _install(writer: Writer, registry: Registry, crd: Object) -> None:
    """Create a CustomResourceDefinition, or update the spec of an existing one."""
    endpoint = registry.storage(CRD)
    assert endpoint is not None
    options = rq.Options(ADMIN, [])
    try:
        await writer.create(endpoint, dict(crd), None, options)
    except StatusError as exc:
        if exc.reason != "AlreadyExists":
            raise
        key = ("", crd["metadata"]["name"])
        await writer.update(endpoint, key, lambda old: {**old, "spec": crd["spec"]}, options)
