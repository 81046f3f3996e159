"""1,000 sets and 20,000 objects at an API server: what one label change costs, from event to write.

200 sites with five sets each; an object counts for its site's sets once it is labelled `active`. So a
label change can change the answer of five sets, or of none.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from pvbus.core.variants.publishing import COUNTING_SECONDS
from tests.bench import index
from tests.bench.children import Child, eventually, share
from tests.bench.fleet import (
    ALL_VARIANTS,
    REVISIONS,
    SETS,
    TARGETS,
    VARIANTS,
    Fleet,
    bus_ends,
    package_revision,
    records_since,
    target,
    variant_set,
    watching,
)
from tests.bench.report import Row

NAME = "affected"
SETS_PER_SITE = 5
ACTIVE_SHARE = 50  # one object in so many is active from the start
QUIET_SECONDS = 1.5
CHANGE_SECONDS = 30.0
TEMPLATE = {
    "downstream": {"repo": "deploy", "packageExpr": "target.name"},
    "labelExprs": [{"key": "site", "valueExpr": "target.labels.site"}],
}


class Size(NamedTuple):
    sets: int
    objects: int
    changes: int


class Population:
    """Labels of all objects and selectors of all sets, as they are at the API server."""

    def __init__(self, size: Size) -> None:
        self.sites = size.sets // SETS_PER_SITE
        self.labels = {
            number: {
                "site": f"site-{number % self.sites:03}",
                "active": "true"
                if number % ACTIVE_SHARE == number % self.sites % ACTIVE_SHARE == 0
                else "false",
            }
            for number in range(size.objects)
        }
        self.selectors = {
            f"set-{number:04}": {"site": f"site-{number % self.sites:03}", "active": "true"}
            for number in range(size.sets)
        }

    def objects(self) -> Iterator[dict[str, Any]]:
        return (target(number, labels) for number, labels in self.labels.items())

    def sets(self) -> Iterator[dict[str, Any]]:
        return (variant_set(name, match, TEMPLATE) for name, match in self.selectors.items())

    def selecting(self, labels: dict[str, str]) -> set[str]:
        """Return the sets that select such an object, by asking every one: the naive scan."""
        return {name for name, match in self.selectors.items() if match.items() <= labels.items()}

    def variants(self) -> int:
        return sum(
            len(self.selecting(labels)) for labels in self.labels.values() if labels["active"] == "true"
        )

    def change(self, number: int, **labels: str) -> set[str]:
        """Relabel an object; return the sets whose answer can change."""
        before = self.labels[number]
        after = self.labels[number] = {**before, **labels}
        return self.selecting(before) | self.selecting(after)


async def affected(*, small: bool) -> list[Row]:
    """Evaluations per label change, and the time from event to write."""
    size = Size(50, 500, 10) if small else Size(1_000, 20_000, 400)
    people = Population(size)
    async with Fleet.started() as fleet:
        await fleet.post_all(TARGETS, people.objects())
        await fleet.post_all(SETS, people.sets())
        async with fleet.services() as services:
            await services.ask("settled")
            await fleet.wait_count(VARIANTS, people.variants())
            await services.ask("settled")
            rows = await _changes(fleet, services, people, size)
            rows += await _indifferent(fleet, services, people)
            rows += await _unrelated(fleet, services, size)
    return [*rows, *_scan(size)]


async def _changes(fleet: Fleet, services: Child, people: Population, size: Size) -> list[Row]:
    """Activate objects one after the other; each makes one variant per set of its site."""
    dice, loop = random.Random(3), asyncio.get_running_loop()
    idle = [number for number, labels in people.labels.items() if labels["active"] == "false"]
    seen: dict[str, float] = {}
    delays: list[float] = []
    wanted = 0
    async with watching(fleet, ALL_VARIANTS, seen):
        before = await services.ask("counts")
        for number in dice.sample(idle, size.changes):
            sets = people.change(number, active="true")
            wanted += len(sets)
            names = [f"{name}-deploy-cluster-{number:06}" for name in sets]
            began = loop.time()
            await fleet.patch(f"{TARGETS}/cluster-{number:06}", {"metadata": {"labels": {"active": "true"}}})

            async def all_seen(names: list[str] = names) -> bool:
                return all(name in seen for name in names)

            await eventually(all_seen, f"variants {names}", seconds=CHANGE_SECONDS, every=0.005)
            delays += [seen[name] - began for name in names]
        await services.ask("settled")
        after = await services.ask("counts")
    evaluations = after["setEvaluations"] - before["setEvaluations"]
    rendered = after["renderEvaluations"] - before["renderEvaluations"]
    what = f"{size.changes} label changes, {size.sets:,} sets, {size.objects:,} objects"
    return [
        Row(
            *(NAME, f"{what}: evaluations of sets", evaluations, "sets", wanted, "equal"),
            *(evaluations / (size.changes * size.sets), "one scan each", "a label change is never noticed"),
        ),
        Row(NAME, f"{what}: renderings", rendered, "variants", wanted, "equal"),
        Row(NAME, "event to write, p50", 1000 * share(delays, 0.5), "ms"),
        Row(NAME, "event to write, p99", 1000 * share(delays, 0.99), "ms"),
    ]


async def _indifferent(fleet: Fleet, services: Child, people: Population) -> list[Row]:
    """Relabel an object that no set selects, before or after."""
    number = next(number for number, labels in people.labels.items() if labels["active"] == "false")
    assert not people.change(number, note="1")
    evaluations, writes, _ = await _quietly(
        fleet,
        services,
        fleet.patch(f"{TARGETS}/cluster-{number:06}", {"metadata": {"labels": {"note": "1"}}}),
    )
    what = "label of an object that no set selects"
    return [
        Row(NAME, f"{what}: evaluations", evaluations, "sets", 0, "equal"),
        Row(NAME, f"{what}: API writes besides it", writes, "writes", 0, "equal"),
    ]


async def _unrelated(fleet: Fleet, services: Child, size: Size) -> list[Row]:
    revision = package_revision("blueprints.other.v1", "other")
    await asyncio.sleep(COUNTING_SECONDS)  # counts of what went before are published a while later
    evaluations, writes, records = await _quietly(fleet, services, fleet.post(REVISIONS, revision))
    what = f"unrelated PackageRevision beside {size.sets:,} sets"
    return [
        Row(NAME, f"{what}: evaluations", evaluations, "sets", 0, "equal"),
        Row(
            *(NAME, f"{what}: API writes besides it", writes, "writes", 0, "equal"),
            porch="10,200 beside 200 sets",
        ),
        Row(NAME, f"{what}: bus records besides its own", records - 1, "records", 0, "equal"),
    ]


async def _quietly(fleet: Fleet, services: Child, request: Any) -> tuple[int, int, int]:
    """Send a request; return evaluations, the API server's other writes, and the bus's records."""
    path = fleet.folder / "bus.db"
    await asyncio.sleep(QUIET_SECONDS)
    before, version = await services.ask("counts"), await fleet.version()
    ends = await bus_ends(path)
    await request
    await asyncio.sleep(QUIET_SECONDS)
    await services.ask("settled")
    after = await services.ask("counts")
    writes = await fleet.version() - version - 1
    records = sum(records_since(ends, await bus_ends(path)).values())
    return after["setEvaluations"] - before["setEvaluations"], writes, records


def _scan(size: Size) -> list[Row]:
    """The index alone, over mixed selectors, against a loop over all of them."""
    found = index.measure(size.sets, size.objects, 2_000 if size.sets > 100 else 100)
    return [
        Row(
            *(
                NAME,
                "selector index: sets of one label change",
                found["indexMicroseconds"],
                "us",
                None,
                "less",
            ),
            *(found["indexMicroseconds"] / found["scanMicroseconds"], "the naive scan"),
        ),
        Row(NAME, "naive scan: sets of one label change", found["scanMicroseconds"], "us"),
    ]
