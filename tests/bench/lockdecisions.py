"""The decision of resolve alone, at several sizes of a scope: a controller with its tables, and no bus."""

import gc
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Outcome, Put
from pvbus.core.kernel.keys import ObjectKey, sync_key
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP, MIRRORED
from pvbus.core.kernel.packagerows import SCOPE, LockRow, SourceRow
from pvbus.core.kernel.records import INSTALLS, LOCK, SOURCES, SyncMarker
from pvbus.core.platform.packaging.reading import CROSSPLANE_OWNER
from pvbus.core.platform.packaging.xpkg import package_meta
from pvbus.core.platform.resolve.controller import ResolveController
from tests.bench import packagecatalog as catalog
from tests.bench.children import resident_bytes

PARTITION = 0
NOW = 1_000_000.0
ROUNDS_MAX = 20


class Scope:
    """A controller whose cluster and sources answer at once: what it locks exists."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._created = 0
        self._named: set[str] = set()
        self.lock: dict[str, LockRow] = {}
        self.controller = ResolveController(partitions=1)
        self.controller.open(PARTITION)
        for kind in MIRRORED:
            self._load(INSTALLS, sync_key(*kind), SyncMarker(state="ok", epoch=1))
        for number in range(count):
            self.publish(number, catalog.TAG)

    def _load(self, topic: str, key: str, row: Any) -> None:
        self.controller.load(topic, PARTITION, key, msgspec.json.encode(row))

    def publish(self, number: int, content: str) -> None:
        """Let the tag of a source have been observed, and its content read: that of this version."""
        name, found = catalog.source(number), catalog.content(number, content, self._count)
        row = SourceRow(tags=(catalog.TAG,), digests={catalog.TAG: found.digest}, observed_at=NOW)
        self._load(SOURCES, f"{SCOPE}|{name}", row)
        self._load(SOURCES, f"{SCOPE}|{name}|{found.digest}", package_meta(found.files))

    def install(self, obj: dict[str, Any]) -> None:
        self._created += 1
        name = obj["metadata"]["name"]
        metadata = {"uid": f"uid-{name}", "generation": 1, "creationTimestamp": f"{self._created:08}"}
        whole = {**obj, "metadata": {**metadata, **obj["metadata"]}}
        self._named.add(f"{CROSSPLANE_GROUP}/Configuration||{name}")
        self._load(INSTALLS, f"{SCOPE}|{CROSSPLANE_GROUP}/Configuration||{name}", whole)

    def decide(self) -> tuple[Put, ...]:
        """Decide once and keep the rows, as the worker does; return them."""
        steps = self.controller.reconcile(PARTITION, SCOPE, NOW)
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
        else:
            raise AssertionError("all is known")
        for put in outcome.puts:
            encode_row(put.row)
            self.controller.store(PARTITION, put)
            if put.topic == LOCK and isinstance(put.row, LockRow):
                self.lock[put.key.partition("|")[2]] = put.row
        return outcome.puts

    def settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            puts = self.decide()
            made = [okey for okey, row in self.lock.items() if row.holders and okey not in self._named]
            for okey in made:
                self.install(_child(okey, self.lock[okey]))
            if not puts and not made:
                return
        raise AssertionError("it does not settle")


def _child(okey: str, row: LockRow) -> dict[str, Any]:
    """Return an install as establish creates it."""
    holder = ObjectKey.parse(row.holders[0])
    owner = {CROSSPLANE_OWNER: f"{holder.kind}/{holder.name}"}
    return {
        "apiVersion": f"{CROSSPLANE_GROUP}/v1",
        "kind": "Configuration",
        "metadata": {"name": ObjectKey.parse(okey).name, "annotations": owner},
        "spec": dict(row.template),
    }


class Decided(NamedTuple):
    """first, change: CPU seconds: until all is locked, and of the one decision after one tag was moved.

    solved, rows: of one change. bytes: of memory per install."""

    installs: int
    first: float
    change: float
    unchanged: float
    solved: float
    rows: float
    bytes: float


def measure(count: int, changed: Iterable[int]) -> Decided:
    """Lock all packages, then move one tag at a time. changed: numbers of installs that users made."""
    gc.collect()
    before = resident_bytes(0)
    began = time.process_time()
    scope = Scope(count)
    for number in catalog.roots(count):
        scope.install(catalog.install(number))
    scope.settle()
    first = time.process_time() - began
    gc.collect()
    used = resident_bytes(0) - before
    changes, unchanged, rows, numbers = 0.0, 0.0, 0, list(changed)
    solved = scope.controller.evaluations
    for number in numbers:
        began = time.process_time()
        scope.publish(number, catalog.NEXT_TAG)
        rows += sum(put.topic == LOCK for put in scope.decide())
        changes += time.process_time() - began
        scope.settle()
        began = time.process_time()
        scope.decide()
        unchanged += time.process_time() - began
    solved = scope.controller.evaluations - solved
    several = len(numbers)
    return Decided(
        len(scope.lock),
        first,
        changes / several,
        unchanged / several,
        solved / several,
        rows / several,
        used / count,
    )
