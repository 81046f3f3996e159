"""`pvbus wait`: waits until a generation of a set or a variant is applied, ready or published.

Ready and applied are read as every subscriber may read them, from `pvbus.conditions.latest`, by the rule of
docs/events.md: an event counts if it is of this object (its uid) and its condition speaks of at least the
generation that is waited for. Which package revisions must be published is in two internal tables: the
variants of a set, and the revisions that each variant has been made into.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal, NamedTuple

import click
import msgspec

from pvbus.cli.fleet import Target, kubeconfig_option
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.reading import bus_option, data_option, live_object, open_existing_bus, read_rows, topic_on
from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import SET_API, ObjectMeta
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import ConditionKey, Key, SubjectKey
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import LATEST, RESULTS, SETS, VARIANTS, ResultRow
from pvbus.core.variants.notices import COUNTS_TYPE, LIFECYCLE_TYPE, REVISION
from pvbus.ports.bus import Bus, Reader, Record, TopicPartition
from pvbus.ports.cluster import Kind

Goal = Literal["ready", "applied", "published"]
TABLES = {SET: SETS, VARIANT: VARIANTS}
NOTICE_SECONDS = 1.0  # between two lines of progress: a set of 10,000 variants counts faster than people read


class _Object(msgspec.Struct):
    metadata: ObjectMeta


_event = msgspec.json.Decoder(ConditionEvent)
_object = msgspec.json.Decoder(_Object)
_result = msgspec.json.Decoder(ResultRow)


class Generation(NamedTuple):
    """What is waited for.

    target: the set or variant
    uid: its uid, as an object that was made again begins with generation 1
    number: its generation
    """

    target: Target
    uid: str
    number: int

    def __str__(self) -> str:
        return f"{self.target} at generation {self.number}"


class Verdict(NamedTuple):
    """Whether a goal is reached.

    holds: whether it is
    why: what is missing, in words
    """

    holds: bool
    why: str = ""


class Tables:
    """The last event of each condition, the variants of each set, and the revisions of each variant."""

    def __init__(self) -> None:
        self._latest: dict[str, ConditionEvent] = {}
        self._owners: dict[Key, Key] = {}
        self._revisions: dict[Key, tuple[str, ...]] = {}

    def apply(self, record: Record) -> None:
        """Apply a record of any topic of `TOPICS`."""
        key = record.key.decode(errors="replace")
        if is_marker(key):
            return
        if record.topic == LATEST:
            self._latest.pop(key, None)
            if record.value is not None:
                self._latest[key] = _event.decode(record.value)
            return
        variant = Key.parse(key)
        table = self._owners if record.topic == VARIANTS else self._revisions
        table.pop(variant, None)
        if record.value is not None and record.topic == VARIANTS:
            self._owners[variant] = _set_of(variant, record.value)
        elif record.value is not None:
            self._revisions[variant] = tuple(target.name for target in _result.decode(record.value).targets)

    def judge(self, wanted: Generation, goal: Goal) -> Verdict:
        """Return whether an object has reached a goal at this generation, or what is missing."""
        verdict = self._condition(wanted, goal)
        return self._publication(wanted.target) if verdict.holds and goal == "published" else verdict

    def _condition(self, wanted: Generation, goal: Goal) -> Verdict:
        target = wanted.target
        kind = COUNTS_TYPE if goal == "applied" and target.kind == SET else "Ready"
        event = self._last(target.kind.kind, target.key, kind)
        if event is None or event.uid != wanted.uid:
            return Verdict(False, f"no condition {kind} has been published yet")
        condition = event.condition
        if condition.observed_generation < wanted.number:
            return Verdict(False, f"{kind} still speaks of generation {condition.observed_generation}")
        if condition.status == "True":
            return Verdict(True)
        return Verdict(False, f"{kind}={condition.status} ({condition.reason}): {condition.message}")

    def _publication(self, target: Target) -> Verdict:
        """Judge whether each revision of each variant is published; a set without variants has none."""
        if target.kind == VARIANT:
            return self._published(target.key)
        variants = sorted(variant for variant, owner in self._owners.items() if owner == target.key)
        missing = [verdict for verdict in map(self._published, variants) if not verdict.holds]
        if not variants:
            return Verdict(False, "the set has no variants")
        if not missing:
            return Verdict(True)
        return Verdict(
            False, f"{len(variants) - len(missing)} of {len(variants)} published; {missing[0].why}"
        )

    def _published(self, variant: Key) -> Verdict:
        names = self._revisions.get(variant, ())
        for name in names:
            event = self._last(REVISION, Key(variant.namespace, name), LIFECYCLE_TYPE)
            lifecycle = event.condition.reason if event is not None else "not reported yet"
            if lifecycle not in PUBLISHED:
                return Verdict(False, f"PackageRevision {variant.namespace}/{name} is {lifecycle}")
        return Verdict(True) if names else Verdict(False, f"PackageVariant {variant} has no PackageRevision")

    def _last(self, kind: str, key: Key, condition: str) -> ConditionEvent | None:
        return self._latest.get(str(ConditionKey(str(SubjectKey(kind, str(key))), condition)))


TOPICS: dict[Goal, Sequence[str]] = {
    "ready": (LATEST,),
    "applied": (LATEST,),
    "published": (LATEST, VARIANTS, RESULTS),
}


def _set_of(variant: Key, value: bytes) -> Key:
    """Return the set that controls a variant; without one a key that no set has."""
    for owner in _object.decode(value).metadata.owner_references:
        if owner.controller and (owner.api_version, owner.kind) == (SET_API, SET.kind):
            return Key(variant.namespace, owner.name)
    return Key("", "")


@click.command(
    short_help="Wait until a change has arrived everywhere.",
    epilog="""\b
Examples:
  kubectl apply -f web.yaml && pvbus wait default/web      every variant of the set is ready with that change
  pvbus wait default/web --for applied                     every PackageVariant has the new spec
  pvbus wait default/web --for published --timeout 3600    no draft and no proposal is left
  pvbus wait default/web-eu --generation 4                 of one variant

A program does the same with the topic pvbus.conditions.latest alone: see docs/events.md.

Exit codes: 0 it is so; 1 not within the time, or there is no such object; 2 bad usage; 130 interrupted.
""",
)
@object_argument("[KIND] NAME", (SET, VARIANT))
@namespace_option
@click.option(
    "--for",
    "goal",
    type=click.Choice(["ready", "applied", "published"]),
    default="ready",
    show_default=True,
    help="applied: of a set, that every PackageVariant has its spec; of a variant the same as ready.",
)
@click.option(
    "--kind",
    type=click.Choice(["set", "variant"]),
    help="Needed only where a set and a variant have the same name.",
)
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    help="At least this metadata.generation; the present one if not given.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=300.0, show_default=True, help="Seconds; 0 looks once."
)
@kubeconfig_option
@data_option
@bus_option
def wait(
    words: tuple[str, ...],
    namespace: str | None,
    goal: Goal,
    kind: str | None,
    generation: int | None,
    timeout: float,
    kubeconfig: str | None,
    data: str,
    bus: str | None,
) -> int:
    """Wait for a PackageVariantSet or a PackageVariant, and show on stderr what is missing.

    The present generation is that of the API server, so a change that was just applied counts, even if no
    service has seen it yet. Without an API server it is the one that the services have seen.
    """
    kinds = {"set": (SET,), "variant": (VARIANT,), None: (SET, VARIANT)}[kind]
    target = named(words, kinds, Scope(namespace, data, kubeconfig))
    kinds = (target.kind,) if target.kind is not None else kinds
    return asyncio.run(_wait(target.key, kinds, goal, generation, timeout, kubeconfig, data, bus))


async def _wait(
    key: Key,
    kinds: Sequence[Kind],
    goal: Goal,
    number: int | None,
    timeout: float,
    kubeconfig: str | None,
    data: str,
    bus_url: str | None,
) -> int:
    async with open_existing_bus(data, bus_url) as bus:
        wanted = await _find(bus, key, kinds, kubeconfig, data)
        wanted = wanted if number is None else wanted._replace(number=number)
        click.echo(f"waiting until {wanted} is {goal}", err=True)
        why = await _follow(bus, wanted, goal, timeout)
    if why:
        click.echo(f"error: {wanted} is not {goal} after {timeout:g} s: {why}", err=True)
        return 1
    click.echo(f"{wanted} is {goal}")
    return 0


async def _find(bus: Bus, key: Key, kinds: Sequence[Kind], kubeconfig: str | None, data: str) -> Generation:
    """Return the present generation of an object. Raises PermanentError for none, UsageError for two."""
    found: list[Generation] = []
    silence = ""
    for kind in kinds:
        live = await live_object(data, kubeconfig, kind, key)
        if isinstance(live, str):
            silence = live
            seen = (await read_rows(bus, TABLES[kind], key=str(key))).get(str(key))
            meta = _object.decode(seen).metadata if seen is not None else None
        else:
            meta = msgspec.convert(live, _Object).metadata
        if meta is not None:
            found.append(Generation(Target(kind, key), meta.uid, meta.generation))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"there is a PackageVariantSet and a PackageVariant {key}: --kind names one of them")
    names = " or ".join(kind.kind for kind in kinds)
    raise PermanentError(
        f"{key}: there is no {names} of this name ({silence}): check namespace and name", reason="NotFound"
    )


async def _follow(bus: Bus, wanted: Generation, goal: Goal, timeout: float) -> str:
    """Return "" once the goal is reached, or what is missing after the timeout; print it when it changes."""
    partitions = [
        (topic, number) for topic in TOPICS[goal] for number in range((await topic_on(bus, topic)).partitions)
    ]
    tables, reader = Tables(), bus.reader(dict.fromkeys(partitions, 0))
    clock = asyncio.get_running_loop().time
    shown, next_notice, end = "", 0.0, clock() + timeout
    try:
        while True:
            await _catch_up(bus, reader, partitions, tables)
            verdict = tables.judge(wanted, goal)
            left = end - clock()
            if verdict.holds or left <= 0:
                return verdict.why
            if verdict.why != shown and clock() >= next_notice:
                click.echo(verdict.why, err=True)
                shown, next_notice = verdict.why, clock() + NOTICE_SECONDS
            for record in await reader.poll(timeout_seconds=min(left, NOTICE_SECONDS)):
                tables.apply(record)
    finally:
        await reader.close()


async def _catch_up(bus: Bus, reader: Reader, partitions: Sequence[TopicPartition], tables: Tables) -> None:
    """Read each topic to its present end: an event of one may be read before the rows that led to it."""
    ends = await bus.end_offsets(partitions)
    while any(reader.position(partition) < end for partition, end in ends.items()):
        for record in await reader.poll(timeout_seconds=NOTICE_SECONDS, max_records=10_000):
            tables.apply(record)
