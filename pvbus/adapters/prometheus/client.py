"""Sends queries to one Prometheus. Each has a limit of time and of size, and no redirect is followed.

One table translates refusals to `pvbus.core.errors`. Source: Prometheus 2.42, HTTP API v1 (documentation,
querying/api): status and format of the answers.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from pvbus import __version__
from pvbus.adapters.destinations import checked_socket
from pvbus.adapters.files import reason_of
from pvbus.adapters.httpfailures import failure_of
from pvbus.adapters.kubernetes.credentials import Credential, Credentials, StaticCredentials, TokenFile
from pvbus.adapters.kubernetes.tls import TlsContext, TlsFiles
from pvbus.core.errors import PermanentError, PvbusError, TransientError, UsageError
from pvbus.core.kernel.effects import Range, Sample
from pvbus.core.kernel.messages import part

WARNINGS_MAX = 3
QUOTED_CHARACTERS_MAX = 100  # of a foreign answer: enough to recognise a proxy's page
TEXT_CHARACTERS_MAX = 300  # of an error: it quotes the expression


class _Series(msgspec.Struct):
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: Literal["matrix"]
    result: list[_Series] | None = None


class _Document(msgspec.Struct):
    status: Literal["success"]
    data: _Data
    warnings: list[str] | None = None


class _Refusal(msgspec.Struct):
    status: Literal["error"]
    error: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request.

    code: the status code
    content: the header Content-Type
    body: the body
    location: the header Location, "" for none
    skew_seconds: how far the server's clock is ahead, by the header Date
    """

    code: int
    content: str
    body: bytes
    location: str = ""
    skew_seconds: float = 0.0


def range_of(answer: Answer, url: str) -> Range:
    """Return the samples of a range query. Raises the error of a refusal, and of an answer that is none."""
    if answer.code != 200:
        raise _error_of(answer, url)
    if answer.content != "application/json":
        raise _foreign(answer, url, f"it is {answer.content}")
    try:
        found = msgspec.json.decode(answer.body, type=_Document)
        series = tuple(
            tuple(Sample(time, float(text)) for time, text in each.values) for each in found.data.result or ()
        )
    except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors, too
        raise _foreign(answer, url, str(exc)) from exc
    warnings = (found.warnings or [])[:WARNINGS_MAX]
    return Range(series, answer.skew_seconds, tuple(part(each, TEXT_CHARACTERS_MAX) for each in warnings))


def skew_of(date: str | None, now: float) -> float:
    """Return how far a server's clock is ahead, by its header Date; 0 if it sends none."""
    try:
        return parsedate_to_datetime(date or "").timestamp() - now
    except (ValueError, OverflowError):
        return 0.0


def _error_of(answer: Answer, url: str) -> PvbusError:
    code = answer.code
    try:
        said = part(msgspec.json.decode(answer.body, type=_Refusal).error, TEXT_CHARACTERS_MAX)
    except (ValueError, RecursionError):
        said = ""
    if 300 <= code < 400:
        return PermanentError(
            f"{url} redirects to {part(answer.location) or 'nowhere'}, which is not followed: set "
            "PVBUS_PROMETHEUS_URL to the address of Prometheus itself",
            reason="Redirect",
        )
    if code in (401, 403):
        return TransientError(
            f"{url} refuses the credentials ({code}): PVBUS_PROMETHEUS_TOKEN_FILE must name a file with a "
            "token that may query"
        )
    if code in (400, 422) and said:
        return PermanentError(f"Prometheus refuses the query: {said}", reason="BadQuery")
    if code in (404, 405):
        return PermanentError(
            f"{url} has no query API ({code}): set PVBUS_PROMETHEUS_URL to the address of Prometheus, with "
            "the path before /api/v1 if it has one",
            reason="NotFound",
        )
    text = said or _quoted(answer)
    return TransientError(f"{url} answers {code}: {text}" if text else f"{url} answers {code}")


def _foreign(answer: Answer, url: str, why: str) -> TransientError:
    return TransientError(
        f"the answer of {url} is not one of Prometheus ({part(why)}): {_quoted(answer)!r}; check "
        "PVBUS_PROMETHEUS_URL"
    )


def _quoted(answer: Answer) -> str:
    return answer.body[:QUOTED_CHARACTERS_MAX].decode(errors="replace").strip()


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
