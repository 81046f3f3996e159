"""Virtual time passes only while everybody waits, and always in the same way."""

import asyncio
import time

import pytest

from pvbus.adapters.memory.virtual_time import EPOCH, SimulatedClock
from tests.kit.clocks import FreezableClock, ProcessClock
from tests.kit.processes import Process, outside, run_simulated


def test_a_day_passes_at_once() -> None:
    async def main() -> tuple[float, float, float]:
        clock = SimulatedClock()
        before = clock.monotonic()
        await clock.sleep(86_400)
        return clock.now(), clock.monotonic() - before, asyncio.get_running_loop().time()

    began = time.monotonic()
    now, elapsed, loop_time = run_simulated(main())
    assert time.monotonic() - began < 1
    assert now == pytest.approx(EPOCH + 86_400)
    assert elapsed == loop_time == pytest.approx(86_400)


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float, naps: int) -> None:
            for _ in range(naps):
                await asyncio.sleep(seconds)
                woken.append((name, round(asyncio.get_running_loop().time(), 3)))

        await asyncio.gather(sleeper("a", 3, 2), sleeper("b", 2, 2), sleeper("c", 0.5, 1))
        return woken

    first = run_simulated(main())
    assert first == [("c", 0.5), ("b", 2), ("a", 3), ("b", 4), ("a", 6)]
    assert run_simulated(main()) == first


def test_time_stands_still_while_there_is_work() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_simulated(main()) == 0


def test_timeouts_are_virtual() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        assert asyncio.get_running_loop().time() == pytest.approx(3600)

    run_simulated(main())


def test_waiting_for_what_cannot_come_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits"):
        run_simulated(main())


def test_threads_are_not_needed() -> None:
    async def main() -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(pow, 2, 10)

    assert run_simulated(main()) == 1024


def test_sockets_work_in_virtual_time() -> None:
    async def main() -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60)
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            answer = await reader.read()
            writer.close()
            return answer

    assert run_simulated(main()) == b"hello\n"


def test_an_error_tells_its_time() -> None:
    async def main() -> None:
        await asyncio.sleep(7)
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as caught:
        run_simulated(main(), context={"seed": 3})
    assert caught.value.__notes__ == ["at virtual second 7.000", "with {'seed': 3}"]


def test_a_frozen_clock_holds_its_sleepers_only() -> None:
    async def main() -> list[float]:
        frozen, other = FreezableClock(), FreezableClock()
        frozen.freeze()
        times: list[float] = []

        async def sleep(clock: FreezableClock) -> None:
            await clock.sleep(1)
            times.append(clock.monotonic())

        async with asyncio.TaskGroup() as group:
            group.create_task(sleep(frozen))
            group.create_task(sleep(other))
            await asyncio.sleep(10)
            frozen.thaw()
        return times

    assert run_simulated(main()) == pytest.approx([1, 10])


async def _ticks(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        seen.append(round(asyncio.get_running_loop().time(), 3))


@pytest.mark.parametrize("waits", ["timer", "turn", "queue", "answer"])
def test_no_await_of_a_frozen_process_returns(waits: str) -> None:
    """Whatever it waits for: its own timers, its next turn, what others send, the answer of a server."""

    async def main() -> tuple[int, int, int]:
        process, steps, queue = Process("worker"), [0], asyncio.Queue[int]()

        async def work() -> None:
            while True:
                match waits:
                    case "timer":
                        await asyncio.sleep(0.5)
                    case "turn":
                        for _ in range(1000):
                            await asyncio.sleep(0)
                        await asyncio.sleep(0.1)
                    case "queue":
                        await queue.get()
                    case "answer":
                        await asyncio.shield(outside(asyncio.sleep(0.5)))
                steps[0] += 1

        async def feed() -> None:
            while True:
                queue.put_nowait(1)
                await asyncio.sleep(0.5)

        with process.entered():
            working = asyncio.create_task(work())
        feeding = asyncio.create_task(feed())
        await asyncio.sleep(5.05)
        process.freeze()
        before = steps[0]
        await asyncio.sleep(60)
        during = steps[0]
        process.thaw()
        await asyncio.sleep(5)
        after = steps[0]
        working.cancel()
        feeding.cancel()
        return before, during, after

    before, during, after = run_simulated(main())
    assert before == during > 5
    assert after > during + 5


def test_what_a_process_starts_is_frozen_with_it_and_nothing_else_is() -> None:
    async def main() -> tuple[list[float], list[float], list[float]]:
        process = Process("worker")
        own: list[float] = []
        other: list[float] = []
        server: list[float] = []

        async def start() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_ticks(own))
                await asyncio.shield(outside(_ticks(server)))

        with process.entered():
            tasks = [asyncio.create_task(start())]
        tasks.append(asyncio.create_task(_ticks(other)))
        await asyncio.sleep(2.5)
        process.freeze()
        await asyncio.sleep(3)
        process.thaw()
        await asyncio.sleep(2)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return own, other, server

    own, other, server = run_simulated(main())
    assert own == [1, 2, 5.5, 6.5, 7.5]
    assert other == server == [1, 2, 3, 4, 5, 6, 7]


def test_a_process_that_freezes_itself_does_not_finish_its_turn_of_the_loop() -> None:
    """Callbacks that were ready already wait, too, and run once and in order when it thaws."""

    async def main() -> list[int]:
        process, seen = Process("worker"), list[int]()
        with process.entered():
            for number in range(3):
                asyncio.get_running_loop().call_soon(seen.append, number)
                asyncio.get_running_loop().call_soon(process.freeze)
        await asyncio.sleep(10)
        assert seen == [0]
        process.thaw()
        await asyncio.sleep(10)
        assert seen == [0, 1]
        process.kill()
        await asyncio.sleep(10)
        return seen

    assert run_simulated(main()) == [0, 1, 2]


def test_frozen_time_is_counted_and_only_the_wall_clock_jumps() -> None:
    async def main() -> None:
        process, clock = Process("worker"), ProcessClock()
        process.freeze()
        await asyncio.sleep(7)
        assert process.frozen_seconds == pytest.approx(7)
        process.thaw()
        await asyncio.sleep(7)
        assert process.frozen_seconds == pytest.approx(7)
        before = clock.monotonic()
        clock.skew = -3600.0
        assert clock.now() == pytest.approx(EPOCH + 14 - 3600)
        assert clock.monotonic() == before

    run_simulated(main())
