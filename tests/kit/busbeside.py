"""What happens to a bus on SQLite beside the code under test: other programs, lost sessions, retention.

Tests say here what happens, and do not reach into the bus: this module alone knows what its file has.
"""

from collections.abc import Callable, Iterable

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.membership import GroupRows
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Output, Record

RECORDS_MAX = 1_000_000


async def write_beside(bus: SqliteBus, *outputs: Output) -> None:
    """Write records as another program does, past any lease."""
    await bus._store.write(lambda: bus._store.append(outputs, 0))


async def hold_for_a_moment(
    bus: SqliteBus, group: str, numbers: Iterable[int], outputs: Iterable[Output] = ()
) -> None:
    """Be another worker of a group, which holds these free leases, writes something and goes."""
    await bus._store.write(lambda: _hold(bus, group, numbers, outputs))


def _hold(bus: SqliteBus, group: str, numbers: Iterable[int], outputs: Iterable[Output]) -> None:
    rows = GroupRows(bus._store, group)
    member = rows.add_member("", "")
    for number in numbers:
        rows.set_owner(number, member)
    bus._store.append(list(outputs), 0)
    rows.remove_member(member)


async def end_sessions(bus: SqliteBus, group: str, between: Iterable[int] = ()) -> None:
    """Let a group believe that its workers are dead; they find out at their next heartbeat.

    between: the leases that another worker holds for a moment at once
    """

    def end() -> None:
        rows = GroupRows(bus._store, group)
        for number, *_ in rows.members():
            rows.remove_member(number)
        _hold(bus, group, between, ())

    await bus._store.write(end)


async def delete_records(bus: SqliteBus, *keys: bytes) -> None:
    """Delete the records of these keys, as retention does: nobody gets a tombstone."""
    for key in keys:
        await _delete(bus, "key = ?", key)


async def delete_tombstones(bus: SqliteBus) -> None:
    """Delete all tombstones, as compaction does after a day."""
    await _delete(bus, "value IS NULL")


async def delete_all_records(bus: SqliteBus) -> None:
    """Delete the records of all topics, as retention does."""
    await _delete(bus, "TRUE")


async def _delete(bus: SqliteBus, where: str, *parameters: object) -> None:
    store = bus._store
    await store.write(lambda: store.db.execute(f"DELETE FROM log WHERE {where}", parameters))
    store._tail.clear()


def cut_off(bus: SqliteBus) -> Callable[[], None]:
    """Let a bus be out of reach of its readers; return how to mend it."""
    refresh = bus._store.refresh

    def fail() -> None:
        raise TransientError("the bus is away")

    def mend() -> None:
        bus._store.refresh = refresh  # type: ignore[method-assign]  # the bus has no switch for this

    bus._store.refresh = fail  # type: ignore[method-assign]  # as above
    return mend


def records_of(bus: SqliteBus, topic: str, partitions: int) -> list[Record]:
    """Return all records of a topic that are still there, partition by partition."""
    store, records = bus._store, []
    for number in range(partitions):
        lane = store.lane(topic, number)
        records += store.read(topic, number, lane, 0, store.ends[lane], RECORDS_MAX)
    return records


def committed_of(bus: SqliteBus, group: str, number: int, topic: str) -> int:
    """Return the offset that a group has committed of a partition, 0 for none."""
    _, offsets = bus._store.committed(group, number)
    return offsets.get(topic, 0)


def topics_of(bus: SqliteBus) -> list[str]:
    """Return the topics of the file, with the bus's own."""
    return list(bus._store.topics)
