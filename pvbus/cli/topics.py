"""`pvbus topics`: what is on the bus."""

import asyncio
from typing import Any

import click
import msgspec

from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import bus_option, data_option, opened_bus, read_topic
from pvbus.contracts import topic_contracts
from pvbus.ports.bus import Bus, Record


@click.command(
    epilog="""\b
Examples:
  pvbus topics                                          every topic, with the number of its rows
  pvbus topics pvbus.targets                            the rows of one
  pvbus topics pvbus.results --key default/web-eu-1     those of a key, or that begin with it
  pvbus topics pvbus.conditions -o json                 one JSON document, for programs
"""
)
@click.argument("topic", required=False)
@click.option("--key", help="Only keys that are this, or begin with it and a |.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@data_option
@bus_option
def topics(topic: str | None, key: str | None, output: str, data: str, bus: str | None) -> None:
    """List the topics, or show the records of one."""
    asyncio.run(_topics(topic, key, output, data, bus))


async def _topics(topic: str | None, key: str | None, output: str, data: str, place: str | None) -> None:
    async with opened_bus(data, place) as bus:
        if topic is None:
            _show_list(await _summaries(bus), output)
            return
        records = [shown(r) for r in await read_topic(bus, topic) if _is_wanted(r, key)]
    if output != "text":
        emit(records, output)
        return
    for record in records:
        value = msgspec.json.encode(record["value"]).decode() if record["value"] is not None else "(removed)"
        click.echo(f"{record['partition']}/{record['offset']} {record['key']} {value}")


async def _summaries(bus: Bus) -> list[dict[str, Any]]:
    descriptions = {contract.spec.name: contract.description for contract in topic_contracts()}
    found = []
    for name, spec in (await bus.topics()).items():
        records = await read_topic(bus, name)
        found.append(
            {
                "name": name,
                "partitions": spec.partitions,
                "cleanup": spec.cleanup,
                "records": len(records),
                "removed": sum(record.value is None for record in records),
                "bytes": sum(len(record.value or b"") for record in records),
                "description": descriptions.get(name, ""),
            }
        )
    return found


def _show_list(summaries: list[dict[str, Any]], output: str) -> None:
    if output != "text":
        emit(summaries, output)
        return
    fields = ("name", "partitions", "cleanup", "records", "removed", "bytes")
    rows = [[str(each[field]) for field in fields] for each in summaries]
    columns(("TOPIC", "PARTITIONS", "CLEANUP", "RECORDS", "REMOVED", "BYTES"), rows)


def _is_wanted(record: Record, key: str | None) -> bool:
    text = record.key.decode(errors="replace")
    return key is None or text == key or text.startswith(f"{key}|")


def shown(record: Record) -> dict[str, Any]:
    """Return a record as plain values; a value that is no JSON as text."""
    try:
        value = msgspec.json.decode(record.value) if record.value is not None else None
    except msgspec.DecodeError:
        value = (record.value or b"").decode(errors="replace")
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestampMs": record.timestamp_ms,
        "key": record.key.decode(errors="replace"),
        "headers": {name: value.decode(errors="replace") for name, value in record.headers},
        "value": value,
    }
