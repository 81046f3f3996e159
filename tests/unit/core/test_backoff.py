"""The waits between the tries of something that failed."""

import random

from pvbus.core.backoff import Backoff
from pvbus.core.errors import TransientError


def test_waits_grow_within_their_bounds_and_differ() -> None:
    backoff = Backoff(0.2, 30.0, random.Random(1).uniform)
    waits = [backoff.next_seconds() for _ in range(200)]
    assert all(0.2 <= seconds <= 30 for seconds in waits)
    assert max(waits[:3]) <= 1.6
    assert max(waits) > 20
    assert len(set(waits)) > 190
    again = Backoff(0.2, 30.0, random.Random(1).uniform)
    assert [again.next_seconds() for _ in range(200)] == waits  # a simulation can be repeated
    error = TransientError("429", retry_after_seconds=50)
    assert all(50 <= backoff.next_seconds(error) <= 55 for _ in range(50))
    backoff.reset()
    assert backoff.next_seconds() <= 0.4


def test_without_jitter_waits_double_up_to_the_longest() -> None:
    """The first is the shortest one, again after a reset."""
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_seconds() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_seconds() == 0.5


def test_failures_that_the_caller_counted_are_counted() -> None:
    assert Backoff(0.5, 60.0, failures=3).next_seconds() == 4.0
    assert Backoff(0.5, 60.0, failures=100_000).next_seconds() == 60.0


def test_a_failure_that_asks_for_nothing_has_the_usual_wait() -> None:
    backoff = Backoff(0.2, 60.0, max)
    assert backoff.next_seconds(TransientError("503")) == 0.4
    assert backoff.next_seconds(KeyError("x")) == 0.8
