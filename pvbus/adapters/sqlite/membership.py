"""A worker's membership in a group: heartbeats, the owners of leases, and the hand-over of leases.

There is no coordinator. Each heartbeat of each worker is one transaction: the worker raises its beat, removes
dead members, computes the owner of every lease (`assignment.assign`), takes its own leases that are free, and
notes which leases it must hand over. It revokes those and then frees them; the next owner takes them at its
next heartbeat.

Invariants. A lease's epoch rises whenever it loses its owner, in the same transaction, so that at every
moment at most one epoch of a lease can step, and each owner's epoch is one above the previous owner's. Only
a living owner itself frees its lease. A worker uses its own clock to decide whether a member is alive: the
member's beat must change within a session. Clocks of two machines or processes are never compared.

`GroupRows` has the rows of one group in the file: who its members are, and which of them has which lease.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pvbus.adapters.assignment import assign
from pvbus.adapters.membership import MembershipLife, call_back
from pvbus.adapters.sqlite.store import Store
from pvbus.core.errors import PermanentError, TransientError
from pvbus.ports.bus import (
    Assigned,
    GroupOffsets,
    GroupState,
    Lease,
    PartitionState,
    Revoked,
    TopicPartition,
)
from pvbus.ports.clock import Clock


class GroupRows:
    """The members and leases of a group. Caller: inside `Store.write`."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._store = store

    def create_leases(self, partitions: int) -> None:
        (known,) = self._store.db.execute(
            "SELECT count(*) FROM leases WHERE consumer_group = ?", (self.name,)
        ).fetchone()
        if known not in (0, partitions):
            raise PermanentError(
                f"group {self.name} has {known} leases, but its topics have {partitions} partitions",
                reason="PartitionsDiffer",
            )
        if not known:
            self._store.db.executemany(
                "INSERT INTO leases (consumer_group, partition, epoch) VALUES (?, ?, 1)",
                ((self.name, partition) for partition in range(partitions)),
            )

    def add_member(self, process: str, label: str) -> int:
        sql = "INSERT INTO members (consumer_group, process, label) VALUES (?, ?, ?) RETURNING id"
        (member,) = self._store.db.execute(sql, (self.name, process, label)).fetchone()
        return int(member)

    def beat(self, member: int, *, leaving: bool) -> bool:
        """Raise a member's beat; return False if the member has been removed."""
        sql = "UPDATE members SET beat = beat + 1, leaving = ? WHERE id = ?"
        return self._store.db.execute(sql, (leaving, member)).rowcount > 0

    def members(self) -> list[tuple[int, str, int, int]]:
        """Return (id, process, beat, leaving) of each member."""
        sql = "SELECT id, process, beat, leaving FROM members WHERE consumer_group = ? ORDER BY id"
        return self._store.db.execute(sql, (self.name,)).fetchall()

    def leases(self) -> list[tuple[int, int, int | None]]:
        """Return (partition, epoch, owner) of each lease."""
        sql = "SELECT partition, epoch, owner FROM leases WHERE consumer_group = ? ORDER BY partition"
        return self._store.db.execute(sql, (self.name,)).fetchall()

    def set_owner(self, partition: int, member: int) -> None:
        """Give a free lease to a member; its epoch rose when it became free."""
        sql = "UPDATE leases SET owner = ? WHERE consumer_group = ? AND partition = ?"
        self._store.db.execute(sql, (member, self.name, partition))

    def release(self, lease: Lease, member: int) -> None:
        """Free a lease, if it still is the member's."""
        self._store.db.execute(
            "UPDATE leases SET owner = NULL, epoch = epoch + 1"
            " WHERE consumer_group = ? AND partition = ? AND epoch = ? AND owner = ?",
            (lease.group, lease.partition, lease.epoch, member),
        )

    def remove_member(self, member: int) -> None:
        """Remove a member, and fence all leases that it held."""
        self._store.db.execute("DELETE FROM members WHERE id = ?", (member,))
        self._store.db.execute("UPDATE leases SET owner = NULL, epoch = epoch + 1 WHERE owner = ?", (member,))


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How quickly members notice each other.

    session_seconds: a member without a heartbeat for so long is removed. If it is shorter, a garbage
        collection or a slow disk looks like a death. If it is longer, the leases of a hanging worker make no
        progress for that time.
    heartbeat_seconds: a tenth of the session, so that a few heartbeats may fail. A hand-over takes two of
        them.
    drain_seconds: the limit for `revoked`. It is below the session, or the member is removed before it is
        done.
    """

    session_seconds: float
    heartbeat_seconds: float
    drain_seconds: float


class _Held:
    """A lease that we own, or whose callbacks have not ended yet.

    lease: the lease
    assigning: the task of the callback `assigned`
    revoking: the task that hands the lease over, None while it stays
    """

    def __init__(self, lease: Lease, assigning: "asyncio.Task[None]") -> None:
        self.lease = lease
        self.assigning = assigning
        self.revoking: asyncio.Task[None] | None = None


class _Sighting(NamedTuple):
    """The beat of a member, and when (by our clock) we first saw it."""

    beat: int
    since: float


class _Turn(NamedTuple):
    """The result of one heartbeat's transaction.

    member: our id, a new one if our session had expired
    taken: the leases that are ours from now on
    lost: the leases that were ours when our session expired
    unwanted: the partitions whose leases go to another worker
    """

    member: int
    taken: list[Lease]
    lost: list[Lease]
    unwanted: list[int]


class SqliteMembership(MembershipLife):
    """Implements `pvbus.ports.bus.Membership`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        timing: Timing,
        group: str,
        assigned: Assigned,
        revoked: Revoked,
        *,
        label: str = "",
    ) -> None:
        super().__init__(group, clock, assigned, revoked)
        self._store = store
        self._rows = GroupRows(store, group)
        self._timing = timing
        self._label = label
        self._process = store.lock.process if store.lock else ""
        self._member = 0
        self._held: dict[int, _Held] = {}
        self._seen: dict[int, _Sighting] = {}
        self._leaving = False
        self._pause: asyncio.Task[None] | None = None

    async def start(self, partitions: int) -> None:
        """Join the group; create its leases if the group is new."""

        def enter() -> int:
            self._rows.create_leases(partitions)
            return self._rows.add_member(self._process, self._label)

        self._member = await self._store.write(enter)
        self._last_heartbeat = self._clock.monotonic()
        self._life = asyncio.create_task(self._live(), name=f"membership {self.member_id}")

    @property
    def member_id(self) -> str:
        return _member_id(self._group, self._member)

    async def leave(self) -> None:
        self._leaving = True
        self._end_pause()
        await self._wait_ended()

    # The life of a member

    async def _live(self) -> None:
        """Send heartbeats until `leave`. An error of a callback ends the membership."""
        try:
            async with self._tasks:
                while True:
                    try:
                        self._apply(await self._beat())
                    except TransientError:  # `last_heartbeat` shows the failure
                        if self._leaving:  # a disk that is full does not keep a process from ending
                            for number in list(self._held):
                                self._start_revoking(number)
                    if self._leaving and not self._held:
                        break
                    await self._rest()
        except Exception as exc:
            self._failure = exc
        await self._leave_group()

    async def _rest(self) -> None:
        """Wait for the next heartbeat; `_end_pause` ends it."""
        self._pause = asyncio.create_task(self._clock.sleep(self._timing.heartbeat_seconds))
        try:
            await asyncio.wait({self._pause})
        finally:
            self._pause.cancel()
            self._pause = None

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()

    async def _leave_group(self) -> None:
        self._leases = {}
        with contextlib.suppress(TransientError):  # the session then expires
            await self._store.write(lambda: self._rows.remove_member(self._member))

    async def _beat(self) -> _Turn:
        now = self._clock.monotonic()
        turn = await self._store.write(lambda: self._turn(now))
        self._last_heartbeat = now
        return turn

    def _turn(self, now: float) -> _Turn:
        """Do one heartbeat's work. Call inside a transaction; it changes the store, not this object."""
        rows, me = self._rows, self._member
        lost: list[Lease] = []
        if not rows.beat(me, leaving=self._leaving):
            lost = list(self._leases.values())  # our session expired: join again
            me = rows.add_member(self._process, self._label)
            rows.beat(me, leaving=self._leaving)
        staying = self._living_members(me, now)
        leases = rows.leases()
        wanted = assign(len(leases), staying, {number: str(owner) for number, _, owner in leases})
        taken, unwanted = [], []
        for number, epoch, owner in leases:
            is_mine = wanted.get(number) == str(me)
            if owner == me and not is_mine:
                unwanted.append(number)
            elif owner is None and is_mine and number not in self._held:
                rows.set_owner(number, me)
                taken.append(Lease(group=self._group, partition=number, epoch=epoch))
        return _Turn(me, taken, lost, unwanted)

    def _living_members(self, me: int, now: float) -> list[str]:
        """Remove dead members; return the members that may hold leases."""
        staying = []
        seen: dict[int, _Sighting] = {}
        for member, process, beat, leaving in self._rows.members():
            sighting = self._seen.get(member)
            if sighting is None or sighting.beat != beat:
                sighting = _Sighting(beat, now)
            is_silent = now - sighting.since > self._timing.session_seconds
            is_gone = self._store.lock is not None and self._store.lock.is_gone(process)
            if member != me and (is_silent or is_gone):
                self._rows.remove_member(member)
                continue
            seen[member] = sighting
            if not leaving:
                staying.append(str(member))
        self._seen = seen
        return staying

    def _apply(self, turn: _Turn) -> None:
        self._member = turn.member
        for lease in turn.lost:
            del self._leases[lease.partition]
            self._start_revoking(lease.partition)
        for number in turn.unwanted:
            self._start_revoking(number)
        for lease in turn.taken:
            self._leases[lease.partition] = lease
            assigning = self._tasks.create_task(call_back(self._assigned, lease))
            self._held[lease.partition] = _Held(lease, assigning)

    # Hand-over

    def _start_revoking(self, number: int) -> None:
        held = self._held.get(number)
        if held is not None and held.revoking is None:
            held.revoking = self._tasks.create_task(self._revoke(held))

    async def _revoke(self, held: _Held) -> None:
        """Call back, free the lease after the callback or its deadline, and forget it after the callback."""
        number = held.lease.partition
        draining = self._tasks.create_task(self._drain(held))
        await asyncio.wait({draining}, timeout=self._timing.drain_seconds)
        while self._leases.get(number) == held.lease:
            try:
                await self._store.write(lambda: self._rows.release(held.lease, self._member))
            except TransientError:
                if self._leaving:  # the others take the lease when this process is gone
                    break
                await asyncio.sleep(self._timing.heartbeat_seconds)
            else:
                del self._leases[number]
        draining.cancel()  # no effect if it is done
        await asyncio.wait({draining})
        del self._held[number]
        if self._leaving:
            self._end_pause()

    async def _drain(self, held: _Held) -> None:
        held.assigning.cancel()  # a revoked lease need not be restored completely
        await asyncio.wait({held.assigning})
        await call_back(self._revoked, held.lease)


def describe_group(store: Store, group: str, topics: Sequence[str], partitions: int) -> GroupState:
    """Describe a group from outside, without dead members that no heartbeat has removed yet."""
    members = _living_members(store, group)
    owners: dict[int, str] = dict.fromkeys(range(partitions), "")
    committed: dict[int, dict[str, int]] = {number: dict.fromkeys(topics, 0) for number in owners}
    for number, owner, topic, offset in store.query(
        "SELECT l.partition, l.owner, o.topic, o.next FROM leases l"
        " LEFT JOIN offsets o USING (consumer_group, partition)"
        " WHERE l.consumer_group = ? AND l.partition < ?",
        (group, partitions),
    ):
        owners[number] = _member_id(group, owner) if owner in members else ""
        if topic in topics:
            committed[number][topic] = offset
    return GroupState(
        {_member_id(group, member): label for member, label in members.items()},
        {number: PartitionState(owner, committed[number]) for number, owner in owners.items()},
    )


def groups_of(store: Store, topics: Sequence[str]) -> dict[str, GroupOffsets]:
    """Return the groups with committed offsets of these topics, in the words of Kafka."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for group, topic, number, offset in store.query(
        "SELECT consumer_group, topic, partition, next FROM offsets", ()
    ):
        if topic in topics:
            found.setdefault(group, {})[topic, number] = offset
    return {
        group: GroupOffsets("Stable" if _living_members(store, group) else "Empty", committed)
        for group, committed in found.items()
    }


def _living_members(store: Store, group: str) -> dict[int, str]:
    """Return the labels of a group's members, without dead ones that no heartbeat has removed yet."""
    return {
        member: label
        for member, process, label in store.query(
            "SELECT id, process, label FROM members WHERE consumer_group = ?", (group,)
        )
        if store.lock is None or not store.lock.is_gone(process)
    }


def _member_id(group: str, member: int) -> str:
    return f"{group}/{member}"
