"""`pvbus topics --create | --check | --acls`: topics as `pvbus.core.topics` declares them."""

import asyncio
from typing import Any

import click

from pvbus.adapters.kafka.settings import settings_of
from pvbus.cli.output import columns, emit
from pvbus.cli.reading import opened_bus
from pvbus.core.errors import UsageError
from pvbus.core.topics import topic_specs
from pvbus.ports.bus import TopicState
from pvbus.runtime.process.buses import bus_file
from pvbus.runtime.process.installation import check_completeness, read_installation
from pvbus.runtime.process.kafka_access import access_lists, bindings, commands


def create(data: str, bus_url: str | None, output: str) -> int:
    """Make what is missing, and compare what is there. Returns the exit code."""
    return _show(asyncio.run(_create(data, bus_url)), output)


async def _create(data: str, bus_url: str | None) -> list[dict[str, Any]]:
    specs = topic_specs()
    async with opened_bus(data, bus_url, create=True) as bus:
        before = await bus.check_topics(specs)
        missing = {state.name for state in before if not state.is_there}
        if missing and (installed := await read_installation(bus)) is not None:
            await check_completeness(bus, installed.partitions)
        await bus.create_topics([spec for spec in specs if spec.name in missing])
    return [_row(state, "already there" if state.is_there else "created") for state in before]


def check(data: str, bus_url: str | None, output: str) -> int:
    """Compare only. Returns the exit code: 1 when anything is missing or differs."""
    return _show(asyncio.run(_check(data, bus_url)), output)


async def _check(data: str, bus_url: str | None) -> list[dict[str, Any]]:
    async with opened_bus(data, bus_url) as bus:
        states = await bus.check_topics(topic_specs())
    return [_row(state, "as declared" if state.is_there else "missing") for state in states]


def _row(state: TopicState, word: str) -> dict[str, Any]:
    problems = list(state.problems)
    if word == "missing":
        problems = ["pvbus topics --create makes it"]
    return {"name": state.name, "state": "differs" if state.problems else word, "problems": problems}


def _show(rows: list[dict[str, Any]], output: str) -> int:
    if output == "text":
        reported = [": ".join((row["state"], *filter(None, ["; ".join(row["problems"])]))) for row in rows]
        columns(("TOPIC", "STATE"), [(row["name"], text) for row, text in zip(rows, reported, strict=True)])
    else:
        emit(rows, output)
    return 1 if any(row["problems"] for row in rows) else 0


def acls(bus_url: str | None, principal: str, command_config: str | None, output: str) -> int:
    """Print what each service may do. Asks no broker."""
    if bus_url is None or bus_file(bus_url) is not None:
        raise UsageError(
            "--acls is about a Kafka: give --bus kafka://HOST:PORT[,HOST:PORT...][/PREFIX]. A bus in a file "
            "has no ACLs, whoever may write the file may write the bus"
        )
    settings = settings_of(bus_url)
    lists = access_lists(settings)
    if output == "text":
        options = ("--command-config", command_config) if command_config else ()
        for line in commands(lists, ",".join(settings.bootstrap), principal, *options):
            click.echo(line)
    else:
        emit(bindings(lists, principal), output)
    return 0
