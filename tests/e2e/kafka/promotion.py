"""A fleet whose revisions are proposed, approved in waves and rolled back, while those who do it are killed.

The services of promotion are a process each, the others one process, over Kafka. Each kill comes at a moment
in the record that the git repository keeps of its refs: release is in the middle of a request then, whose
answer it never gets.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import Manifest
from pvbus.cli.apply import apply
from pvbus.cli.progress import VARIANT
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.records import APPROVALS, CANDIDATES, ROLLOUTS
from pvbus.core.kernel.topics import PROMOTION
from pvbus.examples import fleet
from tests.e2e.cli.small_fleet import REVISION, Client, publish
from tests.e2e.cli.test_rollout import POLICY, policy, variant
from tests.e2e.kafka.promotionjudge import (
    DRAFTS,
    PROPOSALS,
    Leave,
    Plan,
    RefUpdate,
    made,
    parse,
    problems_of_git,
    problems_of_log,
    problems_of_orders,
    problems_of_rows,
    published,
)
from tests.integration.kafka.faults.deployment import START_SECONDS_MAX, Deployment, ServiceProcess
from tests.tools.busfile import Row
from tests.tools.kafka import KafkaCluster, restarted
from tests.tools.pace import patience
from tests.tools.topicreader import row_of

SETTLE = "3s"
SECONDS_MAX = patience(120.0)
QUIET_SECONDS = 2.0
LOOK_SECONDS = 0.01
NAME = "default/fleet"
PREFIX = "promotion.pvbus.dev/"


def plan_of(*waves: range, in_flight: int, failing: int) -> Plan:
    """Return a plan. waves: of the numbers of variants."""
    return Plan([[f"web-{number:02}" for number in wave] for wave in waves], in_flight, failing)


PLAN = plan_of(range(2), range(2, 4), range(4, 10), in_flight=2, failing=1)
PERSON = {"name": "looks-well", "person": {"question": "Does it look well?"}}
SPEC = {
    "settle": SETTLE,
    "canaries": [],
    "waves": [{"count": 2, "checks": [PERSON]}, {"count": 4, "checks": [PERSON]}, {"percent": 100}],
    "budgets": {"maxInFlight": PLAN.in_flight, "maxFailing": PLAN.failing, "onFailure": "RollBack"},
}
REPOSITORY = "edge-asia"
NEEDED = ("blueprints", REPOSITORY, "asia-01", "clusters.fleet.example.dev")
HASH = re.compile(r"^(rollback-\d+-).*")
HOOK = """#!/bin/sh
exec sed "s/^/$$ /" >>'{record}'
"""


class Record:
    """What the git repository notes of each ref that a push moves, in its order."""

    def __init__(self, repository: Path, file: Path) -> None:
        self._file = file
        file.touch()
        hook = repository / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(HOOK.format(record=file), encoding="utf-8")
        hook.chmod(0o755)

    def updates(self) -> list[RefUpdate]:
        return parse(self._file.read_text(encoding="utf-8"))

    def proposals(self, workspace: str) -> int:
        """Return how many packages of this workspace were proposed."""
        return sum(name.rpartition("/")[2] == workspace for name in made(self.updates(), PROPOSALS))

    def approvals(self, prefix: str) -> int:
        """Return how many revisions were approved whose workspaces begin so."""
        return sum(each.workspace.startswith(prefix) for each in published(self.updates()))

    def rollbacks(self) -> int:
        """Return how many drafts of rollbacks were made."""
        return sum("/rollback-" in name for name in made(self.updates(), DRAFTS))


class Strike(NamedTuple):
    is_time: Callable[[], bool]
    services: Sequence[str]


class Story(NamedTuple):
    """What is told.

    plan: what an attempt comes to
    spec: of the policy
    has_kills: whether anything is killed
    copies: processes of each service of promotion
    """

    plan: Plan
    spec: Mapping[str, Any]
    has_kills: bool = True
    copies: int = 1

    @property
    def size(self) -> int:
        return sum(map(len, self.plan.waves))


class Promotion:
    """The world of the story. kills: the services that were killed, in order."""

    def __init__(
        self, deployment: Deployment, record: Record, server: ServiceProcess, git: Path, story: Story
    ) -> None:
        self.deployment = deployment
        self.record = record
        self.story = story
        self.has_kills = story.has_kills
        self.kills: list[str] = []
        self._leaves: list[Leave] = []
        self._server = server
        self._git = git
        self._steady: ServiceProcess | None = None
        self._services: dict[str, list[ServiceProcess]] = {}
        self._strikes: list[Strike] = []
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    # ------------------------------------------------------------ processes

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            processes = (
                self.deployment.run(name, "pvbus.cli", "run", name) for _ in range(self.story.copies)
            )
            self._services[name] = [*processes]

    def kill(self, names: Iterable[str]) -> None:
        """Kill all processes of services."""
        for name in names:
            for process in self._services[name]:
                process.kill()
            self.kills.append(name)

    async def lose_broker(self, seconds: float) -> None:
        """Kill the only broker, and start it again after a while."""
        (broker,) = self.deployment.kafka.brokers
        await asyncio.to_thread(broker.kill)
        try:
            await asyncio.sleep(seconds)
        finally:
            await restarted(broker)
        self.kills.append("broker")

    def strike(self, is_time: Callable[[], bool], services: Sequence[str]) -> None:
        """Kill these services when it is time, and start them again."""
        if self.has_kills:
            self._strikes.append(Strike(is_time, services))

    async def work(self) -> None:
        """Strike until cancelled."""
        while True:
            for each in list(self._strikes):
                if each.is_time():
                    self.kill(each.services)
                    self.start(each.services)
                    self._strikes.remove(each)
            await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def without(self, service: str) -> AsyncIterator[bool]:
        """Kill a service, which starts again after the block. Gives whether it is away."""
        if self.has_kills:
            self.kill([service])
        yield self.has_kills
        if self.has_kills:
            self.start([service])

    def restart_with_an_empty_bus(self) -> None:
        """Kill all services, and start them where nothing is on the bus."""
        for process in (self._steady, *chain.from_iterable(self._services.values())):
            if process is not None:
                process.kill()
        self.deployment.empty_bus()
        self.start_all()

    def start_all(self) -> None:
        self._steady = self.deployment.run_all()
        self.start(PROMOTION)

    # ------------------------------------------------------------ a person

    async def set_up(self) -> None:
        """Apply two repositories, the variants, and the policy, which is paused."""
        self._client = Client(await HttpCluster.connect(self.deployment.kubeconfig))
        objects = [each.object for each in fleet.make(self._git, 1)]
        needed = [each for each in objects if each["metadata"]["name"] in NEEDED]
        rules = policy(**self.story.spec)
        rules["metadata"]["annotations"] = {f"{PREFIX}pause": "true"}
        everything = [*needed, rules, *(variant(number) for number in range(self.story.size))]
        await apply(self.client.cluster, [Manifest(self._git, 1, each) for each in everything])

    async def annotate(self, **annotations: str) -> None:
        def edit(found: Any) -> None:
            noted = found["metadata"].setdefault("annotations", {})
            noted.update({f"{PREFIX}{name}": value for name, value in annotations.items()})

        await self.client.edit(POLICY, "fleet", edit)

    async def release_quarantines(self) -> None:
        """End what rollouts have quarantined, as a person does."""
        end = {"reason": "the alert was false", "by": "ann", "at": "2026-01-01T00:00:00Z"}
        for obj in await self.client.items(QUARANTINE):
            await self.client.edit(
                QUARANTINE, obj["metadata"]["name"], lambda found: found["spec"].update(released=end)
            )

    async def set_settle(self, settle: str) -> None:
        """Let the next attempt begin once what is proposed has been the same for so long."""
        await self.client.edit(POLICY, "fleet", lambda found: found["spec"].update(settle=settle))

    async def let_pass(self, attempt: int, wave: int) -> None:
        """Do what `pvbus rollout approve` does."""
        leave = Leave(len(self.record.updates()), f"packagevariant-{attempt}", wave)
        self._leaves.append(leave)
        await self.annotate(approve=f"{attempt}.{wave}")

    async def follow_second_revision(self) -> None:
        """Publish it upstream, and let all variants follow it."""
        await asyncio.to_thread(publish, self._git / "blueprints.git", self._git / "clone")
        for number in range(self.story.size):
            name = f"v-{number:02}"
            await self.client.edit(VARIANT, name, lambda found: found["spec"]["upstream"].update(revision=2))

    async def spoil(self, *packages: str) -> None:
        """Let the variants of packages report a failure."""
        context = {"data": {"name": "x"}}  # a key that Porch does not allow
        for package in packages:
            name = f"v-{package[-2:]}"
            await self.client.edit(VARIANT, name, lambda found: found["spec"].update(packageContext=context))

    # ------------------------------------------------------------ what came of it

    async def until(self, is_true: Callable[[], bool], what: str) -> None:
        """Wait until git has something, and all strikes until then are done."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_true() or self._strikes:
            assert time.monotonic() < deadline, f"still not so: {what}\n{self.outputs()}"
            await asyncio.sleep(0.05)

    async def until_phase(self, phase: str, attempt: int, wave: int) -> None:
        """Wait until the policy's status says so, and all strikes until then are done."""
        status: Mapping[str, Any] = {}

        async def is_so() -> bool:
            nonlocal status
            status = (await self.client.get(POLICY, "fleet")).get("status") or {}
            found = (status.get("phase"), status.get("attempt"), status.get("wave"))
            return found == (phase, attempt, wave) and not self._strikes

        await self._until(is_so, lambda: f"{status} is not {phase} in wave {wave}")

    async def _until(self, is_so: Callable[[], Awaitable[bool]], problem: Callable[[], str]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not await is_so():
            assert time.monotonic() < deadline, f"{problem()}\n{self.outputs()}"
            await asyncio.sleep(0.1)

    async def until_lost(self) -> None:
        """Wait until the policy says that the bus was emptied."""

        async def is_so() -> bool:
            status = (await self.client.get(POLICY, "fleet"))["status"]
            return any(each["reason"] == "StateLost" for each in status["conditions"])

        await self._until(is_so, lambda: "nobody says that the bus was emptied")

    async def until_candidates(self, **wanted: int) -> None:
        """Wait until the bus has so many proposals of each workspace as candidates."""
        found: Mapping[str, int] = {}

        async def is_so() -> bool:
            nonlocal found
            rows = await self._rows(CANDIDATES)
            last: Iterable[Mapping[str, Any]] = {row.key: row.value or {} for row in rows}.values()
            proposed = [str(row["revision"]) for row in last if row.get("isProposed")]
            found = Counter(name.rpartition(".")[2] for name in proposed)
            return found == wanted

        await self._until(is_so, lambda: f"the candidates are {found}")

    async def until_revisions(self, wanted: Mapping[str, Any]) -> None:
        """Wait until the API server has these revisions: number, workspace and lifecycle, by package."""
        found: Mapping[str, Any] = {}

        async def is_so() -> bool:
            nonlocal found
            found = await self._revisions()
            return bool(found == wanted)

        await self._until(is_so, lambda: f"the revisions are {found}")

    async def _revisions(self) -> Mapping[str, list[tuple[int, str, str]]]:
        found: dict[str, list[tuple[int, str, str]]] = {}
        for obj in await self.client.items(REVISION):
            spec = obj["spec"]
            if spec["repository"] == REPOSITORY and spec.get("revision", 0) >= 0:  # -1: the branch's
                workspace = HASH.sub(r"\1", spec["workspaceName"])
                entry = (spec.get("revision", 0), workspace, spec["lifecycle"])
                found.setdefault(spec["packageName"], []).append(entry)
        return {package: sorted(entries) for package, entries in found.items()}

    async def stays(self, prefix: str, count: int) -> None:
        """Nothing more of a prefix is approved for a while."""
        await asyncio.sleep(QUIET_SECONDS)
        assert self.record.approvals(prefix) == count, published(self.record.updates())

    # ------------------------------------------------------------ judging

    async def problems(self) -> list[str]:
        """Judge everything from the beginning."""
        updates = self.record.updates()
        return [
            *problems_of_git(updates, self.story.plan, self._leaves),
            *problems_of_log(self._log(), REPOSITORY, updates),
            *problems_of_rows(await self._rows(ROLLOUTS), NAME, self.story.plan),
            *problems_of_orders(await self._rows(APPROVALS)),
        ]

    async def orders(self) -> Mapping[tuple[str, int], int]:
        """Return how often each kind of order was given in each attempt."""
        orders = [row.value for row in await self._rows(APPROVALS) if row.value is not None]
        return Counter((order["order"], order["attempt"]) for order in orders)

    async def _rows(self, topic: str) -> list[Row]:
        def read() -> list[Row]:
            with self.deployment.reader() as reader:
                return [row_of(each) for each in reader.all([topic]).of(topic)]

        return await asyncio.to_thread(read)

    def _log(self) -> Iterator[Mapping[str, Any]]:
        """Yield the lines of the API server's log."""
        for line in self._server.output.splitlines():
            if line.startswith("{"):
                yield json.loads(line)

    def outputs(self) -> str:
        return "\n".join(
            f"{name}: {each.output[-2000:]}" for name, copies in self._services.items() for each in copies
        )

    async def close(self) -> None:
        self.deployment.close()
        if self._client is not None:
            await self._client.cluster.close()


@asynccontextmanager
async def promotion(kafka: KafkaCluster, folder: Path, story: Story) -> AsyncIterator[Promotion]:
    """Run everything until the block ends. The policy is there, and paused."""
    deployment = Deployment(kafka, folder, kafka.bootstrap, 0)
    git = folder / "git"
    fleet.make(git, 1)
    record = Record(git / f"{REPOSITORY}.git", folder / "refs.txt")
    server = deployment.run("apiserver", "pvbus.cli", "apiserver", "--data", str(folder / "data"))
    world = Promotion(deployment, record, server, git, story)
    try:
        await deployment.until(lambda: server.says("API server: "), START_SECONDS_MAX, server)
        world.start_all()
        await world.set_up()
        working = asyncio.create_task(world.work())
        yield world
        working.cancel()
    finally:
        await world.close()
