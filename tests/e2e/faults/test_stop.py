"""Processes of `pvbus up` that are stopped for longer than their leases (SIGSTOP), and go on (SIGCONT)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.faults.fleet import Fleet
from tests.e2e.faults.test_kill import SETTINGS, converged
from tests.tools.busfile import Snapshot
from tests.tools.installation import Installation, api_server_of, children_of, services_of

STOPPED_SECONDS = 12.0
"""Longer than the session of a worker, 10 s: whoever is stopped for so long loses its leases."""

CLUSTERS_PER_REGION = 4
SEED = 20260301


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    made = Installation(tmp_path / "data", settings=SETTINGS, arguments=("--processes", "2", "--no-web"))
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_process_that_was_stopped_goes_on_where_the_world_is(
    installation: Installation, tmp_path: Path
) -> None:
    """Nothing is lost or written twice, no process has ended, and nobody was told a trace."""
    installation.start()
    await asyncio.to_thread(installation.wait_started, 10)
    fleet = Fleet(tmp_path / "git", SEED, clusters_per_region=CLUSTERS_PER_REGION)
    await fleet.connect(installation.kubeconfig)
    await fleet.settle_in()
    before = Snapshot.of(installation.bus)
    processes = sorted(children_of(installation.pid))
    api_server, services, parent = api_server_of(installation), services_of(installation), installation.pid
    rounds = {
        "the API server": [api_server],
        "the parent, and one of each service, whose leases the other one takes": [parent, *services.values()],
        "everything": [parent, *processes],
    }
    stop = asyncio.Event()
    load = asyncio.create_task(fleet.work(stop))
    try:
        for what, stopped in rounds.items():
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOPPED_SECONDS)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(2.0)
            assert not load.done(), load.result()
            lost = await fleet.lost_writes()
            assert not lost, f"seed {SEED}, {what}:\n" + "\n".join(lost)
    finally:
        stop.set()
        await load
    await converged(fleet)
    assert sorted(children_of(installation.pid)) == processes, installation.output
    assert "Traceback" not in installation.output
    assert '"level": "error"' not in installation.output
    code = await asyncio.to_thread(installation.stop)
    assert code == 0 or "it ends by force" in installation.output, installation.output
    last = Snapshot.of(installation.bus)
    assert [*last.problems(), *last.problems_since(before)] == []
    await fleet.close()
