"""Collects what a decision asks of sources: the digests of tags, contents, and the pull secrets for them."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from pvbus.core.kernel.packagerows import SourceRow
from pvbus.core.platform.packaging.imageconfigs import Access
from pvbus.core.platform.resolve.state import ScopeState


def way_of(access: Access, source: str) -> tuple[tuple[str, ...], str]:
    """Return the pull secrets and the address of an access as the row of its source has them."""
    return access.secrets, "" if access.address == source else access.address


class Asking:
    """Collects what one decision asks."""

    def __init__(self, state: ScopeState) -> None:
        self._state = state
        self._tags: dict[str, dict[str, str]] = {}
        self._secrets: dict[str, dict[str, None]] = {}

    def observe(self, source: str, secrets: Iterable[str]) -> None:
        """Ask for the versions of a source. secrets: read with it, after those of earlier calls."""
        self._secrets.setdefault(source, {}).update(dict.fromkeys(secrets))

    def digest(self, source: str, tag: str) -> str:
        """Return what a tag names, "" while that is not known: then it is asked for."""
        if not tag:
            return ""
        self._tags.setdefault(source, {})[tag] = ""
        row = self._state.sources.get(source)
        return row.digests.get(tag, "") if row else ""

    def content(self, source: str, digest: str) -> None:
        """Ask for a content, unless a tag that was asked for has it."""
        row = self._state.sources.get(source)
        asked = self._tags.setdefault(source, {})
        if row is None or digest not in row.digests.values():
            asked[digest] = digest

    def demands(self) -> dict[str, Access]:
        return {source: self._state.access(source, secrets) for source, secrets in self._secrets.items()}

    def rows(self, known: Iterable[str]) -> dict[str, SourceRow | None]:
        """Return the rows of sources that change; None removes the row of a source without a question.

        The write of a row makes resolve observe its source. So a question is written only for a source that
        is to be observed: if it stood in the row before, nothing would be written, nor observed, later.

        known: the sources that the decision covers
        """
        changed: dict[str, SourceRow | None] = {}
        for source, wanted in self._secrets.items():
            row = self._state.sources.get(source) or SourceRow()
            asked = {t: d for t, d in self._tags.get(source, {}).items() if t not in row.digests}
            way = way_of(self._state.access(source, wanted), source)
            is_late = row.observed_at > 0 and way != (row.secrets, row.address)
            is_new = row.observed_at == 0 and source not in (self._state.demands or ())
            if asked or is_late or is_new:
                digests = {**row.digests, **asked}
                failures = 0 if is_late else row.failures
                changed[source] = msgspec.structs.replace(
                    row, digests=digests, observed_at=0, failures=failures
                )
        for source in known:
            if source in self._state.sources and source not in self._secrets and source not in self._tags:
                changed[source] = None
        return changed

    def unneeded(
        self,
        known: Iterable[str],
        rows: Mapping[str, SourceRow | None],
        retained: Collection[tuple[str, str]],
    ) -> Iterable[str]:
        """Yield the contents that neither a tag nor a revision names any more, as `<source>|<digest>`.

        known: the sources that the decision covers
        rows: the rows of sources that the decision changes
        retained: source and digest of each content that a revision names
        """
        for source in known:
            row = rows.get(source, self._state.sources.get(source))
            named = set(row.digests.values()) if row else set()
            for digest in self._state.contents.get(source, {}):
                if digest not in named and (source, digest) not in retained:
                    yield f"{source}|{digest}"
