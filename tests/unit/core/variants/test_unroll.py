"""Unrolling, row by row of the requirements: selection, names, errors, cost and silence."""

import sys
from types import FrameType
from typing import Any

import pytest

from pvbus.core.api.variants import Downstream
from pvbus.core.kernel.keys import HOLD, colliding_variant_name, variant_name
from pvbus.core.kernel.objectrows import rows_of
from pvbus.core.kernel.records import OBJECTS
from pvbus.core.variants.template import CompiledTemplate, TargetInputs
from tests.simulation.parts import (
    REPOSITORY,
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
from tests.unit.core.variants.unrolling import change, downstreams, live_on, part, reported, selecting

# ------------------------------------------------------------ selection


def test_a_list_gives_each_repository_times_each_package() -> None:
    """S2: an empty list of packages means the upstream's."""
    repositories = [
        {"name": "r1", "packageNames": ["a", "b"]},
        {"name": "r2", "packageNames": ["c"]},
        {"name": "r3"},
    ]
    unroll = part({"repositories": repositories})
    assert downstreams(unroll) == {("r1", "a"), ("r1", "b"), ("r2", "c"), ("r3", "base")}


def test_a_repository_enters_and_leaves_by_its_labels() -> None:
    """S3: the others are not touched."""
    unroll = part({"repositorySelector": {"matchLabels": {"fleet": "a"}}})
    assert downstreams(unroll) == {("r1", "base")}
    before = unroll.targets["alpha-r1-base"]
    unroll.tell(REPOSITORY, obj(REPOSITORY, "r2", spec={}, metadata={"labels": {"fleet": "a"}}))
    unroll.run()
    assert downstreams(unroll) == {("r1", "base"), ("r2", "base")}
    unroll.made("alpha-r2-base")
    unroll.tell(REPOSITORY, obj(REPOSITORY, "r2", spec={}, metadata={"labels": {"fleet": "b"}}))
    live_on(unroll)
    assert unroll.orders() == {"alpha-r1-base": "present", "alpha-r2-base": "removed"}
    assert unroll.targets["alpha-r1-base"] is before


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (selecting(matchLabels={"env": "prod"}), {"s1", "s2"}),
        (selecting(name="s2"), {"s2"}),
        (selecting(matchExpressions=[{"key": "env", "operator": "NotIn", "values": ["prod"]}]), {"s3"}),
        (selecting(matchExpressions=[{"key": "env", "operator": "Exists"}], name="s3"), {"s3"}),
        (selecting(), {"s1", "s2", "s3"}),
    ],
    ids=lambda value: str(sorted(value))[:60] if isinstance(value, set) else str(value)[:60],
)
def test_objects_are_selected_by_labels_expressions_and_name(selector: Any, expected: set[str]) -> None:
    """S4: of the set's own namespace only."""
    unroll = part(selector, sites=("s1", "s2"))
    unroll.tell(SITE, site("s3", env="test"))
    unroll.tell(SITE, obj(SITE, "s9", metadata={"namespace": "other", "labels": {"env": "prod"}}))
    unroll.run()
    assert downstreams(unroll) == {("r1", name) for name in expected}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["test", "prod"], {"s1", "s2"}),
        (["test", "prod", "test"], {"s2"}),
        (["test", None], {"s2"}),
        ([None, "prod"], {"s1", "s2"}),
        (["prod", None, "test"], {"s2"}),
    ],
    ids=["there and back", "left at last", "left and deleted", "made anew", "made anew as another"],
)
def test_of_many_changes_between_two_passes_the_last_counts(
    changes: list[str | None], expected: set[str]
) -> None:
    """A pass learns which selectors an object entered or left; it may have left and entered several times."""
    unroll = part(selecting(matchLabels={"env": "prod"}), sites=("s1", "s2"))
    for env in changes:
        if env is None:
            unroll.tell_gone(SITE, site("s1"))
        else:
            unroll.tell(SITE, site("s1", env=env))
    unroll.run()
    assert downstreams(unroll) == {("r1", name) for name in expected}


def test_a_defect_in_the_middle_of_all_targets_leaves_none_of_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A half evaluation is repeated: targets that were not reached would otherwise count as unselected."""
    unroll = part(selecting(matchLabels={"env": "prod"}), sites=("s1", "s2", "s3"))
    identity = CompiledTemplate.identity

    def failing(self: CompiledTemplate, inputs: TargetInputs, *rest: Any) -> Downstream:
        if inputs.target.name == "s2":
            raise RuntimeError("a bug")
        return identity(self, inputs, *rest)

    monkeypatch.setattr(CompiledTemplate, "identity", failing)
    change(unroll, selecting(matchExpressions=[{"key": "env", "operator": "Exists"}]), generation=2)
    with pytest.raises(RuntimeError):
        unroll.run()
    monkeypatch.undo()
    unroll.run()
    assert set(unroll.states().values()) == {"present"}


def test_a_kind_that_is_not_served_is_told_and_recovers_by_itself() -> None:
    """S5, S20: the set need not change."""
    unroll = part(sites=("s1",))
    unroll.mark(SITE, "unavailable", epoch=2)
    reason, message = reported(unroll)
    assert (reason, unroll.orders()) == ("NoMatchingTargets", {"alpha-r1-s1": "present"})
    assert message == 'no matches for kind "Site" in version "example.org/v1"'
    unroll.mark(SITE, "ok", epoch=3)
    assert reported(unroll) == ("Valid", "")


def test_nothing_selected_is_no_error_and_is_counted() -> None:
    """S6."""
    unroll = part()
    assert reported(unroll) == ("Valid", "")
    assert unroll.rollup is not None
    assert unroll.rollup.counts.desired == 0


def test_an_emptied_selector_leaves_a_hundred_variants_until_confirmed() -> None:
    """S6, M3: nothing is removed without a person's confirmation, and everything with it."""
    names = tuple(f"s{i:03}" for i in range(100))
    unroll = part(sites=names)
    for name in list(unroll.children):
        unroll.made(name)
    change(unroll, selecting(matchLabels={"env": "nowhere"}), generation=2)
    live_on(unroll)
    assert set(unroll.orders().values()) == {"present"}
    assert set(unroll.states().values()) == {"held"}
    assert unroll.rollup is not None
    assert unroll.rollup.hold is not None
    assert unroll.rollup.hold.count == 100
    token = unroll.rollup.hold.token
    change(
        unroll,
        selecting(matchLabels={"env": "nowhere"}),
        generation=2,
        annotations={"pvbus.dev/confirm-deletion": f"other,{token}"},
    )
    live_on(unroll)
    assert set(unroll.orders().values()) == {"removed"}


def test_an_upstream_needs_both_halves_that_are_given() -> None:
    """S11: a draft of revision 0 is not revision 3, nor is another workspace."""
    unroll = part({"repositories": [{"name": "r1"}]}, up={"repo": "up", "package": "base", "revision": 3})
    draft = {"repository": "up", "packageName": "base", "revision": 0, "workspaceName": "v3"}
    unroll.tell(REVISION, obj(REVISION, "up.base.v3", spec=draft))
    reason, message = reported(unroll)
    assert (reason, unroll.children) == ("UpstreamNotFound", {})
    missing = "could not find upstream package revision 'base/3' in repo 'up'"
    assert message == f'{missing}: no Repository named "up" in namespace "default"'
    unroll.tell(REPOSITORY, obj(REPOSITORY, "up", spec={}))
    assert reported(unroll)[1] == f"{missing}: the package has revision 1, workspace v3"
    change(
        unroll,
        {"repositories": [{"name": "r1"}]},
        generation=2,
        up={"repo": "up", "package": "base", "revision": 1, "workspaceName": "v3"},
    )
    assert reported(unroll)[0] == "UpstreamNotFound"
    change(
        unroll,
        {"repositories": [{"name": "r1"}]},
        generation=3,
        up={"repo": "up", "package": "base", "revision": 1, "workspaceName": "v1"},
    )
    assert reported(unroll)[0] == "Valid"


# ------------------------------------------------------------ names and identity


def test_names_are_porchs_and_collisions_get_another() -> None:
    """S13: the identity is set, repository and package; never the text they join to."""
    unroll = part(
        {"repositories": [{"name": "b-c", "packageNames": ["d"]}, {"name": "b", "packageNames": ["c-d"]}]}
    )
    assert set(unroll.children) == {"alpha-b-c-d", colliding_variant_name("alpha", "b", "c-d")}


def test_a_name_never_changes_while_its_target_lives() -> None:
    unroll = part({"repositories": [{"name": "b", "packageNames": ["c-d"]}]})
    change(
        unroll,
        {"repositories": [{"name": "b-c", "packageNames": ["d"]}, {"name": "b", "packageNames": ["c-d"]}]},
        generation=2,
    )
    unroll.run()
    assert unroll.children["alpha-b-c-d"].downstream.repo == "b"
    assert unroll.children[colliding_variant_name("alpha", "b-c", "d")].downstream.repo == "b-c"


def test_a_child_that_exists_keeps_its_name() -> None:
    """Matched by its downstream, whatever it is called."""
    unroll = UnrollPart()
    unroll.tell(REVISION, upstream())
    meta = of_set("uid-alpha")
    spec = {"downstream": {"repo": "r1", "package": "base"}}
    unroll.tell(VARIANT, obj(VARIANT, "odd-name", metadata=meta, spec=spec))
    change(unroll, {"repositories": [{"name": "r1"}]})
    unroll.synced()
    unroll.run()
    assert unroll.states() == {"odd-name": "present"}


def test_two_targets_with_one_downstream_are_an_error_that_names_both() -> None:
    """S14: that downstream's child stays, other targets continue."""
    unroll = part({"repositories": [{"name": "r1"}]})
    twice = [{"repositories": [{"name": "r1"}]}, {"repositories": [{"name": "r1"}, {"name": "r2"}]}]
    change(unroll, *twice, generation=2)
    live_on(unroll)
    reason, message = reported(unroll)
    assert reason == "ValidationError"
    assert "spec.targets[0].repositories[0] and spec.targets[1].repositories[0] give the same" in message
    assert unroll.orders() == {"alpha-r1-base": "present", "alpha-r2-base": "present"}


# ------------------------------------------------------------ errors


def test_one_bad_target_leaves_the_others_alone() -> None:
    """S15, S21: the message has the path of the field."""
    template = {"downstream": {"repo": "r1", "packageExpr": "target.labels['pkg']"}}
    unroll = part({**selecting(matchLabels={"env": "prod"}), "template": template})
    for i in range(20):
        labels = {"env": "prod"} | ({"pkg": f"p{i}"} if i != 7 else {})
        unroll.tell(SITE, site(f"s{i}", **labels))
    unroll.run()
    assert len(downstreams(unroll)) == 19
    reason, message = reported(unroll)
    assert reason == "UnexpectedError"
    where = "spec.targets[0] with Site default/s7: template.downstream.packageExpr: "
    assert message.startswith(where)


def test_an_expression_that_does_not_compile_is_told_once() -> None:
    """S21: once for the set, whatever the number of its targets."""
    template = {"downstream": {"repo": "r1", "packageExpr": "target.name +"}}
    unroll = part({**selecting(matchLabels={"env": "prod"}), "template": template}, sites=("s1", "s2", "s3"))
    reason, message = reported(unroll)
    assert (reason, unroll.children) == ("UnexpectedError", {})
    assert message.count("template.downstream.packageExpr") == 1


def test_an_invalid_set_is_told_and_removes_nothing() -> None:
    """S9, S12, S20: problems are joined, and what exists stays."""
    unroll = part({"repositories": [{"name": "r1"}]})
    unroll.made("alpha-r1-base")
    change(unroll, {"repositories": []}, generation=2, up={"package": "base", "revision": 1})
    live_on(unroll)
    reason, message = reported(unroll)
    assert reason == "ValidationError"
    assert "; " in message
    assert unroll.orders() == {"alpha-r1-base": "present"}


@pytest.mark.parametrize("kind", [VARIANT, REVISION, REPOSITORY, SITE], ids=lambda k: k.kind)
def test_nothing_is_removed_while_a_kind_is_being_listed(kind: Any) -> None:
    unroll = part(sites=("s1", "s2"))
    unroll.made("alpha-r1-s1")
    unroll.mark(kind, "syncing", epoch=2)
    unroll.tell(SITE, site("s1", env="test"))
    live_on(unroll)
    assert set(unroll.orders().values()) == {"present"}
    unroll.mark(kind, "ok", epoch=2)
    live_on(unroll)
    assert unroll.orders()["alpha-r1-s1"] == "removed"


def test_a_service_that_cannot_be_read_is_told() -> None:
    unroll = part(sites=("s1",))
    unroll.mark(REVISION, "unavailable", epoch=2)
    reason, message = reported(unroll)
    assert reason == "UnexpectedError"
    assert message.startswith("porch.kpt.dev/PackageRevision cannot be read")
    assert unroll.orders() == {"alpha-r1-s1": "present"}


# ------------------------------------------------------------ cost and silence


def test_the_second_look_at_unchanged_inputs_writes_nothing() -> None:
    """S15."""
    unroll = part(sites=("s1", "s2"))
    live_on(unroll)
    assert unroll.run().puts == ()


def test_only_sets_whose_answer_can_change_look_again() -> None:
    """S22, M7: of many sets, an object touches those that select it, and evaluates one target."""
    unroll = UnrollPart()
    unroll.tell(REVISION, upstream())
    unroll.tell(REPOSITORY, obj(REPOSITORY, "r1", spec={}))
    for i in range(50):
        thing = site_set(f"set{i}")
        thing["spec"]["targets"] = [selecting(matchLabels={"group": f"g{i % 10}"})]
        unroll.tell(SET, thing)
        unroll.tell(SITE, site(f"s{i}", group=f"g{i % 10}"))
    unroll.synced()
    for i in range(50):
        unroll.run(f"default/set{i}")
    controller = unroll.controller
    before = controller.preparing.target_evaluations
    row = rows_of(SITE, site("s3", group="g3", more="x"), (OBJECTS,))[0]
    dirty = set(controller.load(OBJECTS, 0, row.key, row.value))
    assert dirty == {f"default/set{i}" for i in (3, 13, 23, 33, 43)}
    for skey in dirty:
        unroll.run(skey)
    assert controller.preparing.target_evaluations - before == 5
    unrelated = {"repository": "elsewhere", "packageName": "x", "revision": 1, "workspaceName": "v1"}
    row = rows_of(REVISION, obj(REVISION, "elsewhere.x.v1", spec=unrelated), (OBJECTS,))[0]
    assert list(controller.load(OBJECTS, 0, row.key, row.value)) == []


def test_a_roll_up_never_speaks_of_rows_that_are_not_written() -> None:
    """Ready at a new generation is not reported before the children are at it."""
    unroll = part(sites=("s1",))
    unroll.render_agrees = False
    change(
        unroll,
        generation=2,
        template={"downstream": {"repo": "r1", "packageExpr": "target.name"}, "labels": {"a": "b"}},
    )
    unroll.run()
    unroll.now += 2
    unroll.run()
    assert unroll.rollup is not None
    assert (unroll.rollup.generation, unroll.rollup.counts.desired, unroll.rollup.counts.applied) == (2, 1, 0)


def test_the_longest_name_is_cut_and_told_apart() -> None:
    """S13."""
    name = variant_name("s" * 40, "r" * 30, "p" * 10)
    assert len(name) == 63
    assert name.startswith("s" * 40 + "-" + "r" * 13 + "-")


def test_problems_are_told_one_after_the_other_in_the_order_of_the_flow() -> None:
    """S1, S19: validation, upstream, kinds, expressions; each ends the pass, and is reported once."""
    unroll = UnrollPart()
    for kind in (SET, VARIANT, REPOSITORY, REVISION):
        unroll.mark(kind, "ok")
    unroll.mark(SITE, "unavailable")
    broken = {
        **selecting(matchLabels={"env": "prod"}),
        "template": {"downstream": {"repo": "r1", "packageExpr": "+"}},
    }
    upstream_of = {"repo": "up", "package": "base", "revision": 1}
    reported_reasons = []

    def look() -> None:
        unroll.now += 2
        outcome = unroll.run()
        reported_reasons.append(unroll.rollup.reason if unroll.rollup else "")
        assert sum(put.key == "default/alpha" for put in outcome.puts) == 1

    change(unroll, broken, generation=1, up={**upstream_of, "repo": ""})
    look()
    change(unroll, broken, generation=2, up=upstream_of)
    look()
    unroll.tell(REVISION, upstream())
    look()
    unroll.mark(SITE, "ok", epoch=2)
    look()
    change(unroll, generation=3)
    look()
    assert reported_reasons == [
        "ValidationError",
        "UpstreamNotFound",
        "NoMatchingTargets",
        "UnexpectedError",
        "Valid",
    ]
    assert unroll.rollup is not None
    assert unroll.rollup.generation == 3


def test_a_watch_is_asked_for_once_per_lease_and_withdrawn_with_its_last_set() -> None:
    """It is requested again at once, although the withdrawal was not read from the bus yet."""
    unroll = part(sites=("s1",))
    unroll.tell(SET, site_set("beta"))
    unroll.run("default/beta")
    (key,) = unroll.requests
    unroll.tell_gone(SET, site_set("alpha"))
    unroll.run()
    assert unroll.requests[key] is not None
    unroll.tell_gone(SET, site_set("beta"))
    unroll.run("default/beta")
    assert unroll.requests == {key: None}
    unroll.tell(SET, site_set("gamma"))
    unroll.run("default/gamma")
    assert unroll.requests[key] is not None


def test_a_set_costs_the_same_however_many_there_are() -> None:
    """Its first pass looks at no other set, as long as there is no watch that may be needless."""

    def calls_with(others: int) -> int:
        unroll = part()
        for number in range(others):
            unroll.tell(SET, site_set(f"s{number:03}"))
            unroll.run(f"default/s{number:03}")
        unroll.tell(SET, site_set("last"))
        count = 0

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            unroll.run("default/last")
        finally:
            sys.setprofile(None)
        return count

    assert calls_with(100) < calls_with(10) + 20


def test_a_set_on_hold_keeps_its_watch() -> None:
    unroll = part(sites=("s1",))
    (key,) = unroll.requests
    change(unroll, annotations={HOLD: "true"})
    unroll.run()
    unroll.tell(SET, site_set("beta"))
    unroll.run("default/beta")
    unroll.tell_gone(SET, site_set("beta"))
    unroll.run("default/beta")
    assert unroll.requests[key] is not None


def test_a_child_whose_rows_the_bus_refuses_fails_alone_until_they_change() -> None:
    """One target has more than a record can hold: the set says so, the others are made."""
    unroll = part()
    unroll.refuses = lambda name: name == "alpha-r1-s7"
    for i in range(20):
        unroll.tell(SITE, site(f"s{i}", env="prod"))
    assert reported(unroll) == ("TooLarge", "Site default/s7: too large")
    assert unroll.rollup is not None
    counts = unroll.rollup.counts
    assert (counts.desired, counts.applied, counts.failed) == (20, 19, 1)
    assert [one.name for one in unroll.rollup.unready if one.reason == "TooLarge"] == ["alpha-r1-s7"]
    tries = len(unroll.steps)
    live_on(unroll)
    assert not any(step.puts for step in unroll.steps[tries:])
    unroll.refuses = lambda name: False
    template = {"downstream": {"repo": "r1", "packageExpr": "target.name"}, "labels": {"smaller": "now"}}
    change(unroll, {**selecting(matchLabels={"env": "prod"}), "template": template}, generation=2)
    assert reported(unroll) == ("Valid", "")
    assert unroll.rollup.counts.applied == 20
