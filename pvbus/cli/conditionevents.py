"""`pvbus conditions`: the last event of every condition, and every new one."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

import click
import msgspec

from pvbus.cli.get import query_of
from pvbus.cli.gone import DAY_SECONDS
from pvbus.cli.installprogress import is_trouble
from pvbus.cli.objectnames import NAMED_KINDS, Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, columns
from pvbus.cli.progress import KINDS, Judged, condition_of
from pvbus.cli.reading import bus_option, data_option, open_existing_bus, read_rows, topic_on
from pvbus.core.api.variants import Condition
from pvbus.core.errors import UsageError
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import KEPT_FOR, Key, ObjectKey, maker_of, okey
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.objectrows import REVISION, VARIANT
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.records import CONDITIONS, LATEST, OBJECTS, ObjectRow
from pvbus.core.kernel.topics import partition_key
from pvbus.core.promotion.protocol.rules import seconds_of
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.variants.conditions.subjects import OBSERVED
from pvbus.core.variants.severity import STOPS
from pvbus.core.web.listing import entries_of
from pvbus.ports.bus import Bus, Record, TopicPartition
from pvbus.ports.cluster import Kind
from pvbus.runtime.web.reading import read_fleet
from pvbus.runtime.yamltext import yaml_text

COLUMNS = ("TIME", "OBJECT", "TYPE", "STATUS", "REASON", "MESSAGE")
NOT_REPORTED = "NotReported"
_SINCE_EXAMPLES = "all, now, a duration such as 10m or 1h30m, or a time such as 2026-11-27T12:00:00Z"
_event = msgspec.json.Decoder(ConditionEvent)
_object = msgspec.json.Decoder(ObjectRow)
_REVISIONS = f"{REVISION}|"
_judged = msgspec.json.Decoder(Judged)
Wanted = Callable[[ConditionEvent], bool]


class Only(NamedTuple):
    """Which objects are shown.

    namespace: only those of this namespace, None for all
    name: only those of this key, None for all
    kind: only those of this kind, None for all
    variants: only these variants, by key; None for all objects
    """

    namespace: str | None
    name: str | None = None
    kind: Kind | None = None
    variants: frozenset[str] | None = None

    def has(self, event: ConditionEvent) -> bool:
        """Return whether an event is of such an object."""
        if self.kind is not None and event.kind != self.kind.kind:
            return False
        if self.variants is not None:
            return f"{event.namespace}/{event.name}" in self.variants
        if self.name is not None:
            return f"{event.namespace}/{event.name}" == self.name
        return self.namespace in (None, event.namespace)


@click.command(
    short_help="Show every object's conditions, and changes.",
    epilog="""\b
Examples:
  pvbus conditions                           the last event of each condition of every object
  pvbus conditions default/web               of the objects of this name, whatever their kinds
  pvbus conditions pvs/web -n default        of this set
  pvbus conditions provider/aws              of an install of Crossplane's family, which has no namespace
  pvbus conditions --not-ready               sets, variants, Repositories and installs that are not ready
  pvbus conditions -l region=asia            of the variants with this label
  pvbus conditions --follow                  changes as they come, and nothing before; also -w
  pvbus conditions --since 10m pvs/web       what has changed in the last ten minutes
  pvbus conditions --follow -o json          a line of JSON per condition, and then per change

The lifecycle of a variant's package revision is its condition Published, with the lifecycle as the
reason: Draft, Proposed, Published, DeletionProposed, and Deleted as the last event. The conditions
that are readiness gates or tasks of such a revision follow it. For a variant or a set that is gone, the
drafts that stayed, as people had edited them, are shown: they have the condition Kept. Installs of
packages and their revisions have the conditions of their status.

Exit codes: 0 shown, 1 there is no such object, 2 bad usage.
""",
)
@object_argument("[[KIND] NAME]", NAMED_KINDS, required=False)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Show all namespaces, as without -n.")
@click.option(
    "-l", "--selector", default="", help="Only of the variants with these labels, as for pvbus get."
)
@click.option(
    "-w", "--follow", "--watch", is_flag=True, help="Show every change from now on until interrupted."
)
@click.option(
    "--since",
    metavar="all|now|10m|TIME",
    help="From when on changes are shown, as far as the bus has them; all: first the last event of each "
    "condition. [default: all; with --follow and text now]",
)
@click.option("--not-ready", is_flag=True, help="Only conditions that ask for attention.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@data_option
@bus_option
def conditions(
    words: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    selector: str,
    follow: bool,
    since: str | None,
    not_ready: bool,
    output: str,
    data: str,
    bus: str | None,
) -> int:
    """Show conditions as consumers of the bus see them.

    Text is a table, and a line per change; json is a line per event, and yaml a document, with the event's
    id, so that a program can tell repetitions apart. Events of one object come in the order of their times.
    With --not-ready an object that nothing was published of yet has a line with reason NotReported and no id.
    """
    now = datetime.now(UTC)
    default = "now" if follow and output == "text" else "all"
    begin = _since_of(default if since is None else since, now)
    if begin == now and not follow:
        raise UsageError("nothing has changed since now: add --follow, or name an earlier time")
    if namespace and all_namespaces:
        raise UsageError("-n and -A contradict each other: leave one of them out")
    if selector and (words or follow):
        raise UsageError(
            "-l chooses among the variants that there are: leave out the name and --follow; to follow them: "
            f"pvbus get variants -l {selector} --watch"
        )
    only = Only(namespace)
    if selector:
        only = asyncio.run(_read_labelled(selector, namespace or "", data, bus))
    if words:
        target = named(words, NAMED_KINDS, Scope(namespace, data))
        only = Only(None, str(target.key), target.kind)
    try:
        if begin is None:
            code = asyncio.run(_conditions(only, follow, not_ready, output, data, bus))
        else:
            work = _changes(only, None if begin == now else begin, follow, not_ready, output, data, bus)
            code = asyncio.run(work)
    except KeyboardInterrupt:
        if not follow:
            raise
        code = 0
    return code


async def _read_labelled(selector: str, namespace: str, data: str, bus_url: str | None) -> Only:
    """Return the variants with these labels. Raises UsageError if there is none: that is mistyped."""
    query = query_of("variants", namespace, "", selector, ())
    async with open_existing_bus(data, bus_url) as bus:
        model = (await read_fleet(bus)).model
    variants = frozenset(f"{entry['namespace']}/{entry['name']}" for _, entry in entries_of(model, query))
    if not variants:
        raise UsageError(
            f"-l {selector}: no variant{f' in {namespace}' if namespace else ''} has these labels"
        )
    return Only(None, None, VARIANT, variants)


async def _conditions(
    only: Only, follow: bool, not_ready: bool, output: str, data: str, bus_url: str | None
) -> int:
    name = only.name
    stayed: list[str] = []

    def wanted(event: ConditionEvent) -> bool:
        is_chosen = only.has(event) or f"{event.namespace}/{event.name}" in stayed
        return is_chosen and (not not_ready or asks_for_attention(event))

    async with open_existing_bus(data, bus_url) as bus:
        # The end offsets first, so that changes during the read of the table are shown, too.
        begin = await _ends(bus)
        latest = await _latest(bus, only)
        if name is not None and not latest:
            stayed += await _read_drafts_that_stayed(bus, Key.parse(name))
            drafts = [await _latest(bus, Only(None, draft)) for draft in stayed]
            latest = {key: row for events in drafts for key, row in events.items()}
        shown = [event for event in latest.values() if wanted(event)]
        if not_ready:
            shown += filter(only.has, await _read_unreported(bus, name, shown))
        shown.sort(key=lambda e: (e.namespace, e.name, e.kind, e.time, e.condition.type))
        code = 0 if name is None or latest else await _nothing_of(bus, name, only.kind)
        if shown:
            _show_table(shown, output)
        elif code == 0 and not_ready:
            labelled = " with these labels" if only.variants is not None else ""
            of_namespace = f" in {only.namespace}" if only.namespace else ""
            click.echo(f"{name or f'everything{labelled}{of_namespace}'} is ready", err=True)
        if not follow:
            return code
        await _follow(bus, begin, partial(newer_than, latest), wanted, output)
    return 0


async def _changes(
    only: Only,
    since: datetime | None,
    follow: bool,
    not_ready: bool,
    output: str,
    data: str,
    bus_url: str | None,
) -> int:
    """Show changes.

    since: only those of this time and later; None for those that are written from now on
    """

    def wanted(event: ConditionEvent) -> bool:
        return only.has(event) and (not not_ready or asks_for_attention(event))

    def recent(events: Iterable[ConditionEvent]) -> Iterable[ConditionEvent]:
        late = [event for event in events if since is None or _is_since(event.time, since)]
        return sorted(late, key=lambda event: event.time)

    async with open_existing_bus(data, bus_url) as bus:
        end = await _ends(bus)
        click.echo(await _beginning(bus, since), err=True)
        is_known = only.name is None or bool(await _latest(bus, only))
        if follow and only.name is not None and not is_known:
            await _nothing_of(bus, only.name, only.kind)
        begin = end if since is None else dict.fromkeys(end, 0)
        has_events = await _follow(bus, begin, recent, wanted, output, until_end=not follow)
        if is_known or has_events:
            return 0
        return await _nothing_of(bus, only.name or "", only.kind)


async def _beginning(bus: Bus, since: datetime | None) -> str:
    """Return in a line from when on changes are shown."""
    now = time.time()
    if since is None:
        return f"changes from now on, {timestamp(now)}; --since all shows first how it is now"
    retention = (await topic_on(bus, CONDITIONS)).retention_seconds
    note = ""
    if retention and since.timestamp() < now - retention:
        note = f"; the bus keeps changes for {retention / DAY_SECONDS:g} days, earlier ones may be gone"
    return f"changes since {timestamp(since.timestamp())}{note}"


async def _ends(bus: Bus) -> dict[TopicPartition, int]:
    count = (await topic_on(bus, CONDITIONS)).partitions
    return dict(await bus.end_offsets([(CONDITIONS, number) for number in range(count)]))


async def _latest(bus: Bus, only: Only) -> dict[str, ConditionEvent]:
    """Return the latest events of the chosen objects, by key."""
    rows = await read_rows(bus, LATEST, key=only.name)
    events = {
        key: _event.decode(value)
        for key, value in rows.items()
        if only.name is None or partition_key(LATEST, key) == only.name
    }
    return {key: event for key, event in events.items() if only.has(event)}


async def _read_drafts_that_stayed(bus: Bus, key: Key) -> list[str]:
    """Return the drafts that stayed when a variant, or the variants of a set, went."""
    found = []
    for name, value in (await read_rows(bus, OBJECTS)).items():
        if not name.startswith(_REVISIONS):
            continue
        revision, row = ObjectKey.parse(name), _object.decode(value)
        is_of_it = revision.namespace == key.namespace and key.name in maker_of(
            row.annotations.get(KEPT_FOR, "")
        )
        if is_of_it and not row.owners:
            found.append(f"{revision.namespace}/{revision.name}")
    return sorted(found)


async def _read_unreported(
    bus: Bus, name: str | None, shown: Iterable[ConditionEvent]
) -> list[ConditionEvent]:
    """Return an event for each set and variant that is not ready and that has no event yet."""
    known = {(event.kind, event.namespace, event.name) for event in shown}
    found = []
    for topic, kind in KINDS.items():
        for key, value in (await read_rows(bus, topic, key=name)).items():
            if is_marker(key) or name not in (None, key):
                continue
            obj = _judged.decode(value)
            if (kind, *Key.parse(key)) not in known and not obj.ready:
                found.append(_unknown(kind, Key.parse(key), obj))
    return found


def _unknown(kind: str, key: Key, obj: Judged) -> ConditionEvent:
    last = condition_of(obj.status.conditions, "Ready")
    condition = Condition(
        type="Ready",
        status="Unknown",
        reason="Terminating" if obj.metadata.deletion_timestamp else NOT_REPORTED,
        message=obj.why,
        last_transition_time=last.last_transition_time if last is not None else None,
    )
    return ConditionEvent(kind=kind, namespace=key.namespace, name=key.name, uid="", condition=condition)


async def _nothing_of(bus: Bus, name: str, only: Kind | None) -> int:
    """Report why there is no condition of an object; return the exit code."""
    kinds = [kind for topic, kind in KINDS.items() if name in await read_rows(bus, topic, key=name)]
    for kind in OBSERVED:
        key = okey(*kind, *Key.parse(name))
        kinds += [kind.kind] if key in await read_rows(bus, OBJECTS, key=key) else []
    kinds = [kind for kind in kinds if only is None or kind == only.kind]
    if kinds:
        click.echo(f"{' and '.join(kinds)} {name}: no condition has been published yet", err=True)
        return 0
    missing = (
        "PackageVariantSet, PackageVariant, PackageRevision, Repository, RolloutPolicy or PackageInstall"
    )
    click.echo(
        f"{name}: there is no {missing if only is None else only.kind} of this name; check "
        "namespace and name (pvbus conditions lists all)",
        err=True,
    )
    return 1


async def _follow(
    bus: Bus,
    begin: dict[TopicPartition, int],
    choose: Callable[[list[ConditionEvent]], Iterable[ConditionEvent]],
    wanted: Wanted,
    output: str,
    *,
    until_end: bool = False,
) -> bool:
    """Show every new event; return whether there was one.

    choose: returns those to show of the events that are written already, such as events that no table shows
    until_end: whether to show these alone
    """
    end = await _ends(bus)
    reader = bus.reader(begin)
    early: list[ConditionEvent] = []
    while any(reader.position(bus_url) < offset for bus_url, offset in end.items()):
        early += _events(await reader.poll(timeout_seconds=1.0))
    events = list(choose(early))
    while True:
        for event in events:
            if wanted(event):
                _show_line(event, output)
        if until_end:
            await reader.close()
            return any(map(wanted, events))
        events = _events(await reader.poll(timeout_seconds=1.0))


def newer_than(
    latest: dict[str, ConditionEvent], events: Iterable[ConditionEvent]
) -> Iterator[ConditionEvent]:
    """Leave out events that the table already shows, and earlier ones of the same condition."""
    events = list(events)
    last = {event.id: number for number, event in enumerate(events)}
    shown = {key: last[event.id] for key, event in latest.items() if event.id in last}
    for number, event in enumerate(events):
        key = f"{event.kind}|{event.namespace}/{event.name}|{event.condition.type}"
        if number > shown.get(key, -1):
            yield event


def asks_for_attention(event: ConditionEvent) -> bool:
    """Return whether an object is not ready, and this condition says so."""
    of_install = is_trouble(event.kind, event.condition)
    if of_install is not None:
        return of_install
    type_, status = event.condition.type, event.condition.status
    return (type_ == "Ready" and status != "True") or (type_ in (*STOPS, ATTENTION) and status == "True")


def _events(records: Iterable[Record]) -> list[ConditionEvent]:
    return [_event.decode(record.value) for record in records if record.value is not None]


def _show_table(events: list[ConditionEvent], output: str) -> None:
    if output != "text":
        for event in events:
            _show_line(event, output)
        return
    columns(COLUMNS, map(_fields, events))


def _show_line(event: ConditionEvent, output: str) -> None:
    if output == "json":
        click.echo(msgspec.json.encode(event))
    elif output == "yaml":
        click.echo(f"---\n{yaml_text(msgspec.to_builtins(event))}", nl=False)
    else:
        click.echo("  ".join(_fields(event)))


def _fields(event: ConditionEvent) -> tuple[str, ...]:
    condition = event.condition
    changed = event.previous not in ("", condition.status)
    change = f"{event.previous} -> {condition.status}" if changed else condition.status
    name = "/".join(filter(None, (event.kind, event.namespace, event.name)))
    time = event.time or condition.last_transition_time or ""
    return time, name, condition.type, change, condition.reason, condition.message


def _since_of(text: str, now: datetime) -> datetime | None:
    """Return the time that an option names, None for `all`. Raises UsageError.

    now: the present time, with a time zone
    """
    if text == "all":
        return None
    since = now if text == "now" else _time_of(text, now)
    if since is None:
        raise UsageError(f'--since "{text}": give {_SINCE_EXAMPLES}')
    if since.tzinfo is None:
        raise UsageError(f'--since "{text}" has no time zone: end it with Z or an offset such as +02:00')
    if since > now:
        raise UsageError(f'--since "{text}" is in the future: leave it out to see what comes')
    return since


def _time_of(text: str, now: datetime) -> datetime | None:
    try:
        return now - timedelta(seconds=seconds_of(text)) if text else None
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _is_since(time: str, since: datetime) -> bool:
    """Return whether the time of an event, "" if it has none, is not before another."""
    return bool(time) and datetime.fromisoformat(time) >= since
