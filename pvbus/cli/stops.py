"""`pvbus rollout stop` and `lift`: stop all rollouts of an installation, and let them go on."""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import click
import msgspec

from pvbus.cli.fleet import api_server, kubeconfig_option, persist, require_served, run_connected
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import counted
from pvbus.cli.reading import data_option
from pvbus.cli.rolloutorders import REASON_CHARACTERS_MAX, user_name
from pvbus.core.api.stops import RolloutStop, RolloutStopSpec, StopEntry, StopLift, words_of
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import STOP
from pvbus.core.kernel.objects import timestamp
from pvbus.ports.cluster import Cluster, Object

NAME = "fleet"
NAMESPACE = "default"
CONFIRM_SECONDS = 60.0
LOOK_SECONDS = 0.2
FORMER_MAX = 20
"""Of the last entries, lifted ones stay, too: it is known who stopped and lifted, and the object is small."""


class Written(NamedTuple):
    """A stop as it was written. entry: the name of the new entry."""

    key: Key
    generation: int
    entry: str


# ------------------------------------------------------------ decisions


def with_entry(spec: RolloutStopSpec, entry: StopEntry) -> RolloutStopSpec:
    """Return a stop with one more entry, whose name is the next number."""
    numbers = [int(each.name) for each in spec.entries if each.name.isdecimal()]
    named = msgspec.structs.replace(entry, name=str(max(numbers, default=0) + 1))
    former = (
        each
        for n, each in enumerate(spec.entries, FORMER_MAX - len(spec.entries))
        if n >= 0 or not each.lifted
    )
    return RolloutStopSpec(entries=(*former, named))


def without_entry(stop: RolloutStop, name: str, lift: StopLift) -> RolloutStopSpec:
    """Return a stop of which an entry is lifted. name: "" for the only one. Raises PermanentError."""
    lasting = stop.spec.lasting
    matching = [each for each in lasting if name in ("", each.name)]
    key = Key(stop.metadata.namespace, stop.metadata.name)
    if not matching:
        lasts = ", ".join(each.name for each in lasting) or "none"
        raise PermanentError(
            f"{key} has no entry {name or 'to lift'}: the entries that are not lifted are {lasts}"
        )
    if len(matching) > 1:
        entries = "; ".join(f"{each.name}: {words_of(each)}" for each in lasting)
        raise PermanentError(f"{key} has several entries, name the one to lift: {entries}")
    return RolloutStopSpec(
        entries=tuple(
            msgspec.structs.replace(each, lifted=lift) if each == matching[0] else each
            for each in stop.spec.entries
        )
    )


def unconfirmed(stop: RolloutStop) -> list[str] | None:
    """Return the partitions of release that do not follow a stop yet, None if none has confirmed any."""
    status = stop.status
    if not status.partitions:
        return None
    numbers = map(str, range(status.partitions))
    return [number for number in numbers if status.confirmed.get(number, 0) < stop.metadata.generation]


def lines_of(stops: Iterable[RolloutStop]) -> list[str]:
    """Return a line for each entry that lasts."""
    lines = []
    for stop in stops:
        key = Key(stop.metadata.namespace, stop.metadata.name)
        left = unconfirmed(stop)
        state = (
            "not confirmed by release"
            if left is None
            else f"{counted(len(left), 'partition')} to confirm"
            if left
            else ""
        )
        for entry in stop.spec.lasting:
            roll_backs = "rollbacks go on" if entry.let_roll_backs else "rollbacks, too"
            details = ", ".join(filter(None, (roll_backs, state)))
            lines.append(f"ALL ROLLOUTS ARE STOPPED ({details}) by {words_of(entry)}")
            lines.append(f"  to lift it: pvbus rollout lift {key} {entry.name} --reason TEXT")
    return lines


# ------------------------------------------------------------ the API server


async def read_stops(cluster: Cluster, namespace: str | None = None) -> list[RolloutStop]:
    """Read all stops, () where the API server does not serve the kind."""
    resource = await cluster.resource(STOP)
    if resource is None:
        return []
    listed = await cluster.list(resource, namespace)
    return sorted(
        (msgspec.convert(each, RolloutStop) for each in listed.items),
        key=lambda stop: (stop.metadata.namespace, stop.metadata.name),
    )


async def write_stop(cluster: Cluster, namespace: str | None, entry: StopEntry) -> Written:
    """Add an entry to an existing stop, or create one."""
    resource = await require_served(cluster, STOP)

    async def attempt() -> Object:
        stops = await read_stops(cluster, namespace)
        if not stops:
            return await cluster.create(resource, _body(namespace or NAMESPACE, RolloutStopSpec(), entry))
        stop = next((each for each in stops if each.spec.lasting), stops[0])
        found = await cluster.get(resource, stop.metadata.namespace, stop.metadata.name)
        if found is None:
            return await cluster.create(resource, _body(stop.metadata.namespace, RolloutStopSpec(), entry))
        spec = with_entry(msgspec.convert(found, RolloutStop).spec, entry)
        return await cluster.update(resource, {**found, "spec": msgspec.to_builtins(spec)})

    written = msgspec.convert(await persist(attempt), RolloutStop)
    meta = written.metadata
    return Written(Key(meta.namespace, meta.name), meta.generation, written.spec.entries[-1].name)


def _body(namespace: str, spec: RolloutStopSpec, entry: StopEntry) -> Object:
    return {
        "apiVersion": RolloutStop().api_version,
        "kind": STOP.kind,
        "metadata": {"namespace": namespace, "name": NAME},
        "spec": msgspec.to_builtins(with_entry(spec, entry)),
    }


async def wait_for_release(cluster: Cluster, written: Written, seconds: float) -> str:
    """Wait until each partition of release keeps a stop. Raises PermanentError if one does not in time."""
    resource = await require_served(cluster, STOP)
    deadline = time.monotonic() + seconds
    while True:
        found = await cluster.get(resource, *written.key)
        if found is None:
            raise PermanentError(f"{written.key} was deleted meanwhile: nothing is stopped any more")
        stop = msgspec.convert(found, RolloutStop)
        left = unconfirmed(stop)
        if left == []:
            return f"each of {stop.status.partitions} partitions of release keeps it"
        if time.monotonic() > deadline:
            who = (
                "release has not" if left is None else f"release of the partitions {', '.join(left)} has not"
            )
            raise PermanentError(
                f"{written.key} is written, but {who} confirmed it after {seconds:g} s: until then orders "
                "may be carried out. See who is away: pvbus lag release; pvbus lag ingest"
            )
        await asyncio.sleep(LOOK_SECONDS)


async def lift(cluster: Cluster, key: Key, name: str, end: StopLift) -> str:
    """Lift an entry; return the message."""
    resource = await require_served(cluster, STOP)

    async def attempt() -> Object:
        found = await cluster.get(resource, *key)
        if found is None:
            raise PermanentError(f"there is no RolloutStop {key}: check namespace and name")
        spec = without_entry(msgspec.convert(found, RolloutStop), name, end)
        return await cluster.update(resource, {**found, "spec": msgspec.to_builtins(spec)})

    written = msgspec.convert(await persist(attempt), RolloutStop)
    others = [each for stop in await read_stops(cluster) for each in stop.spec.lasting]
    if written.spec.lasting or others:
        left = others or written.spec.lasting
        return f"{key}: lifted; rollouts stay stopped by {'; '.join(map(words_of, left))}"
    return f"{key}: lifted; rollouts go on"


async def lift_as_user(cluster: Cluster, key: Key, name: str, reason: str) -> str:
    """Lift an entry as the user of the API server, now; return the message."""
    by = await user_name(cluster)
    return await lift(cluster, key, name, StopLift(reason=reason, by=by, at=timestamp(time.time())))


# ------------------------------------------------------------ commands


@click.command(
    "stop",
    short_help="Stop all rollouts at once.",
    epilog="""\b
Examples:
  pvbus rollout stop --all --reason "payments are down"
  pvbus rollout stop --all --reason "bad release" --let-roll-backs

Exit codes: 0 each release keeps it; 1 it is not written, or not each release has confirmed it; 2 bad usage.
""",
)
@click.option("--all", "is_all", is_flag=True, help="All rollouts of the installation. Needed.")
@click.option("--reason", required=True, help="Why, for those who find everything stopped.")
@click.option("--let-roll-backs", is_flag=True, help="Let rollbacks go on.")
@click.option("-n", "--namespace", help="Where the object is made and looked for, if pvbus sees only some.")
@click.option("--timeout", default=CONFIRM_SECONDS, show_default=True, help="Seconds to wait for release.")
@kubeconfig_option
@data_option
def stop_command(
    is_all: bool,
    reason: str,
    let_roll_backs: bool,
    namespace: str | None,
    timeout: float,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Stop all rollouts: nothing more is approved or rolled back, and no time counts, until it is lifted.

    Returns when each release has confirmed that it keeps the stop: none carries out an order after that.
    Orders are taken back still, and drafts are proposed. Several people may stop, each with a reason.
    """
    if not is_all:
        raise UsageError("give --all: this stops every rollout. One policy alone: pvbus rollout pause")
    entry = StopEntry(reason=_checked(reason), at=timestamp(time.time()), let_roll_backs=let_roll_backs)

    async def run() -> None:
        async with api_server(data, kubeconfig) as cluster:
            by = await user_name(cluster)
            written = await write_stop(cluster, namespace, msgspec.structs.replace(entry, by=by))
            command = f"pvbus rollout lift {written.key} {written.entry} --reason TEXT"
            click.echo(f"{written.key}: all rollouts are stopped. To lift it: {command}")
            click.echo(await wait_for_release(cluster, written, timeout))

    asyncio.run(run())


@click.command(
    "lift",
    short_help="Lift a stop of all rollouts.",
    epilog="""\b
Examples:
  pvbus rollout lift default/fleet --reason "payments are back"
  pvbus rollout lift default/fleet 2 --reason "mine was a mistake"

Exit codes: 0 lifted; 1 there is no such entry, or several; 2 bad usage.
""",
)
@object_argument("[KIND] NAME [ENTRY]", (STOP,))
@namespace_option
@click.option("--reason", required=True, help="Why, for those who read it later.")
@kubeconfig_option
@data_option
def lift_command(
    words: tuple[str, ...], namespace: str | None, reason: str, kubeconfig: str | None, data: str
) -> None:
    """Lift one entry of a stop: rollouts go on when the last one is lifted.

    The object stays, and has the reason, who gave it, and when. Whoever deletes it lifts all entries.
    """
    stop = named(words, (STOP,), Scope(namespace, data, kubeconfig), rest_max=1)
    work = partial(lift_as_user, key=stop.key, name="".join(stop.rest), reason=_checked(reason))
    click.echo(asyncio.run(run_connected(data, kubeconfig, work)))


def _checked(reason: str) -> str:
    if not reason.strip() or len(reason) > REASON_CHARACTERS_MAX:
        raise UsageError(f"--reason: say why, in at most {REASON_CHARACTERS_MAX} characters")
    return reason.strip()
