"""Stopping the library's clients, in bounded time and to the end, whatever state they are in.

Their own `stop` hangs while a coordinator is away or a JoinGroup is under way, and it gives up half way,
with connections and tasks left over, when one of its background tasks has failed. So each is asked to
stop, and what it leaves is taken down here.
"""

import asyncio
import contextlib
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import ProducerClosed

from pvbus.adapters.kafka.failures import FOREIGN

STOP_SECONDS = 2.0
"""How long each part of stopping may take. Healthy clients need some milliseconds."""


async def discard(producer: AIOKafkaProducer) -> None:
    """Stop a producer. Nobody hears of what became of its records."""
    accumulator = producer._message_accumulator
    if not await _ended(producer.stop()):
        accumulator.fail_all(ProducerClosed())
        sender = producer._sender.sender_task
        while sender is not None and not sender.done():  # it awaits its tasks, one cancellation for each
            sender.cancel()
            await asyncio.wait({sender}, timeout=0.05)
        await _ended(producer.client.close())
    for batches in accumulator._batches.values():
        for batch in batches:
            take_notice(batch._drain_waiter)
    waiter = producer._txn_manager._transaction_waiter
    if waiter is not None:
        take_notice(waiter)


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group, if there is one, and stop."""
    if await _ended(consumer.stop()):
        return
    if isinstance(consumer._coordinator, GroupCoordinator):
        await _ended(_leave(consumer._coordinator))
    fetcher = consumer._fetcher
    if fetcher is not None:
        tasks = {fetcher._fetch_task, *fetcher._pending_tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=STOP_SECONDS)
    await _ended(consumer._client.close())


async def _leave(coordinator: GroupCoordinator) -> None:
    """End the tasks of a coordinator and leave its group, as it does itself if nothing is in the way."""
    coordinator._coordination_task.cancel()
    await asyncio.wait({coordinator._coordination_task})
    with contextlib.suppress(*FOREIGN):
        await coordinator._stop_heartbeat_task()
        await coordinator._stop_commit_offsets_refresh_task()
        await coordinator._maybe_leave_group()


async def _ended(coroutine: Any) -> bool:
    """Run something for a while; say whether it came to its end without an error."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait({task}, timeout=STOP_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_SECONDS)
    return task.done() and not task.cancelled() and task.exception() is None


def take_notice(future: "asyncio.Future[Any]") -> None:
    """Take a future's error, so that nobody is told that nobody did."""
    if future.done() and not future.cancelled():
        future.exception()
