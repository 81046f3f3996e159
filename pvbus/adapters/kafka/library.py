"""Works around aiokafka: checks its private names, stops its clients in bounded time, and filters its log.

The adapter uses names that aiokafka does not promise to keep. To set one that has another name now changes
nothing, and no error says so; so all of them are checked before the first connection.

A client's own `stop` hangs while a coordinator is down or a JoinGroup is pending, and gives up half way,
with connections and tasks left over, if one of its background tasks has failed. So this module calls `stop`
with a time limit, and then ends the remaining tasks and connections.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import Assignment, SubscriptionState, TopicPartitionState
from aiokafka.errors import KafkaConnectionError, ProducerClosed
from aiokafka.producer.message_accumulator import MessageAccumulator, MessageBatch
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.fetch import FetchRequest

from pvbus.adapters.kafka.errors import FOREIGN
from pvbus.core.errors import PermanentError

STOP_SECONDS = 2.0
"""How long each part of stopping may take. Healthy clients need some milliseconds."""

LOOK_SECONDS = 0.1
LOOK_SECONDS_MAX = 10.0
"""Between two looks for a broker, and until the last one: less than the deadlines of those who start."""

REPEAT_SECONDS = 10.0
"""How often the same message is logged. Shorter: a broker that is down fills the logs, as each connection of
each worker logs it ten times a second. Longer: the failure seems to be over."""

MESSAGES_MAX = 200
"""How many messages are remembered: enough for all brokers, but not every exception's text forever."""

_LOG = logging.getLogger("aiokafka")
_COORDINATOR_LOG = logging.getLogger("aiokafka.consumer.group_coordinator")
_REPEATING_LOGS = (
    _LOG.name,
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    _COORDINATOR_LOG.name,
    "aiokafka.producer.sender",
)
_REBALANCING = "because it is rebalancing"
_UNREACHABLE = ('Unable connect to "%s:%s": %s', 'Unable to request metadata from "%s:%s": %s')

_reasons: ContextVar[dict[str, object] | None] = ContextVar("reasons", default=None)


# The private names that the adapter uses

TESTED_VERSION = "0.14.0"

PRIVATE: Mapping[type, tuple[str, ...]] = {
    AIOKafkaAdminClient: ("_client",),
    AIOKafkaClient: (
        *("cluster", "bootstrap", "force_metadata_update", "add_topic", "_maybe_wait_metadata"),
        *("ready", "send", "coordinator_lookup", "get_random_node", "close"),
        *("_conns", "_get_conn_lock", "_sync_task"),
    ),
    AIOKafkaConsumer: ("_client", "_coordinator", "_fetcher", "_subscription"),
    SubscriptionState: ("subscription",),
    Assignment: ("state_value",),
    TopicPartitionState: ("has_valid_position", "position"),
    Fetcher: ("_fetch_task", "_pending_tasks"),
    FetchRequest: ("_topics", "_max_wait_ms", "topics", "build"),
    GroupCoordinator: (
        *("generation", "member_id", "request_rejoin", "_coordination_task", "_heartbeat_task"),
        *("_do_heartbeat", "_maybe_leave_group"),
        *("_stop_heartbeat_task", "_stop_commit_offsets_refresh_task"),
    ),
    AIOKafkaProducer: ("client", "_metadata", "_message_accumulator", "_sender", "_txn_manager"),
    Sender: ("client", "sender_task"),
    MessageAccumulator: ("fail_all", "_batches", "_cluster"),
    MessageBatch: ("_drain_waiter",),
    TransactionManager: (
        *("producer_id", "producer_epoch", "maybe_add_partition_to_txn", "add_offsets_to_txn"),
        *("fatal_error", "_transaction_waiter"),
    ),
}
"""By class: what the adapter reads, sets, calls or replaces, and is not documented."""


def check_library() -> None:
    """Raise PermanentError if the installed aiokafka lacks a name that the adapter uses."""
    missing = [
        f"{kind.__name__}.{name}"
        for kind, names in PRIVATE.items()
        for name in names
        if name not in _names_of(kind)
    ]
    if missing:
        raise PermanentError(
            f"aiokafka {aiokafka.__version__} has no {', '.join(missing)}, which pvbus uses: "
            f"install aiokafka {TESTED_VERSION}, with which this pvbus is tested",
            reason="LibraryChanged",
        )


def _names_of(kind: type) -> set[str]:
    """Return the names of a class, and those that its constructors set or use."""
    made = (getattr(base.__dict__.get("__init__"), "__code__", None) for base in kind.__mro__)
    return {*dir(kind), *(name for code in made if code is not None for name in code.co_names)}


# Starting and stopping


async def wait_for_brokers(client: AIOKafkaClient) -> None:
    """Wait until Kafka has named a broker to a client that has just been started.

    It names none while it takes all of them for dead, as after a pause of its only one. The library starts
    all the same, and its background tasks end for good when they look for a coordinator. Raises
    KafkaConnectionError.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOOK_SECONDS_MAX
    while not client.cluster.brokers():
        if loop.time() >= deadline:
            raise KafkaConnectionError("Kafka answers, but names no broker that is alive")
        await asyncio.sleep(LOOK_SECONDS)
        await client.force_metadata_update()


async def stop_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer. Its unfinished records, offsets and transaction fail with ProducerClosed."""
    accumulator = producer._message_accumulator
    if not await _has_ended(producer.stop()):
        accumulator.fail_all(ProducerClosed())
        sender = producer._sender.sender_task
        while sender is not None and not sender.done():  # each task that it awaits needs its own cancellation
            sender.cancel()
            await asyncio.wait({sender}, timeout=0.05)
        await _has_ended(producer.client.close())
    await _close_late_connections(producer.client)
    for batches in accumulator._batches.values():
        for batch in batches:
            retrieve_error(batch._drain_waiter)
    _fail_transaction(producer._txn_manager)


def _fail_transaction(manager: TransactionManager) -> None:
    """Fail the offsets and the end of a transaction that a stopped producer does not send any longer."""
    waiter = manager._transaction_waiter
    if waiter is None:
        return
    if not waiter.done():
        manager.fatal_error(ProducerClosed())
    retrieve_error(waiter)


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer; it leaves its group, if it has one."""
    if not await _has_ended(consumer.stop()):
        await _end_halfway(consumer)
    await _close_late_connections(consumer._client)


async def _end_halfway(consumer: AIOKafkaConsumer) -> None:
    """End the tasks and connections that are left over after a `stop` gave up."""
    if isinstance(consumer._coordinator, GroupCoordinator):
        await _has_ended(_leave(consumer._coordinator))
    fetcher = consumer._fetcher
    if fetcher is not None:
        tasks = {fetcher._fetch_task, *fetcher._pending_tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=STOP_SECONDS)
    await _has_ended(consumer._client.close())


async def _close_late_connections(client: AIOKafkaClient) -> None:
    """Close the connections that opened while the client was closing."""

    async def close() -> None:
        async with client._get_conn_lock:  # held while one is made
            for connection in tuple(client._conns.values()):
                if connection.connected():
                    connection.close()

    await _has_ended(close())


async def _leave(coordinator: GroupCoordinator) -> None:
    """End the tasks of a coordinator and leave its group, as the coordinator normally does itself."""
    coordinator._coordination_task.cancel()
    await asyncio.wait({coordinator._coordination_task})
    with contextlib.suppress(*FOREIGN):
        await coordinator._stop_heartbeat_task()
        await coordinator._stop_commit_offsets_refresh_task()
        await coordinator._maybe_leave_group()


async def _has_ended(coroutine: Any) -> bool:
    """Await a coroutine for `STOP_SECONDS`; return whether it ended without an error."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait({task}, timeout=STOP_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_SECONDS)
    return task.done() and not task.cancelled() and task.exception() is None


def retrieve_error(future: "asyncio.Future[Any]") -> None:
    """Retrieve a future's error, so that asyncio does not log that it was never retrieved."""
    if future.done() and not future.cancelled():
        future.exception()


# Logging


class _Rebalances(logging.Filter):
    """Drops failed heartbeats that announce a rebalance: a worker joined or left, which is no failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _REBALANCING not in str(record.msg)


class _Repeats(logging.Filter):
    """Passes a repeated message on at intervals, with the number of dropped ones."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}
        self._dropped: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.created - self._logged_at.get(message, 0.0) < REPEAT_SECONDS:
            self._dropped[message] = self._dropped.get(message, 0) + 1
            return False
        if len(self._logged_at) >= MESSAGES_MAX:
            self._logged_at.clear()
            self._dropped.clear()
        self._logged_at[message] = record.created
        if times := self._dropped.pop(message, 0):
            record.msg, record.args = f"{message} (and {times} times before)", ()
        return True


class _Collector(logging.Filter):
    """Moves the reason why an address does not work from the log to the pending connect call."""

    def filter(self, record: logging.LogRecord) -> bool:
        reasons = _reasons.get()
        if reasons is None or record.msg not in _UNREACHABLE or not isinstance(record.args, tuple):
            return True
        host, port, reason = record.args
        reasons[f"{host}:{port}"] = reason
        return False


_rebalances = _Rebalances()
_repeats = _Repeats()
_collector = _Collector()


def filter_logs() -> None:
    """Drop the library's routine and repeated messages, unless its log level is debug. Idempotent."""
    if _COORDINATOR_LOG.getEffectiveLevel() <= logging.DEBUG:
        return
    _COORDINATOR_LOG.addFilter(_rebalances)
    for name in _REPEATING_LOGS:
        logging.getLogger(name).addFilter(_repeats)


@contextlib.contextmanager
def collect_reasons() -> Iterator[dict[str, object]]:
    """Collect the reasons why this task cannot connect, by address; log them if the block succeeds.

    The library logs the reason for each address, but raises an error without any of them.
    """
    # The collector comes first: the filter of repeats would drop the reasons of a second attempt.
    _LOG.filters[:] = [_collector, *(each for each in _LOG.filters if each is not _collector)]
    reasons: dict[str, object] = {}
    token = _reasons.set(reasons)
    try:
        yield reasons
    finally:
        _reasons.reset(token)
    for address, reason in reasons.items():
        _LOG.warning("no connection to %s: %s", address, reason)
