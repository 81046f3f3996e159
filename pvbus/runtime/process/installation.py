"""`pvbus.meta`: the settings of an installation, written at its first start, compared at each start.

Two workers that disagree about the partition count would put one key in two partitions; so a worker
with another count refuses to start.
"""

import asyncio
import secrets

import msgspec

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.records import META, SCHEMA_VERSION, MetaRow
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import Bus, Lease, Output

KEY = "installation"
GROUP = "pvbus-installation"

_row = msgspec.json.Decoder(MetaRow)


async def read_installation(bus: Bus) -> MetaRow | None:
    """Return the recorded installation, None on an unused bus."""
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
    """Record this installation, or compare with the recorded one. Creates the topics.

    Raises PermanentError that names the difference and what to do.
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
    """Write the row unless another worker was faster; the group's single lease ensures one writer."""
    done: asyncio.Future[MetaRow] = asyncio.get_running_loop().create_future()

    async def assigned(lease: Lease) -> None:
        row = await read_installation(bus)
        if row is None:
            row = wanted
            await bus.step(lease, [Output(META, 0, KEY.encode(), encode_row(row))])
        if not done.done():
            done.set_result(row)

    async def revoked(lease: Lease) -> None:
        """Do nothing: the lease has no state."""

    membership = await bus.join(GROUP, (META,), assigned=assigned, revoked=revoked)
    left = asyncio.create_task(membership.wait_left())
    left.add_done_callback(lambda task: _pass_on(task, done))
    try:
        return await done
    finally:
        left.cancel()
        await membership.leave()


def _pass_on(left: "asyncio.Task[None]", done: "asyncio.Future[MetaRow]") -> None:
    """End the wait, too, if the membership ends before the row is written."""
    if done.done() or left.cancelled():
        return
    done.set_exception(left.exception() or TransientError("the bus was closed"))


def _check(row: MetaRow, partitions: int, how_to_empty: str) -> None:
    if row.schema_version > SCHEMA_VERSION:
        raise PermanentError(
            f"the bus holds tables of version {row.schema_version}, but this pvbus knows version "
            f"{SCHEMA_VERSION}: run the pvbus that wrote them, or a newer one",
            reason="NewerData",
        )
    if row.schema_version < SCHEMA_VERSION:
        raise PermanentError(
            f"the bus holds tables of version {row.schema_version}, but this pvbus writes version "
            f"{SCHEMA_VERSION}. The tables can be rebuilt from the API server: {_anew(how_to_empty)}",
            reason="OlderData",
        )
    if row.partitions != partitions:
        raise PermanentError(
            f"this installation has {row.partitions} partitions, this worker expects {partitions}: start all "
            "workers with the pvbus release that created the installation; or change the number: "
            f"{_anew(how_to_empty)}",
            reason="PartitionsDiffer",
        )


async def check_completeness(bus: Bus, partitions: int) -> None:
    """Refuse to recreate a lost topic: rows that other tables record as written are not written again.

    Caller: before it creates topics of a recorded installation. Raises PermanentError. An installation
    has all topics before it is recorded, and a pvbus with other topics has another schema version.
    """
    lost = [state.name for state in await bus.check_topics(topic_specs(partitions)) if not state.is_there]
    if lost:
        raise PermanentError(
            f"the bus has lost {', '.join(lost)}. Other tables record the lost rows as written, so all "
            f"tables must be rebuilt from the API server: {_anew(bus.how_to_empty())}",
            reason="TopicsLost",
        )


def _anew(how_to_empty: str) -> str:
    return f"stop all services, {how_to_empty}, and start again"
