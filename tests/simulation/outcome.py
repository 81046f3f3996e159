"""What must be true after a schedule: of the variants, of the published conditions, and of a restart."""

import asyncio

import msgspec

from pvbus.core.api.variants import Condition, PackageVariant
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import HOLD, digest
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.variants.publishing import LAST_REASONS
from pvbus.ports.cluster import Object
from tests.simulation.world import SET, VARIANT, SimulatedWorld


def check_variants(world: SimulatedWorld) -> None:
    """The PackageVariants are those that the oracle wants, with its specs and owners.

    One that a user deleted while it, or its set, is on hold stays as it is: terminating.
    """
    made, stuck = {}, set()
    for vkey, obj in world.variants().items():
        owners = [world.find_uid(o["uid"]) for o in obj["metadata"].get("ownerReferences") or ()]
        held = any(o is not None and _on_hold(o) for o in (obj, *owners))
        if held and obj["metadata"].get("deletionTimestamp"):
            stuck.add(vkey)
            continue
        variant = msgspec.convert(obj, PackageVariant)
        owner = next((o.uid for o in variant.metadata.owner_references if o.controller), "")
        made[vkey] = (owner, digest(variant.spec), variant.spec)
    wanted = {
        vkey: (e.owner, digest(e.spec), e.spec) for vkey, e in world.expected().items() if vkey not in stuck
    }
    different = {
        vkey: (made.get(vkey), wanted.get(vkey), world.rows_of(vkey))
        for vkey in made.keys() | wanted.keys()
        if made.get(vkey) != wanted.get(vkey)
    }
    assert made == wanted, f"is, should be, rows: {different}"


def _on_hold(obj: Object) -> bool:
    return (obj["metadata"].get("annotations") or {}).get(HOLD) == "true"


def check_conditions(world: SimulatedWorld) -> None:
    """Every transition was published once and in order, and `latest` is their fold."""
    fold: dict[str, ConditionEvent] = {}
    seen: set[str] = set()
    problems = []
    for record in world.records(CONDITIONS):
        assert record.value is not None
        event = msgspec.json.decode(record.value, type=ConditionEvent)
        key = f"{event.kind}|{event.namespace}/{event.name}|{event.condition.type}"
        if event.id in seen:
            problems.append(f"reported twice: {event}")
        seen.add(event.id)
        last = fold.get(key)
        if last is not None and last.uid == event.uid:
            if event.previous != last.condition.status:
                problems.append(f"out of order: {last}, {event}")
        elif event.previous:
            problems.append(f"nothing was before: {event}")
        if event.last != (event.condition.reason in LAST_REASONS):
            problems.append(f"no end, or one without its reason: {event}")
        if event.last:
            fold.pop(key, None)
        else:
            fold[key] = event
    latest = {k: msgspec.json.decode(v, type=ConditionEvent) for k, v in world.table(LATEST).items()}
    assert latest == fold
    for kind in (SET, VARIANT):
        for obj in world.objects(kind):
            for condition in (obj.get("status") or {}).get("conditions") or ():
                meta = obj["metadata"]
                location = f"{kind.kind}|{meta['namespace']}/{meta['name']}|{condition['type']}"
                last = latest.get(location)
                shown = (condition["status"], condition["reason"], condition.get("observedGeneration", 0))
                if last is None or _shown(last.condition) != shown:
                    problems.append(f"{location}: the status says {shown}, the last event {last}")
    assert problems == []


def _shown(condition: Condition) -> tuple[str, str, int]:
    return condition.status, condition.reason, condition.observed_generation


def check_generations(world: SimulatedWorld) -> None:
    """The observedGeneration of a condition never goes back."""
    highest: dict[tuple[str, str], int] = {}
    for write in world.cluster.writes:
        if write.subresource == "status" and write.object is not None:
            for condition in write.object["status"].get("conditions") or ():
                location = (write.object["metadata"]["uid"], condition["type"])
                generation = condition.get("observedGeneration", 0)
                assert generation >= highest.get(location, 0), write
                highest[location] = generation


def check_watched(world: SimulatedWorld) -> None:
    """No invariant was violated during the schedule."""
    found = world.watcher.violations
    assert found == [], "\n".join(map(str, found))


async def check_restart(world: SimulatedWorld) -> None:
    """A restart of a converged system writes nothing."""
    await world.stop()
    writes, ends = len(world.cluster.writes), await world.ends()
    await world.start()
    await asyncio.sleep(30.0)
    late = world.cluster.writes[writes:]
    assert late == [], late
    grown = {tp: end for tp, end in (await world.ends()).items() if end != ends[tp]}
    assert grown == {}, [r for t, _ in grown for r in world.records(t) if r.offset >= ends[t, r.partition]]
