"""The Kafka of these tests, and an installation on it that several of them look at."""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.kafka.job import Job, settled, wait_for_server
from tests.tools.installation import Installation
from tests.tools.kafka import KafkaCluster, kafka_one

__all__ = ["kafka_one"]

SEED = 7


class Installed(NamedTuple):
    """A `pvbus up` over Kafka, each service as two processes."""

    up: Installation
    bootstrap: str
    prefix: str

    @property
    def bus(self) -> str:
        return f"kafka://{self.bootstrap}/{self.prefix}"


@pytest.fixture(scope="package")
def installed(kafka_one: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The example fleet is applied, and everything is ready."""
    folder = tmp_path_factory.mktemp("installed")
    prefix = f"installed-{secrets.token_hex(4)}"
    bus = f"kafka://{kafka_one.bootstrap}/{prefix}"
    up = Installation(folder / "data", arguments=("--bus", bus, "--processes", "2"))
    up.start()
    try:
        asyncio.run(_populate(up, folder / "git"))
        yield Installed(up, kafka_one.bootstrap, prefix)
        up.end()
    finally:
        up.kill()


async def _populate(up: Installation, folder: Path) -> None:
    await asyncio.to_thread(wait_for_server, up)
    job = Job(folder, SEED)
    await job.connect(up.kubeconfig)
    try:
        await job.settle_in()
        await job.arrived(up)
        await settled(up)
    finally:
        await job.close()
