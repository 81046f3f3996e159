"""Rebalances are usual, and what else the library says is not; once is enough, though."""

import logging

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, ProducerClosed
from aiokafka.structs import BrokerMetadata

from pvbus.adapters.kafka import library
from pvbus.adapters.kafka.library import filter_logs, stop_producer, wait_for_brokers
from tests.kit.processes import run_simulated


def test_only_the_rebalance_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Twice set up is once set up; other warnings of the same logger are heard."""
    filter_logs()
    filter_logs()
    logger = logging.getLogger("aiokafka.consumer.group_coordinator")
    logger.warning("Heartbeat failed for group %s because it is rebalancing", "pvbus-render")
    logger.warning("Heartbeat session expired - marking coordinator %s dead", 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Heartbeat session expired - marking coordinator 1 dead"
    ]


def test_the_same_again_and_again_is_told_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection says many times a second that a broker is away; another broker is another sentence."""
    filter_logs()
    logger = logging.getLogger("aiokafka")
    for node in (71, 72):
        for _ in range(50):
            logger.error("Unable connect to node with id %s: %s", node, "refused")
    first = "Unable connect to node with id 71: refused"
    assert caplog.messages == [first, "Unable connect to node with id 72: refused"]
    monkeypatch.setattr(library, "REPEAT_SECONDS", 0.0)
    logger.error("Unable connect to node with id %s: %s", 71, "refused")
    logger.error("Unable connect to node with id %s: %s", 71, "refused")
    assert caplog.messages[2:] == [f"{first} (and 49 times before)", first]


def test_not_every_sentence_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence with a number that counts up is let through, and does not take memory for ever."""
    repeated = library._Repeats()
    monkeypatch.setattr(library, "MESSAGES_MAX", 5)
    for number in range(50):
        assert repeated.filter(logging.makeLogRecord({"msg": f"correlation {number}"}))
        assert len(repeated._logged_at) <= 5


@pytest.mark.parametrize("is_committing", [False, True])
async def test_who_waits_for_a_stopped_producer_is_told(is_committing: bool) -> None:
    """A step that waits for its offsets, or for the end of its transaction, ends with the producer."""
    producer = AIOKafkaProducer(bootstrap_servers="nowhere:1", transactional_id="one")
    manager = producer._txn_manager
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    offsets = manager.add_offsets_to_txn({}, "group")
    if is_committing:
        manager.committing_transaction()
    await stop_producer(producer)
    for future in (offsets, manager.wait_for_transaction_end()):
        assert isinstance(future.exception(), ProducerClosed)


async def test_a_producer_that_wrote_nothing_stops() -> None:
    """There is no transaction that anybody waits for."""
    await stop_producer(AIOKafkaProducer(bootstrap_servers="nowhere:1", transactional_id="one"))


@pytest.mark.parametrize("named_at", [1, 3, 1000])
def test_a_start_waits_until_kafka_names_a_broker(named_at: int) -> None:
    """It asks again while the answer names none, and says so when it has waited for long."""
    asked = 0

    class Client(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
        async def force_metadata_update(self) -> None:
            nonlocal asked
            asked += 1
            if asked == named_at:
                self.cluster._brokers = {0: BrokerMetadata(0, "nowhere", 1, None)}

    async def main() -> bool:
        try:
            await wait_for_brokers(Client(bootstrap_servers="nowhere:1"))
        except KafkaConnectionError as error:
            return "names no broker" not in str(error)
        return True

    is_named = run_simulated(main())
    assert is_named == (named_at < 1000)
    assert asked == named_at or not is_named
