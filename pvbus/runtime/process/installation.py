"""`pvbus.meta`: what an installation was made with, written at its first start, compared at each.

Two workers that disagree about the partitions would put one key in two partitions; so a worker that
differs refuses to start.
"""

import asyncio
import secrets

import msgspec

from pvbus.core.codec import encode_row
from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.records import META, SCHEMA_VERSION, MetaRow
from pvbus.core.topics import topic_specs
from pvbus.ports.bus import Bus, Lease, Output

KEY = "installation"
GROUP = "pvbus-installation"

_row = msgspec.json.Decoder(MetaRow)


async def read_installation(bus: Bus) -> MetaRow | None:
    """Return what is recorded, None on a bus that nobody has used yet."""
    if META not in await bus.topics():
        return None
    end = (await bus.end_offsets([(META, 0)]))[META, 0]
    reader = bus.reader({(META, 0): 0})
    found = None
    try:
        while reader.position((META, 0)) < end:
            for record in await reader.poll(timeout_seconds=1.0):
                if record.key.decode() == KEY and record.value is not None:
                    found = _row.decode(record.value)
    finally:
        await reader.close()
    return found


async def ensure_installation(bus: Bus, *, partitions: int) -> MetaRow:
    """Record this installation, or compare with what is recorded. Creates the topics.

    Raises PermanentError that says what differs and what to do.
    """
    present = await read_installation(bus)
    if present is None:
        wanted = MetaRow(partitions=partitions, incarnation=secrets.token_hex(8))
        await bus.create_topics(topic_specs(partitions))
        present = await _record(bus, wanted)
    _check(present, partitions, bus.how_to_empty())
    await check_completeness(bus, partitions)
    await bus.create_topics(topic_specs(partitions))
    return present


async def _record(bus: Bus, wanted: MetaRow) -> MetaRow:
    """Write the row unless somebody else was faster; the group of one lease makes sure of one writer."""
    done: asyncio.Future[MetaRow] = asyncio.get_running_loop().create_future()

    async def assigned(lease: Lease) -> None:
        row = await read_installation(bus)
        if row is None:
            row = wanted
            await bus.step(lease, [Output(META, 0, KEY.encode(), encode_row(row))])
        if not done.done():
            done.set_result(row)

    async def revoked(lease: Lease) -> None:
        """Nothing is kept for the lease."""

    membership = await bus.join(GROUP, (META,), assigned=assigned, revoked=revoked)
    left = asyncio.create_task(membership.wait_left())
    left.add_done_callback(lambda task: _pass_on(task, done))
    try:
        return await done
    finally:
        left.cancel()
        await membership.leave()


def _pass_on(left: "asyncio.Task[None]", done: "asyncio.Future[MetaRow]") -> None:
    """A membership that ended before the row was written is the end of the wait, too."""
    if done.done() or left.cancelled():
        return
    done.set_exception(left.exception() or TransientError("the bus was closed"))


def _check(row: MetaRow, partitions: int, how_to_empty: str) -> None:
    if row.schema_version > SCHEMA_VERSION:
        raise PermanentError(
            f"the bus holds tables of version {row.schema_version}, and this pvbus knows version "
            f"{SCHEMA_VERSION}: run the pvbus that wrote them, or a newer one",
            reason="NewerData",
        )
    if row.schema_version < SCHEMA_VERSION:
        raise PermanentError(
            f"the bus holds tables of version {row.schema_version}, and this pvbus writes version "
            f"{SCHEMA_VERSION}. The tables are made from the API server: {_anew(how_to_empty)}",
            reason="OlderData",
        )
    if row.partitions != partitions:
        raise PermanentError(
            f"this installation has {row.partitions} partitions, this worker wants {partitions}: start all "
            "workers with the release of pvbus that the installation was made with; or change the number: "
            f"{_anew(how_to_empty)}",
            reason="PartitionsDiffer",
        )


async def check_completeness(bus: Bus, partitions: int) -> None:
    """Refuse to make a lost topic anew: its rows are only written where another table does not remember them.

    Caller: whoever is about to make topics of an installation that is recorded. Raises PermanentError.
    An installation has all topics before it is recorded, and a pvbus with other ones has another version.
    """
    lost = [state.name for state in await bus.check_topics(topic_specs(partitions)) if not state.is_there]
    if lost:
        raise PermanentError(
            f"the bus has lost {', '.join(lost)}. Other tables remember what was written there, and "
            f"all are made from the API server: {_anew(bus.how_to_empty())}",
            reason="TopicsLost",
        )


def _anew(how_to_empty: str) -> str:
    return f"stop all services, {how_to_empty}, and start again"
