"""One open lease: what it may decide and write, and which offsets are done."""

from collections.abc import Mapping
from typing import Any

import pytest

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.echo import ECHO_SECONDS
from pvbus.core.kernel.effects import Put
from pvbus.ports.bus import Lease
from pvbus.runtime.backoff import uniform
from pvbus.runtime.reconcile.leases import OpenLease, StepLimits, finished
from pvbus.runtime.reconcile.retries import BACKOFF_SECONDS, PERMANENT_RETRY_SECONDS, retry_of
from pvbus.runtime.reconcile.states import LeaseState
from tests.unit.runtime.fakes import IN, OUT, PARTITIONS, Row

LEASE = Lease(group="g", partition=0, epoch=5)
RUNNING = LeaseState.RUNNING


class StillClock:
    """A clock that stands."""

    def now(self) -> float:
        return 1000.0

    def monotonic(self) -> float:
        return 1000.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


class Member:
    """A membership that holds one lease, and last beat at a time."""

    def __init__(self, lease: Lease | None, beat: float) -> None:
        self._lease = lease
        self._beat = beat

    def leases(self) -> Mapping[int, Lease]:
        return {self._lease.partition: self._lease} if self._lease is not None else {}

    def last_heartbeat(self) -> float:
        return self._beat


def opened(state: LeaseState = LeaseState.RUNNING) -> OpenLease:
    found = OpenLease(LEASE, (IN,), StillClock(), StepLimits(10, 1000))
    found.state = state
    return found


@pytest.mark.parametrize(
    ("lease", "beat", "step", "state", "may", "reason"),
    [
        (LEASE, 996.0, 0.0, RUNNING, True, "a heartbeat is young"),
        (LEASE, 990.0, 997.0, RUNNING, True, "a step is young"),
        (LEASE, 990.0, 990.0, RUNNING, False, "both are older than half a session"),
        (LEASE, 994.9, 0.0, RUNNING, False, "a heartbeat is a bit too old"),
        (LEASE, 995.0, 0.0, RUNNING, True, "half a session is the limit"),
        (None, 999.0, 999.0, RUNNING, False, "the lease went"),
        (Lease(group="g", partition=0, epoch=6), 999.0, 0.0, RUNNING, False, "it is back with another epoch"),
        (LEASE, 999.0, 999.0, LeaseState.REVOKED, False, "it is being revoked"),
        (LEASE, 999.0, 999.0, LeaseState.OUTCOME_UNKNOWN, False, "a step's outcome is unknown"),
        (LEASE, 999.0, 999.0, LeaseState.LOST, False, "it is fenced"),
    ],
)
def test_who_may_write_to_the_cluster(
    lease: Lease | None, beat: float, step: float, state: LeaseState, may: bool, reason: str
) -> None:
    one = opened(state)
    one.last_step = step
    member: Any = Member(lease, beat)
    assert one.may_write(member, 1000.0, 5.0) is may, reason
    assert one.may_write(None, 1000.0, 5.0) is False


def test_a_lease_acts_only_when_restored_held_and_not_in_doubt() -> None:
    for state in LeaseState:
        assert opened(state).acts is (state is RUNNING)


def outcome(key: str) -> Any:
    return finished(key, (Put(OUT, key, Row("x")),), PARTITIONS)


def test_tables_are_settled_when_nothing_was_decided_that_is_not_written() -> None:
    assert opened().is_settled
    for state in LeaseState:
        assert opened(state).is_settled is (state in (RUNNING, LeaseState.REVOKED))
    stepping = opened()
    stepping.stepping = True
    assert not stepping.is_settled
    waiting = opened()
    waiting.add(outcome("a"))
    assert not waiting.is_settled
    busy = opened()
    busy.mark("a")
    assert busy.is_settled, "a dirty key is kept with the tables"
    busy.take()
    assert not busy.is_settled


def test_a_key_is_taken_once_and_again_after_a_mark_that_came_meanwhile() -> None:
    lease = opened()
    lease.mark("a")
    assert lease.take() == "a"
    lease.mark("a")
    lease.mark("a")
    assert lease.take() is None, "it is busy"
    lease.finish("a")
    assert lease.take() == "a"
    lease.finish("a")
    assert lease.take() is None


@pytest.mark.parametrize("state", ["dirty", "busy", "failed"])
def test_an_offset_is_done_when_its_keys_are(state: str) -> None:
    """A key that is dirty or busy holds its offset; the rows of a step that ends it count as done."""
    lease = opened()
    lease.note_consumed(IN, 6, ["early"])
    lease.note_consumed(IN, 7, ["a"])
    lease.note_consumed(IN, 8, ["b"])
    for key in ("early", "a", "b"):
        lease.mark(key)
    assert lease.done_offsets() == {IN: 6}
    for key in ("early", "a", "b"):
        assert lease.take() == key
    lease.finish("early")
    if state == "dirty":
        lease.mark("a")
        lease.finish("a")
    elif state == "failed":
        lease.finish("a")
        lease.mark("a")
    lease.finish("b")
    assert lease.done_offsets() == {IN: 7}
    if state == "busy":
        assert lease.done_offsets({"a"}) == {IN: 9}
        return
    assert lease.take() == "a"
    assert lease.done_offsets() == {IN: 7}, "looked at again, and not done yet"
    lease.finish("a")
    assert lease.done_offsets() == {IN: 9}


@pytest.mark.parametrize(
    ("worked", "stepped", "state", "is_due", "reason"),
    [
        (0.5, 2.0, RUNNING, False, "there is work, and its rows may take the offsets along"),
        (1.0, 1.0, RUNNING, True, "the lease is quiet"),
        (0.1, 5.0, RUNNING, True, "work without rows goes on for long"),
        (9.0, 9.0, LeaseState.REVOKED, False, "the lease is being revoked"),
    ],
)
def test_when_offsets_alone_are_committed(
    worked: float, stepped: float, state: LeaseState, is_due: bool, reason: str
) -> None:
    lease = opened(state)
    lease.note_consumed(IN, 6, [])
    lease.progress_at, lease.last_step = 1000.0 - worked, 1000.0 - stepped
    assert lease.must_commit(1000.0) is is_due, reason
    lease.start_at(IN, 7, 7)
    assert not lease.must_commit(1000.0), "all offsets are committed"


@pytest.mark.parametrize(
    ("error", "attempt", "outcome", "least", "most"),
    [
        (TransientError("x"), 1, "transient", 0.2, 0.4),
        (TransientError("x"), 3, "transient", 0.2, 1.6),
        (TransientError("x"), 500, "transient", 0.2, BACKOFF_SECONDS[1]),
        (TransientError("x", retry_after_seconds=75.0), 1, "transient", 75.0, 75.0),
        (ConflictError("x"), 1, "conflict", ECHO_SECONDS, ECHO_SECONDS),
        (PermanentError("x"), 9, "permanent", PERMANENT_RETRY_SECONDS, PERMANENT_RETRY_SECONDS),
        (KeyError("x"), 1, "defect", PERMANENT_RETRY_SECONDS, PERMANENT_RETRY_SECONDS),
    ],
)
def test_when_a_failed_key_is_looked_at_again(
    error: Exception, attempt: int, outcome: str, least: float, most: float
) -> None:
    for _ in range(50):
        retry = retry_of(error, attempt, uniform)
        assert retry.outcome == outcome
        assert least <= retry.seconds <= most
