"""The services over Kafka as processes, an API server, a client that changes the world, and the judge.

The judge compares what the API server holds with the oracle, reads the topics with librdkafka, and takes
the services' word for nothing.
"""

import asyncio
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

from pvbus.core.kernel.keys import KEPT_FOR
from pvbus.core.kernel.records import LATEST, OBJECTS, UNROLL
from pvbus.core.kernel.topics import SERVICES
from pvbus.core.variants.conditions.controller import ConditionsController
from pvbus.core.variants.inject.controller import InjectController
from pvbus.core.variants.notices import KEPT_TYPE
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.controller import UnrollController
from tests.e2e.faults.fleet import REPOSITORY, REVISION, SET, VARIANT, Fleet
from tests.tools.busfile import Snapshot
from tests.tools.installation import environment
from tests.tools.kafka import KafkaCluster, _detach
from tests.tools.pace import patience
from tests.tools.topicreader import TopicReader

SESSION_SECONDS = 6.0
PARTITIONS = 12
START_SECONDS_MAX = patience(90.0)
STOP_SECONDS_MAX = patience(30.0)
CONVERGED_SECONDS_MAX = patience(120.0)
QUIET_SECONDS = 3.0
REPORTED_SECONDS_MAX = 20.0
CLUSTERS_PER_REGION = 5
PUBLISHED = ("Published", "DeletionProposed")
SETTINGS = {
    "PVBUS_LOG_FORMAT": "json",
    "PVBUS_KAFKA_SESSION_SECONDS": str(SESSION_SECONDS),
    "PVBUS_KAFKA_SNAPSHOT_SECONDS": "1",
    # The client removes far more at once than anybody should without being asked.
    "PVBUS_REMOVALS_MAX": "1000000",
    "PVBUS_REMOVAL_QUIET_SECONDS": "0.5",
    "PVBUS_POLL_SECONDS": "0.5",
}


_T = TypeVar("_T")


class ServiceProcess:
    """One process; its output goes to a file."""

    def __init__(self, log: Path, command: list[str], settings: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(settings),
                preexec_fn=_detach,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal holds it still (Linux)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "T"

    def says(self, text: str) -> bool:
        return text in self.output

    @property
    def has_begun(self) -> bool:
        """Whether it has ever told the address of its health server."""
        return bool(self._health)

    @property
    def _health(self) -> str:
        found = re.search(r'"health": ?"([^"]+)"', self.output)
        return found[1] if found else ""

    def ask(self, path: str) -> str:
        """Ask its health server; "" while it does not answer, or is not ready."""
        address = self._health
        if not address:
            return ""
        try:
            with urllib.request.urlopen(f"{address}{path}", timeout=5.0) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def continue_(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.is_running:
            self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it as a supervisor does; returns the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS_MAX)


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module of this checkout."""
    return [sys.executable, "-P", "-m", module, *arguments]


class Deployment:
    """One installation: its processes, its fleet, its topics."""

    def __init__(
        self,
        kafka: KafkaCluster,
        folder: Path,
        bootstrap: str,
        clusters_per_region: int,
        fleet: Fleet | None = None,
    ) -> None:
        """fleet: the client, if not the usual one. The services use `kubeconfig`."""
        self.kafka = kafka
        self.folder = folder
        self._bootstrap = bootstrap
        self.empty_bus()
        self.processes: list[ServiceProcess] = []
        self.kubeconfig = folder / "data" / "kubeconfig"
        self.fleet = fleet or Fleet(
            folder / "git", 20260101, clusters_per_region=clusters_per_region, pause_seconds_max=0.4
        )

    def empty_bus(self) -> None:
        """Let processes that start from now on have topics of their own, which are empty."""
        self.prefix = f"faults-{secrets.token_hex(4)}"
        self._bus = f"kafka://{self._bootstrap}/{self.prefix}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            **SETTINGS,
            "PVBUS_BUS": self._bus,
            "PVBUS_KUBECONFIG": str(self.kubeconfig),
            "PVBUS_KAFKA_SNAPSHOTS": str(self.folder / "snapshots"),
        }

    def run(self, name: str, module: str, *arguments: str, **settings: str) -> ServiceProcess:
        """Start `python -m MODULE ARGUMENTS` as a process of this installation."""
        command = command_of(module, *arguments)
        log = self.folder / f"{len(self.processes)}-{name}.log"
        process = ServiceProcess(log, command, {**self.settings, **settings})
        self.processes.append(process)
        return process

    def run_all(self) -> ServiceProcess:
        """Start one process with all services."""
        return self.run("steady", "pvbus.cli", "run", *SERVICES)

    async def ready(self, process: ServiceProcess, seconds_max: float = START_SECONDS_MAX) -> None:
        await self.until(lambda: bool(process.ask("/readyz")), seconds_max, process)

    async def until(
        self, is_true: Callable[[], bool], seconds: float, process: ServiceProcess | None = None
    ) -> None:
        """Wait for something that is looked up in a thread. Fails with what the process printed."""
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(is_true):
            reported = "" if process is None else process.output[-3000:]
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s:\n{reported}"
            await asyncio.sleep(0.2)

    def reader(self, *, is_quiet: bool = False) -> TopicReader:
        return TopicReader(self.kafka.bootstrap, self.prefix, is_quiet=is_quiet)

    def members(self, service: str) -> dict[str, set[int]]:
        with self.reader() as reader:
            return reader.members(f"pvbus-{service}")

    def snapshot(self) -> Snapshot:
        with self.reader() as reader:
            return reader.snapshot([f"pvbus-{service}" for service in SERVICES])

    # ------------------------------------------------------------ judging

    async def converged(self, seconds_max: float = CONVERGED_SECONDS_MAX) -> None:
        """The world is what the oracle says, and stays so for a while."""
        deadline = time.monotonic() + seconds_max
        while True:
            problems = await self.fleet.differences()
            if not problems:
                await asyncio.sleep(QUIET_SECONDS)
                problems = await self.fleet.differences()
                if not problems:
                    return
            if time.monotonic() > deadline:
                rows = await asyncio.to_thread(self.rows_about, problems)
                raise AssertionError("\n".join([*problems[:20], *rows, self.tails()]))
            await asyncio.sleep(0.5)

    def rows_about(self, problems: list[str]) -> Iterator[str]:
        """What the topics have on the first object that is not as it must be, and on the target it is named
        after."""
        name = problems[0].split()[0].rstrip(":").rpartition("/")[2]
        return (
            str(row)
            for row in self.snapshot().rows
            if name in row.key or (row.topic == OBJECTS and row.key.rpartition("|")[2] in name)
        )

    async def promises_kept(self, *survivors: ServiceProcess) -> Counter[str]:
        """Look at the topics of a settled system; returns the number of records by topic."""
        for survivor in survivors:
            await self.until(partial(self._has_finished, survivor), 30.0, survivor)
        deadline = time.monotonic() + REPORTED_SECONDS_MAX
        while True:
            now = await asyncio.to_thread(self.snapshot)
            problems = [*now.promises(), *unread(now), *await self._untold(now)]
            if not problems or time.monotonic() > deadline:
                break
            await asyncio.sleep(1.0)  # a last record may have come, or an offset be on its way
        assert not problems, "\n".join([*problems[:20], self.tails()])
        return Counter(row.topic for row in now.rows)

    def _has_finished(self, survivor: ServiceProcess) -> bool:
        return not self._unfinished(survivor)

    def _unfinished(self, survivor: ServiceProcess) -> list[str]:
        """Dirty keys, and leases with input that nobody reads, as the survivor's metrics have them."""
        found = re.findall(
            r"^(pvbus_(?:dirty_keys|lease_lag_records)\S*) (\S+)$", survivor.ask("/metrics"), re.M
        )
        assert found, "the survivor tells what it has to do"
        return [name for name, value in found if float(value)]

    async def _untold(self, now: Snapshot) -> list[str]:
        """Compare the last events with the conditions that the API server has, with the lifecycles and gates
        of the variants' revisions, and with the drafts that stayed. Messages count: one that only counts is
        published some seconds later."""
        latest = {
            (event["kind"], event["name"], event["condition"]["type"]): (
                event["condition"]["status"],
                event["condition"].get("message", "") if event["kind"] != REVISION.kind else "",
            )
            for event in now.table(LATEST).values()
        }
        present = {
            (kind.kind, obj["metadata"]["name"], condition["type"]): (
                condition["status"],
                condition.get("message", ""),
            )
            for kind in (VARIANT, SET, REPOSITORY)
            for obj in await self.fleet.items(kind)
            for condition in obj.get("status", {}).get("conditions", ())
        }
        for obj in await self.fleet.items(REVISION):
            name, spec = obj["metadata"]["name"], obj["spec"]
            if KEPT_FOR in obj["metadata"].get("annotations", {}) and spec["lifecycle"] not in PUBLISHED:
                present[REVISION.kind, name, KEPT_TYPE] = ("True", "")
            if all(owner["kind"] != VARIANT.kind for owner in obj["metadata"].get("ownerReferences", ())):
                continue
            present[REVISION.kind, name, "Published"] = (str(spec["lifecycle"] in PUBLISHED), "")
            gates = {gate["conditionType"] for gate in spec.get("readinessGates", ())}
            for condition in obj.get("status", {}).get("conditions", ()):
                if condition["type"] in gates:
                    present[REVISION.kind, name, condition["type"]] = (condition["status"], "")
        return [
            f"{tp}: the last event says {latest.get(tp)}, the object {present.get(tp)}"
            for tp in sorted(latest.keys() | present.keys())
            if latest.get(tp) != present.get(tp)
        ]

    async def restarts_quietly(
        self, survivor: ServiceProcess, meanwhile: Callable[[], None] = lambda: None
    ) -> ServiceProcess:
        """A restart of a settled system writes nothing to the cluster, and to the topics only markers, and
        tombstones of children that have been gone for long enough.

        meanwhile: what happens while nothing runs.
        """

        async def restart() -> ServiceProcess:
            assert await asyncio.to_thread(survivor.stop) == 0, survivor.output[-3000:]
            await asyncio.to_thread(meanwhile)
            again = self.run_all()
            await self.ready(again)
            return again

        return await self.quiet_over(restart)

    async def quiet_over(self, restart: Callable[[], Awaitable[_T]]) -> _T:
        """Restart a settled system, and compare what it has then with what it had. Returns what `restart`
        does."""
        versions = await self.fleet.versions()
        before = await asyncio.to_thread(self.snapshot)
        again = await restart()
        await asyncio.sleep(QUIET_SECONDS)
        assert await self.fleet.versions() == versions
        after = await asyncio.to_thread(self.snapshot)
        gone = {key for key, child in before.table(UNROLL).items() if child["state"] == "gone"}
        written = Counter(rows_of(after, gone)) - Counter(rows_of(before, gone))
        assert not written, written
        return again

    def tails(self) -> str:
        return "\n".join(f"{p.log.name}: {p.output[-1500:]}" for p in self.processes if p.is_running)

    def close(self) -> None:
        for process in self.processes:
            process.kill()


def rows_of(snapshot: Snapshot, gone: Collection[str]) -> Iterator[tuple[str, int, int, str]]:
    """Every record but the markers of sync, which each ingest sets when it begins to watch, and tombstones of
    children that were gone: unroll forgets them some minutes later, whatever else happens then."""
    for row in snapshot.rows:
        is_forgotten = row.topic == UNROLL and row.value is None and row.key in gone
        if not is_forgotten and not row.key.startswith("!sync|"):
            yield row[:4]


def unread(now: Snapshot) -> Iterator[str]:
    """Records of owned topics behind a committed offset of a settled system: a lease idles."""
    last = {(row.topic, row.partition): row.offset for row in now.rows}
    for controller in (UnrollController, RenderController, InjectController, ConditionsController):
        for topic, number in product(controller.inputs, range(PARTITIONS)):
            committed = now.offsets.get((f"pvbus-{controller.name}", number, topic), 0)
            if last.get((topic, number), -1) >= committed:
                end = last[topic, number]
                yield f"{controller.name} is at {committed} of {topic}[{number}], whose last one is {end}"


@asynccontextmanager
async def deployment(
    kafka: KafkaCluster,
    folder: Path,
    *,
    bootstrap: str = "",
    clusters_per_region: int = CLUSTERS_PER_REGION,
) -> AsyncIterator[tuple[Deployment, ServiceProcess]]:
    """Run everything until the block ends. bootstrap: the services' way to the brokers, if not the usual."""
    made = Deployment(kafka, folder, bootstrap or kafka.bootstrap, clusters_per_region)
    try:
        server = made.run("apiserver", "pvbus.cli", "apiserver", "--data", str(folder / "data"))
        await made.until(lambda: server.says("API server: "), START_SECONDS_MAX, server)
        steady = made.run_all()
        await made.fleet.connect(made.kubeconfig)
        await made.fleet.settle_in()
        await made.ready(steady)
        await made.converged()
        yield made, steady
    finally:
        made.close()
        await made.fleet.close()
