"""`pvbus topics`: lists the topics of the bus, and compares them with their declarations."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec

from pvbus.adapters.kafka.settings import settings_of
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.reading import NOTHING, bus_option, data_option, open_existing_bus, read_topic
from pvbus.cli.registry import register
from pvbus.core.errors import UsageError
from pvbus.core.kernel.topics import TOPICS, topic_specs
from pvbus.ports.bus import Bus, Record, TopicState
from pvbus.runtime.process.buses import bus_file, bus_prefix
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.installation import check_completeness, read_installation
from pvbus.runtime.process.kafka_access import PRINCIPAL, ROLES, access_lists, bindings, commands
from pvbus.runtime.process.settings import ServiceConfig


class Login(NamedTuple):
    """How roles and kafka-acls.sh log in at Kafka.

    principal: the principal of a role, with {role} in place of its name
    command_config: the file with the login of kafka-acls.sh, None for none
    """

    principal: str
    command_config: str | None


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
  pvbus topics --register --bus kafka://kafka:9092      JSON Schemas to PVBUS_SCHEMA_REGISTRY
  pvbus topics --acls --bus kafka://kafka:9092/blue --principal 'User:CN={role},O=Example' -o json
  pvbus topics --acls --bus kafka://kafka:9092 --role consumer --principal User:team-a
""",
)
@click.argument("topic", required=False)
@click.option("--key", help="Only keys that are this, or begin with it and a |.")
@click.option("--create", "action", flag_value="create", help="Make the topics that are missing.")
@click.option("--check", "action", flag_value="check", help="Compare the topics with their declarations.")
@click.option("--acls", "action", flag_value="acls", help="Print the ACLs that each program needs.")
@click.option("--register", "action", flag_value="register", help="Register the public topics' schemas.")
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), metavar="ROLE",
              help="Only of a service, operator, web or consumer (--acls; may be repeated).")  # fmt: skip
@click.option(
    "--principal", default=PRINCIPAL, show_default=True, help="The user that a role is to Kafka (--acls)."
)
@click.option("--command-config", metavar="FILE", help="As what kafka-acls.sh is to log in (--acls).")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@data_option
@bus_option
def topics(
    topic: str | None,
    key: str | None,
    action: str | None,
    roles: tuple[str, ...],
    principal: str,
    command_config: str | None,
    output: str,
    data: str,
    bus: str | None,
) -> int:
    """List the topics, or show the records of one; or make, check and protect them."""
    if action is not None and (topic is not None or key is not None):
        raise UsageError(f"--{action} is about all topics: give it neither TOPIC nor --key")
    if roles and action != "acls":
        raise UsageError("--role is about --acls: give both")
    match action:
        case "create":
            return _show_states(asyncio.run(_create(data, bus)), output)
        case "check":
            return _show_states(asyncio.run(_check(data, bus)), output)
        case "acls":
            return _show_acls(bus, roles or ROLES, Login(principal, command_config), output)
        case "register":
            return _register(bus, output)
    asyncio.run(_topics(topic, key, output, data, bus))
    return 0


async def _topics(topic: str | None, key: str | None, output: str, data: str, bus_url: str | None) -> None:
    async with open_existing_bus(data, bus_url) as bus:
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
    """Summarize our topics only: without a prefix, a Kafka bus also lists those of other programs."""
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
    """Return a record as plain values; a value that is not JSON as text."""
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


# ------------------------------------------------------------ declarations


async def _create(data: str, bus_url: str | None) -> list[dict[str, Any]]:
    """Create missing topics, and compare existing ones."""
    specs = topic_specs()
    async with open_existing_bus(data, bus_url, create=True) as bus:
        before = await bus.check_topics(specs)
        missing = {state.name for state in before if not state.is_there}
        if missing and (installed := await read_installation(bus)) is not None:
            await check_completeness(bus, installed.partitions)
        await bus.create_topics([spec for spec in specs if spec.name in missing])
    return [_row(state, "already there" if state.is_there else "created") for state in before]


async def _check(data: str, bus_url: str | None) -> list[dict[str, Any]]:
    async with open_existing_bus(data, bus_url) as bus:
        states = await bus.check_topics(topic_specs())
    return [_row(state, "as declared" if state.is_there else "missing") for state in states]


def _row(state: TopicState, word: str) -> dict[str, Any]:
    problems = list(state.problems)
    if word == "missing":
        problems = ["pvbus topics --create makes it"]
    return {"name": state.name, "state": "differs" if state.problems else word, "problems": problems}


def _show_states(rows: list[dict[str, Any]], output: str) -> int:
    """Print the states; return the exit code: 1 if a topic is missing or differs."""
    if output == "text":
        reported = [": ".join((row["state"], *filter(None, ["; ".join(row["problems"])]))) for row in rows]
        columns(("TOPIC", "STATE"), [(row["name"], text) for row, text in zip(rows, reported, strict=True)])
    else:
        emit(rows, output)
    return 1 if any(row["problems"] for row in rows) else 0


def _register(bus_url: str | None, output: str) -> int:
    """Register the schemas of the public topics; the bus itself is not opened."""
    if bus_url is None or bus_file(bus_url) is not None:
        raise UsageError(
            "--register is about a Kafka: give --bus kafka://HOST:PORT[,HOST:PORT...][/PREFIX], whose prefix "
            "is part of the subjects"
        )
    url = load_config(ServiceConfig).schema_registry
    if not url:
        raise UsageError("no schema registry: set PVBUS_SCHEMA_REGISTRY to its URL, http://HOST:PORT")
    rows = asyncio.run(register(url, bus_prefix(bus_url)))
    if output != "text":
        emit(rows, output)
        return 0
    texts = [(row["subject"], str(row["id"]), row["compatibility"]) for row in rows]
    columns(("SUBJECT", "ID", "COMPATIBILITY"), texts)
    return 0


def _show_acls(bus_url: str | None, roles: Sequence[str], login: Login, output: str) -> int:
    """Print the ACLs that these roles need, without a broker."""
    if bus_url is None or bus_file(bus_url) is not None:
        raise UsageError(
            "--acls is about a Kafka: give --bus kafka://HOST:PORT[,HOST:PORT...][/PREFIX]. A bus in a file "
            "has no ACLs: the rights of the file decide who can write"
        )
    settings = settings_of(bus_url)
    lists = access_lists(settings, roles)
    if output == "text":
        options = ("--command-config", login.command_config) if login.command_config else ()
        for line in commands(lists, ",".join(settings.bootstrap), login.principal, *options):
            click.echo(line)
    else:
        emit(bindings(lists, login.principal), output)
    return 0
