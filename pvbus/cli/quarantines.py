"""`pvbus rollout quarantines` and `release`: what must not go out again, and its end by a person."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial

import click
import msgspec

from pvbus.cli.fleet import api_server, existing, kubeconfig_option, require_served, run_connected
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import columns, counted
from pvbus.cli.reading import data_option
from pvbus.cli.rolloutorders import REASON_CHARACTERS_MAX, user_name
from pvbus.core.api.quarantines import Quarantine, QuarantineRelease, QuarantineSpec
from pvbus.core.errors import UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.objects import timestamp
from pvbus.ports.cluster import Cluster, Object


def row_of(quarantine: Quarantine) -> tuple[str, ...]:
    """Return what a quarantine covers, and how it stands, in cells."""
    meta, spec = quarantine.metadata, quarantine.spec
    covered = [each.revision for each in spec.upstreams]
    covered += [" + ".join(each.upstreams) for each in spec.combinations]
    covered += [counted(len(spec.contents), "content")] if spec.contents else []
    released = spec.released
    state = "lasts" if released is None else f"released by {released.by or 'unknown'}: {released.reason}"
    sets = ", ".join(spec.sets) or "every set"
    return f"{meta.namespace}/{meta.name}", ", ".join(covered), sets, state, spec.message or spec.reason


def released(found: Object, reason: str, by: str, at: str) -> Object | None:
    """Return a quarantine with its end, None if it has ended already."""
    if msgspec.convert(found, Quarantine).spec.released is not None:
        return None
    end = msgspec.to_builtins(QuarantineRelease(reason=reason, by=by, at=at))
    return {**found, "spec": {**found["spec"], "released": end}}


def still_covering(ended: Quarantine, others: Iterable[Quarantine]) -> list[str]:
    """Return the names of the quarantines that last, and that cover some of what another one covered."""
    return sorted(
        other.metadata.name
        for other in others
        if other.spec.released is None and other.metadata.name != ended.metadata.name
        if _share(ended.spec.sets, other.spec.sets) and names_in(ended.spec) & names_in(other.spec)
    )


def _share(sets: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether two scopes have a set in common. Without sets one has all."""
    return not sets or not others or not set(sets).isdisjoint(others)


def names_in(spec: QuarantineSpec) -> set[str | tuple[str, ...]]:
    """Return the upstream revisions, digests of files, contents and combinations that a quarantine names."""
    upstreams = {each for upstream in spec.upstreams for each in (upstream.revision, upstream.files) if each}
    return {*upstreams, *spec.contents, *(tuple(sorted(each.upstreams)) for each in spec.combinations)}


@click.command(
    "quarantines",
    short_help="List what must not go out again.",
    epilog="""\b
Examples:
  pvbus rollout quarantines
  pvbus rollout quarantines -n default --all

Exit codes: 0 done; 1 the API server does not serve Quarantines; 2 bad usage.
""",
)
@click.option("-n", "--namespace", help="Namespace of the quarantines; all namespaces without it.")
@click.option("--all", "shows_all", is_flag=True, help="Show those that a person has ended, too.")
@kubeconfig_option
@data_option
def quarantines_command(namespace: str | None, shows_all: bool, kubeconfig: str | None, data: str) -> None:
    """List what is quarantined: of it nothing is proposed, approved or restored before a person ends that."""

    async def read() -> list[Quarantine]:
        async with api_server(data, kubeconfig) as cluster:
            listed = await cluster.list(await require_served(cluster, QUARANTINE), namespace)
            return [msgspec.convert(each, Quarantine) for each in listed.items]

    found = [each for each in asyncio.run(read()) if shows_all or each.spec.released is None]
    if not found:
        click.echo("nothing is quarantined")
        return
    columns(("NAME", "COVERS", "SETS", "STATE", "WHY"), sorted(map(row_of, found)))


@click.command(
    "release",
    short_help="End a quarantine.",
    epilog="""\b
Examples:
  pvbus rollout release default/web-v6 --reason "the alert was false"

Exit codes: 0 done (also if it was so before); 1 no such quarantine, or you may not end it; 2 bad usage.
""",
)
@object_argument("[KIND] NAME", (QUARANTINE,))
@namespace_option
@click.option("--reason", required=True, help="Why, for those who read the quarantine later.")
@kubeconfig_option
@data_option
def release_command(
    words: tuple[str, ...], namespace: str | None, reason: str, kubeconfig: str | None, data: str
) -> None:
    """End a quarantine: what it covers may go out again, unless another one covers it, which is named.

    The object stays, and has the reason, who gave it, and when.
    """
    key = named(words, (QUARANTINE,), Scope(namespace, data, kubeconfig)).key
    if not reason.strip() or len(reason) > REASON_CHARACTERS_MAX:
        raise UsageError(f"--reason: say why, in at most {REASON_CHARACTERS_MAX} characters")
    work = partial(end_quarantine, key=key, reason=reason.strip())
    click.echo(asyncio.run(run_connected(data, kubeconfig, work)))


async def end_quarantine(cluster: Cluster, key: Key, reason: str) -> str:
    """Write the end of a quarantine; return the message."""
    by = await user_name(cluster)
    found = await existing(cluster, QUARANTINE, key)
    ended = released(found, reason, by, timestamp(time.time()))
    if ended is None:
        return f"{key} is released already"
    resource = await require_served(cluster, QUARANTINE)
    written = msgspec.convert(await cluster.update(resource, ended), Quarantine)
    listed = (await cluster.list(resource, key.namespace)).items
    rest = still_covering(written, (msgspec.convert(each, Quarantine) for each in listed))
    if not rest:
        return f"{key} is released: what it covers may go out again"
    return (
        f"{key} is released; what it covers stays quarantined by {', '.join(rest)}: release each of them, too"
    )
