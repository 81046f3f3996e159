"""Statuses of installs and revisions, word for word, and the lock as pages."""

from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import (
    EstablishedRevision,
    EstablishedRow,
    LockedDependency,
    LockedRevision,
    LockRow,
)
from pvbus.core.platform.packaging.conditions import with_times
from pvbus.core.platform.packaging.statuses import (
    INACTIVE,
    Runtime,
    carvel_status,
    dependency_statuses,
    lock_status,
    package_locks,
    package_status,
    revision_status,
)
from pvbus.core.platform.solver.model import api

DIGEST = "sha256:" + "a" * 64
SOURCE = "xpkg.example.org/acme/net"
ONE = LockedRevision(name="net-1", revision=1, digest=DIGEST, version="v1.0.0", source=SOURCE, is_active=True)
TWO = LockedRevision(name="net-2", revision=2, digest=DIGEST, version="v2.0.0", source=SOURCE)
LOCKED = LockRow(status="locked", package=SOURCE, version="v1.0.0", digest=DIGEST, revisions=(ONE,))
CRD = "apiextensions.k8s.io/CustomResourceDefinition||"


def crossplane(kind: str = "Provider", **fields: Any) -> Install:
    return Install(
        okey=f"pkg.crossplane.io/{kind}||net",
        family="crossplane",
        uid="u",
        generation=4,
        package=SOURCE,
        **fields,
    )


def carvel(**fields: Any) -> Install:
    return Install(
        okey="packaging.carvel.dev/PackageInstall|apps|demo",
        family="carvel",
        uid="u",
        generation=4,
        package="pkg.test.carvel.dev",
        target="apps",
        **fields,
    )


def done(state: Any = "established", *, is_healthy: bool = True, message: str = "") -> EstablishedRow:
    return EstablishedRow(
        uid="u",
        is_healthy=is_healthy,
        message=message,
        revisions=(EstablishedRevision(name="net-1", state=state),),
    )


def locked(**fields: Any) -> LockRow:
    return msgspec.structs.replace(LOCKED, **fields)


def said(type_: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    found = {"type": type_, "status": status, "reason": reason}
    return {**found, "message": message} if message else found


CURRENT = {
    "currentRevision": "net-1",
    "currentIdentifier": f"{SOURCE}:v1.0.0",
    "resolvedPackage": f"{SOURCE}:v1.0.0",
}


@pytest.mark.parametrize(
    ("lock", "established", "expected", "reason"),
    [
        (
            None,
            None,
            {
                "conditions": [
                    said("Installed", "False", "UnpackingPackage"),
                    said("Healthy", "Unknown", "UnknownPackageRevisionHealth"),
                ]
            },
            "nothing is decided yet",
        ),
        (
            LockRow(status="waiting", message="waits for xpkg.example.org"),
            None,
            {
                "conditions": [
                    said("Installed", "False", "UnpackingPackage", "waits for xpkg.example.org"),
                    said("Healthy", "Unknown", "UnknownPackageRevisionHealth", "waits for xpkg.example.org"),
                ]
            },
            "its source does not answer",
        ),
        (
            LOCKED,
            None,
            {
                "conditions": [
                    said("Installed", "False", "UnpackingPackage"),
                    said("Healthy", "Unknown", "UnknownPackageRevisionHealth"),
                ],
                **CURRENT,
            },
            "decided, and not carried out",
        ),
        (
            locked(revisions=(msgspec.structs.replace(ONE, is_active=False),)),
            None,
            {
                "conditions": [
                    said("Installed", "False", "InactivePackageRevision", "net-1 is inactive"),
                    said("Healthy", "Unknown", "UnknownPackageRevisionHealth"),
                ],
                **CURRENT,
            },
            "Manual: a user has to activate the first revision",
        ),
        (
            LOCKED,
            done(),
            {
                "conditions": [
                    said("Installed", "True", "ActivePackageRevision"),
                    said("Healthy", "True", "HealthyPackageRevision"),
                ],
                **CURRENT,
            },
            "all is done",
        ),
        (
            locked(reason="Waiting", message="waits for the tag v9.9.9, which x does not have"),
            done(),
            {
                "conditions": [
                    said(
                        "Installed",
                        "True",
                        "ActivePackageRevision",
                        "waits for the tag v9.9.9, which x does not have",
                    ),
                    said("Healthy", "True", "HealthyPackageRevision"),
                ],
                **CURRENT,
            },
            "a mistyped tag: what is installed is well",
        ),
        (
            locked(revisions=(ONE, TWO)),
            done(),
            {
                "conditions": [
                    said(
                        "Installed",
                        "True",
                        "ActivePackageRevision",
                        "net-2 is inactive: net-1 stays active until it is activated",
                    ),
                    said("Healthy", "True", "HealthyPackageRevision"),
                ],
                "currentRevision": "net-2",
                "currentIdentifier": f"{SOURCE}:v2.0.0",
                "resolvedPackage": f"{SOURCE}:v2.0.0",
            },
            "Manual: the former revision stays active",
        ),
        (
            locked(revisions=(TWO, msgspec.structs.replace(ONE, revision=3)), observed=TWO.digest),
            done(),
            {
                "conditions": [
                    said("Installed", "True", "ActivePackageRevision"),
                    said("Healthy", "True", "HealthyPackageRevision"),
                ],
                "currentRevision": "net-2",
                "currentIdentifier": f"{SOURCE}:v2.0.0",
                "resolvedPackage": f"{SOURCE}:v2.0.0",
            },
            "a user activated the former one again: current is what the spec asks for, as Crossplane says it",
        ),
        (
            LOCKED,
            done("pending", is_healthy=False, message="2 of 3 objects are written"),
            {
                "conditions": [
                    said("Installed", "True", "ActivePackageRevision"),
                    said("Healthy", "Unknown", "UnknownPackageRevisionHealth", "2 of 3 objects are written"),
                ],
                **CURRENT,
            },
            "under way",
        ),
        (
            LOCKED,
            done("established", is_healthy=False, message="its Deployment is not available"),
            {
                "conditions": [
                    said("Installed", "True", "ActivePackageRevision"),
                    said("Healthy", "False", "UnhealthyPackageRevision", "its Deployment is not available"),
                ],
                **CURRENT,
            },
            "its controller does not run",
        ),
        (
            LOCKED,
            done("failed", is_healthy=False, message="x is controlled by other-1"),
            {
                "conditions": [
                    said("Installed", "True", "ActivePackageRevision"),
                    said("Healthy", "False", "UnhealthyPackageRevision", "x is controlled by other-1"),
                ],
                **CURRENT,
            },
            "the loser of a conflict names the owner",
        ),
        (
            locked(status="refused", message="net needs aws >=2, but db needs aws <2"),
            done(),
            {
                "conditions": [
                    said(
                        "Installed",
                        "True",
                        "ActivePackageRevision",
                        "net needs aws >=2, but db needs aws <2",
                    ),
                    said(
                        "Healthy",
                        "False",
                        "UnhealthyPackageRevision",
                        "net needs aws >=2, but db needs aws <2",
                    ),
                ],
                **CURRENT,
            },
            "the former version runs, the wanted one is refused",
        ),
    ],
)
def test_the_conditions_of_a_crossplane_install(
    lock: LockRow | None, established: EstablishedRow | None, expected: dict[str, Any], reason: str
) -> None:
    """X14: Installed and Healthy with the shipped reasons."""
    assert package_status(crossplane(), lock, established) == expected, reason


def test_a_package_is_ready_if_it_is_installed_and_healthy() -> None:
    """X14: the seed's Package has Ready, too."""
    ready = package_status(crossplane("Package"), LOCKED, done())["conditions"][-1]
    assert ready == said("Ready", "True", "Available")
    broken = package_status(crossplane("Package"), LOCKED, done("failed"))["conditions"][-1]
    assert broken == said("Ready", "False", "Unavailable")


@pytest.mark.parametrize(
    ("fields", "switches"),
    [
        ({}, []),
        ({"skips_dependencies": True}, ["skipDependencyResolution"]),
        ({"ignores_platform": True}, ["ignoreCrossplaneConstraints"]),
        (
            {"skips_dependencies": True, "ignores_platform": True},
            ["skipDependencyResolution", "ignoreCrossplaneConstraints"],
        ),
    ],
)
def test_switches_are_reported(fields: dict[str, Any], switches: list[str]) -> None:
    """X15: in the message of Installed for every kind, and as a field for Package."""
    message = "; ".join(f"{name} is on" for name in switches)
    for lock, established in ((None, None), (LOCKED, done())):
        found = package_status(crossplane(**fields), lock, established)["conditions"][0]
        assert found.get("message", "") == message
    status = package_status(crossplane("Package", **fields), LOCKED, done())
    assert status.get("switches", {}) == dict.fromkeys(switches, True)
    assert "switches" not in package_status(crossplane(**fields), LOCKED, done())


def test_an_install_by_digest_is_identified_by_it() -> None:
    status = package_status(crossplane(digest=DIGEST), LOCKED, done())
    assert status["currentIdentifier"] == f"{SOURCE}@{DIGEST}"


DEPENDENCIES = (
    LockedDependency(
        condition="OwnedPackageInstall",
        name="dep1",
        package="pkg1.test.carvel.dev",
        range="1.0.1",
        install="packaging.carvel.dev/PackageInstall|apps|demo-dep1",
    ),
    LockedDependency(condition="ExistingGVK", name="dep2", offer=api("some.api.com/v1", "MainApi")),
    LockedDependency(
        condition="FoundPackageInstall",
        package="pkg3.test.carvel.dev",
        install="packaging.carvel.dev/PackageInstall|apps|other",
    ),
    LockedDependency(
        condition="FoundPackageInstallRequiresDifferentVersion",
        name="dep4",
        package="pkg4.test.carvel.dev",
        range="0.2.0",
        install="packaging.carvel.dev/PackageInstall|apps|old",
        message="pkg4 0.2.0 is needed, and old has 0.1.0",
    ),
    LockedDependency(condition="UnknownPackage", name="dep5", package="pkg5.test.carvel.dev"),
    LockedDependency(condition="UnknownPackageVersion", package="pkg6.test.carvel.dev", is_optional=True),
    LockedDependency(condition="WaitingForDependencies", name="dep7", package="pkg7.test.carvel.dev"),
)


def test_a_dependency_in_each_state() -> None:
    """C11: the types of the merged proposal; what holds the install up is waited for."""
    healthy = {"packaging.carvel.dev/PackageInstall|apps|other"}
    waiting = {"type": "WaitingForDependencies", "status": "True"}
    assert dependency_statuses(locked(dependencies=DEPENDENCIES), healthy) == [
        {
            "name": "dep1",
            "wantedPackageRef": {
                "refName": "pkg1.test.carvel.dev",
                "versionSelection": {"constraints": "1.0.1"},
            },
            "packageInstallRef": {"name": "demo-dep1", "namespace": "apps"},
            "conditions": [{"type": "OwnedPackageInstall", "status": "True"}, waiting],
        },
        {
            "name": "dep2",
            "gvk": {"apiVersion": "some.api.com/v1", "kind": "MainApi"},
            "conditions": [{"type": "ExistingGVK", "status": "True"}],
        },
        {
            "wantedPackageRef": {"refName": "pkg3.test.carvel.dev"},
            "packageInstallRef": {"name": "other", "namespace": "apps"},
            "conditions": [{"type": "FoundPackageInstall", "status": "True"}],
        },
        {
            "name": "dep4",
            "wantedPackageRef": {
                "refName": "pkg4.test.carvel.dev",
                "versionSelection": {"constraints": "0.2.0"},
            },
            "packageInstallRef": {"name": "old", "namespace": "apps"},
            "conditions": [
                {
                    "type": "FoundPackageInstallRequiresDifferentVersion",
                    "status": "True",
                    "message": "pkg4 0.2.0 is needed, and old has 0.1.0",
                },
                waiting,
            ],
        },
        {
            "name": "dep5",
            "wantedPackageRef": {"refName": "pkg5.test.carvel.dev"},
            "conditions": [{"type": "UnknownPackage", "status": "True"}, waiting],
        },
        {
            "wantedPackageRef": {"refName": "pkg6.test.carvel.dev"},
            "conditions": [{"type": "UnknownPackageVersion", "status": "True"}],
        },
        {
            "name": "dep7",
            "wantedPackageRef": {"refName": "pkg7.test.carvel.dev"},
            "conditions": [waiting],
        },
    ]


CARVEL = LockRow(status="locked", package="pkg.test.carvel.dev", version="1.0.0")
HELD = msgspec.structs.replace(CARVEL, dependencies=(DEPENDENCIES[0],))
OWNED = "packaging.carvel.dev/PackageInstall|apps|demo-dep1"


@pytest.mark.parametrize(
    ("install", "lock", "established", "healthy", "expected", "reason"),
    [
        (
            carvel(),
            None,
            None,
            set(),
            {
                "conditions": [{"type": "Reconciling", "status": "True"}],
                "friendlyDescription": "Reconciling",
            },
            "nothing is decided",
        ),
        (
            carvel(),
            HELD,
            None,
            set(),
            {
                "conditions": [
                    {
                        "type": "Reconciling",
                        "status": "True",
                        "reason": "WaitingForDependencies",
                        "message": "waits for dep1",
                    }
                ],
                "friendlyDescription": "Reconciling: waits for dep1",
                "version": "1.0.0",
            },
            "the parent waits",
        ),
        (
            carvel(),
            HELD,
            EstablishedRow(is_healthy=True),
            {OWNED},
            {
                "conditions": [{"type": "ReconcileSucceeded", "status": "True"}],
                "friendlyDescription": "Reconcile succeeded",
                "version": "1.0.0",
                "lastAttemptedVersion": "1.0.0",
            },
            "all is done",
        ),
        (
            carvel(),
            LockRow(status="refused", reason="Impossible", message="pkg needs dep >=2.0.0"),
            EstablishedRow(is_healthy=True),
            set(),
            {
                "conditions": [
                    {
                        "type": "ReconcileFailed",
                        "status": "True",
                        "reason": "Impossible",
                        "message": "pkg needs dep >=2.0.0",
                    }
                ],
                "friendlyDescription": "Reconcile failed: pkg needs dep >=2.0.0",
                "usefulErrorMessage": "pkg needs dep >=2.0.0",
            },
            "no version is possible",
        ),
        (
            carvel(),
            CARVEL,
            done("failed", is_healthy=False, message="Deployment web: forbidden"),
            set(),
            {
                "conditions": [
                    {"type": "ReconcileFailed", "status": "True", "message": "Deployment web: forbidden"}
                ],
                "friendlyDescription": "Reconcile failed: Deployment web: forbidden",
                "usefulErrorMessage": "Deployment web: forbidden",
                "version": "1.0.0",
                "lastAttemptedVersion": "1.0.0",
            },
            "the objects cannot be written",
        ),
        (
            carvel(),
            CARVEL,
            EstablishedRow(is_healthy=False, message="1 of 2 objects"),
            set(),
            {
                "conditions": [{"type": "Reconciling", "status": "True", "message": "1 of 2 objects"}],
                "friendlyDescription": "Reconciling: 1 of 2 objects",
                "version": "1.0.0",
                "lastAttemptedVersion": "1.0.0",
            },
            "under way",
        ),
        (
            carvel(is_deleted=True),
            CARVEL,
            EstablishedRow(is_healthy=True),
            set(),
            {
                "conditions": [{"type": "Deleting", "status": "True"}],
                "friendlyDescription": "Deleting",
                "version": "1.0.0",
                "lastAttemptedVersion": "1.0.0",
            },
            "it goes",
        ),
    ],
)
def test_the_status_of_a_package_install(
    install: Install,
    lock: LockRow | None,
    established: EstablishedRow | None,
    healthy: set[str],
    expected: dict[str, Any],
    reason: str,
) -> None:
    """C11: one condition, its description, and the error for people; all of what the lock has decided on."""
    decided = msgspec.structs.replace(lock, generation=3) if lock is not None else None
    found = carvel_status(install, decided, established, healthy)
    dependencies = found.pop("dependencies", None)
    generation = 3 if lock is not None and not install.is_deleted else 4
    assert found == {"observedGeneration": generation, **expected}, reason
    assert (dependencies is not None) == (lock is HELD)


def test_the_status_of_revisions() -> None:
    """X14: RevisionHealthy and RuntimeHealthy; dependencies are counted at the active one."""
    lock = locked(dependencies=DEPENDENCIES, revisions=(ONE, TWO))
    row = EstablishedRow(
        revisions=(
            EstablishedRevision(name="net-1", state="established"),
            EstablishedRevision(name="net-2", state="released"),
        )
    )
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}
    assert revision_status(
        ONE, lock, row, runtime=Runtime("False", "0 of 1 replicas"), references=[reference]
    ) == {
        "conditions": [
            said("RevisionHealthy", "True", "HealthyPackageRevision"),
            said("RuntimeHealthy", "False", "UnhealthyPackageRevision", "0 of 1 replicas"),
        ],
        "foundDependencies": 7,
        "installedDependencies": 3,
        "invalidDependencies": 1,
        "objectRefs": [reference],
    }
    assert revision_status(TWO, lock, row, runtime=Runtime("True")) == {
        "conditions": [said("RevisionHealthy", "True", "HealthyPackageRevision", INACTIVE)]
    }


@pytest.mark.parametrize(
    ("revision", "state", "condition"),
    [
        (ONE, "pending", said("RevisionHealthy", "Unknown", "UnknownPackageRevisionHealth")),
        (ONE, "released", said("RevisionHealthy", "Unknown", "UnknownPackageRevisionHealth")),
        (ONE, "failed", said("RevisionHealthy", "False", "UnhealthyPackageRevision")),
        (TWO, "established", said("RevisionHealthy", "Unknown", "UnknownPackageRevisionHealth")),
        (TWO, "released", said("RevisionHealthy", "True", "HealthyPackageRevision", INACTIVE)),
    ],
)
def test_a_revision_is_healthy_in_the_state_that_it_shall_have(
    revision: LockedRevision, state: Any, condition: dict[str, str]
) -> None:
    """X14: a revision between two states is neither healthy nor unhealthy."""
    row = EstablishedRow(revisions=(EstablishedRevision(name=revision.name, state=state),))
    assert revision_status(revision, LOCKED, row)["conditions"] == [condition]


def test_the_lock_is_resolved_unless_something_is_refused_or_broken() -> None:
    """X14: with the shipped reasons, and who is not resolved."""
    good = {"pkg.crossplane.io/Provider||a": LOCKED}
    assert lock_status(good) == {"conditions": [said("Resolved", "True", "DependencyResolutionSucceeded")]}
    bad = good | {
        "pkg.crossplane.io/Provider||b": LockRow(status="broken", message="has 2 manifests"),
        "pkg.crossplane.io/Provider||c": LockRow(status="refused", reason="Impossible"),
        "pkg.crossplane.io/Provider||d": LockRow(status="waiting", message="m"),
    }
    assert lock_status(bad) == {
        "conditions": [
            said("Resolved", "False", "DependencyResolutionFailed", "b: has 2 manifests; c: Impossible")
        ]
    }
    many = {f"pkg.crossplane.io/Provider||p{n:02}": LockRow(status="broken", message="m") for n in range(12)}
    assert lock_status(many)["conditions"][0]["message"].endswith("p09: m; and 2 more")


def test_the_lock_has_packages_and_what_they_own() -> None:
    """X1: the seed's fields; what only an inactive revision has is not owned."""
    active = msgspec.structs.replace(
        ONE,
        objects=(
            f"{CRD}b.example.org",
            f"{CRD}a.example.org",
            "apiextensions.crossplane.io/Composition||nets",
            "/ConfigMap|ns|x",
        ),
    )
    row = locked(
        revisions=(active, msgspec.structs.replace(TWO, objects=(f"{CRD}c.example.org",))),
        dependencies=DEPENDENCIES[:2],
    )
    assert package_locks({"pkg.crossplane.io/Provider||net": row, "x||y": LockRow(status="waiting")}) == [
        {
            "apiVersion": "pkg.crossplane.io/v1beta1",
            "kind": "PackageLock",
            "metadata": {"name": "lock"},
            "spec": {
                "packages": [
                    {
                        "name": "net-1",
                        "image": f"{SOURCE}@{DIGEST}",
                        "dependencies": ["pkg1.test.carvel.dev", api("some.api.com/v1", "MainApi")],
                    }
                ],
                "compositions": {"nets": "net-1"},
                "customResourceDefinitions": {"a.example.org": "net-1", "b.example.org": "net-1"},
                "objects": {"/ConfigMap|ns|x": "net-1"},
            },
        }
    ]


def test_an_empty_lock_is_one_page() -> None:
    assert [each["metadata"]["name"] for each in package_locks({})] == ["lock"]


def test_times_change_with_the_answer_only() -> None:
    """A status that says the same keeps the time, so that it is not written again."""
    before = [
        {"type": "Installed", "status": "True", "reason": "x", "lastTransitionTime": "T1"},
        {"type": "Healthy", "status": "Unknown", "reason": "x", "lastTransitionTime": "T1"},
    ]
    now = package_status(crossplane(), LOCKED, done())["conditions"]
    assert [each["lastTransitionTime"] for each in with_times(now, before, "T2")] == ["T1", "T2"]
    assert [each["lastTransitionTime"] for each in with_times(now, [], "T2")] == ["T2", "T2"]
