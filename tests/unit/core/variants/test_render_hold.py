"""The decision on a name whose PackageVariant render does not see: a set on hold stays named."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import DownstreamTemplate, MapExpr, PackageVariant, VariantTemplate
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import DesiredRow, TargetRow
from pvbus.core.variants.revisions.holding import Holder, holder_of
from tests.simulation.parts import RenderPart
from tests.unit.core.variants.test_render_controller import (
    VKEY,
    applied,
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


def made_by(part: RenderPart, name: str) -> Any:
    """Let a set make the variant, and the watch be so late that render takes it for gone. Returns it."""
    part.target(row(set_name=name, set_uid=f"uid-{name}"), VKEY, name)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    thing = stored(effect.object)
    part.go_on(steps, thing)
    part.now += 11
    return thing


def held_by(thing: Any, part: RenderPart) -> Holder | None:
    return holder_of(msgspec.convert(thing, PackageVariant), decision(part))


def test_a_variant_that_shows_up_late_is_on_hold_from_the_start() -> None:
    """The watch is late: after ten seconds render takes what it made for gone, and the set on hold stays."""
    part = RenderPart()
    thing = made_by(part, "alpha")
    part.now -= 11
    part.target(on_hold("alpha"), VKEY)
    part.begin(VKEY)
    assert decision(part).outcome == "held"
    part.now += 11
    part.begin(VKEY)
    assert decision(part).outcome == "removed"
    assert held_by(thing, part) == ("PackageVariantSet", Key("default", "alpha"), "as alpha says")


@pytest.mark.parametrize("maker", ["alpha", "beta"])
def test_of_two_sets_on_hold_each_holds_its_own_variant(maker: str) -> None:
    """It stays so while render decides again."""
    part = RenderPart()
    thing = made_by(part, maker)
    for name in ("alpha", "beta"):
        part.target(on_hold(name), VKEY, name)
    for _ in range(2):
        part.begin(VKEY)
        assert held_by(thing, part) == ("PackageVariantSet", Key("default", maker), f"as {maker} says")


def beta(**fields: Any) -> TargetRow:
    return row(set_name="beta", set_uid="uid-beta", digest="d2", **fields)


def fails_to_render(part: RenderPart) -> None:
    labels = (MapExpr(key="x", value_expr="target.labels['none']"),)
    template = VariantTemplate(downstream=DownstreamTemplate(repo="r1", package="p"), label_exprs=labels)
    part.target(beta(template=template), VKEY, "beta")
    assert part.begin(VKEY)[1] is None
    assert decision(part).outcome == "error"


def is_refused(part: RenderPart) -> None:
    part.target(beta(), VKEY, "beta")
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    part.go_on(steps, PermanentError("no room"))
    assert decision(part).outcome == "refused"


def is_put_on_hold(part: RenderPart) -> None:
    is_refused(part)
    part.target(on_hold("beta"), VKEY, "beta")
    part.begin(VKEY)
    assert decision(part).outcome == "removed"


@pytest.mark.parametrize("what_beta_does", [fails_to_render, is_refused, is_put_on_hold])
def test_a_set_that_wants_the_name_takes_no_hold_away(what_beta_does: Callable[[RenderPart], None]) -> None:
    """The decision is beta's; the variant of alpha, which is on hold, shows up all the same."""
    part = RenderPart()
    thing = made_by(part, "alpha")
    part.target(on_hold("alpha"), VKEY, "alpha")
    what_beta_does(part)
    assert held_by(thing, part) == ("PackageVariantSet", Key("default", "alpha"), "as alpha says")


def test_a_hold_is_of_the_variant_that_render_sees_once_there_is_one() -> None:
    part, thing = applied()
    part.target(on_hold("beta"), VKEY, "beta")
    part.begin(VKEY)
    assert decision(part).holders == ()
    assert held_by(thing, part) is None


def test_a_set_on_hold_does_not_hold_what_it_does_not_own() -> None:
    """A former set of the same name owns it: the garbage collector deletes it, and inject lets it go."""
    part, thing = applied()
    part.target(on_hold("alpha"), VKEY)
    part.begin(VKEY)
    assert decision(part).on_hold
    again = withdrawn(set_uid="uid-again", cancelled="", on_hold=True)
    part.target(again, VKEY)
    part.begin(VKEY)
    assert held_by(thing, part) is None
