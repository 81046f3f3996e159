"""Logs: one format for what we say and for what libraries say."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from pvbus.telemetry import logs


def reported(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_libraries_are_heard_from_warning_on_and_wholly_when_debugging(
    capsys: pytest.CaptureFixture[str], level: str, heard: list[str]
) -> None:
    logs.configure(level, "json")
    for word in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("aiokafka.consumer"), word)("node %s is away", 3)
    lines = reported(capsys)
    assert [line["level"] for line in lines] == heard
    assert all(line["event"] == "node 3 is away" for line in lines)


def test_what_libraries_say_looks_like_what_we_say(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logs.get_logger("host").warning("stopped")
    logging.getLogger("aiokafka").warning("stopped")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("aiokafka").exception("failed")
    ours, theirs, failed = reported(capsys)
    assert ours.keys() == theirs.keys() == {"component", "event", "level", "timestamp"}
    assert (ours["component"], theirs["component"]) == ("host", "aiokafka")
    assert failed["exception"][0]["exc_value"] == "why"


def test_configured_twice_each_line_comes_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "console")
    logs.configure("info", "json")
    logging.getLogger("kubernetes").warning("once")
    assert [line["event"] for line in reported(capsys)] == ["once"]


def test_a_command_that_sets_up_no_logging_keeps_its_output_clean() -> None:
    """`pvbus plan -o json` prints JSON; a warning of the API server goes to the other stream."""
    code = "from pvbus.telemetry.logs import get_logger; get_logger('x').warning('careful'); print('{}')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{}\n"
    assert "careful" in done.stderr
