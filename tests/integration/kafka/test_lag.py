"""`pvbus lag` on a Kafka, and what moves between the processes of a service: no more than must."""

import json
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pvbus.runtime.process.assembly import partition_count
from tests.tools.installation import environment, pvbus
from tests.tools.kafka import KafkaCluster
from tests.tools.served import serve

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

SERVICE = "render"
SECONDS_MAX = 60.0
GRACE_SECONDS = 10.0
"""What a container has between SIGTERM and SIGKILL."""

HANDOVER_SECONDS = 10.0
"""Two rebalances and the new producers, seen by a command that takes two seconds each time."""

Rows = dict[int, dict[str, Any]]
"""By partition."""


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


class LagWorld:
    """Processes of one service on one bus."""

    def __init__(self, folder: Path, bus: str, kubeconfig: Path) -> None:
        self.bus = bus
        self._folder = folder
        self._kubeconfig = kubeconfig
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "pvbus.cli", "run", SERVICE, "--bus", self.bus]
        command += ["--kubeconfig", str(self._kubeconfig)]
        with (self._folder / f"{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment())
            )
        return self.processes[-1]

    def rows(self) -> Rows:
        done = pvbus("lag", SERVICE, "--bus", self.bus, "-o", "json")
        assert done.returncode == 0, done.stderr
        return {row["partition"]: row for row in json.loads(done.stdout)["rows"]}

    def wait(self, is_so: Callable[[Rows], bool]) -> Rows:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            for number, process in enumerate(self.processes):
                assert process.poll() in (None, 0, -signal.SIGKILL), (
                    self._folder / f"{number}.log"
                ).read_text()
            rows = self.rows()
            if is_so(rows):
                return rows
            assert time.monotonic() < deadline, rows

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def world(kafka: KafkaCluster, folder: Path) -> Iterator[LagWorld]:
    with serve(folder / "api") as served:
        bus = f"kafka://{kafka.bootstrap}/lag-{secrets.token_hex(4)}"
        created = pvbus("topics", "--create", "--bus", bus)
        assert created.returncode == 0, created.stderr
        made = LagWorld(folder, bus, served.server.kubeconfig_path)
        try:
            yield made
        finally:
            made.close()


def held_by(count: int) -> Callable[[Rows], bool]:
    """Every partition has an owner who has restored it, of so many, who have the same shares."""

    def is_so(rows: Rows) -> bool:
        loads = Counter(row["owner"] for row in rows.values())
        reported = [row for row in rows.values() if row["lease"] is not None and row["lease"]["restored"]]
        return len(reported) == partition_count() and len(loads) == count and len(set(loads.values())) == 1

    return is_so


def moved(before: Rows, after: Rows) -> set[int]:
    """Return the partitions with another epoch: a lease that stays is not even fenced."""
    found = {n for n in before if before[n]["lease"]["epoch"] != after[n]["lease"]["epoch"]}
    assert found == {n for n in before if before[n]["owner"] != after[n]["owner"]}
    return found


def test_a_worker_added_or_lost_moves_only_what_it_must(kafka_one: KafkaCluster, tmp_path: Path) -> None:
    """The second process gets half, and gives it back when it ends, which it does in its grace time.

    Who is ready has restored what it holds; who was killed holds nothing once its session is over.
    """
    with world(kafka_one, tmp_path) as processes:
        first = processes.start()
        alone = processes.wait(held_by(1))
        (url,) = {row["owner"] for row in alone.values()}
        second = processes.start()
        both = processes.wait(held_by(2))
        assert len(moved(alone, both)) == partition_count() // 2
        for owner in {row["owner"] for row in both.values()}:
            assert get(f"{owner}/readyz") == "render: ready\n"
            metrics = get(f"{owner}/metrics")
            mine = {str(number) for number, row in both.items() if row["owner"] == owner}
            for name in ("held", "lag_records", "dirty_keys", "progress_seconds", "restore_ratio"):
                series = re.findall(
                    rf'^pvbus_lease_{name}{{partition="(\d+)",service="render"}} \S+$', metrics, re.M
                )
                assert set(series) == mine
        began = time.monotonic()
        second.send_signal(signal.SIGTERM)
        assert second.wait(GRACE_SECONDS) == 0
        again = processes.wait(held_by(1))
        assert time.monotonic() - began < GRACE_SECONDS + HANDOVER_SECONDS
        assert {row["owner"] for row in again.values()} == {url}
        assert moved(both, again) == moved(alone, both)
        first.kill()
        nobody = processes.wait(lambda rows: {row["owner"] for row in rows.values()} == {""})
        assert {row["lease"] for row in nobody.values()} == {None}
        done = pvbus("lag", SERVICE, "--bus", processes.bus, "--check")
        assert done.returncode == 1
        assert done.stderr.count("no worker holds any of its") == 1
