"""What the story of a rollout needs around pvbus: a metric, its Prometheus, and programs with gates."""

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from pvbus.adapters.files import reason_of
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.condition import Wanted, write
from pvbus.cli.demos.rollout import ADDRESSED, LICENSED, is_canary
from pvbus.cli.demos.story import LOOK_SECONDS, NAMESPACE
from pvbus.cli.live import REVISION
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel import gates
from pvbus.core.kernel.keys import Key
from pvbus.core.variants.revisions.owning import lifecycle_of

START_SECONDS_MAX = 60.0
ANSWERS = {
    ADDRESSED: {"type": ADDRESSED, "status": "True", "reason": "Assigned"},
    LICENSED: {"type": LICENSED, "status": "True", "reason": "Registered"},
}
SCRAPE = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: web
  static_configs: [{{targets: ['127.0.0.1:{port}']}}]
"""


@asynccontextmanager
async def open_monitoring(folder: Path, errors: Path) -> AsyncIterator[str]:
    """Run a Prometheus that has the number in a file as `web_errors_per_second`; yield its URL.

    Yields "" if there is no Prometheus on PATH. Raises PermanentError if it does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        yield ""
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        errors.write_text("0\n")
        async with _serving(errors) as port:
            (folder / "prometheus.yml").write_text(SCRAPE.format(port=port))
            async with _running(program, folder) as url:
                yield url
    except OSError as exc:
        raise PermanentError(f"the Prometheus of the story cannot start: {reason_of(exc)}") from exc


@asynccontextmanager
async def _serving(errors: Path) -> AsyncIterator[int]:
    """Serve the metric; yield the port."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=f"web_errors_per_second {errors.read_text().strip()}\n")

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        listening = _bound()  # the runner closes it
        await web.SockSite(runner, listening).start()
        yield int(listening.getsockname()[1])
    finally:
        await runner.cleanup()


def _bound() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    return listening


@asynccontextmanager
async def _running(program: str, folder: Path) -> AsyncIterator[str]:
    with _bound() as probed:
        port = probed.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", folder / "prometheus.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/metrics"),
            f"--web.listen-address=127.0.0.1:{port}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        await _ready(url, process, log)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not await _answers(url):
        if process.returncode is not None or time.monotonic() > deadline:
            raise PermanentError(f"Prometheus did not start; {log} says why")
        await asyncio.sleep(LOOK_SECONDS)


async def _answers(url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with aiohttp.ClientSession() as session, session.get(f"{url}/-/ready") as answer:
            return answer.status == 200
    return False


async def answer_gates(cluster: HttpCluster) -> None:
    """Be the programs that assign an address to each draft, and know the license of all but the canary.

    They set the conditions of their gates. Never returns.
    """
    while True:
        with contextlib.suppress(ConflictError, TransientError):
            resource = await cluster.resource(REVISION)
            assert resource is not None
            for obj in (await cluster.list(resource, NAMESPACE)).items:
                if lifecycle_of(obj) != "Draft":
                    continue
                known = ANSWERS.keys() - ({LICENSED} if is_canary(obj) else ())
                waiting = {each.type for each in gates.unmet_of(obj)}
                if answers := [ANSWERS[type_] for type_ in sorted(waiting & known)]:
                    await write(cluster, Wanted(Key(NAMESPACE, obj["metadata"]["name"]), answers))
        await asyncio.sleep(LOOK_SECONDS)
