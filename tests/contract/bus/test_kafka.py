"""The bus contract on a real Kafka, with one broker and with three: the checks of the SQLite bus, unchanged.

Time is real here, and most of it is waiting: for sessions to end, for compaction, for rebalances. So the
checks that wait for long run beside each other, each on topics of its own, in one test.
"""

import asyncio
import gc
import os
from typing import Any

import pytest

from tests.conftest import LIBRARY_LEAKS
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit import bus_contract, bus_contract_churn, bus_contract_groups
from tests.kit.bus_contract import Check
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

CHECKS = bus_contract.CHECKS | bus_contract_groups.CHECKS | bus_contract_churn.CHECKS
AT_ONCE = 2
"""How many checks of churn run side by side. They mostly wait, but two cores busy with more are too slow for
their limits, which are of real time."""

CHURN = tuple(name for name in CHECKS if name.startswith("churn_"))
ALL_CHURN = os.environ.get("PVBUS_TEST_CHURN") == "all"
CHURN_EACH = 1
"""How many churn checks each of the two clusters has by default, others than the other one: they take two
minutes each, and the whole suite has 45. SQLite always runs all, as PVBUS_TEST_CHURN=all does here."""

EXPIRING = ("tombstones_stay_and_go", "retention")
"""Checks of what one broker does with its own segments, a minute each: three of them have them with all."""
LONG = (*CHURN, *EXPIRING)


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


@pytest.fixture(params=["kafka_one", "kafka_three"])
def kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster of one broker, or of three."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in LONG])
def test_contract(name: str, kafka: KafkaCluster) -> None:
    """Every check holds (its docstring is the claim), and no task fails unnoticed."""
    assert asyncio.run(run(CHECKS[name], kafka.bootstrap)) == []


async def run_limited(name: str, bootstrap: str, at_once: asyncio.Semaphore) -> list[dict[str, Any]]:
    """Run a long check in a thread with a loop of its own, when it is its turn."""
    async with at_once:
        unnoticed = await asyncio.to_thread(lambda: asyncio.run(run(CHECKS[name], bootstrap)))
    # A worker that is killed at its start cuts aiokafka's first request; the library loses its connection.
    ignored = LIBRARY_LEAKS if name in CHURN else ()
    return [each for each in unnoticed if each.get("message") not in ignored]


def long_checks(kafka: KafkaCluster) -> tuple[str, ...]:
    """Return the long checks for a cluster; the two clusters share those of churn."""
    if ALL_CHURN:
        return LONG
    if "," in kafka.bootstrap:
        return CHURN[1::2][:CHURN_EACH]
    return (*CHURN[::2][:CHURN_EACH], *EXPIRING)


async def test_long_contract(kafka: KafkaCluster) -> None:
    """The checks that wait for compaction, or for many rebalances, hold, too."""
    names = long_checks(kafka)
    at_once = asyncio.Semaphore(AT_ONCE)
    outcomes = await asyncio.gather(
        *(run_limited(name, kafka.bootstrap, at_once) for name in names), return_exceptions=True
    )
    failures = []
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, Exception):
            outcome.add_note(f"check {name}")
            failures.append(outcome)
    if failures:
        raise ExceptionGroup("long checks", failures)
    assert {name: outcome for name, outcome in zip(names, outcomes, strict=True) if outcome} == {}
