"""What an operator sees of a running fleet: every metric that is declared, and one variant in the log."""

import ast
import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.kernel.topics import SERVICES
from pvbus.ports.cluster import Kind
from pvbus.telemetry import metrics
from tests.e2e.cli.command import REPOSITORY, SECONDS_MAX, Running, running
from tests.kit.cluster import resource_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.xdist_group("fleet")]

ELSEWHERE = {
    "pvbus_api_server_failing_seconds": (
        "tests/unit/runtime/test_state.py::test_without_the_api_server_a_process_is_alive_but_not_ready"
    ),
    "pvbus_attention_needed": (
        "tests/unit/runtime/test_metrics.py::test_what_waits_for_a_person_is_counted_by_kind"
    ),
    "pvbus_dead_letters": "tests/unit/runtime/test_metrics.py::test_dead_letters_are_counted_by_topic",
    "pvbus_missing_rights": (
        "tests/unit/runtime/test_missing_rights.py"
        "::test_one_refusal_shows_everything_that_is_missing_until_it_is_granted"
    ),
    "pvbus_package_requests": (
        "tests/e2e/cluster/test_packages.py::test_a_certificate_that_rotates_is_served_without_a_restart"
    ),
    "pvbus_programs": "tests/integration/test_templates.py::test_the_ends_of_programs_are_counted",
    "pvbus_queries": (
        "tests/unit/runtime/test_queries.py"
        "::test_a_query_is_answered_and_counted_and_a_refusal_reaches_the_decision"
    ),
    "pvbus_serving_certificate_expiry_timestamp_seconds": (
        "tests/e2e/cluster/test_packages.py::test_a_certificate_that_rotates_is_served_without_a_restart"
    ),
    "pvbus_sink_deleted_events": (
        "tests/unit/runtime/test_sink.py::test_deleted_events_are_counted_and_passed_over"
    ),
    "pvbus_sink_events": "tests/e2e/cli/test_sink.py::test_a_receiver_that_is_down_holds_the_position",
    "pvbus_sink_oldest_unsent_seconds": (
        "tests/e2e/cli/test_sink.py::test_a_receiver_that_is_down_holds_the_position"
    ),
    "pvbus_sink_unsent_records": (
        "tests/e2e/cli/test_sink.py::test_a_receiver_that_is_down_holds_the_position"
    ),
    "pvbus_source_reads": (
        "tests/unit/runtime/test_sources.py"
        "::test_a_package_is_read_and_counted_and_a_refusal_reaches_the_decision"
    ),
}
"""Metrics of what does not happen in a fleet that is well, each with the test that observes it."""

SITE = "asia-07"
VARIANT = f"default/web-edge-asia-{SITE}-web"


class Fleet:
    """A running fleet. observed: the metrics that were not zero at some time until all was ready."""

    def __init__(self, up: Running, data: Path) -> None:
        self.up = up
        self.data = data
        self.observed: set[str] = set()

    def wait_ready(self) -> None:
        """Scrape again and again until every variant is ready and the second opinions are there, and once
        after: nothing waits for these."""
        url = self.up.wait_for("metrics and health: ").split("metrics and health: ")[1].strip()
        deadline = time.monotonic() + SECONDS_MAX
        while "pvbus_second_opinions" not in self.observed or "variants 200/200 ready" not in self.up.output:
            assert time.monotonic() < deadline, self.up.output[-4000:]
            self._scrape(url)
            time.sleep(0.1)
        self._scrape(url)

    def _scrape(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            values = [sample.value for sample in family.samples if not sample.name.endswith("_created")]
            if any(values):
                self.observed.add(family.name.removesuffix("_info"))

    def lines(self) -> list[dict[str, Any]]:
        """Return the log so far; the last line may be half written."""
        return [json.loads(line) for line in self.up.output.split("\n")[:-1] if line.startswith("{")]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with running(
        *("up", "--example", "fleet", "--log-level", "debug"), cwd=folder, PVBUS_LOG_FORMAT="json"
    ) as up:
        found = Fleet(up, folder / ".pvbus")
        found.wait_ready()
        yield found
        up.end()


def declared() -> dict[str, str]:
    """Return the help of every metric, by name."""
    found = [metric for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
    return {family.name: family.documentation for metric in found for family in metric.describe()}


def test_every_metric_that_is_declared_is_observed(fleet: Fleet) -> None:
    """A metric that nothing sets misleads whoever builds an alert on it."""
    assert sorted(declared().keys() - fleet.observed) == sorted(ELSEWHERE)
    for name, test in ELSEWHERE.items():
        path, _, function = test.partition("::")
        found = [
            ast.unparse(node)
            for node in ast.walk(ast.parse((REPOSITORY / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        ]
        assert len(found) == 1, f"{test} is not there"
        assert name in found[0], f"{test} does not look at {name}"


async def test_a_variant_is_followed_by_its_key_through_all_services(fleet: Fleet) -> None:
    """One label of one object changes: each service has lines with the variant's key, the partition and the
    reconciliation. A service may log what it did after the next one has read it."""
    before = len(fleet.lines())
    cluster = await HttpCluster.connect(fleet.data / "kubeconfig")
    try:
        resource = await resource_of(cluster, Kind("fleet.example.dev", "Cluster"))
        labels = {"metadata": {"labels": {"tier": "gold"}}}
        await cluster.patch(resource, "default", SITE, labels)
    finally:
        await cluster.close()
    deadline = time.monotonic() + SECONDS_MAX
    lines: list[dict[str, Any]] = []
    while {line["service"] for line in lines} != set(SERVICES):
        assert time.monotonic() < deadline, f"only {sorted({line['service'] for line in lines})}"
        await asyncio.sleep(0.2)
        later = [line for line in fleet.lines()[before:] if "service" in line]
        lines = [line for line in later if names_variant(line)]
    for line in lines:
        assert line["key"]
        assert line["service"] == line["component"]
        assert re.fullmatch(rf"{line['partition']}\.\d+\.\d+", line["reconcile_id"])
    written = [line["key"] for line in later if (line["service"], line["event"]) == ("ingest", "row written")]
    assert f"fleet.example.dev/Cluster|default|{SITE}" in written, "the change itself, before the variant's"


def names_variant(line: dict[str, Any]) -> bool:
    return any(VARIANT in str(line.get(name, "")).split("|") for name in ("key", "row"))


def test_lines_of_one_reconciliation_are_of_one_key(fleet: Fleet) -> None:
    """Nothing that is bound for one reconciliation gets into the lines of another one."""
    keys: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for line in fleet.lines():
        if "reconcile_id" in line and line["service"] != "ingest":
            found = keys.setdefault((line["service"], line["reconcile_id"]), set())
            found.add((line["key"], line["partition"]))
    assert len(keys) > 1000
    assert {len(found) for found in keys.values()} == {1}
