"""The plan of faults, and the order in which facts of several sources are judged."""

from collections import Counter
from itertools import pairwise

import pytest

from tests.chaos.__main__ import legs, table
from tests.chaos.judge import CHECKS, Found
from tests.chaos.leg import FINAL, Leg, Outcome
from tests.chaos.plan import LANES, SECONDS, Strike, lanes
from tests.chaos.timeline import Timeline
from tests.tools.faultyapi import ApiFault


def test_an_hour_has_a_hundred_of_each_kind() -> None:
    """Divided into legs as the command does, also what only one of the worlds has."""
    planned: Counter[object] = Counter()
    for leg in legs(60, "both", 7, 60):
        for faults in lanes(leg.seed, leg.seconds, has_etcd=leg.world == "real").values():
            planned.update(fault.kind for fault in faults)
    assert planned.keys() == {*Strike, *ApiFault}
    assert min(planned.values()) >= 100


def test_a_seed_repeats_its_plan_and_another_one_does_not() -> None:
    assert lanes(1, 600, has_etcd=True) == lanes(1, 600, has_etcd=True)
    assert lanes(1, 600, has_etcd=True) != lanes(2, 600, has_etcd=True)


@pytest.mark.parametrize("seconds", [10, 90, 3600])
def test_faults_are_in_order_within_their_time_and_one_of_each_kind_at_least(seconds: float) -> None:
    for lane, planned in lanes(3, seconds, has_etcd=True).items():
        assert {fault.kind for fault in planned} == set(LANES[lane])
        assert all(one.at <= other.at for one, other in pairwise(planned))
        assert all(0 <= fault.at < seconds for fault in planned)
        for fault in planned:
            least, most = SECONDS.get(fault.kind, (0.0, 0.0))
            assert least <= fault.seconds <= most


def test_services_are_frozen_for_up_to_a_minute() -> None:
    frozen = [fault.seconds for fault in lanes(3, 900, has_etcd=True)["freezes"]]
    assert min(frozen) < 20
    assert max(frozen) > 50


def test_two_brokers_are_never_struck_beside_a_third() -> None:
    """All faults of brokers are of one lane, whose faults do not overlap."""
    (lane,) = [kinds for kinds in LANES.values() if Strike.BROKERS_KILLED in kinds]
    assert {kind for kind in Strike if "broker" in kind} == set(lane)


@pytest.mark.parametrize(
    ("minutes", "cluster", "worlds"),
    [
        (3, "both", ["real", "embedded"]),
        (60, "both", ["real", "embedded"] * 2),
        (40, "real", ["real"] * 3),
    ],
)
def test_legs_share_the_minutes(minutes: float, cluster: str, worlds: list[str]) -> None:
    planned = legs(minutes, cluster, 1, 60)
    assert [leg.world for leg in planned] == worlds
    assert sum(leg.seconds for leg in planned) == pytest.approx(minutes * 60)
    assert len({leg.seed for leg in planned}) == len(planned)


def test_the_table_has_a_line_for_every_kind_and_check() -> None:
    """Also for those that never came: a missing line would hide that."""
    found = (Found(FINAL, 0, "a is missing"),)
    leg = Leg(0, "real", 1, 60, 60)
    counts = Counter({Strike.SERVICE_KILLED: 2}), Counter({"records": 9}), Counter({CHECKS[0]: 5})
    text = table([Outcome(leg, *counts, found, 90)] * 2)  # type: ignore[arg-type]  # a Counter of one kind
    lines = {line[:40].strip(): line[40:].split() for line in text.splitlines()}
    assert {*map(str, Strike), *map(str, ApiFault), *CHECKS, FINAL, "records"} <= lines.keys()
    assert lines["service killed"] == ["4"]
    assert lines["etcd compacted"] == ["0"]
    assert lines[CHECKS[0]] == ["10", "0"]
    assert lines[FINAL] == ["2", "2"]


def test_facts_come_in_the_order_of_their_time_when_all_sources_are_read() -> None:
    seen: list[str] = []
    times: list[float] = []
    timeline = Timeline("topics", "now")
    for time, name in ((3.0, "order"), (1.0, "check"), (3.0, "after it"), (5.0, "later")):
        timeline.put(time, lambda name=name: seen.append(name))  # type: ignore[misc]  # the default is a name
    timeline.read_until("now", 9.0)
    assert timeline.drain(times.append) == 0
    timeline.read_until("topics", 4.0)
    assert timeline.drain(times.append) == 3
    assert seen == ["check", "order", "after it"]
    timeline.read_until("topics", 2.0)  # a source is not read back
    assert timeline.horizon == 4.0
    timeline.drain(times.append, all_facts=True)
    assert (seen[-1], times) == ("later", [1.0, 3.0, 3.0, 5.0])
