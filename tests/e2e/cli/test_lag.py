"""`pvbus lag` against a real `pvbus up`: while it runs, hangs, was killed, and ended."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.lag import COLUMNS, SUMMARY
from pvbus.core.kernel.topics import SERVICES
from pvbus.runtime.process.assembly import partition_count
from tests.tools.installation import Installation, environment, pvbus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EACH = dict.fromkeys(SERVICES, partition_count())


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """One that is ready."""
    up = Installation(tmp_path / "data")
    up.start()
    try:
        up.wait_ready()
        yield up
    finally:
        up.kill()


def url_of(up: Installation) -> str:
    found = re.search(r"metrics and health: (\S+)/metrics", up.output)
    assert found is not None
    return found[1]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def lag(up: Installation, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return pvbus("lag", *arguments, "--data", up.data)


def rows(up: Installation) -> list[dict[str, Any]]:
    done = lag(up, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def test_every_partition_of_every_service_is_shown(installation: Installation) -> None:
    """Table, `/state` and `/metrics` agree: this process holds all, restored, with nothing left."""
    url = url_of(installation)
    found = rows(installation)
    assert Counter(row["service"] for row in found) == EACH
    assert {row["owner"] for row in found} == {url}
    assert all(row["lease"]["restored"] and row["lag"] == 0 for row in found)
    state = json.loads(get(f"{url}/state"))["services"]
    epochs = {(name, each["partition"]): each["epoch"] for name in state for each in state[name]["leases"]}
    assert epochs == {(row["service"], row["partition"]): row["lease"]["epoch"] for row in found}
    metrics = get(f"{url}/metrics")
    for name in ("held", "lag_records", "dirty_keys", "progress_seconds", "restore_ratio"):
        series = re.findall(rf'^pvbus_lease_{name}{{partition="\d+",service="(\w+)"}} (\S+)$', metrics, re.M)
        assert Counter(service for service, _ in series) == EACH
        if name in ("held", "restore_ratio"):
            assert {value for _, value in series} == {"1.0"}
    done = lag(installation, "render", "ingest", "--check", "--partitions")
    assert (done.returncode, done.stderr) == (0, "")
    summary, table = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert summary[0].split() == list(SUMMARY)
    assert re.fullmatch(r"ingest +12/12 +1 +0 +\d+ +\S+( s)? +100%", summary[1])
    assert len(summary) == 1 + 2
    assert table[0].split() == list(COLUMNS)
    assert len(table) == 1 + 2 * partition_count()
    owner = re.escape(url.removeprefix("http://"))
    assert re.fullmatch(rf"ingest +0 +{owner} +\d+ +0 +\d+ +\d+\.\d s +100%", table[1])
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_worker_that_hangs_is_named(installation: Installation) -> None:
    """Who holds what is told by the bus, and that the holder does not answer by one line."""
    url = url_of(installation)
    for _ in range(5):  # stopped in the middle of a write, it keeps the bus's file locked
        os.kill(installation.pid, signal.SIGSTOP)
        try:
            done = lag(installation, "unroll", "--partitions")
        finally:
            os.kill(installation.pid, signal.SIGCONT)
        if "locked" not in done.stderr:
            break
        time.sleep(0.5)  # else it is stopped again in the same write
    assert done.returncode == 0, done.stderr
    # What it had read in its last second may not be committed, and so counts.
    untold = rf"^unroll +\d+ +{re.escape(url.removeprefix('http://'))} +\? +\d+ +\? +\? +\?$"
    assert len(re.findall(untold, done.stdout, re.M)) == EACH["unroll"]
    assert [line.split(" does not tell")[0] for line in done.stderr.splitlines()] == [url]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_without_a_worker_nobody_holds_anything(installation: Installation, end: str) -> None:
    """It works while nothing runs, also right after a kill -9; `--check` ends with 1 then."""
    getattr(installation, end)()
    found = rows(installation)
    assert Counter(row["service"] for row in found) == EACH
    assert {(row["owner"], row["lease"]) for row in found} == {("", None)}
    done = lag(installation, "render", "--check", "--partitions")
    assert done.returncode == 1
    reported = f"render: no worker holds any of its {partition_count()} partitions: is it running?"
    assert done.stderr.splitlines() == [reported]
    assert re.search(r"^render +0 +none +- +\d+ +- +- +-$", done.stdout, re.M)


def test_where_there_is_no_bus_it_says_so(tmp_path: Path) -> None:
    """And what to do, with 2 where the address is wrong and 1 where nobody answers."""
    for arguments, code, words in (
        (("--data", str(tmp_path)), 2, f"no bus at {tmp_path}/bus.db: start `pvbus up`"),
        (("--bus", "kafka://127.0.0.1:1"), 1, "connecting to 127.0.0.1:1: connection refused"),
        (("--bus", "nats://x"), 2, 'invalid bus URL "nats://x"'),
    ):
        done = pvbus("lag", *arguments)
        assert done.returncode == code, done
        assert f"error: {words}" in done.stderr


def _heed_ctrl_c() -> None:
    """What a shell starts in the background ignores it, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_watching_goes_on_until_ctrl_c(installation: Installation, tmp_path: Path) -> None:
    """The table comes again and again; a question that ends and one that does not are not asked at once."""
    shown = tmp_path / "shown"
    command = [
        sys.executable,
        "-P",
        "-m",
        "pvbus.cli",
        "lag",
        "render",
        "--watch",
        "--data",
        str(installation.data),
    ]
    with shown.open("wb") as output:
        watching = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            preexec_fn=_heed_ctrl_c,
        )
    try:
        deadline = time.monotonic() + 30
        while shown.read_text().count("SERVICE") < 2:
            assert time.monotonic() < deadline, shown.read_text()
            assert watching.poll() is None, shown.read_text()
            time.sleep(0.1)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130
    finally:
        watching.kill()
        watching.wait()
    assert "Traceback" not in shown.read_text()
    assert lag(installation, "--watch", "--check").returncode == 2
