"""Posts events to the receiver. Every failure is a `Failed` with a message for people."""

import ssl
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from pvbus import __version__
from pvbus.adapters.destinations import checked_socket
from pvbus.adapters.files import reason_of
from pvbus.adapters.httpfailures import failure_of
from pvbus.adapters.httpserver import fault_of
from pvbus.core.errors import UsageError
from pvbus.core.variants.sink.answers import Answer, Failed, answer_of
from pvbus.core.variants.sink.message import Event, Mode, message_of

ANSWER_BYTES_MAX = 4096
"""The part of an answer that is read: enough for its message. A connection with more of it is closed, not
read to its end."""


class Receiver:
    """Sends requests within an async context."""

    def __init__(
        self,
        url: str,
        *,
        mode: Mode,
        token_file: Path | None,
        tls: ssl.SSLContext | None,
        timeout_seconds: float,
        in_flight_max: int,
    ) -> None:
        """Send nothing yet.

        token_file: the file of the bearer token, which is read for each request, as tokens are replaced
        """
        self._url = url
        self._mode = mode
        self._token_file = token_file
        self._tls = tls
        self._timeout_seconds = timeout_seconds
        self._in_flight_max = in_flight_max

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._in_flight_max, ssl=self._tls or True, socket_factory=checked_socket
            ),
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"pvbus/{__version__}"},
            auto_decompress=False,  # an answer of a few bytes could become one of gigabytes
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, event: Event) -> Answer:
        """Post one event, once."""
        message = message_of(event, self._mode)
        headers = dict(message.headers)
        if self._token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {read_token(self._token_file)}"
            except UsageError as exc:
                return Failed(str(exc))
        try:
            async with self._session.post(
                self._url, data=message.body, headers=headers, allow_redirects=False
            ) as response:
                body = await response.content.read(ANSWER_BYTES_MAX)
                if not response.content.at_eof():
                    response.close()
                return answer_of(
                    response.status, response.headers, body.decode(errors="replace"), time.time()
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            return Failed(self._problem(exc))

    def _problem(self, exc: Exception) -> str:
        """Describe why there is no answer: the first class that fits."""
        match exc:
            case aiohttp.ClientConnectorCertificateError():
                return (
                    f"the receiver's certificate is not valid: {exc.certificate_error}; PVBUS_SINK_CA_FILE "
                    "names the authority that signed it"
                )
            case aiohttp.ClientSSLError():
                return (
                    f"no TLS connection to the receiver: {failure_of(exc)}; does PVBUS_SINK_URL name an "
                    "HTTPS port?"
                )
            case aiohttp.ClientConnectorError():
                return f"cannot connect to {exc.host}:{exc.port}: {failure_of(exc)}"
            case TimeoutError():
                return (
                    f"the receiver did not answer within {self._timeout_seconds:g} s "
                    "(PVBUS_SINK_TIMEOUT_SECONDS)"
                )
            case aiohttp.ServerDisconnectedError():
                return "the receiver closed the connection without an answer"
        fault = (
            f"{type(exc).__name__}: {fault_of(exc)}"  # without what it quotes: our address may be a secret
        )
        return f"the receiver's answer is not valid HTTP, or broke off: {fault}"


def read_token(file: Path) -> str:
    """Return the token of a file. Raises UsageError."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"PVBUS_SINK_TOKEN_FILE: cannot read {file}: {reason_of(exc)}") from exc
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"PVBUS_SINK_TOKEN_FILE: {file} must have one token of printable ASCII characters")
    return token
