"""What the SQLite bus's memberships do beyond the contract."""

import asyncio
from typing import Any

import pytest

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import PermanentError
from pvbus.ports.bus import Lease, TopicSpec
from tests.kit.processes import run_simulated

TWO = TopicSpec(name="two", partitions=2, cleanup="compact")
THREE = TopicSpec(name="three", partitions=3, cleanup="compact")


async def ignore(lease: Lease) -> None:
    """A callback."""


async def open_bus() -> SqliteBus:
    bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
    await bus.create_topics([TWO, THREE])
    return bus


def test_a_failure_that_nobody_waits_for_is_reported() -> None:
    """An error of a callback reaches the loop's handler when the worker leaves, and only then."""

    async def main() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        bus = await open_bus()

        async def fail(lease: Lease) -> None:
            raise ValueError("restore failed")

        membership = await bus.join("group", ["two"], assigned=fail, revoked=ignore)
        await asyncio.sleep(1)
        assert membership.leases() == {}
        await bus.close()
        (context,) = reported
        assert isinstance(context["exception"], ExceptionGroup)
        assert context["exception"].subgroup(ValueError)

    run_simulated(main())


def test_heartbeats_tell_their_age() -> None:
    """The time of the last heartbeat follows the clock, and stands still once the worker has left."""

    async def main() -> None:
        bus = await open_bus()
        clock = SimulatedClock()
        membership = await bus.join("group", ["two"], assigned=ignore, revoked=ignore)
        for _ in range(5):
            await asyncio.sleep(3.3)
            assert 0 <= clock.monotonic() - membership.last_heartbeat() <= 1
        await membership.leave()
        left = membership.last_heartbeat()
        await asyncio.sleep(5)
        assert membership.last_heartbeat() == left
        await membership.wait_left()
        await bus.close()

    run_simulated(main())


def test_a_group_keeps_its_number_of_leases() -> None:
    """Topics with another partition count are refused: leases would mean something else."""

    async def main() -> None:
        bus = await open_bus()
        await bus.join("group", ["two"], assigned=ignore, revoked=ignore)
        with pytest.raises(PermanentError) as caught:
            await bus.join("group", ["three"], assigned=ignore, revoked=ignore)
        assert caught.value.reason == "PartitionsDiffer"
        await bus.close()

    run_simulated(main())


def test_the_same_world_runs_the_same_way_twice() -> None:
    """Member ids, epochs and who holds what depend on the calls only."""

    async def main() -> list[tuple[str, dict[int, Lease]]]:
        bus = await open_bus()
        members = [
            await bus.peer().join("group", ["three"], assigned=ignore, revoked=ignore) for _ in range(3)
        ]
        await asyncio.sleep(10)
        await members[0].leave()
        await asyncio.sleep(10)
        result = [(member.member_id, dict(member.leases())) for member in members]
        await bus.close()
        return result

    first = run_simulated(main())
    assert sorted(number for _, leases in first for number in leases) == [0, 1, 2]
    assert run_simulated(main()) == first
