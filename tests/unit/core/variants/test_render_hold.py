"""The decision on a name whose PackageVariant render does not see: a set on hold stays named."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.effects import Create, Delete
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import DesiredRow, TargetRow
from pvbus.core.variants.revisions.holding import holder_of
from tests.simulation.parts import RenderPart
from tests.unit.core.variants.test_render_controller import (
    VKEY,
    applied,
    live_set,
    removed,
    row,
    stored,
    withdrawn,
)


def decision(part: RenderPart) -> DesiredRow:
    state = part.controller.state(0, VKEY)
    assert state is not None
    assert state.desired is not None
    return state.desired


def on_hold(name: str, **fields: Any) -> TargetRow:
    given = {"cancelled": "", "on_hold": True, "hold_reason": f"as {name} says"}
    return withdrawn(set_name=name, set_uid=f"uid-{name}", **given, **fields)


def test_a_variant_that_shows_up_late_is_on_hold_from_the_start() -> None:
    """The watch is late: after ten seconds render takes what it made for gone, and the set on hold stays."""
    part = RenderPart()
    part.target(row(), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    thing = stored(effect.object)
    part.go_on(steps, thing)
    part.target(on_hold("alpha"), VKEY)
    part.begin(VKEY)
    assert decision(part).outcome == "held"
    part.now += 11
    part.begin(VKEY)
    assert decision(part).outcome == "removed"
    variant = msgspec.convert(thing, PackageVariant)
    holder = holder_of(variant, decision(part))
    assert holder == ("PackageVariantSet", Key("default", "alpha"), "as alpha says")


@pytest.mark.parametrize("last", ["alpha", "beta"])
def test_of_two_sets_on_hold_the_last_that_had_the_name_holds_it(last: str) -> None:
    """It stays so while render decides again."""
    part = RenderPart()
    part.target(row(set_name=last, set_uid=f"uid-{last}"), VKEY, last)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    thing = stored(effect.object)
    part.go_on(steps, thing)
    part.variant(thing, VKEY)
    for name, created in (("alpha", "2026-01-01T00:00:00Z"), ("beta", "2026-02-01T00:00:00Z")):
        part.target(on_hold(name, set_created=created), VKEY, name)
    part.begin(VKEY)
    part.variant(None, VKEY)
    for _ in range(2):
        part.begin(VKEY)
        assert (decision(part).outcome, decision(part).set_uid) == ("removed", f"uid-{last}")


def test_the_oldest_set_on_hold_holds_a_name_that_none_had() -> None:
    part = RenderPart()
    part.target(on_hold("alpha", set_created="2026-02-01T00:00:00Z"), VKEY, "alpha")
    part.target(on_hold("beta", set_created="2026-01-01T00:00:00Z"), VKEY, "beta")
    part.begin(VKEY)
    assert (decision(part).set_name, decision(part).on_hold) == ("beta", True)


def test_a_set_on_hold_does_not_hold_what_it_does_not_own() -> None:
    """A former set of the same name owns it: the garbage collector deletes it, and inject lets it go."""
    part, thing = applied()
    part.target(on_hold("alpha"), VKEY)
    part.begin(VKEY)
    assert decision(part).on_hold
    again = withdrawn(set_uid="uid-again", cancelled="", on_hold=True)
    part.target(again, VKEY)
    part.begin(VKEY)
    assert holder_of(msgspec.convert(thing, PackageVariant), decision(part)) is None


@pytest.mark.parametrize(("other", "why"), [("alpha", "no target"), ("beta", "")])
def test_why_a_variant_was_removed_is_never_said_of_another_set(other: str, why: str) -> None:
    part, _ = applied()
    part.target(removed(why="no target"), VKEY)
    steps, _ = part.begin(VKEY)
    assert isinstance(part.go_on(steps, live_set()), Delete)
    part.go_on(steps, None)
    assert decision(part).why == "no target"
    part.variant(None, VKEY)
    part.target(None, VKEY)
    part.target(on_hold(other), VKEY, other)
    part.begin(VKEY)
    assert (decision(part).set_name, decision(part).why) == (other, why)
