"""Metrics and the fields of log lines, as a worker sets them."""

import asyncio
import json
import logging
import re
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY, Counter
from prometheus_client.metrics import MetricWrapperBase
from structlog.testing import capture_logs

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.api.variants import Condition
from pvbus.core.errors import TransientError
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import LATEST
from pvbus.core.variants.attention import ATTENTION
from pvbus.runtime.process.assembly import build_service
from pvbus.runtime.reconcile.worker import Worker
from pvbus.telemetry import logs, metrics
from tests.unit.runtime.fakes import IN, PARTITIONS, FakeWorld, simulated

DECLARED = [metric for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
KEYS = [f"default/k{i}" for i in range(8)]
UNITS = ("_seconds", "_records", "_keys", "_ratio", "_bytes")
COUNTED = {
    "pvbus_leases",
    "pvbus_lease_held",
    "pvbus_build",
    "pvbus_missing_rights",
    "pvbus_attention_needed",
}
"""Gauges whose names are what they count."""


async def test_what_waits_for_a_person_is_counted_by_kind() -> None:
    bus = await SqliteBus.open(":memory:")
    service = build_service("conditions", bus, MemoryCluster(now=lambda: ""), SystemClock())
    assert isinstance(service, Worker)
    condition = Condition(type=ATTENTION, status="True")
    event = ConditionEvent(kind="PackageVariant", namespace="d", name="a", uid="u", condition=condition)
    service.controller.open(0)
    service.controller.load(LATEST, 0, f"PackageVariant|d/a|{ATTENTION}", encode_row(event))
    assert value("pvbus_attention_needed", kind="PackageVariant") == 1
    assert value("pvbus_attention_needed", kind="PackageVariantSet") == 0
    await bus.close()


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("metric", DECLARED, ids=lambda metric: next(iter(metric.describe())).name)
def test_names_and_help_follow_the_conventions_of_prometheus(metric: MetricWrapperBase) -> None:
    """Prefix, snake case, base units; a counter's samples end with `_total`; the help is a sentence."""
    (family,) = metric.describe()
    assert re.fullmatch("pvbus(_[a-z]+)+", family.name)
    if isinstance(metric, Counter):  # the library takes `_total` off the family and puts it on the samples
        assert metric._name == family.name
        assert not family.name.endswith("_total")
    elif family.name not in COUNTED:
        assert family.name.endswith(UNITS)
    assert re.fullmatch(r"[A-Z1][^\n]+\.", family.documentation)
    assert not re.search(r"\b(claims?|told|kept|place)\b", family.documentation)


def test_dead_letters_are_counted_by_topic() -> None:
    async def scenario(world: FakeWorld) -> None:
        world.worker()
        await asyncio.sleep(3)
        before = value("pvbus_dead_letters_total", topic=IN)
        await world.send_bytes(KEYS[0], b"not json")
        await asyncio.sleep(5)
        assert value("pvbus_dead_letters_total", topic=IN) == before + 1

    simulated(scenario)


def test_a_reconciliation_lasts_until_its_outcome_is_committed() -> None:
    """The calls to the API server count; and so does one reconciliation without rows."""
    name = "pvbus_reconcile_duration_seconds"

    async def scenario(world: FakeWorld) -> None:
        world.worker()

        async def slow(_: str) -> None:
            await asyncio.sleep(4)

        world.cluster.answer = slow
        await asyncio.sleep(3)
        count, total = value(f"{name}_count", service="toy"), value(f"{name}_sum", service="toy")
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(2)
        assert value("pvbus_inflight_keys", service="toy") == 1
        await asyncio.sleep(8)
        assert value("pvbus_inflight_keys", service="toy") == 0
        assert value(f"{name}_count", service="toy") == count + 1
        assert value(f"{name}_sum", service="toy") - total == pytest.approx(4, abs=0.5)
        await world.send(KEYS[0], {"write": True})  # the same again: no rows
        await asyncio.sleep(8)
        assert value(f"{name}_count", service="toy") == count + 2

    simulated(scenario)


def test_evaluations_are_counted_across_a_new_controller() -> None:
    """When the tables are emptied, the controller is replaced, and its count begins at 0 again."""

    async def scenario(world: FakeWorld) -> None:
        _, fake, *_ = world.worker()
        await asyncio.sleep(3)
        before = value("pvbus_evaluations_total", service="toy")
        fake.evaluations = 5
        await asyncio.sleep(3)
        assert value("pvbus_evaluations_total", service="toy") == before + 5
        fake.evaluations = 3
        await asyncio.sleep(3)
        assert value("pvbus_evaluations_total", service="toy") == before + 8

    simulated(scenario)


def test_convergence_is_the_time_since_the_work_began_that_an_outcome_completes() -> None:
    async def scenario(world: FakeWorld) -> None:
        _, fake, *_ = world.worker()
        await asyncio.sleep(3)
        reconcile, before = fake.reconcile, value("pvbus_convergence_seconds_count")
        total = value("pvbus_convergence_seconds_sum")

        def ending(partition: int, key: str, now: float) -> Any:
            outcome = yield from reconcile(partition, key, now)
            return outcome._replace(cause=now - 20.0) if outcome.puts else outcome

        fake.reconcile = ending  # type: ignore[method-assign, assignment]
        await world.send(KEYS[0], "a")
        await asyncio.sleep(5)
        assert value("pvbus_convergence_seconds_count") == before + 1
        assert 20 <= value("pvbus_convergence_seconds_sum") - total < 22

    simulated(scenario)


# Log lines.


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    """Everything that is logged meanwhile, at debug, with what is bound."""
    logs.configure("debug", "json")
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as found:
        yield found


def test_each_line_of_a_reconciliation_says_of_which(lines: list[dict[str, Any]]) -> None:
    """Eight keys wait for the API server at once, and half of them fail: no line has another one's key."""

    async def scenario(world: FakeWorld) -> None:
        world.worker()

        async def answer(name: str) -> None:
            await asyncio.sleep(1)
            structlog.get_logger().info("inside", name=name)
            if name in KEYS[::2] and len(world.cluster.calls) <= len(KEYS):
                raise TransientError("503")

        world.cluster.answer = answer
        await asyncio.sleep(3)
        lines.clear()
        for key in KEYS:
            await world.send(key, {"write": True})
        await asyncio.sleep(20)
        assert set(world.out()) == set(KEYS)

    simulated(scenario)
    of_keys: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "key" in line:
            of_keys.setdefault(line["key"], []).append(line)
            assert line["service"] == "toy"
            assert line["partition"] == partition(line["key"], PARTITIONS)
            assert line["reconcile_id"].startswith(f"{line['partition']}.")
            assert line.get("name", line["key"]) == line["key"]
            assert line.get("row", line["key"]) == line["key"]
    assert set(of_keys) == set(KEYS)
    for key, found in of_keys.items():
        events = [line["event"] for line in found]
        done = ["inside", "created", "reconciled", "row written"]
        assert events == (["inside", "will be tried again", *done] if key in KEYS[::2] else done)
        assert len({line["reconcile_id"] for line in found}) == (2 if key in KEYS[::2] else 1)
    ids = {line["reconcile_id"] for line in lines if "reconcile_id" in line}
    assert len(ids) == len(KEYS) + len(KEYS[::2])
    others = [line["event"] for line in lines if "key" not in line]
    assert not {"created", "reconciled", "row written", "will be tried again"} & set(others)


@pytest.mark.parametrize(("is_expected", "level"), [(True, "debug"), (False, "warning")])
def test_nobody_is_warned_of_what_every_start_has(
    lines: list[dict[str, Any]], is_expected: bool, level: str
) -> None:
    async def scenario(world: FakeWorld) -> None:
        world.worker()

        async def answer(name: str) -> None:
            if len(world.cluster.calls) == 1:
                raise TransientError("not known yet", retry_after_seconds=0.5, is_expected=is_expected)

        world.cluster.answer = answer
        await asyncio.sleep(3)
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(5)
        assert set(world.out()) == {KEYS[0]}

    simulated(scenario)
    assert [line["log_level"] for line in lines if line["event"] == "will be tried again"] == [level]


def test_nothing_is_bound_after_a_reconciliation(lines: list[dict[str, Any]]) -> None:
    """A step that a reconciliation starts is a task of its own, for the outcomes of others, too."""

    async def scenario(world: FakeWorld) -> None:
        *_, bus = world.worker()
        await asyncio.sleep(3)
        step, seen = bus.step, []

        async def watched(lease: Any, outputs: Any, offsets: Any = None) -> None:
            seen.append(structlog.contextvars.get_contextvars())
            await step(lease, outputs, offsets)

        bus.step = watched  # type: ignore[method-assign]
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(5)
        assert seen
        assert not any(seen)

    simulated(scenario)
    assert structlog.contextvars.get_contextvars() == {}


def test_failures_that_repeat_are_thinned_out_whatever_their_reconciliation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each try is another reconciliation of the same key: its line is the same failure all the same."""
    logs.configure("info", "json")
    for number in range(5):
        with logs.bound({"service": "toy", "key": "a", "partition": 0, "reconcile_id": f"0.1.{number}"}):
            logs.get_logger("toy").warning("will be tried again", error="503")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_lines_of_libraries_say_of_which_reconciliation_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    with logs.bound({"key": "a", "reconcile_id": "0.1.1"}):
        logging.getLogger("aiohttp.client").warning("connection lost")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["key"], line["reconcile_id"]) == ("connection lost", "a", "0.1.1")
