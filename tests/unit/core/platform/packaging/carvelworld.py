"""Packages and installs of Carvel for tests, read from objects as the cluster has them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey, okey
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.packaging.carvelfacts import Facts, KnownPackage
from pvbus.core.platform.packaging.carvelobjects import known_package
from pvbus.core.platform.packaging.reading import Problem, install_of
from pvbus.core.platform.resolve.carvel import decided_rows

GROUP, KIND = "packaging.carvel.dev", "PackageInstall"
OWNER = "kapp-controller.carvel.dev/owner"
REMOVAL = "pvbus.dev/dependency-removal"
STRATEGY = "pvbus.dev/dependency-strategy"
MAIN_API = {"apiVersion": "some.api.org/v1", "kind": "MainAPI"}
MAIN_OFFER = "API some.api.org/v1 MainAPI"


def full(name: str) -> str:
    """Return the refName of a short name."""
    return name if "." in name else f"{name}.test.carvel.dev"


def needs(text: str) -> dict[str, Any]:
    """Return a dependency: `pkg1 >=1.0.0`, and `pkg1 >=1.0.0?` for an optional one."""
    name, _, version = text.removesuffix("?").partition(" ")
    found: dict[str, Any] = {"package": {"refName": full(name)}}
    if version:
        found["package"]["version"] = version
    return {**found, "optional": True} if text.endswith("?") else found


def package(
    name: str,
    version: str = "1.0.0",
    dependencies: Sequence[str | Mapping[str, Any]] = (),
    *,
    provides: Sequence[Mapping[str, Any]] = (),
    installation: str = "",
    namespace: str = "kapp-controller-packaging-global",
    annotations: Mapping[str, str] | None = None,
) -> KnownPackage:
    """Return a Package, by default of every namespace."""
    spec: dict[str, Any] = {"refName": full(name), "version": version}
    if dependencies:
        spec["dependencies"] = [needs(each) if isinstance(each, str) else each for each in dependencies]
    if provides:
        spec["provides"] = list(provides)
    if installation:
        spec["installationType"] = installation
    found = known_package(
        {
            "apiVersion": "data.packaging.carvel.dev/v1alpha1",
            "kind": "Package",
            "metadata": {
                "name": f"{full(name)}.{version}",
                "namespace": namespace,
                "annotations": dict(annotations or {}),
            },
            "spec": spec,
        }
    )
    assert not isinstance(found, Problem), found
    return found


def install(
    name: str,
    package_name: str = "",
    constraints: str = "",
    *,
    namespace: str = "demo",
    dependencies: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    installed: str = "",
    **spec: Any,
) -> Install:
    """Return a PackageInstall. Its uid is made of its name."""
    reference: dict[str, Any] = {"refName": full(package_name or name)}
    if constraints:
        reference["versionSelection"] = {"constraints": constraints}
    made: dict[str, Any] = {"serviceAccountName": "default-ns-sa", "packageRef": reference, **spec}
    if dependencies:
        made["dependencies"] = dependencies
    found = install_of(
        {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": KIND,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{namespace}-{name}",
                "generation": 1,
                "annotations": dict(annotations or {}),
            },
            "spec": made,
            "status": {"version": installed} if installed else {},
        }
    )
    assert not isinstance(found, Problem), found
    return found


def key(name: str, namespace: str = "demo") -> str:
    return okey(GROUP, KIND, namespace, name)


class InstallWorld:
    """A cluster that carries out what is decided, at once and without failure."""

    def __init__(
        self, packages: Sequence[KnownPackage], installs: Sequence[Install] = (), **facts: Any
    ) -> None:
        self.packages = list(packages)
        self.installs = {each.okey: each for each in installs}
        self.rows: dict[str, LockRow] = {}
        self.facts = facts
        self.deleted: list[str] = []
        self.generation = 0

    def decide(self) -> dict[str, LockRow]:
        """Decide once; a decision of the result must be the same."""
        facts = Facts(self.installs, tuple(self.packages), self.rows, **self.facts)
        self.rows = decided_rows(facts)
        assert decided_rows(facts._replace(rows=self.rows)) == self.rows
        return self.rows

    def settle(self) -> "InstallWorld":
        """Decide and carry out, until nothing changes."""
        for _ in range(30):
            before = (dict(self.installs), dict(self.rows))
            self.decide()
            self._establish()
            if before == (self.installs, self.rows):
                return self
        raise AssertionError("the decisions do not settle")

    def _establish(self) -> None:
        for okey_, row in self.rows.items():
            where = ObjectKey.parse(okey_)
            present = self.installs.get(okey_)
            if row.status == "removed":
                if present is not None:
                    assert row.uid == present.uid, "an order to end an install names its uid"
                    self.deleted.append(okey_)
                    del self.installs[okey_]
            elif row.holders and row.template:
                if present is None:
                    self.generation += 1
                    present = Install(okey_, "carvel", f"made-{self.generation}", 1, row.package)
                selection = row.template["packageRef"]["versionSelection"]
                self.installs[okey_] = present._replace(
                    owner=row.holders[0],
                    target=where.namespace,
                    language="carvel",
                    range=selection["constraints"],
                    prereleases=() if "prereleases" in selection else None,
                    service_account=row.template.get("serviceAccountName", ""),
                    installed=row.version,
                )
            elif present is not None and row.status == "locked":
                owner = present.owner if row.holders else ""
                self.installs[okey_] = present._replace(owner=owner, installed=row.version)

    def add(self, added: Install) -> "InstallWorld":
        self.installs[added.okey] = added
        return self

    def remove(self, name: str, namespace: str = "demo") -> "InstallWorld":
        """A user deletes an install."""
        del self.installs[key(name, namespace)]
        return self

    def names(self) -> dict[str, str]:
        """Return the versions that are decided, by name of install."""
        return {
            ObjectKey.parse(each).name: row.version
            for each, row in self.rows.items()
            if row.status == "locked"
        }

    def row(self, name: str, namespace: str = "demo") -> LockRow:
        return self.rows[key(name, namespace)]

    def holders(self, name: str, namespace: str = "demo") -> list[str]:
        return [ObjectKey.parse(each).name for each in self.row(name, namespace).holders]

    def conditions(self, name: str, namespace: str = "demo") -> list[str]:
        return [each.condition for each in self.row(name, namespace).dependencies]
