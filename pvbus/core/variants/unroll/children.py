"""A set's children: their rows, their names, and the rows that make them present or withdraw an order.

A removal never follows from mere absence: a child that no target wants goes through `waiting`, possibly
`held` and `confirmed`, then `ordered` and `gone`. `states` has the transitions; `removal` decides when they
happen.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from pvbus.core.api.variants import Downstream, PackageVariantSet
from pvbus.core.kernel.codec import share_texts
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.keys import Key, colliding_variant_name, digest, sha1_head, variant_name
from pvbus.core.kernel.records import TARGETS, UNROLL, ChildResult, ChildRow, ChildState, TargetRow
from pvbus.core.variants.unroll.contexts import Context, Contexts
from pvbus.core.variants.unroll.standings import SortedNames, Standings
from pvbus.core.variants.unroll.states import ChildEvent, following
from pvbus.core.variants.unroll.view import Observed

_row = msgspec.json.Decoder(ChildRow)
_result = msgspec.json.Decoder(ChildResult)


def child_row(value: bytes) -> ChildRow:
    """Decode a row. It shares its texts with the set, with the object and with the PackageVariant."""
    row = share_texts(_row.decode(value), "set_uid", "okey")
    share_texts(row.downstream, "repo", "package")
    return row


def child_result(value: bytes) -> ChildResult:
    """Decode render's result. It shares its texts with the set and with other results."""
    result = share_texts(_result.decode(value), "set_uid", "unready")
    if result.applied == result.evaluated:
        force_setattr(result, "applied", result.evaluated)
    return result


class Children:
    """The rows of one set, by the name of the PackageVariant.

    leaving: names of the rows in any state but present
    returned: names of present rows that were unwanted within the guard's window
    on_hold: names of the rows for which render must not write
    hold_reason: why the set is held, as the last evaluation found it
    taken: names whose rows changed since the last `Removal.note`
    doubtful: names whose row or PackageVariant changed since the last check whether they are gone
    passes: the number of the current pass, one more than the last one that a row records
    """

    def __init__(self, skey: str) -> None:
        self.skey = skey
        self._key = Key.parse(skey)
        self.rows: dict[str, ChildRow] = {}
        self.results: dict[str, ChildResult] = {}
        self.standings = Standings()
        self.leaving: set[str] = set()
        self.returned: set[str] = set()
        self.on_hold: set[str] = set()
        self.hold_reason = ""
        self.taken: set[str] = set()
        self.doubtful = SortedNames()
        self._in_state: dict[ChildState, SortedNames] = {
            state: SortedNames() for state in ChildState if state is not ChildState.PRESENT
        }
        self._unevaluated: dict[str, None] = {}
        self._expired: set[str] = set()
        self._orders: Counter[int] = Counter()
        self.passes = 1
        self._names: dict[Downstream, tuple[str, ...]] = {}  # most have one: a dict of it takes 232 bytes
        self._named: dict[str, Downstream] = {}
        self._uids: dict[str, int] = {}

    # ------------------------------------------------------------ rows in

    def take(self, name: str, row: ChildRow | None) -> None:
        """Store a restored or just written row; None removes the row."""
        self.standings.remove(name, self.rows.get(name), self.results.get(name))
        old = self.rows.pop(name, None)
        self.taken.add(name)
        self.doubtful.add(name)
        if old is not None:
            self._unname(name)
            self._uids[old.set_uid] -= 1
            if old.state is not ChildState.PRESENT:
                self._in_state[old.state].discard(name)
            if old.state is ChildState.ORDERED:
                self._orders[old.generation] -= 1
        self.leaving.discard(name)
        self.returned.discard(name)
        self.on_hold.discard(name)
        if row is not None:
            self._put(name, row)
        self._judge(name)

    def _put(self, name: str, row: ChildRow) -> None:
        self.rows[name] = row
        if row.on_hold:
            self.on_hold.add(name)
        self.passes = max(self.passes, row.created + 1, row.unwanted + 1)
        self._uids[row.set_uid] = self._uids.get(row.set_uid, 0) + 1
        if row.state is not ChildState.GONE:
            self._name(row.downstream, name)
        if row.state is not ChildState.PRESENT:
            self.leaving.add(name)
            self._in_state[row.state].add(name)
        elif row.unwanted:
            self.returned.add(name)
        if row.state is ChildState.ORDERED:
            self._orders[row.generation] += 1

    def take_result(self, name: str, result: ChildResult | None) -> None:
        """Store render's result for a child; None removes it."""
        self.standings.remove(name, self.rows.get(name), self.results.get(name))
        if result is None:
            self.results.pop(name, None)
        else:
            self.results[name] = result
        self._judge(name)

    def _judge(self, name: str) -> None:
        """Compare a row with render's result for it."""
        row, result = self.rows.get(name), self.results.get(name)
        self.standings.add(name, row, result)
        self._unevaluated.pop(name, None)
        self._expired.discard(name)
        if row is None:
            return
        if row.state is ChildState.PRESENT:
            if result is None or result.evaluated != row.digest or result.expression_failed:
                self._unevaluated[name] = None
        elif row.state is ChildState.ORDERED and result is not None and result.expired == row.since:
            self._expired.add(name)

    # ------------------------------------------------------------ names

    def _name(self, downstream: Downstream, name: str) -> None:
        holders = self._names.get(downstream, ())
        if name not in holders:
            self._names[downstream] = (*holders, name)
        self._named[name] = downstream

    def _unname(self, name: str) -> None:
        downstream = self._named.pop(name, None)
        if downstream is not None:
            left = tuple([holder for holder in self._names[downstream] if holder != name])
            if left:
                self._names[downstream] = left
            else:
                del self._names[downstream]

    def names_of(self, downstream: Downstream) -> tuple[str | None, list[str]]:
        """Return the name of the child with this downstream, and those of its copies.

        A present child comes first, then one with a row, then the first by name.
        """
        holders = self._names.get(downstream)
        if not holders:
            return None, []
        if len(holders) == 1:
            return holders[0], []

        def rank(name: str) -> tuple[int, str]:
            row = self.rows.get(name)
            return (2 if row is None else row.state is not ChildState.PRESENT, name)

        child = min(holders, key=rank)
        return child, sorted(set(holders) - {child})

    def has_row(self, downstream: Downstream) -> bool:
        """Whether a child with this downstream has a name."""
        return bool(self._names.get(downstream))

    def adopt_names(self, names: Iterable[str], owned: dict[str, Observed]) -> list[Downstream]:
        """Record the names of living children that have no row, or a row in state `gone`.

        Any other child is identified by its row, because its spec may have been edited by hand.
        Returns the downstreams of the recorded children, to be settled.
        """
        unknown = []
        for name in sorted(names):
            row, observed = self.rows.get(name), owned.get(name)
            if observed is None or (row is not None and row.state is not ChildState.GONE):
                continue
            if self._named.get(name) != observed.downstream:
                self._unname(name)
                self._name(observed.downstream, name)
            unknown.append(observed.downstream)
        return unknown

    def new_name(self, set_name: str, downstream: Downstream, taken: Iterable[str]) -> str:
        """Choose a name for a new child: Porch's name, unless it is taken."""
        name = variant_name(set_name, downstream.repo, downstream.package)
        if self._named.get(name, downstream) != downstream or name in taken:
            name = colliding_variant_name(set_name, downstream.repo, downstream.package)
        self._name(downstream, name)
        return name

    # ------------------------------------------------------------ states

    def _after(self, name: str, event: ChildEvent) -> ChildState:
        """Return the state of a child after an event that does not delete its row."""
        row = self.rows.get(name)
        state = following(row.state if row is not None else None, event)
        assert state is not None
        return state

    def _moved(self, name: str, event: ChildEvent, **changes: Any) -> ChildRow:
        """Return the row of a child after an event, with further changes."""
        return replace(self.rows[name], state=self._after(name, event), **changes)

    def _dropped(self, name: str, event: ChildEvent) -> Put:
        """Return the tombstone of a row that an event deletes."""
        state = following(self.rows[name].state, event)
        assert state is None
        return self.put(name, state)

    # ------------------------------------------------------------ puts

    def put(self, name: str, row: ChildRow | None) -> Put:
        return Put(UNROLL, f"{self.skey}|{name}", row)

    def target_put(self, name: str, row: TargetRow | None) -> Put:
        return Put(TARGETS, f"{self._key.namespace}/{name}|{self._key.name}", row)

    # ------------------------------------------------------------ wanted

    def wanted(
        self, obj: PackageVariantSet, contexts: Contexts, context: Context, name: str, now: float
    ) -> tuple[Put, ...]:
        """Return the rows that make this child present; none if it is present already."""
        row = self.rows.get(name)
        is_new = row is None or row.state is ChildState.GONE
        cancelled = self._cancelled(name, row)
        target = target_row(obj, contexts, context, cancelled)
        fresh = ChildRow(
            set_uid=obj.metadata.uid,
            state=self._after(name, ChildEvent.WANTED),
            downstream=target.downstream,
            digest=target.digest,
            target=context.key[0],
            okey=context.object,
            since=row.since if row is not None and row.state is ChildState.PRESENT else now,
            created=self.passes if row is None or is_new else row.created,
            unwanted=0 if row is None or row.hold else row.unwanted,
            cancelled=cancelled,
        )
        if row == fresh:
            return ()
        puts = [self.put(name, fresh)]
        if is_new or row is None or row.digest != fresh.digest:
            puts.append(self.target_put(name, target))
        return tuple(puts)

    def _cancelled(self, name: str, row: ChildRow | None) -> str:
        """Return the token of the last withdrawn order; a new one if there is an order to withdraw.

        One that is gone took its orders along: render has no row left with which it could acknowledge another
        one's withdrawal.
        """
        if row is None or row.state is ChildState.GONE:
            return ""
        return cancel_token(name, row) if row.state is ChildState.ORDERED else row.cancelled

    def contested(self, obj: PackageVariantSet, name: str, now: float) -> tuple[Put, ...]:
        """Return the rows for a child that several targets want: its PackageVariant stays unchanged."""
        row = self.rows.get(name)
        if row is None:
            return ()
        state = self._after(name, ChildEvent.CONTESTED)
        if state is row.state:
            return ()
        fresh = replace(row, state=state, unwanted=0 if row.hold else row.unwanted, hold="", since=now)
        if row.state is ChildState.ORDERED:
            return self.withdrawn(obj, name, fresh, now)
        return (self.put(name, fresh),)

    # ------------------------------------------------------------ unwanted

    def record_unwanted(
        self,
        obj: PackageVariantSet,
        downstream: Downstream,
        name: str,
        owned: dict[str, Observed],
        now: float,
    ) -> tuple[Put, ...]:
        """Record that no target wants this child; the removal itself follows later."""
        row = self.rows.get(name)
        if (row is None or row.state is ChildState.GONE) and name not in owned:
            self._unname(name)
            return ()
        state = self._after(name, ChildEvent.UNWANTED)
        if row is not None and state is row.state:
            return ()
        fresh = ChildRow(
            set_uid=obj.metadata.uid,
            state=state,
            downstream=downstream,
            digest=row.digest if row else "",
            target=row.target if row else 0,
            okey=row.okey if row else "",
            since=now,
            created=row.created if row else 0,
            unwanted=self.passes,
            cancelled=self._cancelled(name, row),
        )
        return (self.put(name, fresh),)

    def withdrawn(
        self, obj: PackageVariantSet, name: str, row: ChildRow, now: float, *, on_hold: bool = False
    ) -> tuple[Put, Put]:
        """Return rows that let render write only the annotation that withdraws an order.

        row: the new row; the token that withdraws the current order, if any, is added.
        """
        fresh = replace(
            row,
            digest="",
            generation=0,
            since=now,
            cancelled=self._cancelled(name, self.rows.get(name)),
            on_hold=on_hold,
            hold_reason=self.hold_reason if on_hold else "",
        )
        target = TargetRow(
            state="withdrawn",
            set_name=obj.metadata.name,
            set_uid=obj.metadata.uid,
            set_created=obj.metadata.creation_timestamp or "",
            downstream=row.downstream,
            cancelled=fresh.cancelled,
            on_hold=on_hold,
            hold_reason=fresh.hold_reason,
        )
        return self.put(name, fresh), self.target_put(name, target)

    def taken_back(
        self, obj: PackageVariantSet, name: str, now: float, *, on_hold: bool = False
    ) -> tuple[Put, Put]:
        """Withdraw the order of a child, or its other target row. A removal that was ordered starts again.

        A removal that a person confirmed stays confirmed.
        """
        row = self.rows[name]
        is_confirmed = row.state is ChildState.ORDERED and bool(row.hold)
        event = ChildEvent.CONFIRMED_WITHDRAWN if is_confirmed else ChildEvent.WITHDRAWN
        return self.withdrawn(obj, name, self._moved(name, event), now, on_hold=on_hold)

    def undecided(self, obj: PackageVariantSet, name: str, observed: Observed, now: float) -> tuple[Put, Put]:
        """Extend the hold of the set to a living child that was never compared with the targets."""
        state = self._after(name, ChildEvent.FOUND_ON_HOLD)
        row = ChildRow(set_uid=obj.metadata.uid, state=state, downstream=observed.downstream)
        return self.withdrawn(obj, name, row, now, on_hold=True)

    def ordered(self, obj: PackageVariantSet, name: str, now: float, why: str) -> tuple[Put, Put]:
        """Return the order to remove a child. why: in words."""
        generation = obj.metadata.generation
        row = self._moved(
            name,
            ChildEvent.ORDERED,
            digest="",
            since=now,
            generation=generation,
            on_hold=False,
            hold_reason="",
        )
        target = TargetRow(
            state="removed",
            set_name=obj.metadata.name,
            set_uid=obj.metadata.uid,
            set_created=obj.metadata.creation_timestamp or "",
            generation=generation,
            ordered=now,
            why=why,
            cancelled=row.cancelled,
            downstream=row.downstream,
        )
        return self.put(name, row), self.target_put(name, target)

    def gone(self, name: str, now: float) -> tuple[Put, Put]:
        """Record that a child's PackageVariant is gone, and delete its target row."""
        row = self._moved(name, ChildEvent.SEEN_GONE, digest="", since=now, on_hold=False, hold_reason="")
        return self.put(name, row), self.target_put(name, None)

    def forget_removal(self, name: str) -> Put:
        """Forget an old removal of a child that is gone or wanted again."""
        row = self.rows[name]
        if row.state is ChildState.GONE:
            return self._dropped(name, ChildEvent.FORGOTTEN)
        return self.put(name, replace(row, unwanted=0))

    def is_acknowledged(self, name: str) -> bool:
        """Whether render has written the withdrawal of the last order; only then may another follow."""
        row, result = self.rows[name], self.results.get(name)
        return not row.cancelled or (result is not None and result.cancelled == row.cancelled)

    # ------------------------------------------------------------ guard

    def held(self, name: str, hold: str, now: float) -> Put:
        """Hold a removal. hold: the id of the hold."""
        return self.put(name, self._moved(name, ChildEvent.HELD, hold=hold, since=now))

    def confirmed(self, name: str, now: float) -> Put:
        """Record that a person confirmed a held removal."""
        return self.put(name, self._moved(name, ChildEvent.CONFIRMED, since=now))

    def hold_ended(self, name: str, now: float) -> Put:
        """Return a removal to `waiting` after its hold has ended."""
        return self.put(name, self._moved(name, ChildEvent.HOLD_ENDED, hold="", since=now))

    # ------------------------------------------------------------ whole set

    def unevaluated(self) -> str | None:
        """Return the name of a present child that render has not evaluated at its current digest, or
        whose expressions fail; None when there is none."""
        return next(iter(self._unevaluated), None)

    def overdue(self, generation: int, *, failing: bool) -> list[str]:
        """Return the children whose order must be withdrawn: the set is at another generation, an expression
        fails, or render found the order too old."""
        if failing or any(count for former, count in self._orders.items() if former != generation):
            return [
                name
                for name in self._in_state[ChildState.ORDERED]
                if failing or name in self._expired or self.rows[name].generation != generation
            ]
        return sorted(self._expired)

    def former(self, uid: str) -> list[str]:
        """Return the children of a deleted set of the same name; O(1) if there are none."""
        if self._uids.get(uid, 0) == len(self.rows):
            return []
        return [name for name, row in self.rows.items() if row.set_uid != uid]

    def release(self, names: Iterable[str], puts_max: int) -> list[Put]:
        """Tombstone up to `puts_max` children: they are no longer written or deleted for this set."""
        puts = []
        for name in sorted(names)[:puts_max]:
            puts.append(self._dropped(name, ChildEvent.RELEASED))
            if self.rows[name].state is not ChildState.GONE:
                puts.append(self.target_put(name, None))
        return puts

    def in_state(self, *states: ChildState) -> list[str]:
        """Return the sorted names of the rows in these states, which may not include `present`."""
        if len(states) == 1:
            return list(self._in_state[states[0]])
        return sorted(name for state in states for name in self._in_state[state])

    def first_in_state(self, state: ChildState, count: int) -> list[str]:
        """Return the first names in a state, in order, at most `count`."""
        return self._in_state[state].first(count)

    def has_any(self, *states: ChildState) -> bool:
        return any(self._in_state[state] for state in states)


def cancel_token(name: str, row: ChildRow) -> str:
    """Return the token that withdraws the order of this row."""
    return sha1_head(f"{name}/{row.unwanted}/{row.since}")


def target_row(obj: PackageVariantSet, contexts: Contexts, context: Context, cancelled: str) -> TargetRow:
    """Build render's self-contained input for one child; its digest covers all but the generation."""
    assert context.downstream is not None
    row = TargetRow(
        state="present",
        set_name=obj.metadata.name,
        set_uid=obj.metadata.uid,
        set_created=obj.metadata.creation_timestamp or "",
        cancelled=cancelled,
        target=context.key[0],
        upstream=obj.spec.upstream,
        template=obj.spec.targets[context.key[0]].template,
        downstream=context.downstream,
        repo_default=context.repo_default,
        package_default=context.package_default,
        list_target=not context.object,
        roots=contexts.roots(context),
    )
    return replace(row, digest=digest(row))
