"""A rollout of 10,000 proposals in waves of 1, 5, 25 and 100 %: promote, rollout and the bus alone.

Each of the two services is a process of its own. This process plays ingest, and release: it carries out each
order at once, as `tests.bench.echo` does with the status of the policy. So what is measured is deciding.
"""

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.rolloutdocument import document_of as plan_of
from pvbus.cli.rolloutrows import Rows
from pvbus.cli.rolloutrows import rows_of as rollout_rows
from pvbus.cli.rolloutstatus import document_of as status_of
from pvbus.core.api.promotion import PROMOTION_API
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import PROPOSED_CONTENT, ChildKey, Key, TargetKey, is_child, sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import (
    POLICY,
    QUARANTINE,
    REVISION,
    SPECIALIZER,
    STOP,
    VARIANT,
    rows_of,
    topics_of,
)
from pvbus.core.kernel.promotionrows import Approval, ApprovalRow, ReleaseRow
from pvbus.core.kernel.records import APPROVALS, OBJECTS, POLICIES, RELEASES, ROLLOUTS, VARIANTS, SyncMarker
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.ports.bus import Output, Record
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.installation import ensure_installation
from tests.bench import gitfleet, lifecycles
from tests.bench.children import Child, cpu_of, eventually
from tests.bench.echo import BusWriter
from tests.bench.large import BATCH, OBJECT_BYTES_MAX, largest_records, observed
from tests.bench.report import Row

NAME = "rollouts"
PERCENTS = (1, 5, 25, 100)
CPU_GOAL = 1.0
SECONDS_MAX = 900.0
POLICY_KEY = "default/fleet"


def policy_object(settle_seconds: int) -> dict[str, Any]:
    """Return the RolloutPolicy of POLICY_KEY, for all revisions."""
    return {
        "apiVersion": PROMOTION_API,
        "kind": "RolloutPolicy",
        "metadata": {"name": "fleet", "namespace": "default"},
        "spec": {
            "revisions": {"all": True},
            "approval": "Always",
            "settle": f"{settle_seconds}s",
            "waves": [{"percent": percent} for percent in PERCENTS],
        },
    }


OBJECT = policy_object(2)


def revision_name(number: int, workspace: int) -> str:
    return f"deploy.{gitfleet.package_name(number)}.packagevariant-{workspace}"


def content_of(number: int, workspace: int) -> str:
    return f"{number:016x}{workspace:016x}"


def variant(number: int) -> dict[str, Any]:
    """Return a PackageVariant that is ready, with the second revision of its package."""
    status = {
        "conditions": [{**lifecycles.STATUS, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "downstreamTargets": [{"name": revision_name(number, 2)}],
    }
    return {**observed(VARIANT, lifecycles.variant(number), number), "status": status}


def revision(number: int, workspace: int, lifecycle: str) -> dict[str, Any]:
    """Return a package revision as promote proposed it, with a digest of content that nobody reads."""
    name, package = revision_name(number, workspace), gitfleet.package_name(number)
    uid = observed(VARIANT, lifecycles.variant(number), number)["metadata"]["uid"]
    owner = {"apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "PackageVariant", "name": package}
    metadata = {
        "name": name,
        "namespace": "default",
        "annotations": {PROPOSED_CONTENT: content_of(number, workspace)},
        "ownerReferences": [{**owner, "uid": uid, "controller": True}],
    }
    facts = {
        "packageName": package,
        "repository": "deploy",
        "workspaceName": f"packagevariant-{workspace}",
        "lifecycle": lifecycle,
        **({"revision": workspace} if lifecycle == "Published" else {}),
    }
    return observed(REVISION, {"metadata": metadata, "spec": facts}, 10 * number + workspace)


def outputs_of(writer: BusWriter, kind: Kind, obj: dict[str, Any]) -> list[Output]:
    rows = rows_of(kind, obj, topics_of(kind, requested=False))
    return [writer.output(row.topic, row.key, row.value) for row in rows]


def released(number: int, workspace: int, order: ApprovalRow) -> ReleaseRow:
    """Return what release reports of an order for a revision."""
    approval = Approval(
        policy="fleet",
        attempt=order.attempt,
        order=order.order,  # type: ignore[arg-type]  # never one that is none
        revision=revision_name(number, workspace),
        digest=order.digest,
        outcome="done",
    )
    return ReleaseRow(uid=order.uid, approvals=(approval,))


def former_order(number: int) -> ApprovalRow:
    """Return the order by which an earlier attempt published the first revision of a package."""
    uid = observed(VARIANT, lifecycles.variant(number), number)["metadata"]["uid"]
    return ApprovalRow(
        uid=uid, attempt=0, order="approve", revision=revision_name(number, 1), digest=content_of(number, 1)
    )


async def write_world(writer: BusWriter, count: int) -> None:
    """Write everything but the policy: of each package a proposed revision, and one that was published by a
    rollout."""
    value = encode_row(SyncMarker(state="ok", epoch=1, versions=("v1", "v1alpha1")))
    assert value is not None
    markers: list[Output] = []
    for kind in (REVISION, SPECIALIZER, VARIANT, POLICY, QUARANTINE, STOP):
        for topic in {OBJECTS, *topics_of(kind, requested=False)}:
            markers += writer.to_everywhere(topic, sync_key(*kind), value)
    await writer.write(markers)
    for first in range(0, count, BATCH):
        batch: list[Output] = []
        for number in range(first, min(first + BATCH, count)):
            batch += outputs_of(writer, VARIANT, variant(number))
            batch += outputs_of(writer, REVISION, revision(number, 1, "Published"))
            batch += outputs_of(writer, REVISION, revision(number, 2, "Proposed"))
            vkey = f"default/{gitfleet.package_name(number)}"
            batch.append(writer.output(RELEASES, vkey, encode_row(released(number, 1, former_order(number)))))
        await writer.write(batch)


class Release:
    """Carries out approvals, and counts them. waves: the targets of each wave, as their rows say. sizes: of
    the largest record of each topic that it reads, before the bus compacts them."""

    def __init__(self, bus: SqliteBus, writer: BusWriter, count: int) -> None:
        self.orders = Counter[str]()
        self.waves = Counter[int]()
        self.sizes: dict[str, int] = {}
        self.state = RolloutState.IDLE
        self._bus = bus
        self._writer = writer
        self._numbers = {gitfleet.package_name(number): number for number in range(count)}
        self._wave_of: dict[str, int] = {}
        self._is_over = False

    def stop(self) -> None:
        self._is_over = True

    async def run(self) -> None:
        topics = [(topic, number) for topic in (APPROVALS, ROLLOUTS) for number in range(partition_count())]
        reader = self._bus.reader(dict.fromkeys(topics, 0))
        try:
            while not self._is_over:
                outputs: list[Output] = []
                for record in await reader.poll(timeout_seconds=0.5, max_records=2_000):
                    outputs += self._seen(record)
                if outputs:
                    await self._writer.write(outputs)
        finally:
            await reader.close()

    def _seen(self, record: Record) -> list[Output]:
        key, size = record.key.decode(), len(record.key) + len(record.value or b"")
        self.sizes[record.topic] = max(self.sizes.get(record.topic, 0), size)
        if record.topic == APPROVALS:
            if record.value is None:
                return []
            return self._carried_out(key, msgspec.json.decode(record.value, type=ApprovalRow))
        if not is_child(key):
            if record.value is not None:
                self.state = msgspec.json.decode(record.value, type=Rollout).state
        elif record.value is not None:
            target = msgspec.json.decode(record.value, type=Target)
            before = self._wave_of.get(ChildKey.parse(key).variant)
            self.waves.update({target.wave: 1} if before is None else {})
            self._wave_of[ChildKey.parse(key).variant] = target.wave
        return []

    def _carried_out(self, key: str, order: ApprovalRow) -> list[Output]:
        vkey, _ = TargetKey.parse(key)
        assert order.order != "stranded"  # nothing is rolled back here
        assert order.order != "freeze"  # nor frozen
        self.orders[f"{vkey} {order.order} {order.revision}"] += 1
        number = self._numbers[vkey.partition("/")[2]]
        row = self._writer.output(RELEASES, vkey, encode_row(released(number, 2, order)))
        return [row, *outputs_of(self._writer, REVISION, revision(number, 2, "Published"))]


class Found(NamedTuple):
    """promote, rollout: CPU seconds. step: the longest step of the machine, in CPU seconds. sizes: of the
    largest record of each topic. status, plan: CPU seconds of what these commands decide and read from the
    bus."""

    seconds: float
    promote: float
    rollout: float
    step: float
    steps: int
    orders: Counter[str]
    waves: Counter[int]
    sizes: dict[str, int]
    load: float
    status: float = 0.0
    plan: float = 0.0


async def measure(folder: Path, count: int) -> Found:
    path = folder / "bus.db"
    bus = await SqliteBus.open(path)
    try:
        await ensure_installation(bus, partitions=partition_count())
        async with BusWriter(bus.peer(), "bench-ingest") as writer:
            await write_world(writer, count)
            async with (
                Child("tests.bench.services", "-", f"sqlite:{path}", "promote") as promote,
                Child("tests.bench.services", "-", f"sqlite:{path}", "rollout") as rollout,
            ):
                release = Release(bus, writer, count)
                found = await _rolled_out(bus, writer, (promote, rollout), release)
        status, plan = await _commands(path, count)
        return found._replace(status=status, plan=plan)
    finally:
        await bus.close()


async def _commands(path: Path, count: int) -> tuple[float, float]:
    """Return the CPU seconds of `pvbus rollout status` and `plan`, without the request for the objects."""
    key, policy = Key.parse(POLICY_KEY), observed(POLICY, OBJECT, 1)
    typed = msgspec.convert(policy, RolloutPolicy)
    began = time.process_time()
    rows = await rollout_rows(None, None, f"sqlite:{path}", key)
    assert isinstance(rows, Rows)
    status = status_of(key, typed, rows, time.time(), wanted=frozenset(TargetState), limit=0)
    seconds = time.process_time() - began
    assert len(status["targets"]) == count
    objects = [typed_object(VARIANT, variant(number)) for number in range(count)]
    objects += [
        typed_object(REVISION, revision(number, workspace, lifecycle))
        for number in range(count)
        for workspace, lifecycle in ((2, "Published"), (3, "Proposed"))
    ]
    began = time.process_time()
    rows = await rollout_rows(None, None, f"sqlite:{path}", key)
    plan = plan_of([typed_object(POLICY, policy), *objects], time.time(), rows={key: rows})
    assert plan["policies"][0]["targets"] == count
    return seconds, time.process_time() - began


def typed_object(kind: Kind, obj: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{kind.group}/v1alpha1", "kind": kind.kind, **obj}


async def _rolled_out(
    bus: SqliteBus, writer: BusWriter, children: tuple[Child, Child], release: Release
) -> Found:
    """Hand the policy over; wait until its rollout is completed, and nothing is left to do."""
    for child in children:
        await child.ask("settled")
    before = await cpu_of(children)
    load, began = os.getloadavg()[0], time.perf_counter()
    running = asyncio.create_task(release.run())
    await writer.write(outputs_of(writer, POLICY, observed(POLICY, OBJECT, 1)))

    async def is_completed() -> bool:
        return running.done() or release.state is RolloutState.COMPLETED

    try:
        await eventually(is_completed, "the rollout is completed", seconds=SECONDS_MAX)
        seconds = time.perf_counter() - began
        for child in children:  # nothing comes late
            await child.ask("settled")
    finally:
        release.stop()
        await running
    cpu = [late - early for early, late in zip(before, await cpu_of(children), strict=True)]
    steps = await children[1].ask("steps")
    return Found(
        seconds=seconds,
        promote=cpu[0],
        rollout=cpu[1],
        step=steps["longest"],
        steps=steps["count"],
        orders=release.orders,
        waves=release.waves,
        sizes={**await largest_records(bus), **release.sizes},
        load=load,
    )


def wrong_waves(waves: Mapping[int, int], count: int) -> int:
    """Return how many waves have another size than PERCENTS of so many targets say. waves: their sizes."""
    return sum(
        waves.get(number + 1, 0) != -(-count * percent // 100) - (-(-count * before // 100))
        for number, (before, percent) in enumerate(zip((0, *PERCENTS), PERCENTS, strict=False))
    )


async def rollouts(*, small: bool) -> list[Row]:
    """CPU of deciding per approval, the longest step, and the largest rows and objects."""
    count = 200 if small else 10_000
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        found = await measure(Path(name), count)
    return rows_of_rollout(found, count)


def rows_of_rollout(measured: Found, count: int) -> list[Row]:
    what = f"rollout of {count:,} in waves of {', '.join(map(str, PERCENTS))} %"
    topic, size = max(measured.sizes.items(), key=lambda item: item[1])
    cpu = 1000 * (measured.promote + measured.rollout) / count
    wrong = wrong_waves(measured.waves, count)
    commands = [2_000 * seconds / count for seconds in (measured.status, measured.plan)]
    twice = sum(times - 1 for times in measured.orders.values())
    return [
        Row(NAME, f"{what}: until it is completed", measured.seconds, "s"),
        Row(NAME, "orders to approve", len(measured.orders), "approvals", count, "equal"),
        Row(NAME, "orders that were given twice", twice, "approvals", 0, "equal"),
        Row(NAME, "waves of another size than the policy's", wrong, "waves", 0, "equal"),
        Row(NAME, "promote and rollout: CPU per approval", cpu, "ms", CPU_GOAL, "less"),
        Row(NAME, "promote: CPU per approval", 1000 * measured.promote / count, "ms"),
        Row(NAME, "rollout: CPU per approval", 1000 * measured.rollout / count, "ms"),
        Row(NAME, f"rollout: longest of {measured.steps} steps, CPU", 1000 * measured.step, "ms"),
        Row(
            NAME,
            "pvbus rollout status: CPU at 2,000 targets",
            2_000 * measured.status / count,
            "s",
            1.0,
            "less",
        ),
        Row(NAME, "pvbus rollout plan: CPU at 2,000 targets", commands[1], "s", 1.0, "less"),
        Row(NAME, f"largest record (of {topic})", size, "bytes", OBJECT_BYTES_MAX, "less"),
        Row(NAME, "largest RolloutPolicy", measured.sizes[POLICIES], "bytes", OBJECT_BYTES_MAX, "less"),
        Row(NAME, "largest PackageVariant", measured.sizes[VARIANTS], "bytes", OBJECT_BYTES_MAX, "less"),
        Row(NAME, "load average before", measured.load, ""),
    ]
