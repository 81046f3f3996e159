"""Looks at one source: which versions it has, what tags name, and the contents that are asked for."""

import zlib
from collections.abc import Iterator

import msgspec

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import Content, Observation, Observe, Outcome, Pull, Put, Reconciliation
from pvbus.core.kernel.packagerows import ContentRow, ScopedKey, SourceRow
from pvbus.core.kernel.records import SOURCES
from pvbus.core.platform.packaging.imageconfigs import Access, check_access
from pvbus.core.platform.packaging.reading import package_meta
from pvbus.core.platform.resolve.asking import way_of
from pvbus.core.platform.resolve.state import ScopeState

OBSERVE_SECONDS = 300.0
"""Between two looks at a source. Less finds a moved tag sooner, and asks the registries more."""
SPREAD = 0.2
"""Part of this time by which the keys differ, so that not all sources are asked at once."""
RETRY_SECONDS = (2.0, 300.0)
"""After the first failure, twice as long after each further one, and at most."""
REFUSED_AFTER = 3
"""Failures in a row after which a source that does not answer counts as one that says no. Until then what
needs it waits; then others go on without it."""
UNKNOWN_SECONDS = 1.0
"""The first decision says what is asked of a source; it is soon."""
RETRIED = frozenset(
    {
        "DigestMismatch",
        "Forbidden",
        "Insecure",
        "InvalidAnswer",
        "NotFound",
        "NotSet",
        "Refused",
        "Unauthorized",
    }
)
"""Why a content could not be pulled that may change: what was sent was not the content, or nothing was. Every
other reason is a defect of the content."""
ASKED_MAX = 200
"""Contents that are read in one reconciliation: each is a row of the same step."""


def observe_source(state: ScopeState, key: ScopedKey, now: float, seconds: float) -> Reconciliation:
    """Observe a source if that is due, and read one content that is missing."""
    row = state.sources.get(key.rest)
    if row is None:
        return Outcome()
    if state.demands is None:
        return Outcome(again_after=UNKNOWN_SECONDS)
    access = state.demands.get(key.rest)
    if access is None:
        return Outcome()
    due = due_at(key, row, seconds)
    if now < due:
        return Outcome(again_after=due - now)
    try:
        yield from check_access(access)
        answer: Observation = yield Observe(access.address, tuple(_tags(row)), access.secrets)
    except (PermanentError, TransientError) as exc:
        failed = _way(_failed(row, exc, access.note, now), access, key.rest)
        return Outcome((Put(SOURCES, str(key), failed),), "changed")
    row, puts = _way(_seen(row, answer, now), access, key.rest), []
    failures = state.sources[key.rest].failures if key.rest in state.sources else 0
    for digest in list(_missing(state, key.rest, row))[:ASKED_MAX]:
        try:
            content: Content = yield Pull(access.address, digest, access.secrets)
        except PermanentError as exc:
            if exc.reason in RETRIED:
                row = _unpulled(row, digest, exc, failures, access.note, now)
            else:
                puts.append(Put(SOURCES, f"{key}|{digest}", ContentRow(defect=str(exc))))
        except TransientError as exc:
            row = _unpulled(row, digest, exc, failures, access.note, now)
        else:
            puts.append(Put(SOURCES, f"{key}|{digest}", package_meta(content.files)))
    current = state.sources.get(key.rest)
    if current is None:
        return Outcome()
    # What was asked for meanwhile is kept, and looked at next.
    asked = {tag: digest for tag, digest in current.digests.items() if tag not in row.digests}
    if asked:
        row = msgspec.structs.replace(row, digests={**row.digests, **asked}, observed_at=0)
    return Outcome((*puts, Put(SOURCES, str(key), row)), "changed")


def due_at(key: ScopedKey, row: SourceRow, seconds: float) -> float:
    """Return when a source is to be observed, in seconds since 1970."""
    if row.observed_at == 0:
        return 0.0
    if row.failures:
        first, most = RETRY_SECONDS
        return row.observed_at + min(first * 2.0 ** min(row.failures - 1, 30), most) * _spread(key)
    return row.observed_at + seconds * _spread(key)


def _spread(key: ScopedKey) -> float:
    return 1 - SPREAD / 2 + SPREAD * zlib.crc32(str(key).encode()) / 2**32


def _tags(row: SourceRow) -> Iterator[str]:
    return (tag for tag, digest in row.digests.items() if tag != digest)


def _way(row: SourceRow, access: Access, source: str) -> SourceRow:
    """Return the row of a source with the way in which it was read, or would have been."""
    secrets, address = way_of(access, source)
    return msgspec.structs.replace(row, secrets=secrets, address=address)


def _seen(row: SourceRow, answer: Observation, now: float) -> SourceRow:
    digests = {
        tag: tag if tag == digest else answer.digests.get(tag, "") for tag, digest in row.digests.items()
    }
    has_any = bool(answer.tags or any(digests.values()))
    return SourceRow(
        tags=answer.tags,
        digests=digests,
        observed_at=now,
        message="" if has_any else "it has no versions",
        is_refused=not has_any,
    )


def _missing(state: ScopeState, source: str, row: SourceRow) -> Iterator[str]:
    found = dict.fromkeys(digest for digest in row.digests.values() if digest)
    return (digest for digest in found if state.content(source, digest) is None)


def _unpulled(
    row: SourceRow,
    digest: str,
    error: PermanentError | TransientError,
    failures: int,
    note: str,
    now: float,
) -> SourceRow:
    """Return the row of a source after a content could not be pulled.

    failures: how many looks in a row failed before; all failed contents of one look count as one more
    note: see `_failed`
    """
    row = msgspec.structs.replace(row, failures=failures, refusals={**row.refusals, digest: str(error)})
    return _failed(row, error, note, now)


def _failed(row: SourceRow, error: PermanentError | TransientError, note: str, now: float) -> SourceRow:
    """Return the row of a source after a failure. note: what ImageConfigs change, "" without one"""
    failures = row.failures + 1
    is_refused = isinstance(error, PermanentError) or failures >= REFUSED_AFTER
    return msgspec.structs.replace(
        row,
        observed_at=now,
        message=f"{error} ({note})" if note and note not in str(error) else str(error),
        failures=failures,
        is_refused=is_refused,
    )
