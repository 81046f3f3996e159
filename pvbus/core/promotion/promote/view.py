"""The broadcast tables of promote: the revisions of variants, and the PackageSpecializers.

Of revisions that a PackageVariant owns, drafts and proposals are held whole, published ones in a few fields.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import CONFIG_GROUP, Downstream
from pvbus.core.kernel.keys import PROPOSED_CONTENT, ObjectKey
from pvbus.core.kernel.markers import SyncView, is_marker, marker_kind
from pvbus.core.kernel.objectrows import REVISION, SPECIALIZER
from pvbus.core.kernel.objects import owner_among
from pvbus.core.kernel.records import ObjectOwner, ObjectRow
from pvbus.core.promotion.promote.unowned import UnownedView
from pvbus.core.variants.revisions.former import PLACEHOLDER
from pvbus.core.variants.revisions.observed import ObservedRevision

REVISION_KIND = f"{REVISION.group}/{REVISION.kind}"
SPECIALIZER_KIND = f"{SPECIALIZER.group}/{SPECIALIZER.kind}"
LIFECYCLES = ("Draft", "Proposed")

_row = msgspec.json.Decoder(ObjectRow)


class PublishedRevision(msgspec.Struct, frozen=True, gc=False):
    """What rollouts need of a published revision: a variant may have many.

    uid: the uid of the variant
    content: the digest that its annotation has, "" if promote did not propose it: anybody may have changed it
    lock: directory and ref of its upstreamLock, "" for none
    commit: the one that it is, "" if the server does not say
    """

    name: str
    number: int
    uid: str
    downstream: Downstream
    row_digest: str
    content: str
    labels: Mapping[str, str]
    lock: tuple[str, str]
    commit: str


class Upstream(NamedTuple):
    """A published revision: other packages may be made of it.

    found: the same, as rollouts need it
    """

    name: str
    number: int
    workspace: str
    row_digest: str
    annotations: Mapping[str, str]
    found: PublishedRevision


class PromoteView:
    """Revisions by the key of their variant, and specializers by namespace and name.

    unowned: the revisions that no variant owns
    """

    def __init__(self, partitions: int) -> None:
        self.unowned = UnownedView(partitions)
        self._sync = SyncView(partitions)
        self._open: dict[str, dict[str, ObservedRevision]] = {}
        self._published: dict[str, tuple[PublishedRevision, ...]] = {}
        self._owners: dict[str, str] = {}
        self._specializers: dict[str, dict[str, ObjectRow]] = {}
        self._upstreams: dict[tuple[str, str], dict[str, Upstream]] = {}
        self._packages: dict[str, str] = {}

    def load(self, partition: int, key: str, value: bytes | None) -> Iterable[str] | None:
        """Apply a record of `pvbus.objects`; return the keys that it concerns, None for all.

        A specializer concerns every key of its namespace: these change rarely.
        """
        if is_marker(key):
            known = marker_kind(key) in (REVISION_KIND, SPECIALIZER_KIND)
            return None if known and self._sync.load(partition, key, value) else ()
        if key.startswith(f"{REVISION_KIND}|"):
            return self._load_revision(key, _row.decode(value) if value is not None else None)
        if key.startswith(f"{SPECIALIZER_KIND}|"):
            name = ObjectKey.parse(key)
            table = self._specializers.setdefault(name.namespace, {})
            if value is None:
                table.pop(name.name, None)
            else:
                table[name.name] = _row.decode(value)
            of_variants = [vkey for vkey in self._open if vkey.startswith(f"{name.namespace}/")]
            return [*of_variants, *self.unowned.keys_in(name.namespace)]
        return ()

    def _load_revision(self, key: str, row: ObjectRow | None) -> Iterable[str]:
        name = ObjectKey.parse(key)
        before = self._owners.pop(key, "")
        if before:
            self._drop(before, name.name)
        owner = _owner_of(row) if row is not None else None
        fresh = _published(name.name, row, owner.uid if owner is not None else "")
        self._note_published(name, row, fresh)
        alone = self.unowned.load(name.namespace, name.name, row)
        if row is None or row.revision is None or owner is None:
            return (before, *alone) if before else alone
        after = sys.intern(f"{name.namespace}/{owner.name}")
        self._owners[key] = after
        if fresh is not None:
            self._published[after] = (*self._published.get(after, ()), fresh)
        else:
            revision = ObservedRevision(name.namespace, name.name, row, row.revision)
            self._open.setdefault(after, {})[name.name] = revision
        return {key for key in (before, after, *alone) if key}

    def _note_published(
        self, name: ObjectKey, row: ObjectRow | None, fresh: PublishedRevision | None
    ) -> None:
        """Take a published revision up into the table of its package, or out of it."""
        key = str(name)
        if former := self._packages.pop(key, ""):
            self._upstreams[name.namespace, former].pop(name.name, None)
        facts = row.revision if row is not None else None
        if row is None or facts is None or fresh is None or facts.revision == PLACEHOLDER:
            return
        package = self._packages[key] = sys.intern(f"{facts.repository}/{facts.package}")
        found = Upstream(name.name, facts.revision, facts.workspace, row.digest, row.annotations, fresh)
        self._upstreams.setdefault((name.namespace, package), {})[name.name] = found

    def packages(self, namespace: str) -> list[str]:
        """Return the packages of a namespace with a published revision, `REPOSITORY/PACKAGE`."""
        return [package for at, package in self._upstreams if at == namespace]

    def upstream_named(self, namespace: str, source: str) -> Upstream | None:
        """Return the upstream revision of a name, `REPOSITORY/PACKAGE@REVISION`; None if it is not there."""
        package, _, tail = source.rpartition("@")
        table = self._upstreams.get((namespace, package), {})
        return next((each for each in table.values() if tail in (f"v{each.number}", each.workspace)), None)

    def annotations_of(self, namespace: str, source: str) -> Mapping[str, str]:
        """Return the annotations of an upstream revision, none if it is not there."""
        upstream = self.upstream_named(namespace, source) if source else None
        return upstream.annotations if upstream is not None else {}

    def _drop(self, vkey: str, name: str) -> None:
        """Forget a revision of a variant."""
        drafts = self._open.get(vkey, {})
        drafts.pop(name, None)
        if not drafts:
            self._open.pop(vkey, None)
        left = tuple(each for each in self._published.get(vkey, ()) if each.name != name)
        if left:
            self._published[vkey] = left
        else:
            self._published.pop(vkey, None)

    def revisions_of(self, vkey: str, uid: str) -> list[ObservedRevision]:
        """Return the open revisions of this very variant, by name."""
        table = self._open.get(vkey, {})
        return [table[name] for name in sorted(table) if table[name].owned_by(uid)]

    def published_of(
        self, vkey: str, uid: str, downstream: Downstream | None = None, approved: Collection[str] = ()
    ) -> PublishedRevision | None:
        """Return the latest published revision of this very variant in a downstream package.

        approved: the names of the revisions that release has published for it. They count even if somebody
        has given them another owner since
        """
        package = f"{downstream.repo}/{downstream.package}" if downstream is not None else ""
        table = self._upstreams.get((vkey.partition("/")[0], package), {})
        mine = [table[name].found for name in approved if name in table]
        mine += [
            each
            for each in self._published.get(vkey, ())
            if each.uid == uid and downstream in (None, each.downstream)
        ]
        return max(mine, key=lambda each: each.number, default=None)

    def has_open(self, vkey: str) -> bool:
        return vkey in self._open

    def has_published(self, vkey: str) -> bool:
        return vkey in self._published

    def specializers(self, namespace: str) -> Mapping[str, ObjectRow]:
        return self._specializers.get(namespace, {})

    def unlisted(self, namespace: str) -> str:
        """Return what is not listed completely in a namespace, in words, "" if all is.

        A kind that is unavailable will not be listed soon: see `hidden`.
        """
        if not self._sync.ok(REVISION_KIND, namespace):
            return _problem("PackageRevisions", self._sync.problem(REVISION_KIND, namespace))
        marker = self._sync.marker(SPECIALIZER_KIND)
        if marker is not None and marker.state == "unavailable":
            return ""
        if self._sync.ok(SPECIALIZER_KIND, namespace):
            return ""
        return _problem("PackageSpecializers", self._sync.problem(SPECIALIZER_KIND, namespace))

    def hidden(self) -> str:
        """Return why the PackageSpecializers may not be read, "" if they may, or are not installed."""
        why = self._sync.hidden(SPECIALIZER_KIND)
        return why and f"ingest cannot list the PackageSpecializers ({why}): pvbus doctor says what it lacks"


def _problem(kinds: str, why: str) -> str:
    return f"the list of {kinds}" + (f" ({why})" if why else "")


def _owner_of(row: ObjectRow) -> ObjectOwner | None:
    """Return the variant that owns a revision which is open or published, None for any other object."""
    if row.revision is None or row.revision.revision == PLACEHOLDER:
        return None
    if (row.revision.lifecycle or LIFECYCLES[0]) not in (*LIFECYCLES, *PUBLISHED):
        return None
    owners = (owner for owner in row.owners if owner.api_version.startswith(f"{CONFIG_GROUP}/"))
    return owner_among(owners, "PackageVariant")


def _published(name: str, row: ObjectRow | None, uid: str) -> PublishedRevision | None:
    facts = row.revision if row is not None else None
    if row is None or facts is None or facts.lifecycle not in PUBLISHED:
        return None
    return PublishedRevision(
        name,
        facts.revision,
        sys.intern(uid),
        Downstream(repo=sys.intern(facts.repository), package=sys.intern(facts.package)),
        row.digest,
        row.annotations.get(PROPOSED_CONTENT, ""),
        row.labels,
        (sys.intern(facts.lock_directory), sys.intern(facts.lock_ref)),
        facts.self_commit,
    )
