"""A controller of resolve with a cluster and sources that tests change: everything runs at once, in order."""

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import Content, Effect, Get, Observation, Observe, Outcome, Pull, Put
from pvbus.core.kernel.keys import okey, parse_okey, sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.packagekinds import MIRRORED
from pvbus.core.kernel.packagerows import DIGEST, WROTE, EstablishedRow, LockedRevision, LockRow, SourceRow
from pvbus.core.kernel.records import ESTABLISHED, INSTALLS, LOCK, SOURCES, SyncMarker
from pvbus.core.platform.packaging.imageconfigs import SECRET
from pvbus.core.platform.resolve.controller import ResolveController
from pvbus.core.platform.resolve.plans import Settings
from tests.kit.deciding import drive

PKG = "pkg.crossplane.io"
REGISTRY = "xpkg.example.org/acme"
CHECKED_OBJECTS_MAX = 8


def digest_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def install_key(name: str, kind: str = "Provider") -> str:
    return okey(PKG, kind, "", name)


class Registry:
    """Images by repository and tag. down, refusing: repositories that do not answer, or say no, until their
    entry goes. A refusing one lets in who has the secret of its entry. secrets, hidden_secrets: names of
    Secrets of the cluster, and of those that resolve may not read."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, str]] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.down: set[str] = set()
        self.refusing: dict[str, str] = {}
        self.broken: set[str] = set()
        self.secrets: set[str] = set()
        self.hidden_secrets: set[str] = set()
        self.pulls: list[tuple[str, str]] = []
        self.observations: list[str] = []

    def publish(
        self,
        source: str,
        tag: str,
        *,
        kind: str = "Provider",
        depends: tuple[Mapping[str, Any], ...] = (),
        objects: tuple[Mapping[str, Any], ...] = (),
        crossplane: str = "",
        salt: str = "",
        text: str = "",
    ) -> str:
        """Publish a version; return its digest. depends: items of dependsOn."""
        spec: dict[str, Any] = {"dependsOn": list(depends)}
        if crossplane:
            spec["crossplane"] = {"version": crossplane}
        meta = {
            "apiVersion": "meta.pkg.crossplane.io/v1",
            "kind": kind,
            "metadata": {"name": source.rpartition("/")[2], "annotations": {"salt": salt}},
            "spec": spec,
        }
        documents = [msgspec.json.encode(each).decode() for each in (meta, *objects)]
        whole = text or "\n---\n".join(documents)
        digest = digest_of(whole)
        self.tags.setdefault(source, {})[tag] = digest
        self.files[digest] = {"package.yaml": whole.encode()}
        return digest

    def answer(self, effect: Effect) -> Any:
        if isinstance(effect, Get) and effect.kind == SECRET:
            if effect.name in self.hidden_secrets:
                raise PermanentError(f"secrets {effect.name} is forbidden", reason="Forbidden")
            return {} if effect.name in self.secrets else None
        assert isinstance(effect, Observe | Pull), effect
        if effect.source in self.down:
            raise TransientError("the registry does not answer")
        secret = self.refusing.get(effect.source)
        if secret is not None and secret not in effect.secrets:
            raise PermanentError("not allowed", reason="Unauthorized")
        if isinstance(effect, Observe):
            self.observations.append(effect.source)
            tags = self.tags.get(effect.source)
            if tags is None:
                raise PermanentError("there is no such repository", reason="NotFound")
            return Observation(tuple(tags), {tag: tags[tag] for tag in effect.tags if tag in tags})
        self.pulls.append((effect.source, effect.digest))
        if effect.digest not in self.files:
            raise PermanentError("there is no such image", reason="NotFound")
        if effect.digest in self.broken:
            raise PermanentError("the image has no layer", reason="InvalidContent")
        return Content(effect.digest, self.files[effect.digest])


class ResolveWorld:
    """One lease of one partition. now: wall seconds."""

    def __init__(self, settings: Settings | None = None, registry: Registry | None = None) -> None:
        self.settings = settings
        self.registry = registry or Registry()
        self.now = 1_000_000.0
        self.objects: dict[str, dict[str, Any]] = {}
        self.lock: dict[str, LockRow] = {}
        self.sources: dict[str, msgspec.Struct] = {}
        self.established: dict[str, EstablishedRow] = {}
        self.timers: dict[str, float] = {}
        self.dirty: deque[str] = deque()
        self.steps: list[tuple[Put, ...]] = []
        self.markers: dict[str, SyncMarker] = {}
        self._count = 0
        self.begin()

    def begin(self) -> None:
        """Start a controller on the bus as it is."""
        self.controller = self._loaded()
        self.markers = {}
        self.dirty = deque(self.controller.keys(0))
        self.timers = {}

    def _loaded(self) -> ResolveController:
        controller = ResolveController(partitions=1, settings=self.settings)
        controller.open(0)
        for key, row in (*self.sources.items(),):
            controller.load(SOURCES, 0, key, msgspec.json.encode(row))
        for key, lock in self.lock.items():
            controller.load(LOCK, 0, f"cluster|{key}", msgspec.json.encode(lock))
        for key, done in self.established.items():
            controller.load(ESTABLISHED, 0, f"cluster|{key}", msgspec.json.encode(done))
        for key, obj in self.objects.items():
            controller.load(INSTALLS, 0, f"cluster|{key}", msgspec.json.encode(obj))
        return controller

    def sync(self, state: str = "ok", kinds: Iterable[Kind] = MIRRORED, message: str = "") -> None:
        for kind in kinds:
            marker = SyncMarker(state=state, epoch=1, message=message)  # type: ignore[arg-type]
            self.markers[sync_key(*kind)] = marker
            self._load(INSTALLS, sync_key(*kind), marker)

    def _load(self, topic: str, key: str, row: Any) -> None:
        value = msgspec.json.encode(row) if row is not None else None
        self.mark(*self.controller.load(topic, 0, key, value))

    def mark(self, *keys: str) -> None:
        for key in keys:
            if key not in self.dirty:
                self.dirty.append(key)

    # ------------------------------------------------------------ the cluster

    def put(self, key: str, obj: dict[str, Any] | None) -> None:
        if obj is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = obj
        self._load(INSTALLS, f"cluster|{key}", obj)

    def install(
        self,
        name: str,
        package: str,
        kind: str = "Provider",
        *,
        annotations: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> str:
        """Create or change an install; return its key."""
        key = install_key(name, kind)
        before = self.objects.get(key)
        self._count += 1
        meta = {
            "name": name,
            "uid": before["metadata"]["uid"] if before else f"uid-{name}-{self._count}",
            "generation": self._count,
            "creationTimestamp": before["metadata"]["creationTimestamp"] if before else f"{self._count:08}",
            "annotations": dict(annotations or {}),
            **(metadata or {}),
        }
        version = "v1beta1" if kind == "Package" else "v1"
        self.put(
            key,
            {
                "apiVersion": f"{PKG}/{version}",
                "kind": kind,
                "metadata": meta,
                "spec": {"package": package, **spec},
            },
        )
        return key

    def put_revision(
        self, revision: LockedRevision, kind: str = "Provider", *, is_asked: bool = False
    ) -> str:
        """Write a revision's object as establish does; return its key. is_asked: a user then activates it."""
        self._count += 1
        state = "Active" if revision.is_active else "Inactive"
        name, key = revision.name.rpartition("-")[0], okey(PKG, f"{kind}Revision", "", revision.name)
        self.put(
            key,
            {
                "apiVersion": f"{PKG}/v1",
                "kind": f"{kind}Revision",
                "metadata": {
                    "name": revision.name,
                    "generation": self._count,
                    "annotations": {DIGEST: revision.digest, WROTE: state},
                    "ownerReferences": [{"kind": kind, "name": name, "controller": True}],
                },
                "spec": {
                    "desiredState": "Active" if is_asked else state,
                    "image": f"{revision.source}:{revision.version}",
                    "revision": revision.revision,
                },
            },
        )
        return key

    def activate(self, revision: LockedRevision) -> None:
        """Have a user activate a revision, and decide."""
        self.put_revision(revision, is_asked=True)
        self.run()

    def remove(self, key: str) -> None:
        self.put(key, None)

    def report(self, key: str, row: EstablishedRow | None) -> None:
        """Report what establish did."""
        if row is None:
            self.established.pop(key, None)
        else:
            self.established[key] = row
        self._load(ESTABLISHED, f"cluster|{key}", row)

    # ------------------------------------------------------------ running

    def run(self, limit: int = 10_000) -> None:
        """Decide until nothing is dirty."""
        for _ in range(limit):
            if not self.dirty:
                return self.check_rest()
            self.step(self.dirty.popleft())
        raise AssertionError(f"it never ends: {list(self.dirty)[:5]}")

    def check_rest(self) -> None:
        """Check that no decision was missed: at rest a controller that decides on all changes no row.

        Not in large worlds: they take steps by the hundred.
        """
        if len(self.objects) > CHECKED_OBJECTS_MAX:
            return
        controller = self._loaded()
        for key, marker in self.markers.items():
            controller.load(INSTALLS, 0, key, msgspec.json.encode(marker))
        for _ in range(2):  # the first outcome are requests to ingest
            outcome = self.decide("cluster", controller)
        changed = {put.key: put.row for put in outcome.puts if put.topic == LOCK}
        assert changed == {}, {key: self.lock.get(key.removeprefix("cluster|")) for key in changed}

    def step(self, key: str) -> Outcome:
        outcome = self.decide(key)
        self.commit(key, outcome)
        return outcome

    def decide(self, key: str, controller: ResolveController | None = None) -> Outcome:
        return drive((controller or self.controller).reconcile(0, key, self.now), self.registry.answer)

    def commit(self, key: str, outcome: Outcome) -> None:
        self.timers.pop(key, None)
        if outcome.again_after is not None:
            self.timers[key] = self.now + outcome.again_after
        if outcome.puts:
            self.steps.append(outcome.puts)
        for put in outcome.puts:
            self._keep(put)
            self.mark(*self.controller.store(0, put))

    def _keep(self, put: Put) -> None:
        table: dict[str, Any] = self.lock if put.topic == LOCK else self.sources
        key = put.key.partition("|")[2] if put.topic == LOCK else put.key
        if put.topic not in (LOCK, SOURCES):
            return
        if put.row is None:
            table.pop(key, None)
        else:
            table[key] = put.row

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and run what is due."""
        self.now += seconds
        self.mark(*(key for key, at in self.timers.items() if at <= self.now))
        self.run()

    # ------------------------------------------------------------ reading

    def row(self, name: str, kind: str = "Provider") -> LockRow:
        return self.lock[install_key(name, kind)]

    def source(self, name: str) -> SourceRow:
        row = self.sources[f"cluster|{name}"]
        assert isinstance(row, SourceRow)
        return row

    def active(self, name: str, kind: str = "Provider") -> str:
        """Return the digest of the active revision, "" for none; there are never two."""
        found = [each.digest for each in self.row(name, kind).revisions if each.is_active]
        assert len(found) <= 1
        return found[0] if found else ""


def started(settings: Settings | None = None) -> ResolveWorld:
    """Return a world whose kinds are all listed."""
    world = ResolveWorld(settings)
    world.sync()
    world.run()
    return world


__all__ = ["REGISTRY", "Registry", "ResolveWorld", "install_key", "parse_okey", "started"]
