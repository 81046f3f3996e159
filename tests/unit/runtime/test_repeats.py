"""Failures that repeat are in the log at first, and then ever more seldom, with a count."""

import json
import logging

import pytest
import structlog

from pvbus.core.errors import TransientError
from pvbus.runtime.reconcile.retries import cause_of
from pvbus.telemetry import logs
from pvbus.telemetry.repeats import FAILURES_MAX, Repeats


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_failure_for_an_hour_is_few_lines_that_count_it() -> None:
    """A try each second: lines at once and after 1, 3, 7, 15, ... minutes; no try is lost from the counts."""
    time = Time()
    repeats = Repeats(time)
    lines = []
    for second in range(3601):
        time.now = float(second)
        if (count := repeats.count("disk full")) is not None:
            lines.append((second, count))
    assert [second for second, _ in lines] == [0, 60, 180, 420, 900, 1860]
    assert [count for _, count in lines] == [1, 60, 120, 240, 480, 960]


def test_a_failure_that_comes_back_later_is_a_new_one() -> None:
    """After ten minutes without it nobody thinks of the old one any more."""
    time = Time()
    repeats = Repeats(time)
    assert [repeats.count("away"), repeats.count("away"), repeats.count("other")] == [1, None, 1]
    time.now = 601.0
    assert repeats.count("away") == 1


def test_memory_is_bounded() -> None:
    """The oldest of too many failures is forgotten, and logged again."""
    repeats = Repeats(Time())
    for number in range(FAILURES_MAX + 1):
        assert repeats.count(number) == 1
    assert [repeats.count(FAILURES_MAX), repeats.count(0)] == [None, 1]


def test_a_full_disk_is_one_line_for_each_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Tries differ in times and numbers only: one line for each key, and other levels as they come."""
    logs.configure("info", "json")
    log = logs.get_logger("render")
    for attempt in range(50):
        for key in ("default/a-1", "default/a-2"):
            error = f"disk full at offset {attempt}"
            log.warning("will be tried again", key=key, seconds=attempt / 7, error=error)
        log.info("created", name="a")
        try:
            raise OSError(f"no space left for {attempt} bytes")
        except OSError:
            log.exception("pass failed")
            logging.getLogger("aiokafka").warning("node %s is away", attempt)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    events = [line["event"] for line in lines]
    assert events.count("created") == 50
    failures = [line for line in lines if line["level"] != "info"]
    assert [line.get("key") for line in failures] == ["default/a-1", "default/a-2", None, None]


def test_a_repeated_failure_has_a_count_and_no_trace() -> None:
    """The trace is in the first line; in later ones it would only be long."""
    time = Time()
    repeats = Repeats(time)
    shown = []
    for now in (0.0, 1.0, 61.0):
        time.now = now
        try:
            shown.append(repeats.process(None, "error", {"event": "failed", "key": "a", "trace": "long"}))
        except structlog.DropEvent:
            shown.append({})
    assert shown == [
        {"event": "failed", "key": "a", "trace": "long"},
        {},
        {"event": "failed", "key": "a", "repeated": 2},
    ]


def test_an_api_server_that_is_away_is_one_line_for_all_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Each key has a path and a name of its own in its message; another cause has a line of its own."""
    logs.configure("info", "json")
    log = logs.get_logger("render")
    for number in range(50):
        for why in ("no connection", "503 ServiceUnavailable"):
            error = TransientError(f'PUT /apis/x/v1/namespaces/a/things/t{number}: {why} "t{number}"')
            log.warning("will be tried again", key=f"a/t{number}", error=str(error), cause=cause_of(error))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["key"] for line in lines] == ["a/t0", "a/t0"]
    assert not any("cause" in line for line in lines)
