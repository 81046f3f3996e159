"""What hostile clients try, one row each: a clear refusal, in bounded time, and the server goes on."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from pvbus.embedded.apiserver.server import ApiServer
from tests.integration.apiserver import attacks
from tests.integration.apiserver.attacks import FREE, MAPS, Attack
from tests.integration.apiserver.client import CORE, Api, config_map, crd, serving

SECONDS_MAX = 6.0
"""For any attack, on a machine that does other things, too. Unbounded ones take minutes."""


@pytest.fixture
async def target() -> AsyncIterator[tuple[ApiServer, Api]]:
    """A server with something to attack."""
    server = ApiServer(None, crds=[crd(), attacks.free_crd()], tls=False)
    async with serving(server) as api:
        await api.create(MAPS, config_map("a", data={"a": "b"}))
        body = json.loads(attacks.free('{"list": [1, 2], "map": {"a": 1}}', "a"))
        await api.create(FREE, body)
        yield server, api


def request_of(attack: Attack, token: str) -> bytes:
    """Return the request as it goes over the wire; header values and paths are bytes, not only text."""
    body = attack.content()
    headers = {"Host": attacks.HOST, "Content-Type": attack.media, "Connection": "close"}
    if attack.with_token:
        headers["Authorization"] = f"Bearer {token}"
    if body or attack.method in ("POST", "PATCH", "PUT"):
        headers["Content-Length"] = str(len(body))
    headers |= attack.headers
    lines = [f"{attack.method} {attack.path.replace('$TOKEN', token)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def exchange(server: ApiServer, request: bytes) -> tuple[int, str]:
    """Send bytes, and return the code and the text of the first answer."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        text = await reader.readexactly(int(length[0].partition(b":")[2])) if length else b""
        return int(head.split(b" ", 2)[1]), text.decode()
    finally:
        writer.close()


def said(text: str) -> str:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return text
    return str(value["message"] if isinstance(value, dict) and "message" in value else value)


@pytest.mark.parametrize("attack", attacks.ALL, ids=[attack.name for attack in attacks.ALL])
async def test_an_attack_is_refused(
    attack: Attack, target: tuple[ApiServer, Api], caplog: pytest.LogCaptureFixture
) -> None:
    """The answer says what is wrong, comes soon, leaves no trace in the log, and others are served on."""
    server, api = target
    request = request_of(attack, server.token)
    begun = time.monotonic()
    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.WARNING):
        async with asyncio.timeout(60):
            code, text = await exchange(server, request)
        took = time.monotonic() - begun
        assert await api.get(MAPS)
    assert (code, attack.says.lower() in said(text).lower()) == (attack.code, True), (code, text[:500])
    assert took < SECONDS_MAX
    assert not [entry for entry in logs if entry["log_level"] in ("error", "warning")]
    assert not caplog.records
    assert server.token not in text
    assert len(text) < 100_000


__all__ = ["CORE"]
