"""Objects and writes of a cluster on disk are those of one in memory."""

import asyncio
from typing import Any

import pytest

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.spill import Spill, SpilledTable
from pvbus.ports.cluster import Kind, Object, Resource

CONFIG_MAP = Resource("", "v1", "ConfigMap", "configmaps", True)


def config_map(name: str, text: str) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}


@pytest.mark.parametrize(
    "value", [{"a": [1, {"b": None}]}, {"half": "\ud800"}, {"large": 1 << 80}, {"": 0.5}]
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """Also one that the file cannot hold; and each reader has its own."""
    table: SpilledTable[str] = SpilledTable(Spill())
    table["a"], table["b"] = value, {"other": 1}
    assert table["a"] == value
    table["a"]["changed"] = True
    assert table["a"] == value
    del table["b"]
    assert list(table) == ["a"]
    assert "b" not in table


async def _changed(cluster: MemoryCluster) -> MemoryCluster:
    for name in ("b", "a", "c"):
        await cluster.create(CONFIG_MAP, config_map(name, "1"))
    found = await cluster.get(CONFIG_MAP, "default", "a")
    assert found is not None
    found["data"]["text"] = "2"
    await cluster.update(CONFIG_MAP, found)
    seen = await cluster.get(CONFIG_MAP, "default", "a")
    assert seen is not None
    await cluster.update(CONFIG_MAP, {**seen, "status": {"seen": True}}, subresource="status")
    await cluster.delete(CONFIG_MAP, "default", "b")
    return cluster


def test_a_cluster_on_disk_is_as_one_in_memory() -> None:
    """But for the objects of writes of status, which nobody reads."""

    def now() -> str:
        return "2026-01-01T00:00:00Z"

    on_disk, in_memory = [
        asyncio.run(_changed(MemoryCluster(now=now, spill=spill))) for spill in (Spill(), None)
    ]
    assert list(on_disk.objects()) == in_memory.objects()
    assert on_disk.objects()[-1] == in_memory.objects()[-1]
    assert on_disk.objects()[:1] == in_memory.objects()[:1]
    assert list(on_disk.objects_of(Kind("", "ConfigMap"))) == list(
        in_memory.objects_of(Kind("", "ConfigMap"))
    )
    bare = [w._replace(object=None, before=None) if w.subresource else w for w in in_memory.writes]
    assert list(on_disk.writes) == bare
    assert len(on_disk.writes) == len(bare) == 6
