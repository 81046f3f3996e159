"""A wait for a person or for release says for whom, and since when; reminders of it are few."""

import pytest

from pvbus.core.promotion.rollout.reminding import Progress, words_for
from tests.unit.core.promotion.rolling import Bench

HOUR, DAY = 3_600, 86_400


def waiting(bench: Bench) -> tuple[str, str, str]:
    condition = bench.condition("Waiting")
    return condition.status, condition.reason, condition.message


def watch(bench: Bench, seconds: float, step: float = HOUR / 2) -> int:
    """Let time pass, with the echo of each status; return how often one was written."""
    before = len(bench.statuses)
    for _ in range(int(seconds // step)):
        bench.observe()
        bench.go(step)
    return len(bench.statuses) - before


def test_a_wait_for_a_person_names_the_command_and_reminds_after_an_hour_and_daily() -> None:
    bench = Bench(approval="Manual").go()
    status, reason, message = waiting(bench)
    assert (status, reason) == ("True", "WaitsForPerson")
    assert message.startswith("a person has to act: the first wave begins when a person approves it")
    assert "pvbus rollout approve default/web" in message
    since = bench.condition("Waiting").last_transition_time
    assert watch(bench, HOUR) == 1
    assert waiting(bench)[2].startswith("for 1 h: a person")
    assert watch(bench, 22 * HOUR) == 0, "nothing is written in between"
    assert watch(bench, HOUR) == 1
    assert waiting(bench)[2].startswith("for 1 d: a person")
    assert watch(bench, 3 * DAY) == 3
    assert bench.condition("Waiting").last_transition_time == since
    bench.annotate(approve="1.0").go()
    assert waiting(bench) == ("False", "NobodyWaitedFor", "")


def test_a_restart_goes_on_with_the_time() -> None:
    bench = Bench(approval="Manual").go()
    watch(bench, 2 * HOUR)
    bench.restart().go()
    assert waiting(bench)[2].startswith("for 1 h: ")
    assert watch(bench, DAY) == 1


def test_what_is_waited_for_anew_counts_from_then() -> None:
    bench = Bench(approval="Manual").go()
    watch(bench, 2 * HOUR)
    bench.annotate(pause="true").go()
    status, reason, message = waiting(bench)
    assert (status, reason) == ("True", "Paused")
    assert message.startswith("a person has to act: ")


def test_a_rollout_that_stopped_waits_for_a_person() -> None:
    bench = Bench().go()
    bench.publish("t0", good=False).go()
    assert waiting(bench)[:2] == ("True", "TooManyFailing")
    assert "A person resumes, aborts or rolls it back" in waiting(bench)[2]


def test_release_is_named_with_its_orders_once_it_is_late() -> None:
    bench = Bench(5, waves=[{"percent": 100}]).go()
    bench.go(240)
    assert all(each.type != "Waiting" for each in bench.status.conditions), "it is under way"
    bench.go(120)
    status, reason, message = waiting(bench)
    assert (status, reason) == ("True", "WaitsForRelease")
    assert message.startswith("release has to approve t0; approve t1; approve t2 and 2 more")
    assert watch(bench, 2 * HOUR, 30) == 1
    assert waiting(bench)[2].startswith("for 1 h: release")
    bench.publish(*(f"t{number}" for number in range(5))).go()
    assert waiting(bench)[:2] == ("False", "NobodyWaitedFor")


def test_no_time_ends_a_wait_for_release_while_orders_are_taken_back() -> None:
    """The approval may still arrive."""
    bench = Bench().go()
    bench.annotate(abort="1").go()
    watch(bench, 5 * HOUR)
    assert bench.targets["t0"] == "cancelling"
    assert waiting(bench)[2].startswith("for 1 h: ")
    assert "release has to take back t0" in waiting(bench)[2]


def test_a_clock_that_is_set_back_delays_no_reminder_and_repeats_none() -> None:
    """As long has passed as the last reminder says; before the first, nothing."""
    bench = Bench(approval="Manual").go()
    bench.now -= 30 * DAY
    assert watch(bench, HOUR + 60) == 2, "the time of the wait, and the reminder"
    assert waiting(bench)[2].startswith("for 1 h: a person")
    watch(bench, DAY)
    assert waiting(bench)[2].startswith("for 1 d: a person")
    bench.now -= 10 * HOUR
    messages = set()
    for _ in range(40):
        watch(bench, HOUR)
        messages.add(waiting(bench)[2][:8])
    assert messages == {"for 1 d:", "for 2 d:"}


def test_release_is_late_by_the_clock_of_now() -> None:
    bench = Bench().go()
    bench.now -= DAY
    bench.observe()
    bench.go(60)
    bench.go(400)
    assert waiting(bench)[:2] == ("True", "WaitsForRelease")


def test_every_reason_says_what_is_awaited() -> None:
    """A reason that only a person ends cannot be forgotten: none is without what it awaits."""
    with pytest.raises(TypeError):
        Progress(reason="Paused", message="")  # type: ignore[call-arg]  # that is the point


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-DAY, ""), (HOUR - 1, ""), (HOUR, "for 1 h: "), (DAY - 1, "for 1 h: "), (2.5 * DAY, "for 2 d: ")],
)
def test_the_time_is_that_of_the_last_reminder(seconds: float, words: str) -> None:
    assert words_for(seconds) == words
