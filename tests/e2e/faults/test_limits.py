"""A running `pvbus up` without memory, or with a data folder that is read-only, which gets well again."""

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import NO_MEMORY, TransientError
from tests.e2e.cli.command import pvbus
from tests.e2e.faults.world import CONFIG_MAP, NAMESPACE, NamespaceWorld
from tests.tools.installation import Installation, api_server_of, services_of

pytestmark = [
    pytest.mark.xdist_group("limits"),  # they share an installation
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the limits of other processes"),
]

REQUESTS_MAX = 100
REFUSALS = 3
MORE_BYTES = 20 << 20
TEXT = {f"k{number}": "x" * 10_000 for number in range(90)}
"""Nearly as much as an object may have: soon there is no room for another one."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("up") / "data", arguments=("--processes", "1", "--no-web"))
    yield made
    made.kill()


@pytest.fixture
def installation(made: Installation) -> Installation:
    """One that runs: a test may have ended it."""
    if not made.is_running:
        made.start()
        made.wait_started(5)
    return made


@pytest.fixture
def unwritable(installation: Installation) -> Iterator[Path]:
    """The data folder as on a disk that became read-only, but for what SQLite maps into memory."""
    files = [path for path in installation.data.rglob("*") if not path.name.endswith("-shm")]
    lock = ["chattr", "+i", str(installation.data), *map(str, files)]
    try:
        done = subprocess.run(lock, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no chattr: files cannot be made read-only while they are open")
    try:
        if done.returncode:
            pytest.skip(f"this user or this disk has no read-only files: {done.stderr.strip()[:200]}")
        yield installation.data
    finally:
        unlock(installation.data)


def unlock(data: Path) -> None:
    subprocess.run(["chattr", "-R", "-i", str(data)], capture_output=True, check=False)


def limit_memory(pid: int) -> None:
    """Let a process have little more than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_BYTES, hard))


def unlimit_memory(pid: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
    resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))


@asynccontextmanager
async def world_of(installation: Installation) -> AsyncIterator[NamespaceWorld]:
    cluster = await HttpCluster.connect(installation.kubeconfig)
    try:
        yield NamespaceWorld(installation, cluster, "default", installation.data)
    finally:
        await cluster.close()


def assert_says_sentences_only(installation: Installation) -> None:
    assert "Traceback" not in installation.output
    assert '"level": "error"' not in installation.output


async def test_without_memory_a_request_is_refused_and_nothing_is_lost(installation: Installation) -> None:
    """The API server and a service go on, with words; what was answered is there."""
    limited = [api_server_of(installation), services_of(installation)["render"]]
    async with world_of(installation) as world:
        for pid in limited:
            limit_memory(pid)
        answered, refusals = set[str](), 0
        for number in range(REQUESTS_MAX):
            try:
                await world.create(CONFIG_MAP, f"big-{number}", data=TEXT)
                answered.add(f"big-{number}")
                await world.names(CONFIG_MAP)
            except TransientError:  # with the words of a response, or none: TLS takes memory, too
                refusals += 1
                if refusals == REFUSALS:
                    break
        for pid in limited:
            unlimit_memory(pid)
        assert answered
        assert refusals == REFUSALS
        assert NO_MEMORY in installation.output
        assert answered <= await world.until(lambda: names_or_nothing(world))
        await world.create(NAMESPACE, "after")
    assert api_server_of(installation) == limited[0], "it went on"
    assert_says_sentences_only(installation)


async def names_or_nothing(world: NamespaceWorld) -> set[str]:
    """Return what lives: a connection that began without memory may still be reset."""
    try:
        return await world.names(CONFIG_MAP)
    except TransientError:
        return set()


async def test_a_folder_that_becomes_read_only_refuses_writes_until_it_is_not(
    installation: Installation, unwritable: Path
) -> None:
    async with world_of(installation) as world:
        with pytest.raises(TransientError, match=r"objects\.db .*see why nothing can be written to it"):
            await world.create(CONFIG_MAP, "one")
        refusal = "not ready: the objects could not be"
        await world.until(lambda: asyncio.to_thread(answers, installation, refusal))
        unlock(unwritable)
        await world.until(lambda: asyncio.to_thread(answers, installation, "ok"))
        await world.create(CONFIG_MAP, "one")
    assert_says_sentences_only(installation)


def answers(installation: Installation, words: str) -> bool:
    """Return whether /readyz of the API server begins so."""
    return installation.api_readiness().startswith(words)


def test_a_folder_that_is_read_only_does_not_keep_it_alive(
    installation: Installation, unwritable: Path, tmp_path: Path
) -> None:
    """It ends in time; a start is refused in one sentence."""
    began = time.monotonic()
    installation.stop()
    assert time.monotonic() - began < 20.0, "the promise is 5 s, on a machine of one's own"
    assert "Traceback" not in installation.output
    done = pvbus("up", "--once", "--data", unwritable, cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith(f"error: nothing can be written to the data folder {unwritable} (")
    assert done.err.count("\n") == 1
