"""An informer, whatever happens in whatever order: it never deletes on a partial view.

`ObservedMachine` plays an API server and the shell: objects change, requests are answered late, out of order
or not at all, watches end, discovery comes and goes. It knows what the informer has been shown. Each row is
judged when it is emitted; at the end faults stop, and the rows must equal the world.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from pvbus.core.kernel.keys import CHECK_PREFIX, parse_okey
from pvbus.core.kernel.markers import SyncView, is_marker
from pvbus.core.kernel.objectrows import Emission
from pvbus.core.kernel.records import OBJECTS, ObjectRow
from pvbus.core.variants.ingest import events
from pvbus.core.variants.ingest.commands import Operation
from pvbus.core.variants.ingest.events import Event
from tests.unit.core.variants.informing import (
    FORBIDDEN,
    GONE,
    PARTITIONS,
    SILENT,
    TRANSIENT,
    Informed,
    ListedWorld,
    Object,
)

NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)


class Judged(Informed):
    """An informer whose rows are judged by what it has been shown."""

    world: "RecordedWorld"

    def __init__(self, world: "RecordedWorld") -> None:
        self.shown: dict[str, Object | None] = {}  # by the last complete list, and every event and read since
        self.before: dict[str, Object | None] = {}  # shown before the last list
        self.rows: dict[str, str] = {}  # of the objects topic: name -> label
        self.view = SyncView(PARTITIONS)
        self.cause = 0  # the number of the event with which the read began that is being taken
        self.asked_at: dict[str, int] = {}  # the version of the world at which a check was asked for
        self.floors = dict.fromkeys(NAMES, 0)  # by answers: rows show no older versions of the world
        super().__init__(world)
        self.world = world

    def feed(self, event: Event) -> None:
        self._show(event)
        super().feed(event)

    def finish(self, operation: Operation, event: Event) -> None:
        self.cause = self.running[operation].began
        super().finish(operation, event)

    def perform(self, operation: Operation) -> bool:
        self.cause = self.running[operation].began
        return super().perform(operation)

    def _show(self, event: Event) -> None:
        match event:
            case events.Listed(resource_version=version, items=items):
                listed = {obj["metadata"]["name"]: dict(obj) for obj in items}
                self.before = dict(self.shown)
                # What an aggregated API leaves out is not gone.
                self.shown = {**({} if version else self.shown), **listed}
            case events.ReadFailed(purpose="left out"):
                self.shown = self.before  # an incomplete list shows nothing
            case events.Delivered(type="BOOKMARK"):
                pass
            case events.Delivered(type=kind, object=obj):
                self.shown[obj["metadata"]["name"]] = None if kind == "DELETED" else dict(obj)
            case events.ObjectRead(purpose="gone" | "left out", name=(_, name), object=obj):
                self.shown[name] = None if obj is None else dict(obj)

    def write(self, emission: Emission) -> None:
        super().write(emission)
        if emission.topic != OBJECTS:
            return
        if is_marker(emission.key):
            self.view.load(emission.partition or 0, emission.key, emission.value)
            if self.view.ok(str(self.kind), "default"):
                self._judge_completeness()
        elif emission.key.startswith(CHECK_PREFIX):
            self._judge_answer(emission)
        else:
            name = parse_okey(emission.key).name
            if emission.value is None:
                assert self.shown.get(name) is None, f"{name} is not gone"
                if self.world.aggregated:
                    assert name in self.shown, f"{name} was not looked for"
                del self.rows[name]
            else:
                self.rows[name] = msgspec.json.decode(emission.value, type=ObjectRow).labels["env"]
            self._judge_age(name)

    def _judge_completeness(self) -> None:
        shown = {name: env_of(obj) for name, obj in self.shown.items() if obj is not None}
        assert self.rows == shown, "complete, and yet not what was shown"

    def _judge_answer(self, emission: Emission) -> None:
        """The read began after it was asked, and from now on the rows are at least as new as the question."""
        request, number = self.asked.pop(emission.key)
        assert emission.digest == request.nonce
        assert self.cause >= number, "the read began before it was asked"
        # An aggregated API may leave out of a list what nobody knew or asked about.
        known = tuple(self.rows) if self.world.aggregated else NAMES
        for name in [text.partition("/")[2] for text in request.names] or known:
            self.floors[name] = max(self.floors[name], self.asked_at[emission.key])
            self._judge_age(name)

    def _judge_age(self, name: str) -> None:
        history = self.world.history[name]
        before = [env for version, env in history if version <= self.floors[name]]
        after = [env for version, env in history if version > self.floors[name]]
        assert self.rows.get(name) in [*before[-1:], *after], f"{name} is older than an answer says"

    def ask(self, skey: str, nonce: str, *names: str) -> str:
        key = super().ask(skey, nonce, *names)
        self.asked_at[key] = len(self.world.log)
        return key


class RecordedWorld(ListedWorld):
    """Remembers the labels of each object, by version; None where it did not exist."""

    def __init__(self, *, aggregated: bool) -> None:
        self.history: dict[str, list[tuple[int, str | None]]] = {name: [(0, None)] for name in NAMES}
        super().__init__(aggregated=aggregated)

    def put(self, name: str, env: str = "", **fields: Any) -> None:
        super().put(name, env or f"e{len(self.log)}", **fields)
        self.history[name].append((len(self.log), env_of(self.objects[name])))

    def remove(self, name: str, *, is_sent: bool = True) -> None:
        super().remove(name, is_sent=is_sent)
        self.history[name].append((len(self.log), None))


def env_of(obj: Object) -> str:
    return str(obj["metadata"]["labels"]["env"])


class ObservedMachine(RuleBasedStateMachine):
    """Random events; see the module."""

    aggregated = False

    def __init__(self) -> None:
        super().__init__()
        self.informed = Judged(RecordedWorld(aggregated=self.aggregated))
        self.world = self.informed.world
        self.nonce = 0

    # ------------------------------------------------------------ the world

    @rule(name=names)
    def put(self, name: str) -> None:
        self.world.put(name)

    @rule(name=names)
    def touch(self, name: str) -> None:
        """Change the version of an object, and nothing else."""
        if name in self.world.objects:
            self.world.put(name, env_of(self.world.objects[name]))

    @rule(name=names, is_sent=st.booleans())
    def remove(self, name: str, is_sent: bool) -> None:
        if name in self.world.objects:
            self.world.remove(name, is_sent=is_sent or not self.aggregated)

    @rule(is_served=st.booleans(), versions=st.sampled_from((("v1",), ("v2", "v1"))), left_out=st.sets(names))
    def serve(self, is_served: bool, versions: tuple[str, ...], left_out: set[str]) -> None:
        self.world.is_served = is_served
        self.world.versions = versions
        self.world.left_out = left_out
        self.informed.feed(events.Probed())

    # ------------------------------------------------------------ the shell

    @rule(data=st.data(), steps=st.integers(1, 2))
    def perform(self, data: Any, steps: int) -> None:
        for _ in range(steps):
            if self.informed.running:
                self.informed.perform(data.draw(st.sampled_from(sorted(self.informed.running))))

    @rule(data=st.data(), fault=st.sampled_from((TRANSIENT, SILENT, GONE, FORBIDDEN)))
    def fail(self, data: Any, fault: events.Fault) -> None:
        if self.informed.running:
            operation = data.draw(st.sampled_from(sorted(self.informed.running)))
            failed: dict[str, Event] = {
                "resolve": events.ResolveFailed(fault=fault),
                "list": events.ListFailed(fault=fault),
                "watch": events.WatchEnded(fault=fault),
                "versions": events.VersionsRead(versions=None),
            }
            self.informed.finish(
                operation,
                failed.get(operation, events.ReadFailed(purpose=operation, fault=fault)),
            )

    @precondition(lambda self: "watch" in self.informed.running)
    @rule()
    def end_watch(self) -> None:
        self.informed.finish("watch", events.WatchEnded())

    @rule(seconds=st.sampled_from((0.1, 1.0, 6.0, 40.0)))
    def sleep(self, seconds: float) -> None:
        """Let the time pass without any answer."""
        end = self.informed.now + seconds
        while self.informed.informer.wake_at <= end:
            self.informed.tick()
        self.informed.now = end

    @rule(seconds=st.sampled_from((0.1, 6.0, 70.0)))
    def run(self, seconds: float) -> None:
        self.informed.run(seconds)

    @rule()
    def restart(self) -> None:
        """A new informer begins with what the bus has; the requests are on the bus too."""
        informed = self.informed
        informed.start()
        informed.shown = {}
        for key, (request, _) in list(informed.asked.items()):
            informed.feed(events.CheckAsked(key=key, request=request))
            informed.asked[key] = (request, informed.number)
            informed.asked_at[key] = len(self.world.log)

    # ------------------------------------------------------------ requests

    @rule(skey=st.sampled_from(("s1", "s2")), asked=st.sets(names, max_size=2))
    def ask(self, skey: str, asked: set[str]) -> None:
        self.nonce += 1
        self.informed.ask(skey, f"n{self.nonce}", *sorted(f"default/{name}" for name in asked))

    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        if self.informed.asked:
            self.informed.withdraw(data.draw(st.sampled_from(sorted(self.informed.asked))))

    # ------------------------------------------------------------ the end

    def teardown(self) -> None:
        """When faults stop, the rows equal the world, and every request is answered."""
        self.world.is_served = True
        self.informed.feed(events.Probed())
        self.informed.run(1500)
        assert self.informed.rows == {
            n: o["metadata"]["labels"]["env"] for n, o in self.world.objects.items()
        }
        assert self.informed.view.ok(str(self.informed.kind), "default")
        assert self.informed.markers[OBJECTS].versions == self.world.versions
        assert self.informed.asked == {}
        self.informed.emitted.clear()
        self.informed.start()
        self.informed.run(1)
        assert self.informed.emitted == [], "a restart of a converged system writes nothing"


class AggregatedMachine(ObservedMachine):
    """The same with an aggregated API, which leaves objects out of lists and deletions out of watches."""

    aggregated = True


TestObserved = pytest.mark.slow(ObservedMachine.TestCase)
TestAggregated = pytest.mark.slow(AggregatedMachine.TestCase)
for case in (TestObserved, TestAggregated):
    case.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
del case  # or it would be collected as a test
