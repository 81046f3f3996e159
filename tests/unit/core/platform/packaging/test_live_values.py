"""What an install says of its dependencies is passed on to these as it is now, not as it once was."""

from typing import Any

from pvbus.core.kernel.effects import Update
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.establish import installs
from pvbus.core.platform.packaging.carvelobjects import facts_of
from pvbus.core.platform.packaging.reading import OWNER
from pvbus.core.platform.resolve.carvel import decided_rows

VALUES = [{"name": "leaf", "secretRef": {"name": "leaf-values"}}]


def package(name: str, *dependencies: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": f"{name}.1.0.0", "namespace": "team"},
        "spec": {"refName": name, "version": "1.0.0", "dependencies": list(dependencies)},
    }


def install(account: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {"name": "root", "namespace": "team", "uid": "u", "generation": 1},
        "spec": {
            "packageRef": {"refName": "root.c.dev", "versionSelection": {"constraints": "1.0.0"}},
            "serviceAccountName": account,
            "dependencies": {"values": values},
        },
    }


def decided(rows: dict[str, LockRow], account: str, values: list[dict[str, Any]]) -> dict[str, LockRow]:
    leaf = {"name": "leaf", "packageRef": {"refName": "leaf.c.dev"}}
    given = [package("root.c.dev", leaf), package("leaf.c.dev"), install(account, values)]
    return decided_rows(facts_of(given).facts._replace(rows=rows))


def child_of(rows: dict[str, LockRow]) -> LockRow:
    (child,) = [row for row in rows.values() if row.holders]
    return child


def test_values_and_the_account_of_a_dependency_follow_its_owner() -> None:
    rows = decided({}, "first", VALUES)
    former = child_of(rows).template
    assert (former["serviceAccountName"], former["values"]) == (
        "first",
        [{"secretRef": {"name": "leaf-values"}}],
    )
    rows = decided(rows, "second", [])
    assert child_of(rows).template["serviceAccountName"] == "second"
    assert "values" not in child_of(rows).template
    assert child_of(decided(rows, "first", VALUES)).template == former


def test_values_that_the_owner_takes_out_leave_the_install_of_the_dependency() -> None:
    key = ObjectKey("packaging.carvel.dev", "PackageInstall", "team", "leaf")
    row = LockRow(
        status="locked",
        holders=("packaging.carvel.dev/PackageInstall|team|root",),
        template={"packageRef": {"refName": "leaf.c.dev"}},
    )
    meta = {"uid": "u", "annotations": {OWNER: "PackageInstall/root"}}
    spec = {"packageRef": {"refName": "leaf.c.dev"}, "values": [1], "syncPeriod": "1m"}
    live = {"metadata": meta, "spec": spec}
    steps = installs.update(key, row, live)
    next(steps)
    written = steps.send(live)
    assert isinstance(written, Update)
    assert written[1]["spec"] == {"packageRef": {"refName": "leaf.c.dev"}, "syncPeriod": "1m"}
