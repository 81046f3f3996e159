"""The rows of packages that depend on each other.

An install is an object with which a user, or another install, asks for a package: a Package, Provider,
Configuration or Function of Crossplane, or a PackageInstall of Carvel. A scope is what has one lock: the
cluster. All rows of a scope are in one partition, so that one lease writes its lock, and every decision sees
all decisions before it. The scope is the first part of every key; the rest is an okey, or a source.

`resolve` writes the lock before anything is in the cluster; `establish` makes the cluster equal to it, and
says how far it is.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pvbus.core.kernel.codec import Row
from pvbus.core.kernel.installs import Install

DIGEST = "pvbus.dev/digest"
"""On a revision's object: the digest of its content."""


PARENT_LABEL = "pkg.crossplane.io/package"
"""On a revision's object: the name of its install, as Crossplane has it."""

SCOPE = "cluster"
"""The only scope there is: one API server has one lock."""

WROTE = "pvbus.dev/wrote-desired-state"
"""On a revision's object: the desiredState that establish wrote last, in the same request. A desiredState
that differs from it is a user's."""

Installer = Literal["pvbus", "others"]
"""Who installs: pvbus, or Crossplane and kapp-controller, for which pvbus decides."""

DependencyCondition = Literal[
    "OwnedPackageInstall",
    "FoundPackageInstall",
    "FoundPackageInstallRequiresDifferentVersion",
    "ExistingGVK",
    "UnknownPackage",
    "UnknownPackageVersion",
    "WaitingForDependencies",
]
"""What is known of a dependency. Source: carvel proposals, kapp-controller/004-dependency-resolution."""


OBJECT_OWNED = "ObjectOwned"
"""The reason of an install that is refused, as another one has one of its objects."""
UNVERIFIED = "SignatureNotVerified"
"""The reason of an install whose image must have a verified signature: pvbus verifies none."""

WAITING = "Waiting"
"""The reason of an install that cannot be decided on yet. One that is locked stays so meanwhile."""
ROLLED_BACK, STAYS_ACTIVE = "RolledBack", "StaysActive"
"""The reasons of an install whose active revision is not the one that is asked for."""
DEPENDENCY_CYCLE = "DependencyCycle"
"""The reason of an install that needs itself by what it needs. It is installed with the rest of the ring."""
SOURCE_FAILS = "SourceFails"
"""The reason of an install without a version whose source, or that of a dependency, cannot be read."""

LockStatus = Literal["locked", "waiting", "refused", "broken", "removed"]
Removal = Literal["orphan", "delete", "keep-if-used"]


class ScopedKey(NamedTuple):
    """`<scope>|<rest>`. rest: the okey of an object, a source, or a source and a digest."""

    scope: str
    rest: str

    def __str__(self) -> str:
        return f"{self.scope}|{self.rest}"

    @classmethod
    def parse(cls, text: str) -> "ScopedKey":
        scope, _, rest = text.partition("|")
        return cls(scope, rest)


class PackagingObject(Row, frozen=True, kw_only=True):
    """An object of the cluster that packages depend on, whole but for managedFields."""

    api_version: str
    kind: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any] = {}
    status: Mapping[str, Any] = {}


class SourceRow(Row, frozen=True, kw_only=True):
    """What was last seen of a source: an image repository or a folder of git.

    tags: every version or tag that it has. digests: what a tag that was asked for was then, "" while it is
    not known; all these contents are read. observed_at: seconds since 1970, 0 to observe it at once.
    message: why it could not be observed or pulled, "" if it was. refusals: by digest, why a content could
    not be pulled. failures: in a row. secrets: the pull secrets with which that was, so that others are tried
    at once. address: where that was, if not at the source itself. is_refused: the source said no, or has not
    answered for long.
    """

    tags: tuple[str, ...] = ()
    digests: Mapping[str, str] = {}
    observed_at: float = 0
    message: str = ""
    refusals: Mapping[str, str] = {}
    failures: int = 0
    secrets: tuple[str, ...] = ()
    address: str = ""
    is_refused: bool = False


class ContentRow(Row, frozen=True, kw_only=True):
    """What was read of a package's content, which never changes: its digest is in the key.

    meta: the package's own manifest. objects: the okeys of the objects that it brings, in the order of the
    content. provides: the API kinds that these define. defect: why it cannot be installed, "" if it can.
    """

    meta: Mapping[str, Any] = {}
    objects: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    defect: str = ""


class LockedRevision(Row, frozen=True, kw_only=True):
    """A revision of a package. Exactly one of a lock's row is active, once one was.

    name: of its object. revision: its number; the highest is the newest. source: where its content is pulled
    from by digest. objects: see `ContentRow`. asked: the generation of its object up to which what users
    changed in it was acted on; establish leaves a later change of theirs alone until this says so. held: what
    the install asked for when a user activated another revision, which stays active while it asks for that,
    "" for others.
    """

    name: str
    revision: int
    digest: str
    version: str = ""
    source: str = ""
    objects: tuple[str, ...] = ()
    is_active: bool = False
    asked: int = 0
    held: str = ""


class LockedDependency(Row, frozen=True, kw_only=True):
    """A dependency, and what meets it.

    name: of the item, if it has one. package, range: what is wanted; offer: the API kind that is wanted
    instead. condition: what is known. install: the rest of the key of the install that meets it, "" if none
    does. version: what is there. message: why it is not met, in words.
    """

    condition: DependencyCondition
    name: str = ""
    package: str = ""
    range: str = ""
    offer: str = ""
    install: str = ""
    version: str = ""
    is_optional: bool = False
    message: str = ""


class LockRow(Row, frozen=True, kw_only=True):
    """The decision for an install, and its order to establish. Key: scope and okey of the install.

    uid, generation: of the install that was decided on; "" and 0 for one that does not exist yet, and that
    establish creates. package: its name in the resolver. version, digest: what is to be installed, "" while
    nothing is. revisions: all that are kept, by number. dependencies: in the order of the package. holders:
    keys of the installs that it was created for, the owner first; () for one that a user made. template: the
    spec of an install that establish creates. status: `locked`: the objects are its own, it may be
    established; `waiting`: for its source, or an input; `refused`: it conflicts with what others have or
    need; `broken`: its package cannot be used; `removed`: the order to end it. reason, message: why, in a
    word and in words. removal: what a removal does with installs that only this one held. observed: the
    digest that the install asked for, and that was acted on last. account_annotations: of the ServiceAccount
    of what runs the package, as the owner has them; its own install has no field for them.
    """

    status: LockStatus
    uid: str = ""
    generation: int = 0
    package: str = ""
    version: str = ""
    digest: str = ""
    revisions: tuple[LockedRevision, ...] = ()
    dependencies: tuple[LockedDependency, ...] = ()
    holders: tuple[str, ...] = ()
    template: Mapping[str, Any] = {}
    reason: str = ""
    message: str = ""
    removal: Removal = "orphan"
    observed: str = ""
    account_annotations: Mapping[str, str] = {}


def holders_of(install: Install | None, row: LockRow | None) -> tuple[str, ...]:
    """Return the installs that an install was made for, the owner first; () for a user's.

    Without a row the lock was lost, and the object says whom it was made for. An object without its
    annotation is a user's: it was so from the start, or a user took it over.
    """
    if install is not None and not install.owner:
        return ()
    if row is not None:
        return row.holders
    return (install.owner,) if install is not None else ()


def is_ending(install: Install, row: LockRow | None, *, is_established: bool) -> bool:
    """Say whether the lock has ordered the end of an install that is still there.

    One that establish has released instead, because something needed it, is a user's from then on.
    is_established: whether establish has a row of it.
    """
    if row is None or row.status != "removed" or row.uid != install.uid:
        return False
    return bool(install.owner) or is_established


class EstablishedRevision(Row, frozen=True, kw_only=True):
    """How far a revision is in the cluster.

    uid: of its object. wrote: the desiredState that establish wrote last; another value in the object is the
    user's. state: `established`: it controls its objects; `released`: it owns them without control; `failed`:
    nothing was changed, the message says why. objects: the okeys of what it owns now.
    """

    name: str
    uid: str = ""
    wrote: Literal["", "Active", "Inactive"] = ""
    state: Literal["pending", "established", "released", "failed"] = "pending"
    objects: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""


Stage = Literal["", "fetch", "template", "deploy"]
"""Of the installation of a package of Carvel's, as kapp-controller tells them apart."""


class EstablishedRow(Row, frozen=True, kw_only=True):
    """What establish did for an install. Key: as in the lock.

    uid: of the install. order: the digest of the LockRow that this is the outcome of. is_healthy: its active
    revision is established and, where others install, they report success. created: establish made the
    install. stage: in which an install of Carvel's has failed.

    A PackageRepository of Carvel has such a row, too, without an order: its revision is its content.
    """

    uid: str = ""
    order: str = ""
    revisions: tuple[EstablishedRevision, ...] = ()
    is_healthy: bool = False
    is_created: bool = False
    reason: str = ""
    message: str = ""
    stage: Stage = ""
