"""A worker more or less of a service moves as few leases as it can, and none of anybody else's."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from pvbus.cli.supervisor import States
from pvbus.core.kernel.topics import SERVICES
from pvbus.runtime.process.assembly import partition_count
from tests.e2e.kafka.conftest import Installed
from tests.e2e.kafka.job import addresses, ask
from tests.tools.installation import CHECKOUT, environment
from tests.tools.pace import patience

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS_MAX = patience(60.0)
Held = Mapping[tuple[str, int], tuple[str, int]]
"""(service, partition) to (address of the worker, epoch of the lease)."""


def held(urls: list[str]) -> Held:
    """Ask everybody what they hold."""
    return {
        (name, lease.partition): (url, lease.epoch)
        for url in urls
        for name, service in ask(url).services.items()
        for lease in service.leases
    }


def settled(urls: list[str]) -> Held:
    """Wait until every lease has a worker that has restored it, every worker one, and nobody has work."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        states = States(tuple(ask(url) for url in urls))
        has_all = all(report.leases for state in states.processes for report in state.services.values())
        if has_all and states.is_settled():
            return held(urls)
        assert time.monotonic() < deadline, states
        time.sleep(0.25)


@contextmanager
def one_more(installed: Installed, service: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run one more worker of a service; gives where it tells of itself, too."""
    command = [sys.executable, "-P", "-m", "pvbus.cli", "run", service, "--bus", installed.bus, "--child"]
    worker = subprocess.Popen(
        [*command, "--kubeconfig", str(installed.up.kubeconfig), "--health-port", "0"],
        cwd=CHECKOUT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        yield worker, worker.stdout.readline().partition('"url": "')[2].partition('"')[0]
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize("service", ["render", "ingest"])
def test_a_worker_that_comes_and_goes_moves_only_what_it_must(installed: Installed, service: str) -> None:
    """2 -> 3 -> 2 workers: a third of the leases goes to the new one, and from it, and nothing else moves.

    What does not move keeps its epoch: it is not even restored again.
    """
    urls = list(addresses(installed.up).values())
    before = settled(urls)
    assert len(before) == len(SERVICES) * partition_count()
    with one_more(installed, service) as (worker, url):
        during = settled([*urls, url])
        worker.terminate()
        assert worker.wait(30) == 0
        after = settled(urls)
    taken = {tp for tp, (owner, _) in during.items() if owner == url}
    assert len(taken) == partition_count() // 3
    assert {tp for tp in before if during[tp] != before[tp]} == taken
    assert {tp for tp in during if after[tp] != during[tp]} == taken
    assert all(name == service for name, _ in taken)
    print(f"\n{service}: {len(taken)} of {partition_count()} leases moved to the third worker, and back")
