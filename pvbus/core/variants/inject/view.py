"""The broadcast tables of inject, and a reverse map from every input to the variants that use it.

Upstream packages, downstream packages and their repositories, owners and injected objects are
indexed whether they exist or not, so a change affects exactly the variants that looked it up.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, Downstream, Upstream
from pvbus.core.kernel.keys import Key, ObjectKey, okey
from pvbus.core.kernel.markers import SyncView, is_marker, marker_kind
from pvbus.core.kernel.records import InjectableRow, ObjectRow
from pvbus.core.variants import versions
from pvbus.core.variants.inject.mutations import CandidateListing
from pvbus.core.variants.revisions.observed import REVISION_KIND, ObservedRevision

REPOSITORY_KIND = f"{CONFIG_GROUP}/Repository"

_row = msgspec.json.Decoder(ObjectRow)
_injectable = msgspec.json.Decoder(InjectableRow)
PackageKey = tuple[str, str, str]
"""(namespace, repository, package)."""
Owning = tuple[str, str]
"""(namespace, uid) of a variant: owner references do not cross namespaces."""


class Uses(NamedTuple):
    """The inputs that a variant uses.

    objects: their okeys
    kinds: their kinds, as `<group>/<kind>`
    """

    owning: Owning
    packages: frozenset[PackageKey]
    objects: frozenset[str]
    kinds: frozenset[str]


class InjectView:
    """Observed revisions, Repositories and injectables."""

    def __init__(self, partitions: int) -> None:
        self.sync = SyncView(partitions)
        self.content_sync = SyncView(partitions)
        self._revisions: dict[str, ObservedRevision] = {}
        self._at: dict[PackageKey, dict[str, None]] = {}
        self._owned: dict[Owning, dict[str, None]] = {}
        self._repositories: set[str] = set()
        self._injectables: dict[str, bytes] = {}
        self._package_users: dict[PackageKey, set[str]] = {}
        self._object_users: dict[str, set[str]] = {}
        self._kind_users: dict[str, set[str]] = {}
        self._owning_users: dict[Owning, str] = {}
        self._uses: dict[str, Uses] = {}

    # ------------------------------------------------------------ records in

    def load_object(self, partition: int, key: str, value: bytes | None) -> Iterable[str] | None:
        """Apply a record of the objects topic; None: every key is dirty (a kind's sync changed)."""
        if is_marker(key):
            kind = marker_kind(key)
            if kind in (REVISION_KIND, REPOSITORY_KIND) and self.sync.load(partition, key, value):
                return None
            return ()
        if key.startswith(f"{REPOSITORY_KIND}|"):
            self._repositories.discard(key) if value is None else self._repositories.add(key)
            return self._object_users.get(key, set())
        if not key.startswith(f"{REVISION_KIND}|"):
            return ()
        name = ObjectKey.parse(key)
        old = self._revisions.pop(key, None)
        if old is not None:
            self._forget(key, old)
        new = None
        if value is not None:
            row = _row.decode(value)
            if row.revision is not None:
                new = ObservedRevision(name.namespace, name.name, row, row.revision)
                self._remember(key, new)
        dirty = set()
        for side in (old, new):
            if side is not None:
                dirty |= self._package_users.get(_package(side), set())
                dirty |= {self._owning_users[who] for who in _owners(side) if who in self._owning_users}
        return dirty

    def _remember(self, key: str, revision: ObservedRevision) -> None:
        self._revisions[key] = revision
        self._at.setdefault(_package(revision), {})[key] = None
        for owning in _owners(revision):
            self._owned.setdefault(owning, {})[key] = None

    def _forget(self, key: str, revision: ObservedRevision) -> None:
        tables: list[tuple[dict[Any, dict[str, None]], Any]] = [(self._at, _package(revision))]
        tables += [(self._owned, owning) for owning in _owners(revision)]
        for table, package in tables:
            known = table.get(package)
            if known is not None:
                known.pop(key, None)
                if not known:
                    del table[package]

    def load_injectable(self, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if is_marker(key):
            self.content_sync.load(partition, key, value)
            return self._kind_users.get(marker_kind(key), set())
        if value is None:
            self._injectables.pop(key, None)
        else:
            self._injectables[key] = value
        return self._object_users.get(key, set())

    # ------------------------------------------------------------ uses

    def use(
        self,
        vkey: str,
        uid: str,
        *,
        downstreams: Iterable[PackageKey],
        objects: Iterable[str] = (),
        kinds: Iterable[str] = (),
    ) -> None:
        """Replace the inputs that a variant uses."""
        owning = (Key.parse(vkey).namespace, uid)
        packages = frozenset(downstreams)
        repositories = {_repository_key(namespace, repository) for namespace, repository, _ in packages}
        uses = Uses(owning, packages, frozenset({*objects, *repositories}), frozenset(kinds))
        if self._uses.get(vkey) == uses:
            return
        self.forget(vkey)
        self._uses[vkey] = uses
        self._owning_users[owning] = vkey
        for table, names in self._tables(uses):
            for name in names:
                table.setdefault(name, set()).add(vkey)

    def _tables(self, uses: Uses) -> list[tuple[dict[Any, set[str]], frozenset[Any]]]:
        return [
            (self._package_users, uses.packages),
            (self._object_users, uses.objects),
            (self._kind_users, uses.kinds),
        ]

    def forget(self, vkey: str) -> None:
        uses = self._uses.pop(vkey, None)
        if uses is None:
            return
        if self._owning_users.get(uses.owning) == vkey:
            del self._owning_users[uses.owning]
        for table, names in self._tables(uses):
            for name in names:
                users = table.get(name)
                if users is not None:
                    users.discard(vkey)
                    if not users:
                        del table[name]

    # ------------------------------------------------------------ reading

    def has_repository(self, namespace: str, name: str) -> bool:
        return _repository_key(namespace, name) in self._repositories

    def at(self, namespace: str, package: Downstream) -> list[ObservedRevision]:
        keys = self._at.get((namespace, package.repo, package.package), ())
        return [self._revisions[key] for key in sorted(keys)]

    def from_directory(self, namespace: str, repo: str, directory: str) -> list[ObservedRevision]:
        """Return the revisions of a package by the URL of its repository and its directory there."""
        where = (namespace, repo, directory)
        return [
            revision
            for revision in self._revisions.values()
            if repo and (revision.namespace, revision.facts.self_repo, revision.facts.self_directory) == where
        ]

    def owned(self, namespace: str, uid: str) -> list[ObservedRevision]:
        """Return the revisions of a namespace that name this uid as an owner."""
        return [self._revisions[key] for key in sorted(self._owned.get((namespace, uid), ()))]

    def upstream(self, namespace: str, upstream: Upstream) -> ObservedRevision | None:
        """Find the upstream revision.

        If both a revision above 0 and a workspace are given, both must match; one alone decides. With
        neither, it is the workspace `main`, normally the branch placeholder. Of a range of versions, it is
        the highest.
        """
        at = self.at(namespace, Downstream(repo=upstream.repo, package=upstream.package))
        workspace = upstream.workspace_name
        if versions.is_range(workspace):
            return versions.highest(upstream, at, lambda revision: revision.facts)
        if not workspace and upstream.revision <= 0:
            workspace = "main"
        for revision in at:
            if workspace and revision.facts.workspace != workspace:
                continue
            if upstream.revision > 0 and revision.facts.revision != upstream.revision:
                continue
            return revision
        return None

    # ------------------------------------------------------------ injectables

    def injectable(self, group: str, kind: str, namespace: str, name: str) -> InjectableRow | None:
        """Return the row of an object; None if ingest has not answered yet."""
        value = self._injectables.get(okey(group, kind, namespace, name))
        return _injectable.decode(value) if value is not None else None

    def unavailable(self, group: str, version: str, kind: str, namespace: str) -> str:
        """Return why a kind is unavailable in a namespace, "" if it is available or not known yet."""
        marker = self.content_sync.marker(f"{group}/{kind}")
        asked = f"{group}/{version}" if group else version
        unknown = f'no matches for kind "{kind}" in version "{asked}"'
        if marker is None or marker.state == "unwatched":
            return ""
        if marker.state == "unavailable":
            return unknown if marker.message.startswith("no matches") else marker.message
        if marker.versions and version not in marker.versions:
            return unknown
        return self.content_sync.problem(f"{group}/{kind}", namespace)


def _repository_key(namespace: str, name: str) -> str:
    return okey(CONFIG_GROUP, "Repository", namespace, name)


def _owners(revision: ObservedRevision) -> set[Owning]:
    return {(revision.namespace, owner.uid) for owner in revision.row.owners}


def _package(revision: ObservedRevision) -> PackageKey:
    return revision.namespace, revision.facts.repository, revision.facts.package


class ViewCandidates:
    """`pvbus.core.variants.inject.mutations.Candidates`: a snapshot of the view, for one namespace and some
    names.

    An attempt takes a while, and its outcome is stored under the digest of its first inputs: it must not
    see later changes.
    """

    def __init__(self, view: InjectView, namespace: str, names: Iterable[tuple[str, str, str, str]]) -> None:
        self._view = view
        self._namespace = namespace
        asked: dict[tuple[str, str, str], list[str]] = {}
        for group, version, kind, name in names:
            asked.setdefault((group, version, kind), []).append(name)
        self._listings = {package: self._list(*package, named) for package, named in asked.items()}

    def listing(self, group: str, version: str, kind: str) -> CandidateListing:
        found = self._listings.get((group, version, kind))
        return found if found is not None else self._list(group, version, kind, ())

    def _list(self, group: str, version: str, kind: str, names: Iterable[str]) -> CandidateListing:
        error = self._view.unavailable(group, version, kind, self._namespace)
        if error:
            return CandidateListing({}, error)
        objects: dict[str, Any] = {}
        for name in names:
            row = self._view.injectable(group, kind, self._namespace, name)
            if row is not None and row.exists:
                content = row.content
                objects[name] = None if content is msgspec.UNSET else msgspec.json.decode(content)
        presence = self._view.injectable(group, kind, self._namespace, "")
        if not objects and presence is not None and presence.exists:
            objects[""] = None  # there are objects, but none that an injector names
        return CandidateListing(objects)
