"""Admission of PackageInstalls on the embedded API server: how often a package may be installed, and who may
change an install that was created for others.

On a real cluster there is no such hook: the lock refuses an install that is one too many, and a
ValidatingAdmissionPolicy protects what was created.
"""

import asyncio
from collections.abc import Iterator

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.packages import answers
from pvbus.core.kernel.installs import Install
from pvbus.core.platform.packaging.carvelfacts import KnownPackage
from pvbus.core.platform.packaging.carvelobjects import known_package
from pvbus.core.platform.packaging.protection import edit_problem
from pvbus.core.platform.packaging.reading import Problem, install_of
from pvbus.core.platform.packaging.restrictions import admission
from pvbus.ports.cluster import Kind, Object

PACKAGE_INSTALL = Kind("packaging.carvel.dev", "PackageInstall")
PACKAGE = Kind("data.packaging.carvel.dev", "Package")
_PLURAL = "packageinstalls.packaging.carvel.dev"
_ADMITTED_SECONDS = 10.0
"""How long an install that was admitted counts before it is visible in the store. A write that takes longer
than this is refused by nobody, and the lock refuses one of the two; one that fails counts so long in vain."""


class PackageInstallHooks:
    """The KindHooks of PackageInstall."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._admitted: dict[str, tuple[float, Install]] = {}

    async def on_create(self, obj: Object, *, user: str) -> Object:
        self._check(None, obj, user)
        return obj

    async def on_update(self, old: Object, new: Object, *, subresource: str, user: str) -> Object:
        if not subresource:
            self._check(old, new, user)
        return new

    async def on_delete(self, obj: Object, *, user: str) -> None:
        """Any PackageInstall may be deleted."""

    async def on_removed(self, obj: Object) -> None:
        """Do nothing: the lock has the rest."""

    def _check(self, old: Object | None, new: Object, user: str) -> None:
        if text := edit_problem(old, new, user):
            raise answers.forbidden(new["metadata"]["name"], text, plural=_PLURAL)
        install = install_of(new)
        if isinstance(install, Problem) or (old is not None and not _asks_anew(old, new)):
            return  # the lock reports what cannot be read
        if text := admission(install, self._packages(), self._installs(install)):
            raise answers.forbidden(new["metadata"]["name"], text, plural=_PLURAL)
        self._admitted[install.okey] = (asyncio.get_running_loop().time(), install)

    def _packages(self) -> Iterator[KnownPackage]:
        for obj in self._objects.list(PACKAGE):
            known = known_package(obj)
            if not isinstance(known, Problem):
                yield known

    def _installs(self, new: Install) -> list[Install]:
        """Return the installs of the store, and those that were admitted just now."""
        found = {}
        for obj in self._objects.list(PACKAGE_INSTALL):
            install = install_of(obj)
            if not isinstance(install, Problem):
                found[install.okey] = install
        now = asyncio.get_running_loop().time()
        self._admitted = {
            okey: (at, install)
            for okey, (at, install) in self._admitted.items()
            if now - at < _ADMITTED_SECONDS and okey not in found
        }
        found.update((okey, install) for okey, (_, install) in self._admitted.items() if okey != new.okey)
        return list(found.values())


def _asks_anew(old: Object, new: Object) -> bool:
    return bool(old.get("spec", {}).get("packageRef") != new.get("spec", {}).get("packageRef"))
