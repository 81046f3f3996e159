"""When a process is not ready because of its API server."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from pvbus.adapters.kubernetes.reach import Reach
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import TransientError
from pvbus.core.kernel.topics import SERVICES
from pvbus.runtime.process.apiserver import (
    PROBE_SECONDS,
    QUIET_SECONDS_MAX,
    UNANSWERED_SECONDS_MAX,
    ApiServerHealth,
)
from tests.kit.processes import run_simulated

URL = "https://api.example.org:6443"
LOST = "GET /version: no connection to https://api.example.org:6443 (refused); check that it runs"


class Server:
    """An API server that a test takes away. probes: when it was asked."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.reach = Reach(URL, monotonic=clock.monotonic)
        self.is_there = True
        self.probes: list[float] = []
        self._clock = clock

    async def probe(self) -> None:
        self.probes.append(self._clock.monotonic())
        self.request()

    def request(self) -> None:
        if self.is_there:
            self.reach.note_response(200)
        else:
            self.reach.note_failure(TransientError(LOST))


def simulated(
    scenario: Callable[[Server, ApiServerHealth], Awaitable[None]], *services: str
) -> list[dict[str, object]]:
    """Run a scenario beside the health of a process with these services, and return the log."""

    async def main() -> None:
        clock = SimulatedClock()
        server = Server(clock)
        health = ApiServerHealth(server, clock, services or ("render",))  # type: ignore[arg-type]  # only what is used
        running = asyncio.create_task(health.run())
        await asyncio.sleep(0.5)
        await scenario(server, health)
        running.cancel()

    with capture_logs() as lines:
        run_simulated(main())
    return [dict(line) for line in lines]


def test_a_lasting_loss_is_said_and_ends_with_the_first_answer() -> None:
    """The reason names the server, since when, and what to check; the log has a line for begin and end."""

    async def scenario(server: Server, health: ApiServerHealth) -> None:
        assert health.problem == ""
        server.is_there = False
        server.request()
        await asyncio.sleep(UNANSWERED_SECONDS_MAX - 0.1)
        assert health.problem == ""
        await asyncio.sleep(0.2)
        assert health.problem.startswith(f"no request to {URL} succeeds since ")
        assert health.problem.endswith(f"Z: {LOST}")
        assert health.failing_seconds == pytest.approx(UNANSWERED_SECONDS_MAX + 0.1)
        begun = health.problem
        await asyncio.sleep(600)
        assert health.problem == begun
        server.is_there = True
        await asyncio.sleep(PROBE_SECONDS)  # although the service itself requests nothing
        assert (health.problem, health.failing_seconds) == ("", 0.0)
        await asyncio.sleep(PROBE_SECONDS)

    lines = [(line["log_level"], line["event"]) for line in simulated(scenario)]
    assert lines == [("error", "requests to the API server fail"), ("info", "the API server answers again")]


def test_a_lost_request_does_not_matter() -> None:
    """Each is followed by a probe that is answered, however many are lost, and without other requests."""

    async def scenario(server: Server, health: ApiServerHealth) -> None:
        for _ in range(20):
            server.reach.note_failure(TransientError("lost"))
            await asyncio.sleep(PROBE_SECONDS + 0.1)
            assert (health.problem, health.failing_seconds) == ("", 0.0)

    assert simulated(scenario) == []


def test_an_idle_service_notices_the_loss() -> None:
    """It asks only when it has had no answer for a while."""

    async def scenario(server: Server, health: ApiServerHealth) -> None:
        assert len(server.probes) == 1  # at the start
        for _ in range(10):
            await asyncio.sleep(QUIET_SECONDS_MAX / 2)
            server.request()
        assert len(server.probes) == 1
        server.is_there = False
        await asyncio.sleep(QUIET_SECONDS_MAX + UNANSWERED_SECONDS_MAX + 2 * PROBE_SECONDS)
        assert health.problem

    simulated(scenario)


def test_before_the_first_answer_nothing_is_ready() -> None:
    """A worker with a wrong address must not replace one that works, not even for ten seconds."""

    async def main() -> None:
        clock = SimulatedClock()
        server = Server(clock)
        health = ApiServerHealth(server, clock, ["inject"])  # type: ignore[arg-type]  # only what is used
        assert health.problem == f"{URL} has not answered yet"
        server.reach.note_failure(TransientError(LOST))
        assert health.problem == f"{URL} has not answered yet: {LOST}"
        server.request()
        assert health.problem == ""

    run_simulated(main())


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_without_rights_needs_no_api_server(service: str) -> None:
    """Unroll asks nothing, at the start neither, and is ready; every other one needs an answer."""

    async def scenario(server: Server, health: ApiServerHealth) -> None:
        server.is_there = False
        server.request()
        await asyncio.sleep(100)
        assert (health.problem == "") == (service == "unroll")
        assert (server.probes == []) == (service == "unroll")

    simulated(scenario, service)
