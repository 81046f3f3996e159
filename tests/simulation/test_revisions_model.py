"""Every order of events around the revisions of an install: never two are active, nor none after the first.

The parts of a state are the install's tag, policy and limit, the lock, what establish knows of the lock, the
revisions' objects in the cluster, and what resolve has seen of them. Each step is one event, or one write: a
crash between two writes is a state in which no further write of that run follows. What establish does is the
order of its writes, from `pvbus.core.platform.establish.crossplane`.

PVBUS_TEST_REVISIONS=large adds that resolve sees the objects late, and takes a minute.
"""

import os
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec
import pytest

from pvbus.core.kernel.packagerows import LockedRevision
from pvbus.core.platform.resolve.revisions import (
    ACTIVE,
    INACTIVE,
    History,
    Intent,
    RevisionObject,
    advanced,
    rebuilt,
    request_of,
)

IS_LARGE = os.environ.get("PVBUS_TEST_REVISIONS") == "large"


class State(NamedTuple):
    """lock: None while it is lost. ordered: the revisions that establish knows of. objects: in the cluster,
    by digest. mirror: what resolve has seen of them. current: the active one in the install's status. is_due:
    the lock had an active revision, or the cluster says that there was one."""

    tag: str
    is_manual: bool
    limit: int
    lock: History | None
    ordered: tuple[LockedRevision, ...]
    objects: tuple[RevisionObject, ...]
    mirror: tuple[RevisionObject, ...]
    current: str
    is_due: bool


FIRST = State("a", False, 1, History(), (), (), (), "", False)


class Model:
    """is_late: whether resolve sees the objects late. policies, limits: those that a user may set.
    has_losses: whether the bus may be emptied."""

    def __init__(
        self,
        digests: str = "ab",
        *,
        limits: tuple[int, ...] = (1,),
        policies: tuple[bool, ...] = (False, True),
        is_late: bool = False,
        has_losses: bool = False,
    ) -> None:
        self.digests = digests
        self.limits = limits
        self.policies = policies
        self.is_late = is_late
        self.has_losses = has_losses

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._users(state)
        yield from self._mirrored(state)
        decided = self._decided(state)
        if decided is not None:
            yield "resolve decides", decided
        if state.lock is not None:
            if self.has_losses:
                yield "the bus is emptied", _lost(state)
            if state.ordered != state.lock.revisions:
                yield "establish reads the lock", state._replace(ordered=state.lock.revisions)
        for name, objects in self._written(state):
            yield name, self._seen(state._replace(objects=objects))
        active = next((each.name for each in state.objects if each.wrote == ACTIVE), "")
        if self.has_losses and active and active != state.current:
            yield "establish writes the status", state._replace(current=active)

    # ------------------------------------------------------------ users

    def _users(self, state: State) -> Iterator[tuple[str, State]]:
        for digest in self.digests:
            if digest != state.tag:
                yield f"the tag names {digest}", state._replace(tag=digest)
        for policy in self.policies:
            if policy != state.is_manual:
                yield f"the policy is {'Manual' if policy else 'Automatic'}", state._replace(is_manual=policy)
        for limit in self.limits:
            if limit != state.limit:
                yield f"the limit is {limit}", state._replace(limit=limit)
        for each in state.objects:
            other = INACTIVE if each.desired == ACTIVE else ACTIVE
            changed = each._replace(desired=other, generation=each.generation + 1)
            yield f"a user makes {each.digest} {other}", self._seen(self._with(state, changed))

    @staticmethod
    def _with(state: State, changed: RevisionObject) -> State:
        objects = (*(each for each in state.objects if each.digest != changed.digest), changed)
        return state._replace(objects=tuple(sorted(objects)))

    # ------------------------------------------------------------ the mirror

    def _seen(self, state: State) -> State:
        return state if self.is_late else state._replace(mirror=state.objects)

    def _mirrored(self, state: State) -> Iterator[tuple[str, State]]:
        if not self.is_late:
            return
        for digest in self.digests:
            now = [each for each in state.objects if each.digest == digest]
            before = [each for each in state.mirror if each.digest == digest]
            if now != before:
                rest = [each for each in state.mirror if each.digest != digest]
                yield f"resolve sees {digest}", state._replace(mirror=tuple(sorted([*rest, *now])))

    # ------------------------------------------------------------ resolve

    def _decided(self, state: State) -> State | None:
        """Decide as resolve does. After a loss it waits for a complete list."""
        if state.lock is None and state.mirror != state.objects:
            return state._replace(mirror=state.objects)
        history = state.lock if state.lock is not None else rebuilt(state.mirror, state.current)
        after = _advanced(history, state.mirror, state.tag, state.is_manual, state.limit)
        check(state, after)
        if after == state.lock:
            return None
        return state._replace(lock=after, is_due=state.is_due or after.active is not None)

    # ------------------------------------------------------------ establish

    def _written(self, state: State) -> Iterator[tuple[str, tuple[RevisionObject, ...]]]:
        """Yield the next write of establish for the lock that it knows, if there is one to do."""
        known = {revision.digest: revision for revision in state.objects}
        active = next((revision for revision in state.ordered if revision.is_active), None)
        for revision in state.ordered:
            if revision.digest not in known:
                made = RevisionObject(revision.name, revision.digest, wrote=INACTIVE, generation=1)
                yield f"establish makes {revision.digest}", self._with(state, made).objects
                return
        if active is None:
            return
        ordered = {revision.digest for revision in state.ordered}
        for live in state.objects:
            if live.digest not in ordered and live.wrote == ACTIVE:
                generation = live.generation + (live.desired != INACTIVE)
                changed = live._replace(desired=INACTIVE, wrote=INACTIVE, generation=generation)
                yield f"establish writes {live.digest} {INACTIVE}", self._with(state, changed).objects
                return
        for revision in sorted(state.ordered, key=lambda revision: revision.is_active):
            wanted = ACTIVE if revision.is_active else INACTIVE
            live = known[revision.digest]
            if _is_done(live, revision, wanted):
                continue
            generation = live.generation + (live.desired != wanted)
            written = live._replace(desired=wanted, wrote=wanted, generation=generation)
            yield f"establish writes {revision.digest} {wanted}", self._with(state, written).objects
            return
        for live in state.objects:
            if live.digest not in ordered and live.desired == live.wrote:
                rest = tuple(revision for revision in state.objects if revision != live)
                yield f"establish deletes {live.digest}", rest
                return


@cache
def _advanced(
    history: History, mirror: tuple[RevisionObject, ...], tag: str, is_manual: bool, limit: int
) -> History:
    """Decide once for all states in which resolve sees the same: it is a pure function."""
    intent = Intent(tag, f"aws-{tag}", is_manual=is_manual, history_max=limit)
    return advanced(history, intent, request_of(history, mirror))


def _lost(state: State) -> State:
    return state._replace(lock=None, ordered=(), mirror=(), is_due=bool(state.current))


def _is_done(live: RevisionObject, locked: LockedRevision, wanted: str) -> bool:
    is_same = live.desired == wanted
    is_users = live.wrote != live.desired and live.generation > locked.asked
    return (is_same and live.wrote == wanted) or (not is_same and is_users)


def check(state: State, after: History) -> None:
    """Fail if a decision leaves two active revisions, or none after the first."""
    active = [each for each in after.revisions if each.is_active]
    assert len(active) <= 1, f"two are active: {state} -> {after}"
    assert active or not state.is_due, f"none is active any more: {state} -> {after}"
    digests = [each.digest for each in after.revisions]
    assert len(set(digests)) == len(digests), f"one content, two revisions: {after}"
    numbers = [each.revision for each in after.revisions]
    assert len(set(numbers)) == len(numbers), f"two revisions of one number: {after}"
    if state.limit:
        assert len(after.revisions) - len(active) <= state.limit


def normal(state: State) -> State:
    """Return a state with the smallest numbers that are in the same order: only their order has a meaning."""
    lock, ordered, objects, mirror = _numbered(state.lock, state.ordered, state.objects, state.mirror)
    return state._replace(lock=lock, ordered=ordered, objects=objects, mirror=mirror)


@cache
def _numbered(
    lock: History | None,
    ordered: tuple[LockedRevision, ...],
    objects: tuple[RevisionObject, ...],
    mirror: tuple[RevisionObject, ...],
) -> tuple[
    History | None, tuple[LockedRevision, ...], tuple[RevisionObject, ...], tuple[RevisionObject, ...]
]:
    locked = lock.revisions if lock else ()
    numbers = sorted({each.revision for each in (*locked, *ordered)})
    generations: dict[str, list[int]] = {}
    for seen in (*objects, *mirror):
        generations.setdefault(seen.digest, []).append(seen.generation)
    for each in (*locked, *ordered):
        generations.setdefault(each.digest, []).append(each.asked)
    ranks = {digest: sorted({0, *each}) for digest, each in generations.items()}

    def revision(each: LockedRevision) -> LockedRevision:
        return msgspec.structs.replace(
            each, revision=numbers.index(each.revision) + 1, asked=ranks[each.digest].index(each.asked)
        )

    def seen_of(each: RevisionObject) -> RevisionObject:
        return each._replace(generation=ranks[each.digest].index(each.generation))

    return (
        lock._replace(revisions=tuple(map(revision, locked))) if lock else None,
        tuple(map(revision, ordered)),
        tuple(map(seen_of, objects)),
        tuple(map(seen_of, mirror)),
    )


def explored(model: Model) -> int:
    """Visit every state that can be reached; return their number."""
    known = {FIRST: ("", FIRST)}
    pending = deque([FIRST])
    while pending:
        state = pending.popleft()
        for name, found in model.steps(state):
            assert sum(each.wrote == ACTIVE for each in found.objects) <= 1, _path(known, state, name)
            following = normal(found)
            if following not in known:
                known[following] = (name, state)
                pending.append(following)
    return len(known)


def _path(known: dict[State, tuple[str, State]], state: State, last: str) -> str:
    names = [last]
    while state != FIRST:
        name, state = known[state]
        names.append(name)
    return "; ".join(reversed(names))


SMALL = {
    "two contents": (Model(), 51_884),
    "the lock is lost": (Model(has_losses=True, policies=(False,)), 39_410),
}
LARGE = {
    "seen late": (Model(is_late=True, policies=(False,)), 320_350),
}


@pytest.mark.parametrize("name", [*SMALL, *(LARGE if IS_LARGE else ())])
def test_never_two_revisions_are_active_and_never_none_after_the_first(name: str) -> None:
    model, states = {**SMALL, **LARGE}[name]
    assert explored(model) == states
