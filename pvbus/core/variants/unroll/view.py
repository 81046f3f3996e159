"""The broadcast tables of unroll, and a map from every input to the sets that it can change.

Everything a set looked up is indexed, found or not: upstream packages, Repositories, selector
kinds, its own PackageVariants. An object event finds its sets in time proportional to their number.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP, Downstream, Upstream
from pvbus.core.kernel.codec import recent_decoder, share_texts
from pvbus.core.kernel.holds import hold_reason, is_held
from pvbus.core.kernel.keys import SET_UID_LABEL, CheckKey, ObjectKey, is_check, okey
from pvbus.core.kernel.markers import SyncView, is_marker, marker_kind
from pvbus.core.kernel.records import CheckAnswer, CheckRequest, ObjectRow, RevisionFacts
from pvbus.core.variants import versions
from pvbus.core.variants.unroll.index import SelectorIndex, TargetSelector

VARIANT_KIND = f"{CONFIG_GROUP}/PackageVariant"
SET_KIND = f"{CONFIG_GROUP}/PackageVariantSet"
REPOSITORY_KIND = f"{CONFIG_GROUP}/Repository"
REVISION_KIND = f"{PORCH_GROUP}/PackageRevision"

PackageKey = tuple[str, str, str]
"""(namespace, repository, package)."""

object_row = recent_decoder(ObjectRow)
"""Decodes a value of `UnrollView.objects`."""
_answer = msgspec.json.Decoder(CheckAnswer)
_request = msgspec.json.Decoder(CheckRequest)


class Observed(NamedTuple):
    """A living PackageVariant of a set."""

    uid: str
    downstream: Downstream
    terminating: bool
    on_hold: bool = False
    hold_reason: str = ""


class SetChange(NamedTuple):
    """A set (skey) to decide again, and the input that changed: a target object, a Repository or one of its
    children; all are empty for any other input.

    moves: of a target object: position of the set's selector -> whether it selects the object now. Selectors
    that neither select it nor did are left out.
    """

    skey: str
    okey: str = ""
    moves: Mapping[int, bool] = {}
    repository: str = ""
    child: str = ""


class UnrollView:
    """The observed objects, which all sets of this worker share.

    objects: okey -> row, as the JSON that the bus has: decoded it takes three times the bytes, and of most
        objects no decision is in flight
    _facts: package -> okey -> facts of a revision, of those packages that sets have looked up
    """

    def __init__(self, partitions: int) -> None:
        self.sync = SyncView(partitions)
        self.objects: dict[str, bytes] = {}
        self._owned: dict[tuple[str, str], dict[str, Observed]] = {}
        self.index = SelectorIndex()
        self._revisions: dict[PackageKey, set[str]] = {}
        self._facts: dict[PackageKey, dict[str, RevisionFacts]] = {}
        self._upstream_users: dict[tuple[str, str, str], set[str]] = {}
        self._repository_users: dict[str, set[str]] = {}
        self._kind_users: dict[str, set[str]] = {}
        self._uid_users: dict[str, str] = {}
        self._uids_of: dict[str, set[str]] = {}
        self._interests: dict[str, dict[tuple[int, Any], dict[Any, set[str]]]] = {}
        self._selecting: set[str] = set()
        self.answers: dict[str, dict[str, str]] = {}
        self.requests: dict[str, dict[str, str]] = {}

    # ------------------------------------------------------------ records in

    def load(self, partition: int, key: str, value: bytes | None) -> Iterable[SetChange]:
        """Apply a record of the objects topic."""
        if is_check(key):
            skey = CheckKey.parse(key).skey
            _put_nonce(self.answers, skey, key, None if value is None else _answer.decode(value).nonce)
            return [SetChange(skey)]
        if is_marker(key):
            if self.sync.load(partition, key, value):
                return [SetChange(skey) for skey in self._kind_users.get(marker_kind(key), ())]
            return ()
        row = object_row(value) if value is not None else None
        before = object_row(self.objects[key]) if key in self.objects else None
        if value is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = value
        return self._changes(key, before, row)

    def load_request(self, key: str, value: bytes | None) -> None:
        """Apply a check request of this or a former holder of the lease."""
        nonce = None if value is None else _request.decode(value).nonce
        _put_nonce(self.requests, CheckKey.parse(key).skey, key, nonce)

    def _changes(self, key: str, before: ObjectRow | None, row: ObjectRow | None) -> list[SetChange]:
        name = ObjectKey.parse(key)
        kind = f"{name.group}/{name.kind}"
        changes: list[SetChange] = []
        if kind == VARIANT_KIND:
            changes += self._variant_changes(name, before, row)
        elif kind == REVISION_KIND:
            changes += self._revision_changes(key, name, before, row)
        elif kind == REPOSITORY_KIND:
            users = self._repository_users.get(key, ())
            changes += [SetChange(skey, repository=name.name) for skey in users]
        for skey, moves in self._moves(kind, name, before, row).items():
            changes.append(SetChange(skey, key, moves))
        return changes

    def _moves(
        self, kind: str, name: ObjectKey, before: ObjectRow | None, row: ObjectRow | None
    ) -> dict[str, dict[int, bool]]:
        """Return the sets that a target object concerns, each with `SetChange.moves`."""
        if row is None:
            if before is None:
                return {}
            moved = self.index.remove_object(kind, name.namespace, name.name)
        else:
            moved = self.index.put_object(kind, name.namespace, name.name, row.labels)
        moves: dict[str, dict[int, bool]] = {}
        for change in moved:
            moves.setdefault(str(change.owner), {})[change.position] = change.what != "left"
        return moves

    def _variant_changes(
        self, name: ObjectKey, before: ObjectRow | None, row: ObjectRow | None
    ) -> Iterator[SetChange]:
        old = _set_uid(before) if before is not None else ""
        new = _set_uid(row) if row is not None else ""
        if old and old != new:
            self._owned.get((old, name.namespace), {}).pop(name.name, None)
        if new and row is not None:
            hold = is_held(row.annotations), hold_reason(row.annotations)
            downstream = share_texts(row.downstream or Downstream(), "repo", "package")
            seen = Observed(row.uid, downstream, bool(row.deleted), *hold)
            self._owned.setdefault((new, name.namespace), {})[name.name] = seen
        for uid in {old, new} - {""}:
            skey = self._uid_users.get(uid, "")
            if skey.partition("/")[0] == name.namespace:
                yield SetChange(skey, child=name.name)

    def _revision_changes(
        self, key: str, name: ObjectKey, before: ObjectRow | None, row: ObjectRow | None
    ) -> Iterator[SetChange]:
        packages = set()
        for side in (before, row):
            if side is not None and side.revision is not None:
                package = (name.namespace, side.revision.repository, side.revision.package)
                packages.add(package)
                known = self._revisions.setdefault(package, set())
                if side is row:
                    known.add(key)
                else:
                    known.discard(key)
        for package in packages:
            self._facts.pop(package, None)
            for skey in self._upstream_users.get(package, ()):
                yield SetChange(skey)

    # ------------------------------------------------------------ interest

    def use_uid(self, uid: str, skey: str) -> None:
        self._uid_users[uid] = skey
        self._uids_of.setdefault(skey, set()).add(uid)

    def _use(self, table: dict[Any, set[str]], key: Any, skey: str) -> None:
        table.setdefault(key, set()).add(skey)
        self._interests.setdefault(skey, {})[id(table), key] = table

    def _unuse(self, table: dict[Any, set[str]], key: Any, skey: str) -> None:
        users = table.get(key)
        if users is not None:
            users.discard(skey)
            if not users:
                del table[key]
                if table is self._upstream_users:
                    self._facts.pop(key, None)

    def use_upstream(self, namespace: str, upstream: Upstream, skey: str) -> None:
        self._use(self._upstream_users, (namespace, upstream.repo, upstream.package), skey)

    def use_repository(self, namespace: str, name: str, skey: str) -> None:
        self._use(self._repository_users, okey(CONFIG_GROUP, "Repository", namespace, name), skey)

    def use_kinds(self, kinds: Iterable[str], skey: str) -> None:
        for kind in kinds:
            self._use(self._kind_users, kind, skey)

    def select(self, skey: str, selectors: list[TargetSelector]) -> list[list[str]]:
        """Register a set's selectors and return the matching okeys of each, ordered by name."""
        self._selecting.add(skey)
        return [list(matches) for matches in self.index.set_selectors(skey, selectors)]

    def forget(self, skey: str) -> None:
        """Drop all registrations of a set."""
        if skey in self._selecting:
            self._selecting.discard(skey)
            self.index.remove_owner(skey)
        for (_, key), table in self._interests.pop(skey, {}).items():
            self._unuse(table, key, skey)
        for uid in self._uids_of.pop(skey, ()):
            if self._uid_users.get(uid) == skey:
                del self._uid_users[uid]

    # ------------------------------------------------------------ reading

    def owned(self, uid: str, namespace: str) -> dict[str, Observed]:
        """Return the living PackageVariants of a set, by name: labelled with its uid, in its namespace."""
        return self._owned.get((uid, namespace), {})

    def repository(self, namespace: str, name: str) -> ObjectRow | None:
        value = self.objects.get(okey(CONFIG_GROUP, "Repository", namespace, name))
        return object_row(value) if value is not None else None

    def revisions_of(self, namespace: str, upstream: Upstream) -> list[RevisionFacts]:
        """Return the revisions of an upstream's package, unordered."""
        return list(self._facts_of(namespace, upstream).values())

    def _facts_of(self, namespace: str, upstream: Upstream) -> Mapping[str, RevisionFacts]:
        """Return okey -> facts of the revisions of an upstream's package.

        A package may have many revisions, and each pass of a set looks at all: so the facts are kept until
        one of these changes, or no set follows the package any more.
        """
        package = (namespace, upstream.repo, upstream.package)
        facts = self._facts.get(package)
        if facts is None:
            rows = {key: object_row(self.objects[key]) for key in self._revisions.get(package, ())}
            facts = {key: row.revision for key, row in rows.items() if row.revision is not None}
            if package in self._upstream_users:
                self._facts[package] = facts
        return facts

    def upstream(self, namespace: str, upstream: Upstream) -> tuple[str, ObjectRow] | None:
        """Find the upstream revision; its number and its workspace must match, if given.

        Several can match a number alone (equal numbers exist only by accident): the first by name is taken.
        Of a range of versions, it is the highest.
        """
        if versions.is_range(upstream.workspace_name):
            return self._highest(namespace, upstream)
        matches = []
        for key, facts in self._facts_of(namespace, upstream).items():
            if upstream.revision and facts.revision != upstream.revision:
                continue
            if upstream.workspace_name and facts.workspace != upstream.workspace_name:
                continue
            matches.append(key)
        return (min(matches), object_row(self.objects[min(matches)])) if matches else None

    def _highest(self, namespace: str, upstream: Upstream) -> tuple[str, ObjectRow] | None:
        published = [(facts, key) for key, facts in sorted(self._facts_of(namespace, upstream).items())]
        best = versions.highest(upstream, published, lambda item: item[0])
        return (best[1], object_row(self.objects[best[1]])) if best is not None else None


def _put_nonce(table: dict[str, dict[str, str]], skey: str, key: str, nonce: str | None) -> None:
    """Set or remove a nonce, and remove the entry of a set without nonces."""
    nonces = table.setdefault(skey, {})
    nonces.pop(key, None)
    if nonce is not None:
        nonces[key] = nonce
    if not nonces:
        del table[skey]


def _set_uid(row: ObjectRow) -> str:
    """Return the uid of the set that a variant belongs to: its label, if an owner reference confirms it. A
    copy with the label alone belongs to the person who made it, and render would not delete it."""
    uid = row.labels.get(SET_UID_LABEL, "")
    return uid if any(owner.uid == uid for owner in row.owners) else ""
