"""Promotion over Kafka: promote, rollout and release are killed in the middle of what they write.

`PVBUS_TEST_PROMOTIONS` sets how many stories there are, each with kills of others at other moments: one by
default; 0 is the story without any kill, whose end is the same.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.kernel.topics import PROMOTION
from tests.e2e.cli.command import git
from tests.e2e.kafka.promotion import PLAN, SETTLE, SPEC, Promotion, Story, promotion
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

STORIES = int(os.environ.get("PVBUS_TEST_PROMOTIONS", "1"))
FIRST, SECOND, THIRD, BACK = "packagevariant-1", "packagevariant-2", "packagevariant-3", "rollback-2-"
COUNT = sum(map(len, PLAN.waves))
ORDERS = {("approve", 1): COUNT, ("approve", 2): 4, ("restore", 2): 4}
SPOILED = (PLAN.waves[0][0], PLAN.waves[1][0])
RESTORED = (*PLAN.waves[0], *PLAN.waves[1])
DEPLOYMENT = "deployment.yaml"


@pytest.mark.parametrize("seed", range(1, 1 + STORIES) or (0,))
async def test_services_of_promotion_are_killed_and_do_nothing_twice_early_or_too_much(
    kafka_one: KafkaCluster, tmp_path: Path, seed: int
) -> None:
    """Each revision is proposed and approved once, no wave begins on old evidence, budgets hold at every
    moment, and the end is that of a story without kills."""
    began = time.monotonic()
    rng = random.Random(seed)
    async with promotion(kafka_one, tmp_path, Story(PLAN, SPEC, has_kills=seed > 0)) as world:
        await everything_is_approved_in_waves(world, rng)
        await old_evidence_passes_no_wave(world, rng)
        await failing_targets_are_rolled_back(world, rng)
        revisions = {package: expected(package) for wave in PLAN.waves for package in wave}
        await world.until_revisions(revisions)
        assert await world.problems() == []
        assert await world.orders() == ORDERS
        await an_empty_bus_approves_nothing_again(world, revisions)
    remote = tmp_path / "git" / "edge-asia.git"
    for package in RESTORED:
        first, second, third = (
            git(remote, "show", f"{package}/v{n}:{package}/{DEPLOYMENT}") for n in (1, 2, 3)
        )
        assert first == third != second
    kills = Counter(world.kills)
    assert set(kills) == set(PROMOTION if world.has_kills else ())
    print(f"\nkilled: {dict(kills)}; {time.monotonic() - began:.0f} s with the start of everything")


async def everything_is_approved_in_waves(world: Promotion, rng: random.Random) -> None:
    """All drafts are proposed, and approved in three waves. While nobody reports evidence, only as many are
    approved as may be in flight."""
    proposals, approvals = world.record.proposals, world.record.approvals
    early, late = rng.randint(1, 7), rng.randint(7, 9)
    world.strike(lambda: proposals(FIRST) >= early, some(rng, *PROMOTION))
    await world.until(lambda: proposals(FIRST) == COUNT, "all are proposed")
    await world.until_candidates(**{FIRST: COUNT})
    world.strike(lambda: approvals(FIRST) >= 1, some(rng, *PROMOTION))
    await world.annotate(pause="false")
    await world.until_phase("Holding", 1, 1)
    await world.let_pass(1, 1)
    await world.until_phase("Holding", 1, 2)
    async with world.without("promote") as is_away:
        world.strike(lambda: approvals(FIRST) >= 5, some(rng, "rollout", "release"))
        await world.let_pass(1, 2)
        await world.until(lambda: approvals(FIRST) >= 6, "as many are approved as may be in flight")
        if is_away:
            await world.stays(FIRST, 4 + PLAN.in_flight)
    world.strike(lambda: approvals(FIRST) >= late, ["rollout"])
    await world.until_phase("Completed", 1, 3)


async def old_evidence_passes_no_wave(world: Promotion, rng: random.Random) -> None:
    """All variants are Ready, and were proven in the first attempt: that says nothing of the second."""
    proposals, approvals = world.record.proposals, world.record.approvals
    await world.annotate(pause="true")
    early = rng.randint(1, 5)
    world.strike(lambda: proposals(SECOND) >= early, some(rng, "promote", "release"))
    await world.follow_second_revision()
    await world.until(lambda: proposals(SECOND) == COUNT, "all are proposed again")
    await world.until_candidates(**{SECOND: COUNT})
    async with world.without("promote") as is_away:
        world.strike(lambda: approvals(SECOND) >= 1, some(rng, "rollout", "release"))
        await world.annotate(pause="false")
        await world.until(lambda: approvals(SECOND) >= 2, "the first wave is approved")
        await world.let_pass(2, 1)
        if is_away:
            await world.stays(SECOND, 2)
    await world.until_phase("Holding", 2, 2)


async def failing_targets_are_rolled_back(world: Promotion, rng: random.Random) -> None:
    """One target may fail; with the second one the former content of all four is published again."""
    later = rng.randint(1, 3)
    world.strike(lambda: world.record.rollbacks() >= 1, ["release"])
    world.strike(lambda: world.record.approvals(BACK) >= later, some(rng, *PROMOTION))
    await world.spoil(*SPOILED)
    await world.until(lambda: world.record.approvals(BACK) == len(RESTORED), "all are published again")
    await world.until_phase("RolledBack", 2, 3)


async def an_empty_bus_approves_nothing_again(world: Promotion, revisions: Mapping[str, Any]) -> None:
    """The content that was rolled back stays a draft until a person ends its quarantine, which outlives the
    bus; then it is proposed again, and is approved only when a person says so."""
    await world.set_settle("0s")
    world.restart_with_an_empty_bus()
    await world.until_lost()
    await world.stays(THIRD, 0)
    await world.until_revisions(revisions)
    await world.release_quarantines()
    await world.until_candidates(**{SECOND: COUNT - len(RESTORED), THIRD: len(RESTORED) - len(SPOILED)})
    await world.stays(THIRD, 0)
    await world.set_settle(SETTLE)  # a plan of what was read first would have others in its first wave
    await world.annotate(restart="2")
    await world.until(lambda: world.record.approvals(THIRD) == 2, "the first wave is approved again")


def some(rng: random.Random, *services: str) -> list[str]:
    """Choose at least one."""
    return rng.sample(services, rng.randint(1, len(services)))


def expected(package: str) -> list[tuple[int, str, str]]:
    """Return the revisions of a package at the end: number, workspace up to its hash, lifecycle."""
    first = (1, FIRST, "Published")
    if package not in RESTORED:
        return [(0, SECOND, "Proposed"), first]
    done = [first, (2, SECOND, "Published"), (3, BACK, "Published")]
    return done if package in SPOILED else [(0, THIRD, "Draft"), *done]
