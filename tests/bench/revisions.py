"""10,000 package revisions in one repository: their discovery, a restart over them, the cost of one change.

The API server with the package store is a process of its own, as in `pvbus up`; its CPU time is counted with
that of its git processes.
"""

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pvbus.cli.controlplaneprocess import ControlPlaneProcess
from pvbus.controlplane.packages.computing import WORK
from tests.bench import gitfleet
from tests.bench.fleet import REPOSITORIES, REVISIONS, Fleet, repository
from tests.bench.report import Row

NAME = "revisions"
CHANGES = 20
CHANGE_GOAL_MS = 30
LOOKED_SECONDS = 5.0
"""Until the store has read its own changes back: longer than two of its checks of a repository."""


class Cost(NamedTuple):
    """What one repository of `revisions` package revisions costs. CPU in seconds, memory in bytes."""

    revisions: int
    discovery_seconds: float
    discovery_cpu: float
    memory: int
    restart_seconds: float
    restart_cpu: float
    change_cpu: float


class Process(NamedTuple):
    """The package store's process, and what the operating system counts for it."""

    number: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process and of the git processes that it has waited for."""
        return self.own_seconds() + self.git_seconds()

    def own_seconds(self) -> float:
        return self._seconds(11)

    def git_seconds(self) -> float:
        return self._seconds(13)

    def beside_seconds(self) -> float:
        """Return the CPU time of the processes that merge and render for it now."""
        seconds = 0.0
        for child in map(Process, map(int, self._read(f"task/{self.number}/children").split())):
            with contextlib.suppress(OSError):  # a git process has ended meanwhile
                seconds += child.own_seconds() if WORK in child._read("cmdline") else 0.0
        return seconds

    def _seconds(self, field: int) -> float:
        """field: of two that follow each other, user and system, in the line of the process."""
        fields = self._read("stat").rpartition(")")[2].split()
        return sum(map(int, fields[field : field + 2])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(self._read("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int:
        """Return the resident memory at its highest."""
        return 1024 * int(self._read("status").partition("VmHWM:")[2].split()[0])

    def _read(self, file: str) -> str:
        return Path(f"/proc/{self.number}/{file}").read_text(encoding="ascii")


async def _touch(fleet: Fleet, note: str) -> None:
    """Change one draft: a commit and a push."""
    name = f"deploy.{gitfleet.package_name(0)}.packagevariant-2"
    await fleet.patch(f"{REVISIONS}/{name}", {"spec": {"packageMetadata": {"labels": {"note": note}}}})


async def _measure(folder: Path, packages: int) -> Cost:
    remote, data, count = folder / "deploy.git", folder / "data", gitfleet.revisions_of(packages)
    gitfleet.make(remote, packages)
    async with ControlPlaneProcess(data, 0) as process:
        store = Process(process.pid)
        fleet = Fleet(folder, process.address.kubeconfig)
        async with fleet.http:
            before = store.cpu_seconds()
            await fleet.post(REPOSITORIES, repository("deploy", str(remote)))
            discovery = await fleet.wait_count(REVISIONS, count)
            discovery_cpu = store.cpu_seconds() - before
            memory = store.resident_bytes()
    began = time.perf_counter()
    async with ControlPlaneProcess(data, 0) as process:
        store = Process(process.pid)
        fleet = Fleet(folder, process.address.kubeconfig)
        async with fleet.http:
            assert await fleet.count(REVISIONS) == count
            await _touch(fleet, "after the restart")
            restart, restart_cpu = time.perf_counter() - began, store.cpu_seconds()
            await asyncio.sleep(LOOKED_SECONDS)
            before = store.cpu_seconds()
            for number in range(CHANGES):
                await _touch(fleet, str(number))
            change_cpu = (store.cpu_seconds() - before) / CHANGES
    return Cost(count, discovery, discovery_cpu, memory, restart, restart_cpu, change_cpu)


def git_push_cpu(remote: Path, pushes: int) -> float:
    """Return the CPU seconds of a bare push of one commit, by git alone, on both sides."""
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        mirror = Path(name) / "mirror.git"
        subprocess.run(["git", "clone", "--quiet", "--bare", str(remote), str(mirror)], check=True)
        before = os.times()
        for number in range(pushes):
            commit = gitfleet.git(mirror, "commit-tree", "-m", str(number), "main^{tree}")
            gitfleet.git(
                mirror,
                "push",
                "--quiet",
                "--atomic",
                "--no-verify",
                str(remote),
                f"+{commit}:refs/heads/bench",
            )
        after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used / pushes


async def revisions(*, small: bool) -> list[Row]:
    """A tenth of the revisions first: what grows with their number shows in the ratios."""
    found, pushes = [], []
    for packages in (20, 40) if small else (400, 4_000):
        with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
            found.append(await _measure(Path(name), packages))
            pushes.append(git_push_cpu(Path(name) / "deploy.git", CHANGES))
    few, many = found
    what = f"{many.revisions:,} package revisions in one repository"
    tenth = f"that of {few.revisions:,}"
    per_change = f"{what}: CPU of one change, with git's"
    return [
        Row(NAME, f"{what}: discovery", many.discovery_seconds, "s"),
        Row(NAME, f"{what}: discovery, CPU per revision", 1000 * many.discovery_cpu / many.revisions, "ms"),
        Row(NAME, f"{what}: memory of the API server and store", many.memory / 1e6, "MB"),
        Row(
            *(NAME, f"{what}: restart until a draft is changed", many.restart_seconds, "s", 2, "less"),
            *(many.restart_seconds / few.restart_seconds, tenth),
        ),
        Row(NAME, f"{what}: restart, CPU", many.restart_cpu, "s"),
        Row(
            NAME,
            per_change,
            1000 * many.change_cpu,
            "ms",
            CHANGE_GOAL_MS,
            "less",
            many.change_cpu / few.change_cpu,
            tenth,
        ),
        Row(
            *(NAME, f"{what}: CPU of git's own push of a commit", 1000 * pushes[1], "ms", None, "less"),
            *(pushes[1] / pushes[0], tenth),
        ),
    ]
