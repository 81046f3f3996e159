"""Reads the answers of Prometheus' HTTP API, and translates its refusals to `pvbus.core.errors`: one table.

Source: Prometheus 2.42, HTTP API v1 (documentation, querying/api): status and format of the answers.
"""

from email.utils import parsedate_to_datetime
from typing import Literal

import msgspec

from pvbus.core.errors import PermanentError, PvbusError, TransientError
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
