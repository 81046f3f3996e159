"""What `pvbus lag --subscribers` makes of committed offsets."""

import asyncio
from pathlib import Path

import pytest

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.subscribers import NOBODY, Position, find_positions, positions_of, show
from pvbus.core.errors import UsageError
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import GroupOffsets, Lease, Output
from tests.e2e.cli.command import pvbus

BEGINS = {(CONDITIONS, 0): 10, (CONDITIONS, 1): 0, (LATEST, 0): 0, (LATEST, 1): 0}
ENDS = {(CONDITIONS, 0): 30, (CONDITIONS, 1): 5, (LATEST, 0): 7, (LATEST, 1): 7}


@pytest.mark.parametrize(
    ("reason", "offset", "lag", "deleted"),
    [
        ("at the end", 30, 0, 0),
        ("behind", 25, 5, 0),
        ("at the oldest record", 10, 20, 0),
        ("before it: what was deleted does not count twice", 4, 20, 6),
        ("beyond the end, as of a topic that was made again", 99, 0, 0),
    ],
)
def test_lag_is_what_can_still_be_read(reason: str, offset: int, lag: int, deleted: int) -> None:
    groups = {"team": GroupOffsets("Stable", {(CONDITIONS, 0): offset})}
    first, second = positions_of(groups, BEGINS, ENDS)
    assert (first.lag, first.deleted, first.end) == (lag, deleted, 30), reason
    assert (second.partition, second.offset, second.lag) == (1, None, 0)


def test_the_sinks_offset_of_the_latest_events_is_no_lag() -> None:
    """It only says that they are sent; that of another group counts."""
    committed = {(CONDITIONS, 0): 30, (LATEST, 0): 1}
    groups = {name: GroupOffsets("Stable", committed) for name in ("blue.pvbus-sink", "team")}
    found = [(each.group, each.topic) for each in positions_of(groups, BEGINS, ENDS) if each.lag]
    assert found == [("team", LATEST)]


def test_a_line_for_each_group_and_topic(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {"team": GroupOffsets("Empty", {(CONDITIONS, 0): 4, (LATEST, 0): 7, (LATEST, 1): 5})}
    show(list(positions_of(groups, BEGINS, ENDS)), output="text", partitions=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1:3] == [
        ["team", CONDITIONS, "1/2", "Empty", "20", "6"],
        ["team", LATEST, "2/2", "Empty", "2", "0"],
    ]
    assert ["team", CONDITIONS, "1", "-", "5", "0", "0"] in lines


@pytest.mark.slow
async def test_the_groups_of_a_bus_in_a_file_are_found(tmp_path: Path) -> None:
    """Those that have read a public topic, and no others; without topics the message says what to do."""
    bus = await SqliteBus.open(str(tmp_path / "bus.db"))
    with pytest.raises(UsageError, match="nothing of pvbus is on this bus"):
        await find_positions(bus)
    await bus.create_topics(topic_specs(1))
    given: list[Lease] = []

    async def assigned(lease: Lease) -> None:
        given.append(lease)

    async def revoked(lease: Lease) -> None:
        """Nothing is left to do."""

    memberships = [
        await bus.join(group, (CONDITIONS,), assigned=assigned, revoked=revoked)
        for group in ("pvbus-sink", "pvbus-other")
    ]
    async with asyncio.timeout(30.0):
        while len(given) < 2:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    lease = next(each for each in given if each.group == "pvbus-sink")
    outputs = [Output(CONDITIONS, 0, b"key", b"{}") for _ in range(3)]
    await bus.step(lease, outputs, {CONDITIONS: 1})
    wanted = Position(
        group="pvbus-sink", topic=CONDITIONS, partition=0, state="Stable", offset=1, end=3, lag=2, deleted=0
    )
    assert await find_positions(bus) == [wanted]
    for membership in memberships:
        await membership.leave()
    await bus.close()
    shown = pvbus("lag", "--subscribers", "--bus", f"sqlite:{tmp_path / 'bus.db'}", cwd=tmp_path)
    assert shown.out.splitlines()[1].split() == ["pvbus-sink", CONDITIONS, "1/1", "Empty", "2", "0"]


def test_nobody_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show([], output="text", partitions=False)
    assert capsys.readouterr().err == f"{NOBODY}\n"


@pytest.mark.slow
def test_it_is_not_about_services(tmp_path: Path) -> None:
    refused = pvbus("lag", "sink", "--subscribers", cwd=tmp_path)
    assert refused.code == 2
    assert "give it no SERVICE and no --check" in refused.err
