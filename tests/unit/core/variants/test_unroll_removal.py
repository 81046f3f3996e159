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


def waits_for(found: UnrollPart) -> str:
    found.now += 2
    found.run()
    assert found.rollup is not None
    return found.rollup.waiting


def test_a_removal_stands_for_a_while_before_it_is_told() -> None:
    found = removing()
    found.now += 4.9
    found.run()
    assert found.orders()["alpha-r1-s1"] == "present"
    found.now += 0.2
    found.run()
    assert found.targets["alpha-r1-s1"].state == "removed"
    assert found.targets["alpha-r1-s1"].generation == 1


def test_a_target_that_comes_back_in_time_was_never_gone() -> None:
    found = removing()
    before = found.targets["alpha-r1-s1"]
    found.tell(SITE, site("s1", env="prod"))
    live_on(found)
    assert found.targets["alpha-r1-s1"] is before
    assert found.states()["alpha-r1-s1"] == "present"


def test_taking_a_removal_back_leaves_a_trace_that_render_must_write() -> None:
    found = removing()
    live_on(found)
    found.tell(SITE, site("s1", env="prod"))
    found.run()
    row = found.targets["alpha-r1-s1"]
    assert (row.state, bool(row.cancelled)) == ("present", True)


@pytest.mark.parametrize("meanwhile", ["its variant went", "the set changed", "it was gone for long"])
def test_a_target_that_comes_back_is_not_taken_for_gone_in_the_same_look(meanwhile: str) -> None:
    """What is said of it because it is wanted, and because it was to go, are not both said."""
    found = removing()
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "ordered"
    meta = of_set("uid-alpha")
    variant = obj(VARIANT, "alpha-r1-s1", metadata=meta, spec={})
    match meanwhile:
        case "its variant went":
            found.tell_gone(VARIANT, variant)
        case "the set changed":
            change(found, generation=2)
        case _:
            found.tell_gone(VARIANT, variant)
            found.run()
            found.now += 700
    found.tell(SITE, site("s1", env="prod"))
    found.run()
    assert found.states()["alpha-r1-s1"] == "present"
    assert found.orders()["alpha-r1-s1"] == "present"


@pytest.mark.parametrize(
    "fields",
    [{"evaluated": "older"}, {"error": "template.labels: no", "expression_failed": True}],
    ids=["not evaluated", "failing"],
)
def test_removals_wait_until_render_evaluated_everything(fields: dict[str, Any]) -> None:
    found = removing()
    key, row = "default/alpha|alpha-r1-s2", found.children["alpha-r1-s2"]
    found.rendered(key, row, **fields)
    live_on(found)
    assert found.orders()["alpha-r1-s1"] == "present"
    assert waits_for(found) == 'render to evaluate PackageVariant "alpha-r1-s2" without an error'
    found.rendered(key, row)
    live_on(found)
    assert found.orders()["alpha-r1-s1"] == "removed"


@pytest.mark.parametrize("reason", ["OnHold", "TargetConflict", "UnexpectedError"])
def test_what_only_concerns_one_variant_does_not_stop_the_removals_of_others(reason: str) -> None:
    """On hold, in conflict or refused by the API server: its expressions were evaluated nevertheless."""
    found = removing()
    found.rendered(
        "default/alpha|alpha-r1-s2", found.children["alpha-r1-s2"], error="no", reason=reason, applied=""
    )
    live_on(found)
    assert found.orders()["alpha-r1-s1"] == "removed"


def test_a_variant_on_hold_is_not_ordered_and_the_message_names_it() -> None:
    found = removing()
    found.made("alpha-r1-s1", annotations={HOLD: "true"})
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "waiting"
    assert waits_for(found) == f'PackageVariant "alpha-r1-s1" to lose its annotation {HOLD}'
    found.made("alpha-r1-s1")
    live_on(found)
    assert found.orders()["alpha-r1-s1"] == "removed"


def test_a_removed_child_is_forgotten_when_it_is_seen_gone_and_not_before() -> None:
    found = removing()
    live_on(found)
    meta = of_set("uid-alpha")
    found.tell_gone(VARIANT, obj(VARIANT, "alpha-r1-s1", metadata=meta, spec={}))
    found.run()
    assert "alpha-r1-s1" not in found.targets
    assert found.states()["alpha-r1-s1"] == "gone"
    live_on(found, 700)
    assert found.states() == {"alpha-r1-s2": "present"}


def appearing_late() -> UnrollPart:
    """The first of two Sites is unwanted, its variant was taken for gone and now appears: a create that was
    under way when its target went."""
    found = part(sites=("s1", "s2"))
    found.made("alpha-r1-s2")
    found.tell(SITE, site("s1", env="test"))
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "gone"
    found.made("alpha-r1-s1")
    return found


def test_a_variant_that_appears_after_it_was_taken_for_gone_is_removed_after_all() -> None:
    found = appearing_late()
    live_on(found)
    assert found.orders()["alpha-r1-s1"] == "removed"


def test_a_variant_that_appears_late_and_is_wanted_again_at_once_is_told_to_render() -> None:
    """It was gone, so render's order for it was taken away."""
    found = appearing_late()
    found.run()
    assert found.states()["alpha-r1-s1"] == "waiting"
    found.tell(SITE, site("s1", env="prod"))
    live_on(found)
    assert (found.states()["alpha-r1-s1"], found.orders()["alpha-r1-s1"]) == ("present", "present")


def test_a_deleted_set_lets_go_and_deletes_nothing() -> None:
    """Its variants go by garbage collection; a terminating set is the same."""
    for terminating in (True, False):
        found = part(sites=("s1",))
        if terminating:
            change(found, deletionTimestamp="2026-01-01T00:00:00Z")
        else:
            found.tell_gone(SET, site_set())
        found.run()
        assert (found.targets, found.children) == ({}, {})


def test_a_set_of_the_same_name_begins_anew() -> None:
    found = part(sites=("s1",))
    change(found, uid="uid-second")
    found.run()
    assert {row.set_uid for row in found.children.values()} == {"uid-second"}
    assert {row.set_uid for row in found.targets.values()} == {"uid-second"}


# ------------------------------------------------------------ freshness


def open_requests(found: UnrollPart) -> dict[str, CheckRequest]:
    return {key: row for key, row in found.requests.items() if isinstance(row, CheckRequest)}


def unanswered() -> UnrollPart:
    """A removal that is quiet and complete, and asks an ingest that does not answer."""
    found = removing()
    found.answers_checks = False
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "waiting"
    return found


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
    found = unanswered()
    live_on(found, 3_600)
    assert waits_for(found).startswith(
        "an answer of ingest to the check of PackageRevision, PackageVariantSet"
    )
    for key, request in list(open_requests(found).items()):
        assert found.states()["alpha-r1-s1"] == "waiting"
        found.answer(key, request.nonce)
        found.run()
    assert found.states()["alpha-r1-s1"] == "ordered"
    assert open_requests(found) == {}


def test_an_answer_to_another_request_counts_for_nothing() -> None:
    found = unanswered()
    for key in open_requests(found):
        found.answer(key, "00000000")
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "waiting"


def test_a_flap_that_the_answer_brings_to_light_saves_the_variant() -> None:
    """The view was stale: what ingest read, and wrote before it answered, is seen before the order."""
    found = unanswered()
    found.on_catch_up = lambda: found.tell(SITE, site("s1", env="prod"))
    for key, request in open_requests(found).items():
        found.answer(key, request.nonce)
    live_on(found)
    assert found.states() == {"alpha-r1-s1": "present", "alpha-r1-s2": "present"}
    assert open_requests(found) == {}


def test_an_answer_serves_one_evaluation() -> None:
    """If that evaluation was blocked, the next order needs another answer."""
    found = unanswered()
    first = {request.nonce for request in open_requests(found).values()}
    found.on_catch_up = lambda: found.rendered(
        "default/alpha|alpha-r1-s2", found.children["alpha-r1-s2"], evaluated="older"
    )
    for key, request in open_requests(found).items():
        found.answer(key, request.nonce)
    found.run()
    assert found.states()["alpha-r1-s1"] == "waiting"
    found.on_catch_up = lambda: None
    found.rendered("default/alpha|alpha-r1-s2", found.children["alpha-r1-s2"])
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "waiting"
    second = {request.nonce for request in open_requests(found).values()}
    assert len(second) == 1
    assert first.isdisjoint(second)


def test_an_answer_covers_only_what_was_asked_for() -> None:
    found = fleet(20)
    found.answers_checks = False
    relabel(found, 0)
    live_on(found)
    asked = open_requests(found)
    relabel(found, 1)
    live_on(found, 9)
    for key, request in asked.items():
        found.answer(key, request.nonce)
    live_on(found)
    assert (found.states()["alpha-r1-s0000"], found.states()["alpha-r1-s0001"]) == ("ordered", "waiting")
    for key, request in open_requests(found).items():
        found.answer(key, request.nonce)
    found.run()
    assert found.states()["alpha-r1-s0001"] == "ordered"


def test_an_answer_that_could_not_be_used_for_long_is_asked_for_again() -> None:
    """The bus was away between the answer and the catch-up."""
    found = unanswered()

    def away() -> None:
        found.now += 31

    found.on_catch_up = away
    for key, request in open_requests(found).items():
        found.answer(key, request.nonce)
    found.run()
    assert found.states()["alpha-r1-s1"] == "waiting"


def test_a_new_holder_of_the_lease_asks_again() -> None:
    found = unanswered()
    before = open_requests(found)
    found.restart()
    for key, request in before.items():
        found.answer(key, request.nonce)
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "waiting"
    after = {request.nonce for request in open_requests(found).values()}
    assert after.isdisjoint(request.nonce for request in before.values())


@pytest.mark.parametrize("end", ["its target returns", "the set is deleted", "the set is on hold"])
def test_a_check_that_is_no_longer_needed_is_withdrawn(end: str) -> None:
    found = unanswered()
    match end:
        case "its target returns":
            found.tell(SITE, site("s1", env="prod"))
        case "the set is deleted":
            found.tell_gone(SET, site_set())
        case _:
            change(found, annotations={HOLD: "true"})
    live_on(found)
    assert open_requests(found) == {}


def test_a_new_generation_asks_anew() -> None:
    found = unanswered()
    before = {request.nonce for request in open_requests(found).values()}
    change(found, generation=2)
    live_on(found)
    after = {request.nonce for request in open_requests(found).values()}
    assert after
    assert before.isdisjoint(after)


# ------------------------------------------------------------ withdrawing


def ordered() -> UnrollPart:
    found = removing()
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "ordered"
    return found


def fail_another(found: UnrollPart) -> None:
    template = {"downstream": {"repo": "r1", "packageExpr": "target.name + target.annotations['x']"}}
    target = {**selecting(matchLabels={"env": "fails"}), "template": template}
    prod = selecting(matchLabels={"env": "prod"})
    found.tell(SITE, site("s3", env="fails"))
    change(found, prod, target, generation=1)


def duplicate(found: UnrollPart) -> None:
    prod = selecting(matchLabels={"env": "prod"})
    found.tell(SITE, site("s1", env="prod"))
    change(found, prod, prod, generation=1)


def expire(found: UnrollPart) -> None:
    row = found.children["alpha-r1-s1"]
    found.rendered("default/alpha|alpha-r1-s1", row, evaluated="", applied="", expired=row.since)


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
    found = ordered()
    WITHDRAWING[why](found)
    found.run()
    row = found.targets["alpha-r1-s1"]
    assert (row.state, bool(row.cancelled)) == ("withdrawn", True)
    assert found.states()["alpha-r1-s1"] == ("present" if why == "two targets that want it" else "waiting")


def test_an_order_is_not_given_again_before_render_has_withdrawn_the_last_one() -> None:
    found = ordered()
    change(found, generation=2)
    live_on(found)
    row = found.children["alpha-r1-s1"]
    assert row.state == "waiting"
    assert waits_for(found) == 'render to withdraw the last order on PackageVariant "alpha-r1-s1"'
    found.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
    live_on(found)
    order = found.targets["alpha-r1-s1"]
    assert (order.state, order.generation, order.cancelled) == ("removed", 2, row.cancelled)


def test_every_withdrawal_has_a_token_of_its_own() -> None:
    found = ordered()
    tokens = []
    for generation in range(2, 5):
        change(found, generation=generation)
        found.run()
        row = found.children["alpha-r1-s1"]
        tokens.append(row.cancelled)
        found.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
        live_on(found, 90)
        assert found.states()["alpha-r1-s1"] == "ordered"
    assert len(set(tokens)) == 3


def test_a_withdrawn_order_doubles_the_quiet_time() -> None:
    """A removal that was ordered too early once is not ordered as early again."""
    found = ordered()
    times = []
    for generation in range(2, 5):
        change(found, generation=generation)
        found.run()
        row, began = found.children["alpha-r1-s1"], found.now
        found.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
        while found.states()["alpha-r1-s1"] != "ordered":
            found.now += 1
            found.run()
        times.append(found.now - began)
    assert times == [10, 20, 40]


def test_removals_that_go_on_for_ever_do_not_keep_the_first_from_going() -> None:
    """With one every four seconds there is no quiet time; after ten minutes the first is ordered anyway."""
    found = fleet(400, limits=RemovalLimits(removals_max=1_000))
    for i in range(200):
        relabel(found, i, gap=4.0)
        if "ordered" in found.states().values():
            break
    assert 600 <= 4 * (i + 1) <= 620


# ------------------------------------------------------------ whose it is


def test_variants_of_other_namespaces_are_not_the_sets() -> None:
    """They do not count, and their deletion is not that of a child."""
    found = removing()
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "s1"}}
    for name in ("alpha-r1-s1", "stray"):
        copy = obj(VARIANT, name, metadata={**meta, "namespace": "other"}, spec=spec)
        found.tell(VARIANT, copy)
        live_on(found, 3)
        found.tell_gone(VARIANT, copy)
    live_on(found)
    assert found.states() == {"alpha-r1-s1": "ordered", "alpha-r1-s2": "present"}


def test_a_second_variant_with_the_downstream_of_a_child_is_removed_at_once() -> None:
    """It is seen when it comes, not at the next restart; the child that was there first stays."""
    found = fleet(3)
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "s0001"}}
    found.tell(VARIANT, obj(VARIANT, "a-copy", metadata=meta, spec=spec))
    live_on(found)
    assert found.states() == {
        "a-copy": "ordered",
        "alpha-r1-s0000": "present",
        "alpha-r1-s0001": "present",
        "alpha-r1-s0002": "present",
    }
    relabel(found, 1)
    live_on(found)
    assert (found.states()["a-copy"], found.states()["alpha-r1-s0001"]) == ("ordered", "ordered")


def test_a_copy_that_kept_the_label_alone_is_not_the_sets() -> None:
    """Render deletes nothing that its set does not own, so an order for it would stand for ever."""
    found = fleet(3)
    labels = {"config.porch.kpt.dev/packagevariantset": "uid-alpha"}
    spec = {"downstream": {"repo": "r1", "package": "s0001"}}
    found.tell(VARIANT, obj(VARIANT, "a-copy", metadata={"labels": labels}, spec=spec))
    live_on(found)
    assert "a-copy" not in found.states()
    assert found.rollup is not None
    assert found.rollup.counts.removing == 0


def test_a_variant_that_a_person_deletes_while_its_removal_waits_is_not_made_again() -> None:
    found = removing()
    found.unmade("alpha-r1-s1")
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "gone"
    assert "alpha-r1-s1" not in found.targets


# ------------------------------------------------------------ the user's hold


def test_a_set_on_hold_changes_nothing() -> None:
    found = part(sites=("s1",), annotations={HOLD: "true"})
    found.tell(SITE, site("s2", env="prod"))
    live_on(found)
    assert found.targets == {}
    assert found.rollup is not None
    assert found.rollup.on_hold


@pytest.mark.parametrize("restarts", [False, True])
def test_render_hears_of_a_hold_and_of_its_end(restarts: bool) -> None:
    """This holds for a child in any state; afterwards the rows are as before."""
    found = fleet(20)
    relabel(found, 0, 1)
    live_on(found)
    relabel(found, 2)
    found.run()
    before = found.states()
    change(found, annotations={HOLD: "true"})
    found.run()
    assert {(row.state, row.on_hold) for row in found.targets.values()} == {("withdrawn", True)}
    if restarts:
        found.restart()
    live_on(found, 900)
    assert "ordered" not in found.states().values()
    change(found)
    live_on(found, 3)
    assert not any(row.on_hold for row in found.targets.values())
    assert [n for n, row in found.targets.items() if row.state == "present"] == [
        name for name, state in sorted(before.items()) if state == "present"
    ]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("comes", ["while the set was stopped", "during the hold"])
def test_a_living_child_that_no_row_knows_is_on_hold_with_its_set(comes: str, restarts: bool) -> None:
    """A user copied a variant of the set unchanged; the copy is not decided on before the hold ends."""
    found = fleet(2)
    spec = {"downstream": {"repo": "r1", "package": "s0000"}}
    copy = obj(VARIANT, "a-copy", metadata=of_set("uid-alpha"), spec=spec)
    before = dict(found.states())
    found.mark(SITE, "unavailable")
    found.run()
    if comes == "while the set was stopped":
        found.tell(VARIANT, copy)
        found.run()
        assert found.states() == before
    change(found, annotations={HOLD: "true"})
    found.run()
    if restarts:
        found.restart()
        found.run()
    if comes == "during the hold":
        found.tell(VARIANT, copy)
        found.run()
    live_on(found)
    held = found.targets["a-copy"]
    assert (held.state, held.on_hold) == ("withdrawn", True)
    assert found.rollup is not None
    assert (found.rollup.counts.desired, found.rollup.counts.removing) == (2, 0)

    change(found)
    live_on(found)
    assert "a-copy" not in found.targets, "the set is stopped, so it decides nothing"
    assert found.states() == before
    found.mark(SITE, "ok", epoch=2)
    live_on(found, 3)
    assert found.states() == {**before, "a-copy": "waiting"}
    assert found.children["a-copy"].unwanted
    assert found.targets["alpha-r1-s0000"].state == "present"


@pytest.mark.parametrize("wanted", [1, 20])
def test_children_of_a_set_that_was_made_on_hold_are_wanted_after_it(wanted: int) -> None:
    """A set that is restored with its hold owns its variants, and has no rows of them: none is to go."""
    found = fleet(wanted)
    names = sorted(found.children)
    found.children.clear()
    found.targets.clear()
    found.rollup = None
    change(found, annotations={HOLD: "true"})
    found.restart()
    live_on(found)
    assert {(row.state, row.on_hold) for row in found.targets.values()} == {("withdrawn", True)}
    assert sorted(found.targets) == names
    change(found)
    live_on(found)
    assert found.states() == dict.fromkeys(names, "present")
    assert not any(row.unwanted for row in found.children.values())
    assert found.rollup is not None
    assert found.rollup.hold is None


def test_a_hold_that_is_lifted_lets_removals_go() -> None:
    found = ordered()
    change(found, annotations={HOLD: "true"})
    live_on(found)
    change(found)
    found.run()
    row = found.children["alpha-r1-s1"]
    found.rendered("default/alpha|alpha-r1-s1", row, cancelled=row.cancelled)
    for name in ("alpha-r1-s2",):
        found.rendered(f"default/alpha|{name}", found.children[name])
    live_on(found)
    assert found.states() == {"alpha-r1-s1": "ordered", "alpha-r1-s2": "present"}


# ------------------------------------------------------------ many at once


def in_chunks() -> UnrollPart:
    """Twelve removals of which two are ordered, and the others cleared."""
    found = fleet(30, chunk_puts=4, limits=RemovalLimits(removals_max=30))
    relabel(found, *range(12))
    found.now += 6
    while "ordered" not in found.states().values():
        found.run_once()
    assert list(found.states().values()).count("ordered") == 2
    return found


def test_orders_in_chunks_stop_when_something_comes_in_the_way() -> None:
    """Whatever was cleared before: a target that fails withdraws all of them, too."""
    found = in_chunks()
    fail_another(found)
    found.run()
    assert set(found.states().values()) == {"present", "waiting"}


def test_orders_in_chunks_wait_for_render_as_the_first_ones_did() -> None:
    found = in_chunks()
    found.rendered("default/alpha|alpha-r1-s0020", found.children["alpha-r1-s0020"], expression_failed=True)
    live_on(found)
    assert list(found.states().values()).count("ordered") == 2


@pytest.mark.parametrize("fate", ["on hold", "wanted", "gone"])
def test_orders_in_chunks_leave_out_what_changed_meanwhile(fate: str) -> None:
    found = in_chunks()
    name = "alpha-r1-s0006"
    if fate == "on hold":
        found.made(name, annotations={HOLD: "true"})
    elif fate == "wanted":
        found.tell(SITE, site("s0006", env="prod"))
    else:
        found.unmade(name)
    live_on(found)
    states = found.states()
    assert states.pop(name) == {"on hold": "waiting", "wanted": "present", "gone": "gone"}[fate]
    assert list(states.values()).count("ordered") == 11
