"""Objects that two packages bring, dependencies that exclude each other, and broken packages."""

import random
from typing import Any

import pytest

from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.packagerows import EstablishedRow
from pvbus.core.platform.packaging.carvelobjects import GLOBAL_NAMESPACE
from pvbus.core.platform.packaging.reading import INSTALL_GROUP
from tests.unit.core.platform.resolve.world import PKG, REGISTRY, ResolveWorld, install_key, started

PA, PB, PC = (f"{REGISTRY}/{name}" for name in ("pa", "pb", "pc"))
AWS = f"{REGISTRY}/aws"


def definition(name: str) -> dict[str, object]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}.example.org"},
        "spec": {
            "group": "example.org",
            "names": {"kind": name.capitalize()},
            "versions": [{"name": "v1", "served": True}],
        },
    }


def needs(package: str, version: str = "") -> dict[str, str]:
    return {"provider": package, **({"version": version} if version else {})}


def test_the_second_package_with_an_object_gets_no_revision_and_is_told_the_owner() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0", objects=(definition("buckets"), definition("keys")))
    world.registry.publish(PB, "v1.0.0", objects=(definition("users"), definition("keys")))
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    row = world.row("pb")
    assert (row.status, row.reason, row.revisions) == ("refused", "ObjectOwned", ())
    assert row.message == "CustomResourceDefinition keys.example.org belongs to Provider pa"
    assert world.row("pa").status == "locked"


def test_of_two_packages_that_come_together_the_older_install_wins_whole() -> None:
    for order in (("pa", "pb"), ("pb", "pa")):
        world = started()
        world.registry.publish(PA, "v1.0.0", objects=(definition("buckets"), definition("keys")))
        world.registry.publish(PB, "v1.0.0", objects=(definition("users"), definition("keys")))
        for name in order:
            world.install(name, f"{REGISTRY}/{name}:v1.0.0")
        world.run()
        assert [world.row(name).status for name in order] == ["locked", "refused"]


def test_the_other_one_is_decided_again_when_the_owner_is_gone_and_cleaned_up() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0", objects=(definition("keys"),))
    world.registry.publish(PB, "v1.0.0", objects=(definition("keys"),))
    first = world.install("pa", f"{PA}:v1.0.0")
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    world.report(first, EstablishedRow(is_healthy=True))
    world.remove(first)
    world.run()
    assert world.row("pa").status == "removed"
    assert world.row("pb").status == "refused"
    world.report(first, None)
    world.run()
    assert first not in world.lock
    assert world.row("pb").status == "locked"


def test_an_upgrade_that_takes_anothers_object_is_refused_and_the_old_revision_stays() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0", objects=(definition("keys"),))
    world.registry.publish(PB, "v1.0.0")
    world.registry.publish(PB, "v2.0.0", objects=(definition("keys"),))
    world.install("pa", f"{PA}:v1.0.0")
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    before = world.row("pb").revisions
    world.install("pb", f"{PB}:v2.0.0")
    world.run()
    assert world.row("pb").revisions == before
    assert world.row("pb").status == "refused"
    world.registry.publish(PA, "v2.0.0")
    world.install("pa", f"{PA}:v2.0.0", revisionHistoryLimit=1)
    world.run()
    assert world.row("pb").status == "refused", "the inactive revision of pa owns it still"
    world.registry.publish(PA, "v3.0.0", salt="new")
    world.install("pa", f"{PA}:v3.0.0")
    world.run()
    assert world.row("pb").status == "locked"
    assert world.row("pb").version == "v2.0.0"


def test_two_installs_of_one_package_are_one_too_many() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    world.install("pa", f"{PA}:v1.0.0")
    world.install("again", f"{PA}:v1.0.0")
    world.run()
    row = world.row("again")
    assert (row.status, row.reason) == ("refused", "DuplicatePackage")
    assert "Provider pa" in row.message


def test_what_is_missing_is_named() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0", depends=(needs(f"{REGISTRY}/none", ">=1.0.0"),))
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    row = world.row("pa")
    assert (row.status, row.revisions) == ("refused", ())
    assert f"{REGISTRY}/none" in row.message
    assert [each.condition for each in row.dependencies] == ["UnknownPackage"]
    assert f"{REGISTRY}/none >=1.0.0" in row.dependencies[0].message


def test_what_versions_may_bring_that_were_not_read_is_no_reason() -> None:
    """An API that nobody provides is said so, whatever else is pinned below its newest version."""
    world = started()
    for tag in ("v1.0.0", "v2.0.0"):
        world.registry.publish(PA, tag, salt=tag)
    world.registry.publish(PB, "v1.0.0", depends=({"crd": {"apiVersion": "absent.org/v1", "kind": "Nix"}},))
    world.install("pa", f"{PA}:v1.0.0")
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    assert world.row("pa").status == "locked"
    assert world.row("pb").message == (
        f"{PB} v1.0.0, pinned by you, needs API absent.org/v1 Nix, but no known package provides it"
    )


def test_a_conflict_names_all_of_its_parts() -> None:
    world = started()
    for version in ("v2.0.0", "v3.0.0"):
        world.registry.publish(AWS, version)
    world.registry.publish(PB, "v1.0.0", depends=(needs(AWS, "<3.0.0"),))
    world.registry.publish(PA, "v1.0.0", depends=(needs(AWS, ">=3.0.0"),))
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    row = world.row("pa")
    assert (row.status, row.reason) == ("refused", "Conflict")
    assert all(part in row.message for part in (PA, ">=3.0.0", PB, "<3.0.0"))
    assert world.row("pb").status == "locked"
    assert world.row("acme-aws").version == "v2.0.0"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("not: [yaml", "the file is not YAML"), ("kind: Provider\n", "it has no manifest")],
)
def test_a_broken_package_stops_only_what_needs_it(text: str, reason: str) -> None:
    world = started()
    bad = f"{REGISTRY}/bad"
    world.registry.publish(bad, "v1.0.0", text=text)
    world.registry.publish(PA, "v1.0.0", depends=(needs(bad),))
    world.registry.publish(PB, "v1.0.0", depends=(needs(AWS),))
    world.registry.publish(AWS, "v1.0.0")
    world.install("bad", f"{bad}:v1.0.0")
    for name in ("pa", "pb"):
        world.install(name, f"{REGISTRY}/{name}:v1.0.0")
    world.run()
    assert world.row("bad").status == "broken", reason
    assert world.row("pa").status == "refused"
    assert [world.row(name).status for name in ("pb", "acme-aws")] == ["locked", "locked"]
    world.registry.publish(PB, "v1.1.0", depends=(needs(AWS),), salt="new")
    world.install("pb", f"{PB}:v1.1.0")
    world.run()
    assert world.row("pb").version == "v1.1.0"


def test_an_install_that_cannot_be_read_is_broken_alone() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0")
    world.install("odd", "", revisionHistoryLimit="many")
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert (world.row("odd").status, world.row("odd").reason) == ("broken", "InvalidInstall")
    assert world.row("pa").status == "locked"


def unreadable(kind: str) -> tuple[str, dict[str, Any]]:
    """Return an install that cannot be read, and its key."""
    is_carvel = kind == "PackageInstall"
    group, version = (INSTALL_GROUP, "v1alpha1") if is_carvel else (PKG, "v1")
    spec = (
        {"packageRef": {"refName": 7}} if is_carvel else {"package": REGISTRY, "revisionHistoryLimit": "many"}
    )
    meta = {"name": "odd", "uid": "u", "generation": 3}
    obj = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": meta, "spec": spec}
    return okey(group, kind, "", "odd"), obj


@pytest.mark.parametrize("kind", ["Provider", "PackageInstall"])
def test_the_row_of_an_install_that_cannot_be_read_is_of_its_object_and_says_what_is_wrong(kind: str) -> None:
    """Without the uid establish would take it for one that is to be made, and nothing would be reported."""
    world = started()
    key, obj = unreadable(kind)
    world.put(key, obj)
    world.run()
    row = world.lock[key]
    assert (row.uid, row.generation) == ("u", 3)
    field = "spec.packageRef.refName" if kind == "PackageInstall" else "spec.revisionHistoryLimit"
    assert f"cannot be read: {field}: " in row.message
    world.put(key, {**obj, "metadata": {"name": "odd", "uid": "another", "generation": 1}})
    world.run()
    assert (world.lock[key].uid, world.lock[key].generation) == ("another", 1)


@pytest.mark.parametrize("kind", ["Provider", "PackageInstall"])
def test_an_install_that_cannot_be_read_and_is_deleted_is_ended(kind: str) -> None:
    """A finalizer holds it until establish is told to end it, so no mistake in its spec may stop that."""
    world = started()
    key, obj = unreadable(kind)
    world.put(key, obj)
    world.run()
    assert world.lock[key].status == "broken"
    world.put(key, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.run()
    assert world.lock[key].status == "removed"
    world.remove(key)
    world.run()
    assert key not in world.lock


def test_what_a_package_install_that_cannot_be_read_had_made_stays_for_it() -> None:
    """A mistake in its spec says nothing of what it needs, so nothing is given up until it is corrected."""
    world = started()
    for name, dependencies in (("app", [{"package": {"refName": "db.test"}}]), ("db", [])):
        spec = {"refName": f"{name}.test", "version": "1.0.0", "dependencies": dependencies}
        meta = {"name": f"{name}.test.1.0.0", "namespace": GLOBAL_NAMESPACE}
        kind = {"apiVersion": "data.packaging.carvel.dev/v1alpha1", "kind": "Package"}
        key = okey("data.packaging.carvel.dev", "Package", meta["namespace"], meta["name"])
        world.put(key, {**kind, "metadata": meta, "spec": spec})
    app, made = (okey(INSTALL_GROUP, "PackageInstall", "demo", name) for name in ("app", "db.test.1.0.0"))
    meta = {"name": "app", "namespace": "demo", "uid": "u"}
    obj = {
        "apiVersion": f"{INSTALL_GROUP}/v1alpha1",
        "kind": "PackageInstall",
        "metadata": {**meta, "annotations": {"pvbus.dev/dependency-removal": "delete"}},
        "spec": {"packageRef": {"refName": "app.test"}, "serviceAccountName": "default"},
    }
    world.put(app, obj)
    world.run()
    assert (world.lock[app].status, world.lock[made].holders) == ("locked", (app,))
    world.put(app, {**obj, "spec": {"packageRef": {"refName": 7}}})
    world.run()
    assert world.lock[app].status == "broken"
    assert (world.lock[made].status, world.lock[made].holders) == ("locked", (app,))


def test_a_dependency_whose_range_cannot_be_read_breaks_its_package_alone() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0", depends=(needs(AWS, "what you want"),))
    world.registry.publish(PB, "v1.0.0")
    for name in ("pa", "pb"):
        world.install(name, f"{REGISTRY}/{name}:v1.0.0")
    world.run()
    assert world.row("pa").status == "broken"
    assert world.row("pb").status == "locked"


ALLOWED = {"pvbus.dev/downgrades": "true"}


def test_an_upgrade_of_one_package_does_not_take_anothers_below_its_version() -> None:
    """Only the annotation of the install that would get the lower version allows that."""
    world = started()
    for version in ("v1.0.0", "v2.0.0"):
        world.registry.publish(PB, version, salt=version)
    world.registry.publish(PA, "v1.0.0", depends=(needs(PB, ">=v1.0.0"),))
    world.registry.publish(PA, "v2.0.0", depends=(needs(PB, "<v2.0.0"),))
    at_least_first = {"pvbus.dev/range": ">=v1.0.0"}
    world.install("my-b", PB, annotations=at_least_first)
    world.install("a", f"{PA}:v1.0.0")
    world.run()
    for annotations in ({}, ALLOWED):
        world.install("a", f"{PA}:v2.0.0", annotations=annotations)
        world.run()
        assert (world.row("a").status, world.row("a").version) == ("refused", "v1.0.0")
        assert f"{PB} v2.0.0 is installed, and downgrades are not allowed" in world.row("a").message
        assert (world.row("my-b").status, world.row("my-b").version) == ("locked", "v2.0.0")
    world.install("my-b", PB, annotations={**at_least_first, **ALLOWED})
    world.run()
    assert (world.row("a").version, world.row("my-b").version) == ("v2.0.0", "v1.0.0")


def test_what_was_made_for_an_install_alone_goes_back_with_it() -> None:
    """What another install needs, too, stays where it is, until that allows a downgrade."""
    world = started()
    for version in ("v1.0.0", "v2.0.0"):
        world.registry.publish(AWS, version, salt=version)
        world.registry.publish(PB, version, depends=(needs(AWS, f"={version}"),))
        world.registry.publish(PA, version, depends=(needs(PB, f"={version}"),))
    world.registry.publish(PC, "v1.0.0", depends=(needs(AWS, ">=v1.0.0"),))

    def versions() -> list[str]:
        return [world.row(name).version for name in ("pa", "acme-pb", "acme-aws")]

    for version in ("v2.0.0", "v1.0.0", "v2.0.0"):
        world.install("pa", f"{PA}:{version}")
        world.run()
        assert versions() == [version] * 3
    world.install("pc", f"{PC}:v1.0.0")
    world.run()
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert (world.row("pa").status, versions()) == ("refused", ["v2.0.0"] * 3)
    world.install("pc", f"{PC}:v1.0.0", annotations=ALLOWED)
    world.run()
    assert versions() == ["v1.0.0"] * 3


def hundred(seed: int) -> ResolveWorld:
    """Return a world in which 100 installs come at once, in groups that exclude each other: each package has
    the object of its group, and needs the group's version of a shared package."""
    rng = random.Random(seed)
    world = started()
    for version in range(10):
        world.registry.publish(AWS, f"v{version}.0.0")
    names = [f"p{index:03}" for index in range(100)]
    for index, name in enumerate(names):
        world.registry.publish(
            f"{REGISTRY}/{name}",
            "v1.0.0",
            objects=(definition(f"kind{index % 25}"), definition(f"own{index}")),
            depends=(needs(AWS, f"={index % 10}.0.0"),) if index % 3 == 0 else (),
        )
    rng.shuffle(names)
    for name in names:
        world.install(name, f"{REGISTRY}/{name}:v1.0.0")
        if rng.random() < 0.3:  # some decisions come in between
            for _ in range(rng.randrange(8)):
                if world.dirty:
                    key = rng.choice(world.dirty)
                    world.dirty.remove(key)
                    world.step(key)
    while world.dirty:
        key = rng.choice(world.dirty)
        world.dirty.remove(key)
        world.step(key)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_of_a_hundred_installers_at_once_each_is_granted_whole_or_not_at_all(seed: int) -> None:
    world = hundred(seed)
    owners: dict[str, str] = {}
    for key, row in world.lock.items():
        assert row.status in ("locked", "refused"), row
        assert bool(row.revisions) == (row.status == "locked"), "refused ones have no revision"
        for revision in row.revisions:
            for each in revision.objects:
                assert owners.setdefault(each, key) == key, "an object has two owners"


@pytest.mark.slow
def test_a_hundred_installers_at_once_get_a_result_as_if_they_came_one_by_one() -> None:
    world = hundred(0)
    again = started()
    again.registry = world.registry
    granted = [key for key, row in world.lock.items() if row.status == "locked" and not row.holders]
    refused = [key for key, row in world.lock.items() if row.status == "refused"]
    assert len(granted) + len(refused) == 100
    assert granted
    assert refused
    for key in (*granted, *refused):
        name = key.rpartition("|")[2]
        again.install(name, f"{REGISTRY}/{name}:v1.0.0")
        again.run()
    assert {k: (r.status, r.digest) for k, r in again.lock.items()} == {
        k: (r.status, r.digest) for k, r in world.lock.items()
    }


def test_all_rows_of_a_decision_are_one_step() -> None:
    world = started()
    world.registry.publish(PA, "v1.0.0", depends=(needs(AWS),))
    world.registry.publish(AWS, "v1.0.0")
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    locking = [step for step in world.steps if any(put.topic == "pvbus.lock" for put in step)]
    written = {put.key for put in locking[-1]}
    assert {f"cluster|{install_key('pa')}", f"cluster|{install_key('acme-aws')}"} <= written
