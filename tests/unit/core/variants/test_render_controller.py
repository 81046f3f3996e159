"""Rendering decisions: what is written for one PackageVariant, by whom, and what is reported to sets."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import Downstream, DownstreamTemplate, MapExpr, Upstream, VariantTemplate
from pvbus.core.errors import AlreadyExistsError, ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Create, Delete, Get, Outcome, Update
from pvbus.core.kernel.keys import FINALIZER, HOLD, REMOVAL_CANCELLED, SET_UID_LABEL, sync_key
from pvbus.core.kernel.records import DESIRED, SETRESULTS, ChildResult, Root, TargetRow
from pvbus.core.kernel.records import VARIANTS as VARIANTS_TOPIC
from tests.simulation.parts import VARIANT, RenderPart, marker

VKEY = "default/alpha-r1-p"
CHILD = f"default/alpha|{VKEY.partition('/')[2]}"


def row(**fields: Any) -> TargetRow:
    given: dict[str, Any] = {
        "state": "present",
        "set_name": "alpha",
        "set_uid": "uid-alpha",
        "set_created": "2026-01-01T00:00:00Z",
        "digest": "d1",
        "upstream": Upstream(repo="up", package="base", revision=1),
        "template": VariantTemplate(downstream=DownstreamTemplate(repo="r1", package="p")),
        "downstream": Downstream(repo="r1", package="p"),
        "roots": {"target": Root(name="t", namespace="default", labels={"a": "b"})},
    }
    return TargetRow(**{**given, **fields})


NOW = 1_000_000.0  # the time of RenderPart


def removed(**fields: Any) -> TargetRow:
    given: dict[str, Any] = {
        "state": "removed",
        "set_name": "alpha",
        "set_uid": "uid-alpha",
        "generation": 3,
        "ordered": NOW,
        "downstream": Downstream(repo="r1", package="p"),
    }
    return TargetRow(**{**given, **fields})


def withdrawn(**fields: Any) -> TargetRow:
    return removed(**{"state": "withdrawn", "generation": 0, "ordered": 0, "cancelled": "k1", **fields})


def stored(thing: Any, version: str = "1", **meta: Any) -> Any:
    """Return an object as the server stores it."""
    given = {"uid": "uid-v", "resourceVersion": version, "generation": 1}
    return {**thing, "metadata": {**thing["metadata"], **given, **meta}}


def applied() -> tuple[RenderPart, Any]:
    """A variant that was created and observed."""
    part = RenderPart()
    part.target(row(), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    thing = stored(effect.object)
    part.go_on(steps, thing)
    part.variant(thing, VKEY)
    return part, thing


def test_a_new_variant_is_made_as_porch_makes_it() -> None:
    """S16: namespace, label, controller reference, finalizer, rendered spec."""
    part = RenderPart()
    part.target(row(), VKEY)
    _, effect = part.begin(VKEY)
    meta = effect.object["metadata"]
    assert meta == {
        "name": "alpha-r1-p",
        "namespace": "default",
        "labels": {SET_UID_LABEL: "uid-alpha"},
        "finalizers": [FINALIZER],
        "ownerReferences": [
            {
                "apiVersion": "config.porch.kpt.dev/v1alpha2",
                "kind": "PackageVariantSet",
                "name": "alpha",
                "uid": "uid-alpha",
                "controller": True,
            }
        ],
    }
    assert effect.object["spec"]["downstream"] == {"repo": "r1", "package": "p"}


def test_the_set_is_told_at_which_digest_its_child_is() -> None:
    part, _ = applied()
    unready = "Reconciling: it has no condition Ready yet"
    assert part.results[CHILD] == ChildResult(
        set_uid="uid-alpha", evaluated="d1", applied="d1", unready=unready
    )


@pytest.mark.parametrize(
    ("conditions", "ready", "unready", "failing"),
    [
        ([("Ready", "True", "NoErrors", "fine", 1)], True, "", False),
        ([("Ready", "True", "NoErrors", "fine", 0)], True, "", False),  # a server that does not tell
        ([("Ready", "False", "Error", "no such package", 1)], False, "Error: no such package", True),
        ([("Ready", "False", "Waiting", "waits for x", 1)], False, "Waiting: waits for x", False),
        (
            [("Stalled", "True", "ValidationError", "bad", 1), ("Ready", "True", "NoErrors", "", 1)],
            False,
            "ValidationError: bad",
            True,
        ),
        ([], False, "Reconciling: it has no condition Ready yet", False),
    ],
)
def test_a_set_hears_whether_its_variant_is_ready_and_why_not(
    conditions: list[Any], ready: bool, unready: str, failing: bool
) -> None:
    part, thing = applied()
    fields = ("type", "status", "reason", "message", "observedGeneration")
    thing["status"] = {"conditions": [dict(zip(fields, one, strict=True)) for one in conditions]}
    part.variant(stored(thing, "2"), VKEY)
    part.begin(VKEY)
    result = part.results[CHILD]
    assert (result.ready, result.unready, result.failing) == (ready, unready, failing)


def test_a_variant_that_was_ready_before_its_last_change_is_not_ready() -> None:
    part, thing = applied()
    ready = {"type": "Ready", "status": "True", "reason": "NoErrors", "observedGeneration": 1}
    thing["status"] = {"conditions": [ready]}
    part.variant(stored(thing, "2", generation=2), VKEY)
    part.begin(VKEY)
    assert not part.results[CHILD].ready


def test_a_second_look_evaluates_and_sends_nothing() -> None:
    """S15."""
    part, _ = applied()
    before = part.controller.evaluations
    outcome, effect = part.begin(VKEY)
    assert effect is None
    assert outcome.puts == ()
    assert part.controller.evaluations == before


def test_a_restart_sends_and_writes_nothing() -> None:
    part, thing = applied()
    state = part.controller.state(0, VKEY)
    assert state is not None
    desired = state.desired
    again = RenderPart()
    again.controller.load(DESIRED, 0, VKEY, msgspec.json.encode(desired))
    again.target(row(), VKEY)
    again.variant(thing, VKEY)
    outcome, effect = again.begin(VKEY)
    assert (effect, outcome.puts, again.controller.evaluations) == (None, (), 0)


def test_an_update_replaces_the_spec_and_nothing_else() -> None:
    """S17: what people wrote into the metadata stays."""
    part, thing = applied()
    thing["metadata"]["annotations"] = {"mine": "yes"}
    thing["metadata"]["finalizers"].append("mine/too")
    for i in range(100):
        template = VariantTemplate(
            downstream=DownstreamTemplate(repo="r1", package="p"), labels={"n": str(i)}
        )
        part.variant(thing, VKEY)
        part.target(row(digest=f"n{i}", template=template), VKEY)
        steps, effect = part.begin(VKEY)
        assert isinstance(effect, Update)
        assert effect.object["metadata"] == thing["metadata"]
        thing = stored(effect.object, str(i + 2))
        part.go_on(steps, thing)
    assert thing["metadata"]["annotations"] == {"mine": "yes"}
    assert thing["spec"]["labels"] == {"n": "99"}


def test_an_edit_by_hand_is_set_back() -> None:
    part, thing = applied()
    drifted = {**thing, "spec": {**thing["spec"], "labels": {"by": "hand"}}}
    part.variant(stored(drifted, "2"), VKEY)
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Update)
    assert effect.object["spec"] == thing["spec"]


def test_a_template_that_fails_is_told_and_the_variant_stays() -> None:
    """S15, S21: with the path of the field."""
    part, _ = applied()
    template = VariantTemplate(
        downstream=DownstreamTemplate(repo="r1", package="p"),
        label_exprs=(MapExpr(key="x", value_expr="target.labels['none']"),),
    )
    part.target(row(digest="d2", template=template), VKEY)
    _, effect = part.begin(VKEY)
    result = part.results[CHILD]
    assert (effect, result.evaluated, result.applied, result.reason) == (None, "d2", "", "UnexpectedError")
    assert result.error.startswith("template.labelExprs[0].valueExpr: ")


@pytest.mark.parametrize("error", [ConflictError("409"), AlreadyExistsError("409"), TransientError("503")])
def test_what_may_work_later_is_left_to_the_shell(error: Exception) -> None:
    part = RenderPart()
    part.target(row(), VKEY)
    steps, _ = part.begin(VKEY)
    with pytest.raises(type(error)):
        part.go_on(steps, error)
    assert part.results == {}


def test_what_the_api_server_refuses_is_told_and_tried_after_a_minute() -> None:
    part = RenderPart()
    part.target(row(), VKEY)
    steps, _ = part.begin(VKEY)
    outcome = part.go_on(steps, PermanentError("422: spec.upstream is wrong"))
    assert isinstance(outcome, Outcome)
    assert outcome.again_after == 60
    result = part.results[CHILD]
    assert (result.applied, result.reason, result.error) == (
        "",
        "UnexpectedError",
        "422: spec.upstream is wrong",
    )
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Create)


def large(size: int) -> TargetRow:
    template = VariantTemplate(
        downstream=DownstreamTemplate(repo="r1", package="p"), labels={"x": "y" * size}
    )
    return row(digest=f"d{size}", template=template)


def test_a_spec_that_leaves_no_room_in_a_record_is_not_written() -> None:
    """The bus would refuse the variant's own row, which would hide its later versions and its deletion."""
    part = RenderPart(spec_bytes_max=1000)
    part.target(large(1000), VKEY)
    outcome, effect = part.begin(VKEY)
    assert (effect, outcome.again_after) == (None, 60)
    assert part.results[CHILD].error.startswith("the spec has 1")
    part.target(large(100), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    thing = stored(effect.object)
    part.go_on(steps, thing)
    part.variant(thing, VKEY)
    part.target(large(1000), VKEY)
    _, effect = part.begin(VKEY)
    result = part.results[CHILD]
    assert (effect, result.evaluated, result.applied, result.expression_failed) == (None, "d1000", "", False)


def test_readiness_follows_the_variants_condition() -> None:
    part, thing = applied()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    part.variant({**stored(thing, "2"), "status": ready}, VKEY)
    part.begin(VKEY)
    assert part.results[CHILD].ready


# ------------------------------------------------------------ whose it is


def owned_by(thing: Any, uid: str | None) -> Any:
    owners = [{"kind": "PackageVariantSet", "name": "other", "uid": uid, "controller": True}] if uid else []
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": owners}}


@pytest.mark.parametrize("uid", [None, "uid-former", "uid-of-a-person"])
def test_what_is_not_the_sets_own_is_never_written(uid: str | None) -> None:
    _, thing = applied()
    part = RenderPart()
    part.target(row(), VKEY)
    part.variant(owned_by(thing, uid), VKEY)
    _, effect = part.begin(VKEY)
    assert effect is None
    assert part.results[CHILD].reason == "TargetConflict"
    part.target(removed(), VKEY)
    _, effect = part.begin(VKEY)
    assert effect is None


@pytest.mark.parametrize(
    ("name", "uid", "says"),
    [
        ("alpha", "uid-former", "a former PackageVariantSet alpha, of uid uid-former"),
        ("other", "uid-other", "PackageVariantSet other; delete or rename it"),
        ("", None, "no controller (created by hand?); delete or rename it"),
    ],
)
def test_a_conflict_names_the_owner_and_what_helps(name: str, uid: str | None, says: str) -> None:
    _, thing = applied()
    living = owned_by(thing, uid)
    for owner in living["metadata"]["ownerReferences"]:
        owner["name"] = name
    part = RenderPart()
    part.target(row(), VKEY)
    part.variant(living, VKEY)
    part.begin(VKEY)
    assert f'PackageVariant "alpha-r1-p" exists and belongs to {says}' in part.results[CHILD].error


def test_of_two_sets_the_older_makes_it_and_the_other_is_told() -> None:
    part = RenderPart()
    part.target(row(set_created="2026-02-01T00:00:00Z"), VKEY)
    younger = row(set_name="beta", set_uid="uid-beta", set_created="2026-03-01T00:00:00Z")
    part.target(younger, VKEY, "beta")
    steps, effect = part.begin(VKEY)
    assert effect.object["metadata"]["labels"] == {SET_UID_LABEL: "uid-alpha"}
    part.go_on(steps, stored(effect.object))
    other = part.results["default/beta|alpha-r1-p"]
    assert (other.reason, other.applied) == ("TargetConflict", "")
    assert '"alpha"' in other.error


def test_the_owner_of_the_living_variant_keeps_it_however_young() -> None:
    part, _ = applied()
    older = row(set_name="beta", set_uid="uid-beta", set_created="2020-01-01T00:00:00Z", digest="b1")
    part.target(older, VKEY, "beta")
    _, effect = part.begin(VKEY)
    assert effect is None
    assert part.results["default/beta|alpha-r1-p"].reason == "TargetConflict"


def test_a_set_that_claims_no_more_takes_its_result_along() -> None:
    part, _ = applied()
    part.target(row(set_name="beta", set_uid="uid-beta"), VKEY, "beta")
    part.begin(VKEY)
    part.target(None, VKEY, "beta")
    part.begin(VKEY)
    assert set(part.results) == {CHILD}


def test_a_hold_on_the_variant_keeps_everything_as_it_is() -> None:
    part, thing = applied()
    part.variant(stored(thing, "2", annotations={HOLD: "true"}), VKEY)
    for change in (row(digest="d2", template=None), removed()):
        part.target(change, VKEY)
        _, effect = part.begin(VKEY)
        assert not isinstance(effect, Update | Delete)
    part.target(row(digest="d3"), VKEY)
    part.begin(VKEY)
    assert part.results[CHILD].reason == "OnHold"


# ------------------------------------------------------------ removing


def live_set(**meta: Any) -> Any:
    return {"metadata": {"uid": "uid-alpha", "generation": 3, **meta}}


def test_a_removal_looks_at_the_set_and_deletes_with_preconditions() -> None:
    """S18."""
    part, _ = applied()
    part.target(removed(), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Get)
    effect = part.go_on(steps, live_set())
    assert isinstance(effect, Delete)
    assert (effect.uid, effect.resource_version) == ("uid-v", "1")


@pytest.mark.parametrize(
    "current",
    [
        None,
        live_set(uid="uid-other"),
        live_set(generation=4),
        live_set(deletionTimestamp="2026-01-01T00:00:00Z"),
        live_set(annotations={HOLD: "true"}),
    ],
)
def test_a_set_that_is_not_as_it_was_is_waited_for(current: Any) -> None:
    """Its withdrawal may be under way: render tries again by itself."""
    part, _ = applied()
    part.target(removed(), VKEY)
    steps, _ = part.begin(VKEY)
    outcome = part.go_on(steps, current)
    assert isinstance(outcome, Outcome)
    assert (outcome.result, outcome.again_after) == ("waiting", 10)


@pytest.mark.parametrize(
    ("age", "goes"), [(0, True), (59, True), (-4, True), (61, False), (3_600, False), (-60, False)]
)
def test_an_order_is_carried_out_only_while_it_is_fresh(age: float, goes: bool) -> None:
    """An order older than a minute, or from a clock that is ahead, is reported as expired."""
    part, _ = applied()
    part.target(removed(ordered=NOW - age), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Get) is goes
    if goes:
        effect = part.go_on(steps, live_set())
        assert effect.not_after == NOW - age + 60
    else:
        assert part.results[CHILD].expired == NOW - age


def test_an_order_expires_while_render_waits_for_the_set() -> None:
    part, _ = applied()
    part.target(removed(), VKEY)
    waited = 0.0
    while waited < 120:
        steps, effect = part.begin(VKEY)
        if effect is None:
            break
        outcome = part.go_on(steps, live_set(generation=4))
        waited += outcome.again_after
        part.now += outcome.again_after
    assert part.results[CHILD].expired == NOW
    assert 60 <= waited <= 71


def test_an_order_for_a_variant_on_hold_expires() -> None:
    part, thing = applied()
    part.variant(stored(thing, "2", annotations={HOLD: "true"}), VKEY)
    part.target(removed(), VKEY)
    outcome, effect = part.begin(VKEY)
    assert (effect, CHILD in part.results) == (None, True)
    part.now += outcome.again_after
    part.begin(VKEY)
    assert part.results[CHILD].expired == NOW


@pytest.mark.parametrize("on_hold", [False, True])
def test_a_withdrawal_is_written_and_nothing_else(on_hold: bool) -> None:
    """Also under hold, where edits by hand stay as they are."""
    part, thing = applied()
    thing["spec"]["deletionPolicy"] = "edited by hand"
    part.variant(stored(thing, "2"), VKEY)
    part.target(withdrawn(on_hold=on_hold), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Update)
    assert effect.object["metadata"]["annotations"] == {REMOVAL_CANCELLED: "k1"}
    assert effect.object["spec"] == thing["spec"]
    part.go_on(steps, stored(effect.object, "3"))
    assert part.results[CHILD].cancelled == "k1"
    part.variant(stored(effect.object, "3"), VKEY)
    _, effect = part.begin(VKEY)
    assert effect is None
    state = part.controller.state(0, VKEY)
    assert state is not None
    desired = state.desired
    assert desired is not None
    assert desired.on_hold is on_hold


@pytest.mark.parametrize("living", [False, True])
def test_under_hold_nothing_is_created_or_reverted(living: bool) -> None:
    part, thing = applied()
    thing["spec"] = {"edited": "by hand"}
    part.variant(stored(thing, "2") if living else None, VKEY)
    part.target(withdrawn(cancelled="", on_hold=True), VKEY)
    _, effect = part.begin(VKEY)
    assert effect is None


def test_a_withdrawal_of_a_variant_that_is_gone_counts_as_written() -> None:
    part, _ = applied()
    part.variant(None, VKEY)
    part.target(withdrawn(), VKEY)
    part.begin(VKEY)
    assert part.results[CHILD].cancelled == "k1"


def test_an_owner_that_gives_a_contested_name_up_frees_it() -> None:
    """Its order is carried out although another set wants the name, which then gets it."""
    part, _ = applied()
    part.target(row(set_name="beta", set_uid="uid-beta", set_created="2026-02-01T00:00:00Z"), VKEY, "beta")
    part.target(removed(), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Get)
    effect = part.go_on(steps, live_set())
    assert isinstance(effect, Delete)
    part.go_on(steps, True)
    assert part.results["default/beta|alpha-r1-p"].reason == "TargetConflict"
    part.variant(None, VKEY)
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    assert effect.object["metadata"]["ownerReferences"][0]["uid"] == "uid-beta"


def test_a_removal_that_was_withdrawn_touches_the_variant() -> None:
    part, _ = applied()
    part.target(row(cancelled="k1", digest="d2"), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Update)
    assert effect.object["metadata"]["annotations"] == {REMOVAL_CANCELLED: "k1"}
    part.go_on(steps, stored(effect.object, "2"))
    assert part.results[CHILD].cancelled == "k1"
    part.variant(stored(effect.object, "2"), VKEY)
    _, effect = part.begin(VKEY)
    assert effect is None


def test_a_row_that_vanishes_lets_go_without_a_call() -> None:
    part, _ = applied()
    part.target(None, VKEY)
    outcome, effect = part.begin(VKEY)
    assert effect is None
    assert [(p.topic, p.row) for p in outcome.puts] == [(DESIRED, None), (SETRESULTS, None)]


def test_a_terminating_variant_is_waited_for_and_made_anew() -> None:
    part, thing = applied()
    part.variant(stored(thing, "2", deletionTimestamp="2026-01-01T00:00:00Z"), VKEY)
    outcome, effect = part.begin(VKEY)
    assert (effect, outcome.result) == (None, "waiting")
    part.variant(None, VKEY)
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Create)


def test_what_waits_for_a_terminating_variant_is_told_as_evaluated_but_not_applied() -> None:
    """The set's removals wait until all is evaluated: one variant that cannot go must not hold them up."""
    part, thing = applied()
    part.variant(stored(thing, "2", deletionTimestamp="2026-01-01T00:00:00Z"), VKEY)
    outcome, _ = part.begin(VKEY)
    reported = [put.row for put in outcome.puts if isinstance(put.row, ChildResult)]
    assert [(bool(row.evaluated), row.applied, row.error) for row in reported] == [(True, "", "")]


def test_nothing_is_decided_while_variants_are_being_listed() -> None:
    part = RenderPart()
    part.controller.load(VARIANTS_TOPIC, 0, sync_key(*VARIANT), marker("syncing", 2))
    part.target(row(), VKEY)
    outcome, effect = part.begin(VKEY)
    assert (effect, outcome.result) == (None, "waiting")
    dirty = part.controller.load(VARIANTS_TOPIC, 0, sync_key(*VARIANT), marker("ok", 2))
    assert list(dirty) == [VKEY]


# ------------------------------------------------------------ the response that stands in


def test_a_response_stands_in_for_its_echo_for_a_while() -> None:
    part = RenderPart()
    part.target(row(), VKEY)
    steps, effect = part.begin(VKEY)
    outcome = part.go_on(steps, stored(effect.object))
    assert outcome.again_after == 10
    _, effect = part.begin(VKEY)
    assert effect is None  # no second create, though nothing was observed
    part.now += 11
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Create)  # the echo never came: the server's answer tells


def test_a_clock_that_is_set_back_does_not_prolong_the_wait_for_an_echo() -> None:
    part = RenderPart()
    part.target(row(), VKEY)
    steps, effect = part.begin(VKEY)
    part.go_on(steps, stored(effect.object))
    part.now -= 3600
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Create)


def test_a_deletion_that_was_seen_before_the_response_is_found_out() -> None:
    part, thing = applied()
    part.target(row(digest="d2", cancelled="k"), VKEY)
    steps, effect = part.begin(VKEY)
    part.variant(stored(thing, "2"), VKEY)
    part.variant(None, VKEY)
    outcome = part.go_on(steps, stored(effect.object, "2"))
    assert outcome.again_after is not None
    part.now += outcome.again_after
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
