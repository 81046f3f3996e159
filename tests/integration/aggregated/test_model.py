"""Clients of two replicas, of which one is killed again and again, against a model of what they did."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.ports.cluster import Object
from tests.integration.aggregated.process import GoneError, ReplicaProcess
from tests.integration.aggregated.replicas import Client, ReplicaWorld, embedded_cluster
from tests.integration.packages.support import bare, git, refs, revision, tree

ACTORS = 8
ROUNDS = 12
KILLS = 4
COUNTED = 40
ANSWER_SECONDS = 120.0
"""For one operation, while replicas start again: they take a fifth of it on a busy machine."""


class Actor:
    """One client: it takes its own workspaces through their lives, by turns at each replica.

    done: acknowledged operations. lives: workspace -> (package, lifecycle, label, text), None once deleted.
    """

    def __init__(self, name: str, replicas: list[Client], seed: int) -> None:
        self._name = name
        self._replicas = replicas
        self._random = random.Random(seed)
        self.done = 0
        self.lives: dict[str, tuple[str, str, str, str] | None] = {}

    async def _try(self, do: Any, is_done: Any) -> Any:
        """Do something until it is acknowledged, or is found to be done by an attempt without an answer."""
        unknown = False
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            replica = self._random.choice(self._replicas)
            try:
                if unknown and (found := await is_done(replica)):
                    return found
                result = await do(replica)
                self.done += 1
                return result
            except GoneError:
                unknown = True
            except StatusError as exc:
                unknown = unknown or exc.code == 503
                if exc.code not in (404, 409, 500, 503):
                    raise
            await asyncio.sleep(0.05)
        raise AssertionError(f"{self._name} got no answer")

    async def found(self, package: str) -> None:
        """Make and publish the first revision of a package."""
        name = f"edge.{package}.first"

        async def create(replica: Client) -> Object:
            return await replica.create(revision("edge", package, "first", labels={"l": "first"}))

        await self._try(create, lambda replica: self._has(replica, name, label="first"))
        for lifecycle in ("Proposed", "Published"):
            await self._try(
                lambda replica, to=lifecycle: self._move(replica, name, to),
                lambda replica, to=lifecycle: self._has(replica, name, lifecycle=to),
            )

    async def live(self, rounds: int) -> None:
        for number in range(rounds):
            package = f"app-{self._random.randrange(3)}"
            await self._one(package, f"{self._name}-{number}")

    async def _one(self, package: str, workspace: str) -> None:
        name = f"edge.{package}.{workspace}"
        label = f"{self._random.randrange(1000)}"

        async def present(replica: Client) -> Any:
            with suppress(StatusError):
                return await replica.get(name)

        async def create(replica: Client) -> Any:
            task = {"type": "edit", "edit": {"sourceRef": {"name": f"edge.{package}.first"}}}
            return await replica.create(revision("edge", package, workspace, task, labels={"l": label}))

        await self._try(create, present)
        text = f"{self._name} {self._random.random()}\n"

        async def write(replica: Client) -> Any:
            return await replica.put(await replica.files(name), {"text.txt": text})

        async def is_written(replica: Client) -> bool:
            return bool((await replica.files(name))["spec"]["resources"].get("text.txt") == text)

        await self._try(write, is_written)
        label = f"{label}-again"

        async def relabel(replica: Client) -> Any:
            return await replica.ask(
                "PATCH", f"packagerevisions/{name}", {"metadata": {"labels": {"l": label}}}
            )

        await self._try(relabel, lambda replica: self._has(replica, name, label=label))
        lifecycle = "Draft"
        for wanted in ("Proposed", "Published", "DeletionProposed")[: self._random.randrange(4)]:
            await self._try(
                lambda replica, to=wanted: self._move(replica, name, to),
                lambda replica, to=wanted: self._has(replica, name, lifecycle=to),
            )
            lifecycle = wanted
        self.lives[name] = (package, lifecycle, label, text)
        if lifecycle != "Published" and self._random.random() < 0.5:
            await self._try(
                lambda replica: self._delete(replica, name), lambda replica: self._gone(replica, name)
            )
            self.lives[name] = None

    async def _move(self, replica: Client, name: str, lifecycle: str) -> Object:
        return await replica.move(await replica.get(name), lifecycle, approval=lifecycle == "Published")

    async def _has(self, replica: Client, name: str, *, label: str = "", lifecycle: str = "") -> bool:
        obj = await replica.get(name)
        return bool(obj["spec"]["lifecycle"] == lifecycle or obj["metadata"]["labels"]["l"] == label)

    async def _delete(self, replica: Client, name: str) -> bool:
        await replica.delete(name)
        return True

    async def _gone(self, replica: Client, name: str) -> bool:
        try:
            await replica.get(name)
        except StatusError as exc:
            return exc.code == 404
        return False


async def _count(replicas: list[Client], name: str, times: int, seed: int) -> int:
    """Add one to an annotation, if the object is as it was read; return the number of unknown outcomes."""
    chosen, done, unknown = random.Random(seed), 0, 0
    while done < times:
        replica = chosen.choice(replicas)
        try:
            obj = await replica.get(name)
        except (StatusError, GoneError):
            await asyncio.sleep(0.05)
            continue
        annotations = obj["metadata"].get("annotations") or {}
        number = int(annotations.get("count", "0")) + 1
        obj["metadata"]["annotations"] = {**annotations, "count": str(number)}
        try:
            await replica.ask("PUT", f"packagerevisions/{name}", obj)
            done += 1
        except GoneError:
            unknown += 1
        except StatusError as exc:
            if exc.code not in (409, 503):
                raise
            unknown += exc.code == 503
        await asyncio.sleep(chosen.random() * 0.05)
    return unknown


async def _kill_at_times(replica: ReplicaProcess, kills: int) -> None:
    chosen = random.Random(7)
    for _ in range(kills):
        await asyncio.sleep(2 + 3 * chosen.random())
        await replica.kill()
        await replica.start()


async def play(world: ReplicaWorld, kubeconfig: Path, remote: Path, *, rounds: int, kills: int) -> None:
    """Let the clients act on two processes of the store, kill one of them meanwhile, and compare."""
    pair = [ReplicaProcess(kubeconfig, world.folder / name) for name in ("a", "b")]
    replicas: list[Client] = list(pair)
    for each in pair:
        await each.start()
    try:
        await world.add_repository("edge", remote, git={"createBranch": True})
        founder = Actor("founder", replicas, 1)
        for package in ("app-0", "app-1", "app-2", "counted"):
            await founder.found(package)
        actors = [Actor(f"w{number}", replicas, number) for number in range(ACTORS)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_kill_at_times(pair[1], kills))
            for actor in actors:
                tasks.create_task(actor.live(rounds))
            counters = [
                tasks.create_task(_count(replicas, "edge.counted.first", COUNTED, seed)) for seed in (3, 4)
            ]
        unknown = sum(each.result() for each in counters)
        await _check(replicas, remote, actors)
        counted = (await pair[0].get("edge.counted.first"))["metadata"]["annotations"]["count"]
        assert 2 * COUNTED <= int(counted) <= 2 * COUNTED + unknown
        operations = sum(actor.done for actor in actors) + 2 * COUNTED
        print(f"{operations} acknowledged writes, {unknown} of the counters of unknown outcome")
    finally:
        for each in pair:
            with suppress(AssertionError, ProcessLookupError):
                await each.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_replicas_do_what_a_model_says_while_one_is_killed(tmp_path: Path) -> None:
    remote = bare(tmp_path / "git" / "edge.git")
    async with embedded_cluster(tmp_path) as world:
        await play(world, tmp_path / "api" / "kubeconfig", remote, rounds=ROUNDS, kills=KILLS)


async def _check(replicas: list[Client], remote: Path, actors: list[Actor]) -> None:
    """Compare both replicas and git with the model, and both replicas with each other."""
    lives = {name: life for actor in actors for name, life in actor.lives.items()}
    await asyncio.sleep(4)
    lists = [(await each.ask("GET", "packagerevisions"))["items"] for each in replicas]
    assert lists[0] == lists[1]
    shown = {obj["metadata"]["name"]: obj for obj in lists[0]}
    assert {name for name in shown if not name.endswith((".first", ".main"))} == {
        name for name, life in lives.items() if life is not None
    }
    numbers: set[tuple[str, int]] = set()
    for name, life in lives.items():
        if life is None:
            continue
        package, lifecycle, label, text = life
        obj = shown[name]
        assert obj["spec"]["lifecycle"] == lifecycle, name
        assert obj["metadata"]["labels"]["l"] == label, name
        commit = obj["status"]["selfLock"]["git"]["commit"]
        assert tree(remote, commit, package)["text.txt"] == text, name
        if lifecycle in ("Published", "DeletionProposed"):
            number = (package, obj["spec"]["revision"])
            assert number not in numbers
            numbers.add(number)
            assert git(remote, "rev-parse", f"refs/tags/{package}/v{number[1]}^{{commit}}") == commit
    present = {ref for ref in refs(remote) if ref.startswith(("refs/heads/drafts/", "refs/heads/proposed/"))}
    assert present == {
        f"refs/heads/{'drafts' if life[1] == 'Draft' else 'proposed'}/{life[0]}/{name.split('.')[2]}"
        for name, life in lives.items()
        if life is not None and life[1] in ("Draft", "Proposed")
    }
