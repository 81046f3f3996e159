"""The objects are in the API server, the tables can be made again: a Kafka may be a new one at each start."""

import asyncio
from pathlib import Path

import pytest

from pvbus.cli.examples import fleet as example
from pvbus.core.records import CONDITIONS
from tests.e2e.faults.fleet import Spot
from tests.e2e.faults.world import git
from tests.e2e.kafka.job import Job, settled, wait_for_server
from tests.tools.installation import Installation
from tests.tools.kafka import KafkaCluster
from tests.tools.topicreader import TopicReader

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def branches(folder: Path) -> dict[str, str]:
    """Return the commit of every branch and tag."""
    return {
        f"{region} {name}": commit
        for region in example.REGIONS
        for line in git(folder / f"edge-{region}.git", "show-ref").splitlines()
        for commit, name in [line.split()]
    }


async def look(up: Installation, job: Job, *, is_new: bool = False) -> dict[Spot, str]:
    """Start, wait until all is done, and return the versions of all objects."""
    up.start()
    await asyncio.to_thread(wait_for_server, up)
    await job.connect(up.kubeconfig)
    if is_new:
        await job.settle_in()
    await job.arrived(up)
    await settled(up)
    versions = await job.versions()
    await job.close()
    assert await asyncio.to_thread(up.stop) == 0, up.output[-4000:]
    return versions


async def test_old_objects_on_a_new_kafka_are_left_as_they_are(
    kafka_one: KafkaCluster, tmp_path: Path
) -> None:
    """From a bus in a file to an empty Kafka, and on it again: nothing is written to any object or branch.

    A data folder finds its own topics again, and no others.
    """
    job = Job(tmp_path / "git", 1)
    data = tmp_path / "data"
    before = await look(Installation(data), job, is_new=True)
    commits = branches(job.folder)
    over_kafka = Installation(data, arguments=("--bus", f"kafka://{kafka_one.bootstrap}", "--processes", "1"))
    assert await look(over_kafka, job) == before
    prefix = (data / "bus-prefix").read_text().strip()
    with TopicReader(kafka_one.bootstrap, prefix) as reader:
        events = await asyncio.to_thread(reader.all, [CONDITIONS])
    assert await look(over_kafka, job) == before
    assert branches(job.folder) == commits
    assert len(commits) > 80
    with TopicReader(kafka_one.bootstrap, prefix) as reader:
        again = await asyncio.to_thread(reader.all, [CONDITIONS])
    assert len(events.records) > 80
    assert again.records == events.records
