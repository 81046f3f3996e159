"""`pvbus lag --subscribers`: the consumer groups of the public topics, whoever they belong to, and their lag.

It reads committed offsets only, so it knows of a program what that program commits. Nothing is changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import click
import msgspec

from pvbus.cli.output import columns, emit
from pvbus.cli.reading import NOTHING
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.records import LATEST
from pvbus.core.kernel.topics import SINK, TOPICS
from pvbus.ports.bus import Bus, GroupOffsets, TopicPartition

PUBLIC = tuple(topic.name for topic in TOPICS if topic.public)
SUMMARY = ("GROUP", "TOPIC", "PARTITIONS", "STATE", "LAG", "DELETED")
COLUMNS = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "END", "LAG", "DELETED")
NOBODY = "no group has committed offsets of the public topics"

Show = Callable[[list["Position"]], None]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a group in one partition, as `-o json` prints it.

    group: its name on the bus
    topic: the topic
    partition: the partition
    state: the state of the group, in a word of the bus
    offset: the next offset as committed, None if none ever was
    end: the end offset of the partition
    lag: the offsets from `offset` to the end that still exist
    deleted: the offsets before these that retention deleted before they were read
    """

    group: str
    topic: str
    partition: int
    state: str
    offset: int | None
    end: int
    lag: int
    deleted: int


def positions_of(
    groups: Mapping[str, GroupOffsets],
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Iterator[Position]:
    """Yield the positions of each group in all partitions of each topic of which it has committed some.

    The sink's offset of the latest events only says that they are sent.
    """
    for group, (state, committed) in sorted(groups.items()):
        topics = {topic for topic, _ in committed}
        if group.endswith(f"pvbus-{SINK}"):
            topics.discard(LATEST)
        for topic, number in sorted(tp for tp in ends if tp[0] in topics):
            begin, end = begins[topic, number], ends[topic, number]
            offset = committed.get((topic, number))
            yield Position(
                group=group,
                topic=topic,
                partition=number,
                state=state,
                offset=offset,
                end=end,
                lag=0 if offset is None else max(0, end - max(begin, offset)),
                deleted=0 if offset is None else max(0, min(begin, end) - offset),
            )


async def find_positions(bus: Bus) -> list[Position]:
    """Read where the groups are, then where the topics begin and end. Raises UsageError without topics."""
    specs = await bus.topics()
    if not set(PUBLIC) <= set(specs):
        raise UsageError(NOTHING)
    try:
        groups = await bus.readers_of(PUBLIC)
    except PermanentError as exc:
        if exc.reason != "UnknownTopic":
            raise
        raise UsageError(NOTHING) from exc
    partitions = [(topic, number) for topic in PUBLIC for number in range(specs[topic].partitions)]
    begins = await bus.begin_offsets(partitions)
    return list(positions_of(groups, begins, await bus.end_offsets(partitions)))


def show(positions: Sequence[Position], *, output: str, partitions: bool) -> None:
    if output != "text":
        emit(msgspec.to_builtins({"positions": positions}), output)
        return
    if not positions:
        click.echo(NOBODY, err=True)
        return
    groups = groupby(positions, key=lambda each: (each.group, each.topic))
    columns(SUMMARY, [_summary(group, topic, list(each)) for (group, topic), each in groups])
    if partitions:
        click.echo()
        columns(COLUMNS, _rows(positions), gap=2)


def _summary(group: str, topic: str, positions: Sequence[Position]) -> tuple[str, ...]:
    read = sum(each.offset is not None for each in positions)
    return (
        group,
        topic,
        f"{read}/{len(positions)}",
        positions[0].state,
        str(sum(each.lag for each in positions)),
        str(sum(each.deleted for each in positions)),
    )


def _rows(positions: Iterable[Position]) -> Iterator[tuple[str, ...]]:
    for each in positions:
        offset = "-" if each.offset is None else str(each.offset)
        numbers = (offset, str(each.end), str(each.lag), str(each.deleted))
        yield (each.group, each.topic, str(each.partition), *numbers)
