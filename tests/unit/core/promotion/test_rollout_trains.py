"""Trains: packages that go as one on each site. Numbers are of scenarios."""

from collections.abc import Callable

import pytest

from pvbus.core.api.quarantines import QuarantinedCombination, QuarantineSpec
from pvbus.core.kernel.rolloutrows import Approve, Restore, Target, TargetFacts, Withdraw
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.canaries import NOT_READY
from pvbus.core.promotion.protocol.partials import TRAIN_PARTIAL, partial_words
from pvbus.core.promotion.protocol.rehearsal import Standing, rehearse
from pvbus.core.promotion.protocol.rules import WaveRules
from pvbus.core.promotion.protocol.units import state_of
from tests.unit.core.promotion.stepping import NOW
from tests.unit.core.promotion.training import (
    ALL,
    BACK,
    COMBINATION,
    FORMER,
    IN_ORDER,
    TOGETHER,
    TRAIN,
    TrainFleet,
)

S = RolloutState


def whole(fleet: TrainFleet, site: int) -> TrainFleet:
    """Publish both members of a site, each good."""
    for member in "ab":
        fleet.publish(f"{member}-{site}")
    return fleet


# ------------------------------------------------------------ planning


def test_a_unit_is_planned_with_its_combination_written_down() -> None:
    """64: without a list or an annotation it is what is proposed at the plan."""
    fleet = TrainFleet().go()
    assert {row.combination for row in fleet.rows.values()} == {COMBINATION}
    assert [(row.target, row.wave, row.part) for row in fleet.rows.values()] == [
        ("a-0", 1, 1),
        ("b-0", 1, 2),
        ("a-1", 2, 1),
        ("b-1", 2, 2),
        ("a-2", 2, 1),
        ("b-2", 2, 2),
    ]
    assert fleet.rollout.sizes == (1, 2)


def test_a_member_without_a_new_revision_rides_and_is_neither_ordered_nor_restored() -> None:
    """62: it runs the combination's revision."""
    fleet = TrainFleet(BACK._replace(waves=ALL), sites=1).settle_member("b-0").go()
    assert fleet.rows["a-0"].combination == ("p/a@v2", "p/b@v1")
    assert fleet.ordered(Approve) == []  # the evidence of the rider is of another attempt
    fleet.prove("b-0")
    assert fleet.ordered(Approve) == ["a-0"]
    fleet.publish("a-0", good=False)
    assert fleet.rollout.state.value == S.ROLLING_BACK.value
    assert fleet.ordered(Restore) == ["a-0"]
    assert fleet.quarantines[1].combinations == (QuarantinedCombination(upstreams=("p/a@v2", "p/b@v1")),)
    fleet.change("a-0", published="r", published_digest="a1-0")
    assert fleet.rollout.state is S.ROLLED_BACK


def test_a_rider_that_changes_before_the_order_takes_its_unit_out() -> None:
    """62: the rest of the wave is filled from the next."""
    fleet = TrainFleet().settle_member("b-0").go()
    fleet.change("b-0", published="v9", published_digest="x", published_source="p/b@v9")
    assert fleet.states_at(0) == "left gone"
    assert fleet.ordered(Approve) == ["a-1"]
    assert fleet.rollout.state is S.ROLLING


@pytest.mark.parametrize("is_first", [True, False])
def test_a_member_that_goes_before_the_order_takes_its_unit_out_and_brings_it_back(*, is_first: bool) -> None:
    fleet = TrainFleet(IN_ORDER._replace(in_flight_max=1)).go()
    member = "a-1" if is_first else "b-1"
    fleet.change(member, is_proposed=False)
    assert fleet.states_at(1) == "left left"
    fleet.change(member, is_proposed=True)
    assert fleet.states_at(1) == "planned planned"


def settled(target: str) -> Callable[[TrainFleet], object]:
    return lambda fleet: fleet.settle_member(target, good=False)


def without(target: str) -> Callable[[TrainFleet], object]:
    return lambda fleet: fleet.seen.pop(target)


def edited(target: str, **fields: object) -> Callable[[TrainFleet], object]:
    def edit(fleet: TrainFleet) -> None:
        fleet.seen[target] = fleet.seen[target]._replace(**fields)  # type: ignore[arg-type]  # of any field

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        pytest.param(
            without("b-0"),
            "train e0/a+b waits for member b: no variant of that set has a package revision there",
            id="63 a member is missing",
        ),
        pytest.param(
            edited("b-0", is_proposed=False),
            "train e0/a+b waits for member b-0: its open revision is not proposed, or it has none yet",
            id="a member is not proposed",
        ),
        pytest.param(
            settled("b-0"),
            "train e0/a+b waits for member b-0: it runs v1, and nothing says that it is good",
            id="62 who rides is not good",
        ),
        pytest.param(
            edited("b-1", unit="e0/a+b"),
            "train e0/a+b has several variants of set b: b-0, b-1",
            id="two variants of a member",
        ),
        pytest.param(
            edited("b-0", unit=""), "b-0 has no label that names its site in the train", id="no label"
        ),
        pytest.param(
            edited("b-0", banned=(("q1", *COMBINATION),)),
            "train e0/a+b waits: quarantine q1 covers the combination p/a@v2; p/b@v2",
            id="quarantined",
        ),
    ],
)
def test_a_unit_that_is_not_whole_waits_and_says_why(
    edit: Callable[[TrainFleet], object], words: str
) -> None:
    fleet = TrainFleet()
    edit(fleet)
    fleet.go()
    assert words in fleet.rollout.train_message
    assert "a-0" not in fleet.rows
    assert "a-2" in fleet.rows


@pytest.mark.parametrize(
    ("sources", "releases", "is_planned"),
    [
        pytest.param(COMBINATION, ("", ""), True, id="the list"),
        pytest.param(("p/a@v2", "p/b@v3"), ("", ""), False, id="another than the list"),
        pytest.param(None, ("7", "7"), True, id="one value"),
        pytest.param(None, ("7", "8"), False, id="two values"),
        pytest.param(None, ("", ""), False, id="no value"),
    ],
)
def test_who_says_what_was_verified_together(
    sources: tuple[str, str] | None, releases: tuple[str, str], *, is_planned: bool
) -> None:
    """64: the policy's list, or one value of an annotation of the upstream revisions."""
    train = TRAIN._replace(upstreams=sources) if sources else TRAIN._replace(annotation="example.com/set")
    fleet = TrainFleet(IN_ORDER._replace(train=train), sites=1)
    for target, release in zip(("a-0", "b-0"), releases, strict=True):
        fleet.seen[target] = fleet.seen[target]._replace(release=release)
    assert bool(fleet.go().rows) is is_planned
    assert bool(fleet.rollout.train_message) is not is_planned


def test_a_place_that_never_has_a_member_is_skipped_but_no_canary_is() -> None:
    """63: on a canary it is CanaryNotReady."""
    rules = IN_ORDER._replace(train=TRAIN._replace(skips_absent=True))
    fleet = TrainFleet(rules)
    del fleet.seen["b-0"]
    assert "a-0" in fleet.go().rows
    canary = TrainFleet(rules._replace(canaries=("a-0",)))
    del canary.seen["b-0"]
    canary.go()
    assert (canary.rows, canary.rollout.canary_reason) == ({}, NOT_READY)
    assert "train e0/a+b waits for member b" in canary.rollout.canary_message


def test_what_is_no_member_goes_alone() -> None:
    fleet = TrainFleet(IN_ORDER._replace(waves=ALL), sites=1)
    fleet.seen["other"] = TargetFacts("v2", "o", True, "v1", "o1")
    assert set(fleet.go().ordered(Approve)) == {"a-0", "other"}


# ------------------------------------------------------------ order and evidence


def test_in_order_each_member_waits_for_the_proof_of_those_before_it() -> None:
    fleet = TrainFleet().go()
    assert fleet.ordered(Approve) == ["a-0"]
    assert fleet.publish("a-0", good=None).ordered(Approve) == []
    fleet.prove("a-0")
    assert fleet.ordered(Approve) == ["b-0"]
    fleet.publish("b-0", good=None)
    assert fleet.ordered(Approve) == []
    fleet.prove("b-0")
    assert fleet.ordered(Approve) == ["a-1", "a-2"]
    whole(whole(fleet, 1), 2)
    assert fleet.rollout.state is S.COMPLETED


def test_together_all_members_are_ordered_in_one_step_or_none() -> None:
    fleet = TrainFleet(TOGETHER).go()
    assert fleet.ordered(Approve) == ["a-0", "b-0"]
    assert {name: row.mates for name, row in fleet.rows.items() if row.mates} == {
        "a-0": ("v2", "v2"),
        "b-0": ("v2", "v2"),
    }


def test_only_members_that_are_ordered_in_one_step_go_in_one_push() -> None:
    """Not one that rides, and none of a train that goes in order."""
    riding = TrainFleet(TOGETHER, sites=1).settle_member("a-0").go().prove("a-0")
    assert riding.ordered(Approve) == ["b-0"]
    in_order = TrainFleet(IN_ORDER).go()
    in_order.publish("a-0")
    for fleet in (riding, in_order):
        assert not any(row.mates for row in fleet.rows.values())


def test_percent_and_budget_count_units() -> None:
    """69: 6 members on 3 sites, one unit at a time, though it has two members on their way."""
    rules = TOGETHER._replace(waves=(WaveRules(percent=34), WaveRules()), in_flight_max=1)
    fleet = TrainFleet(rules).go()
    assert fleet.rollout.sizes == (2, 1)
    assert fleet.ordered(Approve) == ["a-0", "b-0"]
    assert whole(fleet, 0).ordered(Approve) == ["a-1", "b-1"]


def test_a_unit_keeps_its_slot_between_its_members() -> None:
    fleet = TrainFleet(IN_ORDER._replace(waves=ALL, in_flight_max=1)).go()
    assert fleet.publish("a-0").ordered(Approve) == ["b-0"]
    assert fleet.publish("b-0").ordered(Approve) == ["a-1"]


def test_the_failing_budget_counts_units() -> None:
    fleet = TrainFleet(TOGETHER._replace(waves=ALL, failing_max=1)).go()
    fleet.publish("a-0", "b-0", good=False)
    assert fleet.rollout.state is S.ROLLING
    fleet.publish("a-1", good=False)
    assert (fleet.rollout.state, fleet.rollout.message) == (S.STOPPED, "2 targets fail, 1 may")


def test_no_later_wave_begins_before_each_member_of_the_canarys_unit_is_proven() -> None:
    fleet = TrainFleet(IN_ORDER._replace(canaries=("b-2",))).go()
    assert fleet.ordered(Approve) == ["a-2"]
    fleet.publish("a-2").publish("b-2", good=None)
    assert fleet.ordered(Approve) == []
    assert fleet.prove("b-2").ordered(Approve) == ["a-0", "a-1"]


def test_a_member_of_the_canarys_unit_that_fails_fails_the_attempt_whatever_the_budget() -> None:
    fleet = TrainFleet(IN_ORDER._replace(canaries=("b-0",), failing_max=2)).go()
    fleet.publish("a-0", good=False)
    assert (fleet.rollout.state, fleet.rollout.reason) == (S.STOPPED, "CanaryFailed")


# ------------------------------------------------------------ failure and rollback


def test_a_member_that_fails_stops_its_unit_and_the_rest_is_taken_back() -> None:
    fleet = TrainFleet(IN_ORDER._replace(waves=ALL, failing_max=2)).go().publish("a-0")
    assert "b-0" in fleet.ordered(Approve)
    fleet.prove("a-0", good=False)
    assert "b-0" in fleet.ordered(Withdraw)
    fleet.change("b-0", withdrawn=1)
    assert fleet.states_at(0) == "failed gone"


def test_no_member_is_ordered_while_another_of_its_unit_fails() -> None:
    """A person has approved the last one by hand, and it is bad."""
    rules = IN_ORDER._replace(waves=ALL, failing_max=2, in_flight_max=1)
    fleet = TrainFleet(rules, 2).go().publish("b-1", good=False)
    assert (fleet.states_at(1), whole(fleet, 0).ordered(Approve)) == ("planned failed", [])


def test_a_train_that_is_refused_in_the_middle_is_partial_and_in_time_rolled_back() -> None:
    """67: it is named; past the limit it is quarantined, and what was published is undone. The rest stays."""
    fleet = TrainFleet(IN_ORDER._replace(failing_max=1)).go().publish("a-0")
    fleet.change("b-0", refused=1)
    assert partial_words(fleet.rows.values()) == "train e0/a+b: a-0 is proven, b-0 is refused"
    for _ in range(11):
        fleet.go(60)
        assert fleet.rollout.state is S.ROLLING or fleet.rollout.reason == TRAIN_PARTIAL
    assert (fleet.rollout.state, fleet.rollout.reason) == (S.STOPPED, TRAIN_PARTIAL)
    assert fleet.quarantines[1].combinations == (QuarantinedCombination(upstreams=COMBINATION),)
    assert fleet.ordered(Restore) == ["a-0"]
    fleet.change("a-0", published="r", published_digest="a1-0")
    assert fleet.rows["a-0"].state is TargetState.UNDONE
    assert partial_words(fleet.rows.values()) == ""


def test_a_partial_train_that_is_made_whole_in_time_goes_on() -> None:
    fleet = TrainFleet().go().publish("a-0")
    fleet.change("b-0", is_proposed=False)
    fleet.change("b-0", withdrawn=1)
    fleet.go(60).publish("b-0")
    assert partial_words(fleet.rows.values()) == "train e0/a+b: a-0 is proven, b-0 is gone"
    other = TrainFleet(IN_ORDER._replace(in_flight_max=1)).go().publish("a-0", good=None)
    other.change("b-0", is_proposed=False).go(60)
    assert partial_words(other.rows.values()) == "train e0/a+b: a-0 is approved, b-0 is left"
    other.change("b-0", is_proposed=True)
    other.prove("a-0").publish("b-0")
    assert (partial_words(other.rows.values()), other.rows["a-0"].partial_since) == ("", None)


def test_the_undoing_of_a_partial_train_goes_on_when_the_attempt_is_aborted() -> None:
    fleet = TrainFleet(IN_ORDER._replace(failing_max=1)).go().publish("a-0").change("b-0", refused=1)
    while fleet.rollout.state is not S.STOPPED:
        fleet.go(60)
    fleet.command(abort=1)
    assert (fleet.rollout.state, fleet.ordered(Restore)) == (S.ABORTED, ["a-0"])
    fleet.change("a-0", published="r", published_digest="a1-0")
    assert fleet.rows["a-0"].state is TargetState.UNDONE


def test_a_unit_whose_first_member_is_refused_within_the_budget_holds_nobody_up() -> None:
    """Nothing of it is published: the rest leaves, and the attempt goes on without it."""
    fleet = TrainFleet(IN_ORDER._replace(failing_max=1)).go().change("a-0", refused=1)
    assert fleet.states_at(0) == "refused left"
    whole(whole(fleet, 1), 2)
    assert fleet.rollout.state is S.COMPLETED


def test_a_unit_that_was_undone_holds_nobody_up_when_a_person_resumes() -> None:
    """The approval of its second member never came; what the first one got was restored in time."""
    fleet = TrainFleet(IN_ORDER._replace(in_flight_max=1, failing_max=1)).go().publish("a-0", good=None)
    while fleet.rollout.state.value != S.STOPPED.value:
        fleet.go(60)
    fleet.change("a-0", published="r", published_digest="a1-0").cover().go()
    assert fleet.states_at(0) == "undone left"
    fleet.command(resume=(1, 1))
    whole(whole(fleet, 1), 2)
    assert fleet.rollout.state is S.COMPLETED


def test_a_partial_train_that_stays_so_costs_no_more_steps() -> None:
    """Nothing can be done about it: it is named, and no time counts."""
    fleet = TrainFleet(IN_ORDER._replace(failing_max=1, restore_seconds=60)).go().publish("a-0")
    fleet.change("b-0", refused=1)
    while fleet.rows["a-0"].state is not TargetState.STRANDED:
        fleet.go(60)
    fleet.go(60)
    before = (fleet.rollout, dict(fleet.rows))
    fleet.go(3_600)
    assert (fleet.rollout, fleet.rows) == before
    assert fleet.rollout.state is S.STOPPED
    assert partial_words(fleet.rows.values()) == "train e0/a+b: a-0 is stranded, b-0 is refused"


def test_a_member_that_a_person_rolls_back_alone_stops_the_unit_and_covers_the_combination() -> None:
    """65: A with another B is free."""
    fleet = TrainFleet().go()
    whole(fleet, 0)
    fleet.change("b-0", published="r", published_digest="b1-0", published_source="p/b@v1")
    assert (fleet.rollout.state, fleet.rollout.reason) == (S.STOPPED, "TooManyFailing")
    unit = [fleet.rows[name] for name in ("a-0", "b-0")]
    assert state_of(unit) is not TargetState.PROVEN, "with another revision of b, a is proven no more"
    spec = fleet.quarantines[1]
    assert (spec.upstreams, spec.combinations) == ((), (QuarantinedCombination(upstreams=COMBINATION),))
    fleet.command(abort=1)
    for site in range(1, 3):
        fleet.seen[f"b-{site}"] = fleet.seen[f"b-{site}"]._replace(
            revision="v3", digest=f"b3-{site}", source="p/b@v3", upstream="p/b@v3"
        )
        fleet.seen[f"a-{site}"] = fleet.seen[f"a-{site}"]._replace(withdrawn=1)
    fleet.cover(spec).go()
    assert fleet.rows["a-1"].combination == ("p/a@v2", "p/b@v3")


def test_a_quarantined_combination_never_goes_again() -> None:
    fleet = TrainFleet().go().publish("a-0", good=False).command(abort=1)
    assert fleet.rollout.state is S.ABORTED
    fleet.seen |= {target: facts for target, facts in TrainFleet(sites=5).seen.items() if target[-1] in "34"}
    fleet.cover(*fleet.quarantines.values()).go()
    assert (fleet.rollout.state, fleet.ordered(Approve)) == (S.ABORTED, [])
    assert "quarantine q covers the combination" in fleet.rollout.train_message


def test_a_combination_that_is_quarantined_in_mid_train_is_not_finished() -> None:
    fleet = TrainFleet(IN_ORDER._replace(waves=ALL), sites=2).go().publish("a-0", good=None)
    fleet.cover(QuarantineSpec(combinations=(QuarantinedCombination(upstreams=COMBINATION),))).prove("a-0")
    assert fleet.ordered(Approve) == []
    assert fleet.states_at(1) == "cancelling planned"


def test_a_rollback_goes_in_reverse() -> None:
    """69: b is restored before a."""
    fleet = TrainFleet(BACK, sites=1).go()
    whole(fleet, 0).command(roll_back=1)
    assert fleet.ordered(Restore) == ["b-0"]
    fleet.change("b-0", published="r", published_digest="b1-0")
    assert fleet.ordered(Restore) == ["a-0"]
    fleet.change("a-0", published="r", published_digest="a1-0")
    assert (fleet.rollout.state, fleet.states_at(0)) == (S.ROLLED_BACK, "undone undone")


@pytest.mark.parametrize("member", ["a-0", "b-0"])
def test_if_one_member_cannot_be_restored_none_is(member: str) -> None:
    """68: it has no former revision."""
    fleet = TrainFleet(BACK, sites=1)
    fleet.seen[member] = fleet.seen[member]._replace(published="", published_digest="", published_source="")
    whole(fleet.go(), 0).command(roll_back=1)
    assert (fleet.rollout.state, fleet.states_at(0)) == (S.ROLLED_BACK, "stranded stranded")
    assert fleet.ordered(Restore) == []
    assert "a-0" in fleet.rollout.message


def test_a_member_that_the_server_does_not_restore_strands_those_before_it() -> None:
    fleet = TrainFleet(BACK, sites=1)
    whole(fleet.go(), 0).command(roll_back=1).change("b-0", unrestored=1)
    assert fleet.states_at(0) == "stranded stranded"
    other = TrainFleet(BACK, sites=1)
    whole(other.go(), 0).command(roll_back=1)
    other.change("b-0", published="r", published_digest="b1-0").change("a-0", unrestored=1)
    assert partial_words(other.rows.values()) == "train e0/a+b: a-0 is stranded, b-0 is undone"


def test_what_was_quarantined_together_is_not_restored_together() -> None:
    fleet = TrainFleet(BACK, sites=1)
    whole(fleet.go(), 0)
    for target in ("a-0", "b-0"):
        fleet.seen[target] = fleet.seen[target]._replace(banned=(("old", *FORMER), ("q", *COMBINATION)))
    fleet.is_lasting = False
    fleet.seen = {target: facts._replace(banned=(("old", *FORMER),)) for target, facts in fleet.seen.items()}
    fleet.cover = lambda *_: fleet  # type: ignore[method-assign]  # what a person has quarantined lasts
    fleet.command(roll_back=1)
    assert fleet.states_at(0) == "stranded stranded"


def test_a_new_revision_of_a_member_in_mid_train_does_not_go_with_the_old_ones() -> None:
    """66: only a new combination is planned, with the next attempt."""
    fleet = TrainFleet(IN_ORDER._replace(in_flight_max=1)).go()
    new = {"revision": "v3", "digest": "a3", "source": "p/a@v3", "upstream": "p/a@v3"}
    fleet.change("a-1", **new)
    assert fleet.states_at(1) == "left left"
    whole(whole(fleet, 0), 2)
    assert fleet.rollout.attempt == 2
    assert fleet.rows["a-1"].combination == ("p/a@v3", "p/b@v2")


# ------------------------------------------------------------ rehearsal and counts


def test_a_rehearsal_rides_too() -> None:
    fleet = TrainFleet(sites=2).settle_member("b-1")
    found = rehearse(fleet.rules, Standing(fleet.seen, evidence=fleet.evidence), NOW)
    assert [wave.approved for wave in found.waves] == [["a-0", "b-0"], ["a-1"]]
    assert found.rollout.state is S.COMPLETED


@pytest.mark.parametrize(
    ("states", "unit"),
    [
        ("planned planned", "planned"),
        ("left planned", "left"),
        ("ordered planned", "ordered"),
        ("proven planned", "ordered"),
        ("proven left", "ordered"),
        ("approved proven", "approved"),
        ("proven proven", "proven"),
        ("proven refused", "refused"),
        ("undone stranded", "stranded"),
        ("undone undone", "undone"),
        ("undone skipped", "undone"),
        ("gone gone", "gone"),
    ],
)
def test_a_unit_is_as_far_as_its_last_member(states: str, unit: str) -> None:
    rows = [
        Target(
            target=f"t{i}",
            revision="v",
            digest="d",
            attempt=1,
            position=i,
            wave=1,
            unit="u",
            part=i + 1,
            state=TargetState(state),
        )
        for i, state in enumerate(states.split())
    ]
    assert state_of(rows) == unit
