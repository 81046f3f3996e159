"""Costly decisions leave the time to others: chunks of a bounded cost, at times that are spread."""

from typing import Any

import pytest

from pvbus.core.api.variants import DownstreamTemplate, MapExpr, VariantTemplate
from pvbus.core.cel import EXPRESSION_BYTES_MAX, compilations
from pvbus.core.kernel.effects import Create, Outcome
from pvbus.core.kernel.records import Root, TargetRow
from pvbus.core.variants.pacing import COSTLY, SHARE, TURN_COST, UNIT_SECONDS, Pace
from tests.simulation.parts import REPOSITORY, SITE, RenderPart, UnrollPart, obj
from tests.unit.core.variants.test_render_controller import row
from tests.unit.core.variants.unrolling import change, part

COSTLY_TEXT = "target.annotations.text.contains(target.annotations.part) ? '-x' : ''"  # 79,000, and quick
ANNOTATIONS = {"text": "a" * 8_300, "part": "a" * 900}
PERIOD = TURN_COST * UNIT_SECONDS / SHARE


# --- times


def test_what_is_not_costly_never_waits() -> None:
    pace = Pace()
    pace.note("cheap", COSTLY - 1)
    pace.note("costly", TURN_COST)
    assert pace.wait("a", "cheap", 1.0) == 0
    assert pace.wait("b", "unknown", 1.0) == 0
    assert pace.wait("c", "costly", 1.0) >= 0


def test_costly_keys_have_a_share_of_the_time_in_the_order_in_which_they_asked() -> None:
    pace = Pace()
    pace.note("set", TURN_COST)
    waiting = {f"key{number:03}": pace.wait(f"key{number:03}", "set", 0.0) for number in range(200)}
    assert list(waiting.values()) == sorted(waiting.values())
    assert list(waiting.values())[-1] == pytest.approx(200 * PERIOD)
    at_once = [key for key in waiting if pace.wait(key, "set", 1.0) == 0]
    assert len(at_once) == pytest.approx(1.0 / PERIOD, abs=1)


def test_a_key_retains_its_time_when_it_asks_again() -> None:
    pace = Pace()
    pace.note("set", TURN_COST)
    first = pace.wait("a", "set", 0.0)
    assert [pace.wait("a", "set", now) for now in (0.0, first / 2)] == pytest.approx([first, first / 2])
    assert pace.wait("a", "set", first) == 0


def test_a_clock_that_is_set_back_makes_nobody_wait_for_it() -> None:
    pace = Pace()
    pace.note("set", TURN_COST)
    for now in (1e6, 1e6 + 1):
        pace.wait("a", "set", now)
    assert pace.wait("b", "set", 1.0) <= 2 * PERIOD


def test_an_origin_that_became_cheap_waits_no_more() -> None:
    pace = Pace()
    pace.note("set", TURN_COST)
    for number in range(10):
        pace.wait(f"a{number}", "set", 0.0)
    pace.note("set", 30)
    assert pace.wait("b", "set", 0.0) == 0


# --- unroll


def costly_fleet(count: int) -> UnrollPart:
    """A set whose every target is near the limit; not evaluated yet."""
    unroll = part()
    for number in range(count):
        metadata = {"labels": {"env": "prod"}, "annotations": ANNOTATIONS}
        unroll.tell(SITE, obj(SITE, f"s{number:03}", metadata=metadata))
    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}
    downstream = {"repo": "r1", "packageExpr": f"target.name + ({COSTLY_TEXT})"}
    change(unroll, {"objectSelector": selector, "template": {"downstream": downstream}}, generation=2)
    return unroll


def passed(unroll: UnrollPart) -> list[int]:
    """Run until every target is evaluated; return the number of targets in each pass."""
    counts: list[int] = []
    for _ in range(5_000):
        before = unroll.controller.evaluations
        outcome = unroll.run_once()
        counts.append(unroll.controller.evaluations - before)
        if outcome.result != "waiting" and outcome.again_after is None:
            return counts
        unroll.now += outcome.again_after or 0.0
    raise AssertionError("it has no end")


def test_a_pass_of_costly_targets_evaluates_few_of_them() -> None:
    """Others run in between: two hundred targets take as many passes, and a multiple of their time."""
    unroll = costly_fleet(200)
    began = unroll.now
    counts = passed(unroll)
    assert sum(counts) >= 200
    assert max(counts) == 1
    assert unroll.now - began > 50 * PERIOD
    assert list(unroll.states().values()) == ["present"] * 200


def test_targets_of_a_changed_repository_are_evaluated_in_passes_too() -> None:
    """An object that leaves meanwhile is not evaluated again, one that changes is."""
    unroll = costly_fleet(50)
    passed(unroll)
    unroll.tell(REPOSITORY, obj(REPOSITORY, "r1", spec={}, metadata={"labels": {"fleet": "b"}}))
    before = unroll.controller.evaluations
    unroll.run_once()
    assert unroll.controller.evaluations - before <= 2
    unroll.tell(SITE, obj(SITE, "s049", metadata={"labels": {"env": "test"}, "annotations": ANNOTATIONS}))
    unroll.tell(SITE, obj(SITE, "s000", metadata={"labels": {"env": "prod"}, "annotations": {}}))
    counts = passed(unroll)
    assert max(counts) <= 3  # one of them fails before it costs anything
    assert unroll.rollup is not None
    assert "s000" in unroll.rollup.message
    assert unroll.controller.evaluations - before == 49


def test_expressions_of_a_set_are_compiled_in_passes() -> None:
    """A specification has room for hundreds of the longest; each pass compiles a few."""
    long = [f"'{number}' + " + " + ".join(["target.name"] * 100) for number in range(12)]
    unroll = part(sites=("s1",))
    template = {
        "downstream": {"repo": "r1"},
        "labelExprs": [{"key": f"k{n}", "valueExpr": text} for n, text in enumerate(long)],
    }
    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}
    change(unroll, {"objectSelector": selector, "template": template}, generation=2)
    begun, most = compilations(), 0
    for _ in range(200):
        before = compilations()
        outcome = unroll.run_once()
        most = max(most, compilations() - before)
        if outcome.again_after is None:
            break
        unroll.now += outcome.again_after
    assert compilations() - begun == 12
    assert most * len(long[0]) < 2 * EXPRESSION_BYTES_MAX


# --- render


def target_row(set_name: str, text: str, **fields: Any) -> TargetRow:
    template = VariantTemplate(
        downstream=DownstreamTemplate(repo="r1", package="p"),
        label_exprs=(MapExpr(key="a", value_expr=text),),
    )
    root = Root(name="t", namespace="default", annotations=ANNOTATIONS)
    return row(set_name=set_name, template=template, roots={"target": root}, **fields)


def test_variants_of_a_costly_set_leave_the_time_to_those_of_others() -> None:
    """One is evaluated, the others wait for their times; a variant of another set does not."""
    found = RenderPart()
    for number in range(50):
        found.target(target_row("alpha", COSTLY_TEXT), f"default/alpha-{number}")
    found.target(target_row("beta", "target.name", set_uid="uid-beta"), "default/beta-1", "beta")
    waits = [found.begin(f"default/alpha-{number}")[0] for number in range(50)]
    assert found.controller.evaluations == 1
    later = [outcome.again_after or 0.0 for outcome in waits if isinstance(outcome, Outcome)]
    assert len(later) == 49
    assert later == sorted(later)
    assert isinstance(found.begin("default/beta-1")[1], Create)
    found.now += 50 * 2 * PERIOD
    made = [found.begin(f"default/alpha-{number}")[1] for number in range(1, 50)]
    assert all(isinstance(effect, Create) for effect in made)
