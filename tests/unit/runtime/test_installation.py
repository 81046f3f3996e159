"""An installation is recorded once, and whoever differs is told what to do."""

import asyncio

import msgspec
import pytest

from pvbus.adapters.memory.virtual_time import SimulatedClock, run_simulated
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.codec import encode_row
from pvbus.core.errors import PermanentError
from pvbus.core.records import META, SCHEMA_VERSION, MetaRow
from pvbus.core.topics import topic_specs
from pvbus.ports.bus import Claim, Output
from pvbus.runtime.process.installation import GROUP, KEY, ensure_installation, read_installation


async def record(bus: SqliteBus, row: MetaRow) -> None:
    """Put a row there as another version of pvbus would have."""
    await bus.create_topics(topic_specs(row.partitions))
    written = asyncio.Event()

    async def assigned(claim: Claim) -> None:
        await bus.step(claim, [Output(META, 0, KEY.encode(), encode_row(row))])
        written.set()

    async def revoked(claim: Claim) -> None:
        """Nothing is kept."""

    membership = await bus.join(GROUP, (META,), assigned=assigned, revoked=revoked)
    await written.wait()
    await membership.leave()


def test_the_first_start_is_remembered() -> None:
    """Partitions, engine, version and an incarnation are written once; later starts get the same row."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        assert await read_installation(bus) is None
        row, engine = await ensure_installation(bus, partitions=12, engine="cel-python")
        assert (row.partitions, row.engine, row.schema_version) == (12, "cel-python", SCHEMA_VERSION)
        assert engine.name == "cel-python"
        assert len(row.incarnation) == 16
        again, same = await ensure_installation(bus, partitions=12)
        assert (again, same.name) == (row, "cel-python")
        await bus.close()

    run_simulated(main())


def test_two_first_starts_agree() -> None:
    """Workers that start at the same moment end up with one row."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        found = await asyncio.gather(*(ensure_installation(bus.peer(), partitions=12) for _ in range(3)))
        assert len({row.incarnation for row, _ in found}) == 1
        await bus.close()

    run_simulated(main())


ROW = MetaRow(partitions=12, incarnation="0" * 16, engine="cel-python")


@pytest.mark.parametrize(
    ("row", "engine", "reason", "words"),
    [
        (ROW, "cel-cpp", "EngineDiffers", "PVBUS_ENGINE"),
        (msgspec.structs.replace(ROW, engine="gone"), "", "EngineMissing", "Install it"),
        (
            msgspec.structs.replace(ROW, partitions=3),
            "",
            "PartitionsDiffer",
            "the release of pvbus that the installation was made with",
        ),
        (msgspec.structs.replace(ROW, schema_version=SCHEMA_VERSION + 1), "", "NewerData", "or a newer one"),
        (
            msgspec.structs.replace(ROW, schema_version=SCHEMA_VERSION - 1),
            "",
            "OlderData",
            "mv :memory: :memory:.old",
        ),
    ],
)
def test_who_differs_is_refused(row: MetaRow, engine: str, reason: str, words: str) -> None:
    """Another engine, partition count or table version is refused, with what to do about it."""

    async def main() -> None:
        bus = await SqliteBus.open(":memory:", clock=SimulatedClock())
        await record(bus, row)
        with pytest.raises(PermanentError, match=words) as caught:
            await ensure_installation(bus, partitions=12, engine=engine)
        assert caught.value.reason == reason
        await bus.close()

    run_simulated(main())
