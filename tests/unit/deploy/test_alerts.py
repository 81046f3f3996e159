"""The alerts as Prometheus reads them: its own checker, and series for which each must or must not fire."""

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pvbus.core.kernel.topics import PARTITIONS, SERVICES
from pvbus.install.monitoring import ALERTS, rule_groups


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is missing: install Debian's package prometheus, or put it on the PATH")
    return found


class Case(NamedTuple):
    """series: name and values in promtool's notation, a value a minute. at: when, as Prometheus writes it."""

    alert: str
    reason: str
    series: dict[str, str]
    at: str
    fires: int


def held(**partitions: int) -> dict[str, str]:
    counts = {service: partitions.get(service, PARTITIONS) for service in SERVICES}
    return {
        f'pvbus_lease_held{{service="{service}",partition="{number}"}}': "1x60"
        for service, count in counts.items()
        for number in range(count)
    }


def stalls(count: int) -> dict[str, str]:
    """Return the series of a process whose loop stalls so often in minute 15, of 300 beats a minute."""
    return {
        'pvbus_loop_stall_seconds_bucket{le="1.0",instance="a"}': "0+300x60",
        'pvbus_loop_stall_seconds_count{instance="a"}': f"0+300x14 {4500 + count}+300x45",
    }


EXPIRY = "pvbus_serving_certificate_expiry_timestamp_seconds"
DAY = 86_400
"""Of the series, which begin at the time 0."""
BUILD = {'pvbus_build_info{version="1"}': "1x60"}
CASES = (
    Case("PvbusNoWorker", "every service has all partitions", held(), "30m", 0),
    Case("PvbusNoWorker", "one partition has none", held(render=PARTITIONS - 1), "30m", 1),
    Case("PvbusNoWorker", "a service has no worker and no series", held(inject=0), "30m", 1),
    Case("PvbusNoWorker", "not for the seconds of a restart", held(render=3), "4m", 0),
    Case("PvbusGone", "nothing is seen", {}, "30m", 1),
    Case("PvbusGone", "a worker is seen", BUILD, "30m", 0),
    Case(
        "PvbusStuck",
        "unread records and no progress",
        {
            'pvbus_lease_progress_seconds{service="render",partition="1"}': "0+60x60",
            'pvbus_lease_lag_records{service="render",partition="1"}': "5x60",
        },
        "30m",
        1,
    ),
    Case(
        "PvbusStuck",
        "idle is not stuck",
        {
            'pvbus_lease_progress_seconds{service="render",partition="1"}': "0+60x60",
            'pvbus_lease_lag_records{service="render",partition="1"}': "0x60",
        },
        "30m",
        0,
    ),
    Case(
        "PvbusBehind",
        "behind for long",
        {'pvbus_consumer_lag_records{topic="t",partition="0"}': "20000x60"},
        "30m",
        1,
    ),
    Case(
        "PvbusBehind",
        "two workers that both read a topic are not twice as far behind",
        {f'pvbus_consumer_lag_records{{topic="t",partition="0",instance="{i}"}}': "6000x60" for i in (1, 2)},
        "30m",
        0,
    ),
    Case(
        "PvbusDefect",
        "a bug",
        {'pvbus_reconcile_total{service="inject",outcome="defect"}': "0 0 1x58"},
        "5m",
        1,
    ),
    Case(
        "PvbusDefect",
        "usual work",
        {'pvbus_reconcile_total{service="inject",outcome="changed"}': "0+9x60"},
        "5m",
        0,
    ),
    Case(
        "PvbusRefused",
        "always refused",
        {'pvbus_effects_total{effect="create",outcome="permanent"}': "0+2x60"},
        "40m",
        1,
    ),
    Case(
        "PvbusRefused",
        "refused once",
        {'pvbus_effects_total{effect="create",outcome="permanent"}': "0 1x60"},
        "40m",
        0,
    ),
    Case(
        "PvbusApiServerLost",
        "one worker is refused",
        {f'pvbus_api_server_failing_seconds{{instance="{i}"}}': f"0+{i}x60" for i in (0, 60)},
        "5m",
        1,
    ),
    Case(
        "PvbusApiServerLost", "lost for a moment", {"pvbus_api_server_failing_seconds": "0 40 0x58"}, "1m", 0
    ),
    Case(
        "PvbusAttentionNeeded",
        "two wait for hours",
        {'pvbus_attention_needed{kind="PackageVariant"}': "2x300"},
        "2h",
        1,
    ),
    Case(
        "PvbusAttentionNeeded",
        "nobody is waited for",
        {'pvbus_attention_needed{kind="PackageVariant"}': "0x300"},
        "2h",
        0,
    ),
    Case("PvbusMissingRights", "one lacks", {'pvbus_missing_rights{service="render"}': "2x60"}, "30m", 1),
    Case("PvbusMissingRights", "all granted", {'pvbus_missing_rights{service="render"}': "0x60"}, "30m", 0),
    Case(
        "PvbusApiServerTrouble",
        "a third fails",
        {
            'pvbus_effects_total{effect="get",outcome="transient"}': "0+10x60",
            'pvbus_effects_total{effect="get",outcome="done"}': "0+20x60",
        },
        "30m",
        1,
    ),
    Case(
        "PvbusApiServerTrouble",
        "one of a hundred fails",
        {
            'pvbus_effects_total{effect="get",outcome="transient"}': "0+1x60",
            'pvbus_effects_total{effect="get",outcome="done"}': "0+99x60",
        },
        "30m",
        0,
    ),
    Case(
        "PvbusWatchesFail",
        "no right to watch",
        {'pvbus_watch_restarts_total{reason="error"}': "0+6x60"},
        "40m",
        1,
    ),
    Case(
        "PvbusWatchesFail",
        "watches end as usual",
        {'pvbus_watch_restarts_total{reason="watch"}': "0+6x60"},
        "40m",
        0,
    ),
    Case("PvbusDeadLetters", "one is enough", {'pvbus_dead_letters_total{topic="t"}': "0 0 1x58"}, "10m", 1),
    Case("PvbusDeadLetters", "none", {'pvbus_dead_letters_total{topic="t"}': "0x60"}, "10m", 0),
    Case(
        "PvbusStepsFail",
        "outcome unknown",
        {'pvbus_steps_total{service="render",outcome="unknown"}': "0+6x60"},
        "40m",
        1,
    ),
    Case(
        "PvbusStepsFail", "done", {'pvbus_steps_total{service="render",outcome="done"}': "0+60x60"}, "40m", 0
    ),
    Case(
        "PvbusSlow",
        "most take more than a minute",
        {
            'pvbus_convergence_seconds_bucket{le="60"}': "0+1x120",
            'pvbus_convergence_seconds_bucket{le="300"}': "0+9x120",
            'pvbus_convergence_seconds_bucket{le="+Inf"}': "0+9x120",
        },
        "90m",
        1,
    ),
    Case(
        "PvbusSlow",
        "all take a second",
        {
            'pvbus_convergence_seconds_bucket{le="1"}': "0+9x120",
            'pvbus_convergence_seconds_bucket{le="+Inf"}': "0+9x120",
        },
        "90m",
        0,
    ),
    Case("PvbusLoopStalls", "three in a minute", stalls(3), "20m", 1),
    Case("PvbusLoopStalls", "two", stalls(2), "20m", 0),
    Case("PvbusLoopStalls", "long ago", stalls(3), "40m", 0),
    Case("PvbusCertificateExpires", "in 13 days", {EXPIRY: f"{13 * DAY}x60"}, "30m", 1),
    Case("PvbusCertificateExpires", "in 15 days", {EXPIRY: f"{15 * DAY}x60"}, "30m", 0),
    Case("PvbusCertificateExpires", "is renewed", {EXPIRY: f"{DAY}x14 {90 * DAY}x45"}, "30m", 0),
    Case(
        "PvbusCertificateExpires",
        "that of one of three replicas",
        {f'{EXPIRY}{{instance="{i}"}}': f"{days * DAY}x60" for i, days in enumerate((90, 1, 90))},
        "30m",
        1,
    ),
    Case("PvbusCertificateExpires", "a process has none", {EXPIRY: "0x60"}, "30m", 0),
)


def _run(promtool: str, folder: Path, verb: str, document: Any) -> str:
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rule_groups()}))
    file = folder / f"{verb}.yaml"
    if document is not None:
        file.write_text(yaml.safe_dump(document))
    file = file if document is not None else folder / "rules.yaml"
    done = subprocess.run([promtool, verb, "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules(promtool: str, tmp_path: Path) -> None:
    assert f"{len(ALERTS)} rules found" in _run(promtool, tmp_path, "check", None)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_not() -> None:
    for alert in ALERTS:
        assert {bool(case.fires) for case in CASES if case.alert == alert.name} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.reason}")
def test_an_alert_fires_when_it_should(promtool: str, tmp_path: Path, case: Case) -> None:
    """promtool wants the labels of what fires; whether it fires at all is asked as a query."""
    firing = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}}) or vector(0)'
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": case.at, "exp_samples": [{"labels": "{}", "value": case.fires}]}
        ],
    }
    _run(
        promtool,
        tmp_path,
        "test",
        {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]},
    )
