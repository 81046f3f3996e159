"""Makes approvals that go together one change of a repository: all of them are published, or none.

Each member has a request of its own, which comes once its sender has found nothing against it. It waits here
until all have come; then they are built one after the other as one change. A push has the whole change or
nothing of it, also after a crash and where the remote refuses a part. A member that is published already is
not waited for: it was approved by hand, or by a request whose answer was lost.

Whoever sends the requests has only so many in progress. If all of these waited, none of the others could
come. So few may wait, in all repositories together: a member that opens a group beyond that is told to come
again, while the members of the groups that wait may always come.

The requests meet in one process. With several servers of one repository, members may come to different ones:
these give up, and the senders try again.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages import answers, layout
from pvbus.controlplane.packages.operations import Build, Staging
from pvbus.core.kernel.keys import APPROVE_TOGETHER
from pvbus.core.kernel.objects import annotations_of
from pvbus.ports.cluster import Object

WAIT_SECONDS = 15.0
"""How long a member waits for the others. Longer than the ten seconds after which release repeats a request
that had a conflict: so two members that repeat theirs meet, whatever lies between them."""

SEATS = 32
"""How many members may wait: half of the requests that a worker of release has in progress. With as many as
that, the requests that are waited for do not come; with few, units of one wave go one after the other."""

MEMBERS_MAX = 64
"""As many as changes in one push."""

CONFLICT = 409
_PUBLISHED = (layout.PUBLISHED, layout.DELETION_PROPOSED)

Group = frozenset[str]


class _Member(NamedTuple):
    """A change that waits. future: gets the result of its build, or why it is not made."""

    build: Build
    future: "asyncio.Future[Any]"


class _RefusedError(Exception):
    """The change of a member cannot be built."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(str(error))
        self.name, self.error = name, error


class Groups:
    """The changes that wait for others of one repository. Call all methods on the event loop's thread."""

    def __init__(self, put: Callable[[Build], "asyncio.Future[Any]"], seats: dict[object, int]) -> None:
        """Begin without changes.

        put: adds a change to those of the next push
        seats: of the groups that wait, here and in other repositories
        """
        self._put = put
        self._seats = seats
        self._waiting: dict[Group, dict[str, _Member]] = {}

    async def join(self, group: Group, name: str, build: Build) -> Any:
        """Make a change together with those of its group; return the result of its last build.

        group: the names of all members, this one, too
        Raises: StatusError, GitError; then no member's change is made.
        """
        if len(group) == 1:
            return await self._put(build)
        loop = asyncio.get_running_loop()
        member = _Member(build, loop.create_future())
        waiting = self._open(group, name)
        waiting[name] = member
        timer = loop.call_later(WAIT_SECONDS, self._give_up, group, name, member)
        if waiting.keys() == group:
            self._send(self._close(group))
        try:
            return await member.future
        finally:
            timer.cancel()
            self._forget(group, name, member)

    @contextmanager
    def refusing(self, group: Group, name: str) -> Iterator[None]:
        """Refuse the waiting members of a group if this one is refused in the block. A conflict may pass."""
        try:
            yield
        except StatusError as exc:
            if exc.code != CONFLICT:
                _fail(self._close(group), name, exc)
            raise

    def refuse_all(self, error: StatusError) -> None:
        """Answer all members that wait."""
        for group in list(self._waiting):
            for member in self._close(group).values():
                _settle(member, error)

    def _open(self, group: Group, name: str) -> dict[str, _Member]:
        """Return the members of a group that wait. Raises: StatusError if no more groups may wait."""
        if group not in self._waiting:
            needed = len(group) - 1
            if self._seats and sum(self._seats.values()) + needed > SEATS:
                raise answers.conflict(name, "too many approvals wait for others that go with them")
            self._seats[self, group] = needed
            self._waiting[group] = {}
        return self._waiting[group]

    def _close(self, group: Group) -> dict[str, _Member]:
        """End the waiting of a group; return its members."""
        self._seats.pop((self, group), None)
        return self._waiting.pop(group, {})

    def _send(self, members: dict[str, _Member]) -> None:
        """Make the changes of a whole group."""

        def build(refs: Staging) -> dict[str, Any]:
            results = {}
            for name, member in members.items():
                try:
                    results[name] = member.build(refs)
                except Exception as exc:  # that member gets it, and the others its name
                    raise _RefusedError(name, exc) from exc
            return results

        def settle(done: "asyncio.Future[Any]") -> None:
            error = done.exception()
            if isinstance(error, _RefusedError):
                _settle(members[error.name], error.error)
                _fail(members, error.name, error.error)
                return
            for name, member in members.items():
                _settle(member, error or done.result()[name])

        self._put(build).add_done_callback(settle)

    def _give_up(self, group: Group, name: str, member: _Member) -> None:
        """Answer a member that has waited for too long. One whose group is whole waits for the push."""
        waiting = self._waiting.get(group, {})
        if waiting.get(name) is member:
            missing = ", ".join(sorted(group - waiting.keys()))
            _settle(
                member, answers.conflict(name, f"it is approved together with {missing}, not yet asked for")
            )

    def _forget(self, group: Group, name: str, member: _Member) -> None:
        """Remove a member that waits no more: it has its answer, or its client is gone."""
        waiting = self._waiting.get(group, {})
        if waiting.get(name) is member:
            del waiting[name]
            if not waiting:
                self._close(group)


def group_of(objects: Objects, old: Object, request: Object) -> Group:
    """Return the open members of the group that an approval asks for, itself alone without such a group.

    Raises: StatusError if a member is of another repository, or cannot be approved.
    """
    meta = old["metadata"]
    name, value = meta["name"], annotations_of(request).get(APPROVE_TOGETHER, "")
    names = {part.strip() for part in value.split(",")} - {"", name}
    if len(names) >= MEMBERS_MAX:
        raise answers.invalid(
            name, "metadata.annotations", f"{APPROVE_TOGETHER}: more than {MEMBERS_MAX} names"
        )
    members = {mate: objects.get(PACKAGE_REVISION, meta.get("namespace", ""), mate) for mate in names}
    return Group(mate for mate, obj in members.items() if _is_awaited(old, mate, obj)) | {name}


def _is_awaited(old: Object, mate: str, obj: Object | None) -> bool:
    """Tell whether a member is to be published yet. Raises: StatusError if it cannot be."""
    name, repository = old["metadata"]["name"], old["spec"]["repository"]
    if obj is None:
        raise answers.conflict(name, f"it is approved together with {mate}, which is not there")
    other = obj["spec"]["repository"]
    if other != repository:
        why = f"{mate} is in repository {other}, not in {repository}: one push cannot have both"
        raise answers.invalid(name, "metadata.annotations", f"{APPROVE_TOGETHER}: {why}")
    lifecycle = obj["spec"].get("lifecycle") or layout.DRAFT
    if lifecycle == layout.DRAFT:
        raise answers.conflict(name, f"it is approved together with {mate}, which is not proposed")
    return lifecycle not in _PUBLISHED


def _fail(members: dict[str, _Member], name: str, error: Exception) -> None:
    """Tell the others of a group which member was refused."""
    for mate, member in members.items():
        if mate != name:
            _settle(
                member,
                answers.conflict(mate, f"{name}, which is approved together with it, is refused: {error}"),
            )


def _settle(member: _Member, outcome: object) -> None:
    if member.future.done():
        return
    if isinstance(outcome, BaseException):
        member.future.set_exception(outcome)
    else:
        member.future.set_result(outcome)
