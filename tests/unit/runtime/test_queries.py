"""Queries of a controller: who answers them, and what is said where nobody does."""

import asyncio

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import Range, Sample
from pvbus.runtime.process.hosting import open_monitoring
from pvbus.runtime.process.settings import RolloutConfig, ServiceConfig, ServicesConfig
from tests.unit.runtime.fakes import FakeWorld, simulated


class FakeMonitoring:
    """Answers an expression that is a number with it, and refuses others."""

    async def query(self, expression: str, *, start: float, end: float, step_seconds: float) -> Range:
        assert (start, end, step_seconds) == (0, 60, 1)
        try:
            return Range(((Sample(end, float(expression)),),))
        except ValueError:
            raise PermanentError(f"no number: {expression}", reason="BadQuery") from None

    async def close(self) -> None:
        return None


def test_a_query_is_answered_and_counted_and_a_refusal_reaches_the_decision() -> None:
    async def scenario(world: FakeWorld) -> None:
        def asked(outcome: str) -> float:
            return REGISTRY.get_sample_value("pvbus_queries_total", {"outcome": outcome}) or 0.0

        before = asked("done"), asked("permanent")
        world.worker(FakeMonitoring())
        await world.send("a", {"query": "0.5"})
        await world.send("b", {"query": "half"})
        await asyncio.sleep(10)
        assert world.out() == {"a": "0.5", "b": "no number: half"}
        assert (asked("done"), asked("permanent")) == (before[0] + 1, before[1] + 1)

    simulated(scenario)


def test_without_a_prometheus_the_words_say_how_to_set_one() -> None:
    async def scenario(world: FakeWorld) -> None:
        world.worker()
        await world.send("a", {"query": "0.5"})
        await asyncio.sleep(10)
        assert world.out()["a"].startswith("no Prometheus is set: set PVBUS_PROMETHEUS_URL")

    simulated(scenario)


def test_queries_do_not_wait_for_an_api_server_that_is_busy() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def throttle(name: str) -> None:
            raise TransientError("429", retry_after_seconds=300.0)

        world.cluster.answer = throttle
        world.worker(FakeMonitoring())
        await world.send("a", {"write": True})
        await asyncio.sleep(5)
        await world.send("b", {"query": "0.5"})
        await asyncio.sleep(5)
        assert world.out() == {"b": "0.5"}

    simulated(scenario)


@pytest.mark.parametrize("config", [RolloutConfig(), ServicesConfig()])
async def test_the_settings_name_who_answers(config: RolloutConfig | ServicesConfig) -> None:
    async with open_monitoring(config) as monitoring:
        assert monitoring is None
    async with open_monitoring(replace(config, prometheus_url="http://127.0.0.1:9/tenant/")) as monitoring:
        assert monitoring is not None
        with pytest.raises(TransientError, match=r"no answer from http://127\.0\.0\.1:9/tenant "):
            await monitoring.query("1", start=0, end=0, step_seconds=1)


async def test_other_services_ask_nobody() -> None:
    async with open_monitoring(ServiceConfig()) as monitoring:
        assert monitoring is None
