"""A real API server notes who writes, by which Porch's controllers are recognized. A stand-in writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.doctor.cluster import check_marks
from pvbus.core.errors import TransientError
from pvbus.core.platform.establish.rivals import MANAGER, QUIET_SECONDS, RELAPSE_SECONDS
from pvbus.ports.cluster import Object, Resource
from pvbus.runtime.process.beside import BesidePorch
from tests.kit.cluster import resource_of
from tests.tools.porchstandin import VARIANT
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SECONDS_MAX = 60.0


class LaterClock(SystemClock):
    """The time as it will be."""

    later = 0.0

    def now(self) -> float:
        return super().now() + self.later

    def monotonic(self) -> float:
        return super().monotonic() + self.later


@asynccontextmanager
async def _beside(cluster: HttpCluster, clock: SystemClock) -> AsyncIterator[BesidePorch]:
    made = BesidePorch(cluster, clock, ("inject",), is_allowed=False)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until_said(beside: BesidePorch, words: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                beside.check()
            except TransientError as exc:
                if words and words in str(exc):
                    return
            else:
                if not words:
                    return
            await asyncio.sleep(0.05)


def _variant(name: str) -> Object:
    package = {"repo": "r", "package": "p"}
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"upstream": package, "downstream": {**package, "package": name}},
    }


async def _touch(cluster: HttpCluster, resource: Resource, name: str, label: str) -> None:
    patch = {"metadata": {"labels": {"touched": label}}}
    await cluster.patch(resource, "default", name, patch)


async def test_who_writes_is_seen_and_when(real_cluster: RealCluster) -> None:
    """A write in Porch's name holds ours back for a minute, one in answer to ours for ten; others' do not."""
    cluster = await HttpCluster.connect(real_cluster.kubeconfig)
    try:
        resource = await resource_of(cluster, VARIANT)
        porch = cluster.named(MANAGER)
        made = await porch.create(resource, _variant("beside-porch"))
        assert {entry["manager"] for entry in made["metadata"]["managedFields"]} == {MANAGER}
        clock = LaterClock()
        async with _beside(cluster, clock) as beside:
            await _until_said(beside, "wrote default/beside-porch at")
            assert [each.state async for each in check_marks(cluster)] == ["wrong"]
            clock.later = QUIET_SECONDS + 1
            await _until_said(beside, "")
            guarded = cluster.named("pvbus-inject", before_write=beside.check)
            await _touch(guarded, resource, "beside-porch", "ours")
            clock.later = 0.0
            await asyncio.sleep(1.1)  # marks are in whole seconds
            await _touch(porch, resource, "beside-porch", "theirs")
            clock.later = QUIET_SECONDS + 10
            await _until_said(beside, "wrote default/beside-porch at")
            with pytest.raises(TransientError):
                await _touch(guarded, resource, "beside-porch", "ours again")
            clock.later = RELAPSE_SECONDS + 10
            await _until_said(beside, "")
            await cluster.delete(resource, "default", "beside-porch")
    finally:
        await cluster.close()
