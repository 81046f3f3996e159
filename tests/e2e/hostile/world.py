"""A fleet as real processes under hostile requests, and a probe that measures how others are answered."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from pvbus.controlplane.apiserver.rbac.users import Account, Grant, UserFile, digest_of
from tests.e2e.cli.command import REPOSITORY, Running, environment, running
from tests.e2e.cli.small_fleet import CLUSTERS, PACKAGES, write_manifests

EVERY_SECONDS = 0.2
LAST_SECONDS = 60.0
BIG_CHARACTERS = 200_000
"""Of an annotation of each cluster, which the hostile expressions read; the limit of all is 256 KiB."""
IDENTITIES = {
    "nobody": ("default", ()),
    "editor": ("default", (Grant(role="editor"),)),
    "boss": ("team-a", (Grant(role="admin", namespaces=("team-a",)),)),
}
CLUSTER = "/apis/fleet.example.dev/v1/namespaces/default/clusters"
VARIANTS = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/default/packagevariants"
SETS = "/apis/config.porch.kpt.dev/v1alpha2/namespaces/default/packagevariantsets"
PROBE = {
    "apiVersion": "fleet.example.dev/v1",
    "kind": "Cluster",
    "metadata": {"name": "probe", "labels": {"probe": "yes", "mark": "0"}},
    "spec": {"nodes": 1},
}
PROBE_SET = {
    "apiVersion": "config.porch.kpt.dev/v1alpha2",
    "kind": "PackageVariantSet",
    "metadata": {"name": "probe"},
    "spec": {
        "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
        "targets": [
            {
                "objectSelector": {
                    "apiVersion": "fleet.example.dev/v1",
                    "kind": "Cluster",
                    "matchLabels": {"probe": "yes"},
                },
                "template": {
                    "downstream": {"repo": "edge-asia", "package": "probe"},
                    "labelExprs": [{"key": "mark", "valueExpr": "target.labels['mark']"}],
                },
            }
        ],
    },
}


class Reply(NamedTuple):
    identity: str
    family: str
    code: int
    seconds: float
    text: str


class Figures(NamedTuple):
    """What was measured. ready, labels: seconds of each answer and each label. traces: lines of the log."""

    replies: list[Reply]
    ready: list[float]
    labels: list[float]
    traces: list[str]
    exit_code: int

    def lines(self) -> Iterator[str]:
        """Yield the figures for a person."""
        codes = Counter(reply.code for reply in self.replies)
        yield f"{len(self.replies)} hostile requests: " + ", ".join(
            f"{c}: {n}" for c, n in sorted(codes.items())
        )
        for what, values in (("/readyz", self.ready), ("label", self.labels)):
            ordered = sorted(values) or [0.0]
            half, most = (ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 99))
            yield f"{what}: {len(values)}, p50 {half:.3f} s, p99 {most:.3f} s, max {ordered[-1]:.3f} s"
        slow = sorted(self.replies, key=lambda reply: -reply.seconds)[:5]
        yield "slowest: " + ", ".join(f"{r.identity} {r.family} {r.code} {r.seconds:.1f} s" for r in slow)
        for reply in self.failures():
            yield f"{reply.code} {reply.identity} {reply.family}: {reply.text}"
        yield from self.traces[:5]

    def failures(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.code in (0, 500)]


class Probe:
    """Asks for the health and changes a label, again and again, and notes how long each took."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._pending: dict[int, float] = {}
        self._arrived = asyncio.Event()
        self._marks_seen = 0
        self.ready: list[float] = []
        self.labels: list[float] = []

    async def begin(self) -> None:
        """Make what is measured, and wait until the first label is there."""
        spaces = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
        for path, obj in (("/api/v1/namespaces", spaces), (CLUSTER, PROBE), (SETS, PROBE_SET)):
            async with self._session.post(self._url + path, json=obj) as reply:
                assert reply.status == 201, await reply.text()
        for package in PACKAGES:
            await self._patch(package.removesuffix("-web"), {"annotations": {"big": "a" * BIG_CHARACTERS}})
        self._watching = asyncio.create_task(self._watch())
        self._asking: set[asyncio.Task[None]] = set()
        await self._change(1)
        await self._settle()
        assert self._marks_seen, f"the set {PROBE_SET['metadata']} made no variant within {LAST_SECONDS} s"
        self.labels.clear()

    async def run(self, until: "asyncio.Task[Any]") -> None:
        """Measure until a task is done and the last label is there."""
        number = 1
        while not until.done():
            number += 1
            for work in (self._ask(), self._change(number)):
                task = asyncio.create_task(work)
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            await asyncio.sleep(EVERY_SECONDS)
        await asyncio.gather(*self._asking)
        await self._settle()
        self._watching.cancel()

    async def _settle(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while self._pending:
                    self._arrived.clear()
                    await self._arrived.wait()
        self.labels += [time.monotonic() - started for started in self._pending.values()]
        self._pending.clear()

    async def _ask(self) -> None:
        started = time.monotonic()
        async with self._session.get(self._url + "/readyz") as reply:
            assert reply.status == 200, await reply.text()
        self.ready.append(time.monotonic() - started)

    async def _change(self, number: int) -> None:
        started = time.monotonic()
        changed = await self._patch("probe", {"labels": {"mark": str(number)}})
        current = int(changed["metadata"]["labels"]["mark"])
        self._pending.setdefault(current, started)

    async def _patch(self, cluster: str, metadata: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/merge-patch+json"}
        data = json.dumps({"metadata": metadata})
        async with self._session.patch(
            f"{self._url}{CLUSTER}/{cluster}", data=data, headers=headers
        ) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def _watch(self) -> None:
        while True:
            with suppress(aiohttp.ClientError):
                async with self._session.get(f"{self._url}{VARIANTS}?watch=1") as reply:
                    async for line in reply.content:
                        self._take(json.loads(line))

    def _take(self, event: Any) -> None:
        mark = ((event["object"].get("spec") or {}).get("labels") or {}).get("mark")
        if mark is None or not event["object"]["metadata"]["name"].startswith("probe"):
            return
        self._marks_seen += 1
        for number in [number for number in self._pending if number <= int(mark)]:
            self.labels.append(time.monotonic() - self._pending.pop(number))
        self._arrived.set()


def measure(folder: Path, count: int) -> Figures:
    """Run a small fleet, and send `count` hostile requests of each identity to it."""
    write_manifests(folder)
    with running("up", "manifests", "--log-level", "info", cwd=folder) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        replies, probe = asyncio.run(_measure(folder, count))
        exit_code = up.end()
    return Figures(replies, probe.ready, probe.labels, _traces(up), exit_code)


def _traces(up: Running) -> list[str]:
    return [line[:2000] for line in up.output.splitlines() if "Traceback" in line or "trace=" in line]


async def _measure(folder: Path, count: int) -> tuple[list[Reply], Probe]:
    data = folder / ".pvbus"
    config = yaml.safe_load((data / "kubeconfig").read_text())
    url, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
    accounts = {
        name: Account(name=name, digest=digest_of(f"token-{name}"), grants=grants)
        for name, (_, grants) in IDENTITIES.items()
    }
    UserFile(data / "apiserver").change(lambda users: users.update(accounts))
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        probe = Probe(session, url)
        await probe.begin()
        sending = asyncio.create_task(_send(url, count))
        await probe.run(sending)
        return sending.result(), probe


async def _send(url: str, count: int) -> list[Reply]:
    identities = [f"{name}:{namespace}:token-{name}" for name, (namespace, _) in IDENTITIES.items()]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.e2e.hostile.sending", url, str(count), *identities),
        cwd=REPOSITORY,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return [Reply(*reply) for reply in json.loads(out)]
