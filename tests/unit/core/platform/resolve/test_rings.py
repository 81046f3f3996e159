"""Packages that need each other in a ring are granted, and a person is told of the ring, in both families."""

import pytest

from pvbus.core.kernel.packagerows import DEPENDENCY_CYCLE, LockedDependency, LockRow
from pvbus.core.platform.resolve.rings import NAMED_MAX, with_rings
from tests.unit.core.platform.packaging import carvelworld
from tests.unit.core.platform.resolve.world import REGISTRY, ResolveWorld, started

PKG = "pkg.crossplane.io/Provider||"


def row(*needs: str, status: str = "locked", reason: str = "", message: str = "") -> LockRow:
    dependencies = tuple(
        LockedDependency(condition="FoundPackageInstall", install=PKG + each) for each in needs
    )
    fields = {"status": status, "reason": reason, "message": message}
    return LockRow(**fields, dependencies=dependencies)  # type: ignore[arg-type]  # one of the statuses


SAID = "they are installed and removed as one"
CASES: dict[str, tuple[dict[str, LockRow | None], dict[str, str]]] = {
    "no ring": ({"a": row("b"), "b": row("c"), "c": row()}, {}),
    "two": (
        {"a": row("b"), "b": row("a"), "c": row("a")},
        {
            "a": f"Provider a needs Provider b, which needs Provider a: {SAID}",
            "b": f"Provider b needs Provider a, which needs Provider b: {SAID}",
        },
    ),
    "the shortest of two rings": (
        {"a": row("b", "c"), "b": row("c"), "c": row("a")},
        {
            "a": f"Provider a needs Provider c, which needs Provider a: {SAID}",
            "b": f"Provider b needs Provider c, which needs Provider a, which needs Provider b: {SAID}",
            "c": f"Provider c needs Provider a, which needs Provider c: {SAID}",
        },
    ),
    "a ring that has gone": (
        {"a": row("b", reason=DEPENDENCY_CYCLE, message="Provider a needs ..."), "b": row()},
        {"a": ""},
    ),
    "another reason stays": ({"a": row("b", reason="Orphaned"), "b": row("a", status="refused")}, {}),
    "what is not in the lock": ({"a": row("b"), "b": None}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_ring_is_named_from_each_of_its_installs(case: str) -> None:
    """A second look changes nothing."""
    rows, wanted = CASES[case]
    given = {PKG + name: each for name, each in rows.items()}
    changed = with_rings(given)
    found = {key.removeprefix(PKG): each.message for key, each in changed.items() if each is not None}
    assert found == wanted
    assert with_rings({**given, **changed}) == {}


def test_a_long_ring_is_not_named_whole() -> None:
    """The first ones and the last one are, and the rest is counted."""
    count = NAMED_MAX + 4
    rows: dict[str, LockRow | None] = {
        f"{PKG}p{number}": row(f"p{(number + 1) % count}") for number in range(count)
    }
    changed = with_rings(rows)[f"{PKG}p0"]
    assert changed is not None
    assert f"which needs 3 more, which needs Provider p0: {SAID}" in changed.message


def ring(world: ResolveWorld) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        needs = ({"provider": f"{REGISTRY}/{other}", "version": ">=1.0.0"},)
        world.registry.publish(f"{REGISTRY}/{name}", "v1.0.0", depends=needs)
    world.install("a", f"{REGISTRY}/a:v1.0.0")
    world.run()


def test_a_ring_of_crossplanes_packages_is_installed_and_told() -> None:
    """Both are locked; the rows name the ring, and it goes with it."""
    world = started()
    ring(world)
    first, second = world.row("a"), world.row("acme-b")
    assert (first.status, second.status) == ("locked", "locked")
    assert (first.reason, second.reason) == (DEPENDENCY_CYCLE, DEPENDENCY_CYCLE)
    assert "Provider a needs Provider acme-b, which needs Provider a" in first.message
    world.registry.publish(f"{REGISTRY}/a", "v1.1.0")
    world.install("a", f"{REGISTRY}/a:v1.1.0")
    world.run()
    assert world.row("a").reason == ""


def test_a_ring_of_carvels_packages_is_installed_and_told() -> None:
    packages = [carvelworld.package("app", "1.0.0", ["db"]), carvelworld.package("db", "1.0.0", ["app"])]
    world = carvelworld.InstallWorld(packages, [carvelworld.install("app")]).settle()
    found = world.row("app")
    assert (found.status, found.reason) == ("locked", DEPENDENCY_CYCLE)
    assert (
        "needs PackageInstall demo/db.test.carvel.dev.1.0.0, which needs PackageInstall demo/app"
        in found.message
    )
