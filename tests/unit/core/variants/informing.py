"""An informer without a shell: a world that it observes, and a driver that runs its commands step by step."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.keys import CHECK_PREFIX, check_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.objectrows import Emission, topics_of
from pvbus.core.kernel.records import (
    INJECTABLES,
    OBJECTS,
    CheckAnswer,
    CheckRequest,
    InjectableRow,
    ObjectRow,
    SyncMarker,
)
from pvbus.core.variants.ingest import commands, events
from pvbus.core.variants.ingest.commands import Command, Operation
from pvbus.core.variants.ingest.events import REPLAY_END, Event, Fault
from pvbus.core.variants.ingest.informer import Informer
from pvbus.core.variants.ingest.published import Name

SITE = Kind("example.org", "Site")
PARTITIONS = 2
Object = dict[str, Any]
TRANSIENT = Fault(reason="transient", message="503")
GONE = Fault(reason="gone", message="410")
SILENT = Fault(reason="silent", message="nothing came for 90 s")
FORBIDDEN = Fault(reason="permanent", message="403 Forbidden", is_forbidden=True)


class ListedWorld:
    """The objects of one kind, and how an API server shows them.

    aggregated: lists have no version, and omit the objects in `left_out`; watches begin with a replay, which
    ends with a bookmark if `has_bookmark`. Each fault fails the next request of its sort.
    """

    def __init__(self, *names: str, aggregated: bool = False) -> None:
        self.objects: dict[str, Object] = {}
        self.log: list[events.Delivered] = []
        self.is_served = True
        self.versions: tuple[str, ...] = ("v1",)
        self.aggregated = aggregated
        self.left_out: set[str] = set()
        self.has_bookmark = True
        self.is_flowing = True  # else watches show nothing
        self.faults: dict[str, list[Fault]] = {"resolve": [], "list": [], "watch": [], "read": []}
        for name in names:
            self.put(name)

    def put(self, name: str, env: str = "test", **fields: Any) -> None:
        kind = "MODIFIED" if name in self.objects else "ADDED"
        meta = {"name": name, "namespace": "default", "uid": name, "labels": {"env": env}}
        meta["resourceVersion"] = str(len(self.log) + 1)
        self.objects[name] = {"metadata": meta, **fields}
        self.log.append(events.Delivered(type=kind, object=self.objects[name]))  # type: ignore[arg-type]

    def remove(self, name: str, *, is_sent: bool = True) -> None:
        """Delete an object. is_sent False: watches do not show it."""
        obj = self.objects.pop(name)
        version = str(len(self.log) + 1)
        meta = {**obj["metadata"], "resourceVersion": version}
        gone = events.Delivered(type="DELETED", object={**obj, "metadata": meta})
        bookmark = events.Delivered(type="BOOKMARK", object={"metadata": {"resourceVersion": version}})
        self.log.append(gone if is_sent else bookmark)

    def fault(self, sort: str) -> Fault | None:
        return self.faults[sort].pop(0) if self.faults[sort] else None


class Running(NamedTuple):
    """An operation under way. began: the number of the event that it began with."""

    command: Command
    began: int
    replay: list[events.Delivered]
    position: list[int]  # of the log, in one item
    left: list[Name]


class Informed:
    """Runs the commands of an informer, and keeps the rows that it emits."""

    def __init__(self, world: ListedWorld, content: Iterable[str] = (), kind: Kind = SITE) -> None:
        self.world = world
        self.kind = kind
        self.now = 1000.0
        self.rng = 1.0
        self.number = 0  # of the last event
        self.known: dict[str, dict[str, str]] = {OBJECTS: {}, INJECTABLES: {}}
        self.markers: dict[str, SyncMarker] = {}
        self.emitted: list[Emission] = []
        self.counts = {"list": 0, "watch": 0, "read": 0}
        self.asked: dict[str, tuple[CheckRequest, int]] = {}
        self.start(content)

    def start(self, content: Iterable[str] = ()) -> None:
        """Begin with a new informer, from what the bus has, as after a restart."""
        self.running: dict[Operation, Running] = {}
        self.informer = Informer(
            self.kind,
            partitions=PARTITIONS,
            topics=topics_of(self.kind, requested=True),
            known=self.known,
            markers=self.markers,
            content=frozenset(("default", name) for name in content),
        )

    # ------------------------------------------------------------ the shell's part

    def feed(self, event: Event) -> None:
        self.number += 1
        for command in self.informer.step(event, self.now, self.rng):
            self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case Emission():
                self.write(command)
            case commands.Resolve():
                self._begin("resolve", command)
            case commands.List():
                self._begin("list", command)
            case commands.Watch():
                self._begin("watch", command)
            case commands.ReadVersions():
                self._begin("versions", command)
            case commands.Read(purpose=purpose):
                self._begin(purpose, command)
            case commands.Stop(operations=operations):
                for operation in operations:
                    self.running.pop(operation, None)

    def write(self, emission: Emission) -> None:
        self.emitted.append(emission)

    def _begin(self, operation: Operation, command: Command) -> None:
        assert operation not in self.running
        replay: list[events.Delivered] = []
        position = [len(self.world.log)]
        if isinstance(command, commands.Watch):
            self.counts["watch"] += 1
            if command.resource_version:
                position = [int(command.resource_version)]
            else:
                replay = self._replay()
        names = list(command.names) if isinstance(command, commands.Read) else []
        self.running[operation] = Running(command, self.number, replay, position, names)

    def _replay(self) -> list[events.Delivered]:
        replay = [events.Delivered(type="ADDED", object=obj) for obj in self.world.objects.values()]
        if self.world.has_bookmark:
            meta = {"resourceVersion": "0", "annotations": {REPLAY_END: "true"}}
            replay.append(events.Delivered(type="BOOKMARK", object={"metadata": meta}))
        return replay

    # ------------------------------------------------------------ the server's part

    def perform(self, operation: Operation) -> bool:
        """Advance an operation by one event; return False if there is none for now."""
        running = self.running[operation]
        world = self.world
        match operation:
            case "resolve":
                fault = world.fault("resolve")
                served = events.Served() if world.is_served else events.NotServed()
                self.finish(operation, events.ResolveFailed(fault=fault) if fault else served)
            case "list":
                self.counts["list"] += 1
                fault = world.fault("list")
                self.finish(operation, events.ListFailed(fault=fault) if fault else self._listed())
            case "versions":
                self.finish(operation, events.VersionsRead(versions=world.versions))
            case "watch":
                return self._perform_watch(running)
            case purpose:
                self.counts["read"] += 1
                fault = world.fault("read")
                if fault:
                    self.finish(operation, events.ReadFailed(purpose=purpose, fault=fault))
                else:
                    name = running.left.pop(0)
                    found = world.objects.get(name[1]) if name[0] == "default" else None
                    event = events.ObjectRead(purpose=purpose, name=name, object=found)
                    self.feed(event) if running.left else self.finish(operation, event)
        return True

    def finish(self, operation: Operation, event: Event) -> None:
        del self.running[operation]
        self.feed(event)

    def _listed(self) -> events.Listed:
        world = self.world
        items = [
            obj for name, obj in world.objects.items() if not world.aggregated or name not in world.left_out
        ]
        version = "" if world.aggregated else str(len(world.log))
        return events.Listed(versions=world.versions, resource_version=version, items=items)

    def _perform_watch(self, running: Running) -> bool:
        world = self.world
        if not world.is_flowing:
            return False
        if world.faults["watch"]:
            fault = world.faults["watch"].pop(0)
            self.finish("watch", events.WatchEnded(fault=fault))
        elif running.replay:
            self.feed(running.replay.pop(0))
        elif running.position[0] < len(world.log):
            running.position[0] += 1
            self.feed(world.log[running.position[0] - 1])
        else:
            return False
        return True

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """Advance the time to the informer's `wake_at`."""
        self.now = max(self.now, self.informer.wake_at)
        self.feed(events.Tick())

    def run(self, seconds: float) -> None:
        """Run all operations for a while, with immediate answers."""
        end = self.now + seconds
        while True:
            if any(self.perform(operation) for operation in list(self.running) if operation in self.running):
                continue
            if self.informer.wake_at > end:
                self.now = end
                return
            self.tick()

    # ------------------------------------------------------------ requests

    def ask(self, skey: str, nonce: str, *names: str) -> str:
        key = check_key(*self.kind, skey)
        request = CheckRequest(group=self.kind.group, kind=self.kind.kind, nonce=nonce, names=names)
        self.feed(events.CheckAsked(key=key, request=request))
        self.asked[key] = (request, self.number)
        return key

    def withdraw(self, key: str) -> None:
        self.asked.pop(key, None)
        self.feed(events.CheckWithdrawn(key=key))

    def request_content(self, *names: str) -> bool:
        """Request the content of these objects; False if a new informer must list."""
        content = frozenset(("default", name) for name in names)
        can_change = self.informer.can_change_content(content)
        self.feed(events.ContentChanged(content=content))
        return can_change

    # ------------------------------------------------------------ what was written

    def story(self, topic: str = OBJECTS) -> list[str]:
        """Take what was emitted to a topic: +name=label, -name, markers, !nonce of answers."""
        story: list[str] = []
        for emission in self.emitted:
            key, value = emission.key, emission.value or b""
            if emission.topic != topic or emission.partition not in (None, PARTITIONS - 1):
                continue
            if is_marker(key):
                story.append(msgspec.json.decode(value, type=SyncMarker).state)
            elif key.startswith(CHECK_PREFIX):
                story.append(f"!{msgspec.json.decode(value, type=CheckAnswer).nonce}")
            elif value and topic == OBJECTS:
                env = msgspec.json.decode(value, type=ObjectRow).labels.get("env", "")
                story.append(f"+{key.split('|')[2]}={env}")
            elif value:
                exists = msgspec.json.decode(value, type=InjectableRow).exists
                story.append(f"{'+' if exists else '?'}{key.split('|')[2]}")
            else:
                story.append(f"-{key.split('|')[2]}")
        self.emitted.clear()
        return story
