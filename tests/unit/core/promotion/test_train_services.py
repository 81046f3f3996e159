"""Trains through the services: what promote says of members, rollout orders, and release looks at."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.core.api.quarantines import QuarantinedCombination, QuarantineSpec
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.kernel.promotionrows import CandidateRow
from pvbus.core.kernel.records import APPROVALS
from pvbus.core.promotion.protocol.quarantines import Content, covers
from pvbus.core.promotion.protocol.rules import rules_of
from pvbus.core.promotion.protocol.selection import Package, conditions_of, select
from pvbus.core.promotion.protocol.validation import validate_policy
from pvbus.core.promotion.rollout.quarantining import parts_of
from tests.unit.core.promotion.approving import NEW, V2
from tests.unit.core.promotion.promoting import draft, quarantine
from tests.unit.core.promotion.rolling import NOW, Bench
from tests.unit.core.promotion.test_candidates import policy, proposal, published, rows, world_of
from tests.unit.core.promotion.test_quarantines import V6, follower, made_of, ordered, upstream

ROOT = Path(__file__).resolve().parents[4]
DB = "blueprints/db@v3"
TOGETHER = QuarantineSpec(combinations=(QuarantinedCombination(upstreams=(V6, DB)),), sets=("web", "db"))
TRAIN = {"mode": "InOrder", "members": [{"set": "db"}, {"set": "web"}], "annotation": "example.com/release"}
LASTING: dict[str, Any] = {"combinations": [{"upstreams": [V6, DB]}]}


# ------------------------------------------------------------ quarantines


@pytest.mark.parametrize(
    ("content", "is_covered"),
    [
        pytest.param(Content("web", V6, combination=(DB, V6)), True, id="the combination"),
        pytest.param(Content("web", V6, combination=(DB, V6, "blueprints/c@v1")), True, id="and more"),
        pytest.param(Content("web", V6, combination=("blueprints/db@v4", V6)), False, id="65 with another B"),
        pytest.param(Content("web", V6), False, id="alone"),
        pytest.param(Content("c", V6, combination=(DB, V6)), False, id="another set"),
    ],
)
def test_a_quarantined_combination_covers_its_revisions_together(content: Content, is_covered: bool) -> None:
    assert covers(TOGETHER, content) is is_covered


def test_the_scope_of_a_quarantined_combination_is_the_sets_of_the_train() -> None:
    spec = QuarantineSpec(combinations=TOGETHER.combinations)
    (part,) = parts_of(spec, msgspec.convert(policy(train=TRAIN), RolloutPolicy))
    assert part.sets == ("db", "web")


@pytest.mark.parametrize(("combination", "is_approved"), [((DB, V6), False), ((V6,), True)])
def test_release_looks_at_the_combination_of_an_order(
    combination: tuple[str, ...], is_approved: bool
) -> None:
    world = ordered(**LASTING)
    world.order("approve", V2, NEW, combination=combination)
    world.run()
    assert (world.outcomes != ()) is is_approved


# ------------------------------------------------------------ promote


def member_of(*quarantines: Any, **spec: Any) -> CandidateRow:
    """Return the row of a member that has v7 proposed and runs v6."""
    old = made_of(published(), "web/v6")
    world = world_of(policy(**spec), revision=made_of(proposal(), "web/v7"), of=follower(7), old=[old])
    for number, release in ((6, "1.4"), (7, "1.5")):
        revision = upstream(number)
        revision["metadata"]["annotations"] = {"example.com/release": release}
        world.server.published.append(revision)
        world.server.files_of[revision["metadata"]["name"]] = {"a.yaml": f"{number}"}
    world.quarantines = list(quarantines)
    world.settle()
    return rows(world)["web"]


def test_a_member_says_where_it_is_in_the_train_and_what_it_was_verified_with() -> None:
    row = member_of(train=TRAIN)
    assert (row.unit, row.part, row.release, row.published_release) == ("edge/db+web", 2, "1.5", "1.4")
    labelled = member_of(train=TRAIN | {"label": "site"})
    assert (labelled.unit, labelled.part, labelled.is_proposed) == ("", 2, True)
    other = member_of(train=TRAIN | {"members": [{"set": "a"}, {"set": "b"}]})
    assert (other.unit, other.part, other.release) == ("", 0, "")


def test_a_member_knows_the_quarantined_combinations_of_its_package_and_without_a_train_none_goes() -> None:
    q = quarantine("q1", combinations=[{"upstreams": ["blueprints/web@v7", DB]}])
    row = member_of(q, train=TRAIN)
    assert (row.is_proposed, row.banned) == (True, (("q1", "blueprints/web@v7", DB),))
    alone = member_of(q)
    assert (alone.is_proposed, alone.reason, alone.banned) == (False, "Quarantined", ())
    assert "a policy with `train` may approve it with others" in alone.message
    assert member_of(quarantine("q1", **LASTING)).is_proposed  # of the one that it runs


def test_a_train_has_its_members_whatever_the_rank_of_another_policy_is() -> None:
    """69: the other says Overlapping."""
    train, other = policy("a", train=TRAIN), policy("b", priority=9)
    for policies in ((train, other), (other, train)):
        found = rows(world_of(*policies, revision=proposal(), of=follower()))
        assert (found["a"].winner, found["a"].part, found["b"].winner) == ("", 2, "a")
    package = Package("web-edge", "edge", draft(lifecycle="Proposed"), None, {}, set_name="web")
    read = [msgspec.convert(each, RolloutPolicy) for each in (other, train)]
    loser, winner = select(read, [package], NOW)
    assert (list(winner.seen), loser.lost) == (["web-edge"], {"web-edge": "a"})
    overlap = next(each for each in conditions_of(loser, NOW) if each.type == "Overlapping")
    assert (overlap.status, "a train has its members" in overlap.message) == ("True", True)


# ------------------------------------------------------------ rollout


def bench_of(sites: int = 2, **train: Any) -> Bench:
    """Return a policy with the train a, b over sites, each with a proposal of both."""
    members = {"members": [{"set": "a"}, {"set": "b"}]}
    bench = Bench(0, train={"mode": "InOrder", **members, **train}, budgets={"maxFailing": 1})
    for site in range(sites):
        for part, member in enumerate("ab", 1):
            bench.candidate(
                f"{member}-{site}",
                revision="v2",
                digest=f"{member}2",
                is_proposed=True,
                published="v1",
                published_digest=f"{member}1",
                published_source=f"p/{member}@v1",
                source=f"p/{member}@v2",
                unit=f"s{site}/a+b",
                part=part,
            )
    return bench


def test_orders_name_the_combination_and_the_status_counts_units() -> None:
    bench = bench_of().go()
    assert bench.ordered == {"a-0": "approve v2 1 uid-a-0"}
    assert json.loads(bench.rows[APPROVALS, "default/a-0|web"])["combination"] == ["p/a@v2", "p/b@v2"]
    assert bench.status.targets is not None
    assert (bench.status.targets.total, bench.status.targets.in_flight) == (2, 1)
    assert bench.status.history[-1].combinations == ("p/a@v2 + p/b@v2",)
    bench.publish("a-0").go()
    assert bench.ordered == {"b-0": "approve v2 1 uid-b-0"}
    bench.restart().publish("b-0").go()
    assert bench.ordered == {"a-1": "approve v2 1 uid-a-1"}


def test_a_partial_train_is_a_condition_until_it_is_rolled_back() -> None:
    bench = bench_of(partialTimeout="10m").go().publish("a-0").go()
    bench.candidate("b-0", refused=1, failure="it is refused").go()
    partial = bench.condition("TrainPartial")
    assert (partial.status, partial.message) == ("True", "train s0/a+b: a-0 is proven, b-0 is refused")
    bench.observe()
    bench.go(700)
    bench.observe()
    assert (bench.status.phase, bench.status.history[-1].reason) == ("Stopped", "TrainPartial")
    assert bench.ordered["a-0"] == "restore v1 1 uid-a-0"
    bench.candidate("a-0", published="r", published_digest="a1").go()
    assert bench.condition("TrainPartial").status == "False"
    assert bench.targets["a-0"] == "undone"


def test_a_whole_train_that_runs_a_quarantined_combination_is_counted_until_a_member_is_restored() -> None:
    bench = bench_of(1).go().publish("a-0").go().publish("b-0").go()
    for target in ("a-0", "b-0"):
        bench.candidate(target, banned=(("q1", "p/a@v2", "p/b@v2"),))
    bench.go()
    assert bench.status.runs_quarantined == 2
    assert "a-0 (q1); b-0 (q1)" in bench.condition("RunsQuarantined").message
    bench.candidate("b-0", published="r", published_digest="b1").go()
    assert bench.status.runs_quarantined == 0


def test_a_train_that_waits_says_what_it_lacks() -> None:
    """Also the member's own words, as promote has them."""
    bench = bench_of(1).candidate("b-0", is_proposed=False, reason="OnHold", message="it is on hold").go()
    progress = bench.condition("Progressing")
    assert (progress.status, progress.reason) == ("False", "TrainIncomplete")
    assert progress.message == "train s0/a+b waits for member b-0: OnHold: it is on hold"
    bench.candidate("b-0", is_proposed=True, reason="", message="").go()
    assert bench.ordered == {"a-0": "approve v2 1 uid-a-0"}


def test_the_example_of_the_documents_is_a_train_that_waits_for_its_combination() -> None:
    chapter = (ROOT / "docs" / "rollouts.md").read_text().partition("\n## Trains\n")[2]
    read = yaml.safe_load(chapter.partition("```yaml\n")[2].partition("```")[0])
    spec = msgspec.convert(read, RolloutPolicy).spec
    assert validate_policy(spec) == []
    train = rules_of(spec).train
    assert train is not None
    assert (train.sets, train.upstreams) == (("schema", "web"), ("blueprints/schema@v6", "blueprints/web@v9"))
    assert (train.is_together, train.skips_absent, train.partial_seconds) == (False, False, 3600)
