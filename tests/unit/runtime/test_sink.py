"""The sink on a bus in memory: beginnings, filters, order, deleted events, leases that move, and TLS."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import CONDITIONS, DLQ
from pvbus.core.variants.sink.answers import Failed
from pvbus.core.variants.sink.message import Event, Filter, Mode
from pvbus.ports.bus import Lease, Record, TopicPartition
from pvbus.runtime.sink.bootstrap import read_beginning
from pvbus.runtime.sink.lease import Entry, SinkLease
from pvbus.runtime.sink.receiver import Receiver
from pvbus.runtime.sink.worker import Limits, SinkWorker, Start
from tests.kit.busbeside import delete_all_records
from tests.tools.certificate import make_certificate
from tests.tools.events import (
    PARTITIONS,
    EventWriter,
    WebhookReceiver,
    first_times,
    receiving,
    until,
    writer,
)
from tests.unit.adapters.http_servers import ELSEWHERE

QUICK = Limits(in_flight_max=8, attempts_max=3, retry_seconds=(0.01, 0.05))


@contextlib.asynccontextmanager
async def posting(
    url: str, token_file: Path | None = None, tls: ssl.SSLContext | None = None, mode: Mode = "binary"
) -> AsyncIterator[Receiver]:
    sender = Receiver(url, mode=mode, token_file=token_file, tls=tls, timeout_seconds=1.0, in_flight_max=8)
    async with sender:
        yield sender


@contextlib.asynccontextmanager
async def sinking(
    bus: SqliteBus, receiver: WebhookReceiver, *, start: Start = "oldest", wanted: Filter | None = None
) -> AsyncIterator[SinkWorker]:
    """Run a sink within the block; it stops in order."""
    async with posting(receiver.url) as sender:
        worker = SinkWorker(
            bus.peer(),
            SystemClock(),
            sender,
            partitions=PARTITIONS,
            start=start,
            wanted=wanted or Filter(),
            limits=QUICK,
        )
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await running


@pytest.fixture
async def bus() -> AsyncIterator[SqliteBus]:
    opened = await SqliteBus.open(":memory:")
    yield opened
    await opened.close()


async def arrived(receiver: WebhookReceiver, wanted: EventWriter | dict[str, list[str]]) -> None:
    ids = wanted.ids if isinstance(wanted, EventWriter) else wanted
    await until(lambda: receiver.accepted() == ids, lambda: (receiver.accepted(), ids))


async def test_a_restart_goes_on_behind_what_was_accepted(bus: SqliteBus) -> None:
    """A sink that stops in order repeats nothing; and it sends one event of an object at a time."""
    async with writer(bus) as events, receiving() as receiver:
        receiver.delay_seconds = 0.005
        for number in range(60):
            await events.change(f"web-{number % 6}", str(number))
        async with sinking(bus, receiver):
            await arrived(receiver, events)
        for number in range(6):
            await events.change(f"web-{number}", "again")
        async with sinking(bus, receiver):
            await arrived(receiver, events)
        assert receiver.overlaps == []
        assert receiver.parallel_max > 1


async def test_a_first_start_sends_the_latest_events_then_the_changes(bus: SqliteBus) -> None:
    """What changes while the table is read comes once, and in its order."""
    async with writer(bus) as events, receiving() as receiver:
        for number in range(30):
            await events.change(f"web-{number % 3}", str(number))
        latest = {key: ids[-1:] for key, ids in events.ids.items()}
        async with sinking(bus, receiver, start="latest"):
            for number in range(30):
                await events.change(f"web-{number % 3}", f"change {number}")
            await until(
                lambda: all(
                    receiver.accepted().get(key, [""])[-1] == ids[-1] for key, ids in events.ids.items()
                ),
                lambda: receiver.accepted(),
            )
        for key, ids in receiver.accepted().items():
            assert ids == events.ids[key][events.ids[key].index(ids[0]) :]
            assert events.ids[key].index(ids[0]) >= events.ids[key].index(latest[key][0])
        before = len(receiver.got)
        async with sinking(bus, receiver, start="latest") as worker:
            await until(lambda: worker.ready and len(worker.leases()) == PARTITIONS, lambda: "not ready")
            key = next(iter(events.ids))
            await events.change(key.partition("/")[2], "last")
            await until(lambda: len(receiver.got) > before, lambda: "nothing came")
        assert len(receiver.got) == before + 1  # the table is sent once


async def test_a_beginning_that_was_interrupted_goes_on(bus: SqliteBus) -> None:
    """A receiver that has taken a part of the table gets every change that follows, after each restart.

    Also one of a partition that was empty.
    """
    names = sorted(
        (f"web-{number}" for number in range(200)), key=lambda name: partition(f"default/{name}", 12)
    )
    first, failing, quiet = names[:3]
    assert len({partition(f"default/{name}", PARTITIONS) for name in (first, failing, quiet)}) == 1
    empty = names[-1]
    async with writer(bus) as events, receiving() as receiver:
        refuses = True
        receiver.answer = lambda id_, data: web.Response(
            status=503 if refuses and data["name"] in (failing, quiet) else 200
        )
        for name in (failing, quiet, first):
            for number in range(3):
                await events.change(name, str(number))
        async with sinking(bus, receiver, start="latest") as worker:
            await until(lambda: worker.ready and len(receiver.accepted()) == 1, lambda: receiver.got)
            await until(lambda: len(worker.leases()) == PARTITIONS, lambda: worker.leases())
        for number in range(3, 6):
            for name in (failing, first, empty):
                await events.change(name, str(number))
        async with sinking(bus, receiver, start="latest"):
            await until(lambda: len(receiver.accepted()) == 2, lambda: receiver.got)
        refuses = False
        async with sinking(bus, receiver, start="latest"):
            await until(lambda: len(receiver.accepted()) == 4, lambda: receiver.got)
            await until(
                lambda: all(receiver.accepted()[key][-1] == ids[-1] for key, ids in events.ids.items()),
                lambda: receiver.accepted(),
            )
        wanted = {first: (2, 3, 4, 5), failing: (3, 4, 5), quiet: (2,), empty: (0, 1, 2)}
        assert {key: first_times(ids) for key, ids in receiver.accepted().items()} == {
            f"PackageVariant|default/{name}": [
                events.ids[f"PackageVariant|default/{name}"][i] for i in indices
            ]
            for name, indices in wanted.items()
        }


async def test_the_table_leaves_out_what_is_among_the_changes(bus: SqliteBus) -> None:
    """A change between the look at the end of the changes and the read of the table comes only among the
    former: after the older changes that come before it."""

    async with writer(bus) as events:
        before = await events.change("web", "before")
        number = partition("default/web", PARTITIONS)
        ends = bus.end_offsets
        asked: list[object] = []

        async def end_offsets(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
            found = await ends(partitions)
            if not asked:
                asked.append(partitions)
                await events.change("web", "between")
                await events.change("web", "between, again", type_="Stalled")
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bus, "end_offsets", end_offsets)
            assert await read_beginning(bus, number, 1, lambda read, total: None) == []
        rows = await read_beginning(bus, number, 3, lambda read, total: None)
        assert [dict(row.headers)["ce_id"].decode() for row in rows] == events.ids[
            "PackageVariant|default/web"
        ][1:]
        assert before not in {dict(row.headers)["ce_id"].decode() for row in rows}


async def test_a_filter(bus: SqliteBus) -> None:
    """Events of other kinds and conditions are not sent, and are no hindrance."""
    async with writer(bus) as events, receiving() as receiver:
        wanted = Filter(frozenset({"PackageVariant"}), frozenset({"Ready"}))
        async with sinking(bus, receiver, wanted=wanted) as worker:
            await until(lambda: worker.ready and len(worker.leases()) == PARTITIONS, lambda: "not ready")
            await events.change("web", "a", kind="Repository")
            await events.change("web", "a", type_="Stalled")
            await events.change("web", "b")
            await arrived(
                receiver, {"PackageVariant|default/web": [events.ids["PackageVariant|default/web"][1]]}
            )


async def test_a_foreign_record_is_a_dead_letter(bus: SqliteBus) -> None:
    """Once, and the object's events before and after it are sent."""
    async with writer(bus) as events, receiving() as receiver:
        await events.change("web", "before")
        await events.write(CONDITIONS, "PackageVariant|default/web", b"no json", ("ce_id", b"1"))
        await events.change("web", "after")
        async with sinking(bus, receiver):
            await arrived(receiver, events)
        async with sinking(bus, receiver) as worker:
            await until(lambda: worker.ready and len(worker.leases()) == PARTITIONS, lambda: "not ready")
        ends = await bus.end_offsets([(DLQ, number) for number in range(PARTITIONS)])
        assert sum(ends.values()) == 1


async def test_deleted_events_are_counted_and_passed_over(bus: SqliteBus) -> None:
    """Retention deletes what a stopped sink has not sent: it says how much, and goes on with the oldest."""
    async with writer(bus) as events, receiving() as receiver:
        first = await events.change("web", "sent")
        async with sinking(bus, receiver):
            await arrived(receiver, {"PackageVariant|default/web": [first]})
        await events.change("web", "deleted")
        await events.change("web", "deleted, too")
        await delete_all_records(bus)
        last = await events.change("web", "kept")
        before = REGISTRY.get_sample_value("pvbus_sink_deleted_events_total") or 0.0
        async with sinking(bus, receiver):
            await arrived(receiver, {"PackageVariant|default/web": [first, last]})
        assert REGISTRY.get_sample_value("pvbus_sink_deleted_events_total") == before + 2


async def test_leases_move_between_sinks(bus: SqliteBus) -> None:
    """Each key's events arrive in order while sinks come and go; what is repeated has the same id."""
    async with writer(bus) as events, receiving() as receiver:
        receiver.delay_seconds = 0.002

        async def publish() -> None:
            for number in range(150):
                await events.change(f"web-{number % 10}", str(number))
                await asyncio.sleep(0.002)

        async with sinking(bus, receiver):
            publishing = asyncio.create_task(publish())
            async with sinking(bus, receiver) as second:
                await until(lambda: bool(second.leases()), lambda: "no lease")
            await publishing
            await until(
                lambda: {key: first_times(ids) for key, ids in receiver.accepted().items()} == events.ids,
                lambda: receiver.accepted(),
            )
        assert receiver.overlaps == []


def entry(key: str, offset: int) -> Entry:
    record = Record(CONDITIONS, 0, offset, key.encode(), b"{}", (), 1000 * offset)
    return Entry(Event(key, "K", "T", {}, b"{}"), record, offset)


def test_the_position_waits_for_the_first_event_that_is_not_done() -> None:
    """Whatever is done behind it; and the table's events hold it at nothing at all."""
    opened = SinkLease(Lease(group="g", partition=0, epoch=1), SystemClock())
    opened.position = 14
    table, first, second, third = entry("a", 0), entry("b", 10), entry("a", 11), entry("c", 12)
    assert [opened.add(each) for each in (table, first, second, third)] == [True, True, False, True]
    offsets = []
    for each in (third, first, table, second):
        opened.finish(each)
        offsets.append((opened.advance_offset(), opened.oldest_at))
    assert offsets == [(0, 0.0), (0, 0.0), (11, 11.0), (14, None)]


async def sent(url: str, token_file: Path | None = None, tls: ssl.SSLContext | None = None) -> str:
    """Post one event; return the answer's message, "" if it was accepted."""
    event = Event("K|n/a", "K", "T", {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}, b"{}")
    async with posting(url, token_file, tls) as sender:
        return getattr(await sender.send(event), "message", "")


@contextlib.asynccontextmanager
async def answering(raw: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Run a server that answers every connection with these bytes; b"" closes it, b"-" says nothing."""

    streams: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, stream: asyncio.StreamWriter) -> None:
        streams.append(stream)
        with contextlib.suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            if raw == b"-":
                await reader.read()
            stream.write(raw)
            await stream.drain()
            stream.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for stream in streams:
            stream.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "closed the connection without an answer"),
        (b"-", "did not answer within 1 s"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not valid HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/x\r\nContent-Length: 0\r\n\r\n", "a redirect to"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000, "answers 500: xxx"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000, ""),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nbad", ""),
    ],
)
async def test_every_failure_has_its_message(raw: bytes, words: str) -> None:
    """A huge answer is not read to its end, and one that claims to be compressed is not unpacked."""
    async with answering(raw) as url:
        message = await sent(url)
    assert words in message
    assert bool(words) == bool(message)


async def test_addresses_that_nobody_answers() -> None:
    """A closed port, and a name without an address."""
    assert "cannot connect to 127.0.0.1:9: Connect" in await sent("http://127.0.0.1:9/")
    assert "cannot connect to receiver.invalid:80" in await sent("http://receiver.invalid/")


async def test_tls(tmp_path: Path) -> None:
    """A certificate of an unknown authority is refused, and taken with PVBUS_SINK_CA_FILE."""
    keystore, authority = make_certificate(tmp_path)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(keystore)
    accepts = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with answering(accepts, theirs) as url:
        assert "PVBUS_SINK_CA_FILE" in await sent(url)
        assert await sent(url, tls=ssl.create_default_context(cafile=str(authority))) == ""
    async with receiving() as plain:
        assert "does PVBUS_SINK_URL name an HTTPS port" in await sent(plain.url.replace("http:", "https:"))


async def test_the_token_is_read_again(bus: SqliteBus, tmp_path: Path) -> None:
    """Tokens are replaced while the sink runs; one that cannot be read is a failure like others."""
    token = tmp_path / "token"
    async with receiving() as receiver:
        event = Event("K|n/a", "K", "T", {"id": "1"}, b'{"kind":"K","namespace":"n","name":"a"}')
        async with posting(receiver.url, token) as sender:
            assert "PVBUS_SINK_TOKEN_FILE: cannot read" in getattr(await sender.send(event), "message", "")
            for text in ("one\n", "two"):
                token.write_text(text)
                await sender.send(event)
    assert [each.headers["Authorization"] for each in receiver.got] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_no_event_and_no_token_goes_to_a_metadata_address(tmp_path: Path, url: str) -> None:
    """The address is judged once its name is resolved, whatever the spelling."""
    token = tmp_path / "token"
    token.write_text("secret")
    async with posting(url, token) as sender:
        answer = await sender.send(Event("K|n/a", "K", "T", {"id": "1"}, b"{}"))
    assert isinstance(answer, Failed)
    assert re.search("no request goes there|not a canonical IPv4 address", answer.message)
    assert "secret" not in answer.message
