"""The App of a PackageInstall: what it shows, and what is left alone."""

from typing import Any

import pytest

from pvbus.ports.cluster import Kind, Object
from tests.unit.core.platform.establish.test_carvel import KEY, add_install, add_package, config_map, order
from tests.unit.core.platform.establish.world import INSTALL, EstablishWorld

APP = Kind("kappctrl.k14s.io", "App")


def installed(**spec: Any) -> EstablishWorld:
    world = EstablishWorld()
    add_install(world, **spec)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    return world


def app_of(world: EstablishWorld) -> Object:
    obj = world.cluster.peek(APP, "team", "app")
    assert obj is not None
    return obj


def test_an_app_has_the_spec_of_the_package_and_the_status_of_its_stages() -> None:
    """It belongs to its install, and goes with it."""
    world = installed(syncPeriod="1h")
    app = app_of(world)
    install = world.cluster.peek(INSTALL, "team", "app")
    assert install is not None
    (owner,) = app["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (install["metadata"]["uid"], True)
    assert (app["spec"]["serviceAccountName"], app["spec"]["syncPeriod"]) == ("installer", "1h")
    assert [*app["spec"]["template"], *app["spec"]["deploy"]] == [{"ytt": {}}, {"kapp": {}}]
    status = app["status"]
    assert status["friendlyDescription"] == "Reconcile succeeded"
    assert [status[stage]["exitCode"] for stage in ("fetch", "template", "deploy")] == [0, 0, 0]
    assert status["deploy"]["startedAt"]
    assert [each["type"] for each in status["conditions"]] == ["ReconcileSucceeded"]


def test_the_stage_that_failed_says_why_and_those_after_it_stay() -> None:
    """A version that cannot be rendered has an App that says so; what a stage did before is still there."""
    world = installed()
    add_package(world, "1.1.0", [], template=[{"sops": {}}])
    order(world, "1.1.0")
    world.settle()
    status = app_of(world)["status"]
    assert status["friendlyDescription"].startswith("Reconcile failed: ")
    assert (status["fetch"]["exitCode"], status["template"]["exitCode"]) == (0, 1)
    assert status["template"]["error"] == world.done[KEY].message == status["usefulErrorMessage"]
    add_package(world, "1.2.0", [config_map("settings", "2")])
    order(world, "1.2.0")
    world.settle()
    assert "usefulErrorMessage" not in app_of(world)["status"]


def test_another_pass_writes_no_app() -> None:
    """Times are those of the last work, not of the last look; and a new version is new work."""
    world = installed()
    before, writes = app_of(world)["status"], len(world.cluster.writes)
    world.start()
    world.mirror()
    world.reconcile(KEY, now=2000.0)
    assert (app_of(world)["status"], len(world.cluster.writes)) == (before, writes)
    add_package(world, "1.1.0", [config_map("settings", "2")])
    order(world, "1.1.0")
    for _ in range(3):
        world.mirror()
        world.reconcile(KEY, now=5000.0)
    assert app_of(world)["status"]["deploy"]["startedAt"] > before["deploy"]["startedAt"]


@pytest.mark.parametrize("meta", [{}, {"annotations": {"ext.packaging.carvel.dev/manually-controlled": ""}}])
def test_an_app_of_somebody_else_is_left_alone(meta: dict[str, Any]) -> None:
    world = EstablishWorld()
    theirs = {
        "apiVersion": "kappctrl.k14s.io/v1alpha1",
        "kind": "App",
        "metadata": {"name": "app", "namespace": "team", **meta},
        "spec": {"fetch": []},
    }
    world.cluster.put(theirs)
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    assert world.done[KEY].is_healthy
    assert (app_of(world)["spec"], "status" in app_of(world)) == ({"fetch": []}, False)
