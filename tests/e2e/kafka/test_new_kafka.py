"""The objects are in the API server, the tables can be made again: a Kafka may be a new one at each start."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from pvbus.core.kernel.records import CONDITIONS
from pvbus.examples import fleet as example
from tests.e2e.faults.fleet import REVISION, SET, VARIANT, Spot
from tests.e2e.faults.world import git
from tests.e2e.kafka.job import Job, settled, wait_for_server
from tests.tools.installation import Installation
from tests.tools.kafka import KafkaCluster
from tests.tools.topicreader import ReadRecord, TopicReader

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def branches(folder: Path) -> dict[str, str]:
    """Return the commit of every branch and tag."""
    return {
        f"{region} {name}": commit
        for region in example.REGIONS
        for line in git(folder / f"edge-{region}.git", "show-ref").splitlines()
        for commit, name in [line.split()]
    }


class Observed(NamedTuple):
    """versions: of all objects that services write; generations: of those that have one."""

    versions: Mapping[Spot, str]
    generations: Mapping[Spot, int]

    @property
    def packages(self) -> dict[Spot, str]:
        return {spot: version for spot, version in self.versions.items() if spot.kind == REVISION}


async def look(up: Installation, job: Job, *, is_new: bool = False) -> Observed:
    """Start, wait until all is done, and see what is there."""
    up.start()
    await asyncio.to_thread(wait_for_server, up)
    await job.connect(up.kubeconfig)
    if is_new:
        await job.settle_in()
    await job.arrived(up)
    await settled(up)
    objects = {
        Spot(kind, obj["metadata"]["name"]): obj for kind in (SET, VARIANT) for obj in await job.items(kind)
    }
    seen = Observed(
        await job.versions(), {spot: obj["metadata"]["generation"] for spot, obj in objects.items()}
    )
    await job.close()
    await asyncio.to_thread(up.end)
    return seen


async def test_old_objects_on_a_new_kafka_are_left_as_they_are(
    kafka_one: KafkaCluster, tmp_path: Path
) -> None:
    """From a bus in a file to an empty Kafka: no package and no branch is written, and no object's spec.

    Statuses are told anew, as what they were told from is made again. On the same Kafka once more, whose
    topics the data folder finds by itself, nothing at all is written, and no event is sent.
    """
    job = Job(tmp_path / "git", 1)
    data = tmp_path / "data"
    before = await look(Installation(data), job, is_new=True)
    commits = branches(job.folder)
    assert len(commits) > 80
    over_kafka = Installation(data, arguments=("--bus", f"kafka://{kafka_one.bootstrap}", "--processes", "1"))
    new = await look(over_kafka, job)
    assert new.packages == before.packages
    assert new.generations == before.generations
    prefix = (data / "bus-prefix").read_text().strip()
    events = await asyncio.to_thread(events_of, kafka_one, prefix)
    assert len(events) > 80
    assert await look(over_kafka, job) == new
    assert await asyncio.to_thread(events_of, kafka_one, prefix) == events
    assert branches(job.folder) == commits
    print(
        f"\n{len(new.packages)} packages, {len(commits)} branches: no write on a new Kafka, none on it again"
    )


def events_of(kafka: KafkaCluster, prefix: str) -> tuple[ReadRecord, ...]:
    with TopicReader(kafka.bootstrap, prefix) as reader:
        return tuple(sorted(reader.all([CONDITIONS]).records, key=lambda each: (each.partition, each.offset)))
