"""`pvbus get`: lists variants, targets, conflicts and removals of a fleet of any size, from the bus."""

import asyncio
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from pvbus.cli.objectnames import Scope, named
from pvbus.cli.output import columns, emit
from pvbus.cli.progress import SET
from pvbus.cli.reading import bus_option, data_option, open_existing_bus
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import UsageError
from pvbus.core.web.listing import (
    LIMIT,
    URGENCY,
    Change,
    Entry,
    Listed,
    Page,
    Query,
    Watcher,
    check_query,
    counts_of,
    entries_of,
    page_of,
    value_at,
)
from pvbus.core.web.model import Model
from pvbus.ports.bus import Bus
from pvbus.runtime.web.reading import (
    POLL_SECONDS,
    Fleet,
    load_records,
    positions_of,
    read_fleet,
    read_resumed,
    resume_token,
)
from pvbus.telemetry.terminal import one_line

CUSTOM = "custom-columns="
OUTPUTS = ("text", "wide", "name", "json", "yaml")
COLUMNS: Mapping[Listed, Sequence[str]] = {
    Listed.VARIANTS: ("namespace", "name", "state", "reason", "lifecycle"),
    Listed.TARGETS: ("namespace", "name", "object", "state", "reason"),
    Listed.CONFLICTS: ("namespace", "name", "id", "file", "field"),
    Listed.REMOVALS: ("namespace", "name", "set", "removal", "reason"),
}
WIDE: Mapping[Listed, Sequence[str]] = {
    Listed.VARIANTS: ("set", "warning", "labels"),
    Listed.TARGETS: ("set", "repository", "package", "labels"),
    Listed.CONFLICTS: ("object", "revision", "lifecycle", "taken", "labels"),
    Listed.REMOVALS: ("state", "labels"),
}


class Asked(NamedTuple):
    """What a command line asks for, beside the query.

    limit: entries of a page
    token: continues a list, "" from its beginning
    count_by: fields and labels to count by; empty for a list
    output: of OUTPUTS, or custom columns
    """

    query: Query
    limit: int
    token: str
    count_by: tuple[str, ...]
    output: str


@click.command(
    short_help="List variants, targets, conflicts, removals.",
    epilog=f"""\b
Examples:
  pvbus get variants -l region=asia --state stalled    what stands still in one region
  pvbus get targets --count-by region,state            how many of each, for any number of targets
  pvbus get variants --sort-by state --limit 100       what needs a person first, in pages
  pvbus get conflicts -o wide                          see also: pvbus conflicts list
  pvbus get removals -A -o name
  pvbus get variants -o custom-columns=NAME:.name,REGION:.labels.region
  pvbus get variants -o json --watch                   a line for each change

\b
States: {", ".join(state.value for state in URGENCY)}.

Exit codes: 0 shown, also if there is none; 1 the bus does not answer, or a token belongs to another bus;
2 bad usage.
""",
)
@click.argument("kind", type=click.Choice([kind.value for kind in Listed]))
@click.option("-n", "--namespace", help="Look in this namespace; by default the kubeconfig's, else default.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Look in all namespaces.")
@click.option("--set", "set_name", metavar="[NAMESPACE/]SET", help="Only of this set.")
@click.option(
    "-l",
    "--selector",
    default="",
    help="Only with these labels, as for kubectl: of the package (spec.labels), its variant, its target and "
    "its set, the first one that has it.",
)
@click.option("--state", "states", multiple=True, help="Only in this state; several, or separated by commas.")
@click.option("--sort-by", default="name", show_default=True, help="A field, or a label.")
@click.option("--limit", default=LIMIT, show_default=True, help="Entries of a page.")
@click.option("--continue", "token", default="", help="The token of the page before.")
@click.option("--count-by", default="", help="Count instead: fields or labels, separated by commas.")
@click.option("-w", "--watch", is_flag=True, help="Then each change, until Ctrl-C.")
@click.option("--resume", default="", help="With --watch: what has changed since this token was given.")
@click.option(
    "-o",
    "--output",
    default="text",
    show_default=True,
    help=f"{', '.join(OUTPUTS)}, or {CUSTOM}HEAD:.FIELD,HEAD:.labels.NAME",
)
@data_option
@bus_option
def get(
    kind: str,
    namespace: str | None,
    all_namespaces: bool,
    set_name: str | None,
    selector: str,
    states: tuple[str, ...],
    sort_by: str,
    limit: int,
    token: str,
    count_by: str,
    watch: bool,
    resume: str,
    output: str,
    data: str,
    bus: str | None,
) -> int:
    """List what a fleet has, as the bus knows it: an entry for each variant, each target of a set, each
    conflict of a draft, or each removal that is held or under way.

    A page has a token while there are more: `--continue TOKEN` shows the next one, and all pages together
    have each entry once. With -o json the answer has `continue`, `remaining`, and `resume` for --watch.
    """
    if namespace and all_namespaces:
        raise UsageError("-n and -A contradict each other: leave one of them out")
    if resume and not watch:
        raise UsageError("--resume goes on with a watch: add --watch")
    scope = Scope(namespace, data)
    within = "" if all_namespaces else namespace or scope.default()
    key = str(named((set_name,), (SET,), scope).key) if set_name else ""
    query = query_of(kind, within, key, selector, states, sort_by)
    names = tuple(filter(None, (name.strip() for name in count_by.split(","))))
    asked = Asked(query, limit, token, names, output)
    check_query(query, names)
    _check_output(asked, watch=watch)
    try:
        asyncio.run(_get(asked, data, bus, resume, watch=watch))
    except KeyboardInterrupt:
        if not watch:
            raise
    return 0


def query_of(
    kind: str, namespace: str, set_name: str, selector: str, states: Iterable[str], sort_by: str = "name"
) -> Query:
    """Return a query. Raises UsageError for a selector that cannot be read."""
    try:
        requirements = parse_label_selector(selector)
    except ValueError as exc:
        raise UsageError(f"-l {selector}: {exc}") from exc
    wanted = frozenset(filter(None, (state.strip() for text in states for state in text.split(","))))
    return Query(Listed(kind), namespace, set_name, wanted, selector, requirements, sort_by)


def _check_output(asked: Asked, *, watch: bool) -> None:
    output = asked.output
    if output not in OUTPUTS and not output.startswith(CUSTOM):
        raise UsageError(f"-o {output}: there are {', '.join(OUTPUTS)} and {CUSTOM}HEAD:.FIELD,...")
    if output.startswith(CUSTOM):
        _custom(output)
    if asked.count_by and (watch or asked.token or output not in ("text", "json", "yaml")):
        raise UsageError(
            "--count-by counts once: leave out --watch and --continue, and use -o text, json or yaml"
        )
    if watch and (asked.token or output == "yaml"):
        raise UsageError("--watch begins with now or --resume, and has no -o yaml: leave out --continue")


async def _get(asked: Asked, data: str, bus_url: str | None, resume: str, *, watch: bool) -> None:
    async with open_existing_bus(data, bus_url) as bus:
        fleet = await (read_resumed(bus, resume) if resume else read_fleet(bus))
        for words in warnings_of(fleet):
            click.echo(f"warning: {words}", err=True)
        if asked.count_by:
            _show_counts(asked, fleet.model)
            return
        if not resume:
            _show_page(asked, fleet)
        if watch:
            await _watch(asked, bus, fleet)


def warnings_of(fleet: Fleet) -> Iterator[str]:
    """Yield what the bus does not have in full, in words."""
    for kind, why in fleet.model.incomplete():
        yield f"{kind}s may be missing: {why}"
    if fleet.unreadable:
        yield f"{fleet.unreadable} records of the bus cannot be read, and are left out"


# ------------------------------------------------------------ lists and counts


def _show_page(asked: Asked, fleet: Fleet) -> None:
    page = page_of(entries_of(fleet.model, asked.query), asked.query, limit=asked.limit, token=asked.token)
    if asked.output in ("json", "yaml"):
        emit(document_of(asked.query, page, fleet), asked.output)
        return
    if asked.output == "name":
        for entry in page.entries:
            click.echo(name_of(entry))
    elif page.entries:
        heads, shown = _columns(asked)
        columns(heads, (shown(entry) for entry in page.entries))
    else:
        click.echo(_nothing(asked), err=True)
    if page.token:
        more = f"{page.remaining} more: the same command with --continue {shlex.quote(page.token)}"
        click.echo(more, err=True)


def document_of(query: Query, page: Page, fleet: Fleet) -> dict[str, Any]:
    """Return the answer of `-o json`."""
    return {
        "kind": query.kind.value,
        "items": page.entries,
        "continue": page.token,
        "remaining": page.remaining,
        "resume": resume_token(fleet),
        "incomplete": list(warnings_of(fleet)),
    }


def _nothing(asked: Asked) -> str:
    query = asked.query
    where = f" in namespace {query.namespace}; -A looks in all" if query.namespace else ""
    chosen = " are selected" if query.selector or query.states or query.set_name else ""
    return f"no {query.kind.value}{chosen}{where}"


def name_of(entry: Entry) -> str:
    """Return what names an entry for other commands: a variant, or a conflict's revision."""
    kind, name = ("packagerevision", "revision") if "revision" in entry else ("packagevariant", "name")
    return f"{kind}/{entry['namespace']}/{entry[name]}"


def _columns(asked: Asked) -> tuple[Sequence[str], Callable[[Entry], list[str]]]:
    """Return the headings, and what returns the cells of an entry."""
    if asked.output.startswith(CUSTOM):
        custom = _custom(asked.output)
        return [head for head, _ in custom], lambda entry: [_cell(entry, name) for _, name in custom]
    kind = asked.query.kind
    fields = [*COLUMNS[kind], *(WIDE[kind] if asked.output == "wide" else ())]
    if asked.query.namespace:
        fields.remove("namespace")
    return [field.upper() for field in fields], lambda entry: [_cell(entry, field) for field in fields]


def _cell(entry: Entry, name: str) -> str:
    if name == "labels":
        return ",".join(f"{key}={value}" for key, value in sorted(entry["labels"].items())) or "-"
    if name == "values":
        return json.dumps(entry.get("values", {}), ensure_ascii=False)
    return value_at(entry, name) or "-"


def _custom(output: str) -> list[tuple[str, str]]:
    """Return headings and fields of custom columns. Raises UsageError."""
    pairs = [part.partition(":") for part in output.removeprefix(CUSTOM).split(",")]
    if wrong := [head for head, colon, name in pairs if not colon or not name.removeprefix(".") or not head]:
        raise UsageError(f'-o {CUSTOM}...: "{wrong[0]}" is no HEAD:.FIELD, for example REGION:.labels.region')
    return [(head, name.removeprefix(".")) for head, _, name in pairs]


def _show_counts(asked: Asked, model: Model) -> None:
    counts = counts_of(entries_of(model, asked.query), asked.count_by)
    if asked.output in ("json", "yaml"):
        total = sum(row["count"] for row in counts)
        emit({"kind": asked.query.kind.value, "counts": counts, "total": total}, asked.output)
    elif counts:
        heads = [*(name.upper() for name in asked.count_by), "COUNT"]
        columns(heads, ([str(value) or "-" for value in row.values()] for row in counts))
    else:
        click.echo(_nothing(asked), err=True)


# ------------------------------------------------------------ changes


async def _watch(asked: Asked, bus: Bus, fleet: Fleet) -> None:
    """Show each change. A reader that is told to stop learns how to go on."""
    watcher = Watcher(fleet.model, asked.query)
    ends = await bus.end_offsets(list(fleet.positions))
    reader = bus.reader(dict(fleet.positions))
    try:
        while True:
            catches_up = any(fleet.positions[each] < end for each, end in ends.items())
            records = await reader.poll(timeout_seconds=POLL_SECONDS)
            load_records(fleet.model, records)
            fleet = fleet._replace(positions=positions_of(reader, fleet.positions))
            fleet.model.publish()
            token = resume_token(fleet) if records else ""
            keys = ((record.topic, record.key.decode(errors="replace")) for record in records)
            for change in watcher.changes(keys, catches_up=catches_up):
                _show_change(asked, change, token)
    finally:
        if asked.output != "json":
            click.echo(f"to go on from here: --watch --resume {resume_token(fleet)}", err=True)
        await reader.close()


def _show_change(asked: Asked, change: Change, token: str) -> None:
    if asked.output == "json":
        line = {"type": change.type, "object": change.entry, "resume": token}
        click.echo(json.dumps(line, ensure_ascii=False))
    elif asked.output == "name":
        click.echo(name_of(change.entry))
    elif change.type == "DELETED":
        click.echo(f"{name_of(change.entry)}  {change.type}")
    else:
        click.echo("  ".join(map(one_line, (*_columns(asked)[1](change.entry), change.type))))
