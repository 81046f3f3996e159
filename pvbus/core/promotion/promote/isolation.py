"""What quarantines say of the revisions of a variant, as promote sees them.

An upstream revision is compared by its files, too: they are read once for each of its versions.
"""

import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Effect, Get
from pvbus.core.promotion.promote.view import PromoteView, PublishedRevision
from pvbus.core.promotion.protocol.proposals import Refusal, unready
from pvbus.core.promotion.protocol.quarantines import (
    QUARANTINED,
    UNKNOWN,
    Content,
    QuarantineView,
    package_of,
    set_of,
    source_of,
    sources_at,
)
from pvbus.core.promotion.protocol.selection import upstream_of
from pvbus.core.variants.revisions.content import source_digest
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.owning import RESOURCES

_NUMBERED = re.compile(r"@v[0-9]+$")
NO_ANNOTATIONS: Mapping[str, str] = {}


class Isolation(NamedTuple):
    """What quarantines say of the revisions of a variant that a rollout is about.

    proposed: why the proposed one goes nowhere, None for nothing
    source, files: what the proposed one is made of, as in `Content`
    published_source: the same of the published one
    runs: the quarantine that covers the published one, "" for none
    is_read: whether the files that could be read were
    annotations, published_annotations: of the upstream revisions that both are made of
    banned: as in `CandidateRow`
    is_upstream_held: whether the upstream revision that the variant follows goes nowhere
    """

    proposed: Refusal | None = None
    source: str = ""
    files: str = ""
    published_source: str = ""
    runs: str = ""
    is_read: bool = True
    annotations: Mapping[str, str] = NO_ANNOTATIONS
    published_annotations: Mapping[str, str] = NO_ANNOTATIONS
    banned: tuple[tuple[str, ...], ...] = ()
    is_upstream_held: bool = False

    def release(self, annotation: str) -> str:
        """Return what the upstream revision of the proposed one says that it was verified with."""
        return self.annotations.get(annotation, "")

    def published_release(self, annotation: str) -> str:
        return self.published_annotations.get(annotation, "")

    def member(self) -> Refusal | None:
        """Return why the proposed one may not go alone, None if it may. Only a train knows what else its
        site runs."""
        names = [name for name, *upstreams in self.banned if self.source in upstreams]
        if not names:
            return None
        words = (
            f"quarantine {names[0]} covers it together with other packages: a policy with `train` may "
            "approve it with others, or a person ends the quarantine (pvbus rollout release)"
        )
        return Refusal(QUARANTINED, words)


def ensured_of(variant: PackageVariant, revision: ObservedRevision, before: str) -> str:
    """Return the upstream revision that inject has made an open revision of, "" if that was never seen.

    The lock in a draft's Kptfile says it, too, but whoever may edit the draft may write another one. A
    variant that is Ready has what it follows in the revisions that its status names.

    before: what was returned last
    """
    names = {target.name for target in variant.status.downstream_targets}
    return upstream_of(variant) if revision.name in names and unready(variant) is None else before


def _real(locked: str, ensured: str) -> str:
    """Return what a revision is made of: what inject ensured, where both name it by its number. Another name
    may be that of a floating tag."""
    return ensured if _NUMBERED.search(locked) and _NUMBERED.search(ensured) else locked


class Isolations:
    """The quarantines of the cluster, and the digests of the files of upstream revisions."""

    def __init__(self, view: PromoteView, partitions: int) -> None:
        self._view = view
        self._table = QuarantineView(partitions)
        self._files: dict[tuple[str, str], tuple[str, str]] = {}

    def load(self, partition: int, key: str, value: bytes | None) -> Iterable[str] | None:
        """Apply a record of `pvbus.policies`; return the namespaces that it concerns, None for all."""
        return self._table.load(partition, key, value)

    def unlisted(self, namespace: str) -> str:
        """Return what is not listed yet, in words, "" if all is, or will not be soon: see `refusal`."""
        return "" if self._table.is_away() else self._table.unlisted(namespace)

    def refusal(self, namespace: str, content: Content, variant: str) -> Refusal | None:
        """Return why a revision goes nowhere. A kind that is not installed has no objects."""
        if self._table.is_served() and (unlisted := self._table.unlisted(namespace)):
            return Refusal(UNKNOWN, f"it is not known what is quarantined: {unlisted}")
        return self._table.of(namespace).refusal(content, variant)

    def of_open(
        self, namespace: str, variant: PackageVariant, revision: ObservedRevision, ensured: str
    ) -> Generator[Effect, Any, Refusal | None]:
        """Return why an open revision goes nowhere, by what it is made of. ensured: as of `ensured_of`."""
        for source in dict.fromkeys((self._source(variant, revision), ensured)):
            if held := (yield from self._of_source(namespace, variant, source)):
                return held
        return None

    def of_followed(self, namespace: str, variant: PackageVariant) -> Generator[Effect, Any, Refusal | None]:
        """Return why the upstream revision that a variant follows goes nowhere."""
        return (yield from self._of_source(namespace, variant, upstream_of(variant)))

    def _of_source(
        self, namespace: str, variant: PackageVariant, source: str
    ) -> Generator[Effect, Any, Refusal | None]:
        files = ""
        if self._table.of(namespace):
            files = yield from self._files_of(namespace, source)
        return self.refusal(namespace, Content(set_of(variant), source, files), variant.metadata.name)

    def of_unowned(self, revision: ObservedRevision) -> Generator[Effect, Any, Refusal | None]:
        """Return why an open revision that no variant owns goes nowhere, by what it is made of."""
        namespace, facts = revision.namespace, revision.facts
        sources: set[str] = set()
        if self._table.of(namespace) and facts.lock_directory:
            tail = facts.lock_ref.rpartition("/")[2]
            names = (f"{package}@{tail}" for package in self._view.packages(namespace))
            known = {*names, *self._table.of(namespace).upstreams()}
            sources = {*sources_at(facts.lock_directory, facts.lock_ref, known)}
        for source in sorted(sources):
            files = yield from self._files_of(namespace, source)
            if held := self.refusal(namespace, Content(None, source, files), ""):
                return held
        return self.refusal(namespace, Content(None), "")

    def of_files(
        self, namespace: str, variant: PackageVariant | None, revision: ObservedRevision, digest: str
    ) -> Refusal | None:
        """Return why an open revision goes nowhere, by its own files."""
        if variant is None:
            return self.refusal(namespace, Content(None, digest=digest), "")
        content = Content(set_of(variant), self._source(variant, revision), None, digest)
        return self.refusal(namespace, content, variant.metadata.name)

    def compares_files(self, namespace: str, variant: PackageVariant | None) -> bool:
        """Tell whether a quarantine covers contents of a variant's set, or without one of any."""
        return self._table.of(namespace).compare_contents(set_of(variant) if variant is not None else None)

    def of_target(
        self,
        namespace: str,
        variant: PackageVariant,
        proposed: ObservedRevision | None,
        published: PublishedRevision | None,
        contents: dict[str, str],
        ensured: str,
    ) -> Generator[Effect, Any, Isolation]:
        """Return what a rollout has to know.

        contents: revision name -> digest of its content
        ensured: of the proposed one, as of `ensured_of`
        """
        followed = yield from self.of_followed(namespace, variant)
        found = Isolation(is_upstream_held=followed is not None)
        set_name, packages = set_of(variant), set[str]()
        if published is not None:
            source = source_of(variant, *published.lock)
            files: str | None = None
            if self._table.of(namespace):
                files = yield from self._files_of(namespace, source)
            content = Content(set_name, source, files or None, contents.get(published.name, ""))
            runs = next(iter(self._table.of(namespace).covering(content)), None)
            found = found._replace(
                published_source=source,
                runs=runs.metadata.name if runs else "",
                published_annotations=self._view.annotations_of(namespace, source),
            )
            packages.add(package_of(source))
        if proposed is not None:
            source = _real(self._source(variant, proposed), ensured)
            known = yield from self._files_of(namespace, source)
            content = Content(set_name, source, known, contents.get(proposed.name, ""))
            held = self.refusal(namespace, content, variant.metadata.name)
            held = held or (yield from self.of_open(namespace, variant, proposed, ensured))
            is_read = bool(known) or self._view.upstream_named(namespace, source) is None
            found = found._replace(proposed=held, source=source, files=known, is_read=is_read)
            found = found._replace(annotations=self._view.annotations_of(namespace, source))
            packages.add(package_of(source))
        return found._replace(banned=tuple(self._table.of(namespace).combinations(set_name, packages)))

    @staticmethod
    def _source(variant: PackageVariant, revision: ObservedRevision) -> str:
        return source_of(variant, revision.facts.lock_directory, revision.facts.lock_ref)

    def _files_of(self, namespace: str, source: str) -> Generator[Effect, Any, str]:
        """Return the digest of an upstream revision's files, "" if they cannot be read."""
        upstream = self._view.upstream_named(namespace, source) if source else None
        if upstream is None:
            return ""
        key = (namespace, upstream.name)
        version, digest = self._files.get(key, ("", ""))
        if version == upstream.row_digest:
            return digest
        try:
            resources = yield Get(RESOURCES, namespace, upstream.name)
        except PermanentError:
            return ""
        if resources is None:
            return ""
        digest = source_digest(resources["spec"].get("resources") or {})
        self._files[key] = (upstream.row_digest, digest)
        return digest
