"""Garbage collection by ownerReferences, and the three ways of deleting an owner."""

import asyncio
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.client import CORE, WIDGETS, Api, config_map, crd, eventually, owner, widget
from tests.integration.apiserver.test_lists import WIDGET

CONFIG_MAPS = f"{CORE}/namespaces/default/configmaps"


async def wait_until_gone(api: Api, path: str) -> None:
    async def check() -> bool:
        return await api.code(path) == 404

    await eventually(check)


async def test_dependents_go_with_their_owner(api: Api) -> None:
    """Of any kind, and theirs too; what has another owner keeps that one only."""
    one, two = await api.create(WIDGETS, widget("one")), await api.create(WIDGETS, widget("two"))
    child = await api.create(WIDGETS, widget("child", ownerReferences=[owner(one)]))
    await api.create(CONFIG_MAPS, config_map("grandchild", ownerReferences=[owner(child)]))
    await api.create(CONFIG_MAPS, config_map("shared", ownerReferences=[owner(one), owner(two)]))
    await api.delete(f"{WIDGETS}/one")
    await wait_until_gone(api, f"{WIDGETS}/child")
    await wait_until_gone(api, f"{CONFIG_MAPS}/grandchild")

    async def is_released() -> bool:
        references = (await api.get(f"{CONFIG_MAPS}/shared"))["metadata"]["ownerReferences"]
        return [reference["name"] for reference in references] == ["two"]

    await eventually(is_released)


async def test_what_is_created_after_its_owner_went_goes_too(api: Api) -> None:
    """Owners are known by uid: a new object of the old name owns nothing."""
    old = await api.create(WIDGETS, widget("one"))
    await api.delete(f"{WIDGETS}/one")
    await api.create(WIDGETS, widget("one"))
    await api.create(CONFIG_MAPS, config_map("late", ownerReferences=[owner(old)]))
    await wait_until_gone(api, f"{CONFIG_MAPS}/late")


async def test_owners_of_unknown_kinds_and_other_namespaces(api: Api) -> None:
    """A reference to a kind that is not served keeps an object; one across namespaces does not."""
    stranger = {"apiVersion": "other.com/v1", "kind": "Stranger", "name": "x", "uid": "u-1"}
    retained = await api.create(CONFIG_MAPS, config_map("kept", ownerReferences=[stranger]))
    one = await api.create(WIDGETS, widget("one"))
    elsewhere = f"{CORE}/namespaces/kube-system/configmaps"
    await api.create(elsewhere, config_map("across", ownerReferences=[owner(one)]))
    await wait_until_gone(api, f"{elsewhere}/across")
    assert await api.get(f"{CONFIG_MAPS}/kept") == retained


async def test_orphan_leaves_dependents_without_the_reference(api: Api) -> None:
    """propagationPolicy Orphan: the owner goes, its dependents stay."""
    one = await api.create(WIDGETS, widget("one"))
    await api.create(CONFIG_MAPS, config_map("child", ownerReferences=[owner(one)]))
    await api.call("DELETE", f"{WIDGETS}/one?propagationPolicy=Orphan")
    await wait_until_gone(api, f"{WIDGETS}/one")
    assert "ownerReferences" not in (await api.get(f"{CONFIG_MAPS}/child"))["metadata"]


async def test_foreground_waits_for_dependents(api: Api) -> None:
    """The owner terminates until those that block it are gone."""
    one = await api.create(WIDGETS, widget("one"))
    held = config_map("child", ownerReferences=[owner(one, block=True)], finalizers=["example.com/hold"])
    await api.create(CONFIG_MAPS, held)
    leaving = await api.delete(f"{WIDGETS}/one", {"propagationPolicy": "Foreground"})
    assert leaving["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def child_terminates() -> bool:
        return "deletionTimestamp" in (await api.get(f"{CONFIG_MAPS}/child"))["metadata"]

    await eventually(child_terminates)
    assert await api.code(f"{WIDGETS}/one") == 200
    await api.patch(f"{CONFIG_MAPS}/child", {"metadata": {"finalizers": None}})
    await wait_until_gone(api, f"{WIDGETS}/one")


async def test_a_foreground_owner_without_dependents_goes(api: Api) -> None:
    """Nothing blocks it."""
    await api.create(WIDGETS, widget("one"))
    await api.delete(f"{WIDGETS}/one", {"propagationPolicy": "Foreground"})
    await wait_until_gone(api, f"{WIDGETS}/one")


async def test_an_unknown_policy_is_refused(api: Api) -> None:
    """422, and the object stays."""
    await api.create(WIDGETS, widget("one"))
    reply = await api.call("DELETE", f"{WIDGETS}/one", {"propagationPolicy": "Sideways"})
    assert reply.code == 422
    assert await api.code(f"{WIDGETS}/one") == 200


async def test_many_dependents_share_transactions(api: Api, server: ApiServer) -> None:
    """500 dependents of one owner are gone within seconds."""
    one = await api.create(WIDGETS, widget("one"))
    reference = [owner(one)]
    async with asyncio.TaskGroup() as group:
        for number in range(500):
            group.create_task(api.create(CONFIG_MAPS, config_map(f"c{number}", ownerReferences=reference)))
    await api.delete(f"{WIDGETS}/one")

    async def empty() -> bool:
        return not (await api.get(CONFIG_MAPS))["items"]

    await eventually(empty, seconds=10)


@pytest.mark.parametrize("was_running", [True, False])
async def test_a_restart_forgets_no_garbage(tmp_path: Path, was_running: bool) -> None:
    """What lost its owner while nobody collected is collected after the next start."""
    first = ApiServer(tmp_path, crds=[crd()], tls=False)
    await first.start()
    uids = {}
    for name in ("one", "two"):
        stored = await first.objects.put(WIDGET, {**widget(name, namespace="default")})
        uids[name] = owner(stored)
    for name, reference in uids.items():
        child = widget(f"child-of-{name}", namespace="default", ownerReferences=[reference])
        await first.objects.put(WIDGET, child)
    if not was_running:
        for task in first._background:
            task.cancel()
    await first.objects.remove(WIDGET, "default", "one")
    await first.stop()
    second = ApiServer(tmp_path, tls=False)
    await second.start()
    try:

        async def is_collected() -> bool:
            return second.objects.get(WIDGET, "default", "child-of-one") is None

        await eventually(is_collected)
        assert second.objects.get(WIDGET, "default", "child-of-two") is not None
    finally:
        await second.stop()
