"""`pvbus conditions`: the last word on every object, and every new one."""

import asyncio
from collections.abc import Callable, Iterable

import click
import msgspec

from pvbus.cli.output import columns
from pvbus.cli.reading import bus_option, data_option, opened_bus, read_topic, topic_on
from pvbus.core.records import CONDITIONS, LATEST, ConditionEvent
from pvbus.ports.bus import Bus, Record, TopicPartition

COLUMNS = ("TIME", "OBJECT", "TYPE", "STATUS", "REASON", "MESSAGE")
_event = msgspec.json.Decoder(ConditionEvent)


@click.command(
    short_help="Show every object's conditions, and changes.",
    epilog="""\b
Examples:
  pvbus conditions                           the last of each condition of every object
  pvbus conditions default/web               of one object
  pvbus conditions --not-ready               only what is Ready=False, Stalled=True or held
  pvbus conditions --follow -o json          a line of JSON per condition, and then per change
""",
)
@click.argument("name", required=False, metavar="[NAMESPACE/NAME]")
@click.option("--follow", is_flag=True, help="Go on with every change until interrupted.")
@click.option("--not-ready", is_flag=True, help="Only conditions that ask for attention.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@data_option
@bus_option
def conditions(
    name: str | None, follow: bool, not_ready: bool, output: str, data: str, bus: str | None
) -> None:
    """Show conditions as consumers of the bus see them.

    Text is a table, and a line per change; json is a line per event, with the event's id, so that a
    program can tell repetitions apart.
    """
    try:
        asyncio.run(_conditions(name, follow, not_ready, output, data, bus))
    except KeyboardInterrupt:
        if not follow:
            raise


async def _conditions(
    name: str | None, follow: bool, not_ready: bool, output: str, data: str, place: str | None
) -> None:
    def wanted(event: ConditionEvent) -> bool:
        if name is not None and f"{event.namespace}/{event.name}" != name:
            return False
        return not not_ready or asks_for_attention(event)

    async with opened_bus(data, place) as bus:
        # The changes first: what happens while the table is read comes twice rather than never.
        count = (await topic_on(bus, CONDITIONS)).partitions
        ends = dict(await bus.end_offsets([(CONDITIONS, number) for number in range(count)]))
        latest = [e for e in _events(await read_topic(bus, LATEST)) if wanted(e)]
        latest.sort(key=lambda e: (e.namespace, e.name, e.kind, e.condition.type))
        _show_table(latest, output)
        if follow:
            await _follow(bus, ends, {event.id for event in latest}, wanted, output)


async def _follow(
    bus: Bus,
    ends: dict[TopicPartition, int],
    seen: set[str],
    wanted: Callable[[ConditionEvent], bool],
    output: str,
) -> None:
    reader = bus.reader(ends)
    while True:
        for event in _events(await reader.poll(timeout_seconds=1.0)):
            if event.id not in seen and wanted(event):
                _show_line(event, output)


def asks_for_attention(event: ConditionEvent) -> bool:
    kind, status = event.condition.type, event.condition.status
    return (kind == "Ready" and status != "True") or (
        kind in ("Stalled", "DeletionHeld", "OnHold") and status == "True"
    )


def _events(records: Iterable[Record]) -> list[ConditionEvent]:
    return [_event.decode(record.value) for record in records if record.value is not None]


def _show_table(events: list[ConditionEvent], output: str) -> None:
    if output == "json":
        for event in events:
            _show_line(event, output)
        return
    columns(COLUMNS, map(_fields, events))


def _show_line(event: ConditionEvent, output: str) -> None:
    if output == "json":
        click.echo(msgspec.json.encode(event))
    else:
        click.echo("  ".join(_fields(event)))


def _fields(event: ConditionEvent) -> tuple[str, ...]:
    condition = event.condition
    change = f"{event.previous} -> {condition.status}" if event.previous else condition.status
    name = f"{event.kind}/{event.namespace}/{event.name}"
    time = condition.last_transition_time or ""
    return time, name, condition.type, change, condition.reason, condition.message
