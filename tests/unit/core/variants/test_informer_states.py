"""The informer's transitions: every pair of a state and an event, against the table."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import get_args

import pytest

from pvbus.core.kernel.records import CheckRequest
from pvbus.core.variants.ingest import events
from pvbus.core.variants.ingest.events import REPLAY_END, Event, Fault
from pvbus.core.variants.ingest.states import (
    TRANSITIONS,
    BackingOff,
    Completing,
    Confirming,
    Following,
    Listing,
    Replaying,
    Resolving,
    Resuming,
    State,
    Unserved,
    Watching,
    following,
)
from tests.unit.core.variants.informing import FORBIDDEN, GONE, SILENT, TRANSIENT, Informed, ListedWorld

STATES: tuple[type[State], ...] = get_args(State)
EVENTS: tuple[type[Event], ...] = get_args(Event)
FAULTS: tuple[Fault, ...] = (TRANSIENT, SILENT, GONE, FORBIDDEN)
WATCHED = (Watching, Resuming, Replaying, Confirming, Following)
AGGREGATED = (Completing, Replaying, Confirming, Following)
A, B, Z = ("default", "a"), ("default", "b"), ("default", "z")
SECONDS = (0.0, 0.1, 10.0, 1000.0)  # after which an event comes that depends on the time


def reach(state: type[State], *, is_interruption: bool = False, aggregated: bool = False) -> Informed:
    """Return an informer in a state, which it has reached by its own commands."""
    informed = Informed(ListedWorld("a", "b", aggregated=aggregated or state in AGGREGATED))
    if state is Completing:  # what is known and not in the list is read by name
        informed.run(1)
        informed.start()
        informed.world.left_out = {"a", "b"}
    if is_interruption:
        informed.run(20)
        informed.ask("default/s", "n")
    informed.world.is_served = state is not Unserved
    for _ in range(40):
        if type(informed.informer.state) is state:
            return informed
        advance(informed, state)
    raise AssertionError(f"no way to {state.__name__}")


def advance(informed: Informed, state: type[State]) -> None:
    """Let one thing happen on the way to a state."""
    current = type(informed.informer.state)
    if state is BackingOff and current is Listing:
        informed.world.faults["list"] = [TRANSIENT]
    if state is Resuming and current is Watching:
        informed.world.faults["watch"] = [TRANSIENT]
    if state is Confirming and current is Replaying:
        informed.running["watch"].replay[:-1] = []  # the replay shows nothing
    if not any(informed.perform(o) for o in list(informed.running) if o in informed.running):
        informed.tick()


def checked(state: type[State], *names: str, is_reading: bool) -> Informed:
    """Return an informer for which a read of check requests is due, or under way."""
    informed = reach(state)
    informed.ask("default/s", "n", *names)
    informed.now += 0.1
    if is_reading:
        informed.feed(events.Tick())
    return informed


def probed(state: type[State], *, is_looking: bool) -> Informed:
    informed = reach(state)
    informed.feed(events.Probed())
    if is_looking:
        informed.feed(events.Tick())
    return informed


def shown(state: type[State], *names: str) -> Informed:
    """Return an informer whose watch has shown these objects, or whose reads have found them missing."""
    informed = reach(state)
    for name in names:
        if state is Replaying:
            informed.feed(events.Delivered(type="ADDED", object=informed.world.objects[name]))
        else:
            informed.perform("gone" if state is Confirming else "left out")
    return informed


def refused() -> Informed:
    """Return an informer whose list failed."""
    informed = reach(Listing)
    informed.world.faults["list"] = [TRANSIENT]
    informed.perform("list")
    return informed


def lost() -> Informed:
    """Return an informer whose watches have ended at once for more than half a minute."""
    informed = reach(Watching)
    began = informed.now
    while informed.now - began <= 30:
        informed.finish("watch", events.WatchEnded(fault=TRANSIENT))
        informed.tick()
    return informed


def versionless() -> Informed:
    """Return an informer of a watched kind whose list for a check has no version any more."""
    informed = reach(Listing, is_interruption=True)
    informed.world.aggregated = True
    informed.world.left_out = {"a"}
    informed.perform("list")
    return informed


def variants(state: type[State]) -> list[Callable[[], Informed]]:
    """Return ways to a state which differ in what else is under way, or due."""
    ways: list[Callable[[], Informed]] = [partial(reach, state)]
    if state in (Listing, Completing):
        ways.append(partial(reach, state, is_interruption=True))
    if state is Listing:
        ways.append(partial(reach, state, is_interruption=True, aggregated=True))
    if state is BackingOff:
        ways.append(refused)
    if state in WATCHED:
        for names in ((), ("default/a",), ("default/z",)):
            ways.append(partial(checked, state, *names, is_reading=False))
        ways.append(partial(checked, state, "default/a", is_reading=True))
        ways += [partial(probed, state, is_looking=is_looking) for is_looking in (False, True)]
    if state in (Completing, Replaying, Confirming):
        ways += [partial(shown, state, "a"), partial(shown, state, "a", "b")][: 1 + (state is Replaying)]
    if state is Watching:
        ways.append(lost)
    if state is Completing:
        ways.append(versionless)
    return ways


def samples(event: type[Event]) -> list[Event]:
    """Return events of a type, of every sort that may matter."""
    objects = Informed(ListedWorld("a", "b")).world.objects
    request = CheckRequest(group="example.org", kind="Site", nonce="m")
    end = {"metadata": {"annotations": {REPLAY_END: "true"}}}
    found: dict[type[Event], list[Event]] = {
        events.Tick: [events.Tick()],
        events.Served: [events.Served()],
        events.NotServed: [events.NotServed()],
        events.ResolveFailed: [events.ResolveFailed(fault=fault) for fault in FAULTS],
        events.Listed: [
            events.Listed(versions=("v1",), resource_version=version, items=items)
            for version, items in itertools.product(("9", ""), ([], list(objects.values())))
        ],
        events.ListFailed: [events.ListFailed(fault=fault) for fault in FAULTS],
        events.Delivered: [
            *[events.Delivered(type="MODIFIED", object=obj) for obj in objects.values()],
            events.Delivered(type="DELETED", object=objects["a"]),
            events.Delivered(type="BOOKMARK", object={"metadata": {"resourceVersion": "9"}}),
            events.Delivered(type="BOOKMARK", object=end),
        ],
        events.WatchEnded: [events.WatchEnded(fault=fault) for fault in (None, *FAULTS)],
        events.ObjectRead: [
            events.ObjectRead(purpose=purpose, name=name, object=obj)
            for purpose in get_args(events.Purpose)
            for name, obj in ((A, objects["a"]), (A, None), (B, None), (Z, None))
        ],
        events.ReadFailed: [
            events.ReadFailed(purpose=purpose, fault=fault)
            for purpose in get_args(events.Purpose)
            for fault in FAULTS
        ],
        events.VersionsRead: [
            events.VersionsRead(versions=versions) for versions in (None, ("v1",), ("v2", "v1"))
        ],
        events.Probed: [events.Probed()],
        events.CheckAsked: [
            events.CheckAsked(key="k", request=request, is_repeated=again) for again in (False, True)
        ],
        events.CheckWithdrawn: [events.CheckWithdrawn(key="k")],
        events.ContentChanged: [
            events.ContentChanged(content=content) for content in (frozenset(), frozenset({A}))
        ],
    }
    return found[event]


@pytest.mark.parametrize("state", STATES, ids=lambda each: each.__name__)
def test_each_event_leads_where_the_table_says(state: type[State]) -> None:
    """Neither another state is reached, nor is one in the table that cannot be."""
    for event in EVENTS:
        reached = set()
        times = SECONDS if event in (events.Tick, events.WatchEnded) else SECONDS[:1]
        for way, sample, seconds in itertools.product(variants(state), samples(event), times):
            informed = way()
            assert type(informed.informer.state) is state
            informed.informer.step(sample, informed.now + seconds, 1.0)
            reached.add(type(informed.informer.state))
        assert reached == set(following(state, event)), f"{state.__name__} x {event.__name__}"


def test_the_table_has_all_states_and_no_pair_without_an_effect() -> None:
    assert tuple(TRANSITIONS) == STATES
    for state, pairs in TRANSITIONS.items():
        assert set(pairs) <= set(EVENTS)
        assert all(after != (state,) for after in pairs.values())
        assert all(set(after) <= set(STATES) for after in pairs.values())


def test_every_state_is_reached_and_left() -> None:
    after = {each for pairs in TRANSITIONS.values() for nexts in pairs.values() for each in nexts}
    assert after == set(STATES)
    assert all(set(itertools.chain(*pairs.values())) - {state} for state, pairs in TRANSITIONS.items())


@pytest.mark.parametrize("state", [Resolving, Listing, Completing], ids=lambda each: each.__name__)
def test_while_an_answer_is_awaited_there_is_nothing_to_wake_for(state: type[State]) -> None:
    assert reach(state).informer.wake_at == float("inf")
