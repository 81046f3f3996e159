"""The embedded API server: creates per second of 2 kB PackageVariants, the ceiling of everything else.

    python -m tests.bench.apiserver [--creates N] [--clients N] [--memory]

The server runs in a process of its own, over HTTPS, with validation and durable commits; this process
is a bare load generator with one watcher, which has to see every object. Prints one JSON document.
"""

import argparse
import asyncio
import base64
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.telemetry import logs

REPOSITORY = Path(__file__).parents[2]
PATH = "/apis/config.porch.kpt.dev/v1alpha1"
NAMESPACED = f"{PATH}/namespaces/default/packagevariants"


async def serve(data: str) -> None:
    """Serve until stdin ends; each line on it is answered with the CPU seconds used so far."""
    logs.configure("warning")
    files = sorted((REPOSITORY / "schemas" / "crds").glob("*.yaml"))
    crds = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    server = ApiServer(Path(data) if data else None, crds=crds)
    await server.start()
    print(server.kubeconfig_path, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(time.process_time(), flush=True)
    await server.stop()


def variant(number: int) -> bytes:
    """Return a PackageVariant of about 2 kB with every part of the spec in use."""
    pipeline = [
        {"name": f"m{n}", "image": "set-labels:v0.2", "configMap": {"tier": "edge" * 8, "at": str(number)}}
        for n in range(5)
    ]
    spec = {
        "upstream": {"repo": "blueprints", "package": "edge/upf", "revision": 3},
        "downstream": {"repo": f"edge-{number}", "package": "upf"},
        "adoptionPolicy": "adoptNone",
        "deletionPolicy": "delete",
        "labels": {f"label-{n}": "v" * 20 for n in range(8)},
        "annotations": {f"annotation-{n}": "w" * 30 for n in range(8)},
        "packageContext": {"data": {f"key-{n}": "x" * 24 for n in range(8)}},
        "pipeline": {"mutators": pipeline},
        "injectors": [{"kind": "WorkloadCluster", "name": f"cluster-{number}"}],
    }
    body = {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {
            "name": f"variant-{number}",
            "labels": {f"label-{n}": "value" for n in range(4)},
            "finalizers": ["config.porch.kpt.dev/packagevariants"],
        },
        "spec": spec,
    }
    return json.dumps(body, separators=(",", ":")).encode()


@asynccontextmanager
async def started(data: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.apiserver",
        "--serve",
        data,
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        yield process, Path(await answer(process))
    finally:
        process.stdin.close()
        await process.wait()


async def answer(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def cpu_seconds(process: asyncio.subprocess.Process) -> float:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    return float(await answer(process))


def session(kubeconfig: Path) -> aiohttp.ClientSession:
    """Return a session for a kubeconfig whose user has a token or a client certificate."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    headers = {"Content-Type": "application/json"}
    if token := user.get("token"):
        headers["Authorization"] = f"Bearer {token}"
    else:
        _load_certificate(context, user)
    return aiohttp.ClientSession(
        cluster["server"],
        connector=aiohttp.TCPConnector(ssl=context, limit=0),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
    )


def _load_certificate(context: ssl.SSLContext, user: dict[str, str]) -> None:
    with tempfile.NamedTemporaryFile() as pair:  # ssl reads files only
        for part in ("client-certificate-data", "client-key-data"):
            pair.write(base64.b64decode(user[part]) + b"\n")
        pair.flush()
        context.load_cert_chain(pair.name)


async def watch(http: aiohttp.ClientSession, count: int) -> None:
    """Return when `count` objects were reported as added."""
    async with http.get(f"{PATH}/packagevariants?watch=1&allowWatchBookmarks=true") as events:
        seen = 0
        async for line in events.content:
            seen += line.startswith(b'{"type":"ADDED"')
            if seen >= count:
                return


async def create(http: aiohttp.ClientSession, bodies: Iterator[bytes], took: list[float]) -> None:
    for body in bodies:
        began = time.perf_counter()
        async with http.post(NAMESPACED, data=body) as reply:
            text = await reply.read()
            if reply.status != 201:
                raise SystemExit(f"a create was answered with {reply.status}: {text.decode()}")
        took.append(time.perf_counter() - began)


async def measure(data: str, creates: int, clients: int) -> dict[str, Any]:
    """Measure a fresh embedded server."""
    async with started(data) as (process, kubeconfig), session(kubeconfig) as http:
        return await load(http, lambda: cpu_seconds(process), creates, clients)


async def load(
    http: aiohttp.ClientSession, used_seconds: Callable[[], Awaitable[float]], creates: int, clients: int
) -> dict[str, Any]:
    """Create PackageVariants as fast as the server takes them. used_seconds: the server's CPU so far."""
    bodies = [variant(number) for number in range(creates)]
    took: list[float] = []
    watching = asyncio.create_task(watch(http, creates))
    used = await used_seconds()
    began, remaining = time.perf_counter(), iter(bodies)
    await asyncio.gather(*(create(http, remaining, took) for _ in range(clients)))
    seconds = time.perf_counter() - began
    await watching
    watched = time.perf_counter() - began
    used = await used_seconds() - used
    took.sort()
    return {
        "creates": creates,
        "bytes": len(bodies[0]),
        "clients": clients,
        "creates_per_second": round(creates / seconds),
        "watcher_behind_seconds": round(watched - seconds, 3),
        "server_cpu_ms_per_create": round(used / creates * 1000, 3),
        "p50_ms": round(took[len(took) // 2] * 1000, 1),
        "p99_ms": round(took[len(took) * 99 // 100] * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--creates", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--memory", action="store_true", help="without a file, so without commits")
    parser.add_argument("--serve", metavar="DATA", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = "" if options.memory else folder
        print(json.dumps(asyncio.run(measure(data, options.creates, options.clients)), indent=2))


if __name__ == "__main__":
    main()
