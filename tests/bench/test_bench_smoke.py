"""The benchmarks run, and what they count is exact; their times are nobody's claim here."""

import asyncio
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tests.bench.affected import affected
from tests.bench.approvals import approvals
from tests.bench.churn import churn
from tests.bench.coefficients import ORIGINS
from tests.bench.kafka import kafka_fleet
from tests.bench.kafka_events import kafka_events
from tests.bench.kafka_large import kafka_large
from tests.bench.kafka_workers import kafka_workers
from tests.bench.lists import lists
from tests.bench.memorychart import Sample, draw
from tests.bench.packages import packages
from tests.bench.page import page
from tests.bench.plan import plan
from tests.bench.proposals import proposals
from tests.bench.report import Row, table
from tests.bench.resolving import resolving
from tests.bench.rollouts import rollouts
from tests.bench.scenarios import no_op
from tests.bench.upgrades import injected
from tests.bench.yamlcost import yaml
from tests.tools.browser import BrowserUnavailableError
from tests.tools.kafka import KafkaCluster

COUNTED = (
    *("writes", "records", "sets", "variants", "renders", "documents"),
    *("proposals", "drafts", "moves", "approvals", "waves", "bytes", "rows", "targets"),
)


def test_a_chart_of_memory_is_a_picture_with_an_area_for_each_process() -> None:
    samples = [Sample(0.0, (0, 10)), Sample(60.0, (30, 10))]
    picture = ElementTree.fromstring(draw(samples, ["ingest", "unroll"]))
    areas = [each.get("points", "") for each in picture if each.tag.endswith("polygon")]
    assert [area.count(",") for area in areas] == [4, 4]
    assert all(first != second for first, second in pairwise(areas))


def missed(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.unit in COUNTED and row.met is False]


def hops(rows: list[Row]) -> list[float]:
    """Return the shares of the hops of which a delay is made."""
    return [row.ratio for row in rows if ", hop " in row.name and row.ratio is not None]


@pytest.mark.slow
async def test_a_small_run_counts_what_the_design_promises() -> None:
    """No writes where nothing changes, as many evaluations as there are sets that can be affected, and as
    many renders as there are variants that inject a changed object."""
    runs = (no_op(small=True), affected(small=True), injected(small=True), yaml(small=True), plan(small=True))
    rows = [row for found in await asyncio.gather(*runs) for row in found]
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(await resolving(small=True)) == 5
    assert len(counted) == 16
    assert not missed(counted), table(missed(counted))


@pytest.mark.slow
async def test_a_small_run_proposes_and_approves_each_revision_once() -> None:
    """All drafts and all targets, none twice, in waves of the policy's sizes, and no large object. The speed
    of approvals is a row of the name that a coefficient is read from."""
    runs = (proposals(small=True), rollouts(small=True), approvals(small=True))
    rows = [row for found in await asyncio.gather(*runs) for row in found]
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(counted) == 14
    origin = ORIGINS["git.approvals"]
    assert [row.unit for row in rows if (row.scenario, row.name) == (origin.scenario, origin.name)] == ["1/s"]
    assert not missed(counted), table(missed(counted))


@pytest.mark.slow
async def test_a_small_run_lists_each_target_once() -> None:
    """All targets are counted, and a watch that goes on shows the change that it has missed."""
    rows = await lists(small=True)
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(counted) == 2
    assert not missed(counted), table(missed(counted))


async def test_a_small_run_with_leavers_and_joiners_skips_no_canary_and_orders_nobody_twice() -> None:
    rows = await churn(small=True)
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(counted) == 2
    assert not missed(counted), table(missed(counted))


@pytest.mark.slow
@pytest.mark.long
async def test_a_small_run_installs_packages_that_depend_on_each_other() -> None:
    """Each object is created once, a moved tag changes one row, and a restart writes nothing."""
    rows = await packages(small=True)
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(counted) == 4
    assert not missed(counted), table(missed(counted))


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
async def test_a_small_run_in_a_browser_shows_each_event() -> None:
    try:
        rows = await page(small=True)
    except BrowserUnavailableError as exc:
        pytest.skip(f"the page needs a browser: {exc}")
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(counted) == 1
    assert not missed(counted), table(missed(counted))


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.campaign
@pytest.mark.timeout(300)
async def test_a_small_run_on_kafka_writes_nothing_after_a_restart(
    kafka_one: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All services of a fleet start over it again: no API write, no record. All label changes are seen."""
    monkeypatch.setenv("PVBUS_TEST_KAFKA", kafka_one.bootstrap)
    rows = [*await kafka_fleet(small=True), *await kafka_large(small=True), *await kafka_workers(small=True)]
    counted = [row for row in rows if row.unit in COUNTED and row.goal is not None]
    assert len(counted) == 6
    assert not missed(rows), table(missed(rows))
    assert len(hops(rows)) == 6
    assert sum(hops(rows)) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(300)
async def test_a_small_run_follows_conditions_to_their_events(
    kafka_one: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each condition that is written is received as an event, and its hops are all of its time."""
    monkeypatch.setenv("PVBUS_TEST_KAFKA", kafka_one.bootstrap)
    rows = await kafka_events(small=True)
    assert len(hops(rows)) == 5
    assert sum(hops(rows)) == pytest.approx(1.0)
    (changes,) = [row for row in rows if "received, 10 of them: p50" in row.name]
    (bare,) = [row for row in rows if "bare" in row.name and "p50" in row.name]
    assert changes.figure == pytest.approx((changes.ratio or 0.0) * bare.figure)
