"""A stop of all rollouts: what it holds, what it lets go on, how it ends, and how release confirms it."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.stops import StopEntry, StopLift
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Outcome, Patch
from pvbus.core.kernel.keys import WITHDRAWN, StopKey, reconciled_partition, sync_key
from pvbus.core.kernel.objectrows import STOP
from pvbus.core.kernel.records import POLICIES, ROLLOUTS, Coverage, Refusal, SyncMarker
from pvbus.core.kernel.rolloutrows import Rollout
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.stops import FLEET_STOPPED, STOP_UNKNOWN, StopView
from pvbus.core.promotion.release.controller import ReleaseController, confirming_key
from tests.kit.deciding import drive
from tests.unit.core.promotion.approving import NEW, OLD, V1, V2, ReleaseWorld, planned, published
from tests.unit.core.promotion.promoting import KEY, NOW, PromoteWorld, draft, stop
from tests.unit.core.promotion.rolling import KEY as POLICY_KEY
from tests.unit.core.promotion.rolling import Bench

ANN = StopEntry(name="1", reason="payments are down", by="ann", at="2026-02-01T00:10:00Z")
EVE = StopEntry(name="2", reason="bad release", by="eve", let_roll_backs=True)
LIFTED = StopLift(reason="payments are back", by="bob")
STOP_KEY = str(StopKey("default", "fleet"))


def lifted(entry: StopEntry) -> StopEntry:
    return msgspec.structs.replace(entry, lifted=LIFTED)


def marker(state: Any, message: str = "", *refused: Refusal) -> bytes:
    coverage = Coverage(namespaces=("default",) if refused else (), refused=refused)
    return msgspec.json.encode(SyncMarker(state=state, epoch=1, message=message, coverage=coverage))


# ------------------------------------------------------------ what it comes to


@pytest.mark.parametrize(
    ("reason", "entries", "stopped", "undo"),
    [
        ("nobody wants it", (), False, True),
        ("one person", (ANN,), True, False),
        ("one person, who lets rollbacks go on", (EVE,), True, True),
        ("two people, of whom one lets rollbacks go on", (ANN, EVE), True, False),
        ("one of two has lifted", (lifted(ANN), EVE), True, True),
        ("both have lifted", (lifted(ANN), lifted(EVE)), False, True),
    ],
)
def test_a_stop_lasts_until_its_last_entry_is_lifted(
    reason: str, entries: tuple[StopEntry, ...], stopped: bool, undo: bool
) -> None:
    view = StopView(1)
    view.load(0, sync_key(*STOP), marker("ok"))
    view.load(0, STOP_KEY, msgspec.json.encode(stop(*entries)))
    found = view.standstill
    assert (found.holds(is_rollback=False), not found.holds(is_rollback=True)) == (stopped, undo), reason
    assert all(each.reason in found.message for each in entries if each.lifted is None), reason


@pytest.mark.parametrize(
    ("reason", "value", "words"),
    [
        ("no list yet", None, "being listed"),
        ("a list begins", marker("syncing"), "being listed"),
        ("nobody watches it", marker("unwatched"), "being listed"),
        ("the kind is not installed", marker("unavailable", "no matches for kind"), "apply its definition"),
        ("no right to list it", marker("unavailable", "forbidden"), "pvbus doctor"),
        (
            "one namespace is refused",
            marker("ok", "", Refusal(namespace="b", message="forbidden")),
            "pvbus doctor",
        ),
    ],
)
def test_a_stop_that_may_exist_unseen_holds_everything(reason: str, value: bytes | None, words: str) -> None:
    view = StopView(1)
    if value is not None:
        view.load(0, sync_key(*STOP), value)
    view.load(0, STOP_KEY, msgspec.json.encode(stop(EVE)))
    assert view.standstill.reason == STOP_UNKNOWN, reason
    assert words in view.standstill.message, reason
    assert view.standstill.holds(is_rollback=True), "another entry may not let it"


# ------------------------------------------------------------ release


def approving() -> ReleaseWorld:
    world = planned()
    world.order("approve", V2, NEW)
    return world


def restoring() -> ReleaseWorld:
    world = published()
    world.order("restore", V1, OLD)
    return world


def withdrawing() -> ReleaseWorld:
    world = planned()
    world.order("withdraw", V2, NEW)
    return world


def test_drafts_that_become_ready_are_proposed_while_a_stop_lasts() -> None:
    world = PromoteWorld(draft())
    world.write(POLICIES, STOP_KEY, stop(ANN))
    world.run(world.promote)
    world.run(world.release)
    assert world.server.moves == ["Proposed"]


def test_release_carries_out_no_approval_while_a_stop_lasts() -> None:
    world = approving()
    world.stop(ANN)
    outcome = world.run()
    assert outcome is not None
    assert (world.package.writes, world.package.reads) == ([], 0)
    assert any(each.startswith(FLEET_STOPPED) and ANN.reason in each for each in outcome.waiting)
    world.stop(lifted(ANN))
    world.run()
    assert world.package.writes == [(V2, "Published")]


def test_deleting_the_object_lifts_all_of_it() -> None:
    world = approving()
    world.stop(ANN, EVE)
    world.run()
    world.write(POLICIES, STOP_KEY, None)
    world.run()
    assert world.package.writes == [(V2, "Published")]


@pytest.mark.parametrize(("entry", "writes"), [(ANN, 0), (EVE, 3)])
def test_a_rollback_stops_too_unless_it_is_let_go_on(entry: StopEntry, writes: int) -> None:
    world = restoring()
    world.stop(entry)
    world.run()
    assert len(world.package.writes) == writes


def test_an_order_is_taken_back_while_a_stop_lasts_and_when_none_can_be_seen() -> None:
    for state in ("ok", "unavailable"):
        world = withdrawing()
        world.list_stops(state)
        world.stop(ANN)
        world.run()
        assert world.outcome == "withdrawn"
        assert WITHDRAWN in world.package.revisions[V2]["metadata"]["annotations"]


@pytest.mark.parametrize("state", ["syncing", "unavailable", "unwatched"])
@pytest.mark.parametrize("make", [approving, restoring])
def test_release_gives_no_order_while_it_cannot_see_the_stops(make: Any, state: str) -> None:
    world = make()
    world.list_stops(state, "no matches for kind")
    outcome = world.run()
    assert world.package.writes == []
    assert any(each.startswith(STOP_UNKNOWN) for each in outcome.waiting)


def test_a_stop_that_comes_in_the_middle_of_an_order_is_in_time_until_the_write_is_sent() -> None:
    for make in (approving, restoring):
        world, reads = make(), 0

        def perform(effect: Any, world: ReleaseWorld = world) -> Any:
            nonlocal reads
            reads += 1
            if reads == 2:
                world.stop(ANN)
            return world.package.perform(effect)

        world.decide(world.release, KEY, NOW, perform)
        assert "Published" not in [what for _, what in world.package.writes]


# ------------------------------------------------------------ confirmation


class Confirming:
    """Release of three partitions, and the object that it confirms."""

    def __init__(self) -> None:
        self.release = ReleaseController(partitions=3)
        self.stop = stop(ANN)
        for number in range(3):
            self.release.open(number)
            self.release.load(POLICIES, number, sync_key(*STOP), marker("ok"))
        self.patches: list[Any] = []

    def observe(self, generation: int) -> set[str]:
        meta = msgspec.structs.replace(self.stop.metadata, generation=generation)
        self.stop = msgspec.structs.replace(self.stop, metadata=meta)
        return set(self.release.load(POLICIES, 0, STOP_KEY, msgspec.json.encode(self.stop)))

    def confirm(self, number: int) -> Outcome:
        def perform(effect: Any) -> Any:
            assert isinstance(effect, Patch)
            assert effect.subresource == "status"
            status = effect.patch["status"]
            both = {**self.stop.status.confirmed, **status["confirmed"]}
            written = msgspec.structs.replace(
                self.stop.status, partitions=status["partitions"], confirmed=both
            )
            self.stop = msgspec.structs.replace(self.stop, status=written)
            self.patches.append(status["confirmed"])

        outcome: Outcome = drive(self.release.reconcile(number, confirming_key(number, 3), NOW), perform)
        self.observe(self.stop.metadata.generation)
        return outcome


def test_each_partition_confirms_each_generation_once() -> None:
    world = Confirming()
    keys = world.observe(1)
    assert {reconciled_partition(key, 3) for key in keys} == {0, 1, 2}
    for _ in range(2):
        for number in range(3):
            world.confirm(number)
    assert world.patches == [{"0": 1}, {"1": 1}, {"2": 1}]
    world.observe(2)
    world.confirm(1)
    assert world.patches[3:] == [{"1": 2}]
    assert all(confirming_key(n, 3) in world.release.keys(n) for n in range(3)), "also after a restart"


def test_a_stop_is_confirmed_when_no_order_is_under_way_that_began_before_it() -> None:
    world = approving()
    steps = world.release.reconcile(0, KEY, NOW)
    live = world.package.perform(next(steps))
    world.stop(ANN)
    confirming = confirming_key(0, 1)
    outcome = drive(world.release.reconcile(0, confirming, NOW), world.package.perform)
    assert outcome.result == "waiting"
    assert outcome.again_after
    files = world.package.perform(steps.send(live))
    with pytest.raises(StopIteration):
        steps.send(files)
    effect = next(world.release.reconcile(0, confirming, NOW))
    assert isinstance(effect, Patch)
    assert world.package.writes == []


def test_a_confirmation_of_a_stop_that_is_deleted_is_dropped_and_one_that_is_refused_is_an_error() -> None:
    world = Confirming()
    world.observe(1)
    for reason in ("NotFound", "Forbidden"):
        steps = world.release.reconcile(0, confirming_key(0, 3), NOW)
        next(steps)
        with pytest.raises(StopIteration if reason == "NotFound" else PermanentError):
            steps.throw(PermanentError("no", reason=reason))


# ------------------------------------------------------------ rollout


def stopped(bench: Bench, *entries: StopEntry) -> None:
    bench.write(POLICIES, STOP_KEY, msgspec.json.encode(stop(*entries)))


def rollout_of(bench: Bench) -> Rollout:
    return msgspec.json.decode(bench.rows[ROLLOUTS, POLICY_KEY], type=Rollout)


def test_a_rollout_orders_nothing_and_counts_no_time_while_a_stop_lasts() -> None:
    bench = Bench(2, waves=[{"count": 1, "timeout": "10m"}, {"percent": 100}]).go()
    assert bench.targets == {"t0": TargetState.ORDERED, "t1": TargetState.PLANNED}
    stopped(bench, ANN)
    bench.publish("t0", good=None).go(3_600)
    progress = bench.condition("Progressing")
    assert (progress.status, progress.reason) == ("False", FLEET_STOPPED)
    assert ANN.reason in progress.message
    assert rollout_of(bench).state is RolloutState.ROLLING
    bench.publish("t0").go()
    assert bench.targets["t1"] == TargetState.PLANNED
    stopped(bench, lifted(ANN))
    bench.go()
    assert bench.targets["t1"] == TargetState.ORDERED
    assert rollout_of(bench).wave_seconds < 60


@pytest.mark.parametrize(("entry", "state"), [(ANN, TargetState.PROVEN), (EVE, TargetState.UNDOING)])
def test_a_stop_holds_a_rollback_that_it_does_not_let_go_on(entry: StopEntry, state: TargetState) -> None:
    bench = Bench(1, waves=[{"percent": 100}]).go()
    bench.publish("t0").go()
    bench.annotate(roll_back="1: it is a rehearsal")
    stopped(bench, entry)
    bench.go()
    assert rollout_of(bench).state is RolloutState.ROLLING_BACK
    assert bench.targets["t0"] == state
    assert (bench.condition("Progressing").reason == FLEET_STOPPED) is (entry is ANN)


def test_a_rollout_stands_still_while_the_kind_is_not_installed() -> None:
    bench = Bench(1)
    bench.write(POLICIES, sync_key(*STOP), SyncMarker(state="unavailable", epoch=2, message="no matches"))
    bench.go()
    assert bench.targets == {}
    assert bench.condition("Progressing").reason == STOP_UNKNOWN


def test_the_stop_of_any_namespace_holds() -> None:
    view = StopView(1)
    view.load(0, sync_key(*STOP), marker("ok"))
    view.load(0, str(StopKey("team-b", "ours")), msgspec.json.encode(stop(ANN)))
    assert view.standstill.reason == FLEET_STOPPED
