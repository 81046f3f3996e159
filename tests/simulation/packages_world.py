"""Packages that depend on each other, in virtual time: registries, ingest, resolve, establish and users."""

import asyncio
import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import Content, Observation
from pvbus.core.kernel.packagerows import EstablishedRow, LockRow, ScopedKey
from pvbus.core.kernel.records import ESTABLISHED, INSTALLS, LOCK
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.runtime.process.assembly import Service, Surroundings, build_service
from pvbus.runtime.process.settings import ServicesConfig
from tests.kit.clocks import ProcessClock
from tests.kit.faults import Faults, FaultyBus, FaultyCluster
from tests.kit.processes import Process
from tests.simulation.cluster import CRD, PARTITIONS, WatchedCluster
from tests.simulation.packages_judge import (
    INSTALL_KINDS,
    PAGE,
    PKG,
    Judge,
    annotation,
    controllers_of,
    is_install,
    is_revision,
    key_of,
    owners_of,
)
from tests.simulation.world import Running, SimulatedWorld

SERVICES = ("ingest", "resolve", "establish")
REGISTRY = "xpkg.example.org/acme"
OBSERVE_SECONDS = 60.0
QUIET_SECONDS = 700.0
"""Longer than establish waits until it looks at the cluster again, and than a source is left alone."""

_row = msgspec.json.Decoder(LockRow)
_done = msgspec.json.Decoder(EstablishedRow)


def crd(name: str, *, text: str = "") -> Object:
    """Return the definition of a kind in `example.org`. text: what tells versions apart."""
    schema = {"openAPIV3Schema": {"type": "object", "description": text}}
    plural = f"{name.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.org"},
        "spec": {
            "group": "example.org",
            "names": {"kind": name, "plural": plural},
            "scope": "Cluster",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


class Published(NamedTuple):
    """A content. depends: (source, lowest version, version that is too high), "" for no bound."""

    digest: str
    files: Mapping[str, bytes]
    kind: str = "Provider"
    depends: tuple[tuple[str, str, str], ...] = ()
    objects: tuple[str, ...] = ()
    is_broken: bool = False


class Registries:
    """Where packages are published. tags: of each source. down: sources that do not answer. wrong: sources
    that send other bytes than they were asked for, as a damaged mirror does."""

    def __init__(self, faults: Faults) -> None:
        self.tags: dict[str, dict[str, str]] = {}
        self.contents: dict[str, Published] = {}
        self.down: set[str] = set()
        self.wrong: set[str] = set()
        self._faults = faults

    def publish(
        self,
        source: str,
        tag: str,
        names: Sequence[str] = (),
        *,
        kind: str = "Provider",
        depends: Sequence[tuple[str, str, str]] = (),
        salt: str = "",
        text: str = "",
    ) -> str:
        """Publish a version; return its digest. names: of the kinds that it defines. text: the whole file
        instead, which cannot be used."""
        objects = [crd(name, text=f"{source}:{tag}{salt}") for name in names]
        items = [_dependency(*each) for each in depends]
        meta = {
            "apiVersion": "meta.pkg.crossplane.io/v1",
            "kind": kind,
            "metadata": {"name": source, "annotations": {"salt": f"{tag}{salt}"}},
            "spec": {"dependsOn": items},
        }
        whole = text or "\n---\n".join(msgspec.json.encode(each).decode() for each in (meta, *objects))
        digest = f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"
        self.tags.setdefault(f"{REGISTRY}/{source}", {})[tag] = digest
        files = {"package.yaml": whole.encode()}
        keys = tuple(map(key_of, objects))
        self.contents[digest] = Published(digest, files, kind, tuple(depends), keys, bool(text))
        return digest

    async def observe(self, source: str, tags: Sequence[str], secrets: Sequence[str]) -> Observation:
        await self._answers(source)
        found = self.tags.get(source)
        if found is None:
            raise PermanentError(f"{source}: there is no such repository", reason="NotFound")
        return Observation(tuple(found), {tag: found[tag] for tag in tags if tag in found})

    async def pull(self, source: str, digest: str, secrets: Sequence[str]) -> Content:
        await self._answers(source)
        if source in self.wrong:
            self._faults.counts["contents with another digest"] += 1
            message = f"{source}@{digest}: what was sent has another digest"
            raise PermanentError(message, reason="DigestMismatch")
        found = self.contents.get(digest)
        if found is None:
            raise PermanentError(f"{source}@{digest}: there is no such image", reason="NotFound")
        return Content(digest, found.files)

    async def _answers(self, source: str) -> None:
        faults = self._faults
        await asyncio.sleep(faults.random.uniform(0.01, 0.1))
        if faults.hits(faults.slow):
            await asyncio.sleep(faults.random.uniform(1.0, 30.0))
        if source in self.down or faults.hits(faults.unavailable * 3):
            faults.counts["sources down"] += 1
            raise TransientError(f"{source}: connection refused")

    async def close(self) -> None:
        return


def _dependency(source: str, lowest: str, below: str) -> Object:
    bounds = [f">={lowest}"] if lowest else []
    bounds += [f"<{below}"] if below else []
    return {"provider": f"{REGISTRY}/{source}", "version": ", ".join(bounds)}


class JudgedCluster(WatchedCluster):
    """Tells the world of each write with what was there before."""

    world: "PackagesWorld"

    def _wrote(self, verb: str, obj: Object, *, subresource: str = "", **more: Any) -> None:
        super()._wrote(verb, obj, subresource=subresource, **more)
        self.world.judged(verb, more.get("before"), obj, subresource)


class PackagesWorld(SimulatedWorld):
    """Users have installs, revisions and objects of their own. A user's own objects are in `mine`."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, watched=False)
        self.judge = Judge()
        self.registries = Registries(self.faults)
        self.mine: dict[str, Object] = {}
        self.cluster = JudgedCluster(now=self._stamp)
        self.cluster.world = self
        self.handled: set[str] = set()
        for kind in INSTALL_KINDS:
            version = "v1beta1" if kind == "Package" else "v1"
            for each in (kind, f"{kind}Revision"):
                self.cluster.serve(Resource(PKG, version, each, f"{each.lower()}s", False))
        self.cluster.serve(Resource(PKG, "v1beta1", PAGE, "packagelocks", False))
        for kind, group in (("PackageInstall", "packaging"), ("Package", "data.packaging")):
            self.cluster.serve(Resource(f"{group}.carvel.dev", "v1alpha1", kind, f"{kind.lower()}s", True))

    # ------------------------------------------------------------ services

    def _build(self, service: str, bus: FaultyBus, cluster: FaultyCluster, clock: ProcessClock) -> Service:
        return build_service(
            service,
            bus,
            cluster,
            clock,
            ServicesConfig(observe_seconds=OBSERVE_SECONDS),
            Surroundings(sources=self.registries, nonce=self._nonce, jitter=self.faults.random.uniform),
            partitions=PARTITIONS,
        )

    def add_worker(self, service: str) -> Running:
        running = super().add_worker(service)
        running.bus.on_step = partial(self._stepped, running.process)
        return running

    def _stepped(self, process: Process, lease: Lease, outputs: Sequence[Output]) -> None:
        for output in outputs:
            key = output.key.decode()
            if output.topic == LOCK and not key.startswith("~"):
                row = _row.decode(output.value) if output.value is not None else None
                self.judge.locked(ScopedKey.parse(key).rest, row)
            elif output.topic == ESTABLISHED:
                rest = ScopedKey.parse(key).rest
                self.judge.established.pop(rest, None)
                if output.value is not None:
                    self.judge.established[rest] = _done.decode(output.value)

    async def begin(self) -> None:
        await self.start(SERVICES)

    async def empty_bus(self) -> None:
        """Lose the bus with all its rows, and start again. The cluster is as it was."""
        for name in list(self.running):
            await self.kill(name)
        await self.bus.close()
        self.judge.lock.clear()
        self.judge.established.clear()
        if self._collector is not None:
            self._collector.cancel()
        self._collector = None
        await self.begin()

    # ------------------------------------------------------------ the cluster

    def judged(self, verb: str, before: Object | None, after: Object, subresource: str) -> None:
        if not self.by_user:
            self.judge.wrote(verb, before, after, subresource)

    async def _collecting(self) -> None:
        """Collect garbage: delete what has lost all owners; of others only the references that are stale."""
        while True:
            await asyncio.sleep(2.0)
            uids = {obj["metadata"]["uid"] for obj in self.cluster.objects()}
            for obj in self.cluster.objects():
                owners = owners_of(obj)
                left = [each for each in owners if each["uid"] in uids]
                if owners and not left:
                    await self._user_delete(obj)
                elif left != owners:
                    changed = copy.deepcopy(obj)
                    changed["metadata"]["ownerReferences"] = left
                    self.cluster.put(changed)

    # ------------------------------------------------------------ users

    def change(self, obj: Object) -> Object:
        """Write an object as a user does: one whole update."""
        current = next((each for each in self.cluster.objects() if key_of(each) == key_of(obj)), None)
        obj = copy.deepcopy(obj)
        if current is not None and current.get("spec") != obj.get("spec"):
            obj["metadata"]["generation"] = current["metadata"].get("generation", 1) + 1
        if current is None:
            self._number += 1
            obj["metadata"]["uid"] = f"uid-{self._number}"
        return self.cluster.put(obj)

    def install(self, name: str, source: str, tag: str, kind: str = "Provider", **spec: Any) -> str:
        """Install a package, or change its install; return its key."""
        current = self.find(Kind(PKG, kind), name, "")
        version = "v1beta1" if kind == "Package" else "v1"
        obj: Object = (
            copy.deepcopy(current)
            if current is not None
            else {
                "apiVersion": f"{PKG}/{version}",
                "kind": kind,
                "metadata": {"name": name},
                "spec": {},
            }
        )
        obj["spec"] = {**obj["spec"], "package": f"{REGISTRY}/{source}:{tag}", **spec}
        self.change(obj)
        return key_of(obj)

    def own(self, obj: Object, *, controller: bool = False) -> None:
        """Put an object of a user's own, with a controller that is nobody of ours, or without."""
        obj = copy.deepcopy(obj)
        if controller:
            holder = self.change(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "holder"}, "data": {}}
            )
            obj["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "holder",
                    "uid": holder["metadata"]["uid"],
                    "controller": True,
                }
            ]
        stored = self.change(obj)
        self.mine[key_of(stored)] = stored

    async def drop(self, obj: Object) -> None:
        await self._user_delete(obj)

    def installs(self) -> list[Object]:
        return [obj for obj in self.cluster.objects() if is_install(obj)]

    def revisions(self) -> list[Object]:
        return [obj for obj in self.cluster.objects() if is_revision(obj)]

    def packaged(self) -> list[Object]:
        return [obj for obj in self.objects(CRD) if key_of(obj) not in self.mine]

    def desire(self, revision: Object, state: str) -> None:
        """Activate or deactivate a revision by hand."""
        changed = copy.deepcopy(revision)
        changed["spec"]["desiredState"] = state
        self.change(changed)

    def controller_of(self, name: str) -> str:
        """Return the revision that controls a definition, "" if there is none."""
        obj = self.find(CRD, f"{name.lower()}s.example.org", "")
        return next((str(each["name"]) for each in controllers_of(obj)), "")

    # ------------------------------------------------------------ rest

    async def rest(self, *, quiet: float = QUIET_SECONDS, limit: float = 20_000.0) -> None:
        """Wait until nothing is written any more but what is seen of the sources."""
        end, since, last = self.clock.now() + limit, self.clock.now(), None
        while self.clock.now() - since < quiet:
            await asyncio.sleep(5.0)
            for running in self.running.values():
                if running.task.done():
                    running.task.result()
                    raise AssertionError(f"{running.name} ended")
            ends = await self.bus.end_offsets(
                [(topic, p) for topic in (INSTALLS, LOCK, ESTABLISHED) for p in range(PARTITIONS)]
            )
            state = (len(self.cluster.writes), sum(ends.values()))
            if state != last:
                last, since = state, self.clock.now()
            assert self.clock.now() < end, f"never quiet: {self._latest()}"

    def lock(self) -> dict[str, LockRow]:
        return {ScopedKey.parse(k).rest: _row.decode(v) for k, v in self.table(LOCK).items() if "|" in k}

    def done(self) -> dict[str, EstablishedRow]:
        return {ScopedKey.parse(k).rest: _done.decode(v) for k, v in self.table(ESTABLISHED).items()}

    def check_rest(self) -> None:
        """Check all that must hold while nothing happens."""
        assert self.judge.lock == self.lock(), "the judge knows the lock"
        assert self.judge.established == self.done()
        problems = self.judge.at_rest(self.cluster.objects())
        assert problems == [], "\n".join(problems)
        for key, obj in self.mine.items():
            live = next((each for each in self.cluster.objects() if key_of(each) == key), None)
            assert live == obj, f"{key} is a user's own, and was changed"
        self.check_pages()
        assert self.faults.broken == [], self.faults.broken

    def check_pages(self) -> None:
        """Check that the published lock names the controller of each definition that packages have."""
        shown: dict[str, str] = {}
        for page in self.objects(Kind(PKG, PAGE)):
            shown |= page["spec"].get("customResourceDefinitions") or {}
        for row in self.lock().values():
            for each in row.revisions if row.status == "locked" else ():
                for key in each.objects if each.is_active else ():
                    assert shown.get(key.rpartition("|")[2]) == each.name, f"the page differs at {key}"

    async def check_restart(self) -> None:
        """Check that a restart of all services at rest writes nothing."""
        writes, lock, done = len(self.cluster.writes), self.lock(), self.done()
        await self.stop()
        await self.begin()
        await self.rest()
        extra = [f"{w.verb} {w.kind} {w.name} {w.subresource}" for w in self.cluster.writes[writes:]]
        assert extra == [], f"a restart at rest writes: {extra}"
        assert (self.lock(), self.done()) == (lock, done)


__all__ = ["REGISTRY", "SERVICES", "PackagesWorld", "annotation", "crd", "key_of"]
