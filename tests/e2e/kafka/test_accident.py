"""Mistakes of users in a fleet on Kafka: nothing is deleted before somebody confirms exactly that.

PVBUS_TEST_FLEET is the number of variants, 300 unless set. Figures are printed (`pytest -s`).
"""

import asyncio
import os
from collections.abc import Iterator

import pytest

from pvbus.cli.confirm import NothingHeldError
from tests.e2e.kafka.accident import Accident, accidents
from tests.tools.kafka import KafkaCluster
from tests.tools.pace import patience

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1_800)]

VARIANTS = int(os.environ.get("PVBUS_TEST_FLEET", "300"))
RESTING = max(6, VARIANTS // 10)
"""Variants of the selector that is not mistyped."""
LABELS = {1: max(10, VARIANTS // 50), 20: max(40, VARIANTS // 3), 200: VARIANTS}
"""How many labels are mistyped, by the rate per second."""
SETTLED_SECONDS_MAX = patience(60.0 + VARIANTS / 20)
TOKEN_SECONDS_MAX = patience(150.0)  # one that was shown stands for a minute before another one replaces it
LATE_SECONDS = 7.0
"""Longer than removals wait for quiet: what is going to be deleted by mistake is deleted by then."""


class Fleet:
    """The fleet, and the event loop that it is used in."""

    def __init__(self, runner: asyncio.Runner, accident: Accident) -> None:
        self.runner = runner
        self.accident = accident


@pytest.fixture(scope="module")
def fleet(kafka_one: KafkaCluster) -> Iterator[Fleet]:
    """One API server and one process of each service, for all tests here."""
    with asyncio.Runner() as runner:
        opened = accidents(kafka_one)
        accident = runner.run(opened.__aenter__())
        try:
            yield Fleet(runner, accident)
        finally:
            runner.run(opened.__aexit__(None, None, None))


def test_a_mistyped_selector_deletes_what_one_confirmation_names(fleet: Fleet) -> None:
    """One of a set's two selectors is mistyped. Corrected, nothing is deleted and the hold is forgotten.
    Mistyped again and confirmed, exactly the variants of that selector are deleted."""
    fleet.runner.run(_mistype_selector(fleet.accident))


async def _mistype_selector(accident: Accident) -> None:
    leaving = set(await accident.add_targets("web", VARIANTS - RESTING))
    await accident.add_targets("rest", RESTING)
    made = await accident.add_set("web", ["web", "rest"], VARIANTS)
    mistaken = {name for name, target in made.items() if target in leaving}
    assert len(mistaken) == VARIANTS - RESTING
    gone_before = set(accident.deleted)

    first = await _mistype(accident, mistaken, tokens=1)
    corrected = _now()
    await accident.select("web", ["web", "rest"])
    await accident.until(
        lambda: not accident.shows_hold("web"), "no hold", may_go=gone_before, seconds=SETTLED_SECONDS_MAX
    )
    print(f"corrected: the hold is gone after {_now() - corrected:.1f} s, DELETEs: 0")
    await accident.confirm("web", first)  # too late: it names nothing any more
    await asyncio.sleep(LATE_SECONDS)
    accident.assert_deleted_among(gone_before)
    assert (await accident.result("web")).hold is None
    with pytest.raises(NothingHeldError):
        await accident.held("web")

    second = await _mistype(accident, mistaken, tokens=2)
    assert second != first
    confirmed = _now()
    await accident.confirm("web", second)
    may_go = gone_before | mistaken
    await accident.until(
        lambda: mistaken <= set(accident.deleted),
        "all of them deleted",
        may_go=may_go,
        seconds=SETTLED_SECONDS_MAX,
    )
    times = sorted(accident.deleted[name] - confirmed for name in mistaken)
    print(f"confirmed: DELETEs: {len(times)}, the first after {times[0]:.1f} s, the last {times[-1]:.1f} s")
    await asyncio.sleep(LATE_SECONDS)
    accident.assert_deleted_among(may_go)
    assert set(await accident.variants("web")) == set(made) - mistaken
    assert list(accident.tokens["web"]) == [first, second]
    result = await accident.result("web")
    assert (result.hold, result.counts.removing, result.counts.held) == (None, 0, 0)
    assert not accident.shows_hold("web")


async def _mistype(accident: Accident, mistaken: set[str], *, tokens: int) -> str:
    """Mistype a selector; wait for the token of the hold, which is the last of so many, and return it."""
    before = set(accident.deleted)
    began = _now()
    await accident.select("web", ["wbe", "rest"])
    await accident.until(
        lambda: len(accident.tokens.get("web", {})) >= tokens,
        "a token",
        may_go=before,
        seconds=SETTLED_SECONDS_MAX,
    )
    token, seen = list(accident.tokens["web"].items())[-1]
    held = await accident.held("web")
    assert (held.hold.token, held.hold.count) == (token, len(mistaken))
    assert set(held.rows) == mistaken
    if tokens == 1:
        await asyncio.sleep(LATE_SECONDS)
        accident.assert_deleted_among(before)
    assert len(accident.tokens["web"]) == tokens
    print(
        f"\nselector mistyped, {len(mistaken)} of {VARIANTS} variants: token after {seen - began:.1f} s, "
        "DELETEs: 0, tokens: 1"
    )
    return token


def test_mistyped_labels_delete_nothing_at_any_rate(fleet: Fleet) -> None:
    """The labels of all objects of three sets are mistyped one by one, slowly, faster and fast: nothing is
    deleted, and all is held in the end."""
    fleet.runner.run(_mistype_labels(fleet.accident))


async def _mistype_labels(accident: Accident) -> None:
    targets, made = {}, {}
    for rate, count in LABELS.items():
        targets[rate] = await accident.add_targets(f"rate-{rate}", count)
        made[rate] = await accident.add_set(f"rate-{rate}", [f"rate-{rate}"], count)
    gone_before = set(accident.deleted)
    async with asyncio.TaskGroup() as tasks:
        for rate in LABELS:
            tasks.create_task(_relabel(accident, rate, targets[rate], set(made[rate])))
    accident.assert_deleted_among(gone_before)
    for rate in LABELS:
        assert await accident.variants(f"rate-{rate}") == made[rate]


async def _relabel(accident: Accident, rate: int, targets: list[str], made: set[str]) -> None:
    name, began, before = f"rate-{rate}", _now(), set(accident.deleted)
    await accident.relabel_all(targets, "mistyped", per_second=rate)
    relabelled = _now()
    deadline = relabelled + TOKEN_SECONDS_MAX
    while True:
        accident.assert_deleted_among(before)
        hold = (await accident.result(name)).hold
        if hold is not None and hold.token and hold.count == len(made):
            break
        assert _now() < deadline, f"{name}: {hold} of {len(made)}"
        await asyncio.sleep(0.25)
    whole = _now()
    await asyncio.sleep(LATE_SECONDS)
    accident.assert_deleted_among(before)
    held = await accident.held(name)
    assert set(held.rows) == made
    shown = accident.tokens[name]
    print(
        f"\n{len(made)} labels at {rate}/s, mistyped in {relabelled - began:.1f} s: first token after "
        f"{min(shown.values()) - began:.1f} s, that of all after {whole - began:.1f} s, DELETEs: 0, "
        f"tokens: {len(shown)}"
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
