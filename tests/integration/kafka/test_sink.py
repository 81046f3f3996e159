"""The sink on Kafka: kills, the group's committed offsets, and the rights that `--acls` prints."""

import asyncio
import json
import re
import secrets
import signal
from pathlib import Path

import pytest
from aiohttp import web

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import settings_of
from pvbus.core.kernel.records import CONDITIONS, DLQ
from tests.e2e.cli.command import pvbus, running
from tests.tools.events import first_times, receiving, until, writer
from tests.tools.kafka import KafkaCluster
from tests.tools.topicreader import TopicReader

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]


async def test_kills_repeat_events_and_lose_none(kafka_one: KafkaCluster, tmp_path: Path) -> None:
    """Each object's events arrive in order; the group's offsets say so once all are accepted; a refused event
    is on the dead letters' topic; and the lag is shown."""
    prefix = f"sink-{secrets.token_hex(4)}"
    url = f"kafka://{kafka_one.bootstrap}/{prefix}"
    bus = await KafkaBus.open(settings_of(url))
    settings = {
        "PVBUS_SINK_RETRY_SECONDS": "0.5",
        "PVBUS_SINK_START": "oldest",
        "PVBUS_KAFKA_SESSION_SECONDS": "6",
    }
    command = ("run", "sink", "--bus", url)
    async with writer(bus) as events, receiving() as receiver:
        receiver.delay_seconds = 0.002
        receiver.answer = lambda id_, data: web.Response(
            status=422 if data["condition"]["message"] == "refused" else 200
        )
        for number in range(120):
            await events.change(f"web-{number % 12}", str(number))
        with running(*command, cwd=tmp_path, PVBUS_SINK_URL=receiver.url, **settings) as process:
            await until(lambda: len(receiver.got) >= 40, lambda: process.output)
            process.end(signal.SIGKILL)
        refused = await events.change("web-0", "refused")
        for number in range(12):
            await events.change(f"web-{number}", "last")
        with running(*command, cwd=tmp_path, PVBUS_SINK_URL=receiver.url, **settings) as process:

            def wanted() -> dict[str, list[str]]:
                return {key: [each for each in ids if each != refused] for key, ids in events.ids.items()}

            await until(
                lambda: {key: first_times(ids) for key, ids in receiver.accepted().items()} == wanted(),
                lambda: process.output,
            )
            shown = await asyncio.to_thread(pvbus, "lag", "sink", "--bus", url, cwd=tmp_path)
            assert re.search(r"(?m)^sink +12/12 +1 +0 +0 ", shown.out), shown
            assert process.end() == 0
        assert receiver.overlaps == []
        assert sum(each.id == refused for each in receiver.got) == 1
        with TopicReader(kafka_one.bootstrap, prefix) as reader:
            (letter,) = reader.all([DLQ]).of(DLQ)
            committed = reader.committed("pvbus-sink")
            records = reader.all([CONDITIONS]).of(CONDITIONS)
        assert json.loads(letter.value or b"")["error"] == "sink: the receiver answers 422"
        for record in records:
            assert committed[record.topic, record.partition] > record.offset
        before = len(receiver.got)
        with running(*command, cwd=tmp_path, PVBUS_SINK_URL=receiver.url, **settings) as process:
            last = await events.change("web-1", "after all")
            await until(lambda: len(receiver.got) > before, lambda: process.output)
            assert process.end() == 0
        assert [each.id for each in receiver.got[before:]] == [last]
        assert "deleted before" not in process.output
    await bus.close()
