"""Promotion over Kafka with two processes of each of its services, through an outage.

The broker goes in the middle of a wave, and of an attempt that fails; both processes of a service go in the
middle of the rollback. `PVBUS_TEST_PROMOTIONS=0` tells the story without any kill. Its end is the same.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.topics import PROMOTION
from pvbus.ports.cluster import Kind, Object
from tests.chaos.watches import ApiWatch
from tests.e2e.cli.small_fleet import REVISION
from tests.e2e.kafka.promotion import PERSON, REPOSITORY, Promotion, Story, plan_of, promotion
from tests.e2e.kafka.promotionjudge import problems_of_watch
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

HAS_KILLS = os.environ.get("PVBUS_TEST_PROMOTIONS") != "0"
AWAY_SECONDS = 3.0
CANARY, *OTHERS = (f"web-{number:02}" for number in range(6))
PLAN = plan_of(range(1), range(1, 4), range(4, 6), in_flight=2, failing=0)
SPEC = {
    "settle": "2s",
    "canaries": ["v-00"],
    "waves": [{"count": 1, "checks": [PERSON]}, {"count": 4}, {"percent": 100}],
    "budgets": {"maxInFlight": PLAN.in_flight, "maxFailing": PLAN.failing, "onFailure": "RollBack"},
}
FIRST, SECOND, BACK = "packagevariant-1", "packagevariant-2", "rollback-2-"
ORDERS = {("approve", 1): 6, ("approve", 2): 1, ("restore", 2): 1}
PATHS = {
    REVISION: "/apis/porch.kpt.dev/v1alpha1/packagerevisions",
    QUARANTINE: "/apis/promotion.pvbus.dev/v1alpha1/quarantines",
}
END: Mapping[str, Any] = {
    CANARY: [(1, FIRST, "Published"), (2, SECOND, "Published"), (3, BACK, "Published")],
    **{package: [(0, SECOND, "Proposed"), (1, FIRST, "Published")] for package in OTHERS},
}


async def test_an_outage_in_a_story_of_waves_changes_nothing_of_its_end(
    kafka_one: KafkaCluster, tmp_path: Path
) -> None:
    """No revision gets a lifecycle twice, none goes out before the canary has it, what fails is quarantined
    once, before the rollback, and nothing that it covers goes out after it."""
    began = time.monotonic()
    story = Story(PLAN, SPEC, has_kills=HAS_KILLS, copies=2)
    async with promotion(kafka_one, tmp_path, story) as world, following(world) as events:
        await all_waves_pass_without_a_broker(world)
        await the_canary_fails(world)
        await world.until_revisions(END)
        await world.stays(SECOND, 1)
        assert await world.problems() == []
        assert await world.orders() == ORDERS
        problems = problems_of_watch(
            events[REVISION], events[QUARANTINE], repository=REPOSITORY, canaries=[CANARY]
        )
        assert [*problems] == []
        (covered,) = await world.client.items(QUARANTINE)
        assert [each["revision"] for each in covered["spec"]["upstreams"]] == ["blueprints/web@v2"]
        kills = [*world.kills]
    assert sorted(kills) == (sorted([*PROMOTION, "broker", "broker"]) if HAS_KILLS else [])
    print(
        f"\n{time.monotonic() - began:.0f} s with the start of everything; {len(events[REVISION])} versions"
    )


async def all_waves_pass_without_a_broker(world: Promotion) -> None:
    """The broker goes once the second wave has begun, and one service in the third."""
    await world.until(lambda: world.record.proposals(FIRST) == len(END), "all are proposed")
    await world.until_candidates(**{FIRST: len(END)})
    await world.annotate(pause="false")
    await world.until_phase("Holding", 1, 1)
    await world.let_pass(1, 1)
    await without_broker_once(world, FIRST, 2)
    world.strike(lambda: world.record.approvals(FIRST) >= 4, ["rollout"])
    await world.until_phase("Completed", 1, 3)


async def the_canary_fails(world: Promotion) -> None:
    """The broker goes as the canary is approved, and the others as it is rolled back."""
    await world.follow_second_revision()
    await without_broker_once(world, SECOND, 1)
    await world.until_phase("Holding", 2, 1)
    world.strike(lambda: world.record.rollbacks() >= 1, ["release"])
    world.strike(lambda: world.record.approvals(BACK) >= 1, ["promote"])
    await world.spoil(CANARY)
    await world.until_phase("RolledBack", 2, 3)


async def without_broker_once(world: Promotion, workspace: str, approvals: int) -> None:
    """Lose the broker once so many revisions are approved."""
    record = world.record
    await world.until(lambda: record.approvals(workspace) >= approvals, f"{approvals} of {workspace}")
    if world.has_kills:
        await world.lose_broker(AWAY_SECONDS)


@asynccontextmanager
async def following(world: Promotion) -> AsyncIterator[Mapping[Kind, list[Object]]]:
    """Follow the API server, which nobody disturbs: each version of an object is told."""
    events: dict[Kind, list[Object]] = {kind: [] for kind in PATHS}

    def take(_: float, kind: Kind, __: str, obj: Object | None) -> None:
        if obj is not None:
            events[kind].append(obj)

    connection = await Connection.load(world.deployment.kubeconfig, None)
    watch = ApiWatch(connection, PATHS, take)
    task = asyncio.create_task(watch.run())
    try:
        yield events
        assert not task.done(), task.exception()
        assert watch.lists == len(PATHS), "a watch was lost, so there are gaps in what it told"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()
