"""The judge of the kill test is no rubber stamp: each broken promise in a bus's file is named."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.api.variants import Condition, Downstream
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import CONDITIONS, LATEST, TARGETS, UNROLL, ChildRow, ChildState, TargetRow
from pvbus.core.kernel.topics import partition_key, topic_specs
from pvbus.ports.bus import Lease, Output
from tests.tools.busfile import Snapshot

PARTITIONS = 12


def output(topic: str, key: str, row: ChildRow | TargetRow | ConditionEvent) -> Output:
    return Output(
        topic, partition(partition_key(topic, key), PARTITIONS), key.encode(), encode_row(row) or b""
    )


def event(status: str, previous: str, id_: str, generation: int) -> ConditionEvent:
    condition = Condition(type="Ready", status=status, reason="R", observed_generation=generation)
    return ConditionEvent(
        kind="PackageVariant",
        namespace="default",
        name="v",
        uid="u",
        condition=condition,
        previous=previous,
        id=id_,
    )


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A file with one child and two events, as unroll and conditions write them."""
    path = tmp_path / "bus.db"
    bus = await SqliteBus.open(path, clock=SystemClock())
    await bus.create_topics(topic_specs(PARTITIONS))
    leases: list[Lease] = []

    async def assigned(lease: Lease) -> None:
        leases.append(lease)

    async def revoked(lease: Lease) -> None:
        return

    membership = await bus.join("judge", (UNROLL,), assigned=assigned, revoked=revoked)
    downstream = Downstream(repo="r", package="p")
    last = event("True", "False", "2", 2)
    rows = [
        output(
            UNROLL,
            "default/s|v",
            ChildRow(set_uid="u", state=ChildState.PRESENT, downstream=downstream, digest="d"),
        ),
        output(TARGETS, "default/v|s", TargetRow(state="present", set_name="s", set_uid="u", digest="d")),
        output(CONDITIONS, "PackageVariant|default/v", event("False", "", "1", 1)),
        output(CONDITIONS, "PackageVariant|default/v", last),
        output(LATEST, "PackageVariant|default/v|Ready", last),
    ]
    while not leases:
        await SystemClock().sleep(0.01)
    await bus.step(leases[0], rows, {UNROLL: 0})
    await membership.leave()
    await bus.close()
    return path


def test_a_sound_file_has_no_problems(file: Path) -> None:
    snapshot = Snapshot.of(file)
    assert snapshot.problems() == []
    assert list(snapshot.problems_since(snapshot)) == []
    assert len(snapshot.rows) == 5


def sql(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def run(db: sqlite3.Connection) -> None:
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement

    return run


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (sql("DELETE FROM log WHERE key = CAST('default/v|s' AS BLOB)"), "but render was told None"),
        (sql("DELETE FROM log WHERE key = CAST('default/s|v' AS BLOB)"), "has no child"),
        (
            sql(
                "UPDATE log SET value = replace(value, '\"d\"', '\"e\"') "
                "WHERE key = CAST('default/v|s' AS BLOB)"
            ),
            "but render was told e",
        ),
        (sql('UPDATE log SET value = replace(value, \'"id":"2"\', \'"id":"1"\')'), "occurs 2 times"),
        (
            sql('DELETE FROM log WHERE CAST(value AS TEXT) LIKE \'%"id":"1"%\''),
            "follows '', but says 'False'",
        ),
        (
            sql("UPDATE log SET value = replace(value, 'observedGeneration\":2', 'observedGeneration\":0')"),
            "observed generation 0 after 1",
        ),
        (
            sql("DELETE FROM log WHERE key = CAST('PackageVariant|default/v' AS BLOB)"),
            "the last event is None",
        ),
        (sql("UPDATE offsets SET next = 7"), "which ends at"),
        (sql("UPDATE lanes SET next = 0 WHERE next > 0"), "beyond the end"),
    ],
)
def test_a_broken_promise_is_named(
    file: Path, damage: Callable[[sqlite3.Connection], None], said: str
) -> None:
    with closing(sqlite3.connect(file)) as db:
        damage(db)
        db.commit()
    assert said in "\n".join(Snapshot.of(file).problems())


@pytest.mark.parametrize(
    "table", ["lanes SET next = next - 1 WHERE next > 1", "leases SET epoch = epoch - 1"]
)
def test_what_was_committed_and_is_taken_back_is_named(file: Path, table: str) -> None:
    before = Snapshot.of(file)
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"UPDATE {table}")
        db.commit()
    assert " went from " in "\n".join(Snapshot.of(file).problems_since(before))
