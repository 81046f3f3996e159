"""The cluster in memory with other writes: dry runs store nothing, and a user's writes are marked as such."""

import asyncio

import pytest

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.core.errors import AlreadyExistsError, ConflictError, PermanentError
from pvbus.ports.cluster import GoneError, Kind, Object, Resource

CONFIG_MAP = Resource("", "v1", "ConfigMap", "configmaps", True)


def config_map(text: str = "1") -> Object:
    metadata = {"name": "a", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}


def cluster(*objects: Object) -> MemoryCluster:
    return MemoryCluster(objects, now=lambda: "2026-01-01T00:00:00Z")


async def test_a_dry_run_of_a_create_stores_nothing() -> None:
    """The answer is what would be stored; nothing is there, and nothing was written."""
    world = cluster()
    answer = await world.acting(is_dry_run=True).create(CONFIG_MAP, config_map())
    assert answer["data"] == {"text": "1"}
    assert world.peek(Kind("", "ConfigMap"), "default", "a") is None
    assert world.writes == []


async def test_a_dry_run_is_judged_like_a_write() -> None:
    """What exists, an old version, and what is refused end a dry run as they end the write."""
    world = cluster(config_map())
    dry = world.acting(is_dry_run=True)
    with pytest.raises(AlreadyExistsError):
        await dry.create(CONFIG_MAP, config_map())
    old = config_map("2")
    old["metadata"]["resourceVersion"] = "0"
    with pytest.raises(ConflictError):
        await dry.update(CONFIG_MAP, old)

    def refuse(user: str, verb: str, obj: Object) -> None:
        raise PermanentError("no", reason="Forbidden")

    world.authorizes = refuse
    with pytest.raises(PermanentError):
        await dry.update(CONFIG_MAP, config_map("2"))


async def test_dry_runs_of_updates_and_deletes_change_nothing() -> None:
    """The object stays as it is; the answers say what would be."""
    world = cluster(config_map())
    dry = world.acting(is_dry_run=True)
    assert (await dry.update(CONFIG_MAP, config_map("2")))["data"] == {"text": "2"}
    assert (await dry.patch(CONFIG_MAP, "default", "a", {"data": {"text": "3"}}))["data"] == {"text": "3"}
    assert await dry.delete(CONFIG_MAP, "default", "a")
    assert not await dry.delete(CONFIG_MAP, "default", "b")
    live = world.peek(Kind("", "ConfigMap"), "default", "a")
    assert live is not None
    assert live["data"] == {"text": "1"}
    assert world.writes == []


async def test_a_users_writes_have_its_name() -> None:
    """Each write is marked with the user, who is the client again afterwards."""
    world = cluster()
    user = world.acting(as_user="system:serviceaccount:default:a")
    await user.create(CONFIG_MAP, config_map())
    await world.update(CONFIG_MAP, config_map("2"))
    await user.delete(CONFIG_MAP, "default", "a")
    assert [(write.verb, write.by) for write in world.writes] == [
        ("create", "system:serviceaccount:default:a"),
        ("update", ""),
        ("delete", "system:serviceaccount:default:a"),
    ]


async def test_a_watch_that_falls_behind_is_told_so() -> None:
    """Events that its reader was too slow for are not left out in silence: it has to list again."""
    world = cluster()
    watch = world.watch(CONFIG_MAP, resource_version="0")
    world.put(config_map())
    assert (await anext(watch)).type == "ADDED"
    for number in range(12_000):
        world.put(config_map(str(number)))
    with pytest.raises(GoneError):
        await anext(watch)
    with pytest.raises(GoneError):
        await anext(world.watch(CONFIG_MAP, resource_version="1"))


async def test_a_watch_ends_when_its_kind_is_served_no_more() -> None:
    """As with the deletion of a definition: whoever follows the kind learns of it at once."""
    world = cluster()
    ending = asyncio.ensure_future(anext(world.watch(CONFIG_MAP, resource_version="0")))
    await asyncio.sleep(0)
    world.unserve(Kind("", "ConfigMap"))
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(ending, timeout=5)
