"""The service rollout: what it orders, writes and reports for rows that are given by hand."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pvbus.core.api.rollouts import RolloutPolicy, RolloutPolicySpec, RolloutPolicyStatus, Wave
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Query, Range, Sample
from pvbus.core.kernel.records import APPROVALS, ROLLOUTS
from pvbus.core.promotion.rollout.controller import CLOCK_SECONDS, STEP_SECONDS
from pvbus.core.promotion.rollout.report import standing_of
from tests.unit.core.promotion.rolling import KEY, Bench


def test_wave_by_wave_the_orders_follow_the_evidence_and_go_when_they_are_carried_out() -> None:
    bench = Bench().go()
    assert bench.orders == {"t0": "approve v2 1 uid-t0"}
    bench.publish("t0", good=None).go()
    assert (bench.orders, bench.targets["t0"]) == ({}, "approved")
    bench.candidate("t0", is_good=True).go()
    assert bench.orders == {"t1": "approve v2 1 uid-t1", "t2": "approve v2 1 uid-t2"}
    bench.publish("t1", "t2").go()
    assert (bench.orders, bench.status.phase) == ({}, "Completed")
    assert bench.again_after is None, "a rollout that is over waits for nothing"


def test_a_restart_goes_on_from_the_rows_and_writes_nothing() -> None:
    bench = Bench(waves=[{"count": 1, "hold": "10m"}, {"percent": 100}]).go().publish("t0").go(100)
    orders, puts, statuses = bench.orders, len(bench.puts), len(bench.statuses)
    bench.restart().go(10)
    assert (bench.orders, len(bench.puts), len(bench.statuses)) == (orders, puts, statuses)
    bench.go(600)
    assert sorted(bench.orders) == ["t1", "t2"]


def test_a_restart_forgets_nothing_that_was_tried_in_vain() -> None:
    bench = Bench(budgets={"onFailure": "RollBack"}).go().publish("t0", good=False).go()
    bench.candidate("t0", published="v3", published_digest="old0", is_good=True)
    bench.candidate("t0", revision="v2", digest="d0", is_proposed=True).go()
    assert (bench.status.phase, bench.restart().go(100).status.attempt, bench.orders) == ("RolledBack", 1, {})


def test_a_restart_in_a_hold_time_loses_none_of_it() -> None:
    bench = Bench(waves=[{"count": 1, "hold": "10m"}, {"percent": 100}]).go().publish("t0").go(300)
    held = bench.now
    bench.restart().go(290)
    assert bench.orders == {}
    bench.go(NOW_ERROR + 10 - (bench.now - held - 290))
    assert sorted(bench.orders) == ["t1", "t2"]


NOW_ERROR = 2.0  # the time of the steps before the hold time begins


def test_an_order_is_written_in_one_step_with_its_target() -> None:
    bench = Bench()
    outcome = bench.once()
    assert [put.topic for put in outcome.puts].count(APPROVALS) == 1
    assert {put.key for put in outcome.puts if put.topic == ROLLOUTS} == {
        KEY,
        *(f"{KEY}|t{number}" for number in range(3)),
    }


def test_many_changes_are_one_step() -> None:
    bench = Bench(targets=40).go()
    evaluations = bench.controller.evaluations
    for number in range(40):
        bench.candidate(f"t{number}", message=str(number))
        bench.now += STEP_SECONDS / 100
        bench.once()
    assert bench.controller.evaluations - evaluations <= 2 * 40


def test_a_policy_that_is_not_valid_orders_nothing_and_says_so() -> None:
    bench = Bench(waves=[{"percent": 50}]).go()
    assert (bench.orders, bench.puts) == ({}, [])
    accepted = bench.condition("Accepted")
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert "must be 100 in the last wave" in accepted.message
    assert bench.condition("Progressing").reason == "InvalidSpec"
    bench.edit(waves=[{"percent": 100}]).go()
    assert len(bench.orders) == 3
    assert (bench.condition("Accepted").status, bench.status.observed_generation) == ("True", 2)


def test_a_policy_that_becomes_invalid_in_the_middle_stands_still_and_goes_on_when_it_is_mended() -> None:
    bench = Bench().go().edit(waves=[{"percent": 50}]).publish("t0").go()
    assert bench.orders == {"t0": "approve v2 1 uid-t0"}
    bench.edit(waves=[{"count": 1}, {"percent": 100}]).go()
    assert sorted(bench.orders) == ["t1", "t2"]


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_rows_of_a_deleted_policy_go_once_the_list_of_policies_is_complete(is_listed: bool) -> None:
    bench = Bench().go()
    bench.policy, bench.is_listed = None, is_listed
    bench.observe()
    bench.go()
    assert bench.orders == ({} if is_listed else {"t0": "approve v2 1 uid-t0"})
    assert len(bench.targets) == (0 if is_listed else 3)


def test_a_policy_that_comes_back_does_not_take_former_outcomes_for_its_own() -> None:
    bench = Bench().go().candidate("t0", refused=1, failure="a webhook says no").go()
    policy = bench.policy
    bench.policy = None
    bench.observe()
    bench.go()
    bench.policy = policy
    bench.observe()
    bench.go()
    assert bench.status.attempt == 2
    assert bench.orders == {"t0": "approve v2 2 uid-t0"}


def test_a_target_that_another_policy_wins_leaves_and_is_reported() -> None:
    bench = Bench().go().publish("t0").go()
    bench.candidates["t1"] = bench.candidates["t1"].__class__(uid="uid-t1", winner="other")
    bench.candidate("t1").go()
    assert bench.orders["t1"] == "withdraw v2 1 uid-t1"
    overlapping = bench.condition("Overlapping")
    assert (overlapping.status, overlapping.reason) == ("True", "OtherPolicyWins")
    assert "t1" in overlapping.message
    assert "other" in overlapping.message
    bench.candidate("t1", withdrawn=1).go()
    assert "t1" not in bench.orders


def test_an_order_for_a_variant_that_is_gone_waits_for_nobody() -> None:
    bench = Bench().go().forget("t0").go()
    assert (bench.targets["t0"], sorted(bench.orders)) == ("gone", ["t1"]), "the next one takes its place"
    bench.publish("t1").go()
    assert sorted(bench.orders) == ["t2"]


def test_an_order_follows_a_variant_that_was_made_anew() -> None:
    bench = Bench().go().candidate("t0", uid="another").go()
    assert bench.orders == {"t0": "approve v2 1 another"}


def test_a_failing_target_stops_the_rollout_and_the_status_says_which_and_why() -> None:
    bench = Bench().go().publish("t0", good=False).candidate("t0", verdict="Ready is False: no disk").go()
    assert (bench.status.phase, bench.status.stops) == ("Stopped", 1)
    going = bench.condition("Progressing")
    assert (going.status, going.reason) == ("False", "TooManyFailing")
    assert "t0: Ready is False: no disk" in going.message
    bench.annotate(resume="1.1").go()
    assert sorted(bench.orders) == ["t1", "t2"]


def test_a_rollback_orders_what_was_published_before() -> None:
    bench = Bench(budgets={"onFailure": "RollBack"}).go().publish("t0", good=False).go()
    assert bench.orders == {"t0": "restore v1 1 uid-t0"}
    bench.candidate("t0", published="r1", published_digest="old0", is_good=True).go()
    assert (bench.orders, bench.status.phase) == ({}, "RolledBack")
    assert bench.status.targets is not None
    assert bench.status.targets.rolled_back == 1


def test_what_a_rollback_leaves_published_is_noted_until_the_next_attempt_or_the_policy_goes() -> None:
    """The note is for the variant's conditions: it has nothing good to go back to."""
    bench = Bench(targets=1, budgets={"onFailure": "RollBack"}, waves=[{"percent": 100}])
    bench.candidate("t0", published="", published_digest="").go().publish("t0", good=False).go()
    noted = {"t0": "stranded v2 1 uid-t0"}
    assert (bench.orders, bench.targets["t0"], bench.status.phase) == (noted, "stranded", "RolledBack")
    assert bench.restart().go().orders == noted
    bench.candidate("t0", revision="v3", digest="d3", is_proposed=True).go()
    assert bench.orders == {"t0": "approve v3 2 uid-t0"}
    bench.publish("t0", good=False).go()
    assert bench.orders == {"t0": "stranded v3 2 uid-t0"}
    bench.policy = None
    bench.observe()
    assert bench.go().orders == {}


def test_an_abort_takes_orders_back_and_waits_for_the_confirmation() -> None:
    bench = Bench().go().annotate(abort="1").go()
    assert bench.orders == {"t0": "withdraw v2 1 uid-t0"}
    bench.candidate("t0", withdrawn=1).go()
    assert (bench.orders, bench.status.phase) == ({}, "Aborted")


def test_an_order_that_cannot_be_read_is_reported() -> None:
    bench = Bench().go().annotate(abort="now").go()
    assert (bench.condition("Accepted").status, bench.condition("Accepted").reason) == (
        "True",
        "UnreadableOrder",
    )
    assert bench.orders, "and does nothing"


def test_the_echo_of_a_status_is_no_reason_for_a_step() -> None:
    bench = Bench().go()
    evaluations = bench.controller.evaluations
    bench.observe()
    bench.go()
    assert bench.controller.evaluations == evaluations


def test_the_status_is_written_at_most_once_a_second_and_only_if_it_changes() -> None:
    bench = Bench(targets=30).go()
    written = len(bench.statuses)
    for number in range(30):
        bench.publish(f"t{number}").go(0.2)
    assert len(bench.statuses) - written <= 7
    bench.go()
    written = len(bench.statuses)
    bench.go(1000)
    assert len(bench.statuses) == written


@pytest.mark.parametrize("error", [ConflictError("stale"), PermanentError("no right", reason="Forbidden")])
def test_a_status_that_cannot_be_written_holds_nothing_up(error: Exception) -> None:
    bench = Bench()

    def refuse() -> None:
        raise error

    bench.before_write = refuse
    bench.go().publish("t0").go()
    assert sorted(bench.orders) == ["t1", "t2"]
    bench.before_write = lambda: None
    bench.go(60)
    assert bench.status.phase == "Rolling"


@pytest.mark.parametrize(("is_observed", "quiet_seconds"), [(True, 0.5), (False, 9)])
def test_after_a_conflict_the_status_follows_the_policy_as_it_is(
    is_observed: bool, quiet_seconds: float
) -> None:
    """What it conflicted with may have been observed before the server's answer came: no echo follows then,
    and the end of an attempt would be missing from the history."""
    bench = Bench().go()

    def overtaken() -> None:
        bench.before_write = lambda: None
        if is_observed:
            bench.observe()
        raise ConflictError("stale")

    bench.before_write = overtaken
    written = len(bench.statuses)
    bench.publish("t0").go(quiet_seconds)
    assert len(bench.statuses) == written
    bench.go(1.5)
    assert len(bench.statuses) > written


def test_each_condition_has_what_its_definition_requires() -> None:
    bench = Bench().go()
    assert bench.policy is not None
    for condition in bench.policy["status"]["conditions"]:
        assert {"type", "status", "reason", "message", "lastTransitionTime"} <= condition.keys()


def test_a_foreign_condition_stays_in_the_status() -> None:
    bench = Bench().go()
    assert bench.policy is not None
    theirs = {"type": "Theirs", "status": "True"}
    bench.policy["status"]["conditions"] = [*bench.policy["status"]["conditions"], theirs]
    bench.observe()
    bench.publish("t0").go()
    assert bench.condition("Theirs").status == "True"


def test_the_clock_may_jump_without_ending_a_hold_time() -> None:
    bench = Bench(waves=[{"count": 1, "hold": "10m"}, {"percent": 100}]).go().publish("t0").go(10)
    bench.now += 1e6
    bench.go(5)
    assert bench.orders == {}
    bench.now -= 2e6
    bench.go(5)
    assert (bench.orders, bench.status.phase) == ({}, "Holding")
    bench.go(600)
    assert sorted(bench.orders) == ["t1", "t2"]


def test_a_hold_time_is_written_rarely() -> None:
    bench = Bench(waves=[{"count": 1, "hold": "1h"}, {"percent": 100}]).go().publish("t0").go()
    puts = len(bench.puts)
    bench.go(1800)
    assert len(bench.puts) - puts <= 1800 / CLOCK_SECONDS


def test_a_wave_that_waits_for_a_person_says_how_to_answer() -> None:
    bench = Bench(approval="Manual").go()
    going = bench.condition("Progressing")
    assert (going.status, going.reason) == ("False", "WaitsForPerson")
    assert "pvbus rollout approve default/web" in going.message
    bench.annotate(approve="1.0").go()
    assert sorted(bench.orders) == ["t0"]
    bench.publish("t0").go()
    assert bench.condition("Progressing").reason == "WaitsForPerson"
    bench.annotate(approve="1.1").go()
    assert sorted(bench.orders) == ["t1", "t2"]


def test_a_check_is_looked_at_until_it_passes() -> None:
    check = {
        "name": "gate",
        "object": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "gate",
            "expression": "object.data.open == 'yes'",
        },
    }
    bench = Bench(waves=[{"count": 1, "checks": [check]}, {"percent": 100}]).go().publish("t0").go(100)
    assert (bench.orders, bench.condition("Progressing").reason) == ({}, "ChecksPending")
    bench.answer = lambda effect: {"data": {"open": "yes"}}
    bench.go(60)
    assert sorted(bench.orders) == ["t1", "t2"]


def steady(query: Query, **fields: Any) -> Range:
    """Return samples within the limits at each time that a query asks for."""
    count = round((query.end - query.start) / query.step_seconds)
    times = [query.start + number * query.step_seconds for number in range(count + 1)]
    return Range((tuple(Sample(time, 0.0) for time in times),), **fields)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (lambda query: TransientError("no connection to http://p:9090"), "no connection to http://p:9090"),
        (lambda query: TransientError("no answer within 10 s"), "no answer within 10 s"),
        (lambda query: steady(query, skew_seconds=7200.0), "the clock of Prometheus is 7200 s ahead of ours"),
        (
            lambda query: steady(query._replace(start=query.start - 7200, end=query.end - 7200)),
            "samples of another time",
        ),
    ],
    ids=["down", "slow", "wrong clock", "old samples"],
)
def test_a_prometheus_that_is_away_or_lies_holds_the_wave_and_fails_nothing(
    trouble: Callable[[Query], Range | Exception], words: str
) -> None:
    """The rollout says why it waits, and goes on by itself when the answers can be believed again."""
    check = {"name": "errors", "query": {"expression": "sum(errors)", "max": 0.1, "window": "2m"}}
    bench = Bench(waves=[{"count": 1, "checks": [check]}, {"percent": 100}]).go().publish("t0")

    def answer(query: Query) -> Range:
        found = trouble(query)
        if isinstance(found, Exception):
            raise found
        return found

    bench.answer = answer
    bench.go(600)
    going = bench.condition("Progressing")
    assert (bench.orders, bench.status.phase, going.reason) == ({}, "Holding", "ChecksPending")
    assert words in going.message
    bench.answer = steady
    bench.go(60)
    assert sorted(bench.orders) == ["t1", "t2"]


def test_canaries_and_labels_order_the_targets() -> None:
    bench = Bench(targets=0)
    for target, canary, places in (("a", 1, (1,)), ("b", 1, (0,)), ("c", 0, (1,))):
        bench.candidate(target, canary=canary, places=places, revision="v2", digest=target, is_proposed=True)
    bench.go()
    assert sorted(bench.orders) == ["c"]
    bench.publish("c").go()
    assert sorted(bench.orders) == ["a", "b"]


def test_a_published_target_that_another_policy_has_now_holds_no_wave_up() -> None:
    bench = Bench().go().publish("t0", good=None).go()
    bench.candidate("t0", winner="other").go()
    assert (bench.targets["t0"], sorted(bench.orders)) == ("gone", ["t1"]), "the next one takes its place"
    bench.publish("t1").go()
    assert sorted(bench.orders) == ["t2"]


@pytest.mark.parametrize(
    ("attempt", "phase", "paused", "words"),
    [
        (0, "Idle", False, "no attempt yet"),
        (3, "Holding", False, "attempt 3 is Holding in wave 2 of 3"),
        (3, "Rolling", True, "attempt 3 is Rolling in wave 2 of 3, paused"),
        (3, "RollingBack", False, "attempt 3 is RollingBack in wave 2 of 3 of the rollback"),
        (3, "RolledBack", False, "attempt 3 is RolledBack"),
    ],
)
def test_where_a_rollout_is_in_words(attempt: int, phase: str, paused: bool, words: str) -> None:
    """The last wave of a rollback is not the wave that failed."""
    spec = RolloutPolicySpec(waves=(Wave(percent=1), Wave(percent=10), Wave(percent=100)))
    status = RolloutPolicyStatus(attempt=attempt, phase=phase, wave=2)
    assert standing_of(RolloutPolicy(spec=spec, status=status), paused=paused) == words


def test_a_canary_that_holds_is_named_with_what_to_do() -> None:
    bench = Bench(canaries=["t0"])
    bench.candidate(
        "t0", is_proposed=False, reason="OnHold", message="it is on hold: pvbus unhold default/t0"
    ).go()
    going = bench.condition("Progressing")
    assert (bench.orders, going.status, going.reason) == ({}, "False", "CanaryNotReady")
    assert "canary t0: OnHold: it is on hold: pvbus unhold default/t0" in going.message
    assert "change spec.canaries" in going.message
    bench.forget("t0").go()
    assert bench.condition("Progressing").reason == "CanaryMissing"
    bench.candidate("t0", winner="other").go()
    assert "canary t0: policy other has it" in bench.condition("Progressing").message
    bench.candidate("t0", winner="", is_proposed=True, revision="v2", digest="d", reason="").go()
    assert sorted(bench.orders) == ["t0"]
    bench.restart().go()
    bench.publish("t0").go()
    assert sorted(bench.orders) == ["t1", "t2"]


def test_a_canary_that_waits_lets_no_clock_of_the_service_tick() -> None:
    bench = Bench(canaries=["gone"]).go()
    written = len(bench.puts)
    bench.go(100_000)
    assert len(bench.puts) == written
    assert bench.again_after is not None
    assert bench.again_after > 60, "but for a reminder"


def test_an_excused_canary_is_in_the_history_with_who_said_so() -> None:
    bench = Bench(canaries=["gone"]).go()
    assert "pvbus rollout excuse default/web CANARY --reason TEXT" in bench.condition("Progressing").message
    given = {"attempt": 1, "canary": "gone", "reason": "its site is closed", "by": "ann", "at": "now"}
    bench.annotate(excuse=json.dumps([given])).go()
    assert [msgspec.to_builtins(each) for each in bench.status.history[-1].excused] == [given]
    assert sorted(bench.orders) == ["t0"]
    bench.restart().publish("t0").go()
    assert sorted(bench.orders) == ["t1", "t2"]


def test_a_canary_that_was_resumed_is_in_the_history() -> None:
    bench = Bench(canaries=["t0"]).go().publish("t0", good=False).go()
    assert (bench.status.phase, bench.condition("Progressing").reason) == ("Stopped", "CanaryFailed")
    bench.annotate(resume="1.1").go()
    (accepted,) = bench.status.history[-1].excused
    assert (accepted.canary, accepted.attempt) == ("t0", 1)
    assert sorted(bench.orders) == ["t1", "t2"]
