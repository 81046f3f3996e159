"""The history of one variant: its package revisions, with who made them and why, and its Events."""

from collections.abc import Iterator
from typing import Any

import click

from pvbus.cli.diff import revisions_of
from pvbus.cli.output import columns
from pvbus.cli.pagedetail import read_events, revision_row
from pvbus.core.kernel.keys import Key
from pvbus.ports.cluster import Cluster
from pvbus.telemetry.terminal import one_line

Document = dict[str, Any]
COMMIT_CHARACTERS = 10
EVENTS_MAX = 20


async def read_variant_history(cluster: Cluster, key: Key) -> Document:
    """Return the package revisions of a variant, the oldest first, and its Events, the newest first.

    Raises PermanentError without such a variant.
    """
    found = await revisions_of(cluster, key)
    rows = sorted(map(revision_row, (*found.drafts, *found.published_all)), key=lambda row: str(row["at"]))
    return {"variant": str(key), "revisions": rows, "events": (await read_events(cluster, key))["rows"]}


def show_variant_history(document: Document) -> None:
    """Print the history of a variant."""
    revisions, events = document["revisions"], document["events"]
    if revisions:
        columns(("REVISION", "LIFECYCLE", "WHEN", "WHO", "COMMIT", "WHY"), map(_revision_cells, revisions))
    else:
        click.echo(f"{document['variant']} has no package revision")
    for line in _log_lines(revisions):
        click.echo(line)
    click.echo()
    if not events:
        click.echo("the API server has no Events of it: they are kept for an hour, or as it is set up")
        return
    cells = (
        [each["at"], each["type"], each["reason"], one_line(each["message"])] for each in events[:EVENTS_MAX]
    )
    columns(("WHEN", "TYPE", "REASON", "MESSAGE"), cells)
    if len(events) > EVENTS_MAX:
        click.echo(f"and {len(events) - EVENTS_MAX} older events (-o json lists them)")


def _revision_cells(row: Document) -> list[str]:
    number = f" {row['revision']}" if row["revision"] > 0 else ""
    who, commit, why = row["by"] or "-", row["commit"][:COMMIT_CHARACTERS] or "-", one_line(row["why"]) or "-"
    return [row["name"], f"{row['lifecycle']}{number}", row["at"], who, commit, why]


def _log_lines(revisions: list[Document]) -> Iterator[str]:
    """Yield the command that lists each commit of the newest revision, where its git is on this machine."""
    if revisions and revisions[-1]["log"]:
        yield f"each commit of the newest one: {revisions[-1]['log']}"
