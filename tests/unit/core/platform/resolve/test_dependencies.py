"""Installs that are created for dependencies: what they inherit, who holds them, and when they go."""

from typing import Any

import pytest

from pvbus.core.kernel.packagerows import EstablishedRow
from pvbus.core.platform.resolve.plans import Settings
from pvbus.core.platform.solver.model import Policy
from tests.unit.core.platform.resolve.world import REGISTRY, ResolveWorld, install_key, started

AWS, NET, APP = (f"{REGISTRY}/{name}" for name in ("aws", "network", "app"))


def needs(package: str, version: str = ">=1.0.0") -> dict[str, str]:
    return {"provider": package, "version": version}


def network(world: ResolveWorld, removal: str = "orphan", **spec: Any) -> None:
    world.registry.publish(AWS, "v1.0.0")
    world.registry.publish(NET, "v1.0.0", depends=(needs(AWS),))
    world.install("network", f"{NET}:v1.0.0", annotations={"pvbus.dev/dependency-removal": removal}, **spec)
    world.run()


def test_a_dependency_gets_an_install_of_the_kind_that_is_asked_for() -> None:
    world = started()
    world.registry.publish(AWS, "v1.0.0", kind="Function")
    depends = ({"apiVersion": "pkg.crossplane.io/v1", "kind": "Function", "package": AWS, "version": "*"},)
    world.registry.publish(NET, "v1.0.0", kind="Configuration", depends=depends)
    world.install("network", f"{NET}:v1.0.0", "Configuration")
    world.run()
    row = world.row("acme-aws", "Function")
    assert (row.uid, row.holders) == ("", (install_key("network", "Configuration"),))
    assert row.template["package"] == f"{AWS}:v1.0.0"


def with_chain() -> ResolveWorld:
    """Install `app`, which needs `network`, which needs `aws`."""
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.registry.publish(NET, "v1.0.0", depends=(needs(AWS),))
    world.registry.publish(APP, "v1.0.0", depends=(needs(NET),))
    world.install("app", f"{APP}:v1.0.0")
    world.run()
    return world


def test_a_whole_chain_is_locked_in_one_step() -> None:
    world = with_chain()
    assert world.row("acme-network").holders == (install_key("app"),)
    assert world.row("acme-aws").holders == (install_key("acme-network"),)
    assert [each.condition for each in world.row("app").dependencies] == ["OwnedPackageInstall"]


def test_pull_secrets_and_policies_pass_down_to_a_created_install() -> None:
    world = started()
    network(
        world,
        packagePullSecrets=[{"name": "login"}],
        packagePullPolicy="Always",
        revisionHistoryLimit=3,
        runtimeConfigRef={"name": "irsa"},
    )
    assert world.row("acme-aws").template == {
        "package": f"{AWS}:v1.0.0",
        "runtimeConfigRef": {"name": "irsa"},
        "packagePullSecrets": [{"name": "login"}],
        "packagePullPolicy": "Always",
        "revisionHistoryLimit": 3,
    }


def test_an_install_that_is_there_is_used_and_nothing_passes_down() -> None:
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.install("mine", f"{AWS}:v1.0.0")
    world.run()
    network(world, packagePullSecrets=[{"name": "login"}])
    assert world.row("mine").template == {}
    assert world.row("mine").holders == ()
    (need,) = world.row("network").dependencies
    assert (need.condition, need.install) == ("FoundPackageInstall", install_key("mine"))
    assert install_key("acme-aws") not in world.lock


def test_a_dependency_by_digest_gets_exactly_that_content() -> None:
    world = started()
    digest = world.registry.publish(AWS, "v1.0.0")
    world.registry.publish(AWS, "v1.1.0", salt="new")
    world.registry.publish(NET, "v1.0.0", depends=(needs(AWS, digest),))
    world.install("network", f"{NET}:v1.0.0")
    world.run()
    assert world.row("network").status == "locked"
    assert world.active("acme-aws") == digest


def test_a_dependency_on_an_api_is_met_by_the_cluster() -> None:
    world = started()
    depends = ({"crd": {"apiVersion": "example.org/v1", "kind": "Bucket"}},)
    world.registry.publish(NET, "v1.0.0", depends=depends)
    world.install("network", f"{NET}:v1.0.0")
    world.run()
    assert world.row("network").status == "refused"
    assert "example.org/v1 Bucket" in world.row("network").dependencies[0].message
    key = "apiextensions.k8s.io/CustomResourceDefinition||buckets.example.org"
    world.put(
        key,
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "buckets.example.org"},
            "spec": {
                "group": "example.org",
                "names": {"kind": "Bucket"},
                "versions": [{"name": "v1", "served": True}],
            },
        },
    )
    world.run()
    assert [each.condition for each in world.row("network").dependencies] == ["ExistingGVK"]


@pytest.mark.parametrize(("version", "status"), [("2.1.0", "locked"), ("1.9.0", "refused")])
def test_a_dependency_on_the_platform_is_held_against_its_version(version: str, status: str) -> None:
    world = started(Settings(platforms=(("crossplane", version),)))
    world.registry.publish(NET, "v1.0.0", crossplane=">=2.0.0")
    world.install("network", f"{NET}:v1.0.0")
    world.run()
    assert world.row("network").status == status


def test_the_platform_is_left_out_of_account_if_the_install_says_so() -> None:
    world = started(Settings(platforms=(("crossplane", "1.9.0"),)))
    world.registry.publish(NET, "v1.0.0", crossplane=">=2.0.0")
    world.install("network", f"{NET}:v1.0.0", ignoreCrossplaneConstraints=True)
    world.run()
    assert world.row("network").status == "locked"


def test_a_platform_of_which_no_version_is_known_is_refused_with_both_ways_out() -> None:
    world = started()
    world.registry.publish(NET, "v1.0.0", crossplane=">=v1.14.0")
    world.install("network", f"{NET}:v1.0.0")
    world.run()
    row = world.row("network")
    assert row.status == "refused"
    assert "no version of crossplane is known" in row.message
    assert "crossplane=<version> in PVBUS_PLATFORMS, or ignoreCrossplaneConstraints: true" in row.message


def test_dependencies_are_left_out_of_account_if_the_install_says_so() -> None:
    world = started()
    network(world, skipDependencyResolution=True)
    assert world.row("network").status == "locked"
    assert world.row("network").dependencies == ()
    assert install_key("acme-aws") not in world.lock


def test_a_second_holder_keeps_what_the_first_one_leaves() -> None:
    world = started()
    network(world)
    world.registry.publish(APP, "v1.0.0", depends=(needs(AWS),))
    world.install("app", f"{APP}:v1.0.0")
    world.run()
    assert world.row("acme-aws").holders == (install_key("network"), install_key("app"))
    world.remove(install_key("network"))
    world.run()
    assert world.row("acme-aws").holders == (install_key("app"),)


@pytest.mark.parametrize(
    ("removal", "status", "holders"),
    [
        ("orphan", "locked", ()),
        ("delete", "removed", ("network",)),
        ("keep-if-used", "removed", ("network",)),
    ],
)
def test_what_only_one_install_held_stays_or_goes_as_it_says(
    removal: str, status: str, holders: tuple[str, ...]
) -> None:
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.registry.publish(NET, "v1.0.0", depends=(needs(AWS),))
    world.install("network", f"{NET}:v1.0.0", annotations={"pvbus.dev/dependency-removal": removal})
    world.run()
    child = world.install("acme-aws", f"{AWS}:v1.0.0", annotations={"pvbus.dev/owner": "Provider/network"})
    world.report(child, EstablishedRow(is_healthy=True))
    world.run()
    assert world.row("acme-aws").uid
    world.remove(install_key("network"))
    world.run()
    row = world.row("acme-aws")
    assert (row.status, row.holders) == (status, tuple(install_key(each) for each in holders))


def test_what_a_user_says_of_removal_is_so_of_the_whole_chain_at_once() -> None:
    """The install may be deleted before the next decision: what it needs by others was left behind then."""
    world = with_chain()
    for name, owner in (("acme-network", "app"), ("acme-aws", "acme-network")):
        package = world.row(name).template["package"]
        world.install(name, package, annotations={"pvbus.dev/owner": f"Provider/{owner}"})
    world.run()
    world.install("app", f"{APP}:v1.0.0", annotations={"pvbus.dev/dependency-removal": "delete"})
    world.step("cluster")
    assert [world.row(each).removal for each in ("app", "acme-network", "acme-aws")] == ["delete"] * 3
    for name in ("app", "acme-network"):
        world.remove(install_key(name))
        world.run()
    assert world.row("acme-aws").status == "removed"


def test_an_install_that_was_released_and_not_removed_is_decided_on_like_a_users() -> None:
    """Establish keeps what something needs after all, without an owner."""
    world = started()
    world.registry.publish(AWS, "v1.0.0")
    world.registry.publish(NET, "v1.0.0", depends=(needs(AWS),))
    world.install("network", f"{NET}:v1.0.0", annotations={"pvbus.dev/dependency-removal": "keep-if-used"})
    world.run()
    owner = {"pvbus.dev/owner": "Provider/network"}
    child = world.install("acme-aws", f"{AWS}:v1.0.0", annotations=owner)
    world.report(child, EstablishedRow(is_healthy=True))
    world.run()
    world.remove(install_key("network"))
    world.run()
    assert world.row("acme-aws").status == "removed"
    world.install("acme-aws", f"{AWS}:v1.0.0")
    world.report(child, None)
    world.run()
    row = world.row("acme-aws")
    assert (row.status, row.version, row.holders) == ("locked", "v1.0.0", ())


def test_a_created_install_that_somebody_deletes_is_made_again() -> None:
    world = started()
    network(world)
    child = world.install("acme-aws", f"{AWS}:v1.0.0", annotations={"pvbus.dev/owner": "Provider/network"})
    world.run()
    assert world.row("acme-aws").uid
    world.remove(child)
    world.run()
    assert (world.row("acme-aws").uid, world.row("acme-aws").status) == ("", "locked")


@pytest.mark.parametrize("is_established", [True, False])
def test_an_install_that_is_deleted_by_hand_comes_back_under_its_name(is_established: bool) -> None:
    """Only once it is gone, with its revisions and objects: two installs of one package would refuse each
    other's objects."""
    world = started()
    network(world)
    owner = {"pvbus.dev/owner": "Provider/network"}
    child = world.install("acme-aws", f"{AWS}:v1.0.0", annotations=owner)
    if is_established:
        world.report(child, EstablishedRow(is_healthy=True))
    world.run()
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.install("acme-aws", f"{AWS}:v1.0.0", annotations=owner, metadata=going)
    world.run()
    assert world.row("acme-aws").status == "removed"
    assert sorted(world.lock) == [child, install_key("network")]
    (need,) = world.row("network").dependencies
    assert need.install == child
    world.remove(child)
    world.run()
    if is_established:
        assert world.row("acme-aws").status == "removed"
        world.report(child, None)
        world.run()
    row = world.row("acme-aws")
    assert (row.status, row.uid, row.holders) == ("locked", "", (install_key("network"),))
    assert sorted(world.lock) == [child, install_key("network")]


@pytest.mark.parametrize(("policy", "expected"), [("highest", "v1.1.0"), ("minimal-change", "v1.0.0")])
def test_a_new_version_of_a_dependency_is_taken_as_the_policy_says(policy: str, expected: str) -> None:
    world = started(Settings(Policy(versions=policy)))  # type: ignore[arg-type]
    network(world)
    world.registry.publish(AWS, "v1.1.0", salt="new")
    world.pass_time(400)
    assert world.row("acme-aws").version == expected


def test_a_dependency_moves_if_a_new_holder_needs_that() -> None:
    world = started()
    network(world)
    world.registry.publish(AWS, "v1.1.0", salt="new")
    world.pass_time(400)
    world.registry.publish(APP, "v1.0.0", depends=(needs(AWS, ">=1.1.0"),))
    world.install("app", f"{APP}:v1.0.0")
    world.run()
    assert world.row("acme-aws").version == "v1.1.0"
    assert world.row("acme-aws").template["package"] == f"{AWS}:v1.1.0"
    assert [each.revision for each in world.row("acme-aws").revisions] == [1, 2]


def test_only_components_in_which_something_changed_are_solved() -> None:
    world = started()
    for index in range(60):
        source = f"{REGISTRY}/p{index}"
        world.registry.publish(source, "v1.0.0")
        world.registry.publish(f"{REGISTRY}/c{index}", "v1.0.0", depends=(needs(source),))
        world.install(f"c{index}", f"{REGISTRY}/c{index}:v1.0.0")
    world.run()
    assert len(world.lock) == 120
    solved = world.controller.evaluations
    world.registry.publish(f"{REGISTRY}/p7", "v1.1.0", salt="new")
    source_key = f"cluster|{REGISTRY}/p7"
    world.now += 400
    world.mark(source_key)
    world.run()
    assert world.controller.evaluations == solved + 1


def test_what_an_install_that_cannot_be_read_had_made_stays_for_it() -> None:
    """A mistake in its spec says nothing of what it needs, so nothing is given up until it is corrected."""
    world = started()
    network(world, "delete")
    key = install_key("network")
    world.put(key, {**world.objects[key], "spec": {"package": NET, "revisionHistoryLimit": "many"}})
    world.run()
    assert world.row("network").status == "broken"
    row = world.row("acme-aws")
    assert (row.status, row.holders, row.version) == ("locked", (key,), "v1.0.0")


def test_packages_that_need_each_other_go_once_nobody_else_needs_them() -> None:
    """Each of them held the other one, and neither was ever decided on again."""
    world = started()
    world.registry.publish(AWS, "v1.0.0", depends=(needs(NET),))
    world.registry.publish(NET, "v1.0.0", depends=(needs(AWS),))
    world.registry.publish(APP, "v1.0.0", depends=(needs(AWS),))
    world.install("app", f"{APP}:v1.0.0", annotations={"pvbus.dev/dependency-removal": "delete"})
    world.run()
    for name in ("acme-aws", "acme-network"):
        owner = world.row(name).holders[0].rpartition("|")[2]
        world.install(
            name, world.row(name).template["package"], annotations={"pvbus.dev/owner": f"Provider/{owner}"}
        )
    world.run()
    assert world.row("acme-aws").holders == (install_key("app"), install_key("acme-network"))
    world.remove(install_key("app"))
    world.run()
    assert "removed" in {world.row(name).status for name in ("acme-aws", "acme-network")}


def test_a_created_install_that_somebody_made_again_is_not_deleted() -> None:
    """Only the object with the uid of the row is ours; another one of its name becomes a user's."""
    world = started()
    network(world, "delete")
    owner = {"pvbus.dev/owner": "Provider/network"}
    child = world.install("acme-aws", f"{AWS}:v1.0.0", annotations=owner)
    world.run()
    for key in (install_key("network"), child):
        world.remove(key)
    world.install("acme-aws", f"{AWS}:v1.0.0", annotations=owner)
    world.run()
    row = world.row("acme-aws")
    assert (row.status, row.holders, row.reason) == ("locked", (), "Orphaned")


@pytest.mark.parametrize(
    ("kind", "wanted", "is_taken"),
    [
        ("Function", "Configuration", False),
        ("Configuration", "Provider", False),
        ("Function", "Function", True),
        ("Provider", "Package", True),
    ],
)
def test_a_package_of_another_kind_than_its_install_is_refused(
    kind: str, wanted: str, is_taken: bool
) -> None:
    """Nothing of it is installed, and the message says which kind it is; a Package takes each kind."""
    world = started()
    world.registry.publish(AWS, "v1.0.0", kind=kind)
    world.install("aws", f"{AWS}:v1.0.0", wanted)
    world.run()
    row = world.row("aws", wanted)
    assert row.status == ("locked" if is_taken else "refused")
    assert bool(row.revisions) == is_taken
    assert is_taken or row.message == f"{AWS} is a {kind}: install it with kind {kind}"


def test_the_annotations_of_an_account_pass_down_and_can_be_taken_back() -> None:
    """To what was created for the install, and for that in turn, but not while it cannot be read."""
    world = started()
    for name, other in (("top", "middle"), ("middle", "leaf"), ("leaf", "")):
        needs = ({"provider": f"{REGISTRY}/{other}", "version": ">=1.0.0"},) if other else ()
        world.registry.publish(f"{REGISTRY}/{name}", "v1.0.0", depends=needs)
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}
    package = f"{REGISTRY}/top:v1.0.0"
    world.install("top", package, "Package", serviceAccount={"annotations": role})
    world.run()
    created = ("acme-middle", "acme-leaf")
    assert [dict(world.row(each).account_annotations) for each in created] == [role, role]
    assert "serviceAccount" not in world.row("acme-middle").template
    world.install("top", package, "Package", revisionHistoryLimit="many")
    world.run()
    assert [dict(world.row(each).account_annotations) for each in created] == [role, role]
    world.install("top", package, "Package")
    world.run()
    assert [dict(world.row(each).account_annotations) for each in created] == [{}, {}]
