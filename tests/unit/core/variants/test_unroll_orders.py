"""Orders, withdrawals and checks when several things happen at once."""

from collections.abc import Callable
from typing import Any

import pytest

from pvbus.core.kernel.effects import CatchUp
from pvbus.core.kernel.keys import CONFIRM_DELETION, HOLD, REMOVALS_MAX
from pvbus.core.kernel.records import OBJECTS, SETRESULTS, SETS, CheckRequest
from tests.simulation.parts import (
    REVISION,
    SET,
    SITE,
    VARIANT,
    UnrollPart,
    obj,
    of_set,
    site,
    site_set,
    upstream,
)
from tests.unit.core.variants.unrolling import (
    FLEET,
    change,
    delete_ordered,
    fleet,
    live_on,
    part,
    relabel,
    removing,
    selecting,
)

FIRST = "alpha-r1-s1"
PROD = selecting(matchLabels={"env": "prod"})


def waits_for(unroll: UnrollPart) -> str:
    unroll.now += 2
    unroll.run()
    assert unroll.rollup is not None
    return unroll.rollup.waiting


def nonces(unroll: UnrollPart) -> set[str]:
    return {row.nonce for row in unroll.requests.values() if isinstance(row, CheckRequest)}


def answer(unroll: UnrollPart) -> None:
    for key, row in list(unroll.requests.items()):
        if isinstance(row, CheckRequest):
            unroll.answer(key, row.nonce)


def unanswered() -> UnrollPart:
    """A removal whose check has no answer yet."""
    unroll = removing()
    unroll.answers_checks = False
    live_on(unroll)
    assert nonces(unroll)
    return unroll


def ordered() -> UnrollPart:
    unroll = removing()
    live_on(unroll)
    assert unroll.states()[FIRST] == "ordered"
    return unroll


def withdraw(unroll: UnrollPart, generation: int) -> str:
    """Change the set, which withdraws its orders; return the token of the first child."""
    change(unroll, generation=generation)
    unroll.run()
    assert unroll.states()[FIRST] == "waiting"
    return unroll.children[FIRST].cancelled


def acknowledge(unroll: UnrollPart, name: str) -> None:
    """Report what render does once it has written the withdrawal of an order."""
    row = unroll.children[name]
    unroll.rendered(f"default/alpha|{name}", row, cancelled=row.cancelled)


# ------------------------------------------------------------ rows


def test_an_annotation_that_changes_changes_the_row() -> None:
    """Labels are what selects; annotations are only read by expressions."""
    template = {
        "downstream": {"repo": "r1", "packageExpr": "target.name"},
        "labelExprs": [{"key": "zone", "valueExpr": "target.annotations['zone']"}],
    }
    unroll = part({**PROD, "template": template})
    for zone in ("a", "b"):
        metadata = {"labels": {"env": "prod"}, "annotations": {"zone": zone}}
        unroll.tell(SITE, obj(SITE, "s1", metadata=metadata))
        unroll.run()
        assert unroll.targets[FIRST].roots["target"].annotations == {"zone": zone}


def test_a_variant_of_another_namespace_is_not_recorded_after_a_restart() -> None:
    """A new holder of the lease examines every living variant with the label of the set."""
    unroll = fleet(2)
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "stray"}}
    unroll.tell(VARIANT, obj(VARIANT, "stray", metadata={**meta, "namespace": "other"}, spec=spec))
    unroll.restart()
    live_on(unroll)
    assert set(unroll.states()) == {"alpha-r1-s0000", "alpha-r1-s0001"}


def test_a_set_that_is_missing_from_an_incomplete_list_keeps_its_rows() -> None:
    unroll = part(sites=("s1",))
    unroll.mark(SET, "syncing", epoch=2)
    unroll.tell_gone(SET, site_set())
    live_on(unroll)
    assert (unroll.states(), unroll.orders()) == ({FIRST: "present"}, {FIRST: "present"})
    unroll.mark(SET, "ok", epoch=2)
    live_on(unroll)
    assert (unroll.states(), unroll.orders()) == ({}, {})


def test_a_set_of_the_same_name_that_selects_nothing_lets_the_former_children_go() -> None:
    """They are the garbage collector's: nothing of them may become a removal of the new set."""
    unroll = fleet(3)
    change(unroll, selecting(matchLabels={"env": "nowhere"}), uid="uid-second")
    unroll.run()
    assert (unroll.states(), unroll.orders()) == ({}, {})


def test_rows_that_the_bus_refused_are_not_sent_again_while_they_are_the_same() -> None:
    unroll = part(sites=("s1",))
    refuse_another(unroll)
    live_on(unroll)
    unroll.steps.clear()
    change(unroll, PROD, selecting(name="nobody"), generation=2)  # has everything looked at again
    live_on(unroll)
    assert not [put for step in unroll.steps for put in step.puts if put.key.endswith("|alpha-r1-s3")]


@pytest.mark.parametrize(
    "before", [{"ready": True}, {"ready": False}, {"error": "no", "reason": "Failed"}, {"applied": ""}]
)
def test_a_refused_row_is_a_failure_whatever_its_child_was_before(before: dict[str, Any]) -> None:
    """Neither applied nor ready, nor the error that it had: the set speaks of the row that is wanted now."""
    unroll = part(sites=("s1", "s2"))
    for name in ("alpha-r1-s1", "alpha-r1-s2"):
        unroll.rendered(f"default/alpha|{name}", unroll.children[name], **before)
    unroll.refuses = lambda name: name == "alpha-r1-s1"
    change(unroll, {**PROD, "template": {**FLEET, "labels": {"a": "b"}}}, generation=2)
    live_on(unroll, 6)
    assert unroll.rollup is not None
    counts = unroll.rollup.counts
    assert (counts.desired, counts.applied, counts.ready, counts.failed) == (2, 1, 0, 1)
    assert unroll.rollup.message.endswith(": too large")
    assert [each.name for each in unroll.rollup.unready] == ["alpha-r1-s1", "alpha-r1-s2"]


# ------------------------------------------------------------ what a removal waits for


@pytest.mark.parametrize("jump", [-3_600.0, 60.0])
def test_a_wall_clock_that_jumps_makes_no_removal_due_or_late(jump: float) -> None:
    unroll = removing()
    unroll.wall_offset = jump
    unroll.run()
    assert unroll.states()[FIRST] == "waiting"
    live_on(unroll)
    assert unroll.states()[FIRST] == "ordered"


def fail_another(unroll: UnrollPart) -> None:
    template = {"downstream": {"repo": "r1", "packageExpr": "target.annotations['none']"}}
    unroll.tell(SITE, site("s3", env="fails"))
    change(unroll, PROD, {**selecting(matchLabels={"env": "fails"}), "template": template})


def refuse_another(unroll: UnrollPart) -> None:
    unroll.refuses = lambda name: name == "alpha-r1-s3"
    unroll.tell(SITE, site("s3", env="prod"))


def duplicate_another(unroll: UnrollPart) -> None:
    change(unroll, PROD, selecting(name="s2"))


IN_THE_WAY: dict[str, tuple[Callable[[UnrollPart], None], str]] = {
    "a failing target": (fail_another, "every target to be evaluated without an error"),
    "a refused row": (refuse_another, "every target to be evaluated without an error"),
    "two of one downstream": (duplicate_another, "no two targets to have the same downstream"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_removals_wait_until_every_target_can_be_evaluated(what: str) -> None:
    unroll = removing()
    put_in_the_way, words = IN_THE_WAY[what]
    put_in_the_way(unroll)
    live_on(unroll)
    assert unroll.states()[FIRST] == "waiting"
    assert waits_for(unroll) == words


def lose_the_upstream(unroll: UnrollPart) -> None:
    unroll.tell_gone(REVISION, upstream())


def lose_the_kind(unroll: UnrollPart) -> None:
    unroll.mark(SITE, "unavailable")


def forbid_removals(unroll: UnrollPart) -> None:
    change(unroll, PROD, annotations={REMOVALS_MAX: "few"})


STOPS: dict[str, tuple[Callable[[UnrollPart], None], str]] = {
    "no upstream": (lose_the_upstream, "UpstreamNotFound"),
    "a kind that is not served": (lose_the_kind, "NoMatchingTargets"),
    "a limit that cannot be read": (forbid_removals, "ValidationError"),
}


@pytest.mark.parametrize("what", STOPS)
def test_a_set_that_is_stopped_says_what_its_removals_wait_for_whoever_tells_it(what: str) -> None:
    """Not the answer to a withdrawn check, nor a wait that only its last worker knew."""
    unroll = unanswered()
    stop, reason = STOPS[what]
    stop(unroll)
    assert waits_for(unroll) == "every target to be evaluated without an error"
    reported = unroll.rollup
    assert reported is not None
    assert (reported.reason, reported.counts.removing) == (reason, 1)
    unroll.restart()
    unroll.now += 2
    unroll.run()
    assert unroll.rollup == reported


def hold(unroll: UnrollPart) -> None:
    change(unroll, PROD, annotations={HOLD: "true"})


@pytest.mark.parametrize("stop", [*(stop for stop, _ in STOPS.values()), hold], ids=[*STOPS, "a hold"])
def test_a_stopped_set_counts_no_row_that_the_bus_refused_before(stop: Callable[[UnrollPart], None]) -> None:
    """A new worker does not offer it, so it cannot know."""
    unroll = part(sites=("s1",))
    refuse_another(unroll)
    live_on(unroll, 6)
    assert unroll.rollup is not None
    assert unroll.rollup.counts.failed == 1
    stop(unroll)
    live_on(unroll, 6)
    reported = unroll.rollup
    assert (reported.counts.desired, reported.counts.failed) == (1, 0)
    unroll.restart()
    live_on(unroll, 6)
    assert unroll.rollup == reported


def test_removals_wait_for_a_child_that_render_never_reported() -> None:
    unroll = removing()
    unroll.render_agrees = False
    unroll.tell(SITE, site("s3", env="prod"))
    live_on(unroll)
    assert unroll.states()[FIRST] == "waiting"
    assert waits_for(unroll) == 'render to evaluate PackageVariant "alpha-r1-s3" without an error'
    unroll.rendered("default/alpha|alpha-r1-s3", unroll.children["alpha-r1-s3"])
    live_on(unroll)
    assert unroll.states()[FIRST] == "ordered"


# ------------------------------------------------------------ the check


def test_after_an_answer_all_inputs_are_caught_up_with() -> None:
    """Targets, the set itself, and what render reported: each may save a variant."""
    unroll = unanswered()
    answer(unroll)
    effect = next(unroll.controller.reconcile(0, "default/alpha", unroll.now))
    assert isinstance(effect, CatchUp)
    assert set(effect.topics) >= {OBJECTS, SETS, SETRESULTS}


def test_an_answer_is_used_up_by_an_evaluation_that_adds_a_child() -> None:
    """That evaluation orders nothing, and what comes after it is later than the answer."""
    unroll = unanswered()
    before = nonces(unroll)
    unroll.on_catch_up = lambda: unroll.tell(SITE, site("s3", env="prod"))
    answer(unroll)
    unroll.run()
    assert (unroll.states()[FIRST], unroll.states()["alpha-r1-s3"]) == ("waiting", "present")
    assert nonces(unroll)
    assert before.isdisjoint(nonces(unroll))


def test_an_answer_does_not_serve_a_set_that_changed_meanwhile() -> None:
    unroll = unanswered()
    before = nonces(unroll)
    unroll.on_catch_up = lambda: change(unroll, generation=2)
    answer(unroll)
    unroll.run()
    assert unroll.states()[FIRST] == "waiting"
    assert nonces(unroll)
    assert before.isdisjoint(nonces(unroll))


# ------------------------------------------------------------ orders and withdrawals


def test_an_order_carries_its_time_and_its_generation() -> None:
    """By the wall clock: render, which reads it, may run elsewhere."""
    unroll = removing()
    unroll.wall_offset = 5_000.0
    live_on(unroll)
    order = unroll.targets[FIRST]
    assert (order.state, order.generation) == ("removed", 1)
    assert 0 <= unroll.now + unroll.wall_offset - order.ordered <= 30


def test_a_withdrawal_stays_until_render_has_written_it() -> None:
    """The target returns after its order was withdrawn: the row still carries the token."""
    unroll = ordered()
    cancelled = withdraw(unroll, generation=2)
    assert cancelled
    unroll.tell(SITE, site("s1", env="prod"))
    unroll.run()
    row = unroll.targets[FIRST]
    assert (row.state, row.cancelled) == ("present", cancelled)


def test_the_withdrawal_of_an_earlier_order_does_not_count_for_the_last() -> None:
    unroll = ordered()
    withdraw(unroll, generation=2)
    acknowledge(unroll, FIRST)
    live_on(unroll, 60)
    assert unroll.states()[FIRST] == "ordered"
    withdraw(unroll, generation=3)
    live_on(unroll, 120)
    assert unroll.states()[FIRST] == "waiting"
    assert waits_for(unroll) == f'render to withdraw the last order on PackageVariant "{FIRST}"'
    acknowledge(unroll, FIRST)
    live_on(unroll, 120)
    assert unroll.states()[FIRST] == "ordered"


def test_each_order_waits_for_its_own_withdrawal() -> None:
    unroll = fleet(20)
    relabel(unroll, 0, 1)
    live_on(unroll)
    change(unroll, generation=2)
    unroll.run()
    acknowledge(unroll, "alpha-r1-s0000")
    live_on(unroll, 60)
    states = unroll.states()
    assert (states["alpha-r1-s0000"], states["alpha-r1-s0001"]) == ("ordered", "waiting")


def test_a_relist_of_the_targets_is_no_error_and_withdraws_nothing() -> None:
    unroll = ordered()
    before = unroll.rollup
    unroll.mark(SITE, "syncing", epoch=2)
    live_on(unroll)
    assert unroll.states()[FIRST] == "ordered"
    assert unroll.rollup == before


# ------------------------------------------------------------ guard and confirmation


def test_children_that_came_after_a_removal_make_no_room_for_others() -> None:
    """The share is one of the children that were there before the first removal that counts."""
    unroll = fleet(20)
    relabel(unroll, *range(5))
    live_on(unroll)
    assert delete_ordered(unroll) == 5
    for number in range(100, 180):
        unroll.tell(SITE, site(f"s{number:04}", env="prod"))
    live_on(unroll)
    for name in list(unroll.children):
        if unroll.children[name].state == "present":
            unroll.made(name)
    relabel(unroll, 10)
    live_on(unroll)
    assert unroll.states()["alpha-r1-s0010"] == "held"


def test_what_comes_while_a_token_is_shown_waits_for_its_own() -> None:
    """A token stays for a minute; until then no removal that it does not cover may be ordered."""
    unroll = fleet(100)
    relabel(unroll, *range(20))
    live_on(unroll, 12)
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    assert unroll.rollup.hold.token
    relabel(unroll, 50)
    live_on(unroll)
    assert unroll.states()["alpha-r1-s0050"] == "waiting"
    live_on(unroll, 60)
    assert unroll.states()["alpha-r1-s0050"] == "held"


def confirmed() -> UnrollPart:
    """Forty of a hundred children whose removal a person confirmed, and that are ordered."""
    unroll = fleet(100)
    relabel(unroll, *range(40))
    live_on(unroll)
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    change(unroll, annotations={CONFIRM_DELETION: unroll.rollup.hold.token})
    live_on(unroll)
    assert list(unroll.states().values()).count("ordered") == 40
    return unroll


def test_what_was_confirmed_stays_confirmed_when_its_order_is_withdrawn() -> None:
    unroll = confirmed()
    change(unroll, generation=2)
    live_on(unroll)
    assert set(list(unroll.states().values())[:40]) == {"confirmed"}


def test_the_hold_of_a_former_set_is_not_that_of_its_successor() -> None:
    unroll = confirmed()
    assert unroll.rollup is not None
    assert unroll.rollup.released
    change(unroll, uid="uid-second")
    live_on(unroll)
    assert unroll.rollup.uid == "uid-second"
    assert (unroll.rollup.hold, unroll.rollup.released) == (None, "")


def test_kinds_are_asked_for_though_an_answer_waits_to_be_read() -> None:
    """The decision begins again after the catch-up, and its requests must not be lost with the first half."""
    unroll = unanswered()
    answer(unroll)
    change(unroll, selecting(kind="Place"), generation=2)
    unroll.run()
    assert "example.org/Place|unroll-0" in unroll.requests
