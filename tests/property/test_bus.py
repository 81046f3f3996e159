"""The SQLite bus beside a simple model: any sequence of calls leaves both the same."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import FencedError, InvariantError, TooLargeError
from pvbus.ports.bus import Lease, Output, Reader, Record, TopicPartition, TopicSpec
from tests.kit.processes import ProcessLoop

PARTITIONS = 2
RECORD_BYTES_MAX = 100
TABLE = TopicSpec(name="table", partitions=PARTITIONS, cleanup="compact")
LOG = TopicSpec(name="log", partitions=PARTITIONS, cleanup="delete", retention_seconds=10**6)
ALL = [(spec.name, number) for spec in (TABLE, LOG) for number in range(PARTITIONS)]

partitions = st.integers(0, PARTITIONS - 1)
outputs = st.lists(
    st.builds(
        Output,
        st.sampled_from(["table", "log"]),
        partitions,
        st.sampled_from([b"a", b"b", b"c"]),
        st.none() | st.binary(max_size=3),
        st.just(()) | st.tuples(st.tuples(st.text(max_size=3), st.binary(max_size=3))),
    ),
    max_size=6,
)


async def nothing(lease: Lease) -> None:
    """A callback."""


class BusMachine(RuleBasedStateMachine):
    """Workers of one group, one at a time; the model is a list of written records per partition."""

    path: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=ProcessLoop)
        self.written: dict[TopicPartition, list[Output]] = {partition: [] for partition in ALL}
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.old_leases: list[Lease] = []

    @initialize()
    def start(self) -> None:
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.bus = await SqliteBus.open(self.path, clock=SimulatedClock(), record_bytes_max=RECORD_BYTES_MAX)
        await self.bus.create_topics([TABLE, LOG])
        self.reader: Reader = self.bus.reader(dict.fromkeys(ALL, 0))
        self.read: dict[TopicPartition, list[Record]] = {partition: [] for partition in ALL}
        await self._join()

    async def _join(self) -> None:
        self.membership = await self.bus.join("group", ["table"], assigned=nothing, revoked=nothing)
        await asyncio.sleep(2.5)  # two heartbeats: a killed worker's leases are taken at the first
        self.leases = dict(self.membership.leases())
        assert sorted(self.leases) == list(range(PARTITIONS))

    @rule(number=partitions, outputs=outputs, advance=st.none() | st.integers(0, 3))
    def step(self, number: int, outputs: list[Output], advance: int | None) -> None:
        offsets = None if advance is None else {"table": self.offsets[number] + advance}
        self.runner.run(self.bus.step(self.leases[number], outputs, offsets))
        for output in outputs:
            self.written[output.topic, output.partition].append(output)
        self.offsets[number] += advance or 0

    @rule(number=partitions, outputs=outputs)
    def step_too_large(self, number: int, outputs: list[Output]) -> None:
        large = Output("log", number, b"a", b"x" * RECORD_BYTES_MAX)
        self._fails(
            TooLargeError, self.leases[number], [*outputs, large], {"table": self.offsets[number] + 1}
        )

    @rule(number=partitions, outputs=outputs)
    def step_back(self, number: int, outputs: list[Output]) -> None:
        self._fails(InvariantError, self.leases[number], outputs, {"table": self.offsets[number] - 1})

    @precondition(lambda self: self.old_leases)
    @rule(data=st.data(), outputs=outputs)
    def step_fenced(self, data: st.DataObject, outputs: list[Output]) -> None:
        lease = data.draw(st.sampled_from(self.old_leases))
        self._fails(FencedError, lease, outputs, {"table": self.offsets[lease.partition] + 1})

    def _fails(
        self, error: type[Exception], lease: Lease, outputs: list[Output], offsets: dict[str, int]
    ) -> None:
        try:
            self.runner.run(self.bus.step(lease, outputs, offsets))
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    @rule()
    def hand_over(self) -> None:
        """This worker leaves and another one comes."""
        self.old_leases += self.leases.values()
        self.runner.run(self.membership.leave())
        self.runner.run(self._join())
        assert not set(self.old_leases) & set(self.leases.values())

    @precondition(lambda self: self.path != ":memory:")
    @rule()
    def crash(self) -> None:
        """The process is killed, and starts again."""
        self.old_leases += self.leases.values()
        self.runner.run(self.bus.abandon())
        self.runner.run(self._start())

    @rule(max_records=st.integers(1, 5))
    def poll(self, max_records: int) -> None:
        records = self.runner.run(self.reader.poll(timeout_seconds=0, max_records=max_records))
        assert len(records) <= max_records
        for record in records:
            self.read[record.topic, record.partition].append(record)

    @rule(number=partitions)
    def seek(self, number: int) -> None:
        self.reader.assign({("table", number): 0})
        self.read["table", number] = []

    @invariant()
    def offsets_are_the_models(self) -> None:
        for number, lease in self.leases.items():
            assert self.runner.run(self.bus.committed(lease, ["table"])) == {"table": self.offsets[number]}

    @invariant()
    def ends_count_what_was_written(self) -> None:
        ends = self.runner.run(self.bus.end_offsets(ALL))
        assert ends == {partition: len(outputs) for partition, outputs in self.written.items()}

    @invariant()
    def what_was_read_was_written_and_nothing_is_missing(self) -> None:
        for partition, records in self.read.items():
            written = self.written[partition]
            position = self.reader.position(partition)
            for record in records:
                assert (*record[:2], *record[3:6]) == tuple(written[record.offset])
            assert [r.offset for r in records] == sorted({r.offset for r in records})
            # What is gone was superseded; nobody misses the last record of a key.
            latest = {output.key: offset for offset, output in enumerate(written)}
            needed = (
                {o for o in latest.values() if o < position}
                if partition[0] == "table"
                else set(range(position))
            )
            assert needed <= {record.offset for record in records}

    def teardown(self) -> None:
        if hasattr(self, "bus"):
            self.runner.run(self.bus.close())
        self.runner.close()


class MemoryBusMachine(BusMachine):
    path = ":memory:"


class FileBusMachine(BusMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = str(Path(self.folder.name) / "bus.db")

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestMemoryBus = pytest.mark.slow(MemoryBusMachine.TestCase)
TestMemoryBus.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestFileBus = pytest.mark.slow(FileBusMachine.TestCase)
TestFileBus.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
