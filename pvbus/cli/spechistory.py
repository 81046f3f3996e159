"""`pvbus history`: what changed in an object, when, and by whom.

Of a set and a RolloutPolicy these are the former specs, as their services keep them; of a variant its package
revisions and its Events.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from pvbus.cli.differences import differences
from pvbus.cli.fleet import existing, kubeconfig_option, run_connected
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns, emit
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.reading import data_option
from pvbus.cli.varianthistory import read_variant_history, show_variant_history
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.objectrows import POLICY
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.specretention import (
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
KINDS = (SET, POLICY, VARIANT)
KEEPERS = {SET: "conditions", POLICY: "rollout"}
"""The service that keeps the former specs of a kind."""
VALUE_CHARACTERS_MAX = 40
FIELDS_MAX = 3


@click.command(
    short_help="List who changed a set, a policy or a variant, and when.",
    epilog="""\b
Examples:
  pvbus history packagevariantset/web             or: pvbus history default/web
  pvbus history pvs web -n default --revision 3   the whole spec of a revision
  pvbus undo packagevariantset/web                back to the revision before
  pvbus history rolloutpolicy/web                 who changed the waves; pvbus undo takes that back, too
  pvbus history pv/web-edge-asia-asia-01-web      the packages of a variant, and its Events

Exit codes: 0 shown; 1 there is no such object or revision, or nothing is kept; 2 bad usage.
""",
)
@object_argument("[KIND] NAME", KINDS)
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
    """List the newest ten specs of a PackageVariantSet or a RolloutPolicy: when each came, who wrote it, and
    what it changed.

    Each spec is kept as a ControllerRevision that the object owns: by the service conditions for sets, by
    rollout for policies. WHO is the program that wrote the fields, as managedFields name it. WHY is the
    object's annotation kubernetes.io/change-cause at that time.

    For a PackageVariant it lists the package revisions instead, with who made or published each and why, and
    the newest Events.
    """
    kind, key, _ = named(words, KINDS, Scope(namespace, data, kubeconfig))
    if kind == VARIANT:
        if revision is not None:
            raise UsageError("--revision is for a set or a policy: pvbus diff shows what a package changes")
        document = asyncio.run(run_connected(data, kubeconfig, partial(read_variant_history, key=key)))
        emit(document, output) if output != "text" else show_variant_history(document)
        return
    kind = kind or SET
    owner, retained = asyncio.run(run_connected(data, kubeconfig, partial(read_history, kind=kind, key=key)))
    if revision is not None:
        _show_spec(spec_of(revision_numbered(retained, revision, kind, key)), output)
        return
    name = "set" if kind == SET else "policy"
    document = {name: str(key), "revisions": entries_of(retained, owner)}
    if output != "text":
        emit(document, output)
        return
    columns(
        ("REVISION", "WHEN", "WHO", "WHY", "CHANGE"), [_row(entry) for entry in entries_of(retained, owner)]
    )


async def read_history(cluster: Cluster, kind: Kind, key: Key) -> tuple[Object, list[Object]]:
    """Read a set or policy and its revisions, oldest first. Raises PermanentError where none is kept."""
    owner = await existing(cluster, kind, key)
    resource = await cluster.resource(REVISION)
    uid = owner["metadata"]["uid"]
    if resource is None:
        raise PermanentError("the API server does not serve ControllerRevision (apps): no spec is kept there")
    listing = await cluster.list(resource, key.namespace, label_selector=selector_of(kind.kind, uid))
    retained = revisions_of(listing.items, uid)
    if not retained:
        raise PermanentError(
            f"no spec of {kind.kind} {key} is kept: the service {KEEPERS[kind]} keeps them, if it runs and "
            "has the rights list, create and delete on controllerrevisions.apps; pvbus doctor tells"
        )
    return owner, retained


def revision_numbered(retained: Sequence[Object], number: int, kind: Kind, key: Key) -> Object:
    """Return the revision of a number. Raises PermanentError that lists those that are kept."""
    for revision in retained:
        if revision.get("revision") == number:
            return revision
    numbers = ", ".join(str(revision.get("revision")) for revision in retained)
    raise PermanentError(f"revision {number} of {kind.kind} {key} is not kept; those that are: {numbers}")


def entries_of(retained: Sequence[Object], owner: Object) -> list[Document]:
    """Return what each revision is, oldest first. owner: the object as it is now."""
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
