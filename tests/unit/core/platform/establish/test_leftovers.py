"""What is left in the cluster after an install: neither its objects nor the words of a former failure."""

from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.establish.reporting import is_shown
from tests.unit.core.platform.establish.test_carvel import (
    add_install,
    add_package,
    config_map,
    data_of,
    order,
)
from tests.unit.core.platform.establish.world import INSTALL, EstablishWorld

CHILD = "cluster|packaging.carvel.dev/PackageInstall|team|child"
TEMPLATE = {"packageRef": {"refName": "app.example.org"}, "serviceAccountName": "installer"}


def created(world: EstablishWorld, **fields: object) -> None:
    """Order an install that was created for `app`."""
    obj = world.cluster.peek(INSTALL, "team", "child")
    row = {
        "status": "locked",
        "uid": obj["metadata"]["uid"] if obj is not None else "",
        "package": "app.example.org",
        "version": "1.0.0",
        "template": TEMPLATE,
        "holders": ("packaging.carvel.dev/PackageInstall|team|app",),
        **fields,
    }
    world.set_lock(CHILD, LockRow(**row))  # type: ignore[arg-type]


def test_the_objects_of_a_created_install_go_with_it() -> None:
    """The install is deleted by us; what it had is known until its objects are gone, also if somebody has
    removed the note of it."""
    world = EstablishWorld()
    add_package(world, "1.0.0", [config_map("settings", "1")])
    created(world)
    world.settle()
    created(world)
    world.settle()
    assert data_of(world, "settings") == "1"
    obj = world.cluster.peek(INSTALL, "team", "child")
    assert obj is not None
    del obj["metadata"]["annotations"]["pvbus.dev/objects"]
    world.cluster.put(obj)
    created(world, status="removed", removal="delete", template={})
    world.settle()
    assert world.cluster.peek(INSTALL, "team", "child") is None
    assert data_of(world, "settings") is None
    assert CHILD not in world.done


def test_the_message_of_a_former_failure_goes() -> None:
    """After a success the status has no error, and nothing more is written."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings")])
    order(world, "1.0.0", status="refused", reason="Conflict", message="it excludes another one")
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    assert obj["status"]["usefulErrorMessage"] == "it excludes another one"
    order(world, "1.0.0")
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    assert "usefulErrorMessage" not in obj["status"]
    assert obj["status"]["conditions"][0]["type"] == "ReconcileSucceeded"


def test_a_status_with_a_former_failure_is_not_the_wanted_one() -> None:
    """Its condition is right already; the words of the failure make the difference."""
    succeeded = {"type": "ReconcileSucceeded", "status": "True"}
    wanted = {"conditions": [succeeded]}
    assert is_shown({"status": {"conditions": [succeeded]}}, wanted)
    assert not is_shown({"status": {"conditions": [succeeded], "usefulErrorMessage": "old"}}, wanted)
