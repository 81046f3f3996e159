"""A RolloutPolicy on the embedded server, as a person meets it: waves, a stop, resume, abort and rollback."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import VARIANT
from pvbus.core.api.rollouts import RolloutPolicyStatus, TargetCounts
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.examples import fleet
from pvbus.ports.cluster import Kind
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import REVISION, SECONDS_MAX, Client, publish

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]
POLICY = Kind("promotion.pvbus.dev", "RolloutPolicy")
COUNT = 20
CANARY = "v-17"
BROKEN = "v-05"
NAME = "default/fleet"


def policy(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "RolloutPolicy",
        "metadata": {"name": "fleet", "namespace": "default"},
        "spec": {
            "revisions": {"all": True},
            "approval": "Always",
            "settle": "5s",
            "canaries": [CANARY],
            "waves": [{"percent": 1}, {"percent": 50}, {"percent": 100}],
            **spec,
        },
    }


def variant(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {
            "name": f"v-{number:02}",
            "namespace": "default",
            "annotations": {AUTO_LIFECYCLE: "true"},
        },
        "spec": {
            "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
            "injectors": [{"group": "fleet.example.dev", "kind": "Cluster", "name": "asia-01"}],
            "downstream": {"repo": "edge-asia", "package": f"web-{number:02}"},
        },
    }


def write_manifests(folder: Path) -> None:
    """Two repositories, the variants, and the policy."""
    made = [each.object for each in fleet.make(folder / "repositories", 1)]
    names = ("blueprints", "edge-asia", "asia-01", "clusters.fleet.example.dev")
    needed = [obj for obj in made if obj["metadata"]["name"] in names]
    (folder / "manifests").mkdir()
    objects = [*needed, policy(), *(variant(number) for number in range(COUNT))]
    (folder / "manifests" / "all.yaml").write_text(yaml.safe_dump_all(objects, sort_keys=False))


class Story:
    """A person at a terminal."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.client = folder, client

    async def tell(self, *arguments: str, code: int = 0) -> str:
        done = await asyncio.to_thread(pvbus, "rollout", *arguments, cwd=self.folder)
        assert done.code == code, done
        return done.out + done.err

    async def status(self) -> RolloutPolicyStatus:
        found = await self.client.get(POLICY, "fleet")
        return msgspec.convert(found.get("status") or {}, RolloutPolicyStatus)

    async def until(self, phase: str, attempt: int) -> RolloutPolicyStatus:
        """Wait for a phase of an attempt."""
        for _ in range(SECONDS_MAX * 5):
            status = await self.status()
            if (status.phase, status.attempt) == (phase, attempt):
                return status
            assert status.attempt <= attempt
            await asyncio.sleep(0.2)
        raise AssertionError(f"attempt {attempt} is never {phase}: {status}")

    async def edit(self, kind: Kind, name: str, change: Callable[[Any], None]) -> None:
        for _ in range(20):
            obj = await self.client.get(kind, name)
            change(obj)
            try:
                await self.client.put(kind, obj)
                return
            except Exception:
                await asyncio.sleep(0.1)
        raise AssertionError(f"{name} cannot be written")

    async def writes(self) -> dict[str, str]:
        """Return the version of each revision, and of the policy."""
        found = {"policy": (await self.client.get(POLICY, "fleet"))["metadata"]["resourceVersion"]}
        for obj in await self.client.items(REVISION):
            found[obj["metadata"]["name"]] = obj["metadata"]["resourceVersion"]
        return found

    async def published(self) -> dict[str, list[str]]:
        """Return the published revisions of each package, in their order."""
        found: dict[str, list[tuple[int, str]]] = {}
        for obj in await self.client.items(REVISION):
            spec = obj["spec"]
            if (
                spec["repository"] == "edge-asia"
                and spec["lifecycle"] == "Published"
                and spec["revision"] > 0
            ):
                entry = (spec["revision"], obj["spec"]["workspaceName"])
                found.setdefault(spec["packageName"], []).append(entry)
        return {package: [name for _, name in sorted(names)] for package, names in sorted(found.items())}


async def who_excuses_a_canary_is_recorded(story: Story) -> None:
    attempt = (await story.status()).attempt + 1
    shown = await story.tell("excuse", NAME, CANARY, "--reason", "its site is closed")
    assert f"attempt {attempt} goes without canary {CANARY}" in shown
    noted = (await story.client.get(POLICY, "fleet"))["metadata"]["annotations"]
    (excuse,) = json.loads(noted["promotion.pvbus.dev/excuse"])
    assert (excuse["attempt"], excuse["reason"]) == (attempt, "its site is closed")
    assert excuse["by"], "the API server says who asks"


async def test_waves_a_stop_resume_abort_and_rollback(tmp_path: Path) -> None:
    write_manifests(tmp_path)
    with running("up", "manifests", "--promote", cwd=tmp_path) as up:
        up.wait_for(f"variants {COUNT}/{COUNT} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            story = Story(tmp_path, Client(cluster))
            await everything_is_approved_wave_by_wave(story)
            await a_failing_target_stops_it_and_a_person_resumes(story)
            await an_abort_leaves_the_rest_and_a_restart_rolls_back_by_itself(story)
            await who_excuses_a_canary_is_recorded(story)
            restarts = await story.writes()
            assert up.end() == 0
        finally:
            await cluster.close()
    with running("up", "manifests", "--promote", cwd=tmp_path) as up:
        up.wait_for(f"variants {COUNT - 1}/{COUNT} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            assert await Story(tmp_path, Client(cluster)).writes() == restarts, "a restart writes nothing"
            assert up.end() == 0
        finally:
            await cluster.close()


async def everything_is_approved_wave_by_wave(story: Story) -> None:
    status = await story.until("Completed", 1)
    assert status.targets == TargetCounts(total=COUNT, proven=COUNT)
    assert [len(names) for names in (await story.published()).values()] == [1] * COUNT
    assert "attempt 1 is Completed in wave 3 of 3" in await story.tell("status", NAME)


async def a_failing_target_stops_it_and_a_person_resumes(story: Story) -> None:
    """The second wave waits for a person; meanwhile a target of the first one turns out bad."""
    person = {"name": "looks-well", "person": {"question": "Does it look well?"}}
    waves = [{"percent": 50, "checks": [person]}, {"percent": 100}]
    await story.edit(POLICY, "fleet", lambda obj: obj["spec"].update(waves=waves))
    publish(story.folder / "repositories" / "blueprints.git", story.folder / "clone")
    for number in range(COUNT):
        await story.edit(VARIANT, f"v-{number:02}", lambda obj: obj["spec"]["upstream"].update(revision=2))
    await story.until("Holding", 2)
    published = await story.published()
    assert sorted(len(names) for names in published.values()) == [1] * (COUNT // 2) + [2] * (COUNT // 2)
    assert len(published[f"web-{CANARY[2:]}"]) == 2, "the canary is in the first wave"
    await story.edit(VARIANT, BROKEN, lambda obj: obj["spec"].update(packageContext={"data": {"name": "x"}}))
    status = await story.until("Stopped", 2)
    assert (status.stops, status.targets and status.targets.failing) == (1, 1)
    shown = await story.tell("status", NAME)
    assert "TooManyFailing" in shown
    assert BROKEN in shown
    assert await story.published() == published, "a stopped rollout approves nothing"
    await story.tell("approve", NAME, "--yes", code=1)
    (quarantine,) = status.history[-1].quarantines
    release = f"pvbus rollout release default/{quarantine} --reason TEXT"
    assert release in await story.tell("resume", NAME)
    assert release in await story.tell("status", NAME), "it waits until a person has released it"
    assert quarantine in await story.tell("quarantines")
    await story.tell("release", f"default/{quarantine}", "--reason", "one variant was edited")
    await story.until("Holding", 2)
    await story.tell("approve", NAME, "--yes")
    status = await story.until("Completed", 2)
    assert status.targets == TargetCounts(total=COUNT, proven=COUNT - 1, failing=1)


async def an_abort_leaves_the_rest_and_a_restart_rolls_back_by_itself(story: Story) -> None:
    waves = [{"count": 3, "hold": "1h"}, {"percent": 100}]
    budgets = {"onFailure": "RollBack"}
    await story.edit(POLICY, "fleet", lambda obj: obj["spec"].update(waves=waves, budgets=budgets))
    before = await story.published()
    context = {"data": {"note": "third"}}
    for name in (f"v-{number:02}" for number in range(COUNT)):
        if name != BROKEN:
            await story.edit(VARIANT, name, lambda obj: obj["spec"].update(packageContext=context))
    await story.until("Holding", 3)
    await story.tell("abort", NAME, "--yes")
    await story.until("Aborted", 3)
    await story.tell("roll-back", NAME, "--yes")
    status = await story.until("RolledBack", 3)
    assert status.targets is not None
    assert status.targets.rolled_back == 3
    after = await story.published()
    rolled_back = [package for package in after if len(after[package]) == len(before[package]) + 2]
    assert len(rolled_back) == 3
    assert all(after[package][-1].startswith("rollback-3-") for package in rolled_back)
    history = await story.tell("history", NAME)
    assert [line.split()[1] for line in history.splitlines()[1:]] == ["Completed", "Completed", "RolledBack"]
