"""`pvbus conflicts`: equal conflicts of many variants as one row, settled by one decision, and undone by one.

The bus has the list; `settling` writes the drafts.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import click

from pvbus.cli.explain_text import conflict_value
from pvbus.cli.fleet import (
    kubeconfig_option,
    run_connected,
)
from pvbus.cli.get import query_of
from pvbus.cli.objectnames import Scope, named
from pvbus.cli.output import FORMATS, columns, counted, emit
from pvbus.cli.progress import SET
from pvbus.cli.reading import bus_option, data_option, open_existing_bus
from pvbus.cli.settling import (
    Result,
    read_all_settled,
    read_settled,
    resolutions_of,
    settle_group,
    undo_all,
    undo_lines,
)
from pvbus.cli.subcommands import Subcommands
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.conflicts import Conflict
from pvbus.core.web.conflicts import (
    Found,
    Group,
    by_draft,
    found_in,
    group_id,
    groups_of,
    place_id,
    values_of,
)
from pvbus.core.web.listing import Query, entries_at
from pvbus.core.web.model import Model
from pvbus.runtime.web.reading import read_fleet

SHOWN_MAX = 20
INTERRUPTED = 130


def _selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        bus_option,
        data_option,
        click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True),
        click.option("--by-field", is_flag=True, help="Together also where the two values differ."),
        click.option(
            "-l", "--selector", default="", help="Only of variants with these labels, see pvbus get."
        ),
        click.option("--set", "set_name", metavar="[NAMESPACE/]SET", help="Only of this set's variants."),
        click.option("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces."),
        click.option(
            "-n", "--namespace", help="Look in this namespace; by default the kubeconfig's, else default."
        ),
    ):
        command = option(command)
    return command


@click.group(
    cls=Subcommands,
    short_help="Settle equal conflicts of many variants at once.",
    epilog="""\b
Examples:
  pvbus conflicts list                              equal conflicts are one row
  pvbus conflicts take local ID --dry-run           what one decision would settle
  pvbus conflicts take upstream ID -l region=asia
  pvbus conflicts undo RESOLUTION
""",
)
def conflicts() -> None:
    """List what upgrades left in conflict, and settle equal conflicts of many variants with one decision.

    Conflicts are equal when they are in the same field of the same file and have the same two values; with
    --by-field, in the same field of the same file. `pvbus diff` settles those of one variant.
    """


@conflicts.command(
    "list",
    short_help="Show conflicts, equal ones as one row.",
    epilog="""\b
Examples:
  pvbus conflicts list -A
  pvbus conflicts list --set web --by-field -o json

Exit codes: 0 shown, also if there is none; 1 the bus does not answer; 2 bad usage.
""",
)
@_selecting
def list_(output: str, data: str, bus: str | None, **options: Any) -> None:
    """Show the conflicts of open drafts and proposals: the group that is largest first."""
    query = _query(data, options)
    groups = asyncio.run(_groups(query, data, bus, by_field=options["by_field"]))
    if output != "text":
        emit({"groups": [group_document(group) for group in groups]}, output)
    elif groups:
        columns(("ID", "VARIANTS", "LOCAL", "UPSTREAM", "WHERE"), map(_row, groups))
    else:
        click.echo("no conflicts", err=True)


@conflicts.command(
    "take",
    short_help="Settle all conflicts of a group.",
    epilog="""\b
Examples:
  pvbus conflicts take local 3f0c... --dry-run
  pvbus conflicts take local 3f0c... -l region=asia --yes
  pvbus conflicts take upstream 8a11... --by-field      an id of list --by-field

Exit codes: 0 settled, or would be; 1 some were refused or failed, or no conflict has this ID; 2 bad usage;
130 interrupted.
""",
)
@click.argument("side", type=click.Choice(["local", "upstream"]))
@click.argument("group")
@click.option("--dry-run", is_flag=True, help="Show what would be settled, and write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_selecting
@kubeconfig_option
def take(
    side: str,
    group: str,
    dry_run: bool,
    yes: bool,
    output: str,
    data: str,
    bus: str | None,
    kubeconfig: str | None,
    **options: Any,
) -> int:
    """Give each draft of a group the value of one SIDE: `local` is the package's own, `upstream` the new one.

    A draft is read before it is written, and refused if it no longer has the conflict. Proposals are refused:
    make drafts of them first (`pvbus reject`). Each draft gets a commit; `pvbus conflicts undo` takes a
    whole resolution back.
    """
    groups = asyncio.run(_groups(_query(data, options), data, bus, by_field=options["by_field"]))
    chosen = next((each for each in groups if each.id == group), None)
    if chosen is None:
        raise PermanentError(
            f'no conflict here has the id "{group}": see pvbus conflicts list, with the same options'
        )
    resolution = secrets.token_hex(6)
    if output == "text":
        for line in preview_lines(chosen, side):
            click.echo(line, err=not dry_run)
    if dry_run:
        if output != "text":
            emit({"dryRun": True, "side": side, **group_document(chosen)}, output)
        return 0
    _ask(take_question(chosen, side), yes=yes)
    id_of = place_id if options["by_field"] else group_id
    work = partial(settle_group, group=chosen, side=side, resolution=resolution, id_of=id_of)
    results, interrupted = asyncio.run(run_connected(data, kubeconfig, work))
    return _report(results, resolution, output, interrupted=interrupted, then=undo_words(resolution))


@conflicts.command(
    "undo",
    short_help="Take a resolution back.",
    epilog="""\b
Examples:
  pvbus conflicts settled                           the resolutions, with their ids
  pvbus conflicts undo 5b1e07c2a9d4 --dry-run
  pvbus conflicts undo 5b1e07c2a9d4

Exit codes: 0 taken back, or would be; 1 some were refused or failed, or no draft has it; 2 bad usage;
130 interrupted.
""",
)
@click.argument("resolution")
@click.option("--dry-run", is_flag=True, help="Show what would be taken back, and write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@kubeconfig_option
@data_option
def undo(resolution: str, dry_run: bool, yes: bool, output: str, kubeconfig: str | None, data: str) -> int:
    """Give each draft the value that it had before a resolution, and have its conflict open again.

    A draft whose value was changed since, and one that is no draft any more, is refused.
    """
    drafts = asyncio.run(run_connected(data, kubeconfig, partial(read_settled, resolution=resolution)))
    if not drafts:
        raise PermanentError(
            f'no draft records the resolution "{resolution}": it is published, or was undone'
        )
    for line in undo_lines(drafts, resolution):
        click.echo(line, err=not dry_run)
    if dry_run:
        return 0
    _ask(f"Open the conflicts of {counted(len(drafts), 'draft')} again?", yes=yes)
    work = partial(undo_all, drafts=drafts, resolution=resolution)
    results, interrupted = asyncio.run(run_connected(data, kubeconfig, work))
    return _report(results, resolution, output, interrupted=interrupted, then="see pvbus conflicts list")


@conflicts.command(
    "settled",
    short_help="List resolutions that can be taken back.",
    epilog="""\b
Examples:
  pvbus conflicts settled

Exit codes: 0 shown, also if there is none; 1 the API server does not answer; 2 bad usage.
""",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@kubeconfig_option
@data_option
def settled(output: str, kubeconfig: str | None, data: str) -> None:
    """List what `take` settled in drafts, each decision as one row. A published draft's is final."""
    found = resolutions_of(asyncio.run(run_connected(data, kubeconfig, read_all_settled)))
    if output != "text":
        emit([each._asdict() for each in found], output)
    elif found:
        rows = ((each.id, each.side, str(len(each.variants)), "; ".join(each.places)) for each in found)
        columns(("RESOLUTION", "TAKEN", "VARIANTS", "WHERE"), rows)
    else:
        click.echo("no draft records a resolution", err=True)


# ------------------------------------------------------------ what there is


def _query(data: str, options: Any) -> Query:
    if options["namespace"] and options["all_namespaces"]:
        raise UsageError("-n and -A contradict each other: leave one of them out")
    scope = Scope(options["namespace"], data)
    within = "" if options["all_namespaces"] else options["namespace"] or scope.default()
    key = str(named((options["set_name"],), (SET,), scope).key) if options["set_name"] else ""
    return query_of("conflicts", within, key, options["selector"], ())


async def _groups(query: Query, data: str, bus_url: str | None, *, by_field: bool) -> list[Group]:
    async with open_existing_bus(data, bus_url) as bus:
        fleet = await read_fleet(bus)
    return groups_of(selected(fleet.model, query), by_field=by_field)


def selected(model: Model, query: Query) -> Iterator[Found]:
    """Yield the conflicts that a query selects."""
    for name, row in model.conflicts.items():
        if any(entries_at(model, query, name, row)):
            yield from found_in([(name, row)])


def group_document(group: Group) -> dict[str, Any]:
    """Return a group as programs get it."""
    example = group.example
    return {
        "id": group.id,
        "file": example.file,
        "object": example.object,
        "field": example.field,
        "values": values_of(example),
        "taken": example.taken,
        "variants": [member.variant for member in group.members],
    }


def _row(group: Group) -> tuple[str, ...]:
    values = values_of(group.example)
    sides = [conflict_value(values, side) for side in ("local", "upstream")]
    return (group.id, str(len(by_draft(group))), *sides, group.words)


def preview_lines(group: Group, side: str) -> Iterator[str]:
    """Yield what a decision would settle: how much of it, and one draft in full."""
    yield f"{group.words}: {counted(len(by_draft(group)), 'draft')}"
    pairs = Counter(_sides(member.conflict) for member in group.members)
    for (local, upstream), count in pairs.most_common(SHOWN_MAX):
        value = local if side == "local" else upstream
        yield f"  {count} x local {local}, upstream {upstream}; would have {value}"
    if len(pairs) > SHOWN_MAX:
        yield f"  and {len(pairs) - SHOWN_MAX} other pairs of values (-o json has them)"
    member = group.members[0]
    yield f"for example {member.variant}, in {member.revision}; all of it: pvbus diff {member.variant}"
    if proposals := [each for each in group.members if each.lifecycle != "Draft"]:
        yield f"{len(proposals)} are proposed and would be refused: pvbus reject makes drafts of them"


def take_question(group: Group, side: str) -> str:
    return f"Take {side}'s value in {counted(len(by_draft(group)), 'draft')}?"


def undo_words(resolution: str) -> str:
    return f"to take this back: pvbus conflicts undo {resolution}"


def changed_words(results: Sequence[Result], then: str) -> str:
    """Return how many drafts were changed, and what comes next."""
    done = sum(each.outcome == "done" for each in results)
    return f"{done} of {counted(len(results), 'draft')} changed; {then}"


def _sides(conflict: Conflict) -> tuple[str, str]:
    values = values_of(conflict)
    return conflict_value(values, "local"), conflict_value(values, "upstream")


def _ask(question: str, *, yes: bool) -> None:
    """Ask before the first write. Raises PermanentError if the answer is no, UsageError if none can come."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("cannot ask here, as this is no terminal: add --yes, or --dry-run to look first")
    if not click.confirm(question, err=True):
        raise PermanentError("nothing was changed", reason="Declined")


# ------------------------------------------------------------ the answer


def _report(results: Iterable[Result], resolution: str, output: str, *, interrupted: bool, then: str) -> int:
    """Print what was done; return the exit code."""
    ordered = sorted(results)
    trouble = [each for each in ordered if each.outcome != "done"]
    if output == "text":
        if trouble:
            shown = (
                (each.variant, each.revision, each.outcome, each.message) for each in trouble[:SHOWN_MAX]
            )
            columns(("VARIANT", "REVISION", "OUTCOME", "MESSAGE"), shown)
        if len(trouble) > SHOWN_MAX:
            click.echo(f"and {len(trouble) - SHOWN_MAX} more (-o json lists all)")
        click.echo(changed_words(ordered, then))
    else:
        document = {"resolution": resolution, "interrupted": interrupted}
        emit({**document, "results": [each._asdict() for each in ordered]}, output)
    return INTERRUPTED if interrupted else 1 if trouble else 0
