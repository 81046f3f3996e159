"""One Kafka of three brokers for all of these tests, with a listener behind proxies."""

import os
from collections.abc import Iterator

import pytest

from tests.tools.kafka import KafkaCluster, KafkaUnavailableError, running


@pytest.fixture(scope="package")
def three_proxied() -> Iterator[KafkaCluster]:
    if os.environ.get("PVBUS_TEST_KAFKA"):
        pytest.skip("brokers that are not ours have no listener for our proxies")
    try:
        with running(3, is_proxied=True) as cluster:
            yield cluster
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
