"""`pvbus run sink` as a process: a bus in a file, and a receiver that takes, refuses and fails."""

import asyncio
import json
import random
import re
import signal
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

from pvbus.adapters.sqlite.bus import SqliteBus
from tests.e2e.cli.command import Running, pvbus, running
from tests.tools.events import WebhookReceiver, first_times, receiving, until, writer


def sink(folder: Path, url: str, **settings: str) -> Any:
    return running(
        "run", "sink", "--bus", f"sqlite:{folder}/bus.db", cwd=folder, PVBUS_SINK_URL=url, **settings
    )


async def started(process: Running) -> str:
    """Wait for the health address."""
    await until(lambda: "started" in process.output, lambda: process.output)
    found = re.search(r"http://127\.0\.0\.1:\d+", process.output)
    assert found is not None, process.output
    return found[0]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def letters(folder: Path) -> list[dict[str, Any]]:
    done = pvbus("topics", "pvbus.dlq", "--bus", f"sqlite:{folder}/bus.db", "-o", "json", cwd=folder)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


async def received(receiver: WebhookReceiver, more: int, publishing: "asyncio.Task[None]") -> None:
    """Wait for so many more requests, or the end of the publishing."""
    goal = len(receiver.got) + more
    await until(lambda: len(receiver.got) >= goal or publishing.done(), lambda: receiver.got[-3:])


async def test_kills_repeat_events_and_lose_none(tmp_path: Path) -> None:
    """The sink is killed again and again beside a receiver that fails at random: each key's events arrive in
    their order, and what comes twice has the same id."""
    fate = random.Random(3)
    bus = await SqliteBus.open(tmp_path / "bus.db")
    async with writer(bus) as events, receiving() as receiver:
        receiver.delay_seconds = 0.002

        failures: Counter[str] = Counter()

        def answer(id_: str, data: dict[str, Any]) -> web.Response:
            status = fate.choice((200, 202, 204, 200, 503, 500, 429))
            failures[id_] += status >= 400
            # more of one event would be a dead letter, or a wait of half a minute
            return web.Response(status=status if failures[id_] < 4 else 200)

        receiver.answer = answer
        total = 0

        async def publish() -> None:
            nonlocal total
            for number in range(240):
                await events.change(f"web-{number % 25}", str(number))
                total += 1
                await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(publish())
            while not publishing.done():
                with sink(tmp_path, receiver.url, PVBUS_SINK_RETRY_SECONDS="0.5") as process:
                    await received(receiver, 60, publishing)
                    process.end(signal.SIGKILL)
        with sink(tmp_path, receiver.url, PVBUS_SINK_RETRY_SECONDS="0.5") as process:

            def are_all_there() -> bool:
                got = receiver.accepted()
                return all(key in got and got[key][-1] == ids[-1] for key, ids in events.ids.items())

            await until(are_all_there, lambda: process.output)
            assert process.end() == 0
        for key, ids in events.ids.items():
            known = [each for each in first_times(receiver.accepted()[key]) if each in ids]
            first = ids.index(known[0])  # the first start has the last event of each condition
            assert known == ids[first:], key
        assert {key: set(ids) - set(events.ids[key]) for key, ids in receiver.accepted().items()} == {
            key: set() for key in events.ids
        }
        assert receiver.overlaps == []
    await bus.close()
    assert letters(tmp_path) == []


async def test_a_poison_event_becomes_a_dead_letter(tmp_path: Path) -> None:
    """One that is refused goes at once, one that fails while others succeed after its attempts; the events of
    the same object behind it arrive."""
    bus = await SqliteBus.open(tmp_path / "bus.db")
    async with writer(bus) as events, receiving() as receiver:

        def answer(id_: str, data: dict[str, Any]) -> web.Response:
            status = {"refused": 422, "crashing": 500}.get(data["condition"]["message"], 200)
            return web.Response(status=status, text="no such tenant")

        receiver.answer = answer
        settings = {"PVBUS_SINK_ATTEMPTS": "2", "PVBUS_SINK_RETRY_SECONDS": "0.5"}
        with sink(tmp_path, receiver.url, PVBUS_SINK_START="oldest", **settings) as process:
            refused = await events.change("one", "refused")
            crashing = await events.change("two", "crashing")
            ends = [await events.change("one", "good"), await events.change("two", "good")]
            sent = 0

            def have_all_come() -> bool:
                return {each for ids in receiver.accepted().values() for each in ids} >= set(ends)

            while not have_all_come():
                await events.change("other", str(sent))  # evidence that the receiver works
                sent += 1
                assert sent < 600, process.output
                await asyncio.sleep(0.1)
            assert process.end() == 0
        found = letters(tmp_path)
        assert sorted(each["key"] for each in found) == [
            "PackageVariant|default/one",
            "PackageVariant|default/two",
        ]
        errors = {each["key"][-3:]: each["value"]["error"] for each in found}
        assert errors["one"] == "sink: the receiver answers 422: no such tenant"
        assert "failed 2 times while others were accepted" in errors["two"]
        assert sum(each.id == refused for each in receiver.got) == 1
        assert sum(each.id == crashing for each in receiver.got) >= 2
    await bus.close()


async def test_a_receiver_that_is_down_holds_the_position(tmp_path: Path) -> None:
    """Nothing becomes a dead letter; /readyz and /metrics say so; and it goes on by itself."""
    bus = await SqliteBus.open(tmp_path / "bus.db")
    async with writer(bus) as events:
        async with receiving() as receiver:
            url = receiver.url
        settings = {"PVBUS_SINK_ATTEMPTS": "1", "PVBUS_SINK_RETRY_SECONDS": "0.5"}
        with sink(tmp_path, url, PVBUS_SINK_START="oldest", **settings) as process:
            health = await started(process)
            for number in range(20):
                await events.change(f"web-{number}", "waits")

            def is_seen() -> bool:
                code, text = get(f"{health}/readyz")
                return code == 503 and "20 events read and not sent" in text and "cannot connect" in text

            await until(is_seen, lambda: (get(f"{health}/readyz"), process.output))
            shown = get(f"{health}/metrics")[1]
            assert "pvbus_sink_unsent_records 20.0" in shown
            assert 'pvbus_sink_events_total{outcome="dead_lettered"} 0.0' in shown
            assert float(re.findall(r"(?m)^pvbus_sink_oldest_unsent_seconds (\S+)", shown)[0]) > 0
            async with receiving(int(url.split(":")[2].split("/")[0])) as receiver:
                await until(lambda: len(receiver.accepted()) == 20, lambda: process.output)
                await until(lambda: get(f"{health}/readyz")[0] == 200, lambda: get(f"{health}/readyz"))
                assert "pvbus_sink_unsent_records 0.0" in get(f"{health}/metrics")[1]
            assert process.end() == 0
    await bus.close()
    assert letters(tmp_path) == []


def test_wrong_usage_has_its_message(tmp_path: Path) -> None:
    """All problems at once, before anything is opened; and what the sink has no use for."""
    (tmp_path / "empty").write_text("")
    run = ("run", "sink", "--bus", f"sqlite:{tmp_path}/bus.db")
    done = pvbus(*run, cwd=tmp_path, PVBUS_SINK_TOKEN_FILE="empty", PVBUS_SINK_CA_FILE="missing.pem")
    assert done.code == 2
    assert "PVBUS_SINK_URL is not set" in done.err
    assert "empty must have one token" in done.err
    assert "cannot read missing.pem: No such file" in done.err
    nothing = pvbus(*run, cwd=tmp_path, PVBUS_SINK_URL="http://127.0.0.1:9/")
    assert nothing.code == 2
    assert "no bus at" in nothing.err
    assert "runs alone" in pvbus("run", "sink", "render", cwd=tmp_path).err
    assert "omit --kubeconfig" in pvbus(*run, "--kubeconfig", "x", cwd=tmp_path).err
