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


def waits_for(found: UnrollPart) -> str:
    found.now += 2
    found.run()
    assert found.rollup is not None
    return found.rollup.waiting


def nonces(found: UnrollPart) -> set[str]:
    return {row.nonce for row in found.requests.values() if isinstance(row, CheckRequest)}


def answer(found: UnrollPart) -> None:
    for key, row in list(found.requests.items()):
        if isinstance(row, CheckRequest):
            found.answer(key, row.nonce)


def unanswered() -> UnrollPart:
    """A removal whose check has no answer yet."""
    found = removing()
    found.answers_checks = False
    live_on(found)
    assert nonces(found)
    return found


def ordered() -> UnrollPart:
    found = removing()
    live_on(found)
    assert found.states()[FIRST] == "ordered"
    return found


def withdraw(found: UnrollPart, generation: int) -> str:
    """Change the set, which withdraws its orders; return the token of the first child."""
    change(found, generation=generation)
    found.run()
    assert found.states()[FIRST] == "waiting"
    return found.children[FIRST].cancelled


def acknowledge(found: UnrollPart, name: str) -> None:
    """Report what render does once it has written the withdrawal of an order."""
    row = found.children[name]
    found.rendered(f"default/alpha|{name}", row, cancelled=row.cancelled)


# ------------------------------------------------------------ rows


def test_an_annotation_that_changes_changes_the_row() -> None:
    """Labels are what selects; annotations are only read by expressions."""
    template = {
        "downstream": {"repo": "r1", "packageExpr": "target.name"},
        "labelExprs": [{"key": "zone", "valueExpr": "target.annotations['zone']"}],
    }
    found = part({**PROD, "template": template})
    for zone in ("a", "b"):
        metadata = {"labels": {"env": "prod"}, "annotations": {"zone": zone}}
        found.tell(SITE, obj(SITE, "s1", metadata=metadata))
        found.run()
        assert found.targets[FIRST].roots["target"].annotations == {"zone": zone}


def test_a_variant_of_another_namespace_is_not_recorded_after_a_restart() -> None:
    """A new holder of the lease examines every living variant with the label of the set."""
    found = fleet(2)
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "stray"}}
    found.tell(VARIANT, obj(VARIANT, "stray", metadata={**meta, "namespace": "other"}, spec=spec))
    found.restart()
    live_on(found)
    assert set(found.states()) == {"alpha-r1-s0000", "alpha-r1-s0001"}


def test_a_set_that_is_missing_from_an_incomplete_list_keeps_its_rows() -> None:
    found = part(sites=("s1",))
    found.mark(SET, "syncing", epoch=2)
    found.tell_gone(SET, site_set())
    live_on(found)
    assert (found.states(), found.orders()) == ({FIRST: "present"}, {FIRST: "present"})
    found.mark(SET, "ok", epoch=2)
    live_on(found)
    assert (found.states(), found.orders()) == ({}, {})


def test_a_set_of_the_same_name_that_selects_nothing_lets_the_former_children_go() -> None:
    """They are the garbage collector's: nothing of them may become a removal of the new set."""
    found = fleet(3)
    change(found, selecting(matchLabels={"env": "nowhere"}), uid="uid-second")
    found.run()
    assert (found.states(), found.orders()) == ({}, {})


def test_rows_that_the_bus_refused_are_not_sent_again_while_they_are_the_same() -> None:
    found = part(sites=("s1",))
    refuse_another(found)
    live_on(found)
    found.steps.clear()
    change(found, PROD, selecting(name="nobody"), generation=2)  # has everything looked at again
    live_on(found)
    assert not [put for step in found.steps for put in step.puts if put.key.endswith("|alpha-r1-s3")]


@pytest.mark.parametrize(
    "before", [{"ready": True}, {"ready": False}, {"error": "no", "reason": "Failed"}, {"applied": ""}]
)
def test_a_refused_row_is_a_failure_whatever_its_child_was_before(before: dict[str, Any]) -> None:
    """Neither applied nor ready, nor the error that it had: the set speaks of the row that is wanted now."""
    found = part(sites=("s1", "s2"))
    for name in ("alpha-r1-s1", "alpha-r1-s2"):
        found.rendered(f"default/alpha|{name}", found.children[name], **before)
    found.refuses = lambda name: name == "alpha-r1-s1"
    change(found, {**PROD, "template": {**FLEET, "labels": {"a": "b"}}}, generation=2)
    live_on(found, 6)
    assert found.rollup is not None
    counts = found.rollup.counts
    assert (counts.desired, counts.applied, counts.ready, counts.failed) == (2, 1, 0, 1)
    assert found.rollup.message.endswith(": too large")
    assert [each.name for each in found.rollup.unready] == ["alpha-r1-s1", "alpha-r1-s2"]


# ------------------------------------------------------------ what a removal waits for


@pytest.mark.parametrize("jump", [-3_600.0, 60.0])
def test_a_wall_clock_that_jumps_makes_no_removal_due_or_late(jump: float) -> None:
    found = removing()
    found.wall_offset = jump
    found.run()
    assert found.states()[FIRST] == "waiting"
    live_on(found)
    assert found.states()[FIRST] == "ordered"


def fail_another(found: UnrollPart) -> None:
    template = {"downstream": {"repo": "r1", "packageExpr": "target.annotations['none']"}}
    found.tell(SITE, site("s3", env="fails"))
    change(found, PROD, {**selecting(matchLabels={"env": "fails"}), "template": template})


def refuse_another(found: UnrollPart) -> None:
    found.refuses = lambda name: name == "alpha-r1-s3"
    found.tell(SITE, site("s3", env="prod"))


def duplicate_another(found: UnrollPart) -> None:
    change(found, PROD, selecting(name="s2"))


IN_THE_WAY: dict[str, tuple[Callable[[UnrollPart], None], str]] = {
    "a failing target": (fail_another, "every target to be evaluated without an error"),
    "a refused row": (refuse_another, "every target to be evaluated without an error"),
    "two of one downstream": (duplicate_another, "no two targets to have the same downstream"),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_removals_wait_until_every_target_can_be_evaluated(what: str) -> None:
    found = removing()
    put_in_the_way, words = IN_THE_WAY[what]
    put_in_the_way(found)
    live_on(found)
    assert found.states()[FIRST] == "waiting"
    assert waits_for(found) == words


def lose_the_upstream(found: UnrollPart) -> None:
    found.tell_gone(REVISION, upstream())


def lose_the_kind(found: UnrollPart) -> None:
    found.mark(SITE, "unavailable")


def forbid_removals(found: UnrollPart) -> None:
    change(found, PROD, annotations={REMOVALS_MAX: "few"})


STOPS: dict[str, tuple[Callable[[UnrollPart], None], str]] = {
    "no upstream": (lose_the_upstream, "UpstreamNotFound"),
    "a kind that is not served": (lose_the_kind, "NoMatchingTargets"),
    "a limit that cannot be read": (forbid_removals, "ValidationError"),
}


@pytest.mark.parametrize("what", STOPS)
def test_a_set_that_is_stopped_says_what_its_removals_wait_for_whoever_tells_it(what: str) -> None:
    """Not the answer to a withdrawn check, nor a wait that only its last worker knew."""
    found = unanswered()
    stop, reason = STOPS[what]
    stop(found)
    assert waits_for(found) == "every target to be evaluated without an error"
    reported = found.rollup
    assert reported is not None
    assert (reported.reason, reported.counts.removing) == (reason, 1)
    found.restart()
    found.now += 2
    found.run()
    assert found.rollup == reported


def hold(found: UnrollPart) -> None:
    change(found, PROD, annotations={HOLD: "true"})


@pytest.mark.parametrize("stop", [*(stop for stop, _ in STOPS.values()), hold], ids=[*STOPS, "a hold"])
def test_a_stopped_set_counts_no_row_that_the_bus_refused_before(stop: Callable[[UnrollPart], None]) -> None:
    """A new worker does not offer it, so it cannot know."""
    found = part(sites=("s1",))
    refuse_another(found)
    live_on(found, 6)
    assert found.rollup is not None
    assert found.rollup.counts.failed == 1
    stop(found)
    live_on(found, 6)
    reported = found.rollup
    assert (reported.counts.desired, reported.counts.failed) == (1, 0)
    found.restart()
    live_on(found, 6)
    assert found.rollup == reported


def test_removals_wait_for_a_child_that_render_never_reported() -> None:
    found = removing()
    found.render_agrees = False
    found.tell(SITE, site("s3", env="prod"))
    live_on(found)
    assert found.states()[FIRST] == "waiting"
    assert waits_for(found) == 'render to evaluate PackageVariant "alpha-r1-s3" without an error'
    found.rendered("default/alpha|alpha-r1-s3", found.children["alpha-r1-s3"])
    live_on(found)
    assert found.states()[FIRST] == "ordered"


# ------------------------------------------------------------ the check


def test_after_an_answer_all_inputs_are_caught_up_with() -> None:
    """Targets, the set itself, and what render reported: each may save a variant."""
    found = unanswered()
    answer(found)
    effect = next(found.controller.reconcile(0, "default/alpha", found.now))
    assert isinstance(effect, CatchUp)
    assert set(effect.topics) >= {OBJECTS, SETS, SETRESULTS}


def test_an_answer_is_used_up_by_an_evaluation_that_adds_a_child() -> None:
    """That evaluation orders nothing, and what comes after it is later than the answer."""
    found = unanswered()
    before = nonces(found)
    found.on_catch_up = lambda: found.tell(SITE, site("s3", env="prod"))
    answer(found)
    found.run()
    assert (found.states()[FIRST], found.states()["alpha-r1-s3"]) == ("waiting", "present")
    assert nonces(found)
    assert before.isdisjoint(nonces(found))


def test_an_answer_does_not_serve_a_set_that_changed_meanwhile() -> None:
    found = unanswered()
    before = nonces(found)
    found.on_catch_up = lambda: change(found, generation=2)
    answer(found)
    found.run()
    assert found.states()[FIRST] == "waiting"
    assert nonces(found)
    assert before.isdisjoint(nonces(found))


# ------------------------------------------------------------ orders and withdrawals


def test_an_order_carries_its_time_and_its_generation() -> None:
    """By the wall clock: render, which reads it, may run elsewhere."""
    found = removing()
    found.wall_offset = 5_000.0
    live_on(found)
    order = found.targets[FIRST]
    assert (order.state, order.generation) == ("removed", 1)
    assert 0 <= found.now + found.wall_offset - order.ordered <= 30


def test_a_withdrawal_stays_until_render_has_written_it() -> None:
    """The target returns after its order was withdrawn: the row still carries the token."""
    found = ordered()
    cancelled = withdraw(found, generation=2)
    assert cancelled
    found.tell(SITE, site("s1", env="prod"))
    found.run()
    row = found.targets[FIRST]
    assert (row.state, row.cancelled) == ("present", cancelled)


def test_the_withdrawal_of_an_earlier_order_does_not_count_for_the_last() -> None:
    found = ordered()
    withdraw(found, generation=2)
    acknowledge(found, FIRST)
    live_on(found, 60)
    assert found.states()[FIRST] == "ordered"
    withdraw(found, generation=3)
    live_on(found, 120)
    assert found.states()[FIRST] == "waiting"
    assert waits_for(found) == f'render to withdraw the last order on PackageVariant "{FIRST}"'
    acknowledge(found, FIRST)
    live_on(found, 120)
    assert found.states()[FIRST] == "ordered"


def test_each_order_waits_for_its_own_withdrawal() -> None:
    found = fleet(20)
    relabel(found, 0, 1)
    live_on(found)
    change(found, generation=2)
    found.run()
    acknowledge(found, "alpha-r1-s0000")
    live_on(found, 60)
    states = found.states()
    assert (states["alpha-r1-s0000"], states["alpha-r1-s0001"]) == ("ordered", "waiting")


def test_a_relist_of_the_targets_is_no_error_and_withdraws_nothing() -> None:
    found = ordered()
    before = found.rollup
    found.mark(SITE, "syncing", epoch=2)
    live_on(found)
    assert found.states()[FIRST] == "ordered"
    assert found.rollup == before


# ------------------------------------------------------------ guard and confirmation


def test_children_that_came_after_a_removal_make_no_room_for_others() -> None:
    """The share is one of the children that were there before the first removal that counts."""
    found = fleet(20)
    relabel(found, *range(5))
    live_on(found)
    assert delete_ordered(found) == 5
    for number in range(100, 180):
        found.tell(SITE, site(f"s{number:04}", env="prod"))
    live_on(found)
    for name in list(found.children):
        if found.children[name].state == "present":
            found.made(name)
    relabel(found, 10)
    live_on(found)
    assert found.states()["alpha-r1-s0010"] == "held"


def test_what_comes_while_a_token_is_shown_waits_for_its_own() -> None:
    """A token stays for a minute; until then no removal that it does not cover may be ordered."""
    found = fleet(100)
    relabel(found, *range(20))
    live_on(found, 12)
    assert found.rollup is not None
    assert found.rollup.hold is not None
    assert found.rollup.hold.token
    relabel(found, 50)
    live_on(found)
    assert found.states()["alpha-r1-s0050"] == "waiting"
    live_on(found, 60)
    assert found.states()["alpha-r1-s0050"] == "held"


def confirmed() -> UnrollPart:
    """Forty of a hundred children whose removal a person confirmed, and that are ordered."""
    found = fleet(100)
    relabel(found, *range(40))
    live_on(found)
    assert found.rollup is not None
    assert found.rollup.hold is not None
    change(found, annotations={CONFIRM_DELETION: found.rollup.hold.token})
    live_on(found)
    assert list(found.states().values()).count("ordered") == 40
    return found


def test_what_was_confirmed_stays_confirmed_when_its_order_is_withdrawn() -> None:
    found = confirmed()
    change(found, generation=2)
    live_on(found)
    assert set(list(found.states().values())[:40]) == {"confirmed"}


def test_the_hold_of_a_former_set_is_not_that_of_its_successor() -> None:
    found = confirmed()
    assert found.rollup is not None
    assert found.rollup.released
    change(found, uid="uid-second")
    live_on(found)
    assert found.rollup.uid == "uid-second"
    assert (found.rollup.hold, found.rollup.released) == (None, "")


def test_kinds_are_asked_for_though_an_answer_waits_to_be_read() -> None:
    """The decision begins again after the catch-up, and its requests must not be lost with the first half."""
    found = unanswered()
    answer(found)
    change(found, selecting(kind="Place"), generation=2)
    found.run()
    assert "example.org/Place|unroll-0" in found.requests
