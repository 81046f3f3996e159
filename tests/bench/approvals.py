"""A rollout of 2,000 proposals in waves of 1, 5, 25 and 100 % that ends in git, each approved exactly once.

API server and package store are one process, ingest another, promote, rollout and release a third. The
services propose all drafts first, so that each proposal has the digest of its content, which release compares
before it approves. The creation of a RolloutPolicy begins the rollout. Who counts is a watch of the API
server by a plain client, git, and the rows of the rollout on the bus.

The ceiling is the approval of other proposals of the same repository by a plain client that has all objects
in memory and reads nothing, on the same server, while no service runs. An approval costs more with each
package that the branch has. So half of them are approved before the rollout and half after it: together on a
branch of the size that it has in the middle of the rollout.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pvbus.cli.rolloutrows import Rows
from pvbus.cli.rolloutrows import rows_of as rollout_rows
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.kernel.keys import Key
from tests.bench import gitfleet
from tests.bench.fleet import Fleet
from tests.bench.lifecycles import (
    IN_FLIGHT,
    Changes,
    Moved,
    Used,
    cost_rows,
    draft_name,
    make_variants,
    move_bare,
    move_by_services,
    observing,
    refs_of,
    store_of_drafts,
    sum_of,
)
from tests.bench.report import Row
from tests.bench.revisions import Process
from tests.bench.rollouts import PERCENTS, POLICY_KEY, policy_object, wrong_waves

NAME = "approvals"
PER_SECOND = "approvals/s, all waves, without the settle time"
"""The row that is a coefficient of `pvbus size`: its name is the same for each number of approvals."""
PER_SECOND_GOAL = 100.0
SETTLE_SECONDS = 1
POLICIES = f"/apis/{PROMOTION_GROUP}/v1alpha1/namespaces/default/rolloutpolicies"


class Found(NamedTuple):
    """What a rollout took.

    before, after: of the plain client, before and after the rollout
    approved: of the services
    most: see `Changes`
    published, proposals: how many tags and refs of proposals the packages of the rollout have at the end
    commits: how often the main branch says that a package of the rollout was approved
    waves: how many targets each wave had
    last_seconds: from the last approval of the last wave but one to that of the last wave
    """

    before: Used
    after: Used
    approved: Moved
    most: int
    published: int
    proposals: int
    commits: int
    waves: Counter[int]
    last_seconds: float
    load: float


async def _approve(fleet: Fleet, store: Process, count: int) -> tuple[Moved, Changes]:
    """Let the services propose all drafts, and then approve them in waves."""
    async with (
        observing(fleet) as changes,
        fleet.services("ingest") as ingest,
        fleet.services("promote", "rollout", "release") as services,
    ):
        await changes.wait("Proposed", count)
        policy = policy_object(SETTLE_SECONDS)

        async def begin() -> None:
            await fleet.post(POLICIES, policy)

        moved = await move_by_services(store, (ingest, services), changes, begin, "Published", count)
        return moved, changes


async def _waves(fleet: Fleet) -> dict[str, int]:
    """Return the wave of each target, by the name of its variant."""
    rows = await rollout_rows(None, None, fleet.bus, Key.parse(POLICY_KEY))
    assert isinstance(rows, Rows), rows
    return {name: target.wave for name, target in rows.targets.items()}


def _seconds_of_last(changes: Changes, waves: Mapping[str, int], count: int) -> float:
    """Return how long the last wave took, from the end of the one before."""
    ends: dict[int, float] = {}
    for number in range(count):
        wave = waves[gitfleet.package_name(number)]
        seen = changes.seconds[draft_name(number), "Published"]
        ends[wave] = max(ends.get(wave, 0.0), seen)
    return ends[len(PERCENTS)] - ends[len(PERCENTS) - 1]


def _approving_commits(folder: Path, names: set[str]) -> int:
    """Return how many commits of the main branch approve a revision of these packages."""
    subjects = gitfleet.git(folder / "deploy.git", "log", "--format=%s", "main").splitlines()
    words = (subject.rpartition(" ") for subject in subjects)
    return sum(
        title == "Approving package revision" and revision.partition("/")[0] in names
        for title, _, revision in words
    )


async def _approve_bare(fleet: Fleet, store: Process, numbers: Iterable[int]) -> Used:
    await move_bare(fleet, store, numbers, "Proposed")
    return await move_bare(fleet, store, numbers, "Published")


async def measure(folder: Path, count: int, extra: int) -> Found:
    """extra: how many proposals the plain client approves before, and as many after; no variant has them."""
    async with store_of_drafts(folder, count + 2 * extra) as (fleet, store):
        before = await _approve_bare(fleet, store, range(count, count + extra))
        await make_variants(fleet, range(count))
        load = os.getloadavg()[0]
        approved, changes = await _approve(fleet, store, count)
        waves = await _waves(fleet)
        after = await _approve_bare(fleet, store, range(count + extra, count + 2 * extra))
    refs, names = refs_of(folder), {gitfleet.package_name(number) for number in range(count)}
    return Found(
        before=before,
        after=after,
        approved=approved,
        most=changes.most(),
        published=sum(name in names for name in refs["tags"]),
        proposals=sum(name in names for name in refs["proposed"]),
        commits=_approving_commits(folder, names),
        waves=Counter(waves.values()),
        last_seconds=_seconds_of_last(changes, waves, count),
        load=load,
    )


async def approvals(*, small: bool) -> list[Row]:
    """Approvals per second, exactness, and CPU, against a plain client."""
    count, extra = (40, 10) if small else (2_000, 300)
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        found = await measure(Path(name), count, extra)
    return rows_of(found, count)


def rows_of(measured: Found, count: int) -> list[Row]:
    what = f"{count:,} approvals in waves of {', '.join(map(str, PERCENTS))} %"
    bare = sum_of(measured.before, measured.after)
    seconds, ceiling = measured.approved.used.seconds, bare.per_second
    per_second = count / (seconds - SETTLE_SECONDS)
    last = measured.waves[len(PERCENTS)]
    plain = f"a plain client's, {IN_FLIGHT} in flight"
    return [
        Row(NAME, f"{what}: from the policy until all are published", seconds, "s"),
        Row(NAME, PER_SECOND, per_second, "1/s", PER_SECOND_GOAL, "more", per_second / ceiling, plain),
        Row(
            NAME,
            f"approvals/s, all waves, with the settle time of {SETTLE_SECONDS} s",
            count / seconds,
            "1/s",
        ),
        Row(NAME, f"approvals/s, the last wave, of {last:,}", last / measured.last_seconds, "1/s"),
        Row(NAME, "tags, by git", measured.published, "approvals", count, "equal"),
        Row(NAME, "commits that approve one, by git", measured.commits, "approvals", count, "equal"),
        Row(NAME, "proposals left, by git", measured.proposals, "proposals", 0, "equal"),
        Row(NAME, "most times that one got to a lifecycle, by a watch", measured.most, "moves", 1, "equal"),
        Row(
            NAME,
            "waves of another size than the policy's",
            wrong_waves(measured.waves, count),
            "waves",
            0,
            "equal",
        ),
        *cost_rows(NAME, "approval", "promote, rollout and release", measured.approved, bare),
        Row(NAME, "plain client, before the rollout: approvals/s", measured.before.per_second, "1/s"),
        Row(NAME, "plain client, after the rollout: approvals/s", measured.after.per_second, "1/s"),
        Row(NAME, "load average before", measured.load, ""),
    ]
