"""Laws of Carvel's installs that exist for others: whatever is installed, removed and published in turn.

Each case is made from a seed, which is the name of the test.
"""

import os
from random import Random
from typing import Any

import pytest

from pvbus.core.kernel.installs import Install
from pvbus.core.platform.packaging.carvelfacts import Facts, KnownPackage
from pvbus.core.platform.resolve.carvel import decided_rows
from pvbus.core.platform.solver.languages import CARVEL
from tests.unit.core.platform.packaging.carvelworld import (
    REMOVAL,
    STRATEGY,
    InstallWorld,
    full,
    install,
    key,
    package,
)

NAMES = ("a", "b", "c", "d", "e")
VERSIONS = ("1.0.0", "1.1.0", "2.0.0")
RANGES = ("", "", ">=1.0.0", "<2.0.0", ">=2.0.0", "1.1.0")
SEEDS = range(int(os.environ.get("PVBUS_TEST_CARVEL", "15")))


def packages(rng: Random) -> list[KnownPackage]:
    """Packages that need each other, in cycles as well."""
    found = []
    for name in NAMES:
        for version in rng.sample(VERSIONS, rng.randint(1, 3)):
            needs: list[Any] = []
            for other in rng.sample(NAMES, rng.randint(0, 2)):
                if other != name:
                    needs.append(f"{other} {rng.choice(RANGES)}".rstrip() + rng.choice(("", "", "?")))
            kind = rng.choice(("", "", "", "", "onePerNamespace", "onePerCluster"))
            found.append(package(name, version, needs, installation=kind))
    return found


def wish(rng: Random) -> Install:
    """An install of a user's, under one of few names."""
    return install(
        f"user-{rng.randint(0, 3)}",
        rng.choice(NAMES),
        rng.choice(RANGES),
        namespace=rng.choice(("demo", "demo", "other")),
        dependencies={"managedBy": rng.choice(("Auto", "Auto", "User"))},
        annotations={
            REMOVAL: rng.choice(("orphan", "delete", "keep-if-used")),
            STRATEGY: rng.choice(("direct", "direct", "closure")),
        },
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_what_exists_for_others_has_a_holder_or_is_a_users(seed: int) -> None:
    """After each install and removal; no install of a user's is ever deleted, and versions fit."""
    rng = Random(seed)
    world = InstallWorld(packages(rng))
    users: set[str] = set()
    for _ in range(rng.randint(2, 7)):
        present = sorted(users)
        if present and rng.random() < 0.4:
            removed = rng.choice(present)
            del world.installs[removed]
            users.discard(removed)
        else:
            added = wish(rng)
            if added.okey not in world.installs:
                world.add(added)
                users.add(added.okey)
        if rng.random() < 0.5:
            world.settle()
        else:
            world.decide()
        _check(world, users)
    world.settle()
    _check(world, users)


def _check(world: InstallWorld, users: set[str]) -> None:
    assert users <= set(world.installs)
    assert not users & set(world.deleted)
    for okey, row in world.rows.items():
        if okey in users:
            assert not row.holders
            assert row.status != "removed"
        if row.status == "removed":
            continue
        for holder in row.holders:
            assert world.rows[holder].status != "removed"
            assert holder in world.installs or world.rows[holder].template
        if row.status == "locked" and okey in users:
            _check_dependencies(world, okey)


def _check_dependencies(world: InstallWorld, okey: str) -> None:
    for each in world.rows[okey].dependencies:
        assert each.is_optional or each.install or each.condition == "ExistingGVK"
        if each.install:
            other = world.rows[each.install]
            assert (other.version, other.package) == (each.version, each.package)
            if each.range:
                assert CARVEL.parse_range(each.range).matches(CARVEL.parse_version(each.version))


def _wishes(rng: Random) -> list[Install]:
    found = {each.okey: each for each in (wish(rng) for _ in range(rng.randint(1, 5)))}
    return list(found.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_of_installs_that_delete(seed: int) -> None:
    """If every user's install says that what only it held goes, everything goes with the last of them."""
    rng = Random(seed)
    known, wanted = packages(rng), _wishes(rng)
    world = InstallWorld(known, [each._replace(removal="delete") for each in wanted]).settle()
    for each in wanted:
        del world.installs[each.okey]
        world.settle()
    assert world.installs == {}
    assert world.rows == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_the_input_has_no_meaning(seed: int) -> None:
    """Equal facts in another order make an equal lock."""
    rng = Random(seed)
    known, wanted = packages(rng), _wishes(rng)
    first = decided_rows(Facts({each.okey: each for each in wanted}, tuple(known)))
    rng.shuffle(known)
    rng.shuffle(wanted)
    assert first == decided_rows(Facts({each.okey: each for each in wanted}, tuple(known)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_namespace_has_a_created_install_of_a_package_once(seed: int) -> None:
    """However many installs need it."""
    rng = Random(seed)
    wanted = [install(f"user-{i}", NAMES[i % len(NAMES)]) for i in range(rng.randint(2, 5))]
    world = InstallWorld(packages(rng), wanted).settle()
    made = [row.package for row in world.rows.values() if row.holders]
    assert len(made) == len(set(made))
    assert all(key(f"user-{i}") in world.installs for i in range(len(wanted)))
    assert set(made) <= {full(name) for name in NAMES}
