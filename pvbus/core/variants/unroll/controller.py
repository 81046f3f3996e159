"""The decision for one set: its children, what changed, and what may be removed.

A pass costs O(what changed): contexts and downstreams that no event touched are not visited. The
roll-up, which counts all rows, is written at most once per second and set.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter

import msgspec

from pvbus.core.api.decoding import decode_set
from pvbus.core.api.variants import Downstream, PackageVariantSet
from pvbus.core.errors import PermanentError, TooLargeError
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.effects import INTERNAL_ERROR, CatchUp, Outcome, Put, Reconciliation
from pvbus.core.kernel.holds import hold_reason, is_held
from pvbus.core.kernel.keys import ChildKey, Key, WatchKey, is_check, is_child
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import (
    OBJECTS,
    SETRESULTS,
    SETS,
    UNROLL,
    WATCHES,
    ChildRow,
    SetResult,
    WatchRequest,
)
from pvbus.core.variants.pacing import Pace
from pvbus.core.variants.unroll import orders
from pvbus.core.variants.unroll.children import child_result, child_row
from pvbus.core.variants.unroll.facts import facts_of, requester
from pvbus.core.variants.unroll.opinion import Opinions, question_of
from pvbus.core.variants.unroll.orders import Turn
from pvbus.core.variants.unroll.preparing import Preparing
from pvbus.core.variants.unroll.removal import RemovalLimits, hold_of
from pvbus.core.variants.unroll.report import StopError, differs, roll_up
from pvbus.core.variants.unroll.signedplans import NO_PLANS, PlanPolicy, standing_of_plan
from pvbus.core.variants.unroll.state import Consultation, RefusedRows, SetState
from pvbus.core.variants.unroll.view import SET_KIND, Observed, UnrollView

ROLLUP_SECONDS = 1.0
CHUNK_PUTS = 1_000  # rows of one outcome: with more, other keys wait; with fewer, a fan-out is slower
TURN_TARGETS = 500  # targets of one pass, about 25 ms: heartbeats and other keys must run in between

_topic = attrgetter("topic")
_rollup = msgspec.json.Decoder(SetResult)
_request = msgspec.json.Decoder(WatchRequest)


class UnrollController(KeyedController[SetState]):
    """Sets in, children out."""

    name = "unroll"
    listed = (SETS,)

    def __init__(
        self,
        *,
        partitions: int,
        elapsed: Callable[[], float],
        nonce: Callable[[], str],
        limits: RemovalLimits | None = None,
        chunk_puts: int = CHUNK_PUTS,
        turn_targets: int = TURN_TARGETS,
        opinions: Opinions | None = None,
        plans: PlanPolicy = NO_PLANS,
    ) -> None:
        """Create a controller without partitions.

        A pass ends after `chunk_puts` rows or `turn_targets` targets; the next pass continues.

        partitions: how many partitions the bus has
        elapsed: returns the seconds of a clock that cannot go back
        nonce: returns 32 hex digits, never the same twice
        limits: the installation's limits of removals
        chunk_puts: the size of a step, in rows
        turn_targets: how many targets a pass evaluates at most
        opinions: answers questions about the expressions of each generation; None for no second opinion
        plans: which sets need a signed plan, and who may sign
        """
        super().__init__(self._new_state_of)
        self.view = UnrollView(partitions)
        self.preparing = Preparing(self.view, turn_targets)
        self._pace = Pace()
        self._elapsed = elapsed
        self._nonce = nonce
        self._limits = limits or RemovalLimits()
        self._chunk_puts = chunk_puts
        self._turn_targets = turn_targets
        self._opinions = opinions
        self._plans = plans
        self._states: dict[str, SetState] = {}  # the same, of all leases that are held
        self._requests: dict[str, dict[str, WatchRequest]] = {}
        self._own: dict[int, set[str]] = {}

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        super().open(partition)
        self._own.pop(partition, None)

    def close(self, partition: int) -> None:
        for state in list(self._tables.get(partition, {}).values()):
            self._drop(partition, state)
            self.view.forget(state.skey)
        super().close(partition)

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == OBJECTS:
            return self._load_object(partition, key, value)
        if topic == WATCHES:
            return self._load_request(key, value)
        if partition not in self._tables:
            return ()
        if topic == SETS and is_marker(key):
            self._load_marker(topic, partition, key, value)
            return self.keys(partition)
        skey, name = ChildKey.parse(key) if is_child(key) else (key, "")
        state = self._ensure_state(partition, skey)
        if topic == SETS:
            state.take_set(*decode_set(value) if value is not None else (None,))
        elif topic == UNROLL:
            state.children.take(name, child_row(value) if value is not None else None)
        elif not name:
            if not state.passed:  # later ones are echoes of our own
                state.rollup = _rollup.decode(value) if value is not None else None
            return ()
        elif value is None:
            state.children.take_result(name, None)
        else:
            state.children.take_result(name, child_result(value))
        return (skey,)

    @property
    def evaluations(self) -> int:
        return self.preparing.target_evaluations

    def _new_state_of(self, skey: str) -> SetState:
        state = self._states[skey] = SetState(skey)
        return state

    def _load_object(self, number: int, key: str, value: bytes | None) -> list[str]:
        dirty = []
        for change in self.view.load(number, key, value):
            state = self._states.get(change.skey)
            if state is None:
                continue
            if change.okey:
                state.objects.setdefault(change.okey, {}).update(change.moves)
            elif change.repository:
                state.repositories[change.repository] = None
            elif change.child:
                state.seen.add(change.child)
            else:
                state.is_current = False
            dirty.append(change.skey)
        return dirty

    def _load_request(self, key: str, value: bytes | None) -> tuple[str, ...]:
        if is_check(key):
            self.view.load_request(key, value)
            return ()
        of_lease = WatchKey.parse(key).requester
        if value is None:
            self._requests.get(of_lease, {}).pop(key, None)
        else:
            self._requests.setdefault(of_lease, {})[key] = _request.decode(value)
        return ()

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic not in (UNROLL, SETRESULTS) or partition not in self._tables:
            return ()
        if put.topic == UNROLL:
            skey, name = ChildKey.parse(put.key)
            row = put.row if isinstance(put.row, ChildRow) else None
            self._ensure_state(partition, skey).children.take(name, row)
        elif isinstance(put.row, SetResult):
            self._ensure_state(partition, put.key).rollup = put.row
        return ()

    def note_refusal(self, partition: int, puts: tuple[Put, ...], error: PermanentError) -> Iterable[str]:
        for put in puts:
            if put.topic == UNROLL and isinstance(put.row, ChildRow) and partition in self._tables:
                skey, name = ChildKey.parse(put.key)
                row, reason = put.row, "TooLarge" if isinstance(error, TooLargeError) else "BusRefused"
                refused = RefusedRows(row.digest, row.target, row.okey, reason, str(error))
                self._ensure_state(partition, skey).refused[name] = refused
                yield skey

    def failure_rows(self, partition: int, key: str, message: str, now: float) -> tuple[Put, ...]:
        state = self._tables[partition].get(key)
        if state is None or state.obj is None:
            return ()
        turn = self._turn(state, now, self._elapsed())
        return self._roll_up(state, turn, [], stop=StopError(INTERNAL_ERROR, message)).puts

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        caught_up = False
        while True:
            outcome = self._pass(partition, key, now, caught_up=caught_up)
            if outcome is not None:
                return outcome
            yield CatchUp((OBJECTS, SETS, SETRESULTS))
            caught_up = True

    def _pass(self, number: int, skey: str, now: float, *, caught_up: bool) -> Outcome | None:
        """Evaluate once; None asks for a catch-up before removals are ordered."""
        state = self._ensure_state(number, skey)
        if state.obj is None and not self._is_listed(SETS, number, SET_KIND, Key.parse(skey).namespace):
            return Outcome(result="waiting", waiting=("PackageVariantSets are being listed",))
        elapsed = self._elapsed()
        if state.children.taken:
            state.removal.note(elapsed)
        obj = state.obj
        former = state.children.former(obj.metadata.uid) if obj is not None else []
        is_leaving = obj is None or bool(former) or bool(obj.metadata.deletion_timestamp)
        if state.removal.check is not None and not (is_leaving or caught_up):
            if orders.is_answered(state, self.view):
                if state.removal.answered_at is None:
                    state.removal.answered_at = elapsed
                return None
        puts: list[Put] = []
        if state.facts is None:
            state.facts = facts_of(obj, number, self._limits, state.unreadable) if obj is not None else None
            if obj is not None:
                self._take_plan(state, obj)
            puts = self._watch_puts(number, state)
        if obj is None:
            return self._set_gone(number, state, puts)
        if is_leaving:
            puts += self._release(state, former or state.children.rows)
            state.forget_inputs()
            return Outcome(tuple(puts), "changed" if puts else "unchanged", again_after=0 if puts else None)
        outcome = self._evaluate(state, self._turn(state, now, elapsed), puts, caught_up=caught_up)
        if caught_up and state.removal.answered_at is not None:
            state.removal.forget_check()  # the answer served this evaluation, whatever came of it
        return outcome

    def _turn(self, state: SetState, now: float, elapsed: float) -> Turn:
        assert state.obj is not None
        limits = state.facts.limits if state.facts is not None else self._limits
        hold, _ = hold_of(state.rollup, state.obj.metadata.uid)
        return Turn(now, elapsed, limits, hold, self._chunk_puts, self._nonce)

    def _take_plan(self, state: SetState, obj: PackageVariantSet) -> None:
        """Note whether a new version of a set needs a signed plan, and why it is held.

        It did before if its roll-up says so, or the last evaluation, whose roll-up may not be written yet.
        """
        uid, former = obj.metadata.uid, state.rollup
        was_required = former is not None and former.plan_required and former.uid == uid
        was_required |= state.plan.is_required and state.plan.uid == uid
        state.plan = standing_of_plan(obj, self._plans, was_required=was_required)
        state.children.hold_reason = hold_reason(obj.metadata.annotations) or state.plan.problem

    def _evaluate(self, state: SetState, turn: Turn, puts: list[Put], *, caught_up: bool) -> Outcome:
        obj, children = state.obj, state.children
        assert obj is not None
        owned = self.view.owned(obj.metadata.uid, obj.metadata.namespace)
        if is_held(obj.metadata.annotations) or state.plan.problem:
            state.paused = True
            state.removal.forget_check()
            self.view.use_uid(obj.metadata.uid, state.skey)  # one that appears now is on hold, too
            held = orders.hold_puts(state, owned, turn, on_hold=True)
            puts += held or orders.drop_requests(state, self.view)
            return self._roll_up(state, turn, puts, on_hold=True)
        if children.on_hold:
            lifted = orders.hold_puts(state, owned, turn, on_hold=False)
            if lifted:
                return Outcome((*puts, *lifted), "changed", again_after=0)
        if state.paused:
            state.paused = False
            state.touched.add(row.downstream for row in children.rows.values())
            state.seen.update(owned)
        if not state.is_evaluated and (wait := self._pace.wait(state.skey, state.skey, turn.elapsed)):
            words = "other keys go first, as its expressions cost much"
            return Outcome(tuple(puts), "changed" if puts else "waiting", again_after=wait, waiting=(words,))
        stop, is_prepared = None, False
        try:
            is_prepared = self.preparing.prepare(state)
        except StopError as error:
            stop = error
        if self.preparing.spent:
            self._pace.note(state.skey, self.preparing.spent)
        failing = stop is not None and bool(stop.reason)
        failing |= is_prepared and state.contexts is not None and bool(state.contexts.failed)
        if children.leaving:
            puts += orders.withdrawals(state, turn, failing=failing)
        if stop is not None and stop.reason:
            state.removal.forget_check()
            puts += orders.drop_requests(state, self.view)
            return self._roll_up(state, turn, puts, stop=stop)
        if stop is not None:
            return Outcome(tuple(puts), "waiting", waiting=(stop.message,))
        if not is_prepared:
            return Outcome(tuple(puts), "changed" if puts else "unchanged", again_after=0)
        has_removals = state.has_removals
        if has_removals and not puts:
            puts += orders.guard(state, owned, turn)
        if puts:
            return Outcome(tuple(puts), "changed", again_after=0)
        puts += self._settle(state, owned, turn)
        if state.touched:
            return Outcome(tuple(puts), "changed", again_after=0)
        state.backlog = False
        if not (has_removals or puts):
            children.doubtful.clear()  # a child that is removed later becomes doubtful again
        elif not puts:
            puts += orders.seen_gone(state, owned, turn)
            if not puts:
                puts += orders.orders(state, self.view, owned, turn, caught_up=caught_up)
        self._consult(state)
        return self._roll_up(state, turn, puts)

    def _set_gone(self, number: int, state: SetState, puts: list[Put]) -> Outcome:
        """Release the children of a deleted set, and forget the set once no row of it is left."""
        puts += self._release(state, state.children.rows)
        if state.rollup is not None:
            puts.append(Put(SETRESULTS, state.skey, None))
        self.view.forget(state.skey)
        state.rollup, state.contexts, state.building = None, None, None
        state.forget_inputs()
        if not puts:
            self._drop(number, state)
            return Outcome()
        return Outcome(tuple(puts), "changed", again_after=0)

    def _drop(self, number: int, state: SetState) -> None:
        self._tables[number].pop(state.skey, None)
        self._states.pop(state.skey, None)
        self._pace.forget(state.skey)
        if state.consultation is not None:
            state.consultation.pending.cancel()

    def _release(self, state: SetState, names: Iterable[str]) -> list[Put]:
        state.removal.forget_check()
        return state.children.release(names, self._chunk_puts) + orders.drop_requests(state, self.view)

    # ------------------------------------------------------------ children

    def _settle(self, state: SetState, owned: dict[str, Observed], turn: Turn) -> list[Put]:
        """Update the rows of touched downstreams, a bounded number per pass.

        Downstreams that no target wants come first, and a pass that removes adds nothing: the guard must
        see removals before additions.
        """
        contexts, children = state.contexts, state.children
        assert contexts is not None and state.obj is not None
        hold = turn.hold
        defers = hold is not None and hold.generation == state.obj.metadata.generation
        if state.deferred and not defers:
            state.touched.add(state.deferred)
            state.deferred = set()
        if state.undecided and not contexts.failed:
            state.touched.add(state.undecided)
            state.undecided = set()
        if state.seen:
            state.touched.add(children.adopt_names(state.seen, owned))
            children.doubtful.update(state.seen)
            state.seen.clear()
        puts: list[Put] = []
        removing = False
        for looks, downstream in enumerate(state.touched.take(contexts), start=1):
            is_wanted = downstream in contexts.by_downstream
            if is_wanted and not children.has_row(downstream):
                if defers:
                    state.deferred.add(downstream)
                    continue
                if removing:
                    state.touched.add((downstream,))
                    break
            fresh = self._settle_one(state, downstream, owned, turn)
            removing |= bool(fresh) and not is_wanted
            puts += fresh
            if len(puts) >= self._chunk_puts or looks >= self._turn_targets:
                break
        return puts

    def _settle_one(
        self, state: SetState, downstream: Downstream, owned: dict[str, Observed], turn: Turn
    ) -> list[Put]:
        obj, contexts, children = state.obj, state.contexts, state.children
        assert obj is not None and contexts is not None
        wanting = contexts.by_downstream.get(downstream, {})
        name, copies = children.names_of(downstream)
        puts: list[Put] = []
        if len(wanting) == 1:
            if name is None:
                name = children.new_name(obj.metadata.name, downstream, owned)
            context = contexts.by_key[next(iter(wanting))]
            puts += state.unless_refused(name, children.wanted(obj, contexts, context, name, turn.now))
        elif wanting and name is not None:
            puts += children.contested(obj, name, turn.now)
        elif name is not None:
            copies.append(name)
        if copies and contexts.failed:  # a target that fails may want them
            state.undecided.add(downstream)
            return puts
        for other in copies:
            unwanted = children.record_unwanted(obj, downstream, other, owned, turn.now)
            if unwanted and state.backlog:
                state.removal.changed.add(other)
            puts += unwanted
        return puts

    # ------------------------------------------------------------ reporting

    def _consult(self, state: SetState) -> None:
        """Ask for a second opinion on the expressions, once per generation: all rows are handed over."""
        obj, contexts, former = state.obj, state.contexts, state.consultation
        assert obj is not None and contexts is not None
        about = obj.metadata.uid, obj.metadata.generation
        if self._opinions is None or about == (former and former[:2]):
            return
        if former is not None:
            former.pending.cancel()
        elif state.rollup is not None and about == (state.rollup.uid, state.rollup.opinion):
            return  # a former holder of the lease has asked
        question = question_of(contexts, f"{about}")
        state.consultation = Consultation(*about, self._opinions.ask(question))

    def _watch_puts(self, number: int, state: SetState) -> list[Put]:
        """Request the kinds that this set selects; withdraw those that no set of the lease selects."""
        wanted = state.facts.requests if state.facts is not None else {}
        if state.passed and wanted == state.requested:
            return []
        state.requested, state.passed = wanted, True
        own = self._own.get(number)
        if own is None:  # from now on only this lease changes them, so it need not wait for the echo
            own = self._own[number] = set(self._requests.get(requester(number), {}))
        puts = [Put(WATCHES, key, request) for key, request in wanted.items() if key not in own]
        own.update(wanted)
        states = self._tables[number].values()
        of_others = own - wanted.keys()  # mostly none: then no set need be looked at
        if of_others and all(other.passed for other in states):
            unneeded = of_others.difference(*(other.requested for other in states))
            puts += [Put(WATCHES, key, None) for key in sorted(unneeded)]
            own -= unneeded
        return puts

    def _roll_up(
        self,
        state: SetState,
        turn: Turn,
        puts: list[Put],
        *,
        stop: StopError | None = None,
        on_hold: bool = False,
    ) -> Outcome:
        """End a pass: add the roll-up if it changed, and set the time of the next pass.

        All rows are counted at most once per second; the passes in between cost O(what changed).
        """
        again: list[float] = []
        wait = state.reported_at + ROLLUP_SECONDS - turn.elapsed
        if UNROLL in map(_topic, puts):
            again.append(0)  # report committed rows only
        elif state.rollup is not None and wait > 0:
            again.append(wait)
        else:
            report = roll_up(state, stop=stop, on_hold=on_hold)
            state.reported_at = turn.elapsed
            if differs(report, state.rollup):
                puts.append(Put(SETRESULTS, state.skey, report))
        if state.consultation is not None and state.consultation.pending.opinion is None:
            again.append(state.consultation.pending.seconds)
        hold = turn.hold
        children = state.children
        is_leaving = bool(children.leaving or children.returned or hold is not None)
        if is_leaving and stop is None and not on_hold:
            look = state.removal.next_look(turn.limits, hold, turn.elapsed)
            if look is not None:
                again.append(look)
        result = "changed" if puts else "held" if on_hold or hold is not None else "unchanged"
        return Outcome(tuple(puts), result, again_after=min(again) if again else None)
