"""`kill -9` of `pvbus up` through a story of clones, upgrades, edits, a rename and a return.

PVBUS_STORY_KILLS sets how often, PVBUS_KILL_SEED another sequence of moments. Half of the kills aim: a hook
in the repository kills the package store between its commit and the push, or between the push and what it
reports.
"""

import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.faults.story import LOCAL_EDIT, Story
from tests.tools.installation import Installation, children_of

KILLS = int(os.environ.get("PVBUS_STORY_KILLS", "5"))
SITES = int(os.environ.get("PVBUS_STORY_SITES", "3"))
SEED = int(os.environ.get("PVBUS_KILL_SEED", "20260101"))
SETTINGS = {
    "PVBUS_REMOVALS_MAX": "1000000",
    "PVBUS_REMOVAL_QUIET_SECONDS": "0.5",
    "PVBUS_POLL_SECONDS": "0.3",
}
HOOKS = ("pre-receive", "post-receive")
AIM_SECONDS_MAX = 3.0
HOOK = """#!/bin/sh
cat > /dev/null
mv armed-{hook} fired-{hook} 2> /dev/null || exit 0
kill -9 $(cat fired-{hook})
exit {code}
"""
"""Runs between commit and push, or between push and answer. mv: of concurrent pushes one is chosen."""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Installation, Story]]:
    installation = Installation(folder / "data", settings=SETTINGS)
    story = Story(folder / "git", installation.kubeconfig, sites=SITES)
    installation.start()
    try:
        await asyncio.to_thread(installation.wait_ready)
        yield installation, story
        assert await asyncio.to_thread(installation.stop) == 0
    finally:
        await story.close()
        installation.kill()


class Killer:
    """Kills at moments of a seed, and starts again."""

    def __init__(self, installation: Installation, remote: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._installation = installation
        self._remote = remote
        self._random = random.Random(SEED)

    async def strike(self) -> None:
        """Kill once, in one of the ways, then start."""
        if self._random.random() < 0.7:
            await asyncio.to_thread(self._installation.wait_ready)
        if self._random.random() < 0.5 or not await self._aimed():
            await asyncio.sleep(self._random.uniform(0.0, 0.8))
            self._installation.kill()
            self.counts["random"] += 1
        self._installation.start()

    async def _aimed(self) -> bool:
        """Let the next push kill the store; False if there was none."""
        store = children_of(self._installation.pid)
        if not store:
            return False
        hook = self._random.choice(HOOKS)
        code = self._random.choice((0, 1))
        armed, fired = self._remote / f"armed-{hook}", self._remote / f"fired-{hook}"
        script = self._remote / "hooks" / hook
        script.write_text(HOOK.format(hook=hook, code=code))
        script.chmod(0o755)
        fired.unlink(missing_ok=True)
        armed.write_text(f"{store[0]}\n")
        deadline = time.monotonic() + AIM_SECONDS_MAX
        while not fired.exists() and time.monotonic() < deadline:  # noqa: ASYNC110 - git makes it
            await asyncio.sleep(0.02)
        armed.unlink(missing_ok=True)
        if not fired.exists():
            return False
        self._installation.kill()
        self.counts[f"{hook}, exit {code}"] += 1
        return True


async def tell(story: Story, disturb: Callable[[], Coroutine[None, None, None]]) -> None:
    for chapter in story.chapters():
        task = asyncio.create_task(chapter())
        try:
            await disturb()
            await task
        finally:
            task.cancel()
    await story.settled()


async def nothing() -> None:
    """Leave the story alone."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_after_any_kills_the_repositories_and_objects_are_as_without(tmp_path: Path) -> None:
    """Each ref has the same files; no workspace is there twice, no push is half, no person's line is lost.

    Each object has the same labels, annotations, owners and conditions.
    """
    world = tmp_path / "world"
    async with running(world) as (_, story):
        await tell(story, nothing)
        expected, expected_objects = story.content(), await story.objects()
    shutil.rmtree(world)
    began = time.monotonic()
    async with running(world) as (installation, story):
        killer = Killer(installation, story.remote("edge"))
        chapters = len(story.chapters())
        turns = iter([KILLS * (n + 1) // chapters - KILLS * n // chapters for n in range(chapters)])

        async def disturb() -> None:
            for _ in range(next(turns)):
                await killer.strike()
                assert story.damage() == set()

        await tell(story, disturb)
        found, objects = story.content(), await story.objects()
        assert story.damage() == set()
    print(f"\n{KILLS} kills in {time.monotonic() - began:.0f} s: {dict(killer.counts)}; {len(found)} refs")
    assert sorted(found) == sorted(expected)
    for ref, files in expected.items():
        assert found[ref] == files, ref
    assert sorted(objects) == sorted(expected_objects)
    different = [
        f"{name}: {part} is {said[part]}, should be {wanted}"
        for name, said in objects.items()
        for part, wanted in expected_objects[name].items()
        if said[part] != wanted
    ]
    assert different == []
    for ref in ("drafts/site-0/packagevariant-3", "main"):
        assert LOCAL_EDIT in found[f"refs/heads/{ref}"]["site-0/settings.yaml"]
