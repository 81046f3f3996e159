"""Statuses of installs and revisions, and the pages of the lock: written where they differ, not else."""

from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.packagerows import LockedDependency
from pvbus.core.kernel.records import INSTALLS, LOCK
from pvbus.core.platform.establish.controller import PAGES
from pvbus.ports.cluster import Kind, Resource
from tests.kit.deciding import PARTITION
from tests.unit.core.platform.establish.test_activation import active, inactive
from tests.unit.core.platform.establish.test_carvel import KEY, add_install, add_package, config_map, order
from tests.unit.core.platform.establish.world import (
    INSTALL,
    PKG,
    PROVIDER,
    REVISION,
    EstablishWorld,
    crd,
    okey_of,
)

PAGE = Kind("pkg.crossplane.io", "PackageLock")


def conditions(
    world: EstablishWorld, kind: Kind, name: str, namespace: str = ""
) -> dict[str, tuple[str, str]]:
    obj = world.cluster.peek(kind, namespace, name)
    assert obj is not None
    found = obj.get("status", {}).get("conditions", ())
    return {each["type"]: (each["status"], each.get("reason", "")) for each in found}


def test_an_install_reports_its_revision_and_whether_it_is_healthy() -> None:
    """Installed and Healthy have Crossplane's words; the revision lists its objects."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert conditions(world, PROVIDER, "pa") == {
        "Installed": ("True", "ActivePackageRevision"),
        "Healthy": ("True", "HealthyPackageRevision"),
    }
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    assert obj["status"]["currentRevision"] == "rev-d1"
    assert conditions(world, REVISION, "rev-d1") == {"RevisionHealthy": ("True", "HealthyPackageRevision")}
    revision = world.cluster.peek(REVISION, "", "rev-d1")
    assert revision is not None
    assert revision["status"]["objectRefs"] == [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "name": "ones.example.org",
        }
    ]


def generations(world: EstablishWorld, kind: Kind, name: str) -> tuple[int, set[Any]]:
    """Return the generation of an object, and those that its conditions speak of."""
    obj = world.cluster.peek(kind, "", name)
    assert obj is not None
    return obj["metadata"]["generation"], {each["observedGeneration"] for each in obj["status"]["conditions"]}


def change_spec(world: EstablishWorld, kind: Kind, name: str, **spec: Any) -> None:
    """Change a spec as a user does: the API server counts its generation."""
    obj = world.cluster.peek(kind, "", name)
    assert obj is not None
    meta = {**obj["metadata"], "generation": obj["metadata"]["generation"] + 1}
    world.cluster.put({**obj, "metadata": meta, "spec": {**obj["spec"], **spec}})


def test_conditions_speak_of_the_generation_that_the_lock_has_decided_on() -> None:
    """So `kubectl wait` waits for a change that is not decided on, and for nothing else after that."""
    world = EstablishWorld()
    world.add_install("pa")
    revision = active(world.publish("d1", [crd("One")]))
    world.order("pa", revision, generation=1)
    world.settle()
    change_spec(world, PROVIDER, "pa", commonLabels={"team": "a"})
    world.settle()
    assert generations(world, PROVIDER, "pa") == (2, {1})
    world.order("pa", revision, generation=2)
    world.settle()
    assert generations(world, PROVIDER, "pa") == (2, {2})


def test_a_revision_reports_the_generation_of_a_switch_by_pvbus_itself() -> None:
    """Each write of desiredState makes a generation, and no wait for a condition must hang on it."""
    world = EstablishWorld()
    world.add_install("pa")
    first, second = world.publish("d1", [crd("One")]), world.publish("d2", [crd("Two")])
    world.order("pa", active(first))
    world.settle()
    world.order("pa", inactive(first), active(second))
    world.settle()
    for name in ("rev-d1", "rev-d2"):
        generation, seen = generations(world, REVISION, name)
        assert generation > 1
        assert seen == {generation}


def test_the_echo_of_a_revision_whose_status_is_behind_has_its_install_look() -> None:
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    change_spec(world, REVISION, "rev-d1")
    key = f"cluster|{PKG}/ProviderRevision||rev-d1"
    value = msgspec.json.encode(world.cluster.peek(REVISION, "", "rev-d1"))
    assert f"cluster|{okey_of('pa')}" in world.controller.load(INSTALLS, PARTITION, key, value)
    world.settle()
    generation, seen = generations(world, REVISION, "rev-d1")
    assert seen == {generation}


def test_a_change_of_a_user_in_a_revision_is_observed_once_the_lock_has_it() -> None:
    world = EstablishWorld()
    world.add_install("pa")
    revision = active(world.publish("d1", [crd("One")]))
    world.order("pa", revision)
    world.settle()
    change_spec(world, REVISION, "rev-d1", desiredState="Inactive")
    world.settle()
    generation, seen = generations(world, REVISION, "rev-d1")
    assert seen == {generation - 1}
    world.order("pa", msgspec.structs.replace(revision, asked=generation))
    world.settle()
    generation, seen = generations(world, REVISION, "rev-d1")
    assert seen == {generation}


WRONG = "the install cannot be read: spec.revisionHistoryLimit: must be a number"


@pytest.mark.parametrize("is_installed", [False, True])
def test_an_install_that_cannot_be_read_says_why_and_keeps_what_it_has(is_installed: bool) -> None:
    world = EstablishWorld()
    world.add_install("pa")
    revisions = [active(world.publish("d1", [crd("One")]))] if is_installed else []
    if is_installed:
        world.order("pa", *revisions)
        world.settle()
    world.add_install("pa", revisionHistoryLimit="many")
    world.order("pa", *revisions, status="broken", reason="InvalidInstall", message=WRONG)
    world.settle()
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    answers = {each["type"]: (each["status"], each["message"]) for each in obj["status"]["conditions"]}
    assert answers == {"Installed": (str(is_installed), WRONG), "Healthy": ("False", WRONG)}
    assert world.controller_of("One") == ("rev-d1" if is_installed else "")
    writes = len(world.changes)
    world.start()
    world.settle()
    assert len(world.changes) == writes


def test_a_packageinstall_that_cannot_be_read_says_why() -> None:
    world = EstablishWorld()
    add_install(world, packageRef={"refName": 7})
    order(world, "", status="broken", package="", reason="InvalidInstall", message=WRONG)
    world.settle()
    assert conditions(world, INSTALL, "app", "team") == {"ReconcileFailed": ("True", "InvalidInstall")}
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    assert obj["status"]["usefulErrorMessage"] == WRONG


def test_the_loser_of_a_conflict_reports_the_owner() -> None:
    """The words of the refusal are in the statuses of the install and of its revision."""
    world = EstablishWorld()
    for name in ("pa", "pb"):
        world.add_install(name)
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.order("pb", active(world.publish("d2", [crd("One")])))
    world.settle()
    for kind, name in ((PROVIDER, "pb"), (REVISION, "rev-d2")):
        obj = world.cluster.peek(kind, "", name)
        assert obj is not None
        messages = [each.get("message", "") for each in obj["status"]["conditions"]]
        assert any("controlled by ProviderRevision rev-d1" in text for text in messages), name
    assert conditions(world, PROVIDER, "pb")["Healthy"] == ("False", "UnhealthyPackageRevision")


def test_a_refused_install_is_reported_and_stays_as_it_was() -> None:
    """A lock that refuses an update changes the status alone."""
    world = EstablishWorld()
    world.add_install("pa")
    first = active(world.publish("d1", [crd("One")]))
    world.order("pa", first)
    world.settle()
    changes = len(world.changes)
    world.order("pa", first, status="refused", reason="Conflict", message="pb has Two")
    world.settle()
    assert len(world.changes) == changes
    assert conditions(world, PROVIDER, "pa")["Healthy"] == ("False", "UnhealthyPackageRevision")
    assert conditions(world, PROVIDER, "pa")["Installed"][0] == "True"


def test_a_mirror_that_is_behind_causes_no_second_write() -> None:
    """The live status is compared before it is written, as the mirror does not show the last write yet."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    world.start()
    behind = world.cluster.peek(PROVIDER, "", "pa")
    assert behind is not None
    old = msgspec.json.encode({**behind, "status": {}})
    key = f"cluster|{okey_of('pa')}"
    world.controller.load(INSTALLS, PARTITION, key, old)
    requests = world.requests
    for _ in range(2):
        world.reconcile(key)
    assert world.requests == requests


def seen(world: EstablishWorld, **status: Any) -> list[str]:
    """Have the watch show pa as it is, or with another status; return the keys that are to be looked at."""
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    shown = {**obj, "status": status} if status else obj
    key = f"cluster|{okey_of('pa')}"
    return [*world.controller.load(INSTALLS, PARTITION, key, msgspec.json.encode(shown))]


def test_the_echo_of_our_own_report_is_no_reason_to_look_and_anothers_status_is() -> None:
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert seen(world) == []
    assert seen(world, conditions=[]) == [f"cluster|{okey_of('pa')}"]


def test_the_echo_of_a_report_that_is_not_wanted_any_more_is_put_right() -> None:
    """The mirror still shows the report before it, which is wanted again: nothing is written then."""
    world = EstablishWorld()
    world.add_install("pa")
    revision = active(world.publish("d1", [crd("One")]))
    world.order("pa", revision)
    world.settle()
    key = f"cluster|{okey_of('pa')}"
    healthy = conditions(world, PROVIDER, "pa")
    for fields in ({"status": "refused", "reason": "ObjectOwned", "message": "no"}, {}):
        world.order("pa", revision, **fields)
        for _ in range(2):
            world.reconcile(key)
    assert conditions(world, PROVIDER, "pa") != healthy
    assert seen(world) == [key]
    world.reconcile(key)
    assert conditions(world, PROVIDER, "pa") == healthy


def test_rows_that_come_before_the_next_write_of_the_pages_are_written_with_it() -> None:
    world = EstablishWorld()
    world.cluster.serve(Resource("pkg.crossplane.io", "v1beta1", "PackageLock", "packagelocks", False))
    world.add_install("pa")
    revision = active(world.publish("d1", [crd("One")]))
    key, marked = f"cluster|{okey_of('pa')}", []
    for at in (1000.0, 1000.2, 1000.4, 1001.5, 1001.6):
        world.order("pa", revision)
        row = msgspec.json.encode(world.lock[key])
        marked.append(PAGES in world.controller.load(LOCK, PARTITION, key, row))
        if marked[-1]:
            world.reconcile(PAGES, now=at)
        elif at > 1001.0:
            assert world.reconcile(PAGES, now=at).again_after is not None  # by its time
    assert marked == [True, True, False, False, True]


def test_others_conditions_and_fields_stay() -> None:
    """Only what pvbus reports is replaced."""
    world = EstablishWorld()
    obj = world.add_install("pa")
    theirs = {"type": "Theirs", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    world.cluster.put({**obj, "status": {"conditions": [theirs], "other": 1}})
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    live = world.cluster.peek(PROVIDER, "", "pa")
    assert live is not None
    assert theirs in live["status"]["conditions"]
    assert live["status"]["other"] == 1


def test_a_time_changes_only_with_the_answer() -> None:
    """lastTransitionTime stays while the condition has one answer, whatever it says beside it."""
    world = EstablishWorld()
    world.add_install("pa")
    first = world.publish("d1", [crd("One")])
    world.order("pa", active(first))
    world.settle()
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    for each in obj["status"]["conditions"]:
        each["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    world.order("pa", inactive(first))
    world.settle()
    live = world.cluster.peek(PROVIDER, "", "pa")
    assert live is not None
    times = {each["type"]: each["lastTransitionTime"] for each in live["status"]["conditions"]}
    assert times["Installed"] != "2020-01-01T00:00:00Z"


def test_a_package_install_has_one_condition() -> None:
    """kapp-controller's conditions exclude each other, so a former one goes."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings")])
    need = LockedDependency(
        condition="FoundPackageInstall", install="packaging.carvel.dev/PackageInstall|team|x"
    )
    order(world, "1.0.0", dependencies=(need,))
    world.settle()
    assert conditions(world, INSTALL, "app", "team") == {"Reconciling": ("True", "WaitingForDependencies")}
    order(world, "1.0.0")
    world.settle()
    assert conditions(world, INSTALL, "app", "team") == {"ReconcileSucceeded": ("True", "")}
    assert world.done[KEY].is_healthy


def pages(world: EstablishWorld, now: float) -> dict[str, Any]:
    world.reconcile(PAGES, now=now)
    return {obj["metadata"]["name"]: obj for obj in world.cluster.objects_of(PAGE)}


def test_the_pages_of_the_lock_follow_it() -> None:
    """They have every package and owner; a write a second at most, and none if nothing changed."""
    world = EstablishWorld()
    world.cluster.serve(Resource("pkg.crossplane.io", "v1beta1", "PackageLock", "packagelocks", False))
    world.add_install("pa")
    first = active(world.publish("d1", [crd("One")]))
    world.order("pa", first)
    assert PAGES in world.controller.load(
        "pvbus.lock", PARTITION, "cluster|pkg.crossplane.io/Provider||x", None
    )
    found = pages(world, 1000.0)
    assert found["lock"]["spec"]["customResourceDefinitions"] == {"ones.example.org": "rev-d1"}
    assert found["lock"]["status"]["conditions"][0]["type"] == "Resolved"
    writes = len(world.cluster.writes)
    assert world.reconcile(PAGES, now=1000.4).again_after == pytest.approx(0.6)
    pages(world, 1002.0)
    assert len(world.cluster.writes) == writes
    world.cluster.put(
        {"apiVersion": "pkg.crossplane.io/v1beta1", "kind": "PackageLock", "metadata": {"name": "lock-2"}}
    )
    world.order("pa", inactive(first))
    found = pages(world, 1004.0)
    assert set(found) == {"lock"}
    assert "customResourceDefinitions" not in found["lock"]["spec"]


def test_a_cluster_without_the_kind_of_the_lock_has_no_pages() -> None:
    """Where only Carvel's packages are, nothing is written and nothing fails."""
    world = EstablishWorld()
    assert world.reconcile(PAGES).result == "unchanged"
    assert world.cluster.writes == []
