"""How often a package may be installed: the installationType of Carvel's Packages."""

from collections.abc import Iterable, Mapping

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.platform.packaging.carvelfacts import (
    Catalogue,
    Facts,
    InstallationType,
    KnownPackage,
    Present,
)

_REASONS: Mapping[InstallationType, str] = {
    "onePerCluster": "OnePerCluster",
    "onePerNamespace": "OnePerNamespace",
    "noRestrictions": "",
}
_WHERE: Mapping[InstallationType, str] = {
    "onePerCluster": "once per cluster",
    "onePerNamespace": "once per namespace",
    "noRestrictions": "",
}


def admission(install: Install, packages: Iterable[KnownPackage], installs: Iterable[Install]) -> str:
    """Return why a new or changed install is not admitted, "" if it is.

    The type is that of the version which the install would get, and of the versions that are there. An
    install that is being deleted still counts, as its objects are still there.
    """
    catalogue = Catalogue(packages)
    key = ObjectKey.parse(install.okey)
    wanted = catalogue.installation(key.namespace, install.package, "", install)
    for other in sorted(installs, key=lambda each: each.okey):
        if other.okey == install.okey or other.package != install.package:
            continue
        where = ObjectKey.parse(other.okey)
        present = catalogue.installation(where.namespace, other.package, other.installed, other)
        text = _conflict(key, where, (wanted, present))
        if text:
            return f"{install.package} {text}"
    return ""


def _conflict(key: ObjectKey, other: ObjectKey, types: tuple[InstallationType, InstallationType]) -> str:
    for each in types:
        if each == "onePerCluster" or (each == "onePerNamespace" and key.namespace == other.namespace):
            return f"may be installed {_WHERE[each]}, and {other.namespace}/{other.name} is there"
    return ""


def refusals_of(
    facts: Facts, catalogue: Catalogue, presents: Iterable[Present]
) -> dict[str, tuple[str, str]]:
    """Return the installs that are one too many, each with a reason and a message.

    Of several the one stays that is installed, then the one that the lock has decided on, then the first.
    """
    ordered: dict[str, list[tuple[bool, bool, Present, InstallationType]]] = {}
    for each in presents:
        install, row = facts.installs.get(each.okey), facts.rows.get(each.okey)
        found = catalogue.installation(each.namespace, each.package, each.version, install)
        is_locked = row is not None and row.status == "locked"
        is_installed = bool(install and install.installed)
        ordered.setdefault(each.package, []).append((not is_installed, not is_locked, each, found))
    refused = {}
    for package, several in ordered.items():
        admitted: list[tuple[Present, InstallationType]] = []
        for _, _, each, found in sorted(several, key=lambda one: (one[0], one[1], one[2].okey)):
            reason = _first_conflict(each, found, admitted)
            if reason is None:
                admitted.append((each, found))
            else:
                refused[each.okey] = (reason[0], f"{package} {reason[1]}")
    return refused


def _first_conflict(
    present: Present, found: InstallationType, admitted: Iterable[tuple[Present, InstallationType]]
) -> tuple[str, str] | None:
    key = ObjectKey.parse(present.okey)
    for other, its in admitted:
        text = _conflict(key, ObjectKey.parse(other.okey), (found, its))
        if text:
            return _REASONS["onePerCluster" if "onePerCluster" in (found, its) else "onePerNamespace"], text
    return None
