"""10,000 drafts of one repository become ready at once, and are proposed, each exactly once.

API server and package store are one process, ingest another, promote and release a third. A
PackageSpecializer that nobody answers for keeps all drafts closed; its deletion makes all of them ready in
one write. Who counts is a watch of the API server by a plain client, and git.

The ceiling is the same change of lifecycle by a plain client that has all objects in memory and reads
nothing, on some of the same drafts and the same server, before any service runs.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from pvbus.core.api.promotion import PROMOTION_API, PROMOTION_GROUP
from tests.bench.fleet import Fleet
from tests.bench.lifecycles import (
    IN_FLIGHT,
    Moved,
    Used,
    cost_rows,
    make_variants,
    move_bare,
    move_by_services,
    observing,
    refs_of,
    store_of_drafts,
)
from tests.bench.report import Row
from tests.bench.revisions import Process

NAME = "proposals"
SECONDS_GOAL = 30.0
SPECIALIZERS = f"/apis/{PROMOTION_GROUP}/v1alpha1/namespaces/default/packagespecializers"
SPECIALIZER: dict[str, Any] = {
    "apiVersion": PROMOTION_API,
    "kind": "PackageSpecializer",
    "metadata": {"name": "addresses", "namespace": "default"},
    "spec": {"deadlineSeconds": 600, "afterDeadline": "Closed"},
}


class Found(NamedTuple):
    """alone: of the plain client, one request at a time; together: with IN_FLIGHT. proposed: of the services.
    most: see `Changes`. proposals, drafts: how many such refs there are at the end."""

    alone: Used
    together: Used
    proposed: Moved
    most: int
    proposals: int
    drafts: int
    load: float


async def _propose(fleet: Fleet, store: Process, count: int) -> tuple[Moved, int]:
    async def make_ready() -> None:
        async with fleet.http.delete(f"{SPECIALIZERS}/addresses") as reply:
            assert reply.status == 200, await reply.text()

    async with (
        fleet.services("ingest") as ingest,
        fleet.services("promote", "release") as services,
        observing(fleet) as changes,
    ):
        children = (ingest, services)
        moved = await move_by_services(store, children, changes, make_ready, "Proposed", count)
        return moved, changes.most()


async def measure(folder: Path, count: int, alone: int, together: int) -> Found:
    """alone, together: how many of the drafts the plain client moves, one at a time and IN_FLIGHT at once."""
    async with store_of_drafts(folder, count) as (fleet, store):
        await make_variants(fleet, range(count))
        by_one = await move_bare(fleet, store, range(alone), "Proposed", clients=1)
        by_many = await move_bare(fleet, store, range(alone, alone + together), "Proposed")
        await move_bare(fleet, store, range(alone + together), "Draft")
        await fleet.post(SPECIALIZERS, SPECIALIZER)
        load = os.getloadavg()[0]
        proposed, most = await _propose(fleet, store, count)
    refs = refs_of(folder)
    return Found(by_one, by_many, proposed, most, len(refs["proposed"]), len(refs["drafts"]), load)


async def proposals(*, small: bool) -> list[Row]:
    """Time until all are proposed, exactness, and CPU, against a plain client."""
    count, alone, together = (60, 5, 20) if small else (10_000, 300, 2_000)
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        found = await measure(Path(name), count, alone, together)
    return rows_of(found, count)


def rows_of(measured: Found, count: int) -> list[Row]:
    what = f"{count:,} drafts become ready at once"
    together, seconds = measured.together, measured.proposed.used.seconds
    return [
        Row(
            *(NAME, f"{what}: until all are proposed", seconds, "s", SECONDS_GOAL, "less"),
            *(seconds * together.per_second / count, f"a plain client's, {IN_FLIGHT} in flight"),
        ),
        Row(NAME, "revisions that became Proposed, by git", measured.proposals, "proposals", count, "equal"),
        Row(NAME, "drafts left, by git", measured.drafts, "drafts", 0, "equal"),
        Row(NAME, "most times that one became Proposed, by a watch", measured.most, "moves", 1, "equal"),
        *cost_rows(NAME, "proposal", "promote and release", measured.proposed, together),
        Row(NAME, "plain client, one at a time: proposals/s", measured.alone.per_second, "1/s"),
        Row(NAME, "load average before", measured.load, ""),
    ]
