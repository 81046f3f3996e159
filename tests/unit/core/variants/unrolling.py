"""A set, its targets and a render service that agrees: what tests of unrolling share."""

from typing import Any

from pvbus.core.variants.unroll.controller import CHUNK_PUTS
from pvbus.core.variants.unroll.opinion import Opinions
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.core.variants.unroll.signedplans import NO_PLANS, PlanPolicy
from tests.simulation.parts import (
    REPOSITORY,
    REVISION,
    SET,
    SITE,
    UnrollPart,
    obj,
    site,
    site_set,
    upstream,
)

FLEET = {"downstream": {"repo": "r1", "packageExpr": "target.name"}}


def part(
    *targets: Any,
    sites: tuple[str, ...] = (),
    limits: RemovalLimits | None = None,
    chunk_puts: int = CHUNK_PUTS,
    opinions: Opinions | None = None,
    plans: PlanPolicy = NO_PLANS,
    **meta: Any,
) -> UnrollPart:
    """A world with upstream and Repository r1; a set with these targets, or one variant per Site."""
    unroll = UnrollPart(limits=limits, chunk_puts=chunk_puts, opinions=opinions, plans=plans)
    unroll.tell(REVISION, upstream())
    unroll.tell(REPOSITORY, obj(REPOSITORY, "r1", spec={}, metadata={"labels": {"fleet": "a"}}))
    for name in sites:
        unroll.tell(SITE, site(name, env="prod"))
    change(unroll, *targets, **meta)
    unroll.synced()
    unroll.run()
    return unroll


def change(unroll: UnrollPart, *targets: Any, generation: int = 1, up: Any = None, **meta: Any) -> None:
    thing = site_set(generation=generation, **meta)
    if targets:
        thing["spec"]["targets"] = list(targets)
    if up is not None:
        thing["spec"]["upstream"] = up
    unroll.tell(SET, thing)


def reported(unroll: UnrollPart) -> tuple[str, str]:
    unroll.now += 2
    unroll.run()
    assert unroll.rollup is not None
    return unroll.rollup.reason, unroll.rollup.message


def fleet(number: int, **options: Any) -> UnrollPart:
    """A set of so many Sites s0000, s0001, ..., each with its living variant."""
    unroll = part(sites=tuple(f"s{i:04}" for i in range(number)), **options)
    for name in list(unroll.children):
        unroll.made(name)
    unroll.run()
    return unroll


def relabel(unroll: UnrollPart, *numbers: int, env: str = "test", gap: float = 0.0) -> None:
    """Give Sites of a fleet another label, one after the other."""
    for i in numbers:
        unroll.tell(SITE, site(f"s{i:04}", env=env))
        unroll.now += gap
        unroll.run()


def delete_ordered(unroll: UnrollPart) -> int:
    """Carry out all orders as render does; return how many."""
    names = [name for name, state in unroll.states().items() if state == "ordered"]
    for name in names:
        unroll.unmade(name)
    unroll.run()
    return len(names)


def live_on(unroll: UnrollPart, seconds: float = 30.0) -> None:
    for _ in range(int(seconds / 3)):
        unroll.now += 3
        unroll.run()


def downstreams(unroll: UnrollPart) -> set[tuple[str, str]]:
    return {
        (r.downstream.repo, r.downstream.package) for r in unroll.children.values() if r.state == "present"
    }


def selecting(kind: str = "Site", api: str = "example.org/v1", **fields: Any) -> dict[str, Any]:
    return {"objectSelector": {"apiVersion": api, "kind": kind, **fields}, "template": FLEET}


def removing(**meta: Any) -> UnrollPart:
    """Two Sites, both with a living variant; the first is about to be unwanted."""
    unroll = part(sites=("s1", "s2"), **meta)
    for name in list(unroll.children):
        unroll.made(name)
    unroll.run()
    unroll.tell(SITE, site("s1", env="test"))
    unroll.run()
    return unroll
