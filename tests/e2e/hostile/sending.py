"""Sends the hostile requests of several identities to a server, from a process of its own.

    python -m tests.e2e.hostile.sending URL COUNT NAME:NAMESPACE:TOKEN ...

Prints one line of JSON: for each answer the identity, the family, the code, the seconds and a part of its
text.
"""

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp
from yarl import URL

from tests.e2e.hostile.attacks import Attacker, Request

TOGETHER = 3
"""Requests of one identity at once."""

SECONDS_MAX = 120


async def send_all(session: aiohttp.ClientSession, url: str, identity: list[str], count: int) -> list[Any]:
    """Send the requests of an identity: name, namespace and token."""
    name, where, token = identity
    waiting = iter(list(Attacker(name, where).requests(count)))
    answers: list[Any] = []

    async def send_some() -> None:
        for request in waiting:
            started = time.monotonic()
            code, text = await answer(session, url, token, request)
            answers.append((name, request.family, code, time.monotonic() - started, text[:300]))

    await asyncio.gather(*(send_some() for _ in range(TOGETHER)))
    return answers


async def answer(session: aiohttp.ClientSession, url: str, token: str, request: Request) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": request.media}
    address = URL(url + request.path, encoded=True)
    try:
        async with session.request(request.method, address, data=request.body, headers=headers) as reply:
            return reply.status, (await reply.read()).decode(errors="replace")
    except (aiohttp.ClientError, TimeoutError) as exc:
        return 0, f"{type(exc).__name__}: {exc}"


async def main() -> None:
    url, count, *identities = sys.argv[1:]
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        lists = await asyncio.gather(
            *(send_all(session, url, identity.split(":"), int(count)) for identity in identities)
        )
    print(json.dumps([reply for replies in lists for reply in replies]))


if __name__ == "__main__":
    asyncio.run(main())
