"""What git and the Repository's status say to people: who a draft was made for, and that a sync was done."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.packages.reporting import REPOSITORY
from tests.integration.packages.support import (
    KPTFILE,
    NAMESPACE,
    World,
    clone_of,
    git,
    push_files,
    revision,
    running,
)

OWNER = {
    "apiVersion": "config.porch.kpt.dev/v1alpha1",
    "kind": "PackageVariant",
    "name": "web-edge",
    "uid": "u",
    "controller": True,
}


def message(remote: Path, ref: str) -> list[str]:
    return git(remote, "log", "-1", "--format=%B", ref).splitlines()


async def test_commits_of_drafts_name_variant_and_cause_and_still_read_as_porchs(
    fleet: World, edge: Path
) -> None:
    draft = await fleet.create(
        revision("edge", "app-1", "ws", clone_of("blue.app.v1"), ownerReferences=[OWNER])
    )
    lines = message(edge, "drafts/app-1/ws")
    assert lines[0] == "Creating new revision by cloning"
    commit = fleet.present("blue.app.v1")["status"]["selfLock"]["git"]["commit"]
    assert f"Clone of blue.app.v1 (revision 1, commit {commit[:12]})" in lines
    assert "For PackageVariant fleet/web-edge" in lines
    await fleet.put(await fleet.files("edge.app-1.ws"), {"b.txt": "b", "a.txt": "a"})
    lines = message(edge, "drafts/app-1/ws")
    assert lines[0] == "Rendering package"
    assert "Change of a.txt, b.txt" in lines
    assert "For PackageVariant fleet/web-edge" in lines
    await fleet.publish(fleet.present("edge.app-1.ws"))
    await fleet.create(
        revision("edge", "app-1", "ws2", {"type": "edit", "edit": {"sourceRef": {"name": "edge.app-1.ws"}}})
    )
    assert message(edge, "drafts/app-1/ws2")[2].startswith("Edit of edge.app-1.ws (revision 1, commit ")
    await fleet.create(revision("edge", "new", "ws", {"type": "init", "init": {}}))
    assert message(edge, "drafts/new/ws")[2] == "New package"
    await fleet.restart()
    await fleet.until(lambda: fleet.revision("edge.app-1.ws2"))
    assert fleet.present("edge.app-1.ws")["spec"]["tasks"] == draft["spec"]["tasks"]
    assert fleet.present("edge.app-1.ws2")["spec"]["tasks"][0]["type"] == "edit"


async def test_a_package_cloned_from_a_branch_has_a_lock_that_discovery_can_read(fleet: World) -> None:
    """porchctl takes what is behind the last slash of the ref, and fails for all where there is none."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.main")))
    assert draft["status"]["upstreamLock"]["git"]["ref"] == "refs/heads/main"
    text = (await fleet.files("edge.app-1.ws"))["spec"]["resources"]["Kptfile"]
    assert "ref: main\n" in text
    released = await fleet.create(revision("edge", "app-2", "ws", clone_of("blue.app.v1")))
    assert released["status"]["upstreamLock"]["git"]["ref"] == "app/v1"


async def ask(world: World, when: datetime) -> str:
    stored = world.objects.get(REPOSITORY, NAMESPACE, "blue")
    assert stored is not None
    text = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = {**stored["spec"], "sync": {"runOnceAt": text}}
    metadata = {**stored["metadata"], "generation": stored["metadata"]["generation"] + 1}
    await world.objects.update(
        REPOSITORY, world.store.repositories, {**stored, "spec": spec, "metadata": metadata}
    )
    return text


def status(world: World) -> dict[str, Any]:
    stored = world.objects.get(REPOSITORY, NAMESPACE, "blue")
    assert stored is not None
    return dict(stored["status"])


@pytest.mark.parametrize("ahead_seconds", [-60, 2])
async def test_a_sync_is_done_once_when_it_is_asked_for(
    tmp_path: Path, blueprints: Path, ahead_seconds: int
) -> None:
    async with running(tmp_path / "data", fetch_seconds=600.0, poll_seconds=600.0) as world:
        await world.add_repository("blue", blueprints)
        push_files(blueprints, {"more/Kptfile": KPTFILE.format(name="more")})
        assert world.revision("blue.more.main") is None
        asked = await ask(world, datetime.now(UTC) + timedelta(seconds=ahead_seconds))
        await world.until(lambda: world.revision("blue.more.main"))
        await world.until(lambda: status(world).get("observedRunOnceAt") == asked)
        push_files(blueprints, {"third/Kptfile": KPTFILE.format(name="third")})
        await world.restart()
        await world.until(lambda: world.revision("blue.third.main"))
        assert status(world)["observedRunOnceAt"] == asked


async def test_a_sync_of_a_remote_that_is_away_is_done_when_it_is_back(
    tmp_path: Path, blueprints: Path
) -> None:
    async with running(tmp_path / "data", fetch_seconds=2.0, poll_seconds=600.0) as world:
        await world.add_repository("blue", blueprints)
        away = blueprints.rename(blueprints.with_name("away.git"))
        asked = await ask(world, datetime.now(UTC) - timedelta(seconds=60))
        await world.until(lambda: world.condition("blue")["status"] == "False")
        assert "observedRunOnceAt" not in status(world)
        away.rename(blueprints)
        await world.until(lambda: status(world).get("observedRunOnceAt") == asked)
        assert world.condition("blue")["status"] == "True"
