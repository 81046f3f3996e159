"""Renders and merges packages beside the event loop: in a thread, or in a process while many requests wait.

Both are pure, and cost most of a change's computing time. Threads share one core with the event loop. So
while requests come together, processes (`workload`) do the work on the other cores; what they cannot do, or
fail to do, a thread does, with the same result.
"""

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.workers import Workers
from pvbus.controlplane.packages import render, upgrading
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.filesets import Files
from pvbus.controlplane.packages.render import RegistryRender, Render, Rendering
from pvbus.controlplane.packages.upgrading import Upgraded, Upstream
from pvbus.telemetry.structured import structlog

WORK: Final = "pvbus.controlplane.packages.workload"

REQUESTS_MIN: Final = 4
"""Requests in progress from which processes do the work. Fewer share one core without a delay that anybody
notices, and need no process."""

CHARACTERS_MIN: Final = 8_000
"""Characters of a package from which processes do its work: some twenty objects. A job has to be sent, and
what it reads is not in this process's caches afterwards. An upgrade of forty objects takes this process 16
ms of CPU instead of 29, one of ten 12.5 instead of 15, and one of three nothing less: both of its jobs take
2 ms."""

PROCESSES_MAX: Final = 4
"""What the store itself does for a change leaves work for more only where packages are costly. Each process
takes some 35 MB."""

WAIT_SECONDS_MAX: Final = 10.0
"""How long a job waits for a process. The jobs of usual packages take some ms, and a start takes 0.3 s,
so it waits so long only behind what SECONDS_MAX ends. If it came to a thread sooner, threads would keep the
event loop from feeding the processes: each turn of a thread takes 5 ms."""

SECONDS_MAX: Final = 10.0
"""The time of one job; the largest known packages take a second. A thread does what takes longer, up to the
limit of a render, and others have the process."""

MEMORY_BYTES: Final = 512 << 20  # of each process: a package has 6 MiB at most
IDLE_SECONDS: Final = 60.0  # then the processes end: the start of one takes 0.3 s of CPU

_TOO_MANY = 429
_log = structlog.get_logger(__name__)


def spare_cores() -> int:
    """Return how many cores this process may use beside the one of the event loop."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) - 1
    return (os.cpu_count() or 1) - 1


class PureWork:
    """Renders and merges; see the module. Call all methods on the event loop's thread."""

    def __init__(
        self,
        render: Render,
        executor: Executor,
        load: StoreActivity,
        *,
        processes: int | None = None,
        characters_min: int = CHARACTERS_MIN,
        work: str = WORK,
        seconds_max: float = SECONDS_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Start no process yet.

        render: renders a package; in processes only if it is a `RegistryRender`
        executor: has the threads
        load: counts the requests in progress
        processes: the number of processes, None for the cores that are spare
        characters_min: the size of the packages that processes work on
        work: the module that a process runs
        seconds_max: the time of a job in a process
        idle_seconds: how long the processes wait for a job before they end
        """
        self._render = render
        self._settings = render.registry.builtin_settings if isinstance(render, RegistryRender) else None
        self._executor = executor
        self._load = load
        self._processes = max(0, min(spare_cores(), PROCESSES_MAX)) if processes is None else processes
        self._characters_min = characters_min
        self._workers = Workers(
            seconds_max,
            MEMORY_BYTES,
            work=work,
            workers_max=self._processes,
            waiting_max=None,
            wait_seconds_max=WAIT_SECONDS_MAX,
            idle_seconds=idle_seconds,
        )

    async def render(self, texts: Mapping[str, str]) -> Rendering:
        """Run the pipeline of a package. Raises: TransientError, YamlError."""
        made: Rendering | None = None
        if self._settings is not None and self._is_worthwhile(sum(map(len, texts.values()))):
            made = await self._in_process("render", texts, self._settings)
        return made or await render.run(self._render, texts, self._executor)

    async def merge(
        self,
        old: Upstream,
        local: Files,
        new: Upstream,
        lock: Mapping[str, Any],
        strategy: str,
        *,
        deployment: bool,
    ) -> Upgraded:
        """Do `upgrading.upgraded`. Raises: MergeError, YamlError."""
        task = (old, local, new, lock, strategy)
        made: Upgraded | None = None
        if self._is_worthwhile(sum(len(file.data) for file in local.values())):
            made = await self._in_process("merge", *task, deployment)
        if made is None:
            merge = partial(upgrading.upgraded, *task, deployment=deployment)
            made = await asyncio.get_running_loop().run_in_executor(self._executor, merge)
        return made

    async def stop(self) -> None:
        """End the processes; those at work end with their request."""
        await self._workers.stop()

    def _is_worthwhile(self, characters: int) -> bool:
        """Return whether a process shall work on a package of this size now."""
        return (
            self._processes > 0 and self._load.requests >= REQUESTS_MIN and characters >= self._characters_min
        )

    async def _in_process(self, job: str, *arguments: Any) -> Any:
        """Return the result of a job, None where a thread has to do it. Raises its error."""
        try:
            result = await self._workers.run(job, *arguments)
        except StatusError as exc:
            if exc.code != _TOO_MANY:
                _log.warning("a thread does what a process failed to do", job=job, error=str(exc))
            return None
        if isinstance(result, Exception):
            raise result
        return result
