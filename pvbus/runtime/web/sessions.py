"""The people who are signed in to the page, each in a session of one tab.

A session's id is a secret that only scripts of the page's own origin have: no cookie carries it, as browsers
send the cookies of a host to all its ports. Sessions are in memory only, and end when they are not used.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from pvbus.core.errors import TransientError

SESSION_HEADER = "X-Pvbus-Session"
SESSIONS_MAX = 64  # the one that was used longest ago goes
IDLE_SECONDS_MAX = 3600.0
"""An hour without an action: people who look and think stay, a tab that is left does not for a night."""
PARALLEL_MAX = 4
"""Sign-ins and actions at a time: each may send some hundred requests."""
WAIT_SECONDS_MAX = 10.0


class SignedOutError(Exception):
    """The session has ended; the message says why."""


class User(Protocol):
    """A person's user at the API server."""

    name: str

    async def act(self, body: bytes, *, is_question: bool) -> dict[str, Any]:
        """Look at an action, or carry it out. Raises UsageError, SignedOutError."""
        ...

    async def detail(self, name: str) -> dict[str, Any]:
        """Return what the page shows of a variant, as this user may read it. Raises as `act` does."""
        ...

    async def history(self, kind: str, name: str) -> dict[str, Any]:
        """Return the former specs of a set or a policy, as this user may read them. Raises as `act` does."""
        ...

    async def list_settled(self) -> dict[str, Any]:
        """Return what resolutions have settled in drafts that this user may read. Raises as `act` does."""
        ...

    async def close(self) -> None: ...


SignIn = Callable[[str], Awaitable[User]]
"""Returns the user of a token. Raises UsageError if the API server does not know it, PvbusError."""


class Sessions:
    """Sessions by their ids; of an id, only the digest is kept."""

    def __init__(self, sign_in: SignIn | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin without any. sign_in: None where nobody can act"""
        self._sign_in = sign_in
        self._monotonic = monotonic
        self._users: dict[str, tuple[User, float]] = {}
        self._free = asyncio.Semaphore(PARALLEL_MAX)

    @property
    def is_open(self) -> bool:
        return self._sign_in is not None

    async def begin(self, token: str) -> tuple[str, str]:
        """Sign a person in; return the id and the name. Raises UsageError, PvbusError."""
        assert self._sign_in is not None
        async with _Turn(self._free):
            user = await self._sign_in(token)
        name = secrets.token_urlsafe(32)
        self._users[_digest(name)] = (user, self._monotonic())
        await self._end_idle()
        return name, user.name

    def name_of(self, session: str) -> str:
        """Return who is signed in, "" for nobody."""
        found = self._users.get(_digest(session))
        is_live = found is not None and not self._is_idle(found[1])
        return found[0].name if found is not None and is_live else ""

    async def run(self, session: str, work: Callable[[User], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Work as the person of a session. Raises SignedOutError, UsageError, TransientError."""
        await self._end_idle()
        name = _digest(session)
        if name not in self._users:
            raise SignedOutError("you are not signed in, or were signed out after an hour: sign in")
        user, _ = self._users[name]
        self._users[name] = user, self._monotonic()
        try:
            async with _Turn(self._free):
                return await work(user)
        except SignedOutError:
            await self.end(session)
            raise

    async def end(self, session: str) -> None:
        """Sign a person out. Without such a session nothing happens."""
        await self._drop(_digest(session))

    async def close(self) -> None:
        for name in tuple(self._users):
            await self._drop(name)

    async def _end_idle(self) -> None:
        idle = [name for name, (_, used) in self._users.items() if self._is_idle(used)]
        by_use = sorted(self._users, key=lambda name: self._users[name][1])
        for name in {*idle, *by_use[: max(len(by_use) - SESSIONS_MAX, 0)]}:
            await self._drop(name)

    def _is_idle(self, used: float) -> bool:
        return self._monotonic() - used > IDLE_SECONDS_MAX

    async def _drop(self, name: str) -> None:
        found = self._users.pop(name, None)
        if found is not None:
            await found[0].close()


class _Turn:
    """Waits for a turn, not for ever. Raises TransientError."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._free.acquire()
        except TimeoutError as exc:
            raise TransientError("others are acting at this moment: try again in a few seconds") from exc

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode(errors="replace")).hexdigest()
