"""Malformed requests that carry secrets, and a client that sends bytes as they are."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterable, Sequence

MARK = "m4rk-"
"""How every secret begins that must be nowhere but in its request."""

ANSWER_SECONDS_MAX = 3.0


def _head(line: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    return "\r\n".join((line, f"Host: {host}", *headers, "", "")).encode("latin-1")


def malformed(paths: Sequence[str], bearer: str = f"{MARK}bearer") -> list[bytes]:
    """Return requests to these paths in turn. bearer: the token that they carry."""
    token = f"Authorization: Bearer {bearer}"
    secret = f"password: {MARK}body: x\n\tdata"
    cases: list[tuple[str, tuple[str, ...], str]] = [
        ("GET {}", ("Authorization: Bearer " + MARK + "nul\0x",), ""),
        ("GET {}", (token, " " + MARK + "folded"), ""),
        ("GET {}", (token + "\t\x01" + MARK + "control",), ""),
        ("GET {}", (token, "Host: " + MARK + "host.example"), ""),
        ("GET {}", ("Authorization Bearer " + MARK + "nocolon",), ""),
        ("GET {}", ("Authorization : Bearer " + MARK + "space",), ""),
        ("GET {}", ("Authorization: Basic " + MARK + "basic",), ""),
        ("GET {}", ("Authorization: Bearer " + MARK + "a", "Authorization: Bearer " + MARK + "b"), ""),
        ("GET {}", ("Cookie: session=" + MARK + "cookie; pvbus-1=" + MARK + "session",), ""),
        ("GET {}", ("Cookie: session=" + MARK + "cookienul\0",), ""),
        ("GET {}", ("X-Api-Key: " + MARK + "key\x02",), ""),
        ("GET {}?token=" + MARK + "query&access_token=" + MARK + "access", (token,), ""),
        ("GET {}?watch=%zz&password=" + MARK + "password", (token,), ""),
        ("GET {}?x=" + MARK + "raw\x7f\xff", (token,), ""),
        ("GET http://user:" + MARK + "login@127.0.0.1{}", (token,), ""),
        ("GET http://user:" + MARK + "login@[{}", (token,), ""),
        ("GET //user:" + MARK + "login@host{}", (token,), ""),
        ("GET {}", (token, "Referer: https://u:" + MARK + "referer@h/?token=" + MARK + "r"), ""),
        ("GET {}", (token, "Origin: https://u:" + MARK + "origin@evil.example"), ""),
        ("GET {}", (token, "User-Agent: " + MARK + "agent" * 20_000), ""),
        ("G\x00T {}?token=" + MARK + "method", (token,), ""),
        ("GET {}?token=" + MARK + "long" + "x" * 70_000, (token,), ""),
        ("POST {}", (token, "Content-Length: 500"), "x"),
        ("POST {}", (token, "Content-Length: 500", "Content-Type: application/yaml"), secret),
        ("POST {}", (token, "Content-Length: -1"), MARK + "negative"),
        ("POST {}", (token, "Content-Length: 5", "Content-Length: 6"), MARK + "two"),
        ("POST {}", (token, "Transfer-Encoding: chunked"), MARK + "chunk\r\n"),
        ("POST {}", (token, "Transfer-Encoding: chunked", "Content-Length: 4"), MARK + "both"),
        ("POST {}", (token, "Transfer-Encoding: chunked"), "5\r\n" + MARK + "chunk longer\r\n"),
        (
            "POST {}",
            (token, "Content-Type: application/yaml", f"Content-Length: {len(secret)}"),
            secret,
        ),
        ("PUT {}", (token, "Content-Encoding: gzip", "Content-Length: 9"), MARK + "gzip"),
        ("POST {}", (token, "Expect: nothing", "Content-Length: 1"), "x"),
        ("GET {}", (token, "Upgrade: websocket", "Sec-WebSocket-Protocol: " + MARK + "protocol"), ""),
    ]
    made = [
        _head(f"{line.format(path)} HTTP/1.1", *headers) + body.encode("latin-1")
        for path in paths
        for line, headers, body in cases
    ]
    return [
        *made,
        f"GET {paths[0]} HTTP/9.9{MARK}version\r\n{token}\r\n\r\n".encode(),
        f"{token}\r\n\r\n".encode(),
        f"\x16\x03\x01{MARK}tls\r\n\r\n".encode(),
    ]


async def answers(
    port: int, requests: Iterable[bytes], context: ssl.SSLContext | None = None
) -> list[tuple[bytes, bytes]]:
    """Send each request on a connection of its own, close it, and return the requests with their answers.

    A request whose body is cut off gets none, as the client is gone before.
    """

    async def answer(request: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        content = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            writer.write(request)
            await writer.drain()
            if b"Content-Length: 500" not in request:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    content = await reader.read(1 << 16)
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
        return request, content

    return list(await asyncio.gather(*map(answer, requests)))
