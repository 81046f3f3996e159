"""Porch's own controller of sets over the same fleet, as the peer of the services.

It is built from Porch's Go module (`tests.porch.programs`) if PVBUS_TEST_PORCH=1 asks for that, which takes
minutes once. Without it the peer is what it gave on two cores at another time.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.children import process_cpu_seconds
from tests.bench.fleet import FIVE_EXPRESSIONS, SETS, TARGETS, VARIANTS, variant_set
from tests.bench.realfleet import RealFleet
from tests.bench.scenarios import fleet_target
from tests.porch.programs import find_or_build
from tests.tools.auditlog import writes_of
from tests.tools.realcluster import ADMINS, Program

USER = "porch"
SECONDS_MAX = 1_800.0
STILL_SECONDS = 20.0
"""Porch's controllers are done when they have written nothing for so long. At a start they read first."""

LOOK_SECONDS = 0.5


class Peer(NamedTuple):
    """The figures, by default those of another time on two cores.

    quiet_seconds: from the set's creation until nothing more is written; writes: until then. cpu_ms: of the
    controller, per variant. touch_writes, restart_writes: after a touch of the set, and after a restart;
    restart_seconds: until they are done.
    """

    variants_per_second: float = 304.0
    quiet_seconds: float = 66.8
    quiet_times: float = 2.0
    writes: int = 20_002
    cpu_ms: float = 2.8
    touch_writes: int = 10_001
    restart_writes: int = 20_002
    restart_seconds: float = 70.0
    ceiling: float | None = 938.0
    """Creates/s of the bare load generator at that time; None: it is that of this run."""

    def share_percent(self, ceiling: float) -> float:
        """Return its share of the ceiling. ceiling: that of this run."""
        return 100 * self.variants_per_second / (self.ceiling or ceiling)


async def peer(count: int) -> Peer:
    """Let Porch's controller make one set's variants, if asked for.

    Raises PorchUnavailableError, ClusterUnavailableError.
    """
    if os.environ.get("PVBUS_TEST_PORCH") != "1":
        return Peer()
    binary = (await asyncio.to_thread(find_or_build)).controllers
    async with RealFleet.started() as fleet:
        await fleet.post_all(TARGETS, map(fleet_target, range(count)))
        porch = _Porch(binary, fleet)
        try:
            made = await _fan_out(porch, fleet, count)
            await fleet.patch(f"{SETS}/fleet", {"metadata": {"annotations": {"example.org/touched": "1"}}})
            touched = await porch.still()
            porch.program.kill()
            porch.program.start()
            restarted = await porch.still()
        finally:
            porch.program.kill()
    return made._replace(
        touch_writes=touched.writes, restart_writes=restarted.writes, restart_seconds=restarted.seconds
    )


async def _fan_out(porch: "_Porch", fleet: RealFleet, count: int) -> Peer:
    await porch.still()
    before = process_cpu_seconds(porch.program.pid)
    made = variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS)
    upstream = {"repo": "blueprints", "package": "app", "workspaceName": "v1"}  # Porch knows no revision
    began = time.perf_counter()
    await fleet.post(SETS, {**made, "spec": {**made["spec"], "upstream": upstream}})
    seconds = await fleet.wait_count(VARIANTS, count, seconds=SECONDS_MAX)
    counted = time.perf_counter() - began
    after = await porch.still()
    quiet = counted + after.seconds
    return Peer(
        variants_per_second=count / seconds,
        quiet_seconds=quiet,
        quiet_times=quiet / seconds,
        writes=after.writes,
        cpu_ms=1000 * (process_cpu_seconds(porch.program.pid) - before) / count,
        ceiling=None,
    )


class _Written(NamedTuple):
    """writes: since the last look. seconds: from the call to the last of them."""

    writes: int
    seconds: float


class _Porch:
    """The running controller, and how far its writes were counted."""

    def __init__(self, binary: Path, fleet: RealFleet) -> None:
        kubeconfig = fleet.real.kubeconfig_of(USER, ADMINS)
        arguments = ["--reconcilers=packagevariantsets", f"--kubeconfig={kubeconfig}"]
        self.program = Program(binary, fleet.folder, arguments)
        self.program.start()
        self._audit = fleet.real.audit
        _, self._counted_to = self._audit.read()

    async def still(self) -> _Written:
        """Wait until it has written nothing for a while."""
        began = last = time.perf_counter()
        total = 0
        while time.perf_counter() - last < STILL_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            events, self._counted_to = self._audit.read(self._counted_to)
            if written := len(writes_of(USER, events)):
                total, last = total + written, time.perf_counter()
        return _Written(total, last - began)
