"""Removal: when it is believed, told, taken back, held and forgotten."""

import pytest

from pvbus.core.ids import HOLD
from tests.simulation.parts import (
    SET,
    SITE,
    VARIANT,
    UnrollPart,
    obj,
    site,
    site_set,
)
from tests.unit.core.unrolling import change, live_on, part, removing


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
    assert (row.state, bool(row.kept)) == ("present", True)


@pytest.mark.parametrize("meanwhile", ["its variant went", "the set changed", "it was gone for long"])
def test_a_target_that_comes_back_is_not_taken_for_gone_in_the_same_look(meanwhile: str) -> None:
    """What is said of it because it is wanted, and because it was to go, are not both said."""
    found = removing()
    live_on(found)
    assert found.states()["alpha-r1-s1"] == "removed"
    labels = {"config.porch.kpt.dev/packagevariantset": "uid-alpha"}
    variant = obj(VARIANT, "alpha-r1-s1", metadata={"labels": labels}, spec={})
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


def test_removals_wait_until_render_looked_at_everything() -> None:
    """Nothing goes while any present child is unseen or failing; a person's hold is no failure."""
    found = removing()
    key, row = "default/alpha|alpha-r1-s2", found.children["alpha-r1-s2"]
    for fields in ({"evaluated": "older"}, {"error": "template.labels: no", "reason": "UnexpectedError"}):
        found.rendered(key, row, **fields)
        live_on(found)
        assert found.orders()["alpha-r1-s1"] == "present"
    found.rendered(key, row, error="on hold by annotation", reason="OnHold", applied="")
    live_on(found)
    assert found.orders()["alpha-r1-s1"] == "removed"


def test_an_order_to_remove_is_given_again_at_another_generation() -> None:
    found = removing()
    live_on(found)
    change(found, generation=2)
    found.run()
    assert (found.targets["alpha-r1-s1"].state, found.targets["alpha-r1-s1"].generation) == ("removed", 2)


def test_a_removed_child_is_forgotten_when_it_is_seen_gone_and_not_before() -> None:
    found = removing()
    live_on(found)
    labels = {"config.porch.kpt.dev/packagevariantset": "uid-alpha"}
    found.tell_gone(VARIANT, obj(VARIANT, "alpha-r1-s1", metadata={"labels": labels}, spec={}))
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
    assert found.states()["alpha-r1-s1"] == "removing"
    found.tell(SITE, site("s1", env="prod"))
    live_on(found)
    assert (found.states()["alpha-r1-s1"], found.orders()["alpha-r1-s1"]) == ("present", "present")


def test_ten_may_go_and_more_are_held() -> None:
    """M3: ten removals, or three in ten, in ten minutes."""
    names = tuple(f"s{i:02}" for i in range(30))
    found = part(sites=names)
    for name in list(found.children):
        found.made(name)
    for name in names[:10]:
        found.tell(SITE, site(name, env="test"))
    live_on(found)
    assert list(found.orders().values()).count("removed") == 10
    found.tell(SITE, site(names[10], env="test"))
    live_on(found)
    assert found.states()["alpha-r1-s10"] == "held"
    found.tell(SITE, site(names[10], env="prod"))
    live_on(found)
    assert (found.states()["alpha-r1-s10"], found.orders()["alpha-r1-s10"]) == ("present", "present")


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


def test_a_set_on_hold_changes_nothing() -> None:
    found = part(sites=("s1",), annotations={HOLD: "true"})
    found.tell(SITE, site("s2", env="prod"))
    live_on(found)
    assert found.targets == {}
    assert found.rollup is not None
    assert found.rollup.on_hold
