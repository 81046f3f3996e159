"""Kubernetes Events of installs: what is told, once per change, and in whose words."""

import pytest

from pvbus.core.kernel.effects import Create, Notice
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import EstablishedRevision, EstablishedRow, LockRow
from pvbus.core.platform.establish.notices import notice_of
from pvbus.core.variants.conditions.recording import Recorder
from tests.unit.core.platform.establish.test_activation import active
from tests.unit.core.platform.establish.world import PROVIDER as PROVIDER_OBJECT
from tests.unit.core.platform.establish.world import EstablishWorld, crd, okey_of

PROVIDER = ObjectKey.parse(okey_of("pa"))
CARVEL = ObjectKey.parse("packaging.carvel.dev/PackageInstall|demo|a")


def row(**fields: object) -> LockRow:
    return LockRow(**{"status": "locked", "uid": "u", "package": "p", "version": "v1", **fields})  # type: ignore[arg-type]


def outcome_of(
    reason: str = "",
    message: str = "",
    *,
    state: str = "established",
    is_healthy: bool = False,
    uid: str = "u",
    name: str = "v1",
) -> EstablishedRow:
    entry = EstablishedRevision(name=name, state=state)  # type: ignore[arg-type]
    return EstablishedRow(uid=uid, revisions=(entry,), is_healthy=is_healthy, reason=reason, message=message)


HEALTHY = outcome_of(is_healthy=True)
CONFLICT = row(status="refused", reason="Conflict", message="a needs b")

RING = row(reason="DependencyCycle", message="a needs b, which needs a")
REPORTED = outcome_of(message="a needs b, which needs a", is_healthy=True)


@pytest.mark.parametrize(
    ("key", "lock", "before", "after", "reason", "why"),
    [
        (PROVIDER, row(), None, HEALTHY, "InstallPackageRevision", "the first installation"),
        (CARVEL, row(), None, HEALTHY, "ReconcileSucceeded", "in kapp-controller's word"),
        (PROVIDER, row(), HEALTHY, HEALTHY, "", "nothing is new"),
        (
            PROVIDER,
            row(),
            HEALTHY,
            outcome_of(is_healthy=True, name="v2"),
            "InstallPackageRevision",
            "an upgrade",
        ),
        (PROVIDER, row(), outcome_of("Reconciling"), outcome_of("Pending"), "", "work goes on"),
        (PROVIDER, RING, HEALTHY, REPORTED, "InstallPackageRevision", "a ring of what is installed"),
        (PROVIDER, RING, REPORTED, REPORTED, "", "the ring is told already"),
        (
            PROVIDER,
            CONFLICT,
            HEALTHY,
            outcome_of("Conflict", "a needs b", is_healthy=True),
            "ResolveDependencies",
            "the refusal of an upgrade; what is there stays healthy",
        ),
        (
            PROVIDER,
            CONFLICT,
            outcome_of("Conflict", "a needs b"),
            outcome_of("Conflict", "a needs b"),
            "",
            "told already",
        ),
        (
            PROVIDER,
            CONFLICT,
            outcome_of("Conflict", "a needs c"),
            outcome_of("Conflict", "a needs b"),
            "ResolveDependencies",
            "for another reason",
        ),
        (
            PROVIDER,
            CONFLICT,
            outcome_of("Conflict", "a needs b", uid="old"),
            outcome_of("Conflict", "a needs b"),
            "ResolveDependencies",
            "of another object of the name",
        ),
        (
            CARVEL,
            row(status="broken", reason="InvalidInstall", message="spec.x"),
            None,
            outcome_of("InvalidInstall", "spec.x"),
            "InvalidInstall",
            "a spec that cannot be read",
        ),
        (
            PROVIDER,
            row(status="waiting", reason="SourceFails", message="401"),
            None,
            outcome_of("SourceFails", "401"),
            "UnpackPackage",
            "a source that says no",
        ),
        (
            PROVIDER,
            row(status="waiting", reason="Waiting", message="the tag"),
            None,
            outcome_of("Waiting", "the tag"),
            "",
            "a moment's wait",
        ),
        (
            CARVEL,
            row(),
            HEALTHY,
            outcome_of("Forbidden", "no right", state="failed"),
            "Forbidden",
            "writes fail",
        ),
        (
            CARVEL,
            row(status="removed"),
            HEALTHY,
            outcome_of("DeleteFailed", "no right"),
            "DeleteFailed",
            "it stays",
        ),
        (PROVIDER, row(), None, outcome_of("Forbidden", "no right"), "Forbidden", "it cannot be looked at"),
        (PROVIDER, row(), None, outcome_of("Pending", "a moment"), "", "work goes on, with words"),
        (PROVIDER, row(), None, outcome_of("WaitingForDependencies", "waits"), "", "it waits for others"),
        (CARVEL, row(status="removed"), HEALTHY, outcome_of("Deleting"), "", "it goes"),
        (PROVIDER, row(uid=""), None, outcome_of("Creating"), "", "there is no object yet"),
    ],
)
def test_what_is_told(
    key: ObjectKey, lock: LockRow, before: EstablishedRow | None, after: EstablishedRow, reason: str, why: str
) -> None:
    notice = notice_of(key, lock, before, after, 1000.0)
    assert (notice.reason if notice else "") == reason, why
    if notice is not None:
        assert notice.is_warning == (reason not in ("InstallPackageRevision", "ReconcileSucceeded"))


def test_the_event_of_an_object_without_a_namespace_is_in_default() -> None:
    """There kubectl describe looks for it; the object itself is named without one."""
    notice = notice_of(PROVIDER, CONFLICT, None, outcome_of("Conflict", "a needs b"), 1000.0)
    assert isinstance(notice, Notice)
    write = Recorder("test").admit(notice, 0.0)
    assert isinstance(write, Create)
    assert write.object["metadata"]["namespace"] == "default"
    assert write.object["reportingController"] == "pvbus.dev/establish"
    assert "namespace" not in write.object["regarding"]


def test_a_refusal_is_told_with_the_row_that_says_it() -> None:
    """At the first decision, whoever installs: where others do, nothing else says why."""
    for installer in ("pvbus", "others"):
        world = EstablishWorld(installer=installer)
        world.add_install("pa")
        world.order("pa", status="refused", reason="Conflict", message="needs another pb")
        world.mirror()
        outcome = world.reconcile(f"cluster|{okey_of('pa')}")
        (put,) = outcome.puts
        assert put.notice is not None
        assert (put.notice.reason, put.notice.note) == ("ResolveDependencies", "needs another pb")


def test_an_installation_is_told_once() -> None:
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    notices = []
    for _ in range(6):
        world.mirror()
        notices += [each.notice for each in world.reconcile(f"cluster|{okey_of('pa')}").puts if each.notice]
    assert [each.reason for each in notices] == ["InstallPackageRevision"]


def test_a_ring_is_in_the_event_and_in_the_conditions() -> None:
    """Of a healthy install, with the names of all that need each other."""
    world = EstablishWorld()
    world.add_install("pa")
    said = "Provider pa needs Provider pb, which needs Provider pa"
    world.order("pa", active(world.publish("d1", [crd("One")])), reason="DependencyCycle", message=said)
    notices = []
    for _ in range(6):
        world.mirror()
        notices += [each.notice for each in world.reconcile(f"cluster|{okey_of('pa')}").puts if each.notice]
    assert [said in each.note for each in notices] == [True]
    obj = world.cluster.peek(PROVIDER_OBJECT, "", "pa")
    assert obj is not None
    assert {each["type"]: each.get("message", "") for each in obj["status"]["conditions"]} == {
        "Installed": said,
        "Healthy": said,
    }
