"""The Kafkas of these tests: shared ones, and one that a test may break; and the example in Java."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from pvbus.adapters.kafka.settings import KafkaSettings, client_options
from pvbus.runtime.process.kafka_access import ROLES
from tests.integration.kafka.access import PASSWORD, Guarded
from tests.integration.kafka.consumers import NEEDED, compiled
from tests.tools.certificate import make_certificate
from tests.tools.kafka import (
    KafkaCluster,
    KafkaUnavailableError,
    Security,
    kafka_one,
    kafka_three,
    running,
)

__all__ = ["kafka_one", "kafka_three"]


@pytest.fixture(params=["kafka_one", "kafka_three"])
def kafka(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster of one broker, or of three."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture
def kafka_to_break() -> Iterator[KafkaCluster]:
    """A Kafka of one broker, for this test only."""
    if os.environ.get("PVBUS_TEST_KAFKA"):
        pytest.skip("brokers that are not ours are not frozen or killed")
    try:
        with running(1) as cluster:
            yield cluster
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, KafkaCluster]]:
    """A Kafka of one broker that gives its users what ACLs allow; and who signed its certificate."""
    if os.environ.get("PVBUS_TEST_KAFKA"):
        pytest.skip("a Kafka that is not ours has its own users and rights")
    keystore, authority = make_certificate(tmp_path_factory.mktemp("acls"))
    users = tuple(f"pvbus-{role}" for role in ROLES)
    try:
        with running(1, Security(keystore, "nobody", PASSWORD, users, has_acls=True)) as cluster:
            yield authority, cluster
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
async def guarded(guarded_cluster: tuple[Path, KafkaCluster]) -> AsyncIterator[Guarded]:
    authority, cluster = guarded_cluster
    admin = AIOKafkaAdminClient(**client_options(KafkaSettings(bootstrap=(cluster.bootstrap,))))
    await admin.start()
    yield Guarded(cluster, authority, admin)
    await admin.close()


@pytest.fixture(scope="session")
def java_view(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the example consumer in Java. What any of the examples needs must be there."""
    missing = [package for name, package in NEEDED.items() if shutil.which(name) is None]
    try:
        if missing:
            raise KafkaUnavailableError(f"the examples need more: apt install {' '.join(missing)}")
        return compiled(tmp_path_factory.mktemp("java"))
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
