"""Removal: when it is trusted, checked, ordered, withdrawn and forgotten."""

from collections.abc import Callable
from typing import Any

import pytest

from pvbus.core.kernel.keys import HOLD
from pvbus.core.kernel.records import CheckRequest
from pvbus.core.variants.unroll.removal import RemovalLimits
from tests.simulation.parts import (
    SET,
    SITE,
    VARIANT,
    UnrollPart,
    obj,
    of_set,
    site,
    site_set,
)
from tests.unit.core.variants.unrolling import change, fleet, live_on, part, relabel, removing, selecting


def waits_for(unroll: UnrollPart) -> str:
    unroll.now += 2
    unroll.run()
    assert unroll.rollup is not None
    return unroll.rollup.waiting


def test_a_removal_stands_for_a_while_before_it_is_told() -> None:
    unroll = removing()
    unroll.now += 4.9
    unroll.run()
    assert unroll.orders()["alpha-r1-s1"] == "present"
    unroll.now += 0.2
    unroll.run()
    assert unroll.targets["alpha-r1-s1"].state == "removed"
    assert unroll.targets["alpha-r1-s1"].generation == 1


def test_a_target_that_comes_back_in_time_was_never_gone() -> None:
    unroll = removing()
    before = unroll.targets["alpha-r1-s1"]
    unroll.tell(SITE, site("s1", env="prod"))
    live_on(unroll)
    assert unroll.targets["alpha-r1-s1"] is before
    assert unroll.states()["alpha-r1-s1"] == "present"


def test_taking_a_removal_back_leaves_a_trace_that_render_must_write() -> None:
    unroll = removing()
    live_on(unroll)
    unroll.tell(SITE, site("s1", env="prod"))
    unroll.run()
    row = unroll.targets["alpha-r1-s1"]
    assert (row.state, bool(row.cancelled)) == ("present", True)


@pytest.mark.parametrize("meanwhile", ["its variant went", "the set changed", "it was gone for long"])
def test_a_target_that_comes_back_is_not_taken_for_gone_in_the_same_look(meanwhile: str) -> None:
    """What is said of it because it is wanted, and because it was to go, are not both said."""
    unroll = removing()
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "ordered"
    meta = of_set("uid-alpha")
    variant = obj(VARIANT, "alpha-r1-s1", metadata=meta, spec={})
    match meanwhile:
        case "its variant went":
            unroll.tell_gone(VARIANT, variant)
        case "the set changed":
            change(unroll, generation=2)
        case _:
            unroll.tell_gone(VARIANT, variant)
            unroll.run()
            unroll.now += 700
    unroll.tell(SITE, site("s1", env="prod"))
    unroll.run()
    assert unroll.states()["alpha-r1-s1"] == "present"
    assert unroll.orders()["alpha-r1-s1"] == "present"


@pytest.mark.parametrize(
    "fields",
    [{"evaluated": "older"}, {"error": "template.labels: no", "expression_failed": True}],
    ids=["not evaluated", "failing"],
)
def test_removals_wait_until_render_evaluated_everything(fields: dict[str, Any]) -> None:
    unroll = removing()
    key, row = "default/alpha|alpha-r1-s2", unroll.children["alpha-r1-s2"]
    unroll.rendered(key, row, **fields)
    live_on(unroll)
    assert unroll.orders()["alpha-r1-s1"] == "present"
    assert waits_for(unroll) == 'render to evaluate PackageVariant "alpha-r1-s2" without an error'
    unroll.rendered(key, row)
    live_on(unroll)
    assert unroll.orders()["alpha-r1-s1"] == "removed"


@pytest.mark.parametrize("reason", ["OnHold", "TargetConflict", "UnexpectedError"])
def test_what_only_concerns_one_variant_does_not_stop_the_removals_of_others(reason: str) -> None:
    """On hold, in conflict or refused by the API server: its expressions were evaluated nevertheless."""
    unroll = removing()
    unroll.rendered(
        "default/alpha|alpha-r1-s2", unroll.children["alpha-r1-s2"], error="no", reason=reason, applied=""
    )
    live_on(unroll)
    assert unroll.orders()["alpha-r1-s1"] == "removed"


def test_a_variant_on_hold_is_not_ordered_and_the_message_names_it() -> None:
    unroll = removing()
    unroll.made("alpha-r1-s1", annotations={HOLD: "true"})
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "waiting"
    assert waits_for(unroll) == f'PackageVariant "alpha-r1-s1" to lose its annotation {HOLD}'
    unroll.made("alpha-r1-s1")
    live_on(unroll)
    assert unroll.orders()["alpha-r1-s1"] == "removed"


def test_a_removed_child_is_forgotten_when_it_is_seen_gone_and_not_before() -> None:
    unroll = removing()
    live_on(unroll)
    meta = of_set("uid-alpha")
    unroll.tell_gone(VARIANT, obj(VARIANT, "alpha-r1-s1", metadata=meta, spec={}))
    unroll.run()
    assert "alpha-r1-s1" not in unroll.targets
    assert unroll.states()["alpha-r1-s1"] == "gone"
    live_on(unroll, 700)
    assert unroll.states() == {"alpha-r1-s2": "present"}


def appearing_late() -> UnrollPart:
    """The first of two Sites is unwanted, its variant was taken for gone and now appears: a create that was
    under way when its target went."""
    unroll = part(sites=("s1", "s2"))
    unroll.made("alpha-r1-s2")
    unroll.tell(SITE, site("s1", env="test"))
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "gone"
    unroll.made("alpha-r1-s1")
    return unroll


def test_a_variant_that_appears_after_it_was_taken_for_gone_is_removed_after_all() -> None:
    unroll = appearing_late()
    live_on(unroll)
    assert unroll.orders()["alpha-r1-s1"] == "removed"


def test_a_variant_that_appears_late_and_is_wanted_again_at_once_is_told_to_render() -> None:
    """It was gone, so render's order for it was taken away."""
    unroll = appearing_late()
    unroll.run()
    assert unroll.states()["alpha-r1-s1"] == "waiting"
    unroll.tell(SITE, site("s1", env="prod"))
    live_on(unroll)
    assert (unroll.states()["alpha-r1-s1"], unroll.orders()["alpha-r1-s1"]) == ("present", "present")


def test_a_deleted_set_lets_go_and_deletes_nothing() -> None:
    """Its variants go by garbage collection; a terminating set is the same."""
    for terminating in (True, False):
        unroll = part(sites=("s1",))
        if terminating:
            change(unroll, deletionTimestamp="2026-01-01T00:00:00Z")
        else:
            unroll.tell_gone(SET, site_set())
        unroll.run()
        assert (unroll.targets, unroll.children) == ({}, {})


def test_a_set_of_the_same_name_begins_anew() -> None:
    unroll = part(sites=("s1",))
    change(unroll, uid="uid-second")
    unroll.run()
    assert {row.set_uid for row in unroll.children.values()} == {"uid-second"}
    assert {row.set_uid for row in unroll.targets.values()} == {"uid-second"}


# ------------------------------------------------------------ freshness


def open_requests(unroll: UnrollPart) -> dict[str, CheckRequest]:
    return {key: row for key, row in unroll.requests.items() if isinstance(row, CheckRequest)}


def unanswered() -> UnrollPart:
    """A removal that is quiet and complete, and asks an ingest that does not answer."""
    unroll = removing()
    unroll.answers_checks = False
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "waiting"
    return unroll


def test_a_check_covers_what_the_set_reads() -> None:
    requests = open_requests(unanswered()).values()
    assert {(r.kind, r.names) for r in requests} == {
        ("PackageVariantSet", ("default/alpha",)),
        ("PackageRevision", ("default/up.base.v1",)),
        ("Repository", ("default/r1",)),
        ("Site", ()),
    }
    assert len({r.nonce for r in requests}) == 1


def test_nothing_goes_without_an_answer_for_every_kind() -> None:
    unroll = unanswered()
    live_on(unroll, 3_600)
    assert waits_for(unroll).startswith(
        "an answer of ingest to the check of PackageRevision, PackageVariantSet"
    )
    for key, request in list(open_requests(unroll).items()):
        assert unroll.states()["alpha-r1-s1"] == "waiting"
        unroll.answer(key, request.nonce)
        unroll.run()
    assert unroll.states()["alpha-r1-s1"] == "ordered"
    assert open_requests(unroll) == {}


def test_an_answer_to_another_request_counts_for_nothing() -> None:
    unroll = unanswered()
    for key in open_requests(unroll):
        unroll.answer(key, "00000000")
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "waiting"


def test_a_flap_that_the_answer_brings_to_light_saves_the_variant() -> None:
    """The view was stale: what ingest read, and wrote before it answered, is seen before the order."""
    unroll = unanswered()
    unroll.on_catch_up = lambda: unroll.tell(SITE, site("s1", env="prod"))
    for key, request in open_requests(unroll).items():
        unroll.answer(key, request.nonce)
    live_on(unroll)
    assert unroll.states() == {"alpha-r1-s1": "present", "alpha-r1-s2": "present"}
    assert open_requests(unroll) == {}


def test_an_answer_serves_one_evaluation() -> None:
    """If that evaluation was blocked, the next order needs another answer."""
    unroll = unanswered()
    first = {request.nonce for request in open_requests(unroll).values()}
    unroll.on_catch_up = lambda: unroll.rendered(
        "default/alpha|alpha-r1-s2", unroll.children["alpha-r1-s2"], evaluated="older"
    )
    for key, request in open_requests(unroll).items():
        unroll.answer(key, request.nonce)
    unroll.run()
    assert unroll.states()["alpha-r1-s1"] == "waiting"
    unroll.on_catch_up = lambda: None
    unroll.rendered("default/alpha|alpha-r1-s2", unroll.children["alpha-r1-s2"])
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "waiting"
    second = {request.nonce for request in open_requests(unroll).values()}
    assert len(second) == 1
    assert first.isdisjoint(second)


def test_an_answer_covers_only_what_was_asked_for() -> None:
    unroll = fleet(20)
    unroll.answers_checks = False
    relabel(unroll, 0)
    live_on(unroll)
    asked = open_requests(unroll)
    relabel(unroll, 1)
    live_on(unroll, 9)
    for key, request in asked.items():
        unroll.answer(key, request.nonce)
    live_on(unroll)
    assert (unroll.states()["alpha-r1-s0000"], unroll.states()["alpha-r1-s0001"]) == ("ordered", "waiting")
    for key, request in open_requests(unroll).items():
        unroll.answer(key, request.nonce)
    unroll.run()
    assert unroll.states()["alpha-r1-s0001"] == "ordered"


def test_an_answer_that_could_not_be_used_for_long_is_asked_for_again() -> None:
    """The bus was away between the answer and the catch-up."""
    unroll = unanswered()

    def away() -> None:
        unroll.now += 31

    unroll.on_catch_up = away
    for key, request in open_requests(unroll).items():
        unroll.answer(key, request.nonce)
    unroll.run()
    assert unroll.states()["alpha-r1-s1"] == "waiting"


def test_a_new_holder_of_the_lease_asks_again() -> None:
    unroll = unanswered()
    before = open_requests(unroll)
    unroll.restart()
    for key, request in before.items():
        unroll.answer(key, request.nonce)
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "waiting"
    after = {request.nonce for request in open_requests(unroll).values()}
    assert after.isdisjoint(request.nonce for request in before.values())


@pytest.mark.parametrize("end", ["its target returns", "the set is deleted", "the set is on hold"])
def test_a_check_that_is_no_longer_needed_is_withdrawn(end: str) -> None:
    unroll = unanswered()
    match end:
        case "its target returns":
            unroll.tell(SITE, site("s1", env="prod"))
        case "the set is deleted":
            unroll.tell_gone(SET, site_set())
        case _:
            change(unroll, annotations={HOLD: "true"})
    live_on(unroll)
    assert open_requests(unroll) == {}


def test_a_new_generation_asks_anew() -> None:
    unroll = unanswered()
    before = {request.nonce for request in open_requests(unroll).values()}
    change(unroll, generation=2)
    live_on(unroll)
    after = {request.nonce for request in open_requests(unroll).values()}
    assert after
    assert before.isdisjoint(after)


# ------------------------------------------------------------ withdrawing


def ordered() -> UnrollPart:
    unroll = removing()
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "ordered"
    return unroll


def fail_another(unroll: UnrollPart) -> None:
    template = {"downstream": {"repo": "r1", "packageExpr": "target.name + target.annotations['x']"}}
    target = {**selecting(matchLabels={"env": "fails"}), "template": template}
    prod = selecting(matchLabels={"env": "prod"})
    unroll.tell(SITE, site("s3", env="fails"))
    change(unroll, prod, target, generation=1)


def duplicate(unroll: UnrollPart) -> None:
    prod = selecting(matchLabels={"env": "prod"})
    unroll.tell(SITE, site("s1", env="prod"))
    change(unroll, prod, prod, generation=1)


def expire(unroll: UnrollPart) -> None:
    row = unroll.children["alpha-r1-s1"]
    unroll.rendered("default/alpha|alpha-r1-s1", row, evaluated="", applied="", expired=row.since)


WITHDRAWING: dict[str, Callable[[UnrollPart], object]] = {
    "a new generation": lambda found: change(found, generation=2),
    "a hold": lambda found: change(found, annotations={HOLD: "true"}),
    "a failing target": fail_another,
    "two targets that want it": duplicate,
    "its age": expire,
    "a spec that is not valid": lambda found: change(found, {}, generation=1),
}


@pytest.mark.parametrize("why", WITHDRAWING)
def test_an_order_is_withdrawn_by_a_write(why: str) -> None:
    unroll = ordered()
    WITHDRAWING[why](unroll)
    unroll.run()
    row = unroll.targets["alpha-r1-s1"]
    assert (row.state, bool(row.cancelled)) == ("withdrawn", True)
    assert unroll.states()["alpha-r1-s1"] == ("present" if why == "two targets that want it" else "waiting")


def test_an_order_is_not_given_again_before_render_has_withdrawn_the_last_one() -> None:
    unroll = ordered()
    change(unroll, generation=2)
    live_on(unroll)
    row = unroll.children["alpha-r1-s1"]
    assert row.state == "waiting"
    assert waits_for(unroll) == 'render to withdraw the last order on PackageVariant "alpha-r1-s1"'
    unroll.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
    live_on(unroll)
    order = unroll.targets["alpha-r1-s1"]
    assert (order.state, order.generation, order.cancelled) == ("removed", 2, row.cancelled)


def test_every_withdrawal_has_a_token_of_its_own() -> None:
    unroll = ordered()
    tokens = []
    for generation in range(2, 5):
        change(unroll, generation=generation)
        unroll.run()
        row = unroll.children["alpha-r1-s1"]
        tokens.append(row.cancelled)
        unroll.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
        live_on(unroll, 90)
        assert unroll.states()["alpha-r1-s1"] == "ordered"
    assert len(set(tokens)) == 3


def test_a_withdrawn_order_doubles_the_quiet_time() -> None:
    """A removal that was ordered too early once is not ordered as early again."""
    unroll = ordered()
    times = []
    for generation in range(2, 5):
        change(unroll, generation=generation)
        unroll.run()
        row, began = unroll.children["alpha-r1-s1"], unroll.now
        unroll.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
        while unroll.states()["alpha-r1-s1"] != "ordered":
            unroll.now += 1
            unroll.run()
        times.append(unroll.now - began)
    assert times == [10, 20, 40]


def test_removals_that_go_on_for_ever_do_not_keep_the_first_from_going() -> None:
    """With one every four seconds there is no quiet time; after ten minutes the first is ordered anyway."""
    unroll = fleet(400, limits=RemovalLimits(removals_max=1_000))
    for i in range(200):
        relabel(unroll, i, gap=4.0)
        if "ordered" in unroll.states().values():
            break
    assert 600 <= 4 * (i + 1) <= 620


# ------------------------------------------------------------ whose it is


def test_variants_of_other_namespaces_are_not_the_sets() -> None:
    """They do not count, and their deletion is not that of a child."""
    unroll = removing()
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "s1"}}
    for name in ("alpha-r1-s1", "stray"):
        copy = obj(VARIANT, name, metadata={**meta, "namespace": "other"}, spec=spec)
        unroll.tell(VARIANT, copy)
        live_on(unroll, 3)
        unroll.tell_gone(VARIANT, copy)
    live_on(unroll)
    assert unroll.states() == {"alpha-r1-s1": "ordered", "alpha-r1-s2": "present"}


def test_a_second_variant_with_the_downstream_of_a_child_is_removed_at_once() -> None:
    """It is seen when it comes, not at the next restart; the child that was there first stays."""
    unroll = fleet(3)
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "s0001"}}
    unroll.tell(VARIANT, obj(VARIANT, "a-copy", metadata=meta, spec=spec))
    live_on(unroll)
    assert unroll.states() == {
        "a-copy": "ordered",
        "alpha-r1-s0000": "present",
        "alpha-r1-s0001": "present",
        "alpha-r1-s0002": "present",
    }
    relabel(unroll, 1)
    live_on(unroll)
    assert (unroll.states()["a-copy"], unroll.states()["alpha-r1-s0001"]) == ("ordered", "ordered")


def test_a_copy_that_kept_the_label_alone_is_not_the_sets() -> None:
    """Render deletes nothing that its set does not own, so an order for it would stand for ever."""
    unroll = fleet(3)
    labels = {"config.porch.kpt.dev/packagevariantset": "uid-alpha"}
    spec = {"downstream": {"repo": "r1", "package": "s0001"}}
    unroll.tell(VARIANT, obj(VARIANT, "a-copy", metadata={"labels": labels}, spec=spec))
    live_on(unroll)
    assert "a-copy" not in unroll.states()
    assert unroll.rollup is not None
    assert unroll.rollup.counts.removing == 0


def test_a_variant_that_a_person_deletes_while_its_removal_waits_is_not_made_again() -> None:
    unroll = removing()
    unroll.unmade("alpha-r1-s1")
    live_on(unroll)
    assert unroll.states()["alpha-r1-s1"] == "gone"
    assert "alpha-r1-s1" not in unroll.targets


# ------------------------------------------------------------ the user's hold


def test_a_set_on_hold_changes_nothing() -> None:
    unroll = part(sites=("s1",), annotations={HOLD: "true"})
    unroll.tell(SITE, site("s2", env="prod"))
    live_on(unroll)
    assert unroll.targets == {}
    assert unroll.rollup is not None
    assert unroll.rollup.on_hold


@pytest.mark.parametrize("restarts", [False, True])
def test_render_hears_of_a_hold_and_of_its_end(restarts: bool) -> None:
    """This holds for a child in any state; afterwards the rows are as before."""
    unroll = fleet(20)
    relabel(unroll, 0, 1)
    live_on(unroll)
    relabel(unroll, 2)
    unroll.run()
    before = unroll.states()
    change(unroll, annotations={HOLD: "true"})
    unroll.run()
    assert {(row.state, row.on_hold) for row in unroll.targets.values()} == {("withdrawn", True)}
    if restarts:
        unroll.restart()
    live_on(unroll, 900)
    assert "ordered" not in unroll.states().values()
    change(unroll)
    live_on(unroll, 3)
    assert not any(row.on_hold for row in unroll.targets.values())
    assert [n for n, row in unroll.targets.items() if row.state == "present"] == [
        name for name, state in sorted(before.items()) if state == "present"
    ]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("comes", ["while the set was stopped", "during the hold"])
def test_a_living_child_that_no_row_knows_is_on_hold_with_its_set(comes: str, restarts: bool) -> None:
    """A user copied a variant of the set unchanged; the copy is not decided on before the hold ends."""
    unroll = fleet(2)
    spec = {"downstream": {"repo": "r1", "package": "s0000"}}
    copy = obj(VARIANT, "a-copy", metadata=of_set("uid-alpha"), spec=spec)
    before = dict(unroll.states())
    unroll.mark(SITE, "unavailable")
    unroll.run()
    if comes == "while the set was stopped":
        unroll.tell(VARIANT, copy)
        unroll.run()
        assert unroll.states() == before
    change(unroll, annotations={HOLD: "true"})
    unroll.run()
    if restarts:
        unroll.restart()
        unroll.run()
    if comes == "during the hold":
        unroll.tell(VARIANT, copy)
        unroll.run()
    live_on(unroll)
    held = unroll.targets["a-copy"]
    assert (held.state, held.on_hold) == ("withdrawn", True)
    assert unroll.rollup is not None
    assert (unroll.rollup.counts.desired, unroll.rollup.counts.removing) == (2, 0)

    change(unroll)
    live_on(unroll)
    assert "a-copy" not in unroll.targets, "the set is stopped, so it decides nothing"
    assert unroll.states() == before
    unroll.mark(SITE, "ok", epoch=2)
    live_on(unroll, 3)
    assert unroll.states() == {**before, "a-copy": "waiting"}
    assert unroll.children["a-copy"].unwanted
    assert unroll.targets["alpha-r1-s0000"].state == "present"


@pytest.mark.parametrize("wanted", [1, 20])
def test_children_of_a_set_that_was_made_on_hold_are_wanted_after_it(wanted: int) -> None:
    """A set that is restored with its hold owns its variants, and has no rows of them: none is to go."""
    unroll = fleet(wanted)
    names = sorted(unroll.children)
    unroll.children.clear()
    unroll.targets.clear()
    unroll.rollup = None
    change(unroll, annotations={HOLD: "true"})
    unroll.restart()
    live_on(unroll)
    assert {(row.state, row.on_hold) for row in unroll.targets.values()} == {("withdrawn", True)}
    assert sorted(unroll.targets) == names
    change(unroll)
    live_on(unroll)
    assert unroll.states() == dict.fromkeys(names, "present")
    assert not any(row.unwanted for row in unroll.children.values())
    assert unroll.rollup is not None
    assert unroll.rollup.hold is None


def test_a_hold_that_is_lifted_lets_removals_go() -> None:
    unroll = ordered()
    change(unroll, annotations={HOLD: "true"})
    live_on(unroll)
    change(unroll)
    unroll.run()
    row = unroll.children["alpha-r1-s1"]
    unroll.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
    for name in ("alpha-r1-s2",):
        unroll.rendered(f"default/alpha|{name}", unroll.children[name])
    live_on(unroll)
    assert unroll.states() == {"alpha-r1-s1": "ordered", "alpha-r1-s2": "present"}


# ------------------------------------------------------------ many at once


def in_chunks() -> UnrollPart:
    """Twelve removals of which two are ordered, and the others cleared."""
    unroll = fleet(30, chunk_puts=4, limits=RemovalLimits(removals_max=30))
    relabel(unroll, *range(12))
    unroll.now += 6
    while "ordered" not in unroll.states().values():
        unroll.run_once()
    assert list(unroll.states().values()).count("ordered") == 2
    return unroll


def test_orders_in_chunks_stop_when_something_comes_in_the_way() -> None:
    """Whatever was cleared before: a target that fails withdraws all of them, too."""
    unroll = in_chunks()
    fail_another(unroll)
    unroll.run()
    assert set(unroll.states().values()) == {"present", "waiting"}


def test_orders_in_chunks_wait_for_render_as_the_first_ones_did() -> None:
    unroll = in_chunks()
    unroll.rendered("default/alpha|alpha-r1-s0020", unroll.children["alpha-r1-s0020"], expression_failed=True)
    live_on(unroll)
    assert list(unroll.states().values()).count("ordered") == 2


@pytest.mark.parametrize("fate", ["on hold", "wanted", "gone"])
def test_orders_in_chunks_leave_out_what_changed_meanwhile(fate: str) -> None:
    unroll = in_chunks()
    name = "alpha-r1-s0006"
    if fate == "on hold":
        unroll.made(name, annotations={HOLD: "true"})
    elif fate == "wanted":
        unroll.tell(SITE, site("s0006", env="prod"))
    else:
        unroll.unmade(name)
    live_on(unroll)
    states = unroll.states()
    assert states.pop(name) == {"on hold": "waiting", "wanted": "present", "gone": "gone"}[fate]
    assert list(states.values()).count("ordered") == 11
