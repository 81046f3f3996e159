"""A replica in a process of its own, which can be killed.

It reads requests as lines of JSON, and answers each when it is done.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.store import StoreError
from tests.integration.aggregated.replicas import Client, Replica

LINE_BYTES_MAX = 16 * 1024 * 1024


class GoneError(Exception):
    """The process was killed before it answered."""


class ReplicaProcess(Client):
    """One replica; start it again after `kill`."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._arguments = (str(kubeconfig), str(folder))
        self._ids = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.integration.aggregated.process", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            env=os.environ,
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def kill(self) -> None:
        assert self._process is not None
        assert self._reading is not None
        self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            number, code, answer = json.loads(line)
            done = self._open.pop(number)
            if code == 200:
                done.set_result(answer)
            else:
                done.set_exception(StatusError(code, "", answer))
        for done in self._open.values():
            done.set_exception(GoneError())
        self._open.clear()
        self._process = None

    async def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, str] = {}) -> Any:
        if self._process is None or self._process.stdin is None:
            raise GoneError
        number = next(self._ids)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[number] = done
        self._process.stdin.write(json.dumps([number, method, path, body, dict(query)]).encode() + b"\n")
        return await done


async def _answer(replica: Replica, number: int, *request: Any) -> None:
    try:
        code, answer = 200, await replica.ask(*request)
    except StatusError as exc:
        code, answer = exc.code, exc.message
    except StoreError as exc:
        code, answer = 503, str(exc)
    print(json.dumps([number, code, answer]), flush=True)


async def _main(kubeconfig: Path, folder: Path) -> None:
    cluster = await HttpCluster.connect(kubeconfig)
    replica = Replica(cluster, folder)
    await replica.state.start()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with asyncio.TaskGroup() as tasks:
        async for line in reader:
            tasks.create_task(_answer(replica, *json.loads(line)))
    await replica.state.stop()
    await cluster.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2])))
