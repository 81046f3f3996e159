"""What a process tells of its leases: `/state`, `/metrics` and `/readyz`."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import REGISTRY

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.cli.supervisor import States
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Lease, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.process.health import HealthServer, _address, _measure
from pvbus.runtime.process.state import LeaseReport, Observation, Observer, ProcessState
from pvbus.runtime.reconcile import worker as worker_module
from pvbus.runtime.reconcile.holder import HeldLease
from pvbus.runtime.reconcile.states import LeaseState
from pvbus.telemetry.loopwatch import Limits, watched_loop
from tests.kit.processes import run_simulated
from tests.unit.runtime.fakes import IN, SEEN, FakeWorld, answer_at_once

INPUTS = {"toy": (IN,)}


class Given(HeldLease):
    """A lease in a state that a test wants."""

    dirty_count = 0
    is_settled = True

    def __init__(
        self,
        lease: Lease,
        *,
        restored: bool = True,
        progress_at: float = 0.0,
        restore: tuple[int, int] = (7, 7),
        dirty_count: int = 0,
    ) -> None:
        super().__init__(lease, SystemClock())
        self.state = LeaseState.RUNNING if restored else LeaseState.RESTORING
        self.progress_at, self.restore, self.dirty_count = progress_at, restore, dirty_count


class GivenService:
    """A service whose leases and positions a test sets."""

    idle = True
    observed = True
    next_timer_seconds = None
    dirty_keys = 3

    def __init__(self, *leases: Given) -> None:
        self._leases = {each.lease.partition: each for each in leases}
        self.topic_partitions: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Not in these tests."""

    def stop(self) -> None:
        """Nothing runs."""

    @property
    def ready(self) -> bool:
        return bool(self._leases) and all(lease.restored for lease in self._leases.values())

    def positions(self) -> Mapping[TopicPartition, int]:
        return self.topic_partitions

    def leases(self) -> Mapping[int, Given]:
        return self._leases


class GivenApiServer:
    """What a process knows of its API server."""

    def __init__(self, problem: str = "", failing_seconds: float = 0.0) -> None:
        self.problem, self.failing_seconds = problem, failing_seconds


class GivenBeside:
    """No controllers of Porch."""

    problem = ""


class GivenRights:
    """The rights that services lack, as lines."""

    def __init__(self, missing: Mapping[str, list[str]] = {}, useless: str = "") -> None:  # not changed
        self._missing, self._useless = missing, useless

    def lines(self, service: str) -> list[str]:
        return self._missing.get(service, [])

    def is_useless(self, service: str) -> bool:
        return service == self._useless


class Ends:
    """A bus with these ends, or one that does not answer: with an error, or not at all."""

    def __init__(self, ends: Mapping[TopicPartition, int], trouble: str = "") -> None:
        self._ends = ends
        self._trouble = trouble

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self._trouble == "error":
            raise TransientError("no broker")
        if self._trouble == "silence":
            await asyncio.sleep(1000)
        return {tp: self._ends[tp] for tp in partitions}


def observer(
    services: Mapping[str, GivenService], bus: Ends, clock: Clock, inputs: Mapping[str, tuple[str, ...]]
) -> Observer:
    return Observer(services, bus, clock, inputs)  # type: ignore[arg-type]  # only what is used


def lease(number: int, epoch: int = 1) -> Lease:
    return Lease(group="pvbus-toy", partition=number, epoch=epoch)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"pvbus_{name}", labels)


def lease_samples(number: int) -> dict[str, float | None]:
    names = ("held", "lag_records", "dirty_keys", "progress_seconds", "restore_ratio")
    return {name: sample(f"lease_{name}", service="toy", partition=str(number)) for name in names}


async def one(looking: Observer) -> tuple[LeaseReport, ...]:
    return (await looking.look()).state.services["toy"].leases


# With a real worker


def test_a_lease_tells_what_it_has_not_read_and_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lag are the records of the inputs behind the position, dirty the keys that wait or are worked on."""

    async def main() -> None:
        world = await FakeWorld().open()
        worker, _, clock, _ = world.worker()
        looking = Observer({"toy": worker}, world.bus, clock, INPUTS)
        await asyncio.sleep(3)
        for report in await one(looking):
            assert report.restored
            assert (report.lag, report.dirty, report.restore_share) == (0, 0, 1.0)
            assert report.epoch == worker.leases()[report.partition].lease.epoch
        assert len(await one(looking)) == 2
        released = asyncio.Event()

        async def wait(name: str) -> None:
            await released.wait()

        world.cluster.answer = wait
        for number in range(4):
            await world.send(f"key-{number}", {"write": True})
        await asyncio.sleep(1)
        assert sum(report.dirty for report in await one(looking)) == 4
        assert sum(report.lag or 0 for report in await one(looking)) == 0
        monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", 2)  # it reads nothing more
        await asyncio.sleep(2)
        for number in range(10, 17):
            await world.send(f"key-{number}", "text")
        await asyncio.sleep(20)
        observation = await looking.look()
        reports = observation.state.services["toy"].leases
        assert sum(report.lag or 0 for report in reports) == 7
        assert {(IN, r.partition): r.lag for r in reports}.items() <= observation.behind.items()
        assert all(report.seconds_since_progress >= 20 for report in reports)
        released.set()
        await asyncio.sleep(3)
        assert [(report.lag, report.dirty) for report in await one(looking)] == [(0, 0)] * 2
        assert all(report.seconds_since_progress < 20 for report in await one(looking))
        await world.close()

    run_simulated(main())


def test_a_lease_that_went_away_leaves_no_series() -> None:
    """Of a lease that somebody else has now nothing is left, and what stayed has all its numbers."""

    async def main() -> None:
        world = await FakeWorld().open()
        first, *_, clock, _ = world.worker()
        looking = Observer({"toy": first}, world.bus, clock, INPUTS)
        await asyncio.sleep(3)
        _measure(await looking.look())
        for number in range(2):
            assert None not in lease_samples(number).values()
            assert sample("consumer_lag_records", topic=IN, partition=str(number)) == 0
        world.worker()
        await asyncio.sleep(5)
        _measure(await looking.look())
        (retained,) = first.leases()
        assert lease_samples(retained)["held"] == 1
        assert set(lease_samples(1 - retained).values()) == {None}
        assert sample("consumer_lag_records", topic=IN, partition=str(1 - retained)) is None
        assert sample("consumer_lag_records", topic=SEEN, partition=str(1 - retained)) == 0  # still read here
        await world.close()

    run_simulated(main())


# With leases as they are given


def test_what_is_read_besides_is_no_lag_of_a_lease() -> None:
    """A lease's lag counts its own partition of the inputs, not tables that every worker reads."""

    async def main() -> None:
        service = GivenService(Given(lease(0)))
        service.topic_partitions = {(IN, 0): 5, (SEEN, 0): 1, (SEEN, 1): 1}
        bus = Ends({(IN, 0): 8, (SEEN, 0): 100, (SEEN, 1): 1})
        observation = await observer({"toy": service}, bus, SimulatedClock(), INPUTS).look()
        assert [report.lag for report in observation.state.services["toy"].leases] == [3]
        assert observation.behind == {(IN, 0): 3, (SEEN, 0): 99, (SEEN, 1): 0}

    run_simulated(main())


@pytest.mark.parametrize("trouble", ["error", "silence"])
def test_a_bus_that_does_not_answer_hides_lag_only(trouble: str) -> None:
    """Everything else is told, and soon."""

    async def main() -> None:
        service = GivenService(Given(lease(0), dirty_count=2))
        service.topic_partitions = {(IN, 0): 5}
        loop = asyncio.get_running_loop()
        began = loop.time()
        observation = await observer({"toy": service}, Ends({}, trouble), SimulatedClock(), INPUTS).look()
        assert loop.time() - began <= 1.5
        (report,) = observation.state.services["toy"].leases
        assert (report.lag, report.dirty) == (None, 2)
        _measure(observation)
        samples = lease_samples(0)
        assert samples.pop("lag_records") is None
        assert None not in samples.values()

    run_simulated(main())


@pytest.mark.parametrize(
    ("restored", "restore", "share"),
    [(False, (0, 0), 0.0), (False, (30, 40), 0.75), (True, (40, 40), 1.0), (True, (0, 0), 1.0)],
)
def test_the_share_that_is_restored(restored: bool, restore: tuple[int, int], share: float) -> None:
    """Nothing to read is everything once it is read; while it is not known how much there is, it is 0."""

    async def main() -> None:
        service = GivenService(Given(lease(0), restored=restored, restore=restore))
        (report,) = await one(observer({"toy": service}, Ends({}), SimulatedClock(), {}))
        assert report.restore_share == share

    run_simulated(main())


def test_a_key_that_a_bug_fails_is_shown_until_it_is_decided() -> None:
    """/readyz is 503 and names service, key and error; /state has them; after a good decision they go."""

    async def main() -> None:
        world = await FakeWorld().open()

        async def fail(name: str) -> None:
            if name == "default/bad":
                raise KeyError("nobody\x1b[31m thought of it")

        world.cluster.answer = fail
        worker, _, clock, _ = world.worker()
        looking = Observer({"toy": worker}, world.bus, clock, INPUTS)
        server = HealthServer(
            looking, GivenApiServer(), GivenRights(), GivenBeside(), host="127.0.0.1", port=0
        )
        request = make_mocked_request("GET", "/readyz")
        await world.send("default/good", {"write": True})
        await asyncio.sleep(5)
        answer = await server._readyz(request)
        assert (answer.status, answer.text) == (200, "toy: ready\n")
        await world.send("default/bad", {"write": True})
        await asyncio.sleep(70)  # beyond its next try, which fails alike
        answer = await server._readyz(request)
        assert (answer.status, answer.text) == (
            503,
            "toy: ready\ntoy: default/bad: the decision fails, which is a bug in pvbus: "
            "KeyError: 'nobody\\x1b[31m thought of it'\n",
        )
        state = (await looking.look()).state
        assert list(state.services["toy"].defects) == ["default/bad"]
        assert States((state,)).defects() == (answer.text or "").splitlines()[1:]
        world.cluster.answer = answer_at_once
        await asyncio.sleep(70)
        answer = await server._readyz(request)
        assert (answer.status, answer.text) == (200, "toy: ready\n")
        assert (await looking.look()).state.services["toy"].defects == {}
        await world.close()

    run_simulated(main())


# Over HTTP


@asynccontextmanager
async def served(
    services: Mapping[str, GivenService],
    bus: Ends,
    api_server: GivenApiServer | None = None,
    rights: GivenRights | None = None,
) -> AsyncIterator[aiohttp.ClientSession]:
    api_server = api_server or GivenApiServer()
    looking = observer(services, bus, SimulatedClock(), INPUTS)
    async with (
        HealthServer(
            looking, api_server, rights or GivenRights(), GivenBeside(), host="127.0.0.1", port=0
        ) as server,
        aiohttp.ClientSession(server.url) as session,
    ):
        yield session


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as answer:
        return answer.status, await answer.text()


async def test_after_a_long_stall_of_the_loop_a_process_is_not_ready() -> None:
    """It says so in its own line, beside those of its services."""
    async with served({"a": GivenService(Given(lease(1)))}, Ends({})) as http:
        with watched_loop(Limits(logged=60, unready=0.05, recent=3600)):
            end = time.thread_time() + 0.5
            while time.thread_time() < end:
                pass
            async with asyncio.timeout(10):
                while (await get(http, "/readyz"))[0] == 200:
                    pass
            lines = (await get(http, "/readyz"))[1].splitlines()
    assert lines[0] == "a: ready"
    assert lines[1].startswith("event loop: did not answer for ")


async def test_ready_is_who_has_restored_everything() -> None:
    """Until then 503 names what is being restored, and how far; a service without leases is not ready."""
    half = GivenService(Given(lease(0)), Given(lease(3), restored=False, restore=(120, 4000)))
    async with served({"a": GivenService(Given(lease(1))), "b": half, "c": GivenService()}, Ends({})) as http:
        assert await get(http, "/readyz") == (
            503,
            "a: ready\nb: restoring partition 3 (120 of 4000)\nc: has no lease yet\n",
        )
    async with served({"a": GivenService(Given(lease(1)))}, Ends({})) as http:
        assert await get(http, "/readyz") == (200, "a: ready\n")


async def test_without_the_api_server_a_process_is_alive_but_not_ready() -> None:
    """/readyz is 503 and says why, /metrics says since when, and /healthz does not depend on it."""
    lost = GivenApiServer("no request succeeds\x1b[31m since yesterday", 42.5)
    services = {"a": GivenService(Given(lease(1)))}
    async with served(services, Ends({}), lost) as http:
        reason = "API server: no request succeeds\\u001b[31m since yesterday"
        assert await get(http, "/readyz") == (503, f"a: ready\n{reason}\n")
        assert await get(http, "/healthz") == (200, "ok\n")
        assert "pvbus_api_server_failing_seconds 42.5" in (await get(http, "/metrics"))[1].splitlines()
    async with served(services, Ends({}), GivenApiServer()) as http:
        assert "pvbus_api_server_failing_seconds 0.0" in (await get(http, "/metrics"))[1].splitlines()


async def test_missing_rights_are_listed_and_a_service_without_any_is_not_ready() -> None:
    """Of several services in a process, each has its own lines."""
    services = {"a": GivenService(Given(lease(1))), "b": GivenService(Given(lease(2)))}
    missing = {"b": ["may not list secrets"]}
    text = "a: ready\nb: ready\nb: may not list secrets\n"
    async with served(services, Ends({}), rights=GivenRights(missing)) as http:
        assert await get(http, "/readyz") == (200, text)
    async with served(services, Ends({}), rights=GivenRights(missing, "b")) as http:
        assert await get(http, "/readyz") == (503, text)


async def test_state_is_json_of_what_was_seen() -> None:
    """Programs read the document by these names, and by the struct; more fields may come."""
    service = GivenService(Given(lease(2, epoch=9), dirty_count=4, progress_at=float("inf")))
    service.topic_partitions = {(IN, 2): 5}
    reported = {"ready": True, "idle": True, "next_timer_seconds": None, "dirty": 3}
    reported_of_lease = {
        "partition": 2,
        "epoch": 9,
        "restored": True,
        "restore": [7, 7],
        "lag": 1,
        "dirty": 4,
        "seconds_since_progress": 0.0,
    }
    async with served({"toy": service}, Ends({(IN, 2): 6})) as http:
        status, text = await get(http, "/state")
        assert status == 200
        document = msgspec.json.decode(text)["services"]["toy"]
        assert document == document | reported
        (of_lease,) = document["leases"]
        assert of_lease == of_lease | reported_of_lease
        state = msgspec.json.decode(text, type=ProcessState)
        assert state.services["toy"].leases[0].lag == 1
        status, text = await get(http, "/metrics")
        assert status == 200
        for line in (
            'pvbus_lease_held{partition="2",service="toy"} 1.0',
            'pvbus_lease_lag_records{partition="2",service="toy"} 1.0',
            'pvbus_lease_dirty_keys{partition="2",service="toy"} 4.0',
            'pvbus_lease_progress_seconds{partition="2",service="toy"} 0.0',
            'pvbus_lease_restore_ratio{partition="2",service="toy"} 1.0',
            'pvbus_dirty_keys{service="toy"} 3.0',
            'pvbus_consumer_lag_records{partition="2",topic="toy.in"} 1.0',
        ):
            assert line in text.splitlines()


def test_an_address_for_all_is_told_as_one_that_others_can_use() -> None:
    """What listens everywhere is found by its machine's address."""
    assert _address("127.0.0.1") == "127.0.0.1"
    assert _address("::1") == "[::1]"
    assert _address("0.0.0.0") not in ("0.0.0.0", "")


def test_an_observation_of_nothing_is_empty() -> None:
    """A process without services has a state, too."""

    async def main() -> None:
        looking = observer({}, Ends({}), SimulatedClock(), {})
        assert await looking.look() == Observation(ProcessState(services={}), {})

    run_simulated(main())
