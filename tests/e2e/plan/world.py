"""A live system in virtual time: the embedded API server with its package store in git, and the services.

Services and users reach the server over HTTP, as in production. Every write of the services is noted, so
that it can be compared with what a plan announced.
"""

import asyncio
import copy
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import kind_of
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.apiserver import control_plane
from pvbus.cli.live import LiveReader
from pvbus.cli.plandocument import Document
from pvbus.core.kernel.topics import SERVICES, topic_specs
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.runtime.preview.changes import replaced
from pvbus.runtime.process.assembly import Service, build_service, is_settled, run_all
from pvbus.runtime.process.settings import ApiServerConfig

QUIET_SECONDS = 30.0
PACKAGES = ("PackageRevision", "PackageRevisionResources")
SHOWN = ("PackageVariant", "PackageRevision")
T = TypeVar("T")


class Sent(NamedTuple):
    """A write of a service, with the object as it was sent."""

    verb: str
    kind: str
    namespace: str
    name: str
    object: Object | None


class NotedCluster:
    """A cluster whose successful writes are noted, but for those of status."""

    def __init__(self, cluster: HttpCluster, sent: list[Sent]) -> None:
        self._cluster = cluster
        self._sent = sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def create(self, resource: Resource, obj: Object) -> Object:
        sent = copy.deepcopy(obj)
        created = await self._cluster.create(resource, obj)
        self._note("create", resource, created, sent)
        return created

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        sent = copy.deepcopy(obj)
        updated = await self._cluster.update(resource, obj, subresource=subresource)
        changes = updated["metadata"].get("resourceVersion") != obj["metadata"].get("resourceVersion")
        if subresource != "status" and changes:
            verb = "updateResources" if resource.kind == "PackageRevisionResources" else "update"
            self._note(verb, resource, updated, sent)
        return updated

    async def patch(
        self, resource: Resource, namespace: str, name: str, patch: Any, *, subresource: str = ""
    ) -> Object:
        patched = await self._cluster.patch(resource, namespace, name, patch, subresource=subresource)
        if subresource != "status":
            self._note("update", resource, patched, patched)
        return patched

    async def delete(self, resource: Resource, namespace: str, name: str, **preconditions: str) -> bool:
        before = await self._cluster.get(resource, namespace, name)
        deleted = await self._cluster.delete(resource, namespace, name, **preconditions)
        if deleted and before is not None and not before["metadata"].get("deletionTimestamp"):
            self._sent.append(Sent("delete", resource.kind, namespace, name, None))
        return deleted

    def _note(self, verb: str, resource: Resource, result: Object, sent: Object) -> None:
        meta = result["metadata"]
        self._sent.append(Sent(verb, resource.kind, meta.get("namespace", ""), meta["name"], sent))


class PlannedWorld:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        cluster: HttpCluster,
        bus: SqliteBus,
        clock: SimulatedClock,
        names: Sequence[str],
    ) -> None:
        self.folder = folder
        self._names = names
        self.cluster = cluster
        self.sent: list[Sent] = []
        self._bus = bus
        self._clock = clock
        self._services: list[Service] = []
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        noted: Any = NotedCluster(self.cluster, self.sent)
        self._services = [build_service(name, self._bus.peer(), noted, self._clock) for name in self._names]
        self._running = asyncio.create_task(run_all(self._services))

    async def stop(self) -> None:
        for service in self._services:
            service.stop()
        if self._running is not None:
            await self._running

    async def settle(self) -> None:
        """Wait until nothing was written for a while, longer than what waits by itself."""
        parts = [(spec.name, number) for spec in topic_specs() for number in range(spec.partitions)]
        since, before = self._clock.monotonic(), (-1, -1)
        while self._clock.monotonic() - since < QUIET_SECONDS:
            await self._clock.sleep(0.5)
            now = (len(self.sent), sum((await self._bus.end_offsets(parts)).values()))
            if now != before or not await is_settled(self._services, self._bus, horizon_seconds=-1.0):
                since, before = self._clock.monotonic(), now
        assert self._running is not None
        assert not self._running.done()

    # ------------------------------------------------------------ as a user

    async def resource(self, kind: Kind) -> Resource:
        found = await self.cluster.resource(kind)
        if found is None:
            self.cluster.forget_resources()
            found = await self.cluster.resource(kind)
        assert found is not None, kind
        return found

    async def all(self, kind: Kind) -> list[Object]:
        return list((await self.cluster.list(await self.resource(kind))).items)

    async def put(self, obj: Object) -> None:
        """Write an object as a user does who replaces what is there."""
        resource = await self.resource(kind_of(obj))
        meta = obj["metadata"]
        live = await self.cluster.get(resource, meta.get("namespace", ""), meta["name"])
        if live is None:
            await self.cluster.create(resource, copy.deepcopy(obj))
        else:
            await self.cluster.update(resource, replaced(obj, live))

    async def delete(self, kind: Kind, namespace: str, name: str) -> None:
        await self.cluster.delete(await self.resource(kind), namespace, name)

    async def approve(self, name: str, namespace: str) -> None:
        """Propose a draft and approve it."""
        resource = await self.resource(Kind("porch.kpt.dev", "PackageRevision"))
        draft = await self.cluster.get(resource, namespace, name)
        assert draft is not None, name
        draft["spec"]["lifecycle"] = "Proposed"
        proposed = await self.cluster.update(resource, draft)
        proposed["spec"]["lifecycle"] = "Published"
        await self.cluster.update(resource, proposed, subresource="approval")

    async def export(self) -> Any:
        """Read what a plan needs, as the command does."""
        reader = LiveReader(self.cluster, "", lambda _: None)
        return await reader.read(every_package=True)


def beside(work: Callable[[], T]) -> T:
    """Run something that has an event loop of its own."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as exc:
            failed.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


@asynccontextmanager
async def live_world(folder: Path, names: Sequence[str] = SERVICES) -> AsyncIterator[PlannedWorld]:
    """Start a system, and end it. names: of its services"""
    folder.mkdir(parents=True, exist_ok=True)
    clock = SimulatedClock(time.time())
    # Nobody else pushes there. Looks go by real time, and virtual waits for it would spin.
    config = ApiServerConfig(fetch_seconds=3600.0, poll_seconds=3600.0)
    async with control_plane(folder / "data", 0, config) as address:
        cluster = await HttpCluster.connect(address.kubeconfig)
        bus = await SqliteBus.open(":memory:", clock=clock)
        await bus.create_topics(topic_specs())
        world = PlannedWorld(folder, cluster, bus, clock, names)
        world.start()
        try:
            yield world
        finally:
            await world.stop()
            await bus.close()
            await cluster.close()


# ---------------------------------------------------------------- packages in git


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def make_repository(folder: Path, name: str, packages: dict[str, dict[str, str]] | None = None) -> None:
    """Make a bare repository. packages: `<package>/<tag>` to files; each is a commit with a tag."""
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main", f"{name}.git")
    if not packages:
        return
    work = folder / name
    git(folder, "clone", "--quiet", f"{name}.git", name)
    for tag, files in packages.items():
        publish(work, tag, files)


def publish(work: Path, tag: str, files: dict[str, str]) -> None:
    package = tag.rpartition("/")[0]
    for path, text in files.items():
        (work / package / path).parent.mkdir(parents=True, exist_ok=True)
        (work / package / path).write_text(text, encoding="utf-8")
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--allow-empty", "--message", tag)
    git(work, "tag", tag)
    git(work, "push", "--quiet", "--tags", "origin", "HEAD:main")


# ---------------------------------------------------------------- comparing


def comparable(obj: Object | None) -> Any:
    """Return what a write means: without what the server sets, and what stands for a commit."""
    if obj is None:
        return None
    plain = msgspec.json.decode(msgspec.json.encode(obj))
    meta = plain["metadata"]
    for field in ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "name"):
        meta.pop(field, None)
    for owner in meta.get("ownerReferences") or ():
        owner.pop("uid", None)
    labels = meta.get("labels") or {}
    if SET_LABEL in labels:
        labels[SET_LABEL] = "uid of the set"
    annotations = meta.get("annotations") or {}
    if MADE_BY in annotations:
        annotations[MADE_BY] = annotations[MADE_BY].partition("@")[0]
    if meta.get("deletionTimestamp"):
        meta["deletionTimestamp"] = "some time"
    plain.pop("status", None)
    resources = (plain.get("spec") or {}).get("resources")
    if resources is not None:
        plain["spec"] = {"resources": {path: _file(text) for path, text in resources.items()}}
    return _without_empty(plain)


SET_LABEL = "config.porch.kpt.dev/packagevariantset"
MADE_BY = "pvbus.dev/made-by"  # name and uid


def _file(text: str) -> Any:
    """Return a file's content; what stands for a commit in a lock differs between plan and git."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return text
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get("upstreamLock"), dict):
            document["upstreamLock"].get("git", {}).pop("commit", None)
    return documents


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        found = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in found.items() if item not in (None, {}, [], "", 0)}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


Line = tuple[str, str, str, str, str]


def lines_of_plan(actions: Sequence[Document]) -> list[Line]:
    """Return the services' writes that a plan announces, one text each, in a fixed order."""
    return sorted(
        _line(a["verb"], a["kind"], a["namespace"], a["name"], a.get("object"))
        for a in actions
        if not a.get("by")
    )


def lines_of_change(sent: Sequence[Sent]) -> list[Line]:
    """Return the services' writes. The former specs of sets, which conditions keeps, are in no plan."""
    return sorted(_line(*write) for write in sent if write.kind != "ControllerRevision")


def _line(verb: str, kind: str, namespace: str, name: str, obj: Object | None) -> Line:
    return kind, namespace, name, verb, msgspec.json.encode(comparable(obj), order="sorted").decode()


def outcome_of(objects: Sequence[Object]) -> dict[str, Any]:
    """Return what there is of variants and revisions afterwards, with conditions that a user looks at."""
    found: dict[str, Any] = {}
    for obj in objects:
        if obj["kind"] not in SHOWN:
            continue
        conditions = {
            c["type"]: (c["status"], c.get("reason", ""))
            for c in (obj.get("status") or {}).get("conditions") or ()
            if obj["kind"] == "PackageVariant"
        }
        found[f"{obj['kind']}/{obj['metadata']['name']}"] = (_spec(obj), conditions)
    return found


def _spec(obj: Object) -> Any:
    spec = comparable(obj)["spec"]
    if obj["kind"] == "PackageRevision":
        for field in ("packageMetadata", "readinessGates", "tasks"):
            spec.pop(field, None)
    return spec
