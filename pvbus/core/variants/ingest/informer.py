"""Decides for one kind what to list, watch and read next, and which rows and markers to write.

Pure: `Informer.step` takes an event, the time and a random number, and returns the commands for the shell
(`pvbus.runtime.ingest.informer`), the rows among them. States, events, commands and the table of
transitions are in `pvbus.core.variants.ingest.states`.

Rows are emitted in an order that makes absence reliable: `syncing` before the first row of a list,
upserts, tombstones of deleted objects, then `ok`. A list that equals the rows on the bus writes nothing, so
a restart of a converged system is silent. A kind that is not served is `unavailable`, which is not the same
as empty.

A check request (`pvbus.core.variants.ingest.checks`) is answered by a read that begins after it arrives. A
few names are read one by one. If the resourceVersion of a read object is the last one seen, all its older
events have arrived, and its rows are up to date. Any other result (another version, not found) shows only
that the watch may be behind: resourceVersions have no order, so late older events look like newer ones.
Then, and for whole kinds, the kind is listed, the difference is written as at every list, and the watch
continues from the list's version. The answer follows these rows.

A list without a resourceVersion comes from an aggregated API such as Porch's, which guarantees less: it may
omit objects, its watches begin with all existing objects, and it may not send deletions. An object that such
a list or replay omits counts as deleted only if a read by name does not find it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import WHOLE_KINDS
from pvbus.core.kernel.records import SyncMarker
from pvbus.core.variants.ingest import commands, events
from pvbus.core.variants.ingest.checks import Batch, Checks, are_many, named_in, names_of, retry_seconds
from pvbus.core.variants.ingest.commands import Command
from pvbus.core.variants.ingest.events import REPLAY_END, Event, Fault, Purpose
from pvbus.core.variants.ingest.published import Name
from pvbus.core.variants.ingest.states import (
    BackingOff,
    BackOffReason,
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
from pvbus.core.variants.ingest.view import KindView, coverage_notes, name_of, remedy_of
from pvbus.core.variants.ingest.waits import ListTimes, ProbeTimes, WatchTimes

REPLAY_SILENCE_SECONDS = 5.0  # this silence ends a replay that sends no bookmark
REPLAY_RELIST_SECONDS = 600.0  # how long a deletion that was never sent can go unnoticed


class Informer:
    """Decides for one kind. Call `step` with Tick at `wake_at`, and with every other event.

    The way of a kind: resolve how it is served, list it, watch it from the list's version, and resume the
    watch where it ended. The watch of an aggregated API has no such version. It replays all objects; those
    that it does not show are read by name, and count as deleted if they are not found. A new list follows
    after a while, and whenever such a watch ends. Reads by name run beside, at most one for each purpose.

    Invariants: a result that arrives late changes nothing, as a list's counts only in the state that waits
    for it, and an object's only while its name is in `_reading`. What a list or read answers is fixed when it
    begins: check requests that arrive later wait for the next one. A read for checks and a look at the kind's
    versions are never under way at once.

    _reading: purpose -> the names whose objects did not arrive yet; without a read under way, no entry
    """

    def __init__(
        self,
        kind: Kind,
        *,
        partitions: int,
        topics: tuple[str, ...],
        known: dict[str, dict[str, str]],
        markers: dict[str, SyncMarker],
        content: frozenset[Name],
    ) -> None:
        """Create an informer that lists at the first Tick.

        known: topic -> key of each row on the bus -> its digest
        markers: topic -> its marker on the bus
        content: namespace and name of each object whose content is requested; an empty name asks whether the
            namespace has any object of the kind
        """
        self.state: State = BackingOff(until=-math.inf, reason="start")
        self.observed = False  # whether it was listed once, or is known not to be served
        self._commands: list[Command] = []
        self.view = KindView(
            kind,
            self._commands.append,
            partitions=partitions,
            topics=topics,
            known=known,
            markers=markers,
            content=content,
        )
        self._position = ""  # where the watch resumes; "" of an aggregated API
        self._checks = Checks()
        self._reading: dict[Purpose, set[Name]] = {}
        self._batch: Batch = {}  # the requests that the read for checks answers
        self._is_behind = False  # whether that read differs from the last events
        self._is_looking = False  # whether the versions are being read
        self._found: list[Mapping[str, Any]] = []  # objects that a list had left out
        self._replayed: set[Name] = set()
        self._silent_at = math.inf  # when a replay is over without a bookmark
        self._trouble = ""
        self._list_times = ListTimes(self._jitter)
        self._watch_times = WatchTimes(self._jitter)
        self._probe_times = ProbeTimes(self._jitter)
        self._now = -math.inf
        self._rng = 0.0

    # ------------------------------------------------------------ what others see

    @property
    def is_served(self) -> bool:
        """Whether the kind was listed, and has been watched since."""
        if isinstance(self.state, Listing | Completing):
            return self.state.is_interruption
        return not isinstance(self.state, BackingOff | Resolving | Unserved)

    @property
    def wake_at(self) -> float:
        """Return when the next Tick is due; infinity if only another event can change the state."""
        until = self.state.until
        match self.state:
            case BackingOff() | Unserved() | Resolving() | Listing() | Completing():
                return until
            case Replaying():
                until = min(until, self._silent_at)
        if self._is_reading_beside:
            return until
        return min(until, self._probe_times.look_at, self._checks.due_at)

    def can_change_content(self, content: frozenset[Name]) -> bool:
        """Tell whether ContentChanged suffices; if not, a new informer must list."""
        return self.is_served and self.view.is_whole and bool(content or self.view.kind in WHOLE_KINDS)

    # ------------------------------------------------------------ events

    def step(self, event: Event, now: float, rng: float) -> list[Command]:
        """Apply an event and return the commands, in order. rng: a random number from 0 to 1.

        Raises InvariantError if the new state is not in the table.
        """
        self._now, self._rng = now, rng
        self._commands.clear()
        before = type(self.state)
        self._take(event)
        if type(self.state) not in following(before, type(event)):
            raise InvariantError(f"{before.__name__} -> {type(event).__name__} -> {self.state}")
        return [*self._commands]

    def _take(self, event: Event) -> None:
        match event:
            case events.Delivered():
                self._deliver(event)
            case events.Tick():
                self._wake()
            case events.CheckAsked(key=key, request=request):
                self._checks.ask(key, request, self._now)
                if event.is_repeated:
                    self._checks.note_failure(self._now)
            case events.CheckWithdrawn(key=key):
                self._checks.drop(key)
            case events.ContentChanged(content=content):
                self._change_content(content)
            case events.Probed():
                self._probe()
            case events.ObjectRead() | events.ReadFailed() | events.VersionsRead():
                self._take_read(event)
            case events.WatchEnded(fault=fault):
                self._end_watch(fault)
            case _:
                self._take_list(event)

    def _take_list(self, event: events.ListEvent) -> None:
        """Continue after discovery or a list; ignore the event in any other state, where it is outdated."""
        match self.state, event:
            case Resolving(), events.Served():
                self._list(is_interruption=False)
            case Resolving(), events.NotServed():
                self._miss("")
            case Resolving(), events.ResolveFailed(fault=fault):
                self._fail(fault)
            case Listing() as listing, events.Listed() as listed:
                self._complete(listing, listed)
            case Listing(is_interruption=is_interruption), events.ListFailed(fault=fault):
                self._fail_list(fault, is_interruption=is_interruption)

    def _take_read(self, event: events.ReadEvent) -> None:
        match event:
            case events.ObjectRead(purpose=purpose, name=name, object=obj):
                waiting = self._reading.get(purpose, set())
                if name in waiting:
                    waiting.discard(name)
                    self._take_object(purpose, name, obj)
                    self._end_read(purpose)
            case events.ReadFailed(purpose=purpose, fault=fault):
                if self._reading.pop(purpose, None) is not None:
                    self._fail_read(purpose, fault)
            case events.VersionsRead(versions=versions):
                if self._is_looking:
                    self._is_looking = False
                    if versions is not None and versions != self.view.served_versions:
                        self._resolve()

    # ------------------------------------------------------------ time

    def _wake(self) -> None:
        """Do one due thing; the next Tick does the next one."""
        is_due = self._now >= self.state.until
        match self.state:
            case Unserved() if is_due:
                self._resolve(is_fresh=True)
            case BackingOff() | Replaying() | Confirming() | Following() if is_due:
                self._resolve()
            case Resuming() if is_due:
                self._watch()
            case Replaying() if self._now >= self._silent_at:
                self._confirm_gone()
            case Watching() | Resuming() | Replaying() | Confirming() | Following():
                self._read_beside()

    def _probe(self) -> None:
        """Schedule a new look at the kind's versions, because its definition changed."""
        self._probe_times.note_probe(self._now)
        if isinstance(self.state, Unserved):
            self.state = Unserved(until=self._now)

    # ------------------------------------------------------------ resolving, and failures

    def _resolve(self, *, is_fresh: bool = False) -> None:
        self._stop_all()
        self._probe_times.resolving()
        self.state = Resolving()
        self._commands.append(commands.Resolve(is_fresh=is_fresh))

    def _stop_all(self) -> None:
        if self.is_served:
            self._commands.append(commands.Stop(operations=commands.OPERATIONS))
        self._reading.clear()
        self._is_looking = False

    def _fail(self, fault: Fault) -> None:
        """Handle a failure that ends the watch, or prevents the list."""
        if fault.reason == "permanent":
            remedy = f"; {remedy_of(self.view.kind)}" if fault.is_forbidden else ""
            self._miss(fault.message + remedy)
        elif fault.reason == "gone":
            self._back_off("gone")
        else:
            self._back_off("error", fault)
            fields = {"error": fault.message, "retry_seconds": self.wake_at - self._now}
            self._note("warning", "kind cannot be read; trying again", fields)
            if self._watch_times.is_lost(self._now):
                self.view.mark_syncing()

    def _back_off(self, reason: BackOffReason, fault: Fault | None = None) -> None:
        self._stop_all()
        seconds = self._list_times.next_seconds(self._now, fault)
        self.state = BackingOff(until=self._now + seconds, reason=reason)

    def _miss(self, message: str) -> None:
        """Mark the kind `unavailable`, and wait for a while or a probe."""
        self._stop_all()
        kind = self.view.kind
        message = message or f'no matches for kind "{kind.kind}" in group "{kind.group}"'
        self.view.mark_unavailable(message)
        self.observed = True
        if message != self._trouble:
            self._trouble = message
            self._note("warning", "kind cannot be observed", {"reason": message})
        self.state = Unserved(until=self._now + self._probe_times.wait_seconds())

    def _jitter(self, least: float, most: float) -> float:
        return least + self._rng * (most - least)

    def _note(self, level: Literal["info", "warning"], text: str, fields: Mapping[str, Any]) -> None:
        self._commands.append(commands.Note(level=level, text=text, fields=fields))

    # ------------------------------------------------------------ listing

    def _list(self, *, is_interruption: bool) -> None:
        if is_interruption:
            self._commands.append(commands.Stop(operations=("watch", "gone")))
            self._reading.pop("gone", None)
        # The batch is fixed here: only a read that begins after a request arrives can answer it.
        self.state = Listing(batch=self._checks.open_now(), is_interruption=is_interruption)
        self._commands.append(commands.List(metadata_only=not self.view.is_whole))

    def _complete(self, listing: Listing, listed: events.Listed) -> None:
        """Read the known or requested objects that an aggregated API left out of its list."""
        if not listed.resource_version:
            known = self.view.written_names() | named_in(listing.batch)
            missing = {name for name in known if listed.coverage.covers(name[0])}
            missing -= {name_of(obj) for obj in listed.items}
            if missing:
                self.state = Completing(
                    batch=listing.batch, is_interruption=listing.is_interruption, listed=listed
                )
                self._found = []
                self._read("left out", missing)
                return
        self._replace(listing, listed, listed.items)

    def _replace(
        self, listing: Listing | Completing, listed: events.Listed, items: Iterable[Mapping[str, Any]]
    ) -> None:
        """Write the difference under markers, answer the requests from before the list, and watch."""
        self._watch_times.note_list()
        self._probe_times.note_list()
        self._position = listed.resource_version
        before = self.view.coverage
        self.view.replace(listed.versions, listed.coverage, items, listed.rows)
        self.observed = True
        self._answer(listing.batch)
        if self._trouble:
            self._trouble = ""
            self._note("info", "kind is observed again", {})
        self._commands.extend(coverage_notes(before, listed.coverage))
        if not listing.is_interruption:
            self._list_times.note_list(self._now)
        self._watch()

    def _fail_list(self, fault: Fault, *, is_interruption: bool) -> None:
        """Handle a failed list: a watch that it interrupted resumes, if the failure is transient."""
        if is_interruption and fault.reason in ("transient", "silent"):
            self._fail_check(fault)
            self._watch()
        else:
            self._fail(fault)

    def _change_content(self, content: frozenset[Name]) -> None:
        """Follow other named objects without listing again."""
        if self.can_change_content(content):
            self._read("content", self.view.change_content(content))
            self._end_read("content")

    # ------------------------------------------------------------ watching

    def _watch(self) -> None:
        self._watch_times.began(self._now)
        if self._position:
            self.state = Watching(since=self._now)
        else:
            self._replayed = set()
            self._silent_at = self._now + REPLAY_SILENCE_SECONDS
            self.state = Replaying(until=self._now + REPLAY_RELIST_SECONDS)
        is_whole = self.view.is_whole
        self._commands.append(commands.Watch(resource_version=self._position, metadata_only=not is_whole))

    def _deliver(self, event: events.Delivered) -> None:
        if not isinstance(self.state, Watching | Replaying | Confirming | Following):
            return
        is_bookmark = event.type == "BOOKMARK"
        if not is_bookmark:
            self.view.apply(event.object, deleted=event.type == "DELETED")
        match self.state:
            case Watching():
                self._watch_times.note_delivery(self._now)
                version = event.position or event.object["metadata"].get("resourceVersion")
                self._position = version or self._position
            case Replaying():
                self._silent_at = self._now + REPLAY_SILENCE_SECONDS
                if not is_bookmark:
                    self._replayed.add(name_of(event.object))
                elif REPLAY_END in (event.object["metadata"].get("annotations") or {}):
                    self._confirm_gone()
            case Confirming() if not is_bookmark:  # the event settles it: no older read may undo that
                self._reading["gone"].discard(name_of(event.object))
                self._end_read("gone")

    def _end_watch(self, fault: Fault | None) -> None:
        match self.state:
            case Watching(since=since):
                if fault is not None and fault.reason in ("gone", "permanent"):
                    self._fail(fault)
                else:
                    self._resume(since, fault)
            case Replaying() | Confirming() | Following():
                if fault is None or fault.reason == "silent":
                    self._back_off("ended")
                else:
                    self._fail(fault)

    def _resume(self, since: float, fault: Fault | None) -> None:
        """Resume the watch where it ended, or list if there was none for too long."""
        lasted, times = self._now - since, self._watch_times
        is_silent = fault is not None and fault.reason == "silent"
        if fault is not None:
            self._note("info", "watch interrupted", {"error": fault.message})
        if times.is_lost_after(self._now, lasted, failed=fault is not None, silent=is_silent):
            self.view.mark_syncing()
            self._resolve()
            return
        seconds = times.resume_seconds(lasted, fault, failed=fault is not None and not is_silent)
        if seconds:
            self.state = Resuming(until=self._now + seconds)
        else:
            self._watch()

    # ------------------------------------------------------------ reading beside the watch

    @property
    def _is_reading_beside(self) -> bool:
        return self._is_looking or "checks" in self._reading

    def _read_beside(self) -> None:
        """Look for other versions, or read for check requests, if due."""
        if self._is_reading_beside:
            return
        if self._probe_times.look_at <= self._now:
            self._probe_times.note_look(self._now)
            self._is_looking = True
            self._commands.append(commands.ReadVersions())
        elif self._checks.due_at <= self._now:
            self._read_checks()

    def _read_checks(self) -> None:
        """Read for the open requests: by name if they name a few objects, else by a list."""
        batch = self._checks.open_now()
        names = names_of(batch)
        if names is None or are_many(names, self.view.count):
            self._list(is_interruption=True)
            return
        self._batch, self._is_behind = batch, False
        self._read("checks", names)

    def _answer(self, batch: Batch) -> None:
        self._commands.extend(self._checks.answers(batch, self._now))

    def _fail_check(self, fault: Fault) -> None:
        self._note("warning", "check request cannot be answered yet", {"error": fault.message})
        self._checks.note_failure(self._now, retry_seconds(fault.retry_after_seconds, self._jitter))

    # ------------------------------------------------------------ reads by name

    def _read(self, purpose: Purpose, names: Iterable[Name]) -> None:
        self._reading[purpose] = set(names)
        if self._reading[purpose]:
            self._commands.append(commands.Read(purpose=purpose, names=tuple(sorted(names))))

    def _confirm_gone(self) -> None:
        """Read the objects that a replay did not show; those not found were deleted without an event."""
        self.state = Confirming(until=self.state.until)
        self._read("gone", self.view.written_names() - self._replayed)
        self._end_read("gone")

    def _take_object(self, purpose: Purpose, name: Name, obj: Mapping[str, Any] | None) -> None:
        match purpose:
            case "checks":
                self._is_behind = self._is_behind or obj is None or not self.view.is_current(obj)
            case "left out":
                if obj is not None:
                    self._found.append(obj)
            case "gone":
                gone = {"metadata": {"namespace": name[0], "name": name[1]}}
                self.view.apply(gone if obj is None else obj, deleted=obj is None)
            case "content":
                self.view.take_content(name, obj)

    def _end_read(self, purpose: Purpose) -> None:
        """Continue after a read by name, once all its names are read."""
        if self._reading.get(purpose):
            return
        self._reading.pop(purpose, None)
        match purpose, self.state:
            case "checks", _:
                if self._is_behind:
                    self._list(is_interruption=True)
                else:
                    self._answer(self._batch)
            case "left out", Completing(listed=listed) as listing:
                self._replace(listing, listed, [*listed.items, *self._found])
            case "gone", Confirming(until=until):
                self.state = Following(until=until)
            case "content", _:
                self.view.complete_content()

    def _fail_read(self, purpose: Purpose, fault: Fault) -> None:
        match purpose, self.state:
            case "checks", _ if fault.reason == "permanent":
                self._list(is_interruption=True)  # the permission to list may exist without the one to get
            case "checks", _:
                self._fail_check(fault)
            case "left out", Completing(is_interruption=is_interruption):
                self._fail_list(fault, is_interruption=is_interruption)
            case "gone", _:
                self._fail(fault)
