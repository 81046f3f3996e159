"""Beside Crossplane and kapp-controller: who installs, how that is known, and what is left to them."""

import json
from typing import Any

import pytest

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.establish.carvel import FINALIZER, KAPP_LABEL, NOTED
from pvbus.core.platform.packaging.reading import install_of
from pvbus.ports.cluster import Object
from tests.unit.core.platform.establish.test_activation import active
from tests.unit.core.platform.establish.test_carvel import (
    CHILD,
    CONFIG_MAP,
    KEY,
    add_install,
    add_package,
    child_row,
    config_map,
    order,
)
from tests.unit.core.platform.establish.world import CRD, INSTALL, PROVIDER, EstablishWorld, crd, okey_of

PA = f"cluster|{okey_of('pa')}"


def mark(manager: str, time: str, subresource: str = "status") -> Object:
    return {"manager": manager, "operation": "Update", "time": time, "subresource": subresource}


def provider(world: EstablishWorld, *marks: Object) -> None:
    obj = world.add_install("pa")
    obj["metadata"]["managedFields"] = list(marks)
    world.cluster.put(obj)
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.mirror()


def test_nothing_is_written_beside_crossplane() -> None:
    """A status that Crossplane has just written means that it installs; the words say what to set."""
    world = EstablishWorld()
    provider(world, mark("crossplane", "1970-01-01T00:16:20Z"))
    outcome = world.reconcile(PA, now=1000.0)
    assert world.changes == []
    row = world.row("pa")
    assert row.reason == "AnotherInstaller"
    assert "PVBUS_INSTALLER to others" in row.message
    assert outcome.again_after == 40.0
    world.reconcile(PA, now=1041.0)
    assert world.row("pa").is_healthy


def test_an_answer_to_our_own_write_counts_for_longer() -> None:
    """Who writes after we did is at work now: an idle installer shows itself only so."""
    world = EstablishWorld()
    provider(
        world,
        mark("pvbus-establish", "1970-01-01T00:14:00Z"),
        mark("crossplane", "1970-01-01T00:14:10Z"),
    )
    outcome = world.reconcile(PA, now=1000.0)
    assert world.changes == []
    assert outcome.again_after == 450.0


def test_the_command_line_of_crossplane_is_no_installer() -> None:
    """It makes installs, under the same name, and writes no status."""
    world = EstablishWorld()
    provider(world, mark("crossplane", "1970-01-01T00:16:39Z", ""))
    world.reconcile(PA, now=1000.0)
    assert world.row("pa").is_healthy


def test_nothing_is_written_beside_kapp_controller() -> None:
    """Likewise for Carvel's installs."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings")])
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    obj["metadata"]["managedFields"] = [mark("kapp-controller", "1970-01-01T00:16:39Z")]
    order(world, "1.0.0")
    world.mirror()
    world.reconcile(KEY, now=1000.0)
    assert world.changes == []
    assert "kapp-controller" in world.done[KEY].message


def report(world: EstablishWorld, **conditions: str) -> None:
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    found: list[dict[str, Any]] = [{"type": name, "status": status} for name, status in conditions.items()]
    world.cluster.put({**obj, "status": {"conditions": found}})


def test_others_install_what_the_lock_says() -> None:
    """Only the switch that leaves dependencies to pvbus is written; their conditions are ours to report."""
    world = EstablishWorld(installer="others")
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert [(write.verb, write.kind) for write in world.changes] == [("update", "Provider")]
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    assert obj["spec"]["skipDependencyResolution"] is True
    read = install_of(obj)
    assert isinstance(read, Install)
    assert not read.skips_dependencies, "it is for Crossplane, and pvbus goes on deciding"
    assert world.live(CRD, "ones.example.org") is None
    assert not world.row("pa").is_healthy
    report(world, Installed="True", Healthy="False")
    world.settle()
    assert not world.row("pa").is_healthy
    report(world, Installed="True", Healthy="True")
    world.settle()
    assert world.row("pa").is_healthy


def test_others_get_the_installs_of_dependencies() -> None:
    """They are made from the lock, and are healthy when kapp-controller says so of the locked version."""
    world = EstablishWorld(installer="others")
    child_row(world, "app", version="1.0.0")
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "child")
    assert obj is not None
    status = {"conditions": [{"type": "ReconcileSucceeded", "status": "True"}], "version": "0.9.0"}
    world.cluster.put({**obj, "status": status})
    child_row(world, "app", version="1.0.0")
    world.settle()
    assert not world.done[CHILD].is_healthy
    world.cluster.put({**obj, "status": {**status, "version": "1.0.0"}})
    world.settle()
    assert world.done[CHILD].is_healthy
    assert isinstance(world.lock[CHILD], LockRow)


APP_MAPS = ("app.app.apps.k14s.io", "app.app", "app-ctrl.apps.k14s.io", "app-ctrl")


def installed_by_kapp(world: EstablishWorld, record: str, label: str = "1700") -> None:
    """Have kapp's object, and its record of an app with the label 1700, in the cluster."""
    live = config_map("settings", "theirs")
    meta = {**live["metadata"], "namespace": "team", "labels": {KAPP_LABEL: label}}
    world.cluster.put({**live, "metadata": meta})
    known = config_map(record)
    spec = json.dumps({"labelKey": KAPP_LABEL, "labelValue": "1700"})
    meta = {**known["metadata"], "namespace": "team"}
    world.cluster.put({**known, "metadata": meta, "data": {"spec": spec}})


def install_app(world: EstablishWorld) -> None:
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()


@pytest.mark.parametrize("record", APP_MAPS)
def test_what_kapp_controller_installed_for_an_install_is_taken_over(record: str) -> None:
    """kapp's own record says so. It keeps kapp's label, for the way back, and goes with its install."""
    world = EstablishWorld()
    installed_by_kapp(world, record)
    install_app(world)
    assert world.done[KEY].is_healthy, world.done[KEY].message
    live = world.cluster.peek(CONFIG_MAP, "team", "settings")
    assert live is not None
    assert (live["data"]["text"], live["metadata"]["labels"]) == ("1", {KAPP_LABEL: "1700"})
    world.cluster.terminate(INSTALL, "team", "app")
    order(world, "1.0.0", status="removed")
    world.settle()
    assert world.cluster.peek(CONFIG_MAP, "team", "settings") is None


@pytest.mark.parametrize(("record", "label"), [("other.app", "1700"), ("app.app", "1800")])
def test_what_kapp_installed_for_another_one_is_left_alone(record: str, label: str) -> None:
    """The record of another install, or an object that the record is not of."""
    world = EstablishWorld()
    installed_by_kapp(world, record, label)
    install_app(world)
    assert f"belongs to kapp's app {label}" in world.done[KEY].message
    live = world.cluster.peek(CONFIG_MAP, "team", "settings")
    assert live is not None
    assert live["data"]["text"] == "theirs"


def test_an_install_that_others_take_back_does_not_wait_for_us() -> None:
    """In the mode `others` our finalizer and the list of its objects go, and the objects stay."""
    world = EstablishWorld()
    install_app(world)
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    assert FINALIZER in obj["metadata"]["finalizers"]
    world.installer = "others"
    world.start()
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    assert FINALIZER not in obj["metadata"].get("finalizers", [])
    assert NOTED not in obj["metadata"]["annotations"]
    assert world.cluster.peek(CONFIG_MAP, "team", "settings") is not None


def test_a_switch_of_the_user_is_left_as_it_is() -> None:
    """It has no annotation of ours, so dependencies are left alone by both."""
    world = EstablishWorld(installer="others")
    world.add_install("pa", skipDependencyResolution=True)
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert world.changes == []
    obj = world.cluster.peek(PROVIDER, "", "pa")
    assert obj is not None
    read = install_of(obj)
    assert isinstance(read, Install)
    assert read.skips_dependencies
