"""`pvbus history`: the former specs of a set, as the service conditions keeps them, and what changed when."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from pvbus.cli.differences import differences
from pvbus.cli.fleet import existing, kubeconfig_option, run_connected
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.progress import SET
from pvbus.cli.reading import data_option
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.objects import annotation
from pvbus.core.variants.conditions.specretention import (
    CHANGE_CAUSE,
    CHANGED_AT,
    CHANGED_BY,
    revisions_of,
    selector_of,
    spec_of,
)
from pvbus.ports.cluster import Cluster, Kind, Object
from pvbus.runtime.yamltext import yaml_text
from pvbus.telemetry.terminal import one_line

Document = dict[str, Any]
REVISION = Kind("apps", "ControllerRevision")
VALUE_CHARACTERS_MAX = 40
FIELDS_MAX = 3


@click.command(
    short_help="List the former specs of a set.",
    epilog="""\b
Examples:
  pvbus history packagevariantset/web             or: pvbus history default/web
  pvbus history pvs web -n default --revision 3   the whole spec of a revision
  pvbus undo packagevariantset/web                back to the revision before

Exit codes: 0 shown; 1 there is no such set or revision, or nothing is kept; 2 bad usage.
""",
)
@object_argument("[KIND] NAME", (SET,))
@namespace_option
@click.option("--revision", type=click.IntRange(min=1), help="Show the whole spec of this revision.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@kubeconfig_option
@data_option
def history(
    words: tuple[str, ...],
    namespace: str | None,
    revision: int | None,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> None:
    """List the newest ten specs of a PackageVariantSet: when each came, who wrote it, and what it changed.

    The service conditions keeps each spec as a ControllerRevision that the set owns. WHO is the program that
    wrote the fields, as managedFields name it. WHY is the set's annotation kubernetes.io/change-cause at that
    time.
    """
    key = named(words, (SET,), Scope(namespace, data, kubeconfig)).key
    owner, retained = asyncio.run(run_connected(data, kubeconfig, partial(read_history, key=key)))
    if revision is not None:
        _show_spec(spec_of(revision_numbered(retained, revision, key)), output)
        return
    document = {"set": str(key), "revisions": entries_of(retained, owner)}
    if output != "text":
        emit(document, output)
        return
    columns(
        ("REVISION", "WHEN", "WHO", "WHY", "CHANGE"), [_row(entry) for entry in entries_of(retained, owner)]
    )


async def read_history(cluster: Cluster, key: Key) -> tuple[Object, list[Object]]:
    """Read a set and its revisions, oldest first. Raises PermanentError where none is kept."""
    owner = await existing(cluster, SET, key)
    resource = await cluster.resource(REVISION)
    uid = owner["metadata"]["uid"]
    if resource is None:
        raise PermanentError("the API server does not serve ControllerRevision (apps): no spec is kept there")
    listing = await cluster.list(resource, key.namespace, label_selector=selector_of(uid))
    retained = revisions_of(listing.items, uid)
    if not retained:
        raise PermanentError(
            f"no spec of {SET.kind} {key} is kept: the service conditions keeps them, if it runs and has the "
            "rights list, create and delete on controllerrevisions.apps; pvbus doctor tells"
        )
    return owner, retained


def revision_numbered(retained: Sequence[Object], number: int, key: Key) -> Object:
    """Return the revision of a number. Raises PermanentError that lists those that are kept."""
    for revision in retained:
        if revision.get("revision") == number:
            return revision
    numbers = ", ".join(str(revision.get("revision")) for revision in retained)
    raise PermanentError(f"revision {number} of {SET.kind} {key} is not kept; those that are: {numbers}")


def entries_of(retained: Sequence[Object], owner: Object) -> list[Document]:
    """Return what each revision is, oldest first. owner: the set as it is now."""
    before: Mapping[str, Any] | None = None
    entries = []
    for revision in retained:
        spec = spec_of(revision)
        entries.append(
            {
                "revision": revision.get("revision"),
                "when": annotation(revision, CHANGED_AT),
                "who": annotation(revision, CHANGED_BY),
                "why": annotation(revision, CHANGE_CAUSE),
                "isCurrent": revision is retained[-1] and spec == owner.get("spec"),
                "changes": [] if before is None else differences(before, spec, "spec"),
            }
        )
        before = spec
    return entries


def _row(entry: Document) -> tuple[str, ...]:
    current = " (current)" if entry["isCurrent"] else ""
    what = "; ".join(change_words(entry["changes"])) or "the first that is kept"
    return f"{entry['revision']}{current}", entry["when"], entry["who"] or "-", entry["why"] or "-", what


def change_words(changes: Sequence[Document]) -> Iterator[str]:
    """Yield what a person reads of some changed fields: the first ones, and the number of the rest."""
    for change in changes[:FIELDS_MAX]:
        yield f"{change['path']}: {_value(change['before'])} -> {_value(change['after'])}"
    if len(changes) > FIELDS_MAX:
        yield f"and {len(changes) - FIELDS_MAX} more"


def _value(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"({len(value)} {'fields' if isinstance(value, dict) else 'items'})"
    return part(one_line("nothing" if value is None else str(value)), VALUE_CHARACTERS_MAX)


def _show_spec(spec: Document, output: str) -> None:
    if output == "text":
        click.echo(yaml_text({"spec": spec}), nl=False)
    else:
        emit({"spec": spec}, output)


def former_of(retained: Iterable[Object], spec: Mapping[str, Any]) -> Object | None:
    """Return the newest revision with another spec than this one, None if all have it."""
    return next((each for each in reversed(list(retained)) if spec_of(each) != spec), None)
