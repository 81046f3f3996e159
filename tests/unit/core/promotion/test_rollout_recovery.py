"""A rollout whose rows are lost with the bus, and whose policy still has the status and old annotations."""

import pytest

from tests.unit.core.promotion.rolling import Bench

PERSON = [{"count": 1, "checks": [{"name": "ok", "person": {"question": "Well?"}}]}, {"percent": 100}]


def emptied(bench: Bench) -> Bench:
    """Lose everything that is on the bus, and what the service knew; promote sees what is proposed again."""
    bench.rows.clear()
    return bench.restart()


def completed() -> Bench:
    """One attempt is done: a person let its first wave pass."""
    bench = Bench(waves=PERSON).go().publish("t0").go().annotate(approve="1.1").go().publish("t1", "t2").go()
    assert (bench.status.phase, bench.status.attempt) == ("Completed", 1)
    return bench


def upgrade(bench: Bench) -> Bench:
    for target in tuple(bench.candidates):
        bench.candidate(target, revision="v3", digest=f"new{target}", is_proposed=True)
    return bench.go()


def test_the_numbers_of_attempts_go_on_and_an_old_annotation_lets_no_wave_pass() -> None:
    bench = upgrade(emptied(completed()).go())
    assert bench.orders == {"t0": "approve v3 2 uid-t0"}
    bench.publish("t0").go()
    assert (bench.status.phase, bench.status.attempt, bench.orders) == ("Holding", 2, {})
    assert [each.phase for each in bench.status.history] == ["Completed", "Holding"]


@pytest.mark.parametrize("command", ["promote", "abort", "roll_back"])
def test_an_order_for_the_lost_attempt_is_none_for_the_next_one(command: str) -> None:
    bench = upgrade(emptied(completed().annotate(**{command: "1"})).go())
    assert (bench.status.attempt, bench.orders) == (2, {"t0": "approve v3 2 uid-t0"})


def test_a_completed_attempt_stays_as_it_is_in_the_status() -> None:
    bench = completed()
    before = bench.status
    assert emptied(bench).go().status.history == before.history


@pytest.mark.parametrize("command", ["abort", "roll_back", ""])
def test_what_an_attempt_did_not_prove_is_not_approved_before_a_person_restarts_it(command: str) -> None:
    bench = Bench().go().publish("t0").go()
    if command:
        bench.annotate(**{command: "1"}).go()
    bench = emptied(bench).go(100)
    assert (bench.orders, bench.status.attempt) == ({}, 1)
    progressing = bench.condition("Progressing")
    assert (progressing.status, progressing.reason) == ("False", "StateLost")
    assert "pvbus rollout restart default/web" in progressing.message
    assert bench.restart().go(100).orders == {}, "nor after a restart of the service"
    bench.annotate(restart="1").go()
    assert bench.orders == {"t1": "approve v2 2 uid-t1"}


def test_an_attempt_that_went_on_is_aborted_in_the_history() -> None:
    bench = emptied(Bench().go()).go()
    (past,) = bench.status.history
    assert (bench.status.phase, past.phase, past.reason) == ("Aborted", "Aborted", "StateLost")
    assert past.message == "the bus was emptied, and lost the plan"


def test_a_policy_that_is_not_valid_when_the_bus_is_lost_keeps_the_number_of_its_attempt() -> None:
    bench = completed()
    assert bench.policy is not None
    bench.policy["spec"]["waves"] = [{"percent": 5}]
    bench = emptied(bench).go()
    assert bench.condition("Accepted").status == "False"
    assert bench.status.attempt == 1


def test_a_new_policy_begins_with_the_first_attempt_by_itself() -> None:
    assert emptied(Bench()).go().orders == {"t0": "approve v2 1 uid-t0"}
