"""The producer of a lease is replaced until one starts."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from pvbus.adapters.kafka import writer
from pvbus.adapters.kafka.producers import Producers
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.adapters.kafka.writer import Writer
from pvbus.core.errors import FencedError, TransientError


class BrokenProducer:
    """Its broker goes away when a transaction begins."""

    def __init__(self, epoch: int) -> None:
        self._txn_manager = SimpleNamespace(producer_id=1, producer_epoch=epoch)

    async def begin_transaction(self) -> None:
        raise KafkaConnectionError("the broker is gone")


class StartingWriter(Writer):
    """Has no Kafka: each start ends as the list says, with an epoch or an error."""

    def __init__(self, starts: list[int | Exception]) -> None:
        settings = KafkaSettings(bootstrap=("nowhere:1",))
        super().__init__(
            settings,
            Producers(settings),
            "group",
            0,
            confirm=is_member,
            verify=lambda: asyncio.sleep(0, self.is_member_after_start),
            on_fence=lambda: self.lost.append(True),
        )
        self.is_member_after_start = True
        self.lost: list[bool] = []
        self._starts = iter(starts)

    async def _start(self) -> Any:
        result = next(self._starts)
        if isinstance(result, Exception):
            raise result
        return BrokenProducer(result)


async def is_member() -> bool:
    return True


async def stop_producer(producer: object) -> None:
    """Nothing is left of a producer that never was."""


@pytest.mark.parametrize("error", [TransientError("no coordinator"), FencedError("another one of this id")])
async def test_a_replacement_that_does_not_start_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a new producer meets, a member of the group goes on until it can write."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(writer, "stop_producer", stop_producer)
    made = StartingWriter([1, error, error, 4])
    before = await made.start()
    with pytest.raises(TransientError):
        await made.write([], {"table": 1})
    await made.ready()
    assert made.epoch == before + 3
    await made.close()


@pytest.mark.parametrize("is_replacement", [False, True])
async def test_who_is_no_member_after_its_start_writes_nothing(
    is_replacement: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was frozen before its producer started has fenced the next holder, and gives up."""
    monkeypatch.setattr(writer, "stop_producer", stop_producer)
    made = StartingWriter([1, 2])
    if is_replacement:
        await made.start()
        with pytest.raises(TransientError):
            await made.write([], {"table": 1})
    made.is_member_after_start = False
    with pytest.raises(FencedError):
        await (made.ready() if is_replacement else made.start())
    with pytest.raises(FencedError):
        await made.write([], {"table": 1})
    assert made.lost == [True]
    await made.close()
