"""Credentials for an API server, renewed while they are in use.

Each class returns the current credential and learns when the server rejected it (401). Nothing here sends a
request to the API server.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from pvbus.adapters.files import reason_of
from pvbus.core.errors import TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.telemetry.logs import get_logger

REREAD_SECONDS = 60.0  # as client-go: a changed file may have the size and the time of the old one
RENEW_AHEAD_SECONDS = 60.0  # a slow plugin then holds up no request
RENEW_AHEAD_SHARE = 0.2  # of the remaining lifetime, if that is shorter: a plugin may cache its credential
RENEW_SECONDS_MIN = 1.0  # between two runs of a plugin that returns the same credential until it expires
REJECTED_SECONDS = 10.0  # between two runs of a plugin after a 401: a new credential may not help
BACKOFF_SECONDS = (1.0, 60.0)  # after a failed run of a plugin

_log = get_logger("kubernetes")


class Credential(NamedTuple):
    """The value of the Authorization header ("": none), and a client certificate with its key in PEM."""

    authorization: str = ""
    certificate: str = ""


class Credentials(Protocol):
    """The source of one user's credentials."""

    async def current(self) -> Credential:
        """Return a credential that is valid now. Raises TransientError."""
        ...

    def reject(self, credential: Credential) -> bool:
        """Note that the server answered 401 to a credential; return whether another try may help."""
        ...

    async def close(self) -> None: ...


class StaticCredentials:
    """A token or password of the kubeconfig, or none."""

    def __init__(self, authorization: str = "") -> None:
        self._credential = Credential(authorization)

    async def current(self) -> Credential:
        return self._credential

    def reject(self, credential: Credential) -> bool:
        return False

    async def close(self) -> None:
        return None


class ReloadedCredentials:
    """A token of a kubeconfig, which is read again after a 401 if its file has changed since."""

    def __init__(self, token: str, path: str, reload: Callable[[], Awaitable[str]]) -> None:
        """Begin with a token.

        token: the value of the header
        path: one or more files, separated as in $KUBECONFIG
        reload: returns the value of the header that the files have now; raises TransientError
        """
        self._credential = Credential(token)
        self._files = path.split(os.pathsep)
        self._reload = reload
        self._stamp = self._stamps()
        self._is_rejected = False

    async def current(self) -> Credential:
        if self._is_rejected:
            self._stamp = self._stamps()
            authorization = await self._reload()
            self._is_rejected = False
            if authorization != self._credential.authorization:
                _log.info("the kubeconfig has a new token", file=os.pathsep.join(self._files))
                self._credential = Credential(authorization)
        return self._credential

    def reject(self, credential: Credential) -> bool:
        if credential is not self._credential:
            return True  # another request was answered with 401 first
        self._is_rejected = self._is_rejected or self._stamps() != self._stamp
        return self._is_rejected

    def _stamps(self) -> object:
        return [stamp_of(file) for file in self._files]

    async def close(self) -> None:
        return None


class TokenFile:
    """A bearer token in a file that others replace: a service account's, or `tokenFile` of a kubeconfig."""

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._credential: Credential | None = None
        self._stamp: object = None
        self._read_at = 0.0

    async def current(self) -> Credential:
        """Return the token. One that cannot be read again stays in use: its file is being replaced."""
        stamp, now = stamp_of(self._path), self._monotonic()
        if self._credential is None or stamp != self._stamp or now - self._read_at >= REREAD_SECONDS:
            self._read(stamp, now)
        assert self._credential is not None
        return self._credential

    def _read(self, stamp: object, now: float) -> None:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
            if not token or not token.isascii() or not token.isprintable():
                raise ValueError("it is empty" if not token else "it does not contain a token")
        except (OSError, ValueError) as exc:
            text = f"{self._path}: the token file cannot be read ({reason_of(exc)})"
            if self._credential is None:
                raise TransientError(f"{text}; check the path and its permissions") from exc
            _log.warning("token file cannot be read; the last token stays in use", error=text)
        else:
            self._credential = self._credential_of(f"Bearer {token}")
        self._stamp, self._read_at = stamp, now

    def _credential_of(self, authorization: str) -> Credential:
        """Return the same object for the same token: `reject` compares by identity."""
        last = self._credential
        return last if last is not None and last.authorization == authorization else Credential(authorization)

    def reject(self, credential: Credential) -> bool:
        """Read the file again, and return whether it has another token."""
        with suppress(TransientError):
            self._read(stamp_of(self._path), self._monotonic())
        return self._credential is not credential

    async def close(self) -> None:
        return None


class Issued(NamedTuple):
    """What a plugin issues.

    credential: the credential
    expires_at: when it expires, in seconds since the epoch; None if only a 401 ends it
    """

    credential: Credential
    expires_at: float | None


class RenewedCredentials:
    """Credentials that an operation issues for a limited time.

    The operation runs once at a time, for all requests together: shortly before the credential expires, and
    after a 401. While it runs ahead of time, requests use the last credential.
    """

    def __init__(
        self,
        issue: Callable[[], Awaitable[Issued]],
        *,
        clock: Callable[[], float] = time.time,
        jitter: Jitter = random.uniform,
    ) -> None:
        """Issue nothing until the first request.

        issue: issues a credential; raises TransientError
        clock: returns the seconds since the epoch
        jitter: the source of the randomness of all waits
        """
        self._issue = issue
        self._clock = clock
        self._backoff = Backoff(*BACKOFF_SECONDS, jitter)
        self._issued: Issued | None = None
        self._renew_at = 0.0
        self._reject_again_at = 0.0
        self._failure: TransientError | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def current(self) -> Credential:
        """Return a valid credential; wait for a renewal only if there is none."""
        if self._renewal is None and self._clock() >= self._renew_at:
            self._renewal = asyncio.create_task(self._renew())
        if not self._is_valid() and self._renewal is not None:
            await asyncio.shield(self._renewal)  # one cancelled request leaves it to the others
        if self._is_valid():
            assert self._issued is not None
            return self._issued.credential
        raise TransientError(str(self._failure or "the credential was rejected again while it was renewed"))

    def reject(self, credential: Credential) -> bool:
        """Renew a rejected credential, unless that was tried just now."""
        if self._issued is None or self._issued.credential is not credential:
            return True  # another request reported it first
        now = self._clock()
        if now < self._reject_again_at:
            return False
        self._reject_again_at = now + REJECTED_SECONDS
        self._issued, self._renew_at = None, 0.0
        return True

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    def _is_valid(self) -> bool:
        if self._issued is None:
            return False
        return self._issued.expires_at is None or self._clock() < self._issued.expires_at

    async def _renew(self) -> None:
        """Issue a credential. A failure is kept for the requests, and the next try waits."""
        try:
            issued = await self._issue()
            self._check(issued)
        except TransientError as exc:
            self._failure = exc
            seconds = self._backoff.next_seconds()
            self._renew_at = self._clock() + seconds
            _log.warning("credentials cannot be renewed", error=str(exc), retry_seconds=round(seconds, 1))
        else:
            if self._failure is not None:
                _log.info("credentials are renewed again")
            self._issued, self._failure = issued, None
            self._renew_at = self._next_renewal(issued.expires_at)
            self._backoff.reset()
        finally:
            self._renewal = None

    def _check(self, issued: Issued) -> None:
        if issued.expires_at is not None and issued.expires_at <= self._clock():
            seconds = self._clock() - issued.expires_at
            raise TransientError(
                f"the credential plugin returned a credential that expired {seconds:.0f} s ago; "
                "check the clock of this machine and the cache of the plugin"
            )

    def _next_renewal(self, expires_at: float | None) -> float:
        if expires_at is None:
            return float("inf")
        now = self._clock()
        remaining = expires_at - now
        return now + max(
            RENEW_SECONDS_MIN, remaining - min(RENEW_AHEAD_SECONDS, RENEW_AHEAD_SHARE * remaining)
        )


def stamp_of(path: Path | str | None) -> object:
    """Return a value that changes when the file is replaced or written; None if it cannot be read."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
