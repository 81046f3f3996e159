"""The producers of one bus: they share what they know of the cluster, and each has connections of its own.

One client connects to a bootstrap address, and asks for metadata, for all of them. Leases share no
connection: a broker takes the next request of a connection once it has answered the last one, which it does
when its replicas have it. So a step would wait for the requests of all other leases, and a connection that
breaks would leave the outcome of all of them unknown.
"""

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup

from pvbus.adapters.kafka.library import wait_for_brokers
from pvbus.adapters.kafka.settings import KafkaSettings, client_options, producer_options
from pvbus.telemetry.logs import get_logger

_log = get_logger("kafka")

FRESH_SECONDS = 1.0
"""How long a bootstrap serves the producers that start after it. Longer: a producer that replaces a failed
one starts with the addresses of brokers that are gone."""

METADATA_SECONDS = 5.0
"""How long a broker has to send metadata before another one is asked. All producers wait for it, so the time
is well below the deadline of a step."""


class Producers:
    """Makes producers; see the module."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._options = client_options(settings)
        self._client = self._make_client()
        self._turn = asyncio.Lock()
        self._fresh_until = float("-inf")
        self._failed: list[AIOKafkaClient] = []  # clients that were replaced

    def _make_client(self) -> AIOKafkaClient:
        return AIOKafkaClient(**self._options | {"request_timeout_ms": int(METADATA_SECONDS * 1000)})

    def producer(self, transactional_id: str) -> AIOKafkaProducer:
        """Return a producer that is not started."""
        self._replace_failed_client()
        producer = AIOKafkaProducer(**producer_options(self._settings, transactional_id))
        client = _LeaseClient(self, self._client, self._options)
        producer.client = producer._sender.client = client
        producer._metadata = producer._message_accumulator._cluster = client.cluster
        return producer

    def _replace_failed_client(self) -> None:
        """Make another client if the task that reads metadata has failed: the library does not restart it.

        The producers of the failed one wait for metadata until the deadlines of their steps.
        """
        reading = self._client._sync_task
        if reading is None or not reading.done():
            return
        error = None if reading.cancelled() else reading.exception()
        _log.warning("metadata of the cluster is read anew after an error", error=repr(error))
        self._client._sync_task = None  # `close` would raise its error
        self._failed.append(self._client)
        self._client, self._fresh_until = self._make_client(), float("-inf")

    async def bootstrap(self) -> None:
        """Read the metadata of the cluster, unless that was just done. Raises KafkaConnectionError."""
        async with self._turn:
            clock = asyncio.get_running_loop()
            if clock.time() >= self._fresh_until:
                await self._client.bootstrap()
                await wait_for_brokers(self._client)
                self._fresh_until = clock.time() + FRESH_SECONDS

    async def close(self) -> None:
        self._replace_failed_client()
        await asyncio.gather(*(client.close() for client in (self._client, *self._failed)))


class _LeaseClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """The client of one producer: its own connections, one to a broker, and the metadata of all."""

    def __init__(self, producers: Producers, shared: AIOKafkaClient, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._producers, self._shared, self.cluster = producers, shared, shared.cluster

    async def bootstrap(self) -> None:
        await self._producers.bootstrap()

    def force_metadata_update(self) -> Any:
        return self._shared.force_metadata_update()

    def add_topic(self, topic: str) -> Any:
        return self._shared.add_topic(topic)

    async def _maybe_wait_metadata(self) -> None:
        await self._shared._maybe_wait_metadata()

    async def ready(self, node_id: int, *, group: Any = None) -> bool:
        return bool(await super().ready(node_id, group=ConnectionGroup.DEFAULT))

    async def send(self, node_id: int, request: Any, *, group: Any = None) -> Any:
        return await super().send(node_id, request, group=ConnectionGroup.DEFAULT)
