"""Shares of a server's room: what one user, all users and the server's own accounts may hold at once.

A flood takes no more than its user's share, and is answered with 429 beyond it. The administrator and the
services have room of their own, which users cannot take; each of them gets half of it at most. Somebody who
acts in the name of others is counted as himself, however many names he uses.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import ADMINS_GROUP, User
from pvbus.controlplane.apiserver.rbac.builtin import account_of
from pvbus.controlplane.apiserver.rbac.policy import ACCOUNT_PREFIX
from pvbus.core.kernel.rights import SERVICE_RIGHTS

RETRY_SECONDS = 1
"""When to come again after a 429: most requests take milliseconds."""


class Room(NamedTuple):
    """How much of one thing there is.

    what: names the thing in messages
    user: the amount for one user
    users: the amount for all users together
    own: the amount for the administrator and the services together
    """

    what: str
    user: int
    users: int
    own: int

    def scaled(self, factor: float) -> "Room":
        """Return a room that is smaller by a factor, in which everybody can have one at least."""
        user, users, own = (max(2, int(size * factor)) for size in self[1:])
        return Room(self.what, user, users, own)


WATCHES = Room("watches", 1_000, 10_000, 2_000)
"""Each uses a connection and a task, about 100 kB; a service has about 10, a page or a kubectl one to five.
Fewer where the process may open fewer descriptors."""

REQUESTS = Room("requests", 100, 1_000, 2_000)
"""Requests that are being answered, watches not counted. Requests of a millisecond make others wait for 0.1 s
at most; a client of client-go has 10 at once, a service 100."""

_MEBIBYTE = 1024 * 1024

BODIES = Room("bytes of bodies", 24 * _MEBIBYTE, 128 * _MEBIBYTE, 128 * _MEBIBYTE)
"""Bodies that are being read and handled: four of the largest for a user. One is always taken."""

ANSWERS = Room("bytes of answers", 64 * _MEBIBYTE, 256 * _MEBIBYTE, 256 * _MEBIBYTE)
"""Large answers that are being sent: a list of 10,000 variants has 20 MB. They stay in memory until they are
sent. One is always sent."""

TURNS_MAX = 2
"""Lists and requests with large bodies that are computed at once for a user. Each may take 0.1 s and more, in
which nobody else is answered; between them others are."""


def payer_of(user: User) -> User:
    """Return who is counted for a request: the sender, not the one in whose name he acts."""
    return user.sender or user


def is_own(user: User) -> bool:
    """Return whether an account is the server's: the administrator's, a service's, or one of Kubernetes."""
    if ADMINS_GROUP in user.groups or user.name in _SERVICES:
        return True
    return user.name.startswith("system:kube-") or user.name in _KUBERNETES


def _service_accounts() -> Iterator[str]:
    for service in SERVICE_RIGHTS:
        account = account_of(service)
        yield f"{ACCOUNT_PREFIX}{account.namespace}:{account.name}"


_SERVICES = frozenset(_service_accounts())
_KUBERNETES = frozenset({"system:aggregator", "system:apiserver"})


class Shares:
    """Counts what each user holds of one thing."""

    def __init__(self, room: Callable[[], Room]) -> None:
        """Hold nothing.

        room: returns how much there is; called at each take
        """
        self._room = room
        self._held: Counter[str] = Counter()
        self._together = {False: 0, True: 0}

    @property
    def total(self) -> int:
        return sum(self._together.values())

    @contextmanager
    def hold(self, user: User, amount: int = 1) -> Iterator[None]:
        """Hold an amount for a user in the block. Raises StatusError (429)."""
        own = is_own(user)
        self._check(user, own, amount)
        self._held[user.name] += amount
        self._together[own] += amount
        try:
            yield
        finally:
            self._together[own] -= amount
            self._held[user.name] -= amount
            if not self._held[user.name]:
                del self._held[user.name]

    def _check(self, user: User, own: bool, amount: int) -> None:
        room = self._room()
        alone, together = (room.own // 2, room.own) if own else (room.user, room.users)
        held = self._held.get(user.name, 0)
        if held and held + amount > alone:
            raise too_many(f'user "{user.name}" has {held} {room.what} already, of {alone} for one user')
        if self._together[own] and self._together[own] + amount > together:
            raise too_many(f"all users together have {self._together[own]} {room.what}, of {together}")


class Turns:
    """Lets each user compute a few expensive answers at once.

    Further answers for the same user wait; those for other users do not.
    """

    def __init__(self) -> None:
        self._users: dict[str, tuple[asyncio.Semaphore, set[object]]] = {}

    @asynccontextmanager
    async def turn(self, user: User) -> AsyncIterator[None]:
        """Wait for a turn, and hold it in the block. The server's own accounts always have one."""
        if is_own(user):
            yield
            return
        semaphore, present = self._users.setdefault(user.name, (asyncio.Semaphore(TURNS_MAX), set()))
        mark = object()
        present.add(mark)
        try:
            async with semaphore:
                yield
        finally:
            present.discard(mark)
            if not present:
                self._users.pop(user.name, None)


class Limits:
    """The shares of one server.

    watches: returns the room for watches now
    """

    def __init__(self, watches: Callable[[], Room]) -> None:
        self.watches = Shares(watches)
        self.requests = Shares(lambda: REQUESTS)
        self.bodies = Shares(lambda: BODIES)
        self.answers = Shares(lambda: ANSWERS)
        self.turns = Turns()


def too_many(why: str) -> StatusError:
    text = f"too many requests, please try again later: {why}"
    return StatusError(429, "TooManyRequests", text, retry_after_seconds=RETRY_SECONDS)
