"""`pvbus status`: the whole fleet on one screen, and what needs a person, with the command that shows it."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import click

from pvbus.cli.asking import options_of
from pvbus.cli.get import warnings_of
from pvbus.cli.output import FORMATS, emit
from pvbus.cli.reading import bus_option, data_option, open_existing_bus
from pvbus.core.kernel.keys import Key
from pvbus.core.web import rollouts
from pvbus.core.web.listing import URGENCY
from pvbus.core.web.model import Model
from pvbus.core.web.states import State
from pvbus.runtime.web.reading import read_fleet
from pvbus.telemetry.terminal import one_line

NEEDED = 3
"""The exit code of --check while something needs a person."""


class Need(NamedTuple):
    """What waits for a person.

    number: how many of them
    what: in words, of one and of several
    command: shows them
    """

    number: int
    what: tuple[str, str]
    command: str

    def __str__(self) -> str:
        return f"{self.number} {self.what[self.number != 1]}"


@click.command(
    short_help="Show the fleet on one screen, and what needs a person.",
    epilog="""\b
Examples:
  pvbus status
  pvbus status --check                    for scripts: exit code 3 while something needs a person
  pvbus status --bus kafka://kafka:9092 -o json

Exit codes: 0 shown; 1 the bus does not answer; 2 bad usage. With --check: 3 something needs a person, or
cannot be seen.
""",
)
@click.option("--check", is_flag=True, help="Tell by the exit code whether anything needs a person.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@data_option
@bus_option
def status(check: bool, output: str, data: str, bus: str | None) -> int:
    """Count variants and sets by state, and say how rollouts stand, as the bus knows it.

    What needs a person comes with the command that shows it: conflicts, held removals, tasks, stalled
    variants and sets, stopped rollouts, quarantines. A stop of all rollouts is the first line.
    """
    document = asyncio.run(_read(data, bus))
    if output == "text":
        click.echo("\n".join(lines_of(document)))
    else:
        emit(document, output)
    return NEEDED if check and (document["needs"] or document["incomplete"]) else 0


async def _read(data: str, bus_url: str | None) -> dict[str, Any]:
    async with open_existing_bus(data, bus_url) as bus:
        fleet = await read_fleet(bus)
    found = document_of(fleet.model, time.time(), options_of(data, None))
    return {**found, "incomplete": list(warnings_of(fleet))}


def document_of(model: Model, now: float, hints: str = "") -> dict[str, Any]:
    """Return the status of a fleet.

    now: seconds since 1970
    hints: the options that the commands need to find the data folder
    """
    running = [rollouts.document_of(Key.parse(name), row.policy, now) for name, row in model.rollouts.items()]
    return {
        "stops": {name: row.why for name, row in model.stops.items()},
        "variants": _counted(row.state for _, row in model.variants.items()),
        "sets": _counted(row.state for _, row in model.sets.items()),
        "rollouts": {each["name"]: each["standing"] for each in running},
        "needs": [
            {"count": need.number, "what": str(need), "command": f"{need.command}{hints}"}
            for need in needs_of(model)
            if need.number
        ],
    }


def _counted(states: Iterable[State]) -> dict[str, int]:
    counts = Counter(states)
    return {state.value: counts[state] for state in URGENCY if counts[state]}


def needs_of(model: Model) -> Iterator[Need]:
    """Yield what may need a person, the most urgent first, also where there is none of it."""
    variants, sets = (
        Counter(row.state for _, row in table.items()) for table in (model.variants, model.sets)
    )
    stopped = sum(bool(row.policy.status.phase == "Stopped") for _, row in model.rollouts.items())
    everywhere = "pvbus get variants -A --state"
    yield Need(
        len(model.stops),
        ("stop holds all rollouts", "stops hold all rollouts"),
        "kubectl get rolloutstops.promotion.pvbus.dev -A",
    )
    yield Need(
        sets[State.HELD], ("set holds removals back", "sets hold removals back"), "pvbus get removals -A"
    )
    yield Need(stopped, ("rollout has stopped", "rollouts have stopped"), "pvbus rollout status")
    yield Need(len(model.conflicts), ("draft has conflicts", "drafts have conflicts"), "pvbus conflicts list")
    yield Need(
        variants[State.STALLED], ("variant is stalled", "variants are stalled"), f"{everywhere} stalled"
    )
    yield Need(sets[State.STALLED], ("set is stalled", "sets are stalled"), "pvbus conditions --not-ready")
    yield Need(
        variants[State.ATTENTION],
        ("variant needs attention", "variants need attention"),
        f'{everywhere} "{State.ATTENTION.value}"',
    )
    yield Need(len(model.tasks), ("task is open", "tasks are open"), "pvbus task list")
    yield Need(len(model.quarantines), ("quarantine lasts", "quarantines last"), "pvbus rollout quarantines")


def lines_of(document: dict[str, Any]) -> Iterator[str]:
    """Yield the status as text."""
    for name, why in document["stops"].items():
        yield f"ALL ROLLOUTS ARE STOPPED ({name}) by {one_line(why)}"
    for kind in ("sets", "variants"):
        counts = document[kind]
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"{kind:9} {sum(counts.values()):>7}{f'   {words}' if words else ''}"
    for name, standing in document["rollouts"].items():
        yield f"rollout   {name}: {standing}"
    for problem in document["incomplete"]:
        yield f"unknown:  {problem}"
    needs = document["needs"]
    yield ""
    yield "needs a person:" if needs else "nothing needs a person"
    width = max((len(need["what"]) for need in needs), default=0)
    for need in needs:
        yield f"  {need['what']:{width}}   {need['command']}"
