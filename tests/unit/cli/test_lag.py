"""What `pvbus lag` makes of what the bus and the workers say."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli import lag as lag_module
from pvbus.cli.lag import LagTable, Row, _cells, _show, _summary, look, troubles_of
from pvbus.core.errors import TransientError, UsageError
from pvbus.core.kernel.records import SETRESULTS, SETS
from pvbus.core.kernel.topics import PROMOTION, SERVICES, topic_specs
from pvbus.ports.bus import GroupState, Lease, Output
from pvbus.runtime.process.assembly import INPUTS, partition_count
from pvbus.runtime.process.state import LeaseReport, ProcessState, ServiceReport


def report(number: int = 0, **changed: Any) -> LeaseReport:
    given = LeaseReport(
        partition=number,
        epoch=4,
        restored=True,
        restore=(10, 10),
        lag=0,
        dirty=0,
        seconds_since_progress=1.5,
    )
    return msgspec.structs.replace(given, **changed)


def process(name: str, *leases: LeaseReport) -> ProcessState:
    service = ServiceReport(ready=True, idle=True, next_timer_seconds=None, dirty=0, leases=leases)
    return ProcessState(services={name: service})


@asynccontextmanager
async def telling(answer: Any) -> AsyncIterator[str]:
    """A worker's health server that answers so; an exception: never."""

    async def handle(request: web.Request) -> web.Response:
        assert request.path == "/state"
        if isinstance(answer, Exception):
            await asyncio.sleep(1000)
        body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        return web.Response(body=body)

    application = web.Application()
    application.router.add_get("/state", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened() -> AsyncIterator[SqliteBus]:
    bus = await SqliteBus.open(":memory:", heartbeat_seconds=0.01)
    await bus.create_topics(topic_specs())
    try:
        yield bus
    finally:
        await bus.close()


async def join(bus: SqliteBus, service: str, label: str, worker: SqliteBus | None = None) -> list[Lease]:
    """Join as a service does; returns all leases, which are this worker's. worker: its view of the bus"""
    worker = worker or bus.peer()
    worker.label = label
    given: asyncio.Queue[Lease] = asyncio.Queue()

    async def revoked(lease: Lease) -> None:
        """Nothing is left to do."""

    await worker.join(f"pvbus-{service}", INPUTS[service], assigned=given.put, revoked=revoked)
    return [await given.get() for _ in range(partition_count())]


@pytest.mark.parametrize("service", ["unroll", *PROMOTION])
async def test_owners_tell_how_far_they_are(service: str) -> None:
    """What a worker says of its leases is shown, its lag before what is committed."""
    async with opened() as bus, telling(process(service, report(0, lag=7), report(1, dirty=3))) as url:
        await join(bus, service, url)
        table = await look(bus, [service])
        assert table.remarks == []
        assert [row.partition for row in table.rows] == list(range(partition_count()))
        assert {row.owner for row in table.rows} == {url}
        assert table.rows[0].lag == 7
        assert table.rows[1].lease == report(1, dirty=3)
        assert table.rows[2].lease is None  # it says nothing of this one: it may have got it this moment


async def test_while_nothing_runs_lag_is_what_is_not_committed() -> None:
    """Records behind the committed offset of each input count, of a partition that nobody holds, too."""
    async with opened() as bus:
        worker = bus.peer()
        leases = await join(bus, "unroll", "", worker)
        first = leases[0]
        outputs = [
            Output(topic, first.partition, b"k%d" % n, b"v") for topic in (SETS, SETRESULTS) for n in range(5)
        ]
        await bus.step(first, outputs, {SETS: 2})
        await worker.close()
        table = await look(bus, ["ingest", "unroll"])
        assert {row.owner for row in table.rows} == {""}
        lags = {(row.service, row.partition): row.lag for row in table.rows if row.lag}
        assert lags == {("unroll", first.partition): 8}


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """Yield an address that refuses connections; the port stays bound, so that no other server gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


async def test_who_does_not_answer_is_named_and_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent, gone, something else: a line for each, in the time of one; the rest is shown."""
    monkeypatch.setattr(lag_module, "ANSWER_SECONDS_MAX", 1.0)
    async with (
        refusing() as gone,
        opened() as bus,
        telling(Exception()) as silent,
        telling(Exception()) as silent_too,
        telling(b"<html>") as other,
        telling(process("conditions", report(0))) as good,
    ):
        owners = {"ingest": silent, "unroll": silent_too, "render": gone, "inject": other, "conditions": good}
        for service, label in owners.items():
            await join(bus, service, label)
        began = asyncio.get_running_loop().time()
        table = await look(bus, list(owners))
        assert asyncio.get_running_loop().time() - began < 1.9
        assert {row.service: row.owner for row in table.rows} == owners
        assert {row.service for row in table.rows if row.lease is not None} == {"conditions"}
        assert len(table.remarks) == 4
        for label in (silent, silent_too, gone, other):
            assert sum(remark.startswith(f"{label} does not tell") for remark in table.remarks) == 1


async def test_a_group_that_cannot_be_described_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While leases of one service change hands the other services are shown."""
    async with opened() as bus:
        describe = bus.describe

        async def some(group: str, inputs: tuple[str, ...]) -> GroupState:
            if group == "pvbus-render":
                raise TransientError("rebalancing")
            return await describe(group, inputs)

        monkeypatch.setattr(bus, "describe", some)
        table = await look(bus, ["render", "inject"])
        assert {row.service for row in table.rows} == {"inject"}
        assert len(table.remarks) == 1
        assert table.remarks[0].startswith("render: ")


async def test_a_bus_without_topics_says_what_to_do() -> None:
    bus = await SqliteBus.open(":memory:")
    with pytest.raises(UsageError, match="nothing of pvbus is on this bus: start the services"):
        await look(bus, ["ingest"])
    await bus.close()


@pytest.mark.parametrize(
    ("reason", "changed", "trouble"),
    [
        ("all is done", {"lease": report()}, None),
        ("done long ago", {"lease": report(seconds_since_progress=9_999.0)}, None),
        ("nobody", {"owner": ""}, "no worker holds it"),
        ("nobody tells, nothing to do", {"lease": None}, None),
        ("nobody tells, something to do", {"lease": None, "lag": 3}, "3 records behind, and http://x"),
        ("behind, but at it", {"lease": report(dirty=3, seconds_since_progress=60.0), "lag": 3}, None),
        ("lags", {"lease": report(seconds_since_progress=61.0), "lag": 3}, "for 61 s, 3 records behind"),
        ("dirty", {"lease": report(seconds_since_progress=61.0, dirty=2)}, "2 keys dirty"),
        (
            "restore hangs",
            {"lease": report(seconds_since_progress=61.0, restored=False, restore=(5, 10))},
            "50% restored",
        ),
    ],
)  # fmt: skip
def test_what_check_complains_of(reason: str, changed: dict[str, Any], trouble: str | None) -> None:
    row = Row(service="render", partition=3, owner="http://x", lag=0, lease=report())
    found = msgspec.structs.replace(row, **changed).trouble()
    assert (found is None) == (trouble is None), reason
    if trouble is not None:
        assert found is not None
        assert found.startswith("render 3: ")
        assert trouble in found


def test_a_service_that_nobody_runs_is_one_sentence() -> None:
    """Where others hold some of its partitions, those that nobody holds are named."""
    row = Row(service="render", partition=0, owner="", lag=0, lease=None)
    held = msgspec.structs.replace(row, service="inject", owner="http://x", lease=report())
    rows = [
        row,
        msgspec.structs.replace(row, partition=1),
        held,
        msgspec.structs.replace(held, partition=1, owner="", lease=None),
    ]
    assert list(troubles_of(rows)) == [
        "render: no worker holds any of its 2 partitions: is it running?",
        "inject 1: no worker holds it",
    ]


def test_the_cells_of_a_row() -> None:
    """Numbers where there are some, ? where the owner does not tell, - where there is none."""
    row = Row(service="render", partition=3, owner="http://x", lag=8, lease=report(dirty=2))
    assert _cells(row) == ("render", "3", "http://x", "4", "8", "2", "1.5 s", "100%")
    untold = msgspec.structs.replace(row, lease=None)
    assert _cells(untold) == ("render", "3", "http://x", "?", "8", "?", "?", "?")
    unowned = msgspec.structs.replace(row, lease=None, owner="")
    assert _cells(unowned) == ("render", "3", "none", "-", "8", "-", "-", "-")


def test_json_has_rows_and_remarks() -> None:
    row = Row(service="render", partition=3, owner="", lag=8, lease=None)
    assert msgspec.to_builtins(LagTable([row], ["why"], ["a bug"])._asdict()) == {
        "rows": [{"service": "render", "partition": 3, "owner": "", "lag": 8, "lease": None}],
        "remarks": ["why"],
        "defects": ["a bug"],
    }


def of_service(name: str, *changes: dict[str, Any]) -> list[Row]:
    """Rows of a service, one for each change of what is idle."""
    row = Row(service=name, partition=0, owner="http://127.0.0.1:40001", lag=0, lease=report())
    return [msgspec.structs.replace(row, partition=number, **change) for number, change in enumerate(changes)]


LATE = report(seconds_since_progress=61.0)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([{}, {}], "render 2/2 1 0 0 idle 100%"),
        ([{"owner": "http://x"}, {}], "render 2/2 2 0 0 idle 100%"),
        ([{"lag": 3, "lease": LATE}, {"lag": 4}], "render 2/2 1 7 0 61.0 s 100%"),
        ([{"lease": report(dirty=2)}, {"lease": LATE}], "render 2/2 1 0 2 1.5 s 100%"),
        ([{"lease": report(restored=False, restore=(999, 1000))}, {}], "render 2/2 1 0 0 1.5 s 99%"),
        ([{"owner": "", "lease": None, "lag": 3}, {}], "render 1/2 1 3 0 idle 100%"),
        ([{"lease": None, "lag": 3}], "render 1/1 1 3 ? ? ?"),
        ([{"owner": "", "lease": None}], "render 0/1 0 0 - - -"),
    ],
)  # fmt: skip
def test_the_line_of_a_service(changes: list[dict[str, Any]], line: str) -> None:
    """Sums, and the partition with something to do that got on the longest ago."""
    assert " ".join(_summary("render", of_service("render", *changes))) == line


def test_it_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each service; each partition's, too, with names of owners that are longer than the room."""
    busy = report(epoch=12345, dirty=12345, seconds_since_progress=86_400.0)
    owner = "http://worker-of-a-long-name.in-some-namespace.example.dev:40001"
    changes = [{"owner": owner, "lag": 1234567, "lease": busy}] * 12
    rows = [row for name in SERVICES for row in of_service(name, *changes)]
    _show(LagTable(rows, [], []), output="text", partitions=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["SERVICE", *SERVICES]
    _show(LagTable(rows, [], []), output="text", partitions=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(SERVICES) + 1 + 1 + len(rows)
    assert max(map(len, lines)) <= 80
    assert all(line.split()[2].endswith(":40001") for line in lines[-len(rows) :])


async def test_a_decision_that_a_bug_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With its key; `--check` ends with 1 for it."""
    state = process("unroll", report(0))
    broken = msgspec.structs.replace(state.services["unroll"], defects={"default/web": "KeyError: 'a'"})
    async with opened() as bus, telling(ProcessState(services={"unroll": broken})) as url:
        await join(bus, "unroll", url)
        table = await look(bus, ["unroll", "render"])
    assert table.defects == [
        "unroll: default/web: the decision fails, which is a bug in pvbus: KeyError: 'a'"
    ]
    _show(table, output="text", partitions=False)
    assert table.defects[0] in capsys.readouterr().err
