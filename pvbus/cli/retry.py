"""`pvbus retry`: has the services try again now what they would try again later, or not at all."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Literal

import click
import msgspec

from pvbus.cli.fleet import (
    Member,
    Progress,
    Target,
    annotate,
    counter,
    existing,
    key_of,
    members_of,
    on_hold,
    persist,
    require_served,
    run_connected,
    set_of,
    target_of,
    target_options,
    variants_of,
    work_off,
)
from pvbus.cli.live import FILES
from pvbus.cli.objectnames import Scope
from pvbus.cli.output import counted
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import FORBIDDEN, ConflictError, PermanentError, UsageError
from pvbus.core.kernel.keys import RETRY, Key
from pvbus.core.promotion.protocol.proposals import has_failed, is_ready
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Cluster, Kind, Object

Outcome = Literal["asked", "rendered", "held", "gone"]


@click.command(
    short_help="Try again now, not after the backoff.",
    epilog="""\b
Examples:
  pvbus retry default/web-edge-asia-asia-01-web      for example after a repository is there again
  pvbus retry --set default/web --failing            only what is not ready
  pvbus explain --set default/web                    what is not ready, and why

Exit codes: 0 asked for, or nothing to ask for; 1 no such variant or set, or all of it is on hold; 2 bad
usage; 130 interrupted.
""",
)
@target_options
@click.option("--failing", is_flag=True, help="With a set: only the variants that are not ready.")
def retry(
    words: tuple[str, ...],
    set_name: str | None,
    namespace: str | None,
    failing: bool,
    kubeconfig: str | None,
    data: str,
) -> int:
    """Have the services look at a variant again, or at all variants of a set, and do again what was refused.

    The services try again by themselves, after a minute at most; and they do not run a failed pipeline again
    before something changes. This asks for both now: it changes an annotation of each variant, for render and
    inject, and of the set, for unroll, and saves failed drafts as they are. A variant that does not exist, as
    the API server has refused it, has no annotation: render tries to create it again within a minute.
    """
    target = target_of(words, set_name, Scope(namespace, data, kubeconfig))
    if failing and target.kind != SET:
        raise UsageError("--failing chooses among the variants of a set: give --set")
    work = partial(retry_variants, target=target, failing=failing)
    outcomes, interrupted = asyncio.run(run_connected(data, kubeconfig, work))
    for line in outcome_lines(target, outcomes, failing=failing):
        click.echo(line)
    if interrupted:
        click.echo("interrupted: the same command begins anew")
        return 130
    return 1 if outcomes and not (outcomes["asked"] or outcomes["rendered"]) else 0


async def retry_variants(
    cluster: Cluster, target: Target, *, failing: bool, progress: Progress = counter
) -> tuple[Counter[Outcome], bool]:
    """Ask for another try of each variant.

    Return how many had which outcome, and whether a person has interrupted it.
    """
    obj = await existing(cluster, target.kind, target.key)
    owner = obj if target.kind == SET else await set_of(cluster, obj)
    variants = await variants_of(cluster, obj) if target.kind == SET else [obj]
    if failing:
        variants = [each for each in variants if not is_ready(msgspec.convert(each, PackageVariant))]
    drafts: dict[Key, list[Member]] = {}
    for member in await members_of(cluster, target.key.namespace, variants):
        if lifecycle_of(member.revision) == "Draft" and has_failed(member.variant, member.revision):
            drafts.setdefault(member.key, []).append(member)
    value = datetime.now(UTC).isoformat(timespec="microseconds")
    set_is_held = owner is not None and on_hold(owner)

    async def one(variant: Object) -> Outcome:
        if set_is_held or on_hold(variant):
            return "held"
        for member in drafts.get(key_of(variant), ()):
            await persist(partial(_save, cluster, member))
        if not await _annotate_if_there(cluster, VARIANT, variant, value):
            return "gone"
        return "rendered" if key_of(variant) in drafts else "asked"

    if target.kind == SET and not set_is_held:
        await _annotate_if_there(cluster, SET, obj, value)  # without it, its variants are gone, too
    outcomes, interrupted = await work_off(variants, one, f"retry {target.key}", progress)
    return Counter(outcomes), interrupted


async def _annotate_if_there(cluster: Cluster, kind: Kind, obj: Object, value: str) -> bool:
    """Ask for another try; return False if the object was deleted, and maybe made again."""
    try:
        await annotate(cluster, kind, obj, {RETRY: value})
    except ConflictError:
        return False
    except PermanentError as exc:
        if exc.reason == FORBIDDEN:
            raise
        return False
    return True


async def _save(cluster: Cluster, member: Member) -> None:
    """Save a draft as it is, which runs its pipeline."""
    resource = await require_served(cluster, FILES)
    files = await cluster.get(resource, member.key.namespace, member.name)
    if files is not None:
        await cluster.update(resource, files)


def outcome_lines(target: Target, outcomes: Counter[Outcome], *, failing: bool) -> Iterator[str]:
    """Yield what was asked for, and what was not."""
    asked = outcomes["asked"] + outcomes["rendered"]
    if not outcomes:
        yield f"nothing to retry: {target} has no variant{' that is not ready' if failing else ''}"
        return
    if asked:
        of = f"{counted(asked, 'variant')} of {target}" if target.kind == SET else str(target)
        yield f"asked for another try of {of}"
    if outcomes["rendered"]:
        yield f"the pipelines of {counted(outcomes['rendered'], 'variant')} have run again"
    if outcomes["held"]:
        held = counted(outcomes["held"], "variant")
        yield f"{held} left out, on hold: pvbus explain {target.arguments} says by what"
    if outcomes["gone"]:
        yield f"{counted(outcomes['gone'], 'variant')} deleted meanwhile"
    if asked and target.kind == SET:
        yield "variants of the set that do not exist yet are tried again within a minute"
    if asked:
        yield f"to see what comes of it: pvbus explain {target.arguments}"
