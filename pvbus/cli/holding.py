"""`pvbus hold` and `unhold`: stop all writes for a variant or a set, and let them go on."""

import asyncio
from collections.abc import Mapping
from functools import partial

import click

from pvbus.cli.fleet import (
    Target,
    annotate,
    existing,
    key_of,
    on_hold,
    run_connected,
    set_of,
    target_of,
    target_options,
    variants_of,
)
from pvbus.cli.objectnames import Scope
from pvbus.cli.output import counted
from pvbus.cli.progress import SET
from pvbus.core.kernel.holds import because, hold_reason
from pvbus.core.kernel.keys import HOLD, HOLD_REASON
from pvbus.core.kernel.messages import first_of
from pvbus.core.kernel.objects import annotations_of
from pvbus.ports.cluster import Cluster, Object

NAMES_MAX = 3


@click.command(
    short_help="Stop all writes for a variant or a set.",
    epilog="""\b
Examples:
  pvbus hold default/web-edge-asia-asia-01-web --reason "fair in town until Monday"
  pvbus hold --set default/web           or: pvbus hold pvs web -n default
  pvbus unhold --set default/web

Exit codes: 0 on hold (also if it was before), 1 there is no such variant or set, 2 bad usage.
""",
)
@target_options
@click.option("--reason", help="Why, for those who find it on hold.")
def hold(
    words: tuple[str, ...],
    set_name: str | None,
    namespace: str | None,
    reason: str | None,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Put a variant, or a set with its variants, on hold: the services write nothing for it.

    It keeps what it has. People can still edit and publish its package revisions one by one; `pvbus propose`
    and `pvbus approve` leave it out.
    """
    target = target_of(words, set_name, Scope(namespace, data, kubeconfig))
    annotations = {HOLD: "true", **({HOLD_REASON: reason} if reason else {})}
    click.echo(
        asyncio.run(
            run_connected(data, kubeconfig, partial(put_on_hold, target=target, annotations=annotations))
        )
    )


@click.command(
    short_help="Let the writes for a variant or a set go on.",
    epilog="""\b
Examples:
  pvbus unhold default/web-edge-asia-asia-01-web
  pvbus unhold --set default/web

Exit codes: 0 not on hold (also if it was not before), 1 there is no such variant or set, 2 bad usage.
""",
)
@target_options
def unhold(
    words: tuple[str, ...], set_name: str | None, namespace: str | None, kubeconfig: str | None, data: str
) -> None:
    """Take a variant or a set off hold: the services do what has become due meanwhile."""
    target = target_of(words, set_name, Scope(namespace, data, kubeconfig))
    click.echo(asyncio.run(run_connected(data, kubeconfig, partial(take_off_hold, target=target))))


async def put_on_hold(cluster: Cluster, target: Target, annotations: Mapping[str, str]) -> str:
    """Put a target on hold; return the message."""
    obj = await existing(cluster, target.kind, target.key)
    present = annotations_of(obj)
    variants = await variants_of(cluster, obj) if target.kind == SET else []
    also = f" with its {counted(len(variants), 'variant')}" if target.kind == SET else ""
    if all(present.get(key) == value for key, value in annotations.items()):
        return f"{target} is on hold already{also}{because(hold_reason(present))}"
    await annotate(cluster, target.kind, obj, annotations)
    reason = because(hold_reason({**present, **annotations}))
    return f"{target} is on hold{also}{reason}; to go on: pvbus unhold {target.arguments}"


async def take_off_hold(cluster: Cluster, target: Target) -> str:
    """Take a target off hold; return the message, with what holds it or its variants still."""
    obj = await existing(cluster, target.kind, target.key)
    was_held = on_hold(obj)
    if was_held:
        await annotate(cluster, target.kind, obj, {HOLD: None, HOLD_REASON: None})
    words = "is no longer on hold" if was_held else "was not on hold"
    still = await (_read_held_variants(cluster, obj) if target.kind == SET else _read_held_set(cluster, obj))
    return f"{target} {words}{still}"


async def _read_held_variants(cluster: Cluster, owner: Object) -> str:
    metas = [each["metadata"] for each in await variants_of(cluster, owner) if on_hold(each)]
    names = [f"{meta['name']}{because(hold_reason(meta.get('annotations')))}" for meta in metas]
    if not names:
        return ""
    return f"; {counted(len(names), 'variant')} of it on hold by themselves: {first_of(names, NAMES_MAX)}"


async def _read_held_set(cluster: Cluster, variant: Object) -> str:
    owner = await set_of(cluster, variant)
    if owner is None or not on_hold(owner):
        return ""
    reason = because(hold_reason(owner["metadata"].get("annotations")))
    return f"; its set still holds it{reason}: pvbus unhold {Target(SET, key_of(owner)).arguments}"
