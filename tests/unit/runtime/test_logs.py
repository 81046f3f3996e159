"""Logs: one format for what we say and for what libraries say."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from pvbus.core.errors import NO_MEMORY
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


def test_a_library_that_gets_no_memory_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """It is no bug that a trace would explain."""
    logs.configure("warning", "json")
    try:
        raise MemoryError
    except MemoryError:
        logging.getLogger("asyncio").exception("Fatal error on SSL protocol\nprotocol: <SSLProtocol>")
    (line,) = reported(capsys)
    assert line["event"] == f"Fatal error on SSL protocol: {NO_MEMORY}"
    assert line["level"] == "warning"
    assert "exception" not in line


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


MARK = "mArk0fASecret"


def _fail_with_a_token_in_a_frame() -> None:
    headers = {"Authorization": f"Bearer {MARK}"}
    raise ValueError(f"cannot read https://user:{MARK}@host/ with {len(headers)} header")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_comes_through_the_log(
    capsys: pytest.CaptureFixture[str], log_format: logs.LogFormat
) -> None:
    """Neither of ours nor of libraries: in messages, fields of any type, errors, and frames of traces."""
    logs.configure("debug", log_format)
    log = logs.get_logger("host")
    log.info("request", headers={"Cookie": MARK, "Accept": "x"}, url=f"https://h/?token={MARK}", token=MARK)
    log.info("request", values=[("Authorization", f"Bearer {MARK}"), {"deep": {"password": MARK}}])
    log.info("request", value=ValueError(f"password={MARK}"), raw=f"Bearer {MARK}".encode())
    log.info(f"sent Authorization: Bearer {MARK}")
    library = logging.getLogger("aiohttp.server")
    library.warning("Error handling request %s", {"Authorization": f"Bearer {MARK}"}, stack_info=True)
    for report in (log.exception, library.exception):
        try:
            _fail_with_a_token_in_a_frame()
        except ValueError:
            report("failed")
    written = capsys.readouterr().err
    assert MARK not in written
    assert "_fail_with_a_token_in_a_frame" in written
    assert "https://***@host/" in written


def test_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    logs.get_logger("host").info("sent", body="x" * 5_000_000)
    (line,) = reported(capsys)
    assert len(line["body"]) < 40_000
    assert line["body"].endswith("characters more)")


CODE = f"""
import asyncio, logging, resource, sys, threading, warnings
from pvbus.telemetry.guard import begin_process
begin_process()
def fail():
    raise ValueError("https://u:{MARK}@h/")
class Bad:
    def __del__(self):
        fail()
Bad()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
warnings.warn("Authorization: Bearer {MARK}")
logging.getLogger("x").error("password=%s", "{MARK}")
async def main():
    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0)
asyncio.run(main())
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
from pvbus.telemetry.logs import get_logger
try:
    fail()
except ValueError:
    get_logger("x").exception("failed", token="{MARK}")
sys.stderr.flush()
fail()
"""


def test_what_python_writes_by_itself_shows_no_secret() -> None:
    """Uncaught errors of a process, thread, callback and finalizer, warnings, and records of libraries. And a
    crash writes no core file."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "0\n"
    assert MARK not in done.stderr
    assert done.stderr.count("https://***@h/") == 5
    assert "Authorization: ***" in done.stderr
    assert "password=***" in done.stderr
