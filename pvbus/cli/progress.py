"""The progress of an installation: counted from the bus's tables, verified with the API server."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from pvbus.cli.installprogress import INSTALL_KINDS, UNREPORTED, InstallObject, Judgement
from pvbus.core.api.variants import CONFIG_GROUP, Condition
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import INSTALLS, RESULTS, SETS, VARIANTS, ResultRow
from pvbus.core.variants.severity import STOPS
from pvbus.ports.bus import Bus, Record
from pvbus.ports.cluster import Cluster, Kind

SET = Kind(CONFIG_GROUP, "PackageVariantSet")
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
REPOSITORY = Kind(CONFIG_GROUP, "Repository")
KINDS = {SETS: SET.kind, VARIANTS: VARIANT.kind}


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class Judged(msgspec.Struct):
    """The part of an object that decides whether it is ready."""

    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def ready(self) -> bool:
        """Ready=True for the current generation, and the object is not being deleted."""
        meta = self.metadata
        if meta.deletion_timestamp is not None:
            return False
        ready = condition_of(self.status.conditions, "Ready")
        return ready is not None and ready.status == "True" and ready.observed_generation >= meta.generation

    @property
    def why(self) -> str:
        """The reason why the object is not ready, as a message."""
        if self.metadata.deletion_timestamp is not None:
            return "is being deleted"
        for kind in STOPS:
            condition = condition_of(self.status.conditions, kind)
            if condition is not None and condition.status == "True":
                return f"{kind} ({condition.reason}): {condition.message}"
        ready = condition_of(self.status.conditions, "Ready")
        if ready is None or ready.observed_generation < self.metadata.generation:
            return UNREPORTED
        return f"not Ready ({ready.reason}): {ready.message}"


_judged = msgspec.json.Decoder(Judged)
_result = msgspec.json.Decoder(ResultRow)
_install = msgspec.json.Decoder(InstallObject)


class Trouble(NamedTuple):
    """An object that is not ready, and why.

    kind: its kind
    name: its namespace and name
    why: why it is not ready
    waiting: what it waits for
    options: command-line options for the advised command
    see: the advised command, "" for that of the kind
    """

    kind: str
    name: Key
    why: str
    waiting: tuple[str, ...] = ()
    options: str = ""
    see: str = ""

    @property
    def advice(self) -> str:
        """The command that shows more."""
        if self.see:
            return self.see
        if self.kind == REPOSITORY.kind:
            return f"kubectl describe repository -n {self.name.namespace} {self.name.name}"
        flag = "--set " if self.kind == SET.kind else ""
        return f"pvbus explain {flag}{self.name}{self.options}"

    def __str__(self) -> str:
        waiting = f"; waits for {', '.join(self.waiting)}" if self.waiting else ""
        name = self.name if self.name.namespace else self.name.name
        return f"{self.kind} {name}: {self.why}{waiting}\n    see: {self.advice}"


class Tally(NamedTuple):
    """Counts of all objects and of ready ones."""

    sets: int = 0
    sets_ready: int = 0
    variants: int = 0
    variants_ready: int = 0
    installs: int = 0
    installs_ready: int = 0

    def __str__(self) -> str:
        text = (
            f"sets {self.sets_ready}/{self.sets} ready, variants {self.variants_ready}/{self.variants} ready"
        )
        return f"{text}, installs {self.installs_ready}/{self.installs} ready" if self.installs else text

    @property
    def complete(self) -> bool:
        return (
            self.sets == self.sets_ready
            and self.variants == self.variants_ready
            and self.installs == self.installs_ready
        )


class Progress:
    """Follows sets, variants, results and installs on the bus.

    It stores only whether each is ready, and what variants wait for.

    has_installs: whether installs count; without the services that install them they never get ready
    """

    def __init__(self, bus: Bus, partitions: int, *, has_installs: bool = False) -> None:
        self.has_installs = has_installs
        topics = (SETS, VARIANTS, RESULTS, *((INSTALLS,) if has_installs else ()))
        topic_partitions = [(topic, number) for topic in topics for number in range(partitions)]
        self._reader = bus.reader(dict.fromkeys(topic_partitions, 0))
        self._ready: dict[str, dict[str, bool]] = {SETS: {}, VARIANTS: {}, INSTALLS: {}}
        self._waiting: dict[str, tuple[str, ...]] = {}

    async def update(self, seconds: float) -> None:
        """Read all records that are there or arrive within this time."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            left = deadline - asyncio.get_running_loop().time()
            for record in await self._reader.poll(timeout_seconds=max(left, 0.0), max_records=5_000):
                self._take(record)
            if left <= 0:
                return

    def _take(self, record: Record) -> None:
        key = record.key.decode()
        if is_marker(key):
            return
        if record.topic == RESULTS:
            self._waiting.pop(key, None)
            if record.value is not None and (waiting := _result.decode(record.value).waiting):
                self._waiting[key] = waiting
        elif record.value is None:
            self._ready[record.topic].pop(key, None)
        elif record.topic == INSTALLS:
            if (obj := _install.decode(record.value)).is_install:
                self._ready[INSTALLS][key] = obj.judge().is_ready
        else:
            self._ready[record.topic][key] = _judged.decode(record.value).ready

    @property
    def tally(self) -> Tally:
        counts = [n for each in (SETS, VARIANTS, INSTALLS) for n in _count(self._ready[each].values())]
        return Tally(*counts)

    def waiting(self, key: str) -> tuple[str, ...]:
        """Return the things that a variant waits for, as the service `inject` reported them."""
        return self._waiting.get(key, ())

    async def close(self) -> None:
        await self._reader.close()


def _count(ready: Iterable[bool]) -> tuple[int, int]:
    """Return how many there are, and how many of them are ready."""
    values = list(ready)
    return len(values), sum(values)


async def judge(cluster: Cluster, progress: Progress) -> tuple[Tally, list[Trouble]]:
    """Read from the API server which sets, variants, Repositories and installs are not ready, and why."""
    found: dict[Kind, list[Judged]] = {}
    for kind in (SET, VARIANT, REPOSITORY):
        resource = await cluster.resource(kind)
        items = (await cluster.list(resource)).items if resource is not None else []
        found[kind] = [msgspec.convert(item, Judged) for item in items]
    troubles = [
        _trouble(kind, obj, progress) for kind, objects in found.items() for obj in _not_ready(kind, objects)
    ]
    installs = await _installs(cluster) if progress.has_installs else []
    troubles += [_trouble_of(each) for each in installs if not each.is_ready]
    ready = ([o.ready for o in found[SET]], [o.ready for o in found[VARIANT]], [o.is_ready for o in installs])
    return Tally(*(n for each in ready for n in _count(each))), troubles


async def _installs(cluster: Cluster) -> list[Judgement]:
    found: list[Judgement] = []
    for kind in INSTALL_KINDS:
        resource = await cluster.resource(kind)
        items = (await cluster.list(resource)).items if resource is not None else []
        version = f"{kind.group}/{resource.version}" if resource is not None else ""
        whole = ({"apiVersion": version, "kind": kind.kind, **item} for item in items)
        found += [msgspec.convert(item, InstallObject).judge() for item in whole]
    return found


def _trouble_of(install: Judgement) -> Trouble:
    return Trouble(install.kind, Key(install.namespace, install.name), install.why, see=install.advice)


def _not_ready(kind: Kind, objects: Iterable[Judged]) -> Iterable[Judged]:
    if kind != REPOSITORY:
        return [obj for obj in objects if not obj.ready]
    return [obj for obj in objects if not _is_synced(obj)]


def _is_synced(obj: Judged) -> bool:
    """Return whether a Repository is ready; its condition has no observedGeneration."""
    ready = condition_of(obj.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def _trouble(kind: Kind, obj: Judged, progress: Progress) -> Trouble:
    key = Key(obj.metadata.namespace, obj.metadata.name)
    return Trouble(kind.kind, key, obj.why, progress.waiting(str(key)) if kind == VARIANT else ())


def condition_of(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def unsettled_repositories(troubles: Iterable[Trouble]) -> list[Trouble]:
    """Return the Repositories that have no condition yet: until then the installation is not stalled."""
    return [t for t in troubles if t.kind == REPOSITORY.kind and t.why == UNREPORTED]
