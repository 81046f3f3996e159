"""Limits the requests in flight to what the API server accepts (API priority and fairness).

A server that refuses a request with 429 has no seat for it. The limit then falls, and grows again slowly, as
the window of TCP does: to half at most once per round of requests, and by one after rounds without a refusal.
"""

import asyncio
from collections import deque

PATIENCE_MAX = 64
"""Rounds without a refusal before the limit grows by one, where each growth was refused at once. With one
seat, one of 65 requests is refused then; more patience would see new seats later."""


class InflightLimit:
    """Admits requests in the order in which they come, up to a limit that adapts.

    Requests are numbered as they are admitted. Each refusal lowers the limit to the requests that remain.
    Only the first of a burst lowers it further: a later one was admitted before that fall, and says nothing
    about the new limit. Where a growth was refused, the next one takes twice as many answers (`_patience`).
    """

    def __init__(self, most: int) -> None:
        """Begin without a limit.

        most: the number of requests that counts as no limit, before a refusal and after the limit has grown
            again
        """
        self._most = most
        self._limit = most
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._served = 0
        self._patience = 1
        self._is_grown = False
        self._sent = 0
        self._cut_at = 0

    @property
    def limit(self) -> int:
        return self._limit

    async def enter(self, seconds: float) -> int:
        """Take a slot; `leave` gives it back. Returns the request's number, for `refused`.

        Raises TimeoutError if no slot gets free.
        """
        if self._has_room and not self._waiting:
            self._in_flight += 1
        else:
            async with asyncio.timeout(seconds):
                await self._turn()
        self._sent += 1
        return self._sent

    def leave(self) -> None:
        self._in_flight -= 1
        self._admit()

    @property
    def _has_room(self) -> bool:
        return self._in_flight < self._limit or self._limit >= self._most

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted and cancelled at once
                self.leave()
            raise

    def _admit(self) -> None:
        while self._waiting and self._has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    def note_response(self) -> None:
        """Note a response that is no refusal. The limit grows after enough of them."""
        if self._limit >= self._most:
            return
        self._served += 1
        if self._served >= self._limit * self._patience:
            if self._is_grown:  # the last growth was not refused
                self._patience = max(1, self._patience // 2)
            self._served, self._is_grown = 0, True
            self._limit += 1
            self._admit()

    def note_refusal(self, number: int) -> None:
        """Note a 429 for a request, while it holds its slot: the limit falls to the requests that remain.

        If the request was sent after the last fall, the limit falls at least by one where it had just grown,
        and otherwise to half: there are fewer seats than before.
        """
        remaining = self._in_flight - 1
        if number > self._cut_at:
            self._cut_at = self._sent
            remaining = min(remaining, self._limit - 1 if self._is_grown else self._limit // 2)
            if self._is_grown:
                self._patience = min(PATIENCE_MAX, 2 * self._patience)
        self._limit = max(1, min(self._limit, remaining))
        self._served, self._is_grown = 0, False
