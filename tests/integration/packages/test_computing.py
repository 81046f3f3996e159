"""Renders and merges in processes: the same results as in threads, whatever happens to a process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.packages import computing, upgrading
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.computing import CHARACTERS_MIN, REQUESTS_MIN, WORK, PureWork
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import RegistryRender, Rendering, render
from pvbus.controlplane.packages.store import PackageStore
from pvbus.controlplane.packages.upgrading import Upgraded, Upstream
from pvbus.core.variants.merge import MergeError
from pvbus.core.yaml.editor import YamlError
from pvbus.ports.cluster import Object
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    StoreWorld,
    bare,
    clone_of,
    push_files,
    revision,
)
from tests.integration.packages.test_upgrade import publish_second, upgrade_of
from tests.tools.packagework import BUG, DIE, GROW, HANG, SLOW
from tests.unit.packages.support import CATALOG, eventually, package
from tests.unit.packages.test_second_run import AGAIN, REPLACE
from tests.unit.packages.test_second_run import package as unstable
from tests.unit.packages.test_upgrading import as_files, cloned, lock, noted

MISBEHAVING = "tests.tools.packagework"
CHECKOUT = Path(__file__).parents[3]
OWN = re.compile(r"(example\.com/new: ).*")
PACKAGE = {"Kptfile": KPTFILE.format(name="app"), "settings.yaml": CONFIG}


class CountedThreads(ThreadPoolExecutor):
    """Counts what its threads do."""

    count = 0

    def submit(self, *arguments: Any, **named: Any) -> "Future[Any]":
        self.count += 1
        return super().submit(*arguments, **named)


class Both:
    """Does the same work in a process and in a thread."""

    def __init__(self, registry: FunctionRegistry, **options: Any) -> None:
        self.threads = CountedThreads(2)
        self.load = StoreActivity()
        self.load.requests = REQUESTS_MIN
        render = RegistryRender(registry)
        self.beside = PureWork(
            render, self.threads, self.load, **{"processes": 1, "characters_min": 0, **options}
        )
        self.here = PureWork(render, ThreadPoolExecutor(2), StoreActivity(), processes=0)

    async def render(self, texts: Mapping[str, str]) -> Rendering:
        """Return the rendering, which is the same in both."""
        made = await self.beside.render(texts)
        assert made == await self.here.render(texts)
        return made

    async def merge(self, old: Mapping[str, str], local: Mapping[str, str], new: Mapping[str, str],
                    strategy: str = "resource-merge") -> Upgraded:  # fmt: skip
        sides = [Upstream(as_files(texts), upgrading.with_origins(as_files(texts))) for texts in (old, new)]
        task = (sides[0], as_files(local), sides[1], lock(2), strategy)
        made = await self.beside.merge(*task, deployment=True)
        assert made == await self.here.merge(*task, deployment=True)
        return made


@asynccontextmanager
async def both(registry: FunctionRegistry | None = None, **options: Any) -> AsyncIterator[Both]:
    works = Both(registry or FunctionRegistry(), **options)
    try:
        yield works
    finally:
        await works.beside.stop()


def processes(work: str = WORK, parent: int | None = None) -> list[int]:
    """Return the processes of this one, or of another one, that render and merge."""
    parent = parent or os.getpid()
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    lines = [(int(pid), Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in listed]
    return [pid for pid, line in lines if work.encode() in line]


def with_pipeline(*steps: str) -> dict[str, str]:
    """Return a package whose pipeline has these steps, each in YAML's flow style."""
    head = KPTFILE.format(name="app").partition("pipeline:")[0]
    mutators = "".join(f"  - {step}\n" for step in steps)
    return {"Kptfile": f"{head}pipeline:\n  mutators:\n{mutators}", "settings.yaml": CONFIG}


LABELS = "{image: 'set-labels:v0.2', configMap: {app: example}}"
NEWER = "{image: 'set-labels:v9', configMap: {app: example}}"
NAMES = "{image: search-replace, configMap: {by-path: data.size, put-value: tiny}}"
SCRIPT = "{image: starlark, configMap: {source: 'x = 1'}}"


# The same results.


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        pytest.param(PACKAGE, "", id="rendered"),
        pytest.param(with_pipeline(LABELS, NEWER, NAMES), "", id="with a note on a version"),
        pytest.param(with_pipeline("{image: apply-setters, configMap: {a: b}}"), "", id="with results"),
        pytest.param(with_pipeline(LABELS, "{image: set-namespace}"), "set-namespace", id="failed"),
        pytest.param(with_pipeline("{image: nobody-has-it}"), "PVBUS_FUNCTIONS", id="unknown image"),
        pytest.param(with_pipeline("{exec: ls}"), "not allowed", id="exec that is not allowed"),
        pytest.param(with_pipeline("{image: 1}"), "mutators", id="invalid pipeline"),
        pytest.param({**PACKAGE, "broken.yaml": "a: ]"}, "broken.yaml", id="a file that is no YAML"),
        pytest.param(
            {**PACKAGE, "bytes.yaml": "a: \U0010ff80\ud800"}, "bytes.yaml", id="bytes that are no text"
        ),
        pytest.param({**PACKAGE, "sub/Kptfile": KPTFILE.format(name="sub")}, "", id="a sub-package"),
    ],
)
async def test_a_process_renders_as_a_thread_does(texts: Mapping[str, str], says: str) -> None:
    """Files, conditions, note, warning and results are equal, and no thread had to do it."""
    async with both() as works:
        made = await works.render(texts)
        assert works.threads.count == 0
    assert made.note is not None
    assert (made.note.state == "failed") == bool(says)
    assert says in made.texts["Kptfile"]


async def test_a_warning_and_configured_images_are_the_same() -> None:
    registry = FunctionRegistry({"my-fn": "builtin:set-labels", "other": "false"}, allow_exec=True)
    async with both(registry) as works:
        mine = "  - {image: 'x/my-fn:v1', configMap: {a: b}}\n"
        made = await works.render(unstable(REPLACE + mine, "a>b delimiter: '-', index: 99", a="x", b="y"))
        assert works.threads.count == 0
    assert made.note is not None
    assert made.note.warning.startswith(AGAIN)
    assert "a: b" in made.texts["b.yaml"]


NEXT = {**PACKAGE, "settings.yaml": CONFIG.replace("small", "large"), "new.txt": "new"}


def edited() -> dict[str, str]:
    """Return a clone of the package with changes of its own."""
    local = cloned(PACKAGE)
    return {**local, "settings.yaml": local["settings.yaml"].replace("small", "mine"), "own.txt": "own"}


@pytest.mark.parametrize("strategy", ["resource-merge", "force-delete-replace", "copy-merge"])
async def test_a_process_merges_as_a_thread_does(strategy: str) -> None:
    """Files and conflicts are equal."""
    async with both() as works:
        made = await works.merge(PACKAGE, cloned(PACKAGE), NEXT, strategy)
        assert "large" in made.files["settings.yaml"].data.decode()
        made = await works.merge(PACKAGE, edited(), NEXT, strategy)
        assert bool(made.conflicts) == (strategy == "resource-merge")
        assert works.threads.count == 0


@pytest.mark.parametrize(
    ("local", "strategy", "error"),
    [
        pytest.param(edited(), "fast-forward", MergeError, id="a strategy that cannot merge it"),
        pytest.param({"Kptfile": "a: ]"}, "resource-merge", YamlError, id="no YAML"),
    ],
)
async def test_a_process_refuses_as_a_thread_does(
    local: Mapping[str, str], strategy: str, error: type[Exception]
) -> None:
    """The error has the same class and text."""
    old, new = (Upstream(as_files(each), upgrading.with_origins(as_files(each))) for each in (PACKAGE, NEXT))
    refusals = []
    async with both() as works:
        for work in (works.beside, works.here):
            with pytest.raises(error) as caught:
                await work.merge(old, as_files(local), new, lock(2), strategy, deployment=True)
            refusals.append((type(caught.value), str(caught.value)))
        assert works.threads.count == 0
    assert refusals[0] == refusals[1]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.skipif(not CATALOG.is_dir(), reason=f"needs the Nephio packages in {CATALOG}")
async def test_every_nephio_package_is_the_same_in_both() -> None:
    """Rendered as it is, as a clone that was upgraded, and as one with edits in conflict."""
    folders = sorted(path.parent for path in CATALOG.rglob("Kptfile"))
    states, conflicts = set(), 0
    async with both() as works:
        for old in map(package, folders):
            made = await works.render(old)
            assert made.note is not None
            states.add(made.note.state)
            local = cloned(old)
            new = {path: noted(path, text) for path, text in old.items()} | {"new.txt": "new\n"}
            mine = {path: OWN.sub(r"\1mine", noted(path, text)) for path, text in local.items()}
            for ours in (local, mine):
                merged = await works.merge(old, ours, new)
                conflicts += len(merged.conflicts)
                await works.render({path: file.data.decode() for path, file in merged.files.items()})
        assert works.threads.count == 0
    assert len(folders) > 10
    assert states == {"done", "failed"}
    assert conflicts > 10


# What a process leaves to the store.


async def test_few_requests_start_no_process() -> None:
    async with both() as works:
        works.load.requests = REQUESTS_MIN - 1
        await works.render(PACKAGE)
        assert (works.threads.count, processes()) == (1, [])
        works.load.requests = REQUESTS_MIN
        await works.render(PACKAGE)
        assert (works.threads.count, len(processes())) == (1, 1)


async def test_a_small_package_is_done_in_a_thread() -> None:
    async with both(characters_min=CHARACTERS_MIN) as works:
        small = {**PACKAGE, "note.txt": "x" * (CHARACTERS_MIN - sum(map(len, PACKAGE.values())) - 1)}
        await works.render(small)
        await works.merge(PACKAGE, small, PACKAGE)
        assert (works.threads.count, processes()) == (2, [])
        large = {**small, "more.txt": "x"}
        await works.render(large)
        await works.merge(PACKAGE, large, PACKAGE)
        assert (works.threads.count, len(processes())) == (2, 1)


async def test_one_core_has_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "spare_cores", lambda: 0)
    async with both(processes=None) as works:
        await works.render(PACKAGE)
        assert (works.threads.count, processes()) == (1, [])


def test_the_event_loop_keeps_a_core() -> None:
    command = [
        sys.executable,
        "-c",
        "import pvbus.controlplane.packages.computing as c; print(c.spare_cores())",
    ]
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, {core}))  # fmt: skip
    assert done.stdout == "0\n"


@pytest.mark.parametrize(
    ("options", "step"),
    [
        pytest.param({"images": {"mine": ["cat"]}}, "{image: 'x/mine:v1'}", id="program"),
        pytest.param({"images": {"set-labels": "cat"}}, LABELS, id="program instead of a built-in function"),
        pytest.param({"allow_exec": True}, "{exec: cat}", id="exec"),
        pytest.param({"engine": "podman"}, "{image: 'x/mine:v1'}", id="image for an engine"),
        pytest.param({}, SCRIPT, id="script"),
    ],
)
async def test_the_store_itself_runs_what_is_not_built_in(
    options: Any, step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thread renders the whole package; the others are still rendered in a process."""
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\nexec cat\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    async with both(FunctionRegistry(**options)) as works:
        made = await works.render(with_pipeline(NAMES, step))
        assert works.threads.count == 1
        await works.render(with_pipeline(NAMES))
        assert (works.threads.count, len(processes())) == (1, 1)
    assert made.note is not None
    assert made.note.state == "done", made.texts["Kptfile"]


async def test_a_render_function_of_another_kind_stays_in_threads() -> None:
    threads, load = CountedThreads(1), StoreActivity()
    load.requests = REQUESTS_MIN
    work = PureWork(
        partial(render, registry=FunctionRegistry()), threads, load, processes=1, characters_min=0
    )
    assert (await work.render(PACKAGE)).note is not None
    assert (threads.count, processes()) == (1, [])


@pytest.mark.parametrize("word", [HANG, DIE, GROW])
async def test_a_thread_does_what_a_process_fails_to_do(word: str) -> None:
    """A process that hangs or ends is replaced; the next job is done by a process again."""
    async with both(work=MISBEHAVING, seconds_max=4) as works:  # its start counts, on a busy machine too
        made = await works.render({**PACKAGE, "note.txt": word})
        assert made.note is not None
        assert made.note.state == "done"
        assert works.threads.count == 1
        await works.merge(PACKAGE, {**cloned(PACKAGE), "note.txt": word}, PACKAGE)
        assert works.threads.count == 2
        await works.render(PACKAGE)
        assert (works.threads.count, len(processes(MISBEHAVING))) == (2, 1)


async def test_a_process_that_is_killed_at_work_costs_nothing_but_time() -> None:
    async with both(work=MISBEHAVING) as works:
        rendering = asyncio.create_task(works.render({**PACKAGE, "note.txt": SLOW}))
        async with asyncio.timeout(30):
            while not processes(MISBEHAVING):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        os.kill(processes(MISBEHAVING)[0], signal.SIGKILL)
        assert (await rendering).note is not None
        assert works.threads.count == 1


async def test_a_bug_in_a_job_is_not_hidden() -> None:
    async with both(work=MISBEHAVING) as works:
        with pytest.raises(RuntimeError, match="LookupError: a bug") as caught:
            await works.render({**PACKAGE, "note.txt": BUG})
        assert "misbehaving" in caught.value.__notes__[0]
        assert works.threads.count == 0


async def test_jobs_wait_for_a_process_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of them waits; a thread does what has waited too long."""
    async with both(work=MISBEHAVING) as works:
        await asyncio.gather(*(works.beside.render(PACKAGE) for _ in range(100)))
        assert works.threads.count == 0
    monkeypatch.setattr(computing, "WAIT_SECONDS_MAX", 0.1)
    async with both(work=MISBEHAVING) as works:
        slow = asyncio.create_task(works.beside.render({**PACKAGE, "note.txt": SLOW}))
        await asyncio.sleep(0)
        await works.beside.render(PACKAGE)
        assert works.threads.count == 1
        await slow
        assert works.threads.count == 1


# The end of processes.


async def test_processes_without_a_job_end_and_start_again() -> None:
    async with both(idle_seconds=0.05) as works:
        for _ in range(2):
            await works.render(PACKAGE)
            assert await asyncio.to_thread(eventually, lambda: not processes())
        assert works.threads.count == 0


async def test_stop_waits_for_processes_that_were_idle_for_too_long() -> None:
    async with both(idle_seconds=0.0) as works:
        await works.beside.render(PACKAGE)
        await asyncio.sleep(0.001)
        await works.beside.stop()
        assert processes() == []


async def test_stop_ends_processes_and_those_at_work_with_their_job() -> None:
    async with both(work=MISBEHAVING) as works:
        slow = asyncio.create_task(works.beside.render({**PACKAGE, "note.txt": SLOW}))
        await asyncio.to_thread(eventually, lambda: bool(processes(MISBEHAVING)))
        await works.beside.stop()
        assert (await slow).note is not None
        assert (processes(MISBEHAVING), works.threads.count) == ([], 0)


PARENT = """
import asyncio
from tests.integration.packages import test_computing as t

async def main():
    async with t.both(work=t.MISBEHAVING) as works:
        await works.beside.render(t.PACKAGE)
        print("ready", flush=True)
        await works.beside.render({**t.PACKAGE, "note.txt": t.SLOW})
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["at work", "idle"])
def test_no_process_outlives_a_store_that_is_killed(moment: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=CHECKOUT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (pid,) = processes(MISBEHAVING, parent.pid)
        if moment == "idle":
            time.sleep(2.5)
        parent.kill()
    assert eventually(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    """Return whether a process runs: one that has ended may be there until its new parent has asked."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# The whole store.


class FleetWorld(StoreWorld):
    """A store that renders as it does in service."""

    def new_store(self) -> PackageStore:
        return PackageStore(
            self.objects, self.data, render=RegistryRender(self.registry), options=self.options
        )


async def drafts(folder: Path) -> dict[str, Object]:
    """Clone, publish and upgrade packages together; return the files of the upgrades' drafts."""
    blueprints, edge = bare(folder / "blue.git"), bare(folder / "edge.git")
    package = {**PACKAGE, "large.txt": "x" * CHARACTERS_MIN}
    push_files(blueprints, {f"app/{path}": text for path, text in package.items()}, tag="app/v1")
    world = FleetWorld(folder / "data")
    await world.store.start()
    try:
        await world.add_repository("blue", blueprints)
        await world.add_repository("edge", edge, deployment=True)
        await world.until(lambda: world.revision("blue.app.v1"))
        names = [f"app-{number}" for number in range(2 * REQUESTS_MIN)]

        async def clone(name: str) -> None:
            draft = await world.create(revision("edge", name, "ws", clone_of("blue.app.v1")))
            await world.publish(draft)

        await asyncio.gather(*map(clone, names))
        publish_second(blueprints)
        await world.until(lambda: world.revision("blue.app.v2"))
        await asyncio.gather(
            *(world.create(revision("edge", name, "next", upgrade_of(f"edge.{name}.ws"))) for name in names)
        )
        assert bool(processes()) == bool(computing.spare_cores())
        return {name: (await world.files(f"edge.{name}.next"))["spec"]["resources"] for name in names}
    finally:
        await world.store.stop()


async def test_the_drafts_of_a_store_with_processes_are_those_of_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):  # the commits of upstream are in the Kptfiles
        monkeypatch.setenv(name, "2026-01-01T00:00:00Z")
    found = []
    for spare in (0, 1):
        monkeypatch.setattr(computing, "spare_cores", lambda spare=spare: spare)
        folder = tmp_path / "same"
        found.append(await drafts(folder))
        folder.rename(tmp_path / f"with-{spare}")
        assert processes() == []
    assert found[0] == found[1]
    assert "size: large" in found[0]["app-0"]["settings.yaml"]
