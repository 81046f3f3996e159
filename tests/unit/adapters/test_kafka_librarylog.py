"""Rebalances are usual, and what else the library says is not."""

import logging

import pytest

from pvbus.adapters.kafka.librarylog import leave_out_the_usual


def test_only_the_rebalance_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Twice set up is once set up; other warnings of the same logger are heard."""
    leave_out_the_usual()
    leave_out_the_usual()
    logger = logging.getLogger("aiokafka.consumer.group_coordinator")
    logger.warning("Heartbeat failed for group %s because it is rebalancing", "pvbus-render")
    logger.warning("Heartbeat session expired - marking coordinator %s dead", 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Heartbeat session expired - marking coordinator 1 dead"
    ]
