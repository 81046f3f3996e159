"""The tables of one scope: what is in the cluster, at the sources, and in the lock."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.markers import SyncView
from pvbus.core.kernel.objects import mapping, text
from pvbus.core.kernel.packagekinds import (
    CARVEL_INSTALL,
    CARVEL_PACKAGE,
    CARVEL_REPOSITORY,
    CRD,
    CROSSPLANE_REVISIONS,
    DEPLOYMENT,
    IMAGE_CONFIG,
    INSTALLS,
    MIRRORED,
    RUNTIME_CONFIG,
)
from pvbus.core.kernel.packagerows import (
    DIGEST,
    PARENT_LABEL,
    WROTE,
    ContentRow,
    EstablishedRow,
    LockRow,
    SourceRow,
)
from pvbus.core.platform.packaging.carvelfacts import KnownPackage
from pvbus.core.platform.packaging.carvelobjects import known_package
from pvbus.core.platform.packaging.imageconfigs import Access, ImageConfigs
from pvbus.core.platform.packaging.reading import Problem, install_of, split_reference
from pvbus.core.platform.resolve.groups import Changes, Member
from pvbus.core.platform.resolve.revisions import History, Request, RevisionObject, request_of
from pvbus.core.platform.solver.model import api

NAMESPACE = "crossplane-system"


class InstallObject(NamedTuple):
    """An install's object.

    created: its creationTimestamp
    current: the name of the active revision in its status
    """

    install: Install | Problem
    created: str
    current: str


class ScopeState:
    """The rows of one scope, with what was read of them. A change forgets what rests on it."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        """Create empty tables. namespace: where the pull secrets of Crossplane's installs are."""
        self._namespace = namespace
        self.installs: dict[str, InstallObject] = {}
        self.revisions: dict[tuple[str, str], dict[str, RevisionObject]] = {}
        self.definitions: dict[str, frozenset[str]] = {}
        self.packages: dict[str, KnownPackage] = {}
        self._image_configs = ImageConfigs(namespace)
        self.schemas: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        self.sources: dict[str, SourceRow] = {}
        self.contents: dict[str, dict[str, ContentRow]] = {}
        self.lock: dict[str, LockRow] = {}
        self.established: dict[str, EstablishedRow] = {}
        self.sync = SyncView(1)
        self.demands: Mapping[str, Access] | None = None
        self.touched: set[str] = set()
        self.owners: dict[str, dict[str, None]] = {}
        self.changes = Changes()
        self.carvel_okeys: set[str] = set()
        self._named: dict[str, str] = {}
        self._offers: frozenset[str] | None = None

    # ------------------------------------------------------------ records in

    def observe(self, okey: str, value: bytes | None) -> tuple[bool, set[str]]:
        """Apply an object of the cluster; return whether that matters for a decision, and the sources that
        its old and its new form name."""
        group, _, rest = okey.partition("/")
        kind = Kind(group, rest.partition("|")[0])
        obj = msgspec.json.decode(value) if value is not None else None
        if kind in INSTALLS:
            return self._observe_install(kind, okey, obj)
        if kind in CROSSPLANE_REVISIONS:
            return self._observe_revision(kind, okey, obj), set()
        if kind == CARVEL_PACKAGE:
            found = known_package(obj) if obj is not None else None
            self.packages.pop(okey, None)
            if isinstance(found, KnownPackage):
                self.packages[okey] = found
            self.changes.is_carvel = True
        elif kind == CRD:
            return self._observe_definition(okey, obj), set()
        elif kind == IMAGE_CONFIG:
            return self._observe_image_config(okey, obj), set()
        elif kind in (RUNTIME_CONFIG, DEPLOYMENT, CARVEL_REPOSITORY):
            return False, set()  # of establish alone
        return True, set()

    def _observe_image_config(self, okey: str, obj: Mapping[str, Any] | None) -> bool:
        is_news = self._image_configs.observe(okey, obj)
        self.changes.is_all |= is_news  # its prefixes may be of any image
        return is_news

    def _observe_install(self, kind: Kind, okey: str, obj: Mapping[str, Any] | None) -> tuple[bool, set[str]]:
        before, after = self.installs.pop(okey, None), None
        if obj is not None:
            metadata, status = mapping(obj.get("metadata")), mapping(obj.get("status"))
            install = install_of(obj, namespace=self._namespace)
            if isinstance(install, Install) and install.family == "crossplane":
                install = install._replace(installed="")  # the lock knows: what a status says decides nothing
            self.installs[okey] = after = InstallObject(
                install,
                text(metadata.get("creationTimestamp")),
                text(status.get("currentRevision")),
            )
        if before is not None and after is not None and okey in self.lock:
            before = before._replace(current=after.current)  # it matters only where the lock was lost
        if before == after:
            return False, set()
        self.changes.install(okey)
        self.changes.is_carvel |= kind == CARVEL_INSTALL
        self._note_carvel(okey)
        named = set()
        for seen in (before, after):
            if seen is not None and isinstance(seen.install, Install) and seen.install.family == "crossplane":
                named.add(seen.install.package)
        self.touched.update(named)
        return True, named

    def _observe_revision(self, kind: Kind, okey: str, obj: Mapping[str, Any] | None) -> bool:
        before, name = self._named.pop(okey, None), okey.rpartition("|")[2]
        parent = _parent(obj) if obj is not None else ""
        parents = [
            f"{kind.group}/{kind.kind.removesuffix('Revision')}||{each}"
            for each in filter(None, (before, parent))
        ]
        requests = [self._request(each) for each in parents]
        former = self.revisions[kind.kind, before].pop(name, None) if before is not None else None
        seen = seen_of(obj) if obj is not None else None
        if parent and seen is not None:
            self._named[okey] = parent
            self.revisions.setdefault((kind.kind, parent), {})[name] = seen
        if (before or "", former) == (parent if seen is not None else "", seen):
            return False
        matters = False
        for each, request in zip(parents, requests, strict=True):
            if request is None or request != self._request(each):
                self.changes.install(each)
                matters = True
        return matters

    def _request(self, okey: str) -> Request | None:
        """Return what users ask for in an install's revisions; None if these may matter for more.

        Where the lock has revisions of the install, its history is that of the lock, and not of the objects.
        """
        row, seen = self.lock.get(okey), self.installs.get(okey)
        if row is None or not row.revisions or seen is None or not isinstance(seen.install, Install):
            return None
        if row.package != seen.install.package:
            return None
        return request_of(History(row.revisions, row.observed), self.seen_revisions(okey))

    def _observe_definition(self, okey: str, obj: Mapping[str, Any] | None) -> bool:
        offers = _offers(obj) if obj is not None else frozenset()
        before = self.definitions.pop(okey, frozenset())
        is_read = self.schemas.pop(okey, None) is not None
        if offers:
            self.definitions[okey] = offers
        if offers == before and not is_read:
            return False
        self._offers, self.changes.is_carvel = None, True
        return True

    def set_established(self, okey: str, row: EstablishedRow | None) -> bool:
        """Apply what establish did; return whether a decision depends on it: on whether there is a row."""
        if okey.startswith(f"{CARVEL_REPOSITORY}|"):
            return False  # what it brings are Packages, which are read as such
        before = self.established.pop(okey, None)
        if row is not None:
            self.established[okey] = row
        if (before is None) == (row is None) or (row is not None and not self._may_end(okey)):
            return False
        self.changes.install(okey)
        self.changes.is_carvel |= okey.startswith(f"{CARVEL_INSTALL}|")
        return True

    def _may_end(self, okey: str) -> bool:
        """Return whether a row of what was done matters for an install: it is to end, or is gone."""
        row = self.lock.get(okey)
        if row is None or row.status == "removed" or okey.startswith(f"{CARVEL_INSTALL}|"):
            return True
        return okey not in self.installs and bool(row.uid or not row.holders)

    def _note_carvel(self, okey: str) -> None:
        """Note whether Carvel's part has an install."""
        if not okey.startswith(f"{CARVEL_INSTALL}|"):
            return
        if okey in self.installs or okey in self.lock:
            self.carvel_okeys.add(okey)
        else:
            self.carvel_okeys.discard(okey)

    def set_source(self, source: str, row: SourceRow | None) -> None:
        self.touched.add(source)
        if not self.changes.take_echo(Member("source", source), row):
            self.changes.source(source)
        if row is None:
            self.sources.pop(source, None)
        else:
            self.sources[source] = row

    def set_content(self, source: str, digest: str, row: ContentRow | None) -> None:
        self.touched.add(source)
        self.changes.source(source)
        contents = self.contents.setdefault(source, {})
        if row is None:
            contents.pop(digest, None)
        else:
            contents[digest] = row

    def set_lock(self, okey: str, row: LockRow | None) -> None:
        before = self.lock.pop(okey, None)
        for each in objects_of(before):
            owners = self.owners[each]
            owners.pop(okey, None)
            if not owners:
                del self.owners[each]
        for each in objects_of(row):
            self.owners.setdefault(each, {})[okey] = None
        if objects_of(before) != objects_of(row):
            self._offers, self.changes.is_owning = None, True
        if not self.changes.take_echo(Member("install", okey), row):
            self.changes.install(okey)
        self.changes.is_carvel |= okey.startswith(f"{CARVEL_INSTALL}|")
        if row is not None:
            self.lock[okey] = row
        self._note_carvel(okey)

    # ------------------------------------------------------------ reading

    def content(self, source: str, digest: str) -> ContentRow | None:
        return self.contents.get(source, {}).get(digest)

    def offers(self) -> frozenset[str]:
        """Return the API kinds that are there without a package: no install has their definitions."""
        if self._offers is None:
            found = (offers for okey, offers in self.definitions.items() if okey not in self.owners)
            self._offers = frozenset(offer for offers in found for offer in offers)
        return self._offers

    def owner_beside(self, obj: str, okey: str) -> str | None:
        """Return another install that an object belongs to by the lock, None if there is none."""
        return min((each for each in self.owners.get(obj, ()) if each != okey), default=None)

    def unread_schemas(self) -> list[str]:
        """Return the definitions whose schemas matter: a dependency needs fields of their kinds."""
        wanted = {offer for each in self.packages.values() for offer, _ in each.fields}
        return sorted(
            okey for okey, each in self.definitions.items() if each & wanted and okey not in self.schemas
        )

    def seen_revisions(self, okey: str) -> list[RevisionObject]:
        """Return the objects of an install's revisions."""
        head, _, name = okey.rpartition("|")
        kind = head.partition("|")[0].rpartition("/")[2]
        return list(self.revisions.get((f"{kind}Revision", name), {}).values())

    def pending(self) -> Iterator[str]:
        """Yield the kinds that are asked for, and of which it is not known which objects there are."""
        for kind in MIRRORED:
            marker = self.sync.marker(str(kind))
            if marker is None or marker.state not in ("ok", "unavailable"):
                yield str(kind)

    def check_image(self, source: str, version: str, digest: str) -> str:
        """Return why an image may not be installed unless its signature is verified, "" if it may."""
        self._image_configs.hidden = self.sync.hidden(str(IMAGE_CONFIG))
        return self._image_configs.unverified(source, version, digest)

    def access(self, source: str, secrets: Iterable[str]) -> Access:
        """Return how a source is read. secrets: the pull secrets of its installs"""
        return self._image_configs.access(source, secrets)

    def is_gone(self, okey: str) -> bool:
        """Tell whether an object that has no row does not exist."""
        head, namespace, _ = okey.split("|")
        return okey not in self.installs and self.sync.ok(head, namespace)


def objects_of(row: LockRow | None) -> set[str]:
    """Return the objects of all revisions that are kept."""
    return {each for revision in (row.revisions if row else ()) for each in revision.objects}


def seen_of(obj: Mapping[str, Any]) -> RevisionObject | None:
    """Read a revision's object; None if it does not say which content it is of."""
    metadata, spec = mapping(obj.get("metadata")), mapping(obj.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    source, tag, pinned = split_reference(text(spec.get("image")) or text(spec.get("package")))
    digest = text(annotations.get(DIGEST)) or pinned
    if not digest:
        return None
    number, generation = spec.get("revision"), metadata.get("generation")
    return RevisionObject(
        name=text(metadata.get("name")),
        digest=digest,
        revision=number if isinstance(number, int) else 0,
        version=tag,
        source=source,
        desired=text(spec.get("desiredState")) or "Inactive",
        wrote=text(annotations.get(WROTE)),
        generation=generation if isinstance(generation, int) else 0,
    )


def _parent(obj: Mapping[str, Any]) -> str:
    """Return the name of a revision's install: of its controller, or else of its label."""
    metadata = mapping(obj.get("metadata"))
    for owner in _mappings(metadata.get("ownerReferences")):
        if owner.get("controller"):
            return text(owner.get("name"))
    return text(mapping(metadata.get("labels")).get(PARENT_LABEL))


def _offers(obj: Mapping[str, Any]) -> frozenset[str]:
    spec = mapping(obj.get("spec"))
    kind = text(mapping(spec.get("names")).get("kind"))
    versions = [each for each in _mappings(spec.get("versions")) if each.get("served")]
    return frozenset(api(f"{spec.get('group')}/{each.get('name')}", kind) for each in versions)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
