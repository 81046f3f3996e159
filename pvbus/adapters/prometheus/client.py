"""Sends queries to one Prometheus. Each has a limit of time and of size, and no redirect is followed."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp

from pvbus import __version__
from pvbus.adapters.destinations import checked_socket
from pvbus.adapters.files import reason_of
from pvbus.adapters.httpfailures import failure_of
from pvbus.adapters.kubernetes.credentials import Credential, Credentials, StaticCredentials, TokenFile
from pvbus.adapters.kubernetes.tls import TlsContext, TlsFiles
from pvbus.adapters.prometheus.answers import Answer, range_of, skew_of
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.effects import Range

QUERY_SECONDS = 10.0
"""Longer, and a slow Prometheus holds up the rollout, and with it what people ask of it; shorter, and a query
over a long window never ends."""
ANSWER_BYTES_MAX = 1_000_000  # thirty times a series of 241 samples; more is not a single value
CONNECTIONS_MAX = 16
_PATH = "/api/v1/query_range"


class Prometheus:
    """The HTTP API of a Prometheus, or of what answers like one."""

    def __init__(
        self,
        url: str,
        *,
        token_file: str = "",
        ca_file: str = "",
        seconds_max: float = QUERY_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the client; nothing is sent. Caller: within a running loop.

        url: the address, with the path before `/api/v1`
        token_file: the file of a bearer token, "" for none
        ca_file: PEM of the trusted authorities, "" for the machine's own
        seconds_max: the time limit of one query
        clock: returns the seconds since 1970
        Raises UsageError if the CA's file cannot be used.
        """
        self._url = url.rstrip("/")
        self._seconds_max = seconds_max
        self._clock = clock
        self._credentials: Credentials = TokenFile(Path(token_file)) if token_file else StaticCredentials()
        try:
            self._tls = TlsContext(TlsFiles(ca=ca_file or None))
        except (OSError, ValueError) as exc:
            raise UsageError(f"PVBUS_PROMETHEUS_CA_FILE: {ca_file}: {reason_of(exc)}") from exc
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, socket_factory=checked_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small answer may become a huge one, and none was asked for
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": f"pvbus-rollout/{__version__}",
            },
        )

    async def close(self) -> None:
        await self._credentials.close()
        await self._session.close()

    async def query(self, expression: str, *, start: float, end: float, step_seconds: float) -> Range:
        form = {
            "query": expression,
            "start": f"{start:.3f}",
            "end": f"{end:.3f}",
            "step": f"{step_seconds:.3f}",
            "timeout": f"{self._seconds_max:g}s",
        }
        credential = await self._credentials.current()
        answer = await self._exchange(form, credential)
        if answer.code == 401 and self._credentials.reject(credential):
            answer = await self._exchange(form, await self._credentials.current())
        return range_of(answer, self._url)

    async def _exchange(self, form: Mapping[str, str], credential: Credential) -> Answer:
        headers = {"Authorization": credential.authorization} if credential.authorization else {}
        try:
            async with self._session.post(
                self._url + _PATH,
                data=form,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._seconds_max),
                allow_redirects=False,
                ssl=self._tls.current(),
            ) as response:
                return Answer(
                    code=response.status,
                    content=response.content_type,
                    location=response.headers.get("Location", ""),
                    skew_seconds=skew_of(response.headers.get("Date"), self._clock()),
                    body=await self._body(response),
                )
        except TimeoutError as exc:
            raise TransientError(
                f"no answer from {self._url} within {self._seconds_max:g} s: check that Prometheus is not "
                "overloaded, and that the expression is not too costly"
            ) from exc
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as exc:
            raise TransientError(
                f"no answer from {self._url} ({failure_of(exc)}): check that Prometheus runs, "
                "and PVBUS_PROMETHEUS_URL"
            ) from exc

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise PermanentError(
                    f"the answer of {self._url} has more than {ANSWER_BYTES_MAX} bytes: the expression must "
                    "give a single value, as with sum()",
                    reason="TooLarge",
                )
        return bytes(body)
