"""What is known of Carvel's packages and installs when a decision is made, and which installs count."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import LockRow, holders_of, is_ending
from pvbus.core.platform.solver.languages import LANGUAGES, VersionError, highest
from pvbus.core.platform.solver.model import Candidate, Policy
from pvbus.core.platform.solver.semver import ConstraintError

GROUP, KIND = "packaging.carvel.dev", "PackageInstall"
InstallationType = Literal["noRestrictions", "onePerNamespace", "onePerCluster"]
ORPHANED = "Orphaned"
"""The reason in the row of an install that was created for others, and is a user's from now on."""


class KnownPackage(NamedTuple):
    """A Package of Carvel: one version.

    namespace: where it may be used, "" for everywhere
    name: its refName
    fields: each API kind, as `api` writes it, of which its dependencies need fields, with these fields, for
        example `spec.replicas`
    is_misnamed: whether its object is not named by refName and version, so that nothing finds it
    """

    namespace: str
    name: str
    candidate: Candidate
    installation: InstallationType = "noRestrictions"
    fields: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_misnamed: bool = False


class Facts(NamedTuple):
    """The input of a decision.

    installs: okey -> install of Carvel's family
    rows: okey -> row of the present lock
    offers: the API kinds that are served, as `api` writes them
    schemas: served API kind -> its openAPIV3Schema, where that is known
    platforms: name and version of each platform
    established: the okeys for which establish has a row, so that an order to end them stays
    unreadable: the okeys of installs that cannot be read, and hold what they held
    """

    installs: Mapping[str, Install]
    packages: tuple[KnownPackage, ...] = ()
    rows: Mapping[str, LockRow] = {}
    offers: frozenset[str] = frozenset()
    schemas: Mapping[str, Mapping[str, Any]] = {}
    platforms: tuple[tuple[str, str], ...] = ()
    established: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()
    policy: Policy = Policy()


class Present(NamedTuple):
    """An install that is there, or will be.

    node: the name of its package in the resolver's problem
    version: the version that is there, or the lock's version of an install that pvbus creates; "" if unknown
    holders: the installs that it was created for, the owner first; () for a user's
    """

    okey: str
    namespace: str
    name: str
    package: str
    node: str
    version: str
    holders: tuple[str, ...] = ()

    @property
    def is_created(self) -> bool:
        return bool(self.holders)


def is_needed_again(facts: Facts, okey: str) -> bool:
    """Say whether a person has deleted an install that others need, and it is not gone yet.

    Until it is gone, with its objects, it has the name that the next one gets, so nothing takes its place.
    """
    install, row = facts.installs.get(okey), facts.rows.get(okey)
    if row is None or not row.holders:
        return False
    if install is None:
        return row.status == "removed" and okey in facts.established
    return install.is_deleted and bool(install.owner)


def presents_of(facts: Facts) -> tuple[Present, ...]:
    """Return the installs that count, by namespace and package: those that are there and not being deleted,
    those that the lock creates, and those that a person has deleted while others need them.

    Several of one package in a namespace are several nodes: the first has the package's name. One that was
    created for others is first, then one that has a version.
    """
    found = []
    for okey, install in facts.installs.items():
        row = facts.rows.get(okey)
        if install.is_deleted or is_ending(install, row, is_established=okey in facts.established):
            continue
        holders = holders_of(install, row)
        version = _version_of(install, row) if holders else _known(install.installed)
        found.append(_present(okey, install.package, version, holders))
    for okey, row in facts.rows.items():
        if okey not in facts.installs and row.holders and row.template and row.status != "removed":
            found.append(_present(okey, row.package, row.version, row.holders))
    taken = {(each.namespace, each.package) for each in found}
    for okey, row in facts.rows.items():
        if is_needed_again(facts, okey) and (ObjectKey.parse(okey).namespace, row.package) not in taken:
            found.append(_present(okey, row.package, row.version, row.holders))
    found.sort(
        key=lambda each: (each.namespace, each.package, not each.is_created, not each.version, each.name)
    )
    return _numbered(found)


def _version_of(install: Install, row: LockRow | None) -> str:
    """Return the version of a created install: of the lock, else of its status, else of its spec."""
    return (row.version if row else "") or _known(install.installed) or _known(install.range)


def _known(version: str) -> str:
    """Return a version, "" for a text that is none: a status and a spec are what a person writes, too."""
    return version if version_key(version) is not None else ""


def _present(okey: str, package: str, version: str, holders: tuple[str, ...]) -> Present:
    key = ObjectKey.parse(okey)
    return Present(okey, key.namespace, key.name, package, package, version, holders)


def _numbered(presents: Iterable[Present]) -> tuple[Present, ...]:
    found: list[Present] = []
    for each in presents:
        before = found[-1] if found else None
        is_first = before is None or (before.namespace, before.package) != (each.namespace, each.package)
        found.append(each if is_first else each._replace(node=f"{each.package} of {each.name}"))
    return tuple(found)


class Catalogue:
    """The packages that each namespace can use: its own, and those of everywhere.

    One whose object has another name hides none that has the right one.
    """

    def __init__(self, packages: Iterable[KnownPackage]) -> None:
        self._known: dict[str, dict[str, dict[str, KnownPackage]]] = {}
        for each in sorted(packages, key=lambda package: not package.is_misnamed):
            names = self._known.setdefault(each.namespace, {})
            names.setdefault(each.name, {})[each.candidate.version] = each

    def names(self, namespace: str) -> list[str]:
        return sorted({*self._known.get("", {}), *self._known.get(namespace, {})})

    def versions(self, namespace: str, name: str) -> dict[str, KnownPackage]:
        """Return the versions of a package; a namespace's own hides the same version of everywhere."""
        everywhere, own = (self._known.get(each, {}).get(name, {}) for each in ("", namespace))
        hidden = {version for version, package in own.items() if package.is_misnamed} & everywhere.keys()
        return {**everywhere, **{version: own[version] for version in own.keys() - hidden}}

    def admitted(self, namespace: str, install: Install) -> list[KnownPackage]:
        """Return the versions of its package that an install asks for."""
        known = self.versions(namespace, install.package)
        return [
            each
            for version, each in known.items()
            if highest((version,), install.range, install.prereleases) is not None
        ]

    def installation(
        self, namespace: str, package: str, version: str, install: Install | None
    ) -> InstallationType:
        """Return the type of a version; without one, of the version that the install would get."""
        known = self.versions(namespace, package)
        if not version and install is not None:
            try:
                version = highest(known, install.range, install.prereleases) or ""
            except ConstraintError:
                return "noRestrictions"
        return known[version].installation if version in known else "noRestrictions"


def version_key(text: str) -> object | None:
    """Return what orders versions of Carvel's, None if it is no version."""
    try:
        return LANGUAGES["carvel"].parse_version(text).key
    except VersionError:
        return None
