"""The producers of one bus share what they know of the cluster, and nothing that one of them can break."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import BrokerMetadata

from pvbus.adapters.kafka.producers import FRESH_SECONDS, Producers
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.adapters.kafka.tokens import TokenFile
from tests.kit.processes import run_simulated

SETTINGS = KafkaSettings(bootstrap=("nowhere:1",))
LEASES = 12


class Network:
    """Answers bootstraps as it is told: an error or None for each. asked: how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> None:
        self.asked = 0
        self._answers = list(answers)

        async def bootstrap(client: AIOKafkaClient) -> None:
            self.asked += 1
            await asyncio.sleep(0.1)
            if self._answers and (error := self._answers.pop(0)) is not None:
                raise error
            name_broker(client)

        monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)


def name_broker(client: AIOKafkaClient) -> None:
    client.cluster._brokers = {0: BrokerMetadata(0, "nowhere", 1, None)}


def clients(producers: Producers, count: int) -> list[Any]:
    made: list[AIOKafkaProducer] = [producers.producer(f"id-{number}") for number in range(count)]
    for producer in made:
        producer._closed = True  # none was started, so there is nothing to stop
    return [producer.client for producer in made]


def test_producers_that_start_together_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One asks for all of them; one that replaces another later asks anew, as brokers may have moved."""
    network = Network(monkeypatch)

    async def main() -> tuple[int, int]:
        producers = Producers(SETTINGS)
        await asyncio.gather(*(client.bootstrap() for client in clients(producers, LEASES)))
        together = network.asked
        await asyncio.sleep(FRESH_SECONDS + 0.1)
        await clients(producers, 1)[0].bootstrap()
        return together, network.asked

    assert run_simulated(main()) == (1, 2)


def test_a_bootstrap_that_fails_serves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer that asked fails, and the next one asks again."""
    network = Network(monkeypatch, KafkaConnectionError("nobody there"), None)

    async def main() -> list[Any]:
        both = clients(Producers(SETTINGS), 2)
        return await asyncio.gather(*(client.bootstrap() for client in both), return_exceptions=True)

    failed, good = run_simulated(main())
    assert isinstance(failed, KafkaConnectionError)
    assert good is None
    assert network.asked == 2


def test_a_producer_that_stops_closes_no_connection_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have the same metadata, but each its own connections: those of a lease that goes are closed."""

    async def main() -> tuple[bool, bool]:
        one, other = clients(Producers(SETTINGS), 2)
        return one.cluster is other.cluster, one._conns is other._conns

    assert run_simulated(main()) == (True, False)


def test_a_client_whose_task_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that the library does not expect ends its task: the next producer does not wait for it."""

    async def fail(self: AIOKafkaClient) -> None:
        raise ValueError("no metadata of any version")

    async def bootstrap(self: AIOKafkaClient) -> None:
        name_broker(self)
        self._sync_task = self._sync_task or asyncio.create_task(self._md_synchronizer())

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)

    async def main() -> tuple[bool, bool]:
        producers = Producers(SETTINGS)
        with monkeypatch.context() as failing:
            failing.setattr(AIOKafkaClient, "_md_synchronizer", fail)
            (first,) = clients(producers, 1)
            await first.bootstrap()
            await asyncio.sleep(0)
        second, third = clients(producers, 2)
        await second.bootstrap()
        await asyncio.sleep(FRESH_SECONDS / 2)
        task = second._shared._sync_task
        is_read = task is not None and not task.done()
        await producers.close()
        return is_read, third.cluster is second.cluster is not first.cluster

    assert run_simulated(main()) == (True, True)


async def test_a_token_that_is_no_text_is_left_to_the_broker(tmp_path: Path) -> None:
    """An error while it is read would end the task that reads metadata, of every client."""
    path = tmp_path / "token"
    path.write_bytes(b"\xff\xfe\n")
    assert await TokenFile(str(path)).token()
