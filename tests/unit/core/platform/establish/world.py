"""A cluster in memory, packages by digest, and the controller, which can be cut at any effect."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import yaml

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.writes import Write
from pvbus.core.errors import PROGRAM_MISSING, PermanentError, PvbusError
from pvbus.core.kernel.effects import WRITES, Content, Effect, Execute, Executed, Get, Outcome, Pull, Put
from pvbus.core.kernel.packagekinds import CARVEL_REPOSITORY
from pvbus.core.kernel.packagerows import EstablishedRow, Installer, LockedRevision, LockRow
from pvbus.core.kernel.records import ESTABLISHED, INSTALLS, LOCK
from pvbus.core.platform.establish.controller import EstablishController
from pvbus.core.platform.establish.objects import key_of
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.runtime.reconcile.effects import perform
from tests.kit.deciding import PARTITION, at_once, drive_live

PKG = "pkg.crossplane.io"
PROVIDER = Kind(PKG, "Provider")
REVISION = Kind(PKG, "ProviderRevision")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
INSTALL = Kind("packaging.carvel.dev", "PackageInstall")
MIRRORED = {PROVIDER, REVISION, INSTALL, Kind("data.packaging.carvel.dev", "Package"), CARVEL_REPOSITORY}


def crd(name: str, *, text: str = "", scope: str = "Cluster") -> Object:
    """Return the definition of a kind `Name` in `example.org`. text: what tells versions apart."""
    schema = {"openAPIV3Schema": {"type": "object", "description": text}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    plural = f"{name.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.org"},
        "spec": {
            "group": "example.org",
            "names": {"kind": name, "plural": plural},
            "scope": scope,
            "versions": [version],
        },
    }


def package(
    objects: Iterable[Object],
    *,
    kind: str = "Configuration",
    spec: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> bytes:
    """Return the file of a package's image."""
    meta = {
        "apiVersion": "meta.pkg.crossplane.io/v1",
        "kind": kind,
        "metadata": {"name": "package", **metadata},
        "spec": dict(spec or {}),
    }
    return yaml.safe_dump_all([meta, *objects]).encode()


def okey_of(name: str) -> str:
    return f"{PKG}/Provider||{name}"


class EstablishWorld:
    """What outlives a process: the cluster, the bus's rows, and the registry. during: what happens after the
    next effect. programs: those that this machine has, by name. unreadable: kinds that may not be read."""

    def __init__(self, *, installer: Installer = "pvbus") -> None:
        self.cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z", collects_garbage=True)
        for kind, version in (("Provider", "v1"), ("ProviderRevision", "v1"), ("Package", "v1beta1")):
            self.cluster.serve(Resource(PKG, version, kind, f"{kind.lower()}s", False))
        self.cluster.serve(
            Resource("packaging.carvel.dev", "v1alpha1", "PackageInstall", "packageinstalls", True)
        )
        for kind in ("Package", "PackageMetadata"):
            plural = "packages" if kind == "Package" else "packagemetadatas"
            self.cluster.serve(Resource("data.packaging.carvel.dev", "v1alpha1", kind, plural, True))
        self.cluster.serve(
            Resource("packaging.carvel.dev", "v1alpha1", "PackageRepository", "packagerepositories", True)
        )
        self.cluster.serve(Resource("kappctrl.k14s.io", "v1alpha1", "App", "apps", True))
        self.contents: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, PvbusError] = {}
        self.programs: dict[str, Callable[[Execute], Executed]] = {}
        self.lock: dict[str, LockRow] = {}
        self.done: dict[str, EstablishedRow] = {}
        self.effects = 0
        self.installer: Installer = installer
        self.requests = 0
        self.pulls: list[Pull] = []
        self.image_configs: dict[str, Object] = {}
        self.during: list[Callable[[], None]] = []
        self.unreadable: set[str] = set()
        self.start()

    # ------------------------------------------------------------ inputs

    def add_install(self, name: str, **spec: Any) -> Object:
        return self.cluster.put(
            {
                "apiVersion": f"{PKG}/v1",
                "kind": "Provider",
                "metadata": {"name": name},
                "spec": {"package": f"registry.example.org/{name}:v1", **spec},
            }
        )

    def publish(self, digest: str, objects: Iterable[Object], **meta: Any) -> LockedRevision:
        """Publish a package; return its revision but for name, number and state."""
        objects = list(objects)
        self.contents[digest] = {"package.yaml": package(objects, **meta)}
        keys = tuple(key_of(each) for each in objects)
        source = "registry.example.org/package"
        return LockedRevision(name=f"rev-{digest}", revision=1, digest=digest, source=source, objects=keys)

    def order(self, name: str, *revisions: LockedRevision, **fields: Any) -> None:
        """Write a row of the lock for a Provider."""
        obj = self.cluster.peek(PROVIDER, "", name)
        uid = obj["metadata"]["uid"] if obj is not None else ""
        row = LockRow(**{"status": "locked", "uid": uid, "package": name, "revisions": revisions, **fields})
        self.set_lock(f"cluster|{okey_of(name)}", row)

    def set_lock(self, key: str, row: LockRow | None) -> None:
        if row is None:
            self.lock.pop(key, None)
        else:
            self.lock[key] = row
        self.controller.load(LOCK, PARTITION, key, msgspec.json.encode(row) if row is not None else None)

    # ------------------------------------------------------------ the process

    def start(self) -> None:
        """Begin with a new process: only the rows and the cluster are left."""
        self.controller = EstablishController(self.installer)
        self.controller.open(PARTITION)
        for key, done in self.done.items():
            self.controller.load(ESTABLISHED, PARTITION, key, msgspec.json.encode(done))
        for key, row in self.lock.items():
            self.controller.load(LOCK, PARTITION, key, msgspec.json.encode(row))
        for key, config in self.image_configs.items():
            self.controller.load(INSTALLS, PARTITION, key, msgspec.json.encode(config))
        self.mirror()

    def configure(self, name: str, prefix: str, **spec: Any) -> None:
        """Create an ImageConfig, or change it."""
        obj = {
            "apiVersion": f"{PKG}/v1beta1",
            "kind": "ImageConfig",
            "metadata": {"name": name},
            "spec": {"matchImages": [{"prefix": prefix}], **spec},
        }
        key = f"cluster|{PKG}/ImageConfig||{name}"
        self.image_configs[key] = obj
        self.controller.load(INSTALLS, PARTITION, key, msgspec.json.encode(obj))

    def mirror(self) -> None:
        """Tell the controller of what ingest would mirror."""
        present = {
            f"cluster|{key_of(obj)}": obj for kind in MIRRORED for obj in self.cluster.objects_of(kind)
        }
        for key in {*present, *self.lock, *self.done}:
            obj = present.get(key)
            self.controller.load(
                INSTALLS, PARTITION, key, msgspec.json.encode(obj) if obj is not None else None
            )

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Pull):
            self.pulls.append(effect)
            if effect.digest in self.refusals:
                raise self.refusals[effect.digest]
            if effect.digest not in self.contents:
                raise PermanentError("no such content", reason="NotFound")
            return Content(effect.digest, self.contents[effect.digest])
        if isinstance(effect, Execute):
            if effect.program not in self.programs:
                raise PermanentError("no such program", reason=PROGRAM_MISSING)
            return self.programs[effect.program](effect)
        result = await perform(self.cluster, effect)
        if isinstance(effect, WRITES):
            self.requests += not getattr(effect, "is_dry_run", False)
            self.check()
        return result

    def check(self) -> None:
        """Check what must hold at every instant: an object has one controller at most."""
        for obj in self.cluster.objects():
            found = [each for each in obj["metadata"].get("ownerReferences") or () if each.get("controller")]
            assert len(found) <= 1, f"{key_of(obj)} has {len(found)} controllers"

    def reconcile(
        self,
        key: str,
        *,
        crash_at: int | None = None,
        is_after: bool = False,
        now: float = 1000.0,
        during: tuple[int, Callable[[], None]] | None = None,
    ) -> Outcome:
        """Decide one key. crash_at: the effect at which the process ends; is_after: it was done then.
        during: what happens before which effect."""
        started = self.effects

        async def answer(effect: Effect) -> Any:
            if isinstance(effect, Get) and effect.kind.kind in self.unreadable:
                raise PermanentError(f"{effect.kind.kind} is forbidden", reason="Forbidden")
            if during is not None and self.effects - started == during[0]:
                during[1]()
            try:
                return await self.perform(effect)
            finally:
                self.effects += 1
                if self.during:
                    self.during.pop()()

        steps = self.controller.reconcile(PARTITION, key, now)
        crash_after = None if crash_at is None else crash_at + is_after
        outcome = at_once(drive_live(steps, answer, crash_after=crash_after))
        for put in outcome.puts:
            self.store(put)
        return outcome

    def store(self, put: Put) -> None:
        assert put.topic == ESTABLISHED
        if put.row is None:
            self.done.pop(put.key, None)
        else:
            assert isinstance(put.row, EstablishedRow)
            self.done[put.key] = put.row
        self.controller.store(PARTITION, put)

    def settle(self, *names: str, rounds: int = 6) -> dict[str, Outcome]:
        """Decide every key until nothing changes any more."""
        keys = [f"cluster|{okey_of(name)}" for name in names] or sorted({*self.lock, *self.done})
        found: dict[str, Outcome] = {}
        for _ in range(rounds):
            before = (dict(self.done), len(self.cluster.writes))
            for key in keys:
                self.mirror()
                found[key] = self.reconcile(key)
            if before == (self.done, len(self.cluster.writes)):
                return found
        return found

    # ------------------------------------------------------------ looking

    @property
    def changes(self) -> list[Write]:
        """Return the writes but for those of statuses, and of Apps, which are nothing else."""
        return [each for each in self.cluster.writes if each.subresource != "status" and each.kind != "App"]

    def live(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        return self.cluster.peek(kind, namespace, name)

    def controller_of(self, name: str) -> str:
        """Return the revision that controls a definition, "" if there is none."""
        obj = self.cluster.peek(CRD, "", f"{name.lower()}s.example.org")
        references = (obj or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        return next((each["name"] for each in references if each.get("controller")), "")

    def owners_of(self, name: str) -> list[str]:
        obj = self.cluster.peek(CRD, "", f"{name.lower()}s.example.org")
        references = (obj or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        return sorted(each["name"] for each in references)

    def text_of(self, name: str) -> str:
        obj = self.cluster.peek(CRD, "", f"{name.lower()}s.example.org")
        assert obj is not None
        text: str = obj["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"]
        return text

    def states(self, name: str) -> dict[str, str]:
        """Return the desiredState of every revision of an install."""
        return {
            obj["metadata"]["name"]: obj["spec"]["desiredState"]
            for obj in self.cluster.objects_of(REVISION)
            if obj["metadata"]["labels"].get("pkg.crossplane.io/package") == name
        }

    def row(self, name: str) -> EstablishedRow:
        return self.done[f"cluster|{okey_of(name)}"]
