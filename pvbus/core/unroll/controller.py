"""The decision for one set: who its children are, what changed, what may go.

A pass costs O(what changed): contexts and downstreams that no event touched are not looked at. The
roll-up, which counts all rows, is written at most once per second and set.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec

from pvbus.core.effects import CatchUp, Outcome, Put, Reconciliation
from pvbus.core.expressions import Engine
from pvbus.core.ids import CONFIRM_DELETION, HOLD, digest, partition
from pvbus.core.model import PackageVariantSet
from pvbus.core.records import (
    OBJECTS,
    SETRESULTS,
    SETS,
    UNROLL,
    WATCHES,
    ChildResult,
    ChildRow,
    Counts,
    SetResult,
    WatchRequest,
    watch_key,
)
from pvbus.core.render import CompileErrors, compile_set
from pvbus.core.tables import SyncView, is_marker
from pvbus.core.unroll.children import Limits
from pvbus.core.unroll.contexts import Contexts, root_of, selected_kinds
from pvbus.core.unroll.state import Building, SetState
from pvbus.core.unroll.view import (
    REPOSITORY_KIND,
    REVISION_KIND,
    SET_KIND,
    VARIANT_KIND,
    Observed,
    View,
)
from pvbus.core.validation import validate_set

ROLLUP_SECONDS = 1.0
LEAVING_SECONDS = 60.0  # rows of removed children are looked at by themselves, to be forgotten in time
CHUNK_PUTS = 1_000  # of one outcome: more would keep others waiting, and fewer make a fan-out slower
TURN_TARGETS = 2_000  # looked at in one go, some 0.1 s: heartbeats and other keys must get their turn
STATIC_KINDS = (VARIANT_KIND, REVISION_KIND, REPOSITORY_KIND)

_set = msgspec.json.Decoder(PackageVariantSet)
_child = msgspec.json.Decoder(ChildRow)
_result = msgspec.json.Decoder(ChildResult)
_rollup = msgspec.json.Decoder(SetResult)
_request = msgspec.json.Decoder(WatchRequest)


class _StopError(Exception):
    """A pass ends early: with a roll-up reason, or waiting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class UnrollController:
    """Sets in, children out. See `pvbus.core.effects.Controller`."""

    name = "unroll"
    inputs = (SETS, SETRESULTS)
    memory = (UNROLL,)
    broadcast = (OBJECTS, WATCHES)

    def __init__(
        self,
        *,
        partitions: int,
        engine: Engine,
        limits: Limits | None = None,
        chunk_puts: int = CHUNK_PUTS,
        turn_targets: int = TURN_TARGETS,
    ) -> None:
        """A pass ends, and the rest follows, after chunk_puts rows (what a step should hold) or turn_targets
        targets."""
        self.view = View(partitions)
        self.set_evaluations = 0
        self.target_evaluations = 0
        self._partitions = partitions
        self._engine = engine
        self._limits = limits or Limits()
        self._chunk_puts = chunk_puts
        self._turn_targets = turn_targets
        self._sets: dict[int, dict[str, SetState]] = {}
        self._sync: dict[int, SyncView] = {}
        self._requests: dict[str, dict[str, WatchRequest]] = {}
        self._own: dict[int, set[str]] = {}

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        self._sets[partition] = {}
        self._sync[partition] = SyncView(1)
        self._own.pop(partition, None)

    def close(self, partition: int) -> None:
        for skey in self._sets.pop(partition, {}):
            self.view.forget(skey)
        self._sync.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        return list(self._sets.get(partition, ()))

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == OBJECTS:
            return self._load_object(partition, key, value)
        if topic == WATCHES:
            return self._load_request(key, value)
        if partition not in self._sets:
            return ()
        if topic == SETS and is_marker(key):
            self._sync[partition].load(partition, key, value)
            return self.keys(partition)
        skey, _, name = key.partition("|")
        state = self._state(partition, skey)
        if topic == SETS:
            state.obj = _set.decode(value) if value is not None else None
        elif topic == UNROLL:
            state.children.take(name, _child.decode(value) if value is not None else None)
        elif not name:
            if not state.reported_at:  # later ones are echoes of our own
                state.rollup = _rollup.decode(value) if value is not None else None
            return ()
        elif value is None:
            state.children.results.pop(name, None)
        else:
            state.children.results[name] = _result.decode(value)
        return (skey,)

    def _state(self, partition: int, skey: str) -> SetState:
        sets = self._sets[partition]
        state = sets.get(skey)
        if state is None:
            state = sets[skey] = SetState(skey)
        return state

    def _load_object(self, number: int, key: str, value: bytes | None) -> list[str]:
        dirty = []
        for change in self.view.load(number, key, value):
            state = self._sets.get(partition(change.skey, self._partitions), {}).get(change.skey)
            if state is None:
                continue
            if change.okey:
                state.objects[change.okey] = None
            if change.repository:
                state.repositories[change.repository] = None
            if change.child:
                state.seen.add(change.child)
            dirty.append(change.skey)
        return dirty

    def _load_request(self, key: str, value: bytes | None) -> tuple[str, ...]:
        requester = key.split("|")[1]
        if value is None:
            self._requests.get(requester, {}).pop(key, None)
        else:
            self._requests.setdefault(requester, {})[key] = _request.decode(value)
        return ()

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic not in (UNROLL, SETRESULTS) or partition not in self._sets:
            return ()
        skey, _, name = put.key.partition("|")
        state = self._state(partition, skey)
        if put.topic == SETRESULTS:
            if isinstance(put.row, SetResult):
                state.rollup = put.row
        else:
            state.children.take(name, put.row if isinstance(put.row, ChildRow) else None)
        return ()

    # ------------------------------------------------------------ deciding

    def reconcile(self, key: str, now: float) -> Reconciliation:
        caught_up = False
        while True:
            outcome = self._pass(key, now, caught_up=caught_up)
            if outcome is not None:
                return outcome
            yield CatchUp((OBJECTS, SETS, SETRESULTS))
            caught_up = True

    def _pass(self, skey: str, now: float, *, caught_up: bool) -> Outcome | None:
        """Evaluate once; None asks for a catch-up before removals are decided."""
        number = partition(skey, self._partitions)
        state = self._state(number, skey)
        if state.obj is None and not self._sync[number].ok(SET_KIND):
            return Outcome(result="waiting", waiting=("PackageVariantSets are being listed",))
        puts = self._watch_puts(number, state)
        if state.obj is None:
            return self._set_gone(number, state, puts)
        former = state.children.former(state.obj.metadata.uid)
        if former or state.obj.metadata.deletion_timestamp:
            puts += state.children.let_go(former or state.children.rows, self._chunk_puts)
            state.basis = ""
            return Outcome(tuple(puts), "changed" if puts else "unchanged", again_after=0 if puts else None)
        if state.obj.metadata.annotations.get(HOLD) == "true":
            return self._rolled(state, now, puts, on_hold=True)
        try:
            is_prepared = self._prepare(state)
        except _StopError as stop:
            if not stop.reason:
                return Outcome(tuple(puts), "waiting", waiting=(stop.message,))
            return self._rolled(state, now, puts, stop=stop)
        if not is_prepared:
            return Outcome(tuple(puts), "changed" if puts else "unchanged", again_after=0)
        puts += self._settle(state, now)
        if len(puts) < self._chunk_puts and not state.touched:
            leaving = self._removals(state, now, caught_up=caught_up, settled=not puts)
            if leaving is None:
                return None
            puts += leaving
        if state.touched:
            return Outcome(tuple(puts), "changed", again_after=0)
        return self._rolled(state, now, puts)

    def _set_gone(self, number: int, state: SetState, puts: list[Put]) -> Outcome:
        """Let the children of a deleted set go, and forget it when nothing of it is left."""
        puts += state.children.let_go(state.children.rows, self._chunk_puts)
        if state.rollup is not None:
            puts.append(Put(SETRESULTS, state.skey, None))
        self.view.forget(state.skey)
        state.rollup, state.contexts, state.basis, state.building = None, None, "", None
        if not puts:
            self._sets[number].pop(state.skey, None)
            return Outcome()
        return Outcome(tuple(puts), "changed", again_after=0)

    def _prepare(self, state: SetState) -> bool:
        """Bring the contexts up to date, or stop with what is in the way; False asks for another turn."""
        obj = state.obj
        assert obj is not None
        namespace = obj.metadata.namespace
        kinds = selected_kinds(obj.spec)
        self.view.use_uid(obj.metadata.uid, state.skey)
        self.view.use_kinds((*STATIC_KINDS, *kinds), state.skey)
        if obj.spec.upstream is not None:
            self.view.use_upstream(namespace, obj.spec.upstream, state.skey)
        problems = validate_set(obj.spec)
        if problems:
            raise _StopError("ValidationError", "; ".join(problems))
        self._require_ok(STATIC_KINDS)
        assert obj.spec.upstream is not None
        upstream = obj.spec.upstream
        found = self.view.upstream(namespace, upstream)
        if found is None:
            package = f"{upstream.package}/{upstream.revision}"
            message = f"could not find upstream package revision '{package}' in repo '{upstream.repo}'"
            raise _StopError("UpstreamNotFound", message)
        self._require_served(kinds)
        spec_digest = digest(obj.spec)
        if state.compiled is None or state.compiled_for != spec_digest:
            try:
                state.compiled = compile_set(obj.spec, self._engine)
            except CompileErrors as errors:
                raise _StopError("UnexpectedError", str(errors)) from errors
            state.compiled_for = spec_digest
        root = root_of(*found)
        basis = digest([obj.metadata.uid, spec_digest, root])
        if basis != state.basis:
            if state.building is None or state.building.basis != basis:
                self._begin(state, Contexts(state.skey, obj, state.compiled, root, self.view), basis)
            if not self._build(state):
                return False
        self._refresh(state)
        return True

    def _require_ok(self, kinds: Iterable[str]) -> None:
        for kind in kinds:
            if not self.view.sync.ok(kind):
                marker = self.view.sync.marker(kind)
                if marker is not None and marker.state == "unavailable":
                    raise _StopError("UnexpectedError", f"{kind} cannot be read: {marker.message}")
                raise _StopError("", f"{kind} is being listed")

    def _require_served(self, kinds: dict[str, str]) -> None:
        for kind, version in kinds.items():
            marker = self.view.sync.marker(kind)
            group, _, name = kind.rpartition("/")
            asked = f"{group}/{version}" if group else version
            if marker is None or marker.state in ("syncing", "unwatched"):
                raise _StopError("", f"{kind} is being listed")
            if marker.state == "unavailable":
                unknown = f'no matches for kind "{name}" in version "{asked}"'
                said = "" if marker.message.startswith("no matches") else marker.message
                raise _StopError("NoMatchingTargets", said or unknown)
            if version and version not in marker.versions:
                raise _StopError("NoMatchingTargets", f'no matches for kind "{name}" in version "{asked}"')

    def _begin(self, state: SetState, contexts: Contexts, basis: str) -> None:
        """Begin to evaluate all targets of a new generation (or upstream)."""
        obj = state.obj
        assert obj is not None and obj.spec.upstream is not None
        self.view.forget(state.skey)
        self.view.use_uid(obj.metadata.uid, state.skey)
        self.view.use_kinds((*STATIC_KINDS, *selected_kinds(obj.spec)), state.skey)
        self.view.use_upstream(obj.metadata.namespace, obj.spec.upstream, state.skey)
        self.set_evaluations += 1
        state.contexts, state.basis = None, ""
        state.building = Building(basis, contexts, contexts.build())
        state.objects.clear()
        state.repositories.clear()

    def _build(self, state: SetState) -> bool:
        """Evaluate some more targets; tell whether all are."""
        assert state.building is not None
        basis, contexts, rest = state.building
        evaluated = sum(1 for _ in islice(rest, self._turn_targets))
        self.target_evaluations += evaluated
        if evaluated == self._turn_targets:
            return False
        state.contexts, state.basis, state.building = contexts, basis, None
        state.touched.add(row.downstream for row in state.children.rows.values())
        state.touched.add(contexts.by_downstream)
        state.seen.update(self._owned(state))
        return True

    def _refresh(self, state: SetState) -> None:
        if not state.objects and not state.repositories:
            return
        assert state.contexts is not None
        touched, evaluated = state.contexts.refresh(list(state.objects), list(state.repositories))
        state.objects.clear()
        state.repositories.clear()
        self.set_evaluations += 1
        self.target_evaluations += evaluated
        state.touched.add(touched)

    # ------------------------------------------------------------ children

    def _owned(self, state: SetState) -> dict[str, Observed]:
        assert state.obj is not None
        return self.view.owned.get(state.obj.metadata.uid, {})

    def _settle(self, state: SetState, now: float) -> list[Put]:
        """Bring the rows of touched downstreams in line, a bounded number at a time."""
        obj, contexts, children = state.obj, state.contexts, state.children
        assert obj is not None and contexts is not None
        owned = self._owned(state)
        state.touched.add(children.adopt_names(state.seen, owned))
        state.seen.clear()
        puts: list[Put] = []
        for looks, downstream in enumerate(state.touched.take(contexts), start=1):
            wanting = contexts.by_downstream.get(downstream, {})
            name = children.name_of(downstream)
            if len(wanting) == 1:
                if name is None:
                    name = children.new_name(obj.metadata.name, downstream, owned)
                context = contexts.by_key[next(iter(wanting))]
                puts += children.wanted(obj, contexts, context, name)
            elif not wanting and name is not None:
                puts += children.unwanted(obj.metadata.uid, downstream, name, owned, now)
            if len(puts) >= self._chunk_puts or looks >= self._turn_targets:
                break
        return puts

    def _removals(self, state: SetState, now: float, *, caught_up: bool, settled: bool) -> list[Put] | None:
        obj, contexts, children = state.obj, state.contexts, state.children
        assert obj is not None and contexts is not None
        if not children.leaving:
            return []
        puts = children.settle_removed(obj, contexts, self._owned(state), now)
        confirmed = frozenset(
            token.strip() for token in obj.metadata.annotations.get(CONFIRM_DELETION, "").split(",")
        ) - {""}
        due = children.due(now, self._limits, confirmed)
        complete = not contexts.failed and not contexts.duplicated
        if not due or not complete or not settled or puts or not children.all_evaluated():
            return puts
        if not caught_up:
            return None
        return children.remove(obj, due, now, self._limits, confirmed)

    # ------------------------------------------------------------ telling

    def _watch_puts(self, number: int, state: SetState) -> list[Put]:
        """Ask for the kinds this set selects, and no longer for those that no set of the claim does."""
        wanted = self._requests_of(number, state)
        if state.passed and wanted == state.requested:
            return []
        state.requested, state.passed = wanted, True
        own = self._own.get(number)
        if own is None:  # from now on only this claim changes them, and it knows before the bus tells
            own = self._own[number] = set(self._requests.get(f"unroll-{number}", {}))
        puts = [Put(WATCHES, key, request) for key, request in wanted.items() if key not in own]
        own.update(wanted)
        states = self._sets[number].values()
        if all(other.passed for other in states):
            needed = {key for other in states for key in other.requested}
            puts += [Put(WATCHES, key, None) for key in sorted(own - needed)]
            own.intersection_update(needed)
        return puts

    @staticmethod
    def _requests_of(number: int, state: SetState) -> dict[str, WatchRequest]:
        obj = state.obj
        if obj is None or obj.metadata.deletion_timestamp:
            return {}
        wanted = {}
        for kind, version in selected_kinds(obj.spec).items():
            if kind not in STATIC_KINDS and version:
                group, _, name = kind.rpartition("/")
                request = WatchRequest(group=group, kind=name, requester=f"unroll-{number}")
                wanted[watch_key(request)] = request
        return wanted

    def _report(self, state: SetState, *, stop: _StopError | None = None, on_hold: bool = False) -> SetResult:
        """Count the rows and choose what to tell: the reason to stop, else the first error."""
        obj, children = state.obj, state.children
        assert obj is not None
        tally = dict.fromkeys(("desired", "applied", "ready", "failed", "held", "removing"), 0)
        held: dict[str, int] = {}
        errors: list[tuple[int, str, str, str]] = []
        for name, row in children.rows.items():
            result = children.results.get(name)
            if row.state == "present":
                tally["desired"] += 1
                if result is not None and result.evaluated == row.digest and result.error:
                    tally["failed"] += 1
                    errors.append((row.target, row.okey, result.reason, result.error))
                elif result is not None and result.applied == row.digest:
                    tally["applied"] += 1
                    tally["ready"] += result.ready
            elif row.state == "held":
                tally["held"] += 1
                held[row.token] = held.get(row.token, 0) + 1
            elif row.state in ("removing", "removed"):
                tally["removing"] += 1
        reason, message = "Valid", ""
        if stop is not None:
            reason, message = stop.reason, stop.message
        elif state.contexts is not None and not on_hold:
            tally["failed"] += len(state.contexts.failed)
            tally["desired"] += len(state.contexts.failed)
            errors += state.contexts.errors()
            if errors:
                _, _, reason, message = min(errors)
                if len(errors) > 1:
                    message += f" (and {len(errors) - 1} more)"
        return SetResult(
            uid=obj.metadata.uid,
            generation=obj.metadata.generation,
            reason=reason,
            message=message,
            counts=Counts(**tally),
            held=dict(sorted(held.items())),
            on_hold=on_hold,
        )

    def _rolled(
        self,
        state: SetState,
        now: float,
        puts: list[Put],
        *,
        stop: _StopError | None = None,
        on_hold: bool = False,
    ) -> Outcome:
        """End a pass: add the roll-up when it changed, and set the next look.

        All rows are counted at most once per second: between, passes cost only what changed.
        """
        again: list[float] = []
        wait = state.reported_at + ROLLUP_SECONDS - now
        if any(put.topic == UNROLL for put in puts):
            again.append(0)  # what is told comes from rows that are written, never from a wish
        elif state.rollup is not None and wait > 0:
            again.append(wait)
        else:
            report = self._report(state, stop=stop, on_hold=on_hold)
            state.reported_at = now
            if report != state.rollup:
                puts.append(Put(SETRESULTS, state.skey, report))
        due = state.children.next_due(self._limits)
        if due is not None and not stop and not on_hold and (due > now or puts):
            again.append(max(due - now, 0.1))
        if state.children.leaving:
            again.append(LEAVING_SECONDS)
        held = on_hold or (state.rollup is not None and bool(state.rollup.held))
        result = "changed" if puts else "held" if held else "unchanged"
        return Outcome(tuple(puts), result, again_after=min(again) if again else None)
