"""Times at which keys are looked at by themselves."""

from pvbus.runtime.reconcile.retries import SPARE, Timers


def test_the_last_time_of_a_key_counts_and_each_comes_once() -> None:
    """A key has one time, the last that was set; what is cancelled does not come."""
    timers = Timers()
    for key, time in (("a", 5.0), ("b", 3.0), ("a", 1.0), ("c", 2.0)):
        timers.set(key, time)
    timers.cancel("c")
    assert timers.next() == 1.0
    assert timers.due(4.0) == ["a", "b"]
    assert timers.due(10.0) == []
    assert timers.next() is None


def test_times_of_a_key_that_is_looked_at_often_do_not_pile_up() -> None:
    """Memory is that of the keys, not of the looks, however far off the times are."""
    timers = Timers()
    for look in range(10_000):
        for key in ("a", "b"):
            timers.cancel(key)
            timers.set(key, 600.0 + look)
    assert len(timers._heap) <= 2 * 2 + SPARE
    assert timers.due(600.0 + 10_000) == ["a", "b"]
