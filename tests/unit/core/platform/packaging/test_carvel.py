"""Carvel's dependencies: the worked examples and the use cases of the proposal."""

from typing import Any

import pytest

from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.packaging.statuses import dependency_statuses
from pvbus.core.platform.solver.model import Policy
from tests.unit.core.platform.packaging.carvelworld import (
    MAIN_API,
    MAIN_OFFER,
    OWNER,
    REMOVAL,
    STRATEGY,
    InstallWorld,
    full,
    install,
    key,
    package,
)

PKG2, PKG3, PKG1 = (f"{full(each)}.1.0.0" for each in ("pkg2", "pkg3", "pkg1"))
TREE = (
    package("pkg", "1.0.0", ["pkg1 >=1.0.0", "pkg3 1.0.0"]),
    package("pkg1", "1.0.0", ["pkg2 >=1.0.0"]),
    package("pkg2", "1.0.0"),
    package("pkg3", "1.0.0"),
)
DEMO = (
    package(
        "pkg",
        "1.0.0",
        [
            {"or": [{"gvk": MAIN_API}, {"package": {"refName": full("pkg2"), "version": ">=1.0.0"}}]},
            "pkg3 0.1.0",
            "pkg4 0.2.0?",
        ],
        installation="onePerCluster",
    ),
    package("pkg2", "1.2.0", provides=[]),
    package("pkg3", "0.1.0"),
    package("pkg4", "0.2.0"),
)


def test_each_install_creates_what_it_depends_on_itself() -> None:
    """The first tree of the proposal: pkg creates pkg1 and pkg3, and pkg1 creates pkg2."""
    world = InstallWorld(TREE, [install("pkg")]).settle()
    assert world.names() == {"pkg": "1.0.0", PKG1: "1.0.0", PKG2: "1.0.0", PKG3: "1.0.0"}
    assert [world.holders(each) for each in (PKG1, PKG2, PKG3)] == [["pkg"], [PKG1], ["pkg"]]


def test_an_install_may_create_its_whole_closure() -> None:
    """The second tree: pkg creates all three, so pkg owns them, and pkg1 refers to pkg2."""
    world = InstallWorld(TREE, [install("pkg", annotations={STRATEGY: "closure"})]).settle()
    assert [world.holders(each) for each in (PKG1, PKG2, PKG3)] == [["pkg"], ["pkg", PKG1], ["pkg"]]


def test_a_created_install_has_the_spec_of_the_proposals_example() -> None:
    """Name, exact version, the parent's account, and the Secret that the parent names for it."""
    values = [{"refName": full("pkg3"), "secretRef": {"name": "pkg3.dev-values"}}]
    world = InstallWorld(DEMO, [install("pkg-demo", "pkg", dependencies={"values": values})]).settle()
    assert world.row(f"{full('pkg3')}.0.1.0").template == {
        "packageRef": {"refName": full("pkg3"), "versionSelection": {"constraints": "0.1.0"}},
        "serviceAccountName": "default-ns-sa",
        "values": [{"secretRef": {"name": "pkg3.dev-values"}}],
    }
    assert world.holders(f"{full('pkg3')}.0.1.0") == ["pkg-demo"]


def test_pkg_demo_overrides_a_version_and_does_not_install_an_optional_package() -> None:
    """The PackageInstall of the proposal, with its slips corrected: what is overridden is what pkg needs."""
    packages = (
        package("pkg", "1.0.0", ["pkg1 >=1.0.0", "pkg3 0.1.0", "pkg4 0.2.0?"]),
        *(package("pkg1", version) for version in ("1.0.0", "1.0.1", "1.1.0")),
        package("pkg3", "0.1.0"),
        package("pkg4", "0.2.0"),
    )
    dependencies = {
        "override": [
            {"refName": full("pkg1"), "versionSelection": {"constraints": "1.0.1"}},
            {"refName": full("pkg4"), "install": False},
        ],
        "values": [
            {"refName": full("pkg1"), "secretRef": {"name": "pkg1.dev-values", "key": "values.yml"}},
            {"refName": full("pkg3"), "secretRef": {"name": "pkg3.dev-values"}},
        ],
    }
    world = InstallWorld(packages, [install("pkg-demo", "pkg", "1.0.0", dependencies=dependencies)]).settle()
    assert world.names() == {
        "pkg-demo": "1.0.0",
        f"{full('pkg1')}.1.0.1": "1.0.1",
        f"{full('pkg3')}.0.1.0": "0.1.0",
    }
    assert world.row(f"{full('pkg1')}.1.0.1").template["values"] == [
        {"secretRef": {"name": "pkg1.dev-values", "key": "values.yml"}}
    ]
    assert world.conditions("pkg-demo") == [
        "OwnedPackageInstall",
        "OwnedPackageInstall",
        "WaitingForDependencies",
    ]
    last = world.row("pkg-demo").dependencies[2]
    assert last.is_optional
    assert last.message == f"optional: {full('pkg4')} 0.2.0 may not be installed for it, and is not there"
    statuses = dependency_statuses(world.row("pkg-demo"), set(world.installs))
    assert [len(each["conditions"]) for each in statuses] == [1, 1, 1]


@pytest.mark.parametrize(
    ("override", "version"),
    [
        ({"name": "store", "packageRef": {"versionSelection": {"constraints": "1.0.0"}}}, "1.0.0"),
        ({"alias": "store", "versionSelection": {"constraints": "1.0.0"}}, "1.0.0"),
        ({"refName": full("db"), "versionSelection": {"constraints": "1.0.0"}}, "1.0.0"),
        (
            {"refName": full("db"), "versionSelection": {"constraints": ">=2.0.0", "prereleases": {}}},
            "2.1.0-rc.1",
        ),
        ({"refName": full("db"), "versionSelection": {"constraints": "2.1.0-rc.1"}}, "2.1.0-rc.1"),
        ({"refName": full("db")}, "2.0.0"),
    ],
)
def test_an_override_by_name_alias_or_refname_replaces_the_range(
    override: dict[str, Any], version: str
) -> None:
    """An override without a range changes nothing."""
    packages = [package("db", each) for each in ("1.0.0", "2.0.0", "2.1.0-rc.1")]
    item = {"name": "store", "packageRef": {"refName": full("db")}}
    packages.append(package("app", "1.0.0", [item]))
    world = InstallWorld(packages, [install("app", dependencies={"override": [override]})]).settle()
    assert world.row("app").dependencies[0].version == version
    selection = world.row(f"{full('db')}.{version}").template["packageRef"]["versionSelection"]
    assert selection == {"constraints": version, **({"prereleases": {}} if "-" in version else {})}


@pytest.mark.parametrize(
    ("dependencies", "words"),
    [
        ({"override": [{"name": "stroe", "versionSelection": {"constraints": "1.0.0"}}]}, "name stroe"),
        ({"override": [{"refName": full("dp"), "install": False}]}, f"refName {full('dp')}"),
        ({"values": [{"name": "stroe", "secretRef": {"name": "s"}}]}, "name stroe"),
    ],
)
def test_an_override_for_no_dependency_is_refused_by_name(dependencies: dict[str, Any], words: str) -> None:
    """A slip would go without effect else; what is there stays, and the names that there are follow."""
    item = {"name": "store", "packageRef": {"refName": full("db")}}
    packages = [package("db", "1.0.0"), package("app", "1.0.0", [item])]
    world = InstallWorld(packages, [install("app", installed="1.0.0", dependencies=dependencies)]).settle()
    row = world.row("app")
    assert (row.status, row.reason, row.version) == ("refused", "UnknownDependency", "1.0.0")
    assert words in row.message
    assert row.message.endswith(": it has store") or row.message.endswith(f": it has {full('db')}")
    world = InstallWorld([package("db")], [install("db", dependencies=dependencies)]).settle()
    assert world.row("db").message.endswith("no such dependency")
    world = InstallWorld([], [install("app", dependencies=dependencies)]).settle()
    assert world.row("app").reason == "UnknownPackage"


@pytest.mark.parametrize(
    ("constraints", "version"),
    [
        ("2.1.0-rc.1", "2.1.0-rc.1"),
        ("=2.1.0-rc.1", "2.1.0-rc.1"),
        ("== 2.1.0-rc.1", "2.1.0-rc.1"),
        (">=2.1.0-rc.1", None),
        ("2.1.0-rc.1 || 1.0.0", "1.0.0"),
        ("2.1.0-rc.2", None),
    ],
)
def test_exactly_one_prerelease_needs_no_selection_of_prereleases(
    constraints: str, version: str | None
) -> None:
    """A range that has more than this version admits none, as before."""
    packages = [package("app", each) for each in ("1.0.0", "2.1.0-rc.1")]
    world = InstallWorld(packages, [install("app", constraints=constraints)]).settle()
    row = world.row("app")
    assert (row.version or None) == version


def test_what_is_said_by_name_comes_before_what_is_said_by_refname() -> None:
    """The one dependency has the range by name, the other the one by refName; values are of both."""
    packages = [package("db", each) for each in ("1.0.0", "2.0.0", "3.0.0")]
    packages.append(package("app", "1.0.0", [{"name": "store", "packageRef": {"refName": full("db")}}]))
    dependencies = {
        "override": [
            {"refName": full("db"), "versionSelection": {"constraints": "2.0.0"}},
            {"name": "store", "versionSelection": {"constraints": "1.0.0"}},
        ],
        "values": [{"refName": full("db"), "secretRef": {"name": "secret"}}],
    }
    world = InstallWorld(packages, [install("app", dependencies=dependencies)]).settle()
    assert world.row(f"{full('db')}.1.0.0").template["values"] == [{"secretRef": {"name": "secret"}}]


# the use cases of a package that depends on another


def test_what_is_there_and_matches_is_used() -> None:
    """Use case 1: nothing is created, and a newer version does not matter."""
    packages = [package("app", "1.0.0", ["db >=1.0.0"]), package("db", "1.0.0")]
    world = InstallWorld(
        packages, [install("app"), install("mine", "db", "1.0.0", installed="1.0.0")]
    ).settle()
    assert world.names() == {"app": "1.0.0", "mine": "1.0.0"}
    assert world.conditions("app") == ["FoundPackageInstall"]
    assert world.row("app").dependencies[0].install == key("mine")


def test_a_created_install_is_not_upgraded_without_need() -> None:
    """A newer version of a dependency leaves what serves as it is."""
    world = InstallWorld([package("app", "1.0.0", ["db >=1.0.0"]), package("db", "1.0.0")], [install("app")])
    world.settle().packages.append(package("db", "1.5.0"))
    world.settle()
    assert world.row(f"{full('db')}.1.0.0").version == "1.0.0"


def test_what_is_absent_is_installed() -> None:
    """Use case 2, and the account and the owner are the parent's."""
    packages = [package("app", "1.0.0", ["db >=1.0.0"]), package("db", "1.0.0"), package("db", "1.3.0")]
    world = InstallWorld(packages, [install("app")]).settle()
    assert world.conditions("app") == ["OwnedPackageInstall"]
    assert world.row(f"{full('db')}.1.3.0").holders == (key("app"),)


def test_a_wrong_version_moves_if_every_holder_allows_it() -> None:
    """Use case 3: the install keeps its name, and its template has the new version."""
    packages = [
        package("app", "1.0.0", ["db >=1.0.0"]),
        package("new", "1.0.0", ["db >=2.0.0"]),
        package("db", "1.0.0"),
    ]
    world = InstallWorld(packages, [install("app")]).settle()
    world.packages.append(package("db", "2.0.0"))
    world.add(install("new")).settle()
    row = world.row(f"{full('db')}.1.0.0")
    assert row.version == "2.0.0"
    assert row.template["packageRef"]["versionSelection"] == {"constraints": "2.0.0"}
    assert world.holders(f"{full('db')}.1.0.0") == ["app", "new"]
    assert world.conditions("new") == ["FoundPackageInstall"]


def test_a_wrong_version_that_another_holder_needs_stays() -> None:
    """Use case 3, refused: the newcomer is told what is there, and the first goes on."""
    packages = [
        package("app", "1.0.0", ["db <2.0.0"]),
        package("new", "1.0.0", ["db >=2.0.0"]),
        package("db", "1.0.0"),
        package("db", "2.0.0"),
    ]
    world = InstallWorld(packages, [install("app")]).settle()
    world.add(install("new")).settle()
    row = world.row("new")
    assert (row.status, row.reason) == ("refused", "FoundPackageInstallRequiresDifferentVersion")
    assert row.dependencies[0].condition == "FoundPackageInstallRequiresDifferentVersion"
    assert row.dependencies[0].install == key(f"{full('db')}.1.0.0")
    assert row.dependencies[0].version == "1.0.0"
    assert "needs db.test.carvel.dev <2.0.0" in row.message
    assert world.holders(f"{full('db')}.1.0.0") == ["app"]


@pytest.mark.parametrize(
    ("need", "reason"), [("gone >=1.0.0", "UnknownPackage"), ("db >=9.0.0", "UnknownPackageVersion")]
)
def test_what_no_package_fulfils_fails(need: str, reason: str) -> None:
    """Use case 4: the install is refused with the reason, and nothing is created for it."""
    world = InstallWorld([package("app", "1.0.0", [need]), package("db", "1.0.0")], [install("app")]).settle()
    assert (world.row("app").status, world.row("app").reason) == ("refused", reason)
    assert world.conditions("app") == [reason]
    assert list(world.installs) == [key("app")]


# two packages that depend on the same package


SHARED = (
    package("one", "1.0.0", ["db >=1.0.0"]),
    package("two", "1.0.0", ["db >=1.0.0"]),
    package("db", "1.0.0"),
)
DB = f"{full('db')}.1.0.0"


def test_the_first_owns_and_the_second_refers() -> None:
    """Whatever their names are, the one that was first stays the owner."""
    world = InstallWorld(SHARED, [install("two")]).settle()
    world.add(install("one")).settle()
    assert world.holders(DB) == ["two", "one"]
    assert (world.conditions("two"), world.conditions("one")) == (
        ["OwnedPackageInstall"],
        ["FoundPackageInstall"],
    )


@pytest.mark.parametrize("removal", ["orphan", "delete", "keep-if-used"])
def test_ownership_passes_on_when_the_owner_goes(removal: str) -> None:
    """Whatever the policy is, what another holds stays, and belongs to that one."""
    world = InstallWorld(SHARED, [install("two", annotations={REMOVAL: removal})]).settle()
    world.add(install("one")).settle()
    world.remove("two").settle()
    assert world.holders(DB) == ["one"]
    assert world.installs[key(DB)].owner == key("one")
    assert world.deleted == []
    assert world.conditions("one") == ["OwnedPackageInstall"]


@pytest.mark.parametrize(
    ("removal", "is_used", "is_there"),
    [
        ("orphan", False, True),
        ("delete", False, False),
        ("keep-if-used", False, False),
        ("orphan", True, True),
        ("delete", True, False),
        ("keep-if-used", True, True),
    ],
)
def test_the_policy_decides_on_what_nobody_holds(removal: str, is_used: bool, is_there: bool) -> None:
    """A use by an install that brings its own dependencies holds nothing; keep-if-used respects it."""
    world = InstallWorld(SHARED, [install("two", annotations={REMOVAL: removal})]).settle()
    if is_used:
        world.add(install("one", dependencies={"managedBy": "User"})).settle()
        assert world.holders(DB) == ["two"]
    world.remove("two").settle()
    assert (key(DB) in world.installs) == is_there
    if is_there:
        assert world.installs[key(DB)].owner == ""
        assert world.row(DB).reason == "Orphaned"
    elif is_used:
        assert world.row("one").status == "refused"


@pytest.mark.parametrize(
    ("owner", "established", "status"),
    [(OWNER, True, "removed"), (OWNER, False, "removed"), ("", True, "removed"), ("", False, "locked")],
)
def test_an_install_that_was_released_and_not_removed_is_a_users(
    owner: str, established: bool, status: str
) -> None:
    """Establish keeps what something needs after all; without an owner it is decided on like any other."""
    annotations = {owner: "PackageInstall/two"} if owner else {}
    known = {"established": frozenset({key("db")})} if established else {}
    world = InstallWorld(SHARED, [install("db", annotations=annotations)], **known)
    world.rows[key("db")] = LockRow(status="removed", uid="uid-demo-db", package=full("db"), version="1.0.0")
    assert world.decide()[key("db")].status == status


@pytest.mark.parametrize(
    ("range_", "installed", "version"),
    [("1.0.0", "", "1.0.0"), ("1.0.0", "none", "1.0.0"), (">=1.0.0", "1.0.0", "1.0.0"), (">=1.0.0", "", "")],
)
def test_a_created_install_whose_holder_cannot_be_decided_on_is_known_without_a_lock(
    range_: str, installed: str, version: str
) -> None:
    """The lock is lost, and what the holder needs is not there: whatever the object says stops nobody."""
    owner = {OWNER: "PackageInstall/two"}
    made = install("db", constraints=range_, installed=installed, annotations=owner)
    packages = [each for each in SHARED if each.name == full("two")]
    world = InstallWorld(packages, [install("two"), made, install("other")])
    rows = world.decide()
    assert (rows[key("db")].status, rows[key("db")].version) == ("locked", version)
    assert rows[key("db")].holders == (key("two"),)
    assert rows[key("other")].reason == "UnknownPackage"


def test_what_only_an_orphan_needs_stays_with_it() -> None:
    """pkg goes and orphans: pkg1 stays as a user's install, and owns pkg2 as before."""
    world = InstallWorld(TREE, [install("pkg")]).settle()
    world.remove("pkg").settle()
    assert world.row(PKG1).reason == world.row(PKG3).reason == "Orphaned"
    assert world.holders(PKG2) == [PKG1]
    assert set(world.installs) == {key(each) for each in (PKG1, PKG2, PKG3)}


def test_delete_takes_the_closure_along() -> None:
    """The policy of the user's install holds for all that was created because of it."""
    world = InstallWorld(TREE, [install("pkg", annotations={REMOVAL: "delete"})]).settle()
    world.remove("pkg").settle()
    assert world.installs == {}
    assert sorted(world.deleted) == [key(PKG1), key(PKG2), key(PKG3)]


def test_a_dependency_that_a_newer_version_does_not_need_is_given_up() -> None:
    """The parent is upgraded, and its policy decides on what it held."""
    packages = [package("app", "1.0.0", ["db >=1.0.0"]), package("db", "1.0.0")]
    world = InstallWorld(packages, [install("app", annotations={REMOVAL: "delete"})]).settle()
    world.packages.append(package("app", "2.0.0"))
    world.settle()
    assert world.names() == {"app": "2.0.0"}


def test_a_parent_that_is_refused_holds_what_it_held() -> None:
    """A package that disappears from the repository makes nothing of what is installed go away."""
    packages = [package("app", "1.0.0", ["pkg1 >=1.0.0"]), *TREE]
    world = InstallWorld(packages, [install("app", annotations={REMOVAL: "delete"})]).settle()
    world.packages = [each for each in world.packages if each.name != full("app")]
    world.installs[key("app")] = world.installs[key("app")]._replace(range=">=2.0.0")
    world.settle()
    assert world.row("app").status == "refused"
    assert world.holders(PKG1) == ["app"]
    assert world.holders(PKG2) == [PKG1]


def test_what_is_used_from_another_namespace_alone_keeps_what_it_needs() -> None:
    """Nobody wants it any more where it is, and it is there for somebody else all the same."""
    packages = [
        package("app", "1.0.0", ["db"]),
        package("db", "1.0.0", ["disk"], installation="onePerCluster"),
        package("disk", "1.0.0"),
    ]
    world = InstallWorld(packages, [install("app", annotations={REMOVAL: "delete"})]).settle()
    world.add(install("app", namespace="other")).settle()
    world.remove("app").settle()
    assert world.holders(DB) == ["app"]
    assert world.holders(f"{full('disk')}.1.0.0") == [DB]


def test_packages_that_need_each_other_go_together() -> None:
    """A cycle holds itself, and is nevertheless given up when nobody else needs it."""
    packages = [
        package("app", "1.0.0", ["a"]),
        package("a", "1.0.0", ["b"]),
        package("b", "1.0.0", ["a"]),
    ]
    world = InstallWorld(packages, [install("app", annotations={REMOVAL: "delete"})]).settle()
    assert len(world.installs) == 3
    world.remove("app").settle()
    assert world.installs == {}


def test_a_user_who_removes_the_annotation_owns_the_install() -> None:
    """It is not deleted with its former owner, whatever the policy is."""
    world = InstallWorld(SHARED, [install("two", annotations={REMOVAL: "delete"})]).settle()
    world.installs[key(DB)] = world.installs[key(DB)]._replace(owner="")
    world.settle()
    assert world.row(DB).holders == ()
    world.remove("two").settle()
    assert key(DB) in world.installs


def test_an_annotation_alone_does_not_let_an_install_be_deleted() -> None:
    """Only what the lock says it has created is deleted: another with the annotation becomes a user's."""
    mine = install("mine", "db", annotations={OWNER: "PackageInstall/gone"}, installed="1.0.0")
    world = InstallWorld(SHARED, [mine]).settle()
    assert world.row("mine").reason == "Orphaned"
    assert world.deleted == []


def test_installs_that_name_each_other_as_owners_become_a_users() -> None:
    """Annotations in a circle, and no row: nothing is deleted, and the decision ends."""
    installs = [
        install("x", "db", annotations={OWNER: "PackageInstall/y"}, installed="1.0.0"),
        install("y", "one", annotations={OWNER: "PackageInstall/x"}, installed="1.0.0"),
    ]
    world = InstallWorld(SHARED, installs).settle()
    assert world.deleted == []
    assert set(world.installs) == {key("x"), key("y")}


def test_an_install_that_somebody_made_again_is_not_deleted() -> None:
    """The uid of the row is the uid of what was created; another object of the name is not ours."""
    world = InstallWorld(SHARED, [install("two", annotations={REMOVAL: "delete"})]).settle()
    world.installs[key(DB)] = world.installs[key(DB)]._replace(uid="another")
    world.remove("two").settle()
    assert key(DB) in world.installs


def test_a_created_install_that_somebody_deleted_is_created_again() -> None:
    """It is still needed, and so the lock still has it, without a uid."""
    world = InstallWorld(SHARED, [install("two")]).settle()
    del world.installs[key(DB)]
    assert world.decide()[key(DB)].uid == ""
    world.settle()
    assert key(DB) in world.installs


def test_a_created_install_that_somebody_deletes_comes_back_under_its_name() -> None:
    """Until it and its objects are gone no other install is created, and its dependencies stay held."""
    world = InstallWorld(TREE, [install("pkg")]).settle()
    before = dict(world.rows)
    world.installs[key(PKG1)] = world.installs[key(PKG1)]._replace(is_deleted=True)
    going = world.decide()
    assert going[key(PKG1)].status == "removed"
    assert {okey: row for okey, row in going.items() if okey != key(PKG1)} == {
        okey: row for okey, row in before.items() if okey != key(PKG1)
    }
    del world.installs[key(PKG1)]
    world.facts["established"] = frozenset({key(PKG1)})  # establish has not told yet that it is over
    assert world.decide() == going
    world.facts["established"] = frozenset()
    again = world.decide()[key(PKG1)]
    assert (again.status, again.uid, again.version) == ("locked", "", "1.0.0")
    assert world.settle().names() == {"pkg": "1.0.0", PKG1: "1.0.0", PKG2: "1.0.0", PKG3: "1.0.0"}
    assert [world.holders(each) for each in (PKG1, PKG2, PKG3)] == [["pkg"], [PKG1], ["pkg"]]


def test_a_created_install_that_goes_is_not_made_again_once_nobody_needs_it() -> None:
    world = InstallWorld(SHARED, [install("two")]).settle()
    world.installs[key(DB)] = world.installs[key(DB)]._replace(is_deleted=True)
    world.decide()
    world.remove("two")
    assert {okey: row.status for okey, row in world.decide().items()} == {key(DB): "removed"}
    assert world.settle().names() == {}


def test_a_users_own_install_takes_the_place_of_one_that_goes_at_once() -> None:
    world = InstallWorld(SHARED, [install("two")]).settle()
    package_name = world.row(DB).package.partition(".")[0]
    world.installs[key(DB)] = world.installs[key(DB)]._replace(is_deleted=True)
    world.add(install("mine", package_name))
    rows = world.decide()
    assert [each.install for each in rows[key("two")].dependencies] == [key("mine")]
    assert rows[key(DB)].status == "removed"


def test_a_name_that_a_user_has_is_not_used() -> None:
    """The created install gets another name, and the user's install stays what it is."""
    taken = install(DB, "other")
    world = InstallWorld([*SHARED, package("other", "3.0.0")], [taken, install("two")]).settle()
    created = [each for each, row in world.rows.items() if row.holders]
    assert len(created) == 1
    assert created[0].startswith(key(DB) + "-")
    assert world.row(DB).package == full("other")


# alternatives, and installs that bring their own dependencies


@pytest.mark.parametrize(
    ("facts", "installed", "condition", "names"),
    [
        ({"offers": frozenset({MAIN_OFFER})}, [], "ExistingGVK", ["pkg-demo"]),
        ({}, [], "OwnedPackageInstall", ["pkg-demo", "pkg2.test.carvel.dev.1.2.0"]),
        ({}, [install("mine", "pkg2", installed="1.2.0")], "FoundPackageInstall", ["mine", "pkg-demo"]),
    ],
    ids=["the-api-is-there", "nothing-is-there", "the-package-is-there"],
)
def test_the_example_of_an_api_or_a_package(
    facts: dict[str, Any], installed: list[Any], condition: str, names: list[str]
) -> None:
    """An API that is there serves, then a package that is there; else the package is installed."""
    packages = (*DEMO[:1], *DEMO[1:3])
    world = InstallWorld(packages, [install("pkg-demo", "pkg"), *installed], **facts).settle()
    assert world.conditions("pkg-demo")[0] == condition
    assert sorted(each for each in world.names() if "pkg3" not in each) == names


@pytest.mark.parametrize("dependencies", [{"managedBy": "User"}, {"install": False}])
def test_of_alternatives_one_that_is_there_is_enough_for_a_user(dependencies: dict[str, Any]) -> None:
    """Nothing is created; without any of them the install is refused, and says what is missing."""
    item = {
        "or": [
            {"gvk": MAIN_API},
            {"package": {"refName": full("pkg2")}},
            {"package": {"refName": full("pkg3")}},
        ]
    }
    packages = [package("pkg", "1.0.0", [item]), package("pkg2"), package("pkg3")]
    world = InstallWorld(packages, [install("pkg", dependencies=dependencies)]).settle()
    assert world.row("pkg").status == "refused"
    assert (
        "API some.api.org/v1 MainAPI or pkg2.test.carvel.dev or pkg3.test.carvel.dev"
        in world.row("pkg").message
    )
    assert "which may not be installed for it" in world.row("pkg").message
    world.add(install("mine", "pkg3")).settle()
    assert world.row("pkg").status == "locked"
    assert world.row("pkg").dependencies[0].install == key("mine")
    assert len(world.installs) == 2


def test_one_dependency_may_be_the_exception() -> None:
    """`install` of an override counts for its dependency, in both directions."""
    packages = [package("app", "1.0.0", ["a", "b"]), package("a"), package("b")]
    dependencies = {"managedBy": "User", "override": [{"refName": full("a"), "install": True}]}
    world = InstallWorld(packages, [install("app", dependencies=dependencies), install("b")]).settle()
    assert world.conditions("app") == ["OwnedPackageInstall", "FoundPackageInstall"]
    dependencies = {"override": [{"refName": full("a"), "install": False}]}
    world = InstallWorld(packages, [install("app", dependencies=dependencies)]).settle()
    assert world.row("app").status == "refused"


# APIs


PROVIDER = package("provider", "1.0.0", provides=[{"gvk": MAIN_API}])
CONSUMER = package("app", "1.0.0", [{"gvk": MAIN_API}])


def test_no_provider_is_searched_unless_that_is_wanted() -> None:
    """By default the install is refused, with the name of what provides the API."""
    world = InstallWorld([PROVIDER, CONSUMER], [install("app")]).settle()
    assert world.row("app").status == "refused"
    way_out = "API some.api.org/v1 MainAPI is provided by provider.test.carvel.dev: install it"
    assert world.row("app").dependencies[0].message == way_out
    assert world.row("app").message.endswith(f"; {way_out}")


def test_several_providers_are_a_question() -> None:
    """Even with the search nothing is chosen for the user, who gets the names."""
    packages = [PROVIDER, CONSUMER, package("rival", "1.0.0", provides=[MAIN_API])]
    world = InstallWorld(packages, [install("app")], policy=Policy(search=True)).settle()
    assert world.row("app").dependencies[0].message == (
        "API some.api.org/v1 MainAPI is provided by provider.test.carvel.dev, rival.test.carvel.dev: "
        "install one of them"
    )
    world = InstallWorld([PROVIDER, CONSUMER], [install("app")], policy=Policy(search=True)).settle()
    assert world.conditions("app") == ["OwnedPackageInstall"]


def test_a_provider_that_is_there_is_found_and_kept() -> None:
    """Its API is served, and yet it is the install that meets the dependency, so it is not given up."""
    packages = [PROVIDER, CONSUMER, package("first", "1.0.0", ["provider"])]
    world = InstallWorld(packages, [install("first", annotations={REMOVAL: "delete"})]).settle()
    world.facts["offers"] = frozenset({MAIN_OFFER})
    world.add(install("app")).settle()
    assert world.conditions("app") == ["FoundPackageInstall"]
    world.remove("first").settle()
    assert world.holders(f"{full('provider')}.1.0.0") == ["app"]


# more than one of a package


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_of_several_installs_of_a_package_the_one_that_serves_is_found(version: str) -> None:
    """A namespace may have several; each has its own version, and a dependency finds the right one."""
    packages = [package("app", "1.0.0", [f"db {version}"]), package("db", "1.0.0"), package("db", "2.0.0")]
    installs = [install("app"), install("db-a", "db", "1.0.0"), install("db-b", "db", "2.0.0")]
    world = InstallWorld(packages, installs).settle()
    assert world.names() == {"app": "1.0.0", "db-a": "1.0.0", "db-b": "2.0.0"}
    found = world.row("app").dependencies[0]
    assert (found.install, found.package) == (key("db-a" if version == "1.0.0" else "db-b"), full("db"))


def test_a_namespace_has_its_own_packages_and_installs() -> None:
    """A Package of another namespace is unknown, and an install there does not count."""
    packages = [
        package("app", "1.0.0", ["db"]),
        package("db", "1.0.0", namespace="other"),
    ]
    world = InstallWorld(packages, [install("app"), install("db", namespace="other")]).settle()
    assert world.row("app").reason == "UnknownPackage"
    assert world.row("db", "other").version == "1.0.0"


def test_what_a_cluster_has_once_serves_every_namespace() -> None:
    """The other namespace refers to it, holds it, and does not create a second one."""
    packages = [package("app", "1.0.0", ["db"]), package("db", "1.0.0", installation="onePerCluster")]
    world = InstallWorld(packages, [install("app", namespace="a"), install("app", namespace="b")]).settle()
    assert world.row(DB, "a").holders == (key("app", "a"), key("app", "b"))
    assert world.row("app", "b").dependencies[0].install == key(DB, "a")
    assert len(world.installs) == 3
    world.remove("app", "a").settle()
    assert world.row(DB, "a").holders == (key("app", "b"),)


def test_downgrades_need_the_annotation_of_the_install() -> None:
    """One install that allows a downgrade does not allow it for another."""
    packages = [package("a", "1.0.0"), package("a", "2.0.0"), package("b", "1.0.0"), package("b", "2.0.0")]
    allowed = {"packaging.carvel.dev/downgradable": ""}
    world = InstallWorld(
        packages,
        [
            install("a", constraints="1.0.0", installed="2.0.0", annotations=allowed),
            install("b", constraints="1.0.0", installed="2.0.0"),
        ],
    )
    rows = world.decide()
    assert (rows[key("a")].status, rows[key("a")].version) == ("locked", "1.0.0")
    assert (rows[key("b")].status, rows[key("b")].version) == ("refused", "2.0.0")
    assert "2.0.0 in demo is installed, and downgrades are not allowed" in rows[key("b")].message


def test_a_paused_install_stays_at_its_version() -> None:
    """It is not upgraded, and what it needs stays."""
    packages = [package("app", "1.0.0"), package("app", "2.0.0")]
    world = InstallWorld(packages, [install("app", installed="1.0.0", paused=True)])
    assert world.decide()[key("app")].version == "1.0.0"


# the status


def test_the_status_has_the_form_of_the_merged_proposal() -> None:
    """Each dependency with what is wanted, what meets it, and its conditions; the parent waits for it."""
    item = {
        "name": "store",
        "packageRef": {"refName": full("db"), "versionSelection": {"constraints": ">=1.0.0"}},
    }
    packages = [
        package("app", "1.0.0", [item, {"name": "api", "gvk": MAIN_API}, "gone?"]),
        package("db", "1.0.0"),
    ]
    world = InstallWorld(packages, [install("app")], offers=frozenset({MAIN_OFFER})).settle()
    reference = {"name": DB, "namespace": "demo"}
    wanted = {"refName": full("db"), "versionSelection": {"constraints": ">=1.0.0"}}
    others = [
        {"name": "api", "gvk": MAIN_API, "conditions": [{"type": "ExistingGVK", "status": "True"}]},
        {
            "wantedPackageRef": {"refName": full("gone")},
            "conditions": [
                {
                    "type": "UnknownPackage",
                    "status": "True",
                    "message": "optional: no package gone.test.carvel.dev is known",
                }
            ],
        },
    ]
    owned = {"type": "OwnedPackageInstall", "status": "True"}
    waiting = {"type": "WaitingForDependencies", "status": "True"}
    first = {"name": "store", "wantedPackageRef": wanted, "packageInstallRef": reference, "version": "1.0.0"}
    assert dependency_statuses(world.row("app"), set()) == [
        {**first, "conditions": [owned, waiting]},
        *others,
    ]
    assert dependency_statuses(world.row("app"), {key(DB)}) == [{**first, "conditions": [owned]}, *others]


def test_values_for_what_was_there_are_reported_as_unused() -> None:
    """Another install's dependency is not changed by the values of this one."""
    values = {"values": [{"refName": full("db"), "secretRef": {"name": "secret"}}]}
    world = InstallWorld(SHARED, [install("two")]).settle()
    world.add(install("one", dependencies=values)).settle()
    assert world.row("one").dependencies[0].message == (
        "its values (secret) are not used: db.test.carvel.dev.1.0.0 was not created for this install"
    )
