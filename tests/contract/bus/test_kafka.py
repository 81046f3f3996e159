"""The bus contract on a real Kafka, with one broker and with three: the checks of the SQLite bus, unchanged.

Time is real here, and most of it is waiting: for sessions to end, for compaction, for rebalances. So the
checks that wait for long run some at a time, each on topics of its own, and each has its own verdict.
"""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pvbus.testing import bus_contract, bus_contract_groups
from pvbus.testing.bus_contract import Check
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

CHECKS = bus_contract.CHECKS | bus_contract_groups.CHECKS
AT_ONCE = 3
"""How many long checks run side by side: they wait most of the time, but their limits are of real time."""

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


Outcome = list[dict[str, Any]] | BaseException


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], Outcome]:
    """What became of the long checks, by name and cluster."""
    return {}


def run_side_by_side(bootstrap: str) -> dict[str, Outcome]:
    def outcome(name: str) -> Outcome:
        try:
            return asyncio.run(run(CHECKS[name], bootstrap))
        except BaseException as exc:
            return exc

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(LONG, pool.map(outcome, LONG), strict=True))


@pytest.mark.parametrize("name", LONG)
@pytest.mark.xdist_group("kafka-long")
def test_long_contract(name: str, kafka: KafkaCluster, outcomes: dict[tuple[str, str], Outcome]) -> None:
    """The checks that wait for compaction or for many rebalances hold, too."""
    if (name, kafka.bootstrap) not in outcomes:
        found = run_side_by_side(kafka.bootstrap)
        outcomes.update({(each, kafka.bootstrap): outcome for each, outcome in found.items()})
    outcome = outcomes[name, kafka.bootstrap]
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome == []
