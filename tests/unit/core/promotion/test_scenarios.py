"""Scenarios of rollouts that are no other file's subject: joiners, closed times, stops, a lost bus."""

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.core.api.quarantines import Quarantine, QuarantinedUpstream, QuarantineSpec
from pvbus.core.api.rollouts import DenyWindow, RolloutPolicySpec
from pvbus.core.api.stops import StopEntry
from pvbus.core.kernel.keys import PROPOSED_CONTENT
from pvbus.core.kernel.records import POLICIES
from pvbus.core.kernel.rolloutrows import Approve, Evidence, Restore, TargetFacts
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.quarantines import refusal_of
from pvbus.core.promotion.protocol.rules import Rules, WaveRules, rules_of
from pvbus.core.promotion.protocol.windows import compiled
from pvbus.core.promotion.rollout.sightings import LOOK_SECONDS
from tests.unit.core.promotion.promoting import PromoteWorld, draft, quarantine, stop, variant
from tests.unit.core.promotion.rolling import Bench
from tests.unit.core.promotion.stepping import TWO, Fleet
from tests.unit.core.promotion.test_candidates import DIGEST, policy, rows
from tests.unit.core.promotion.test_isolating import BACK, V6, fleet_of
from tests.unit.core.promotion.test_quarantines import V5, V7, follower, made_of
from tests.unit.core.promotion.test_rollout_looks import OLD, WEAK, Hub, application
from tests.unit.core.promotion.test_stops import STOP_KEY
from tests.unit.core.promotion.test_superseding import BEHIND

S = RolloutState
ALWAYS = compiled(DenyWindow(first_date="1970-01-01", last_date="2100-01-01"))
CANARY = Rules(TWO, canaries=("t0",))
HALF_AN_HOUR = 1800
STOPPED = StopEntry(name="1", reason="payments are down", by="ann")


# ------------------------------------------------------------ joiners


def joined(*, is_good: bool) -> Fleet:
    """Return a fleet that runs v2 everywhere, which two joiners are to get. is_good: of its canary."""
    fleet = Fleet(CANARY).go().publish("t0").publish("t1", "t2")
    assert fleet.rollout.state is S.COMPLETED
    if not is_good:
        fleet.evidence["t0"] = Evidence("v2", "d0", 1, False)
    for joiner in ("j0", "j1"):
        fleet.seen[joiner] = TargetFacts("v2", f"d-{joiner}", True)
    return fleet.go()


def test_a_joiner_of_a_fleet_that_runs_the_revision_goes_in_waves_of_its_own() -> None:
    """Its canary is not proposed, and counts by its evidence."""
    fleet = joined(is_good=True)
    assert (fleet.rollout.attempt, fleet.ordered(Approve)) == (2, ["j0"])
    assert fleet.publish("j0").ordered(Approve) == ["j1"]
    assert fleet.publish("j1").rollout.state is S.COMPLETED


def test_a_joiner_waits_while_the_canary_that_runs_the_revision_is_not_good() -> None:
    fleet = joined(is_good=False)
    assert (fleet.rollout.attempt, fleet.rollout.canary_reason) == (1, "CanaryNotReady")
    fleet.evidence["t0"] = Evidence("v2", "d0", 1, True)
    assert fleet.go().ordered(Approve) == ["j0"]


# ------------------------------------------------------------ closed times


def test_a_denied_time_that_begins_in_a_wave_holds_what_is_not_ordered_and_no_clock() -> None:
    """What is approved is proven on, no timeout runs, and the hold time goes on."""
    waves = (WaveRules(0, 2, timeout_seconds=100, hold_seconds=50), WaveRules())
    fleet = Fleet(Rules(waves, in_flight_max=1)).go()
    open_rules = fleet.rules
    fleet.rules = Rules(tuple(wave._replace(denied=(ALWAYS,)) for wave in waves), in_flight_max=1)
    fleet.publish("t0")
    assert (fleet.states, fleet.ordered(Approve)) == ("proven planned planned", [])
    for _ in range(10):
        fleet.go(60)
    assert fleet.rollout.state is S.ROLLING
    fleet.rules = open_rules
    fleet.go().publish("t1")
    fleet.rules = Rules(tuple(wave._replace(denied=(ALWAYS,)) for wave in waves), in_flight_max=1)
    assert (fleet.rollout.state, fleet.rollout.wave) == (S.HOLDING, 1)
    assert fleet.go(50).rollout.wave == 2
    assert fleet.ordered(Approve) == []


def test_a_rollback_goes_on_in_a_denied_time() -> None:
    closed = tuple(wave._replace(denied=(ALWAYS,)) for wave in TWO)
    fleet = Fleet(BACK).go().publish("t0").publish("t1", "t2")
    fleet.rules = BACK._replace(waves=closed)
    assert fleet.command(roll_back=1).ordered(Restore) == ["t0"]
    fleet.change("t0", published="back", published_digest="old0")
    assert fleet.ordered(Restore) == ["t1", "t2"]


def test_an_approval_that_waits_for_a_window_says_when_it_opens_and_what_passes_a_denied_time() -> None:
    window = {"days": ["Thu"], "start": "09:00", "end": "10:00"}
    going = Bench(windows=[window]).go().condition("Progressing")
    assert (going.status, going.reason) == ("False", "OutsideWindows")
    assert "the next time window opens at 1970-01-15T09:00:00Z" in going.message
    denied = {"firstDate": "1970-01-01", "lastDate": "1970-02-01"}
    bench = Bench(denyWindows=[denied]).go()
    assert (bench.condition("Progressing").reason, bench.orders) == ("OutsideWindows", {})
    assert (
        "pvbus rollout promote default/web --reason TEXT passes it" in bench.condition("Progressing").message
    )
    bench.annotate(promote="1: the site is down").go()
    assert bench.orders == {"t0": "approve v2 1 uid-t0"}
    assert "promoted whatever the time: the site is down" in bench.condition("Progressing").message


# ------------------------------------------------------------ stops and quarantines


def stopped(bench: Bench, *entries: StopEntry) -> Bench:
    bench.write(POLICIES, STOP_KEY, msgspec.json.encode(stop(*entries)))
    return bench


def test_what_fails_while_all_is_stopped_is_quarantined_and_its_rollback_waits() -> None:
    bench = Bench(budgets={"onFailure": "RollBack"}).go()
    stopped(bench.publish("t0", good=False), STOPPED).go()
    assert len(bench.quarantines) == 1
    assert (bench.status.phase, bench.ordered) == ("RollingBack", {})
    assert bench.condition("Progressing").reason == "FleetStopped"
    stopped(bench).go()
    assert bench.ordered == {"t0": "restore v1 1 uid-t0"}


def test_time_in_which_all_is_stopped_strands_no_target_of_a_rollback() -> None:
    bench = Bench(1).go().publish("t0").go().annotate(roll_back="1: it is too slow").go()
    stopped(bench, STOPPED).go(HALF_AN_HOUR * 2)
    assert bench.targets["t0"] == "undoing"
    for _ in range(HALF_AN_HOUR // 60 + 2):
        stopped(bench).go(60)
    assert bench.targets["t0"] == "stranded"


@pytest.mark.parametrize("value", ["1", "1: it is urgent"])
def test_promote_passes_no_stop(value: str) -> None:
    bench = stopped(Bench(1, windows=[{"start": "00:00", "end": "00:01"}]).go(), STOPPED)
    bench.annotate(promote=value).go()
    assert (bench.orders, bench.condition("Progressing").reason) == ({}, "FleetStopped")
    stopped(bench).go()
    assert bench.orders == {"t0": "approve v2 1 uid-t0"}


def test_promote_passes_no_quarantine() -> None:
    fleet = fleet_of(Rules(TWO)).go().publish("t0", good=False)
    assert fleet.command(promote=1, promote_reason="it is urgent").rollout.state is S.STOPPED
    assert fleet.command(abort=1).rollout.attempt == 1
    assert fleet.command(promote=2).rollout.attempt == 1
    assert {facts.is_quarantined for facts in fleet.seen.values() if facts.source == V6} == {True}


def test_a_change_that_cannot_wait_goes_out_on_the_last_good_revision_by_the_command_of_the_draft() -> None:
    """All drafts are of the quarantined revision: the set follows the one before again, whatever it named."""
    spec: dict[str, Any] = {"upstreams": [{"revision": V6, "good": V5}]}
    world = PromoteWorld(draft(), follower())
    world.quarantines = [quarantine(sets=["web"], **spec)]
    world.settle()
    command = world.verdict.message.partition(f"{V5}: ")[2].partition(", or end it")[0]
    *words, patch = shlex.split(command)
    assert " ".join(words) == "kubectl patch -n default packagevariantset web --type merge -p"
    upstream = json.loads(patch)["spec"]["upstream"]
    assert upstream == {"repo": "blueprints", "package": "web", "revision": 5, "workspaceName": None}
    world = PromoteWorld(made_of(draft(), "web/v5"), follower(upstream["revision"]))
    world.quarantines = [quarantine(sets=["web"], **spec)]
    world.settle()
    assert world.server.moves == ["Proposed"]


@pytest.mark.parametrize(
    ("good", "set_name", "words"),
    [
        (
            "blueprints/net/web@v1.4",
            "web",
            'packagevariantset web --type merge -p \'{"spec":{"upstream":{"repo":'
            '"blueprints","package":"net/web","workspaceName":"v1.4","revision":null}}}\'',
        ),
        (V5, "", "packagevariant web-edge --type merge"),
        ("", "web", "follow another upstream revision, or end it"),
    ],
)
def test_the_way_back_names_who_follows_the_upstream(good: str, set_name: str, words: str) -> None:
    spec = QuarantineSpec(upstreams=(QuarantinedUpstream(revision=V6, good=good),))
    refused = refusal_of("default", [Quarantine(spec=spec)], "web-edge", set_name)
    assert refused is not None
    assert words in refused.message


@pytest.mark.parametrize("is_covered", [True, False])
def test_a_proposal_stays_while_its_variant_follows_what_is_quarantined(*, is_covered: bool) -> None:
    """Promote keeps it for its rollout, whatever `onNewRevision` is: another revision takes it back."""
    proposal = made_of(draft(lifecycle="Proposed", annotations={PROPOSED_CONTENT: DIGEST}), "web/v6")
    behind = follower(7)
    behind["status"] = variant(ready=BEHIND)["status"]
    world = PromoteWorld(proposal, behind)
    world.policies = [policy()]
    world.quarantines = [quarantine(upstreams=[{"revision": V7}])] if is_covered else []
    world.settle()
    assert world.server.moves == ([] if is_covered else ["Draft"])
    assert rows(world)["web"].is_upstream_held is is_covered


# ------------------------------------------------------------ figures of the document


@pytest.mark.parametrize(("is_proven", "looks"), [(False, 6), (True, 2)])
def test_an_unproven_target_is_looked_at_every_10_s_and_a_proven_one_every_30(
    *, is_proven: bool, looks: int
) -> None:
    hub = Hub(waves=[{"count": 1, "hold": "10m"}, {"percent": 100}]).began()
    hub.shows("t0", application() if is_proven else application(OLD)).go(LOOK_SECONDS)
    assert (hub.targets["t0"] == "proven") is is_proven
    hub.looks.clear()
    hub.go(60)
    assert hub.looks == ["t0"] * looks


def test_times_that_a_policy_does_not_give_are_those_of_the_document() -> None:
    document = (Path(__file__).parents[4] / "docs" / "rollouts.md").read_text()
    object_ = {"kind": "Site", "apiVersion": "v1", "name": "'a'", "good": "true"}
    spec = {"revisions": {"all": True}, "evidence": {"object": object_}, "train": {"members": [{"set": "a"}]}}
    rules = rules_of(msgspec.convert(spec, RolloutPolicySpec))
    assert rules.train is not None
    for words, seconds, found in (
        ("`settle` (30s)", 30, rules.settle_seconds),
        ("`evidence.deadline` (30m", 1800, rules.evidence_seconds),
        ("`partialTimeout` (1h)", 3600, rules.train.partial_seconds),
        ("A rollback waits\nhalf an hour", 1800, rules.restore_seconds),
    ):
        assert words in document
        assert found == seconds, words


# ------------------------------------------------------------ a bus that is lost


def test_what_is_on_the_api_server_outlives_the_bus_and_weak_evidence_begins_anew() -> None:
    """Stored statuses are lost: what is steadily good proves nothing until it changes. Excuses, the number
    of the attempt, and a stop are read from the API server again."""
    excuse = json.dumps([{"attempt": 2, "canary": "gone", "reason": "its site is closed"}])
    hub = Hub(wanted={"object": WEAK}, canaries=["t0", "gone"], whenCanaryIsAbsent="Skip")
    hub.shows("t0", application("1")).shows("t1", application("1"))
    hub.began()
    hub.shows("t0", application("2")).go(LOOK_SECONDS + 1)
    assert hub.targets["t0"] == "proven"
    hub.rows.clear()
    hub.restart()
    hub.go(100)
    assert (hub.ordered, hub.condition("Progressing").reason) == ({}, "StateLost")
    hub.edit(whenCanaryIsAbsent="Wait").annotate(restart="1")
    stopped(hub, STOPPED).go(100)
    assert hub.condition("Progressing").reason == "FleetStopped"
    stopped(hub).go(100)
    assert (hub.ordered, hub.condition("Progressing").reason) == ({}, "CanaryMissing")
    hub.candidate("t0", is_current=True).annotate(excuse=excuse).go(100)
    assert (hub.ordered, hub.condition("Progressing").reason) == ({}, "CanaryNotReady"), (
        "it has not changed yet"
    )
    hub.shows("t0", application("3")).go(100)
    assert hub.ordered == {"t1": "approve v2 2 uid-t1"}
