"""Signs people in to the web page with their Kubernetes tokens, and acts as their users at the API server.

A token is in memory only, for as long as its session lasts.
"""

import re
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.confirm import NothingHeldError
from pvbus.cli.pageactions import Action, AnyAction, Desk, Look, carry_out
from pvbus.cli.pagebatches import Batch, answer_batch
from pvbus.cli.pagedetail import detail_of
from pvbus.cli.progress import SET
from pvbus.cli.rolloutorders import user_name
from pvbus.cli.settling import read_all_settled, resolutions_of
from pvbus.cli.spechistory import change_words, entries_of, read_history
from pvbus.core.errors import FORBIDDEN, PermanentError, PvbusError, RejectedError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import POLICY
from pvbus.ports.bus import Bus
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.server import Hints
from pvbus.runtime.web.sessions import SignedOutError

AGENT = "pvbus-page"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{8,16000}=*")
"""Source: RFC 6750, section 2.1. Nothing else may be in a header."""
ENDED = "the API server does not take this token any more: sign in again"
KEPT_KINDS = {"set": SET, "policy": POLICY}
"""Whose former specs are kept."""
RESOLUTIONS_MAX, VARIANTS_MAX = 50, 100
"""Shown on the page; `pvbus conflicts settled` lists all."""

Read = TypeVar("Read")
_FORBIDDEN = ": 403 Forbidden: "

_request = msgspec.json.Decoder(AnyAction | Batch)


class PageUser:
    """One person's own user at the API server."""

    def __init__(self, name: str, cluster: HttpCluster, desk: Desk) -> None:
        self.name = name
        self._cluster = cluster
        self._desk = desk

    async def act(self, body: bytes, *, is_question: bool) -> dict[str, Any]:
        """Look at an action or several, or carry them out; return what to show.

        Raises UsageError, SignedOutError.
        """
        try:
            request: Action | Batch = _request.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise UsageError(f"this is no action of the page: {exc}") from exc
        answer = partial(self._answer, is_question=is_question)
        if isinstance(request, Batch):
            return await answer_batch(request, self._desk.hints, answer)
        return await answer(request)

    async def _answer(self, action: Action, *, is_question: bool) -> dict[str, Any]:
        command = action.command(self._desk.hints)
        try:
            if is_question:
                return {"command": command, **_question(await action.look(self._desk))}
            outcome = await carry_out(action, self._desk)
        except RejectedError as exc:
            raise SignedOutError(ENDED) from exc
        except (PvbusError, NothingHeldError) as exc:
            return {"command": command, "ok": False, "lines": [self._words(exc)]}
        return {"command": command, **outcome._asdict()}

    async def detail(self, name: str) -> dict[str, Any]:
        """Return what the page shows of a variant. Raises UsageError, SignedOutError."""
        return await self._read(detail_of(self._cluster, _key_of(name)))

    async def history(self, kind: str, name: str) -> dict[str, Any]:
        """Return the former specs of a set or a policy. Raises UsageError, SignedOutError."""
        if kind not in KEPT_KINDS:
            raise UsageError("give kind=set or kind=policy")
        owner, retained = await self._read(read_history(self._cluster, KEPT_KINDS[kind], _key_of(name)))
        rows = [
            {**each, "changes": list(change_words(each["changes"]))} for each in entries_of(retained, owner)
        ]
        return {"revisions": rows}

    async def list_settled(self) -> dict[str, Any]:
        """Return what resolutions have settled in drafts. Raises UsageError, SignedOutError."""
        found = resolutions_of(await self._read(read_all_settled(self._cluster)))
        shown = [{**each._asdict(), "count": len(each.variants)} for each in found[:RESOLUTIONS_MAX]]
        for row in shown:
            row["variants"] = row["variants"][:VARIANTS_MAX]
        return {"resolutions": shown, "more": max(len(found) - RESOLUTIONS_MAX, 0)}

    async def _read(self, work: Awaitable[Read]) -> Read:
        try:
            return await work
        except RejectedError as exc:
            raise SignedOutError(ENDED) from exc
        except PvbusError as exc:
            raise UsageError(self._words(exc)) from exc

    def _words(self, error: Exception) -> str:
        if isinstance(error, PermanentError) and error.reason == FORBIDDEN:
            return f"You may not do this as {self.name}: {str(error).partition(_FORBIDDEN)[2] or error}"
        return str(error)

    async def close(self) -> None:
        await self._cluster.close()


def _key_of(name: str) -> Key:
    key = Key.parse(name)
    if not all(key) or "/" in key.name:
        raise UsageError("give name=NAMESPACE/NAME")
    return key


def _question(look: Look) -> dict[str, Any]:
    if look.run is None:
        return {"ok": look.ok, "lines": look.lines}
    return {"question": look.question, "lines": look.lines, "seen": look.seen, "number": look.number}


class PageUsers:
    """Signs people in to one API server."""

    def __init__(
        self, kubeconfig: Path | None, context: str | None, bus: Bus, feed: Feed, hints: Hints
    ) -> None:
        """Connect to nothing yet.

        kubeconfig: has the server's address and certificate authority; its own user is never used. None for
            the default one, or that of the pod
        """
        self._kubeconfig = kubeconfig
        self._context = context
        self._bus = bus
        self._feed = feed
        self._hints = hints

    async def sign_in(self, token: str) -> PageUser:
        """Return the user of a token. Raises UsageError if the server does not know it, PvbusError."""
        if not _TOKEN.fullmatch(token):
            raise UsageError("this is no token: one has letters, digits and -._~+/ only, and ends there")
        cluster = (await HttpCluster.connect_as(token, self._kubeconfig, self._context)).named(AGENT)
        try:
            name = await user_name(cluster) or "the user of this token"
        except BaseException as exc:
            await cluster.close()
            if isinstance(exc, RejectedError):
                raise UsageError("the API server does not know this token") from exc
            raise
        return PageUser(name, cluster, Desk(cluster, self._bus, self._feed.model, self._hints))
