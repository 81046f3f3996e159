"""An attempt that fails or is rolled back: what it brought is quarantined first. Numbers are of scenarios."""

import json
from typing import Any

import msgspec
import pytest

from pvbus.core.api.quarantines import QuarantinedUpstream, QuarantineSpec
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.kernel.rolloutrows import Approve, Evidence, Isolate, Restore, TargetFacts
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.rollout import quarantining
from pvbus.core.promotion.rollout.commanding import commands_of
from tests.unit.core.promotion.rolling import KEY, Bench
from tests.unit.core.promotion.stepping import TWO, Fleet

S = RolloutState
V5, V6, V7 = (f"blueprints/web@v{number}" for number in (5, 6, 7))
BACK = Rules(TWO, rolls_back=True)
NAME = "web-1-1-uid-p"


def fleet_of(rules: Rules = BACK, *, source: str = V6, before: str = V5, targets: int = 3) -> Fleet:
    """Return a fleet whose quarantines last. source, before: its planned and published upstream revisions."""
    fleet = Fleet(rules, targets)
    for target, facts in fleet.seen.items():
        fleet.seen[target] = facts._replace(source=source, files="six", published_source=before)
    fleet.is_lasting = True
    return fleet


def refused(fleet: Fleet) -> Fleet:
    """Let the API server take no quarantine."""
    fleet.refusal = "quarantines is forbidden"
    return fleet


# ------------------------------------------------------------ blame


@pytest.mark.parametrize(
    ("source", "before", "upstreams", "contents"),
    [
        pytest.param(
            V6, V5, (QuarantinedUpstream(revision=V6, files="six", good=V5),), (), id="new upstream"
        ),
        pytest.param(V6, V6, (), ("d0",), id="21 a change of configuration alone"),
        pytest.param(V6, "", (QuarantinedUpstream(revision=V6, files="six"),), (), id="a first revision"),
        pytest.param("", "", (), ("d0",), id="no upstream is known"),
    ],
)
def test_what_an_attempt_is_blamed_for(
    source: str, before: str, upstreams: tuple[QuarantinedUpstream, ...], contents: tuple[str, ...]
) -> None:
    fleet = fleet_of(source=source, before=before).go().publish("t0", good=False)
    assert fleet.quarantines[1] == QuarantineSpec(
        upstreams=upstreams,
        contents=contents,
        attempt=1,
        reason="TooManyFailing",
        message="1 target fails, 0 may",
    )


@pytest.mark.parametrize("is_good", [True, False])
def test_a_joiner_that_fails_blames_no_upstream_revision_that_others_are_good_with(*, is_good: bool) -> None:
    """The fleet runs v6 and is good: what fails on the joiner is its own."""
    fleet = fleet_of(before="", targets=1)
    fleet.seen["old"] = TargetFacts(
        published="v2", published_digest="d", published_source=V6, is_current=True
    )
    fleet.evidence["old"] = Evidence("v2", "d", 1, is_good)
    fleet.go().publish("t0", good=False)
    assert bool(fleet.quarantines[1].upstreams) is not is_good
    assert fleet.quarantines[1].contents == (("d0",) if is_good else ())


def test_the_last_good_revision_of_most_targets_is_named() -> None:
    fleet = fleet_of(Rules((WaveRules(),), rolls_back=True))
    fleet.seen["t0"] = fleet.seen["t0"]._replace(published_source="blueprints/web@v4")
    fleet.go().publish("t0", "t1", "t2").command(roll_back=1)
    assert [each.good for each in fleet.quarantines[1].upstreams] == [V5]


def test_what_is_blamed_stays_the_same_until_it_is_quarantined() -> None:
    fleet = refused(fleet_of(before=V6)).go().publish("t0", good=False)
    blamed = [each.spec.contents for each in fleet.taken.actions if isinstance(each, Isolate)]
    fleet.change("t0", published="v9", published_digest="by hand")
    assert [each.spec.contents for each in fleet.taken.actions if isinstance(each, Isolate)] == blamed
    fleet.refusal = ""
    assert fleet.go().quarantines[1].contents == ("d0",)
    assert fleet.states.startswith("gone"), "what was seen meanwhile counts then"


# ------------------------------------------------------------ order of events


@pytest.mark.parametrize("rules", [BACK, Rules(TWO)], ids=["rolls back", "stops"])
def test_a_quarantine_is_there_and_seen_before_anything_is_undone(rules: Rules) -> None:
    """14: a joiner that appears in the rollback finds it."""
    fleet = fleet_of(rules).go()
    fleet.refusal = None
    fleet.publish("t0", good=False)
    assert (fleet.rollout.state, fleet.ordered(Restore)) == (S.ISOLATING, [])
    fleet.refusal, fleet.is_lasting = "", True
    covering, fleet.cover = fleet.cover, lambda *_: fleet  # type: ignore[method-assign]  # promote is late
    assert (fleet.go().rollout.state, list(fleet.quarantines)) == (S.ISOLATING, [1])
    assert fleet.go(20).rollout.state is S.ISOLATING
    fleet.isolated = None
    covering(*fleet.quarantines.values())
    fleet.go()
    assert fleet.rollout.state is (S.ROLLING_BACK if rules.rolls_back else S.STOPPED)
    assert fleet.ordered(Restore) == (["t0"] if rules.rolls_back else [])
    fleet.seen["joiner"] = fleet.seen["t1"]._replace(revision="v2", digest="new")
    assert "joiner" not in fleet.go().rows


def test_a_quarantine_that_a_person_ends_at_once_holds_nothing_up() -> None:
    fleet = fleet_of()
    fleet.is_lasting = False
    fleet.go().publish("t0", good=False)
    assert (fleet.rollout.state, fleet.ordered(Restore)) == (S.ROLLING_BACK, ["t0"])


def test_a_failure_that_is_aborted_stays_quarantined() -> None:
    """15: a joiner gets nothing of it."""
    fleet = fleet_of(Rules(TWO)).go().publish("t0", good=False)
    assert (fleet.rollout.state, fleet.rollout.isolations) == (S.STOPPED, 1)
    fleet.command(abort=1)
    fleet.seen["t3"] = fleet.seen["t1"]._replace(digest="d3")
    fleet.cover(*fleet.quarantines.values()).go()
    assert (fleet.rollout.state, fleet.rollout.attempt, "t3" in fleet.rows) == (S.ABORTED, 1, False)


def test_a_target_whose_bad_revision_somebody_has_hidden_is_stranded_and_not_restored() -> None:
    """Release finds that revision and refuses, while the variant's last one looks like the good one again."""
    fleet = fleet_of(BACK).go().publish("t0", good=False)
    assert fleet.ordered(Restore) == ["t0"]
    good = fleet.rows["t0"]
    fleet.change("t0", published=good.good, published_digest=good.good_digest, unrestored=1)
    assert (fleet.rows["t0"].state.value, fleet.rollout.state) == ("stranded", S.ROLLED_BACK)


def test_a_wave_that_is_too_slow_for_its_timeout_has_failed() -> None:
    """16: the policy says how long its wave may take."""
    fleet = fleet_of(Rules((WaveRules(timeout_seconds=50),), look_seconds=100)).go().publish("t0", good=None)
    fleet.go(60)
    assert (fleet.rollout.state, fleet.rollout.reason) == (S.STOPPED, "WaveTimeout")
    assert [each.revision for each in fleet.quarantines[1].upstreams] == [V6]


def test_what_is_proven_keeps_its_revision_and_nobody_else_gets_it() -> None:
    """22: it runs what is quarantined, until a person rolls back."""
    rules = Rules((WaveRules(0, 1), WaveRules(0, 2), WaveRules()))
    fleet = fleet_of(rules, targets=4).go().publish("t0").publish("t1", good=False)
    assert fleet.states == "proven failed left left"
    assert (fleet.seen["t0"].runs, fleet.ordered(Approve)) == ("q", [])
    fleet.command(roll_back=1)
    assert fleet.ordered(Restore) == ["t0"]


def test_a_rollback_of_a_stop_writes_no_second_quarantine() -> None:
    fleet = fleet_of(Rules(TWO)).go().publish("t0", good=False).command(roll_back=1)
    assert (fleet.rollout.state, list(fleet.quarantines)) == (S.ROLLING_BACK, [1])


def test_a_completed_attempt_that_is_rolled_back_is_quarantined_first() -> None:
    fleet = fleet_of().go().publish("t0").publish("t1", "t2")
    assert fleet.rollout.state is S.COMPLETED
    refused(fleet).command(roll_back=1)
    assert (fleet.rollout.state, fleet.ordered(Restore)) == (S.ISOLATING, [])
    fleet.refusal = ""
    assert fleet.go().ordered(Restore) == ["t0"]


def test_what_nobody_got_is_not_blamed() -> None:
    """A person rolls back before the first wave: there is nothing to quarantine, and nothing to undo."""
    fleet = fleet_of(BACK._replace(needs_start=True)).go().command(roll_back=1)
    assert (fleet.rollout.state, fleet.quarantines) == (S.ROLLED_BACK, {})


# ------------------------------------------------------------ people


def test_resume_waits_until_nothing_is_quarantined_any_more() -> None:
    fleet = fleet_of(Rules(TWO)).go().publish("t0", good=False).command(resume=(1, 1))
    assert (fleet.rollout.state, fleet.ordered(Approve)) == (S.STOPPED, [])
    fleet.is_lasting = False
    fleet.cover().go()
    assert (fleet.rollout.state, fleet.ordered(Approve)) == (S.ROLLING, ["t1", "t2"])


def test_a_second_stop_writes_a_second_quarantine() -> None:
    fleet = fleet_of(Rules((WaveRules(0, 1), WaveRules(0, 2), WaveRules()))).go().publish("t0", good=False)
    fleet.is_lasting = False
    fleet.cover().command(resume=(1, 1)).publish("t1", good=False)
    assert (fleet.rollout.stops, fleet.rollout.isolations) == (2, 2)


def test_a_refused_target_stays_refused_while_it_is_quarantined() -> None:
    """Resuming accepts it: withdrawn, it would be tried again in another attempt."""
    fleet = fleet_of(Rules(TWO)._replace(canaries=("t0",))).go().change("t0", refused=1)
    assert (fleet.rollout.state, fleet.states.split()[0]) == (S.STOPPED, "refused")
    assert fleet.go().states.split()[0] == "refused"
    fleet.is_lasting = False
    fleet.cover().command(resume=(1, 1))
    assert fleet.ordered(Approve) == ["t1", "t2"]


@pytest.mark.parametrize(
    ("commands", "state"),
    [
        pytest.param({"roll_back": 1}, S.ISOLATING, id="a rollback waits for the quarantine"),
        pytest.param(
            {"roll_back": 1, "roll_back_reason": "sound"}, S.ROLLING_BACK, id="29 a rollback without"
        ),
        pytest.param({"abort": 1}, S.ISOLATING, id="what failed is quarantined before an abort"),
        pytest.param({"abort": 1, "abort_reason": "sound"}, S.ABORTED, id="an abort without"),
    ],
)
def test_a_quarantine_that_the_server_refuses_holds_all_but_what_a_person_spares(
    commands: dict[str, Any], state: RolloutState
) -> None:
    fleet = refused(fleet_of()).go().publish("t0", good=False)
    assert (fleet.rollout.state, fleet.rollout.refusal) == (S.ISOLATING, "quarantines is forbidden")
    assert fleet.taken.wait_seconds == 10.0
    fleet.command(**commands)
    assert fleet.rollout.state is state
    assert fleet.rollout.spared == (commands.get("roll_back_reason") or commands.get("abort_reason") or "")


def test_a_person_rolls_back_a_sound_revision_without_a_quarantine() -> None:
    """29: its reason is in the history."""
    bench = Bench().go().publish("t0").go()
    bench.annotate(roll_back="1: the site is not ready").go()
    assert (bench.status.phase, bench.quarantines) == ("RollingBack", {})
    assert bench.status.history[-1].not_quarantined == "the site is not ready"
    assert bench.status.history[-1].quarantines == ()


@pytest.mark.parametrize("name", ["abort", "roll-back"])
def test_an_order_may_say_why_nothing_is_quarantined(name: str) -> None:
    commands, problems = commands_of({f"promotion.pvbus.dev/{name}": "3: it is sound"})
    field = name.replace("-", "_")
    assert (getattr(commands, field), getattr(commands, f"{field}_reason")) == (3, "it is sound")
    assert problems == []


# ------------------------------------------------------------ the service


def failed(**spec: Any) -> Bench:
    """Return the service with a canary that fails, which brought v6."""
    bench = Bench(budgets={"onFailure": "RollBack"}, **spec)
    bench.is_lasting = True
    for target in ("t0", "t1", "t2"):
        bench.candidate(target, source=V6, files="six", published_source=V5)
    return bench.go().publish("t0", good=False).go()


@pytest.mark.parametrize(
    ("revisions", "sets"), [({"all": True}, None), ({"set": "web"}, ["web"])], ids=["namespace", "set"]
)
def test_the_quarantine_has_the_scope_of_its_policy(revisions: Any, sets: Any) -> None:
    """28: written once, it keeps that scope."""
    bench = failed(revisions=revisions)
    assert list(bench.quarantines) == [NAME]
    body = bench.quarantines[NAME]
    assert body["metadata"] == {"namespace": "default", "name": NAME}
    assert body["spec"].get("sets") == sets
    assert body["spec"]["upstreams"] == [{"revision": V6, "files": "six", "good": V5}]
    assert (body["spec"]["policy"], body["spec"]["attempt"]) == ("web", 1)
    before = json.dumps(body)
    bench.edit(revisions={"set": "other"}).cover("t0").go()
    assert json.dumps(bench.quarantines[NAME]) == before


def test_the_service_waits_until_promote_sees_the_quarantine_and_then_rolls_back() -> None:
    bench = failed()
    assert (bench.status.phase, bench.orders) == ("Isolating", {})
    going = bench.condition("Progressing")
    assert (going.status, going.reason) == ("True", "Isolating")
    assert f"quarantine default/{NAME}" in going.message
    bench.cover("t0").go()
    assert (bench.status.phase, bench.orders) == ("RollingBack", {"t0": "restore v1 1 uid-t0"})
    assert bench.status.history[-1].quarantines == (NAME,)


def test_a_killed_service_finds_the_quarantine_that_it_has_written() -> None:
    bench = failed()
    bench.restart().go()
    bench.cover("t0").go()
    assert (bench.status.phase, list(bench.quarantines)) == ("RollingBack", [NAME])


def test_a_quarantine_that_is_refused_is_reported_with_who_must_act() -> None:
    bench = Bench(budgets={"onFailure": "RollBack"}).go()
    bench.refusal = 'quarantines is forbidden: User "rollout" cannot create'
    bench.publish("t0", good=False).go()
    going = bench.condition("Progressing")
    assert (bench.status.phase, going.status, going.reason) == ("Isolating", "False", "QuarantineRefused")
    for words in (
        'User "rollout" cannot create',
        "Let the account of rollout create quarantines",
        f"pvbus rollout roll-back {KEY} --no-quarantine --reason TEXT",
    ):
        assert words in going.message
    bench.go(60)
    assert bench.orders == {}
    bench.refusal = ""
    assert bench.go(20).status.phase == "RollingBack"


def test_who_runs_what_is_quarantined_is_counted_and_named() -> None:
    """22, 30: also where a person has published it."""
    bench = Bench(2).candidate("t0", runs="web-9-1").go()
    assert bench.status.runs_quarantined == 1
    runs = bench.condition("RunsQuarantined")
    assert (runs.status, "t0 (web-9-1)" in runs.message) == ("True", True)
    bench.candidate("t0", runs="").go()
    assert (bench.status.runs_quarantined, bench.condition("RunsQuarantined").status) == (0, "False")


def test_without_anything_quarantined_no_condition_speaks_of_it() -> None:
    assert all(each.type != "RunsQuarantined" for each in Bench(1).go().status.conditions)


def test_many_contents_are_several_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object above 1.5 MB would be refused, and the rollback would never begin."""
    monkeypatch.setattr(quarantining, "CONTENTS_MAX", 2)
    bench = Bench(waves=[{"percent": 100}], budgets={"onFailure": "RollBack", "maxFailing": 2}).go()
    bench.publish("t0", "t1", "t2", good=False).go()
    assert {name: body["spec"]["contents"] for name, body in bench.quarantines.items()} == {
        NAME: ["d0", "d1"],
        f"{NAME}-1": ["d2"],
    }


def test_a_policy_that_is_made_again_writes_quarantines_of_other_names() -> None:
    """28: the name of the first one is used again."""
    first = msgspec.convert(Bench(0).policy, RolloutPolicy)
    second = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, uid="another"))
    long = msgspec.structs.replace(first.metadata, name="w" * 250)
    names = [quarantining.quarantine_name(each, 1, 1) for each in (first, second)]
    assert names == [NAME, "web-1-1-another"]
    assert len(quarantining.quarantine_name(msgspec.structs.replace(first, metadata=long), 99_999, 99)) < 250
