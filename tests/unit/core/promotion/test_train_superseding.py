"""Scenario 66: only a new combination supersedes a train; until then its proposals stay as planned."""

from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from tests.unit.core.promotion.training import IN_ORDER, TRAIN, TrainFleet

NEWER = ("p/a@v3", "p/b@v3")
LISTED = IN_ORDER._replace(train=TRAIN._replace(upstreams=("p/a@v2", "p/b@v2")))


def phase(fleet: TrainFleet) -> str:
    return fleet.rollout.state.value


def follow(fleet: TrainFleet, *members: str, sites: int = 3) -> TrainFleet:
    """Let the variants of members follow v3. Their planned proposals are frozen, so promote leaves them."""
    for site in range(sites):
        for member in members:
            row = fleet.rows[f"{member}-{site}"]
            assert row.is_frozen, row.target
            facts = fleet.seen[row.target]
            fleet.seen[row.target] = facts._replace(upstream=f"p/{member}@v3", is_current=False)
    fleet.go()
    return fleet


def draft(fleet: TrainFleet, *, sites: int = 3) -> TrainFleet:
    """Let promote propose what the variants follow, of those whose proposal is not frozen."""
    for site in range(sites):
        for member in "ab":
            name = f"{member}-{site}"
            facts = fleet.seen[name]
            if not fleet.rows[name].is_frozen and facts.upstream.endswith("v3"):
                fleet.seen[name] = facts._replace(
                    revision="v3", digest=f"{member}3-{site}", source=facts.upstream, is_proposed=True
                )
    fleet.go()
    return fleet


def test_one_member_alone_supersedes_nothing_and_the_planned_proposals_stay() -> None:
    fleet = follow(TrainFleet().go(), "a")
    assert (fleet.rollout.state, fleet.rollout.newer) == (RolloutState.ROLLING, ("p/a@v3",))
    fleet.publish("a-0").publish("b-0")
    assert (fleet.rollout.wave, fleet.states_at(1)) == (2, "ordered planned"), "it goes on as planned"


def test_a_whole_new_combination_supersedes_and_goes_from_the_first_wave() -> None:
    fleet = TrainFleet().go()
    fleet.publish("a-0").publish("b-0")
    for site in (1, 2):
        fleet.publish(f"a-{site}").publish(f"b-{site}")
    assert phase(fleet) == RolloutState.COMPLETED
    fleet = TrainFleet(IN_ORDER._replace(needs_start=True)).go()
    follow(fleet, "a", "b")
    assert (fleet.rollout.state, fleet.rollout.superseded) == (RolloutState.SUPERSEDED, 1)
    assert "p/a@v3, p/b@v3 superseded it" in fleet.rollout.message
    draft(fleet)
    assert (fleet.rollout.attempt, fleet.rollout.wave) == (2, 1)
    assert {row.combination for row in fleet.rows.values()} == {NEWER}


def test_a_unit_that_has_begun_is_made_whole_first_and_none_begins_meanwhile() -> None:
    fleet = TrainFleet(Rules((WaveRules(),), train=TRAIN, in_flight_max=2)).go()
    fleet.publish("a-0")
    assert [fleet.states_at(site) for site in range(3)] == [
        "proven ordered",
        "ordered planned",
        "planned planned",
    ]
    follow(fleet, "a", "b")
    assert phase(fleet) == RolloutState.ROLLING
    fleet.publish("b-0")
    assert fleet.states_at(2) == "planned planned", "no other unit begins"
    fleet.publish("a-1")
    assert fleet.states_at(1) == "proven ordered"
    fleet.publish("b-1")
    assert phase(fleet) == RolloutState.SUPERSEDED
    assert [fleet.states_at(site) for site in range(3)] == ["proven proven", "proven proven", "left left"]


def test_a_failure_comes_before_the_new_combination() -> None:
    fleet = TrainFleet(IN_ORDER._replace(rolls_back=True)).go()
    fleet.publish("a-0", good=False)
    follow_all = [fleet.seen[name] for name in fleet.seen]
    assert follow_all
    assert fleet.rollout.state in (RolloutState.ISOLATING, RolloutState.ROLLING_BACK)
    assert fleet.rollout.superseded == 0


def test_the_policy_says_which_combination_is_new() -> None:
    """Where it names revisions, no other combination supersedes, though every member has a newer one."""
    fleet = TrainFleet(LISTED._replace(needs_start=True)).go()
    follow(fleet, "a", "b")
    assert phase(fleet) == RolloutState.ROLLING
    fleet.rules = fleet.rules._replace(train=TRAIN._replace(upstreams=("p/a@v3", "p/b@v4")))
    fleet.go()
    assert phase(fleet) == RolloutState.ROLLING
    fleet.rules = fleet.rules._replace(train=TRAIN._replace(upstreams=NEWER))
    fleet.go()
    assert phase(fleet) == RolloutState.SUPERSEDED


def test_one_new_member_is_a_new_combination_where_the_policy_names_it() -> None:
    fleet = TrainFleet(LISTED._replace(needs_start=True)).go()
    follow(fleet, "a")
    assert phase(fleet) == RolloutState.ROLLING
    fleet.rules = fleet.rules._replace(train=TRAIN._replace(upstreams=("p/a@v3", "p/b@v2")))
    fleet.go()
    assert phase(fleet) == RolloutState.SUPERSEDED


def test_a_train_that_finishes_is_not_superseded() -> None:
    fleet = TrainFleet(IN_ORDER._replace(finishes=True)).go()
    follow(fleet, "a", "b")
    fleet.publish("a-0").publish("b-0")
    assert (fleet.rollout.state, fleet.states_at(1)) == (RolloutState.ROLLING, "ordered planned")
