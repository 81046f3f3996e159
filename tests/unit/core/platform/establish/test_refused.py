"""Installs that are refused what they ask for: what they have stays whole."""

import pytest

from pvbus.core.errors import PermanentError
from tests.unit.core.platform.establish.test_activation import active
from tests.unit.core.platform.establish.test_carvel import (
    CONFIG_MAP,
    KEY,
    PACKAGE,
    add_install,
    add_package,
    config_map,
    data_of,
    order,
)
from tests.unit.core.platform.establish.world import CRD, EstablishWorld, crd


@pytest.mark.parametrize("status", ["refused", "broken"])
def test_an_install_that_is_refused_has_its_present_version_put_right(status: str) -> None:
    """An upgrade that cannot be had is no reason to leave a hole: what a person deletes comes back."""
    world = EstablishWorld()
    world.add_install("pa")
    first = active(world.publish("d1", [crd("One"), crd("Two")]))
    world.order("pa", first)
    world.settle()
    world.order("pa", first, status=status, reason="Conflict", message="needs another pb")
    world.settle()
    writes = len(world.changes)
    world.start()
    world.settle()
    assert len(world.changes) == writes
    world.cluster.remove(CRD, "", "ones.example.org")
    world.start()
    world.settle()
    assert world.controller_of("One") == "rev-d1"
    row = world.row("pa")
    assert (row.is_healthy, row.reason, row.message) == (True, "Conflict", "needs another pb")
    assert row.revisions[0].state == "established"


def test_an_install_whose_object_another_one_has_leaves_it_alone() -> None:
    """By the lock it is the other one's, who would wait for ever if it came back."""
    world = EstablishWorld()
    world.add_install("pa")
    first = active(world.publish("d1", [crd("One")]))
    world.order("pa", first)
    world.settle()
    world.order("pa", first, status="refused", reason="ObjectOwned", message="One belongs to Provider pb")
    world.cluster.remove(CRD, "", "ones.example.org")
    world.start()
    world.settle()
    assert world.live(CRD, "ones.example.org") is None


def test_a_refused_install_whose_content_cannot_be_pulled_keeps_what_it_has() -> None:
    """It says both: why it does not get what it asks for, and why what it has was not looked at."""
    world = EstablishWorld()
    world.add_install("pa")
    first = active(world.publish("d1", [crd("One")]))
    world.order("pa", first)
    world.settle()
    world.refusals["d1"] = PermanentError("the registry says 401", reason="Unauthorized")
    world.order("pa", first, status="refused", reason="Conflict", message="needs another pb")
    world.settle()
    row = world.row("pa")
    assert row.reason == "Conflict"
    assert "needs another pb" in row.message
    assert "401" in row.message
    assert (row.is_healthy, row.revisions[0].state) == (True, "established")
    assert world.controller_of("One") == "rev-d1"


@pytest.mark.parametrize("status", ["refused", "broken"])
def test_a_packageinstall_that_is_refused_has_its_present_version_put_right(status: str) -> None:
    """The version that it does not get is in the lock's row; the one that is there is in its own."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    order(world, "2.0.0", status=status, reason="Conflict", message="needs another pb")
    world.start()
    world.settle()
    assert data_of(world, "settings") == "1"
    world.cluster.remove(CONFIG_MAP, "team", "settings")
    world.start()
    world.settle()
    assert data_of(world, "settings") == "1"
    row = world.done[KEY]
    assert (row.is_healthy, row.reason, row.message) == (True, "Conflict", "needs another pb")
    assert [(each.name, each.state) for each in row.revisions] == [("1.0.0", "established")]


def test_a_refused_packageinstall_whose_package_is_gone_keeps_what_it_has() -> None:
    """It is not known any more what belongs to it, so nothing of it is touched."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    before = world.done[KEY].revisions
    world.cluster.remove(PACKAGE, "team", "app.example.org.1.0.0")
    order(world, "2.0.0", status="refused", reason="Conflict", message="needs another pb")
    world.start()
    world.settle()
    row = world.done[KEY]
    assert row.revisions == before
    assert row.message == "needs another pb; there is no Package app.example.org.1.0.0"
    assert data_of(world, "settings") == "1"
