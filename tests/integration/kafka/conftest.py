"""The Kafkas of these tests: shared ones, and one that a test may break."""

import os
from collections.abc import Iterator

import pytest

from tests.tools.kafka import KafkaCluster, KafkaUnavailableError, kafka_one, kafka_three, running

__all__ = ["kafka_one", "kafka_three"]


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
