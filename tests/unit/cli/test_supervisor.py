"""What is concluded from what processes tell, and what becomes of a process that cannot begin."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pvbus.cli.children import ChildProcess
from pvbus.cli.supervisor import States
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.topics import SERVICES
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.state import LeaseReport, ProcessState, ServiceReport

ALL = range(partition_count())


def report(
    partitions: range = ALL,
    *,
    idle: bool = True,
    behind: int | None = 0,
    observed: bool = True,
    timer: float | None = None,
) -> ServiceReport:
    leases = tuple(
        LeaseReport(
            partition=number,
            epoch=1,
            restored=True,
            restore=(1, 1),
            lag=0,
            dirty=0,
            seconds_since_progress=1.0,
        )
        for number in partitions
    )
    return ServiceReport(
        ready=bool(leases),
        idle=idle and bool(leases),
        next_timer_seconds=timer,
        dirty=0,
        leases=leases,
        behind=behind,
        observed=observed,
    )


def states(*of_unroll: ServiceReport, missing: tuple[str, ...] = ()) -> States:
    """One process with all other services, and one of unroll for each report."""
    others: Mapping[str, ServiceReport] = {name: report() for name in SERVICES if name != "unroll"}
    unrolls = [ProcessState(services={"unroll": each}) for each in of_unroll]
    return States((ProcessState(services=others), *unrolls), missing)


@pytest.mark.parametrize(
    ("reason", "found", "settled"),
    [
        ("one holds everything", states(report()), True),
        ("two share everything", states(report(range(5)), report(range(5, ALL.stop))), True),
        ("a spare worker holds nothing", states(report(), report(range(0))), True),
        ("a lease that nobody holds", states(report(range(1, ALL.stop))), False),
        ("a lease that two hold", states(report(), report(range(1))), False),
        ("one does not answer", states(report(), missing=("unroll/2",)), False),
        ("one is at work", states(report(range(5)), report(range(5, ALL.stop), idle=False)), False),
        ("records to read", states(report(behind=1)), False),
        ("nobody knows how many", states(report(behind=None)), False),
        ("kinds not listed yet", states(report(observed=False)), False),
        ("a timer within the horizon", states(report(timer=5.0)), False),
        ("a timer beyond it", states(report(timer=7.0)), True),
    ],
)
def test_when_nothing_is_left_to_do(reason: str, found: States, settled: bool) -> None:
    """Every lease has one holder, who is done; what is not known is not done."""
    assert found.is_settled(horizon_seconds=6.0) is settled, reason


def test_who_is_busy_is_named() -> None:
    """Work under way, or a lease without a holder."""
    halves = (report(range(5), timer=9.0), report(range(5, ALL.stop), timer=3.0))
    assert states(*halves).busy() == []
    assert states(report(idle=False)).busy() == ["unroll"]
    assert states(halves[0]).busy() == ["unroll"]


def test_a_timer_is_work_to_come_in_the_services_that_are_given() -> None:
    """Of several processes the earliest counts."""
    halves = states(report(range(5), timer=9.0), report(range(5, ALL.stop), timer=3.0))
    assert halves.has_timer_within({"unroll": 3.0})
    assert not halves.has_timer_within({"unroll": 2.9, "render": 9.0})
    assert not states(report()).has_timer_within({"unroll": 9.0})


@pytest.mark.slow
async def test_a_child_that_refuses_its_settings_says_which() -> None:
    """Bad usage comes through as such, with the child's own words."""
    with pytest.raises(UsageError, match='invalid bus URL "nonsense"'):
        async with ChildProcess("render/1", "run", "render", "--bus", "nonsense"):
            pass


@pytest.mark.slow
async def test_a_child_that_cannot_begin_says_why(tmp_path: Path) -> None:
    """Anything else that keeps it from serving is an error, with the child's own words, too."""
    (tmp_path / "bus.db").write_text("this is no database, and never was " * 200)
    with pytest.raises(PermanentError, match=r"bus\.db"):
        async with ChildProcess("render/1", "run", "render", "--bus", f"sqlite:{tmp_path}/bus.db"):
            pass
