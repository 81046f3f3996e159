"""The reason of a hold is shown wherever the hold is: of the set, and of one of its variants."""

from typing import Any

import msgspec
import pytest

from pvbus.cli.conditionevents import asks_for_attention
from pvbus.cli.explain import bus_document
from pvbus.cli.explain_text import set_lines, variant_lines
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import HOLD, HOLD_REASON, Key
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.variants.notices import notice_of
from pvbus.ports.cluster import Kind
from tests.kit.processes import run_simulated
from tests.simulation.world import REPOSITORY, SET, VARIANT, SimulatedWorld

LISTED = {"repositories": [{"name": "r1", "packageNames": ["p1"]}]}
NAMES = {SET: "web", VARIANT: "web-r1-p1"}


def hold(world: SimulatedWorld, kind: Kind, reason: str) -> None:
    annotations = {HOLD: "true", HOLD_REASON: reason}
    world.put(kind, NAMES[kind], metadata={"annotations": annotations})


def latest(world: SimulatedWorld, kind: Kind) -> list[ConditionEvent]:
    rows = world.table(LATEST)
    begin = f"{kind.kind}|default/{NAMES[kind]}|"
    return [msgspec.json.decode(v, type=ConditionEvent) for k, v in rows.items() if k.startswith(begin)]


async def shown(world: SimulatedWorld, kind: Kind) -> dict[str, str]:
    """Return what each view says of an object."""
    obj = world.find(kind, NAMES[kind])
    assert obj is not None
    conditions: dict[str, Any] = {each["type"]: each for each in obj["status"]["conditions"]}
    events = latest(world, kind)
    found = {f"kubectl {type_}": conditions[type_]["message"] for type_ in ("OnHold", "Ready")}
    if kind == SET:
        found["kubectl TargetsApplied"] = conditions["TargetsApplied"]["message"]
    held = [event for event in events if asks_for_attention(event)]
    assert {event.condition.type for event in held} == {"OnHold", "Ready"}
    found |= {f"conditions --not-ready {event.condition.type}": event.condition.message for event in held}
    stored = [
        msgspec.json.decode(each.value or b"", type=ConditionEvent) for each in world.records(CONDITIONS)
    ]
    sent = [each for each in stored if (each.name, each.condition.type) == (NAMES[kind], "Ready")]
    found["event"] = sent[-1].condition.message
    notice = notice_of(sent[-1], None)
    found["describe"] = notice.note if notice is not None else ""
    document = await bus_document(world.bus, Key("default", NAMES[kind]), is_set=kind == SET)
    lines = list(set_lines(document) if kind == SET else variant_lines(document))
    found["explain, page"] = "\n".join(line for line in lines if "Ready=False" in line)
    return found


@pytest.mark.parametrize("kind", [SET, VARIANT], ids=["set", "variant"])
def test_the_reason_is_shown_wherever_the_hold_is_and_follows_a_change(kind: Kind) -> None:
    async def main() -> None:
        world = SimulatedWorld(watched=False)
        world.upstream()
        world.put(REPOSITORY, "r1", spec={})
        world.set("web", [LISTED])
        await world.start()
        await world.converge()
        for reason in ("fair in town", "until Monday"):
            hold(world, kind, reason)
            await world.converge()
            for of in (VARIANT,) if kind == VARIANT else (SET, VARIANT):
                views = await shown(world, of)
                assert [view for view, text in views.items() if f"({reason})" not in text] == [], views
        await world.close()

    run_simulated(main())
