"""Reads the objects that `plan` needs from a live system's API server, and never writes there."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pvbus.adapters.manifests import kind_of
from pvbus.adapters.memory.objects import split_api_version
from pvbus.cli.datafolder import DataPaths
from pvbus.cli.progress import REPOSITORY, SET, VARIANT
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.objectrows import rows_of
from pvbus.core.kernel.objects import owner_name, timestamp
from pvbus.core.kernel.records import OBJECTS
from pvbus.core.variants.inject.locks import Lock, readers
from pvbus.core.variants.inject.mutations import injection_points
from pvbus.core.variants.inject.view import InjectView
from pvbus.ports.cluster import Kind, Object, Resource

if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

REVISION = Kind(PORCH_GROUP, "PackageRevision")
FILES = Kind(PORCH_GROUP, "PackageRevisionResources")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
SECRET = Kind("", "Secret")
STATIC = (SET, VARIANT, REPOSITORY, REVISION)
PARALLEL_MAX = 16  # concurrent requests: more would only wait in the API server
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LEFT_OUT = (
    "Secret data",
    "metadata.managedFields",
    f"the annotation {LAST_APPLIED}",
    "package files of older published revisions of PackageVariants",
    "objects of kinds that no set selects and no package injects",
)
EXPORT_API = "pvbus.dev/v1"
EXPORT_KIND = "ExportList"

Progress = Callable[[str], None]


class Export(msgspec.Struct, kw_only=True, rename="camel"):
    """The part of a live system that `plan` needs. A file holds one export.

    exported_at: when it was read
    server: the package server, `porch` or `pvbus`
    namespace: the namespaces that were read, separated by commas; "" for all
    left_out: what is left out, in words
    resources: the requested kinds that are served
    absent: the requested kinds that are not served
    without_files: `namespace/name` of the PackageRevisions without files
    items: the objects
    """

    api_version: str = EXPORT_API
    kind: str = EXPORT_KIND
    exported_at: str = ""
    server: str = "porch"
    namespace: str = ""
    left_out: tuple[str, ...] = LEFT_OUT
    resources: list[Resource] = []
    absent: list[Kind] = []
    without_files: list[str] = []
    items: list[dict[str, Any]] = []


@asynccontextmanager
async def connect_live(data: str | None, kubeconfig: str | None) -> "AsyncIterator[HttpCluster]":
    """Connect to the live system that the options name. Raises UsageError, TransientError."""
    path = Path(kubeconfig) if kubeconfig else DataPaths(Path(data or "")).kubeconfig
    if not path.exists():
        hint = "check the path" if kubeconfig else f"start it first: pvbus up --data {data}"
        raise UsageError(f"{path}: no such file, so there is no live system to plan against; {hint}")
    # Imported here: it takes half of the start-up time of a plan of files.
    from pvbus.adapters.kubernetes.cluster import HttpCluster

    cluster = await HttpCluster.connect(path)
    try:
        yield cluster
    except TransientError as exc:
        raise TransientError(
            f"the API server of {path} does not answer: {exc}. A plan without it needs files "
            "only: pvbus plan -f EXPORT -f CHANGES, see pvbus export"
        ) from exc
    finally:
        await cluster.close()


class LiveReader:
    """Reads step by step; `export` holds the objects read so far."""

    def __init__(self, cluster: "HttpCluster", namespace: str, progress: Progress) -> None:
        self._cluster = cluster
        self._namespace = namespace or None
        self._progress = progress
        self._asked: set[Kind] = set()
        self._with_files: set[tuple[str, str]] = set()
        self.export = Export(namespace=namespace, exported_at=_now())

    async def read(self, changes: Sequence[Object] = (), *, every_package: bool) -> Export:
        """Read the objects that the sets, variants and changes refer to.

        every_package: also read the files of packages without a reference yet, for later changes.
        """
        self.export.server = "pvbus" if "+pvbus" in await self._cluster.server_version() else "porch"
        for kind in STATIC:
            await self.read_kind(kind)
            if kind in (SET, VARIANT) and kind in self.export.absent:
                raise PermanentError(
                    f"the API server does not serve {kind.kind} ({kind.group}): install Porch's "
                    "CustomResourceDefinitions there, or choose another --kubeconfig",
                    reason="NoMatch",
                )
        for kind in (*selected_kinds([*self.of(SET), *changes]), *map(kind_of, changes)):
            await self.read_kind(kind)
        variants = [*self.of(SET), *self.of(VARIANT), *changes]
        names = _with_wanted_files(self.of(REVISION), variants, every_package=every_package)
        await self.read_files(names)
        if self.export.server == "pvbus":
            await self.read_files(_commits(self.of(REVISION)), may_lack=True)
        for kind in injected_kinds(self.of(FILES)):
            await self.read_kind(kind)
        return self.export

    def of(self, kind: Kind) -> list[Object]:
        return [obj for obj in self.export.items if kind_of(obj) == kind]

    async def read_kind(self, kind: Kind) -> None:
        """Read all objects of a kind, once."""
        if kind in self._asked:
            return
        self._asked.add(kind)
        versions = await self._cluster.versions(kind)
        if not versions:
            self.export.absent.append(kind)
            return
        for version in versions:
            resource = await self._cluster.resource(kind, version=version)
            if resource is not None:
                self.export.resources.append(resource)
        preferred = self.export.resources[-len(versions)]
        self._progress(f"reading {kind.kind} objects")
        namespace = self._namespace if preferred.namespaced else None
        listing = await self._cluster.list(preferred, namespace)
        for obj in listing.items:
            self.export.items.append(cleaned({"apiVersion": preferred.api_version, "kind": kind.kind, **obj}))
        await self._read_definition(preferred)

    async def _read_definition(self, resource: Resource) -> None:
        """Read the CustomResourceDefinition of a kind, if there is one: a plan can delete it, too."""
        if resource.group in (CONFIG_GROUP, PORCH_GROUP, ""):
            return
        crds = await self._cluster.resource(CRD)
        found = await self._cluster.get(crds, "", f"{resource.plural}.{resource.group}") if crds else None
        if found is not None:
            self.export.items.append(cleaned(found))

    async def read_files(self, names: Iterable[tuple[str, str]], *, may_lack: bool = False) -> None:
        """Read the files of PackageRevisions, by namespace and name.

        may_lack: whether the files may be gone
        """
        wanted = [name for name in names if name not in self._with_files]
        self._with_files.update(wanted)
        resource = await self._cluster.resource(FILES)
        if resource is None or not wanted:
            self.export.without_files += [f"{namespace}/{name}" for namespace, name in wanted]
            return
        free = asyncio.Semaphore(PARALLEL_MAX)
        done = 0

        async def one(namespace: str, name: str) -> Object | None:
            nonlocal done
            async with free:
                found = await self._cluster.get(resource, namespace, name)
            done += 1
            self._progress(f"read the files of {done} of {len(wanted)} package revisions")
            return found

        for (namespace, name), found in zip(
            wanted, await asyncio.gather(*(one(*name) for name in wanted)), strict=True
        ):
            if found is None and may_lack:
                continue
            if found is None:
                self.export.without_files.append(f"{namespace}/{name}")
            else:
                self.export.items.append(cleaned(found))


def selected_kinds(objects: Iterable[Object]) -> list[Kind]:
    """Return the kinds that sets select their targets from."""
    found: dict[Kind, None] = {}
    for obj in objects:
        if kind_of(obj) != SET:
            continue
        for target in _list((obj.get("spec") or {}).get("targets")):
            selector = target.get("objectSelector") if isinstance(target, Mapping) else None
            if isinstance(selector, Mapping) and selector.get("kind"):
                group, _ = split_api_version(str(selector.get("apiVersion") or "v1"))
                found[Kind(group, str(selector["kind"]))] = None
    return list(found)


def injected_kinds(files: Iterable[Object]) -> list[Kind]:
    """Return the kinds that packages have injection points for."""
    found: dict[Kind, None] = {}
    seen: set[int] = set()
    for obj in files:
        texts = {
            path: text
            for path, text in ((obj.get("spec") or {}).get("resources") or {}).items()
            if "config-injection" in text and hash(text) not in seen
        }
        seen.update(hash(text) for text in texts.values())
        if texts:
            found.update({Kind(point.group, point.kind): None for point in injection_points(texts).points})
    return list(found)


def _with_wanted_files(
    revisions: Iterable[Object], users: Iterable[Object], *, every_package: bool
) -> Iterator[tuple[str, str]]:
    """Yield the revisions whose files a plan needs.

    They are the upstreams of sets and variants, the open drafts of variants, and of each package of a variant
    the published revision of the highest number.

    every_package: whether to read packages that no variant owns, too
    """
    upstreams = set()
    for user in users:
        upstream = (user.get("spec") or {}).get("upstream") or {}
        if isinstance(upstream, Mapping):
            upstreams.add(
                (user["metadata"].get("namespace", "default"), upstream.get("repo"), upstream.get("package"))
            )
    latest: dict[tuple[Any, ...], Object] = {}
    for obj in revisions:
        spec, meta = obj.get("spec") or {}, obj["metadata"]
        package = (meta.get("namespace", ""), spec.get("repository"), spec.get("packageName"))
        owned = owner_name(obj, VARIANT.kind) != ""
        is_open = spec.get("lifecycle") not in ("Published", "DeletionProposed")
        if package in upstreams or (every_package and not owned) or (owned and is_open):
            yield meta.get("namespace", ""), meta["name"]
        elif owned:
            known = latest.get(package)
            if known is None or known["spec"].get("revision", 0) < spec.get("revision", 0):
                latest[package] = obj
    for obj in latest.values():
        yield obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _commits(revisions: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield `<revision>@<commit>` for the drafts that variants have taken, which may have gone on since."""
    held = {(obj["metadata"].get("namespace", ""), lock) for obj in revisions if (lock := _draft_lock(obj))}
    if not held:
        return
    view = InjectView(1)
    for obj in revisions:
        for row in rows_of(REVISION, obj, (OBJECTS,)):
            view.load_object(0, row.key, row.value)
    for namespace, lock in sorted(held):
        for reader in readers(lock, view.from_directory(namespace, lock.repo, lock.directory)):
            yield namespace, f"{reader.name}@{lock.commit}"


def _draft_lock(obj: Object) -> Lock | None:
    """Return the lock on a draft upstream of a variant's revision."""
    lock = Lock.of(obj) if owner_name(obj, VARIANT.kind) else None
    return lock if lock is not None and lock.is_open else None


def cleaned(obj: Object) -> Object:
    """Return an object without Secret data and the metadata that a plan does not need."""
    metadata = {
        key: value for key, value in obj["metadata"].items() if key not in ("managedFields", "selfLink")
    }
    annotations = metadata.get("annotations") or {}
    if LAST_APPLIED in annotations:
        metadata["annotations"] = {key: value for key, value in annotations.items() if key != LAST_APPLIED}
    result = {**obj, "metadata": metadata}
    if kind_of(obj) == SECRET:
        for field in ("data", "stringData"):
            result.pop(field, None)
    return result


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _now() -> str:
    return timestamp(time.time())
