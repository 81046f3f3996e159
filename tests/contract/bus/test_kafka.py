"""The bus contract on a real Kafka, with one broker and with three: the checks of the SQLite bus, unchanged.

Time is real here, and most of it is waiting: for sessions to end, for compaction, for rebalances. So the
checks that wait for long run side by side, each on topics of its own, and each has its own verdict.
"""

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pvbus.testing import bus_contract, bus_contract_groups
from pvbus.testing.bus_contract import Check
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

CHECKS = bus_contract.CHECKS | bus_contract_groups.CHECKS
LONG = ("tombstones_stay_and_go", "retention", *(name for name in CHECKS if name.startswith("churn_")))


async def run(check: Check, bootstrap: str) -> list[dict[str, Any]]:
    """Run a check; return the errors that nobody took notice of."""
    unnoticed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unnoticed.append(context))
    harness = KafkaHarness(bootstrap)
    try:
        await check(harness)
    finally:
        await harness.close()
    gc.collect()  # tasks whose errors nobody took are reported when they go
    return unnoticed


@pytest.fixture(params=["one", "three"])
def kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster of one broker, or of three."""
    cluster: KafkaCluster = request.getfixturevalue(f"kafka_{request.param}")
    return cluster


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in LONG])
def test_contract(name: str, kafka: KafkaCluster) -> None:
    """Every check holds (its docstring is the claim), and no task fails unnoticed."""
    assert asyncio.run(run(CHECKS[name], kafka.bootstrap)) == []


class _Background:
    """Checks that run on, each in a thread with a loop of its own, while their results are waited for."""

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], Future[list[dict[str, Any]]]] = {}

    def result(self, name: str, bootstrap: str) -> list[dict[str, Any]]:
        if (name, bootstrap) not in self._results:
            for each in LONG:
                self._start(each, bootstrap)
        return self._results[name, bootstrap].result()

    def _start(self, name: str, bootstrap: str) -> None:
        future = self._results[name, bootstrap] = Future[list[dict[str, Any]]]()

        def work() -> None:
            try:
                future.set_result(asyncio.run(run(CHECKS[name], bootstrap)))
            except BaseException as exc:
                future.set_exception(exc)

        threading.Thread(target=work, name=name, daemon=True).start()


@pytest.fixture(scope="module")
def background() -> Iterator[_Background]:
    return _Background()


@pytest.mark.parametrize("name", LONG)
@pytest.mark.xdist_group("kafka-long")
def test_long_contract(name: str, kafka: KafkaCluster, background: _Background) -> None:
    """The checks that wait for compaction or for many rebalances hold, too."""
    assert background.result(name, kafka.bootstrap) == []
