"""`pvbus topics`: what is on the bus, and whether it is as declared."""

import asyncio
from typing import Any

import click
import msgspec

from pvbus.cli import topics_declared
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import NOTHING, bus_option, data_option, opened_bus, read_topic
from pvbus.core.errors import UsageError
from pvbus.core.topics import TOPICS
from pvbus.ports.bus import Bus, Record
from pvbus.runtime.process.kafka_access import PRINCIPAL


@click.command(
    short_help="Look at the bus; make and check its topics.",
    epilog="""\b
Examples:
  pvbus topics                                          every topic, with the number of its rows
  pvbus topics pvbus.targets                            the rows of one
  pvbus topics pvbus.results --key default/web-eu-1     those of a key, or that begin with it
  pvbus topics pvbus.conditions -o json                 one JSON document, for programs

  The topics of a Kafka, as this release of pvbus declares them:

  \b
  pvbus topics --create --bus kafka://kafka:9092        make what is missing; again, and nothing changes
  pvbus topics --check --bus kafka://kafka:9092         1 with what differs, and what to do about it
  pvbus topics --acls --bus kafka://kafka:9092          commands that give each service its rights
  pvbus topics --acls --bus kafka://kafka:9092/blue --principal 'User:CN={role},O=Example' -o json
""",
)
@click.argument("topic", required=False)
@click.option("--key", help="Only keys that are this, or begin with it and a |.")
@click.option("--create", "action", flag_value="create", help="Make the topics that are missing.")
@click.option("--check", "action", flag_value="check", help="Compare the topics with their declarations.")
@click.option("--acls", "action", flag_value="acls", help="Print the ACLs that each service needs.")
@click.option("--principal", default=PRINCIPAL, show_default=True, help="Who a service is to Kafka (--acls).")
@click.option("--command-config", metavar="FILE", help="As what kafka-acls.sh is to log in (--acls).")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@data_option
@bus_option
def topics(
    topic: str | None,
    key: str | None,
    action: str | None,
    principal: str,
    command_config: str | None,
    output: str,
    data: str,
    bus: str | None,
) -> int:
    """List the topics, or show the records of one; or make, check and protect them."""
    if action is not None and (topic is not None or key is not None):
        raise UsageError(f"--{action} is about all topics: give it neither TOPIC nor --key")
    match action:
        case "create":
            return topics_declared.create(data, bus, output)
        case "check":
            return topics_declared.check(data, bus, output)
        case "acls":
            return topics_declared.acls(bus, principal, command_config, output)
    asyncio.run(_topics(topic, key, output, data, bus))
    return 0


async def _topics(topic: str | None, key: str | None, output: str, data: str, bus_url: str | None) -> None:
    async with opened_bus(data, bus_url) as bus:
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
    """Of our topics: without a prefix, a bus on a Kafka has those of everybody."""
    present = await bus.topics()
    descriptions = {
        contract.spec.name: contract.description for contract in TOPICS if contract.spec.name in present
    }
    if not descriptions:
        raise UsageError(NOTHING)
    found = []
    for name, description in descriptions.items():
        spec = present[name]
        records = await read_topic(bus, name)
        found.append(
            {
                "name": name,
                "partitions": spec.partitions,
                "cleanup": spec.cleanup,
                "records": len(records),
                "removed": sum(record.value is None for record in records),
                "bytes": sum(len(record.value or b"") for record in records),
                "description": description,
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
