"""The waits between the tries of something that failed."""

import random

from pvbus.core.errors import TransientError
from pvbus.core.kernel.backoff import Backoff, spread


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


def test_the_longest_waits_double_up_to_the_limit() -> None:
    """The first is at most twice the shortest one, again after a reset."""
    backoff = Backoff(0.5, 3.0, max)
    assert [backoff.next_seconds() for _ in range(4)] == [1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_seconds() == 1.0


def test_failures_that_the_caller_counted_are_counted() -> None:
    assert Backoff(0.5, 60.0, max, failures=3).next_seconds() == 8.0
    assert Backoff(0.5, 60.0, max, failures=100_000).next_seconds() == 60.0


def test_a_fixed_wait_is_spread_over_half_as_long_again() -> None:
    """Workers that lost a broker together do not return together."""
    waits = [spread(2.0, random.Random(seed).uniform) for seed in range(100)]
    assert all(2.0 <= seconds <= 3.0 for seconds in waits)
    assert max(waits) - min(waits) > 0.9


def test_a_failure_that_asks_for_nothing_has_the_usual_wait() -> None:
    backoff = Backoff(0.2, 60.0, max)
    assert backoff.next_seconds(TransientError("503")) == 0.4
    assert backoff.next_seconds(KeyError("x")) == 0.8
