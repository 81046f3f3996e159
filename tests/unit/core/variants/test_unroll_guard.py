"""The guard: it holds all removals of an accident, at any speed and size, until a person confirms them."""

import cProfile
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from pvbus.core.kernel.keys import CONFIRM_DELETION
from pvbus.core.kernel.records import ChildRow, SetResult
from pvbus.core.variants.conditions.sets import set_conditions
from pvbus.core.variants.unroll.removal import RemovalLimits
from tests.simulation.parts import SITE, UnrollPart, site
from tests.unit.core.variants.unrolling import (
    change,
    delete_ordered,
    fleet,
    live_on,
    part,
    relabel,
    selecting,
)

NOWHERE = selecting(matchLabels={"env": "nowhere"})


def token(unroll: UnrollPart) -> str:
    unroll.now += 2
    unroll.run()
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    return unroll.rollup.hold.token


def counts(unroll: UnrollPart) -> dict[str, int]:
    states = list(unroll.states().values())
    return {state: states.count(state) for state in sorted(set(states))}


def confirm(unroll: UnrollPart, *tokens: str, selector: Any = None, generation: int = 1) -> None:
    targets = () if selector is None else (selector,)
    change(unroll, *targets, generation=generation, annotations={CONFIRM_DELETION: ",".join(tokens)})


@pytest.mark.parametrize("gap", [0.0, 0.005, 0.05, 1.0, 4.9])
@pytest.mark.parametrize("number", [60, 200])
def test_a_typo_on_the_whole_inventory_removes_nothing(number: int, gap: float) -> None:
    """However fast the labels change: below 5 s apart, they are one accident with one token."""
    unroll = fleet(number)
    for i in range(number):
        relabel(unroll, i, env="prodd", gap=gap)
        assert "ordered" not in unroll.states().values()
    live_on(unroll, 120)
    assert counts(unroll) == {"held": number}
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    assert unroll.rollup.hold.count == number


def test_a_typo_in_the_selector_is_one_hold_and_one_confirmation_in_chunks() -> None:
    """3,000 rows at 200 a step: nothing goes before the word of a person, all with it, no step is larger."""
    unroll = fleet(3_000, chunk_puts=200)
    unroll.steps.clear()
    change(unroll, NOWHERE, generation=2)
    live_on(unroll, 60)
    assert counts(unroll) == {"held": 3_000}
    confirm(unroll, token(unroll), selector=NOWHERE, generation=2)
    live_on(unroll, 30)
    assert counts(unroll) == {"ordered": 3_000}
    assert (
        max(len(step.puts) for step in unroll.steps) <= 200 + 4
    )  # the requests of a check go with the first


class VisitedRows(dict[str, ChildRow]):
    """Rows each visit of which is a call, so that a profile counts it."""

    def __getitem__(self, name: str) -> ChildRow:
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()

    def items(self) -> Any:
        yield from super().items()

    def values(self) -> Any:
        yield from super().values()


def removal_calls(number: int, chunk_puts: int) -> int:
    """Remove all variants of a set, from the accident to the last row; return the calls that it took."""
    unroll = fleet(number, chunk_puts=chunk_puts)
    state = unroll.controller.state(0, "default/alpha")
    assert state is not None
    children = state.children
    children.rows = VisitedRows(children.rows)
    unroll.steps.clear()
    profile = cProfile.Profile()
    profile.enable()
    change(unroll, NOWHERE, generation=2)
    live_on(unroll, 15)
    confirm(unroll, token(unroll), selector=NOWHERE, generation=2)
    live_on(unroll, 15)
    assert delete_ordered(unroll) == number
    profile.disable()
    assert counts(unroll) == {"gone": number}
    assert max(len(step.puts) for step in unroll.steps) <= chunk_puts + 4
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_the_work_of_removals_is_in_proportion_to_their_number() -> None:
    """Each pass costs what it writes, so it does not matter how many chunks there are: 5,000 in chunks of 250
    are as many as 20,000 in those of the service."""
    assert removal_calls(5_000, chunk_puts=250) <= 10.2 * removal_calls(500, chunk_puts=250)


def test_bringing_everything_back_forgets_the_hold() -> None:
    unroll = fleet(100)
    relabel(unroll, *range(100), env="prodd")
    live_on(unroll)
    assert counts(unroll) == {"held": 100}
    relabel(unroll, *range(100), env="prod")
    live_on(unroll)
    assert counts(unroll) == {"present": 100}
    assert unroll.rollup is not None
    assert (unroll.rollup.hold, unroll.rollup.counts.held) == (None, 0)


def test_additions_of_the_same_change_do_not_make_room_for_removals() -> None:
    """A selector that moves from 100 objects to 300 others: nothing goes, and the others wait too."""
    unroll = fleet(100)
    for i in range(300):
        unroll.tell(SITE, site(f"t{i:04}", env="stage"))
    other = selecting(matchLabels={"env": "stage"})
    change(unroll, other, generation=2)
    live_on(unroll)
    assert counts(unroll) == {"held": 100}
    confirm(unroll, token(unroll), selector=other, generation=2)
    live_on(unroll)
    assert counts(unroll) == {"ordered": 100, "present": 300}


@pytest.mark.parametrize("end", ["confirmed", "returned", "returned at once"])
def test_a_set_whose_hold_ends_is_not_ready_before_what_waited_for_it(end: str) -> None:
    """The end of the hold is a record of its own, and the rows of new targets come after it."""
    unroll = fleet(20)
    for i in range(300):
        unroll.tell(SITE, site(f"t{i:04}", env="stage"))
    other = selecting(matchLabels={"env": "stage"})
    change(unroll, other, generation=2)
    unroll.run()
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    if end != "returned at once":
        live_on(unroll)
        assert counts(unroll) == {"held": 20}
    unroll.steps.clear()
    if end == "confirmed":
        confirm(unroll, token(unroll), selector=other, generation=2)
    else:
        for i in range(20):
            unroll.tell(SITE, site(f"s{i:04}", env="stage"))
    live_on(unroll)
    reports = [put.row for step in unroll.steps for put in step.puts if isinstance(put.row, SetResult)]
    ready = [
        (report.counts.applied, condition.status)
        for report in reports
        for condition in set_conditions(report, namespace="default", name="alpha", children_report=False)
        if condition.type == "Ready"
    ]
    whole = 300 if end == "confirmed" else 320
    assert ready[-1] == (whole, "True")
    assert {status for applied, status in ready if applied < whole} == {"False"}


def test_additions_of_targets_go_on_while_removals_are_held() -> None:
    unroll = fleet(100)
    relabel(unroll, *range(20))
    live_on(unroll)
    unroll.tell(SITE, site("t0000", env="prod"))
    live_on(unroll)
    assert counts(unroll) == {"held": 20, "present": 81}


@pytest.mark.parametrize(
    ("number", "removed", "held"),
    [
        (3, 3, False),
        (5, 5, False),
        (6, 5, False),
        (6, 6, True),
        (60, 6, False),
        (60, 7, True),
        (200, 20, False),
    ],
)
def test_five_or_a_tenth_may_go_and_no_more(number: int, removed: int, held: bool) -> None:
    unroll = fleet(number)
    relabel(unroll, *range(removed))
    live_on(unroll)
    assert counts(unroll).get("held" if held else "ordered") == removed


@pytest.mark.parametrize("fate", ["gone", "ordered", "returned"])
def test_removals_of_the_last_ten_minutes_count(fate: str) -> None:
    """Carried out, under way or taken back: five in ten minutes are five."""
    unroll = fleet(20)
    relabel(unroll, *range(5))
    live_on(unroll)
    if fate == "gone":
        assert delete_ordered(unroll) == 5
    elif fate == "returned":
        relabel(unroll, *range(5), env="prod")
    live_on(unroll, 300)
    relabel(unroll, 10)
    live_on(unroll)
    assert unroll.states()["alpha-r1-s0010"] == "held"


@pytest.mark.parametrize("fate", ["gone", "returned"])
def test_removals_of_more_than_ten_minutes_ago_are_forgotten(fate: str) -> None:
    unroll = fleet(20)
    relabel(unroll, *range(5))
    live_on(unroll)
    if fate == "gone":
        assert delete_ordered(unroll) == 5
    else:
        relabel(unroll, *range(5), env="prod")
    live_on(unroll, 630)
    relabel(unroll, *range(10, 15))
    live_on(unroll, 60)
    assert counts(unroll)["ordered"] == 5


def test_orders_that_nobody_carries_out_count_for_as_long_as_they_stand() -> None:
    """render may be away for an hour: removals do not accumulate behind it."""
    unroll = fleet(100)
    for wave in range(4):
        relabel(unroll, *range(10 * wave, 10 * wave + 10))
        live_on(unroll, 900)
    assert counts(unroll) == {"ordered": 10, "held": 30, "present": 60}


def test_a_token_confirms_what_it_was_shown_for_and_nothing_else() -> None:
    unroll = fleet(100)
    relabel(unroll, *range(20))
    live_on(unroll)
    first = token(unroll)
    relabel(unroll, *range(50, 70))  # within the minute of the token: they wait, and are not behind it
    confirm(unroll, first)
    live_on(unroll, 60)
    states = unroll.states()
    assert [states[f"alpha-r1-s{i:04}"] for i in range(20)] == ["ordered"] * 20
    assert [states[f"alpha-r1-s{i:04}"] for i in range(50, 70)] == ["held"] * 20
    unroll.restart()  # rows follow the last confirmation again: not those of the next hold
    live_on(unroll, 60)
    states = unroll.states()
    assert [states[f"alpha-r1-s{i:04}"] for i in range(50, 70)] == ["held"] * 20


@pytest.mark.parametrize("wrong", ["", "1", "deadbeef", "*"])
def test_another_token_confirms_nothing(wrong: str) -> None:
    unroll = fleet(100)
    relabel(unroll, *range(20))
    live_on(unroll)
    confirm(unroll, wrong)
    live_on(unroll)
    assert counts(unroll)["held"] == 20


def test_a_token_changes_at_most_once_a_minute() -> None:
    """A person who reads a list has time to confirm it, however many removals are added."""
    unroll = fleet(200)
    relabel(unroll, *range(50))
    live_on(unroll, 9)
    changes = [(unroll.now, token(unroll))]
    for i in range(50, 190):
        relabel(unroll, i, gap=1.0)
        assert unroll.rollup is not None
        assert unroll.rollup.hold is not None
        if unroll.rollup.hold.token not in ("", changes[-1][1]):
            changes.append((unroll.now, unroll.rollup.hold.token))
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(changes)]
    assert gaps
    assert min(gaps) >= 60


def test_a_hold_that_waits_for_a_person_costs_nothing() -> None:
    """An outdated token changes when its minute is over; from then on only events cause a pass."""
    unroll = fleet(100)
    relabel(unroll, *range(20))
    live_on(unroll)
    first = token(unroll)
    relabel(unroll, 0, env="prod")
    begun, looks, changed = unroll.now, 0, 0.0
    while unroll.now < begun + 900 and looks < 20:
        again = unroll.run().again_after
        assert again is not None
        assert unroll.rollup is not None
        assert unroll.rollup.hold is not None
        if not changed and unroll.rollup.hold.token != first:
            changed = unroll.now - begun
        unroll.now += again
        looks += 1
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    assert unroll.rollup.hold.token not in ("", first)
    assert unroll.rollup.hold.count == 19
    assert 0 < changed < 60
    assert unroll.now >= begun + 900


def test_an_old_confirmation_does_not_confirm_a_new_accident() -> None:
    """The annotation stays on the set for ever: the same variants, held again, have another token."""
    unroll = fleet(20)
    change(unroll, NOWHERE, generation=2)
    live_on(unroll)
    old = token(unroll)
    confirm(unroll, old, selector=NOWHERE, generation=2)
    live_on(unroll)
    assert delete_ordered(unroll) == 20
    everything = selecting(matchLabels={"env": "prod"})
    confirm(unroll, old, selector=everything, generation=3)
    live_on(unroll)
    for name in list(unroll.children):
        unroll.made(name)
    live_on(unroll, 900)
    assert counts(unroll) == {"present": 20}
    confirm(unroll, old, selector=NOWHERE, generation=4)
    live_on(unroll)
    assert counts(unroll) == {"held": 20}


def test_what_was_confirmed_does_not_count_against_later_removals() -> None:
    unroll = fleet(100)
    relabel(unroll, *range(40))
    live_on(unroll)
    confirm(unroll, token(unroll))
    live_on(unroll)
    assert delete_ordered(unroll) == 40
    relabel(unroll, *range(50, 55))
    live_on(unroll)
    assert counts(unroll)["ordered"] == 5


def test_a_confirmed_removal_whose_target_returns_is_kept() -> None:
    unroll = fleet(100)
    relabel(unroll, *range(40))
    live_on(unroll)
    confirm(unroll, token(unroll))
    unroll.run()
    relabel(unroll, 7, env="prod")
    live_on(unroll)
    assert counts(unroll) == {"ordered": 39, "present": 61}


def test_a_new_holder_of_the_lease_keeps_hold_and_token() -> None:
    """Rows and roll-up are all that a holder gets from the one before."""
    unroll = fleet(100)
    relabel(unroll, *range(40))
    live_on(unroll)
    before = token(unroll)
    unroll.restart()
    live_on(unroll)
    assert (counts(unroll), token(unroll)) == ({"held": 40, "present": 60}, before)
    confirm(unroll, before)
    live_on(unroll)
    assert counts(unroll) == {"ordered": 40, "present": 60}


def test_a_confirmation_that_a_crash_interrupts_goes_on() -> None:
    """One record releases; some rows follow before the crash, the others after it."""
    unroll = fleet(100, chunk_puts=10)
    relabel(unroll, *range(40))
    live_on(unroll)
    confirm(unroll, token(unroll))
    for _ in range(3):
        unroll.run_once()
    assert 0 < counts(unroll)["confirmed"] < 40
    unroll.restart()
    live_on(unroll)
    assert counts(unroll) == {"ordered": 40, "present": 60}


@pytest.mark.parametrize("jump", [-3_600.0, 600.0, 86_400.0])
def test_a_wall_clock_that_jumps_changes_nothing(jump: float) -> None:
    unroll = fleet(60)
    relabel(unroll, *range(6))
    live_on(unroll)
    assert counts(unroll)["ordered"] == 6
    unroll.wall_offset = jump
    relabel(unroll, 10)
    unroll.run()
    unroll.now += 1
    unroll.run()
    assert unroll.states()["alpha-r1-s0010"] == "held"
    relabel(unroll, 10, env="prod")
    live_on(unroll)
    assert counts(unroll) == {"ordered": 6, "present": 54}


@pytest.mark.parametrize(
    ("annotations", "held"),
    [
        ({"pvbus.dev/removals-max": "50"}, False),
        ({"pvbus.dev/removals-share": "0.5"}, False),
        ({"pvbus.dev/removals-share": "0.01"}, True),
        ({}, True),
    ],
)
def test_a_set_may_have_limits_of_its_own(annotations: dict[str, str], held: bool) -> None:
    unroll = fleet(100, annotations=annotations)
    relabel(unroll, *range(40))
    live_on(unroll)
    assert counts(unroll).get("held" if held else "ordered") == 40


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "²"])
def test_a_limit_that_cannot_be_read_stops_the_set_with_its_name(text: str) -> None:
    unroll = fleet(10, annotations={"pvbus.dev/removals-max": text})
    relabel(unroll, 1)
    live_on(unroll)
    assert unroll.rollup is not None
    assert unroll.rollup.reason == "ValidationError"
    assert f'pvbus.dev/removals-max: "{text}"' in unroll.rollup.message
    assert "ordered" not in unroll.states().values()


def test_limits_of_the_installation_are_kept_to() -> None:
    unroll = fleet(100, limits=RemovalLimits(removals_max=2, removals_share=0.0))
    relabel(unroll, *range(3))
    live_on(unroll)
    assert counts(unroll)["held"] == 3


def test_a_failing_target_holds_nothing_and_removes_nothing() -> None:
    """Its variant is not unwanted: its downstream is unknown."""
    template = {"downstream": {"repo": "r1", "packageExpr": "target.labels['pkg']"}}
    target = {**selecting(matchLabels={"env": "prod"}), "template": template}
    unroll = part(target)
    for i in range(20):
        unroll.tell(SITE, site(f"s{i:04}", env="prod", pkg=f"p{i}"))
    unroll.run()
    for name in list(unroll.children):
        unroll.made(name)
    for i in range(10):
        unroll.tell(SITE, site(f"s{i:04}", env="prod"))
    live_on(unroll)
    assert counts(unroll) == {"present": 20}
    for i in range(10):
        unroll.tell(SITE, site(f"s{i:04}", env="prod", pkg=f"p{i}"))
    live_on(unroll)
    assert counts(unroll) == {"present": 20}
