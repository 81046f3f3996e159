"""An installation is recorded once, and whoever differs is told what to do."""

import asyncio

import msgspec
import pytest

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.records import META, SCHEMA_VERSION, MetaRow
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import Lease, Output
from pvbus.runtime.process.installation import GROUP, KEY, ensure_installation, read_installation
from tests.kit.processes import run_simulated


async def record(bus: SqliteBus, value: bytes | None, partitions: int = 12) -> None:
    """Put a row there as another version of pvbus would have."""
    await bus.create_topics(topic_specs(partitions))
    written = asyncio.Event()

    async def assigned(lease: Lease) -> None:
        await bus.step(lease, [Output(META, 0, KEY.encode(), value)])
        written.set()

    async def revoked(lease: Lease) -> None:
        """Nothing is kept."""

    membership = await bus.join(GROUP, (META,), assigned=assigned, revoked=revoked)
    await written.wait()
    await membership.leave()


def test_the_first_start_is_remembered() -> None:
    """Partitions, version and an incarnation are written once; later starts get the same row."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        assert await read_installation(bus) is None
        row = await ensure_installation(bus, partitions=12)
        assert (row.partitions, row.schema_version) == (12, SCHEMA_VERSION)
        assert len(row.incarnation) == 16
        assert await ensure_installation(bus, partitions=12) == row
        await bus.close()

    run_simulated(main())


def test_two_first_starts_agree() -> None:
    """Workers that start at the same moment end up with one row."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        found = await asyncio.gather(*(ensure_installation(bus.peer(), partitions=12) for _ in range(3)))
        assert len({row.incarnation for row in found}) == 1
        await bus.close()

    run_simulated(main())


ROW = MetaRow(partitions=12, incarnation="0" * 16)


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        (
            msgspec.structs.replace(ROW, partitions=3),
            "PartitionsDiffer",
            "the pvbus release that created the installation",
        ),
        (msgspec.structs.replace(ROW, schema_version=SCHEMA_VERSION + 1), "NewerData", "or a newer one"),
        (
            msgspec.structs.replace(ROW, schema_version=SCHEMA_VERSION - 1),
            "OlderData",
            "mv :memory: :memory:.old",
        ),
    ],
)
def test_who_differs_is_refused(row: MetaRow, reason: str, words: str) -> None:
    """Another partition count or table version is refused, with what to do about it."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        await record(bus, encode_row(row), row.partitions)
        with pytest.raises(PermanentError, match=words) as caught:
            await ensure_installation(bus, partitions=12)
        assert caught.value.reason == reason
        await bus.close()

    run_simulated(main())


def test_a_record_with_a_cel_engine_is_accepted() -> None:
    """Older versions recorded an engine, too. Its name does not matter any more, whatever it is."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        await record(bus, (encode_row(ROW) or b"").replace(b"}", b',"engine":"gone"}'))
        assert await ensure_installation(bus, partitions=12) == ROW
        await bus.close()

    run_simulated(main())
