"""Deletion of a PackageInstall whose account cannot delete its objects: who is told, and the way out."""

from typing import Any

import pytest

from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Kind, Object
from tests.unit.core.platform.establish.test_carvel import (
    CONFIG_MAP,
    KEY,
    USER,
    add_install,
    add_package,
    config_map,
    data_of,
    order,
)
from tests.unit.core.platform.establish.world import INSTALL, EstablishWorld

NAMESPACE = Kind("", "Namespace")
RIGHT = 'User "system:serviceaccount:team:installer" cannot delete resource "configmaps"'
WAY_OUT = "set spec.noopDelete to true"


def installed(*names: str) -> EstablishWorld:
    """Return a world with an install of ConfigMaps, in a namespace that is there."""
    world = EstablishWorld()
    world.cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    add_install(world)
    add_package(world, "1.0.0", [config_map(name, "1") for name in names])
    order(world, "1.0.0")
    world.settle()
    assert all(data_of(world, name) == "1" for name in names)
    return world


def forbid(world: EstablishWorld, *names: str, reason: str = "Forbidden") -> None:
    """Take the account the right to delete ConfigMaps: those of these names, or all."""

    def refuse(user: str, verb: str, obj: Object) -> None:
        if user == USER and verb == "delete" and (not names or obj["metadata"]["name"] in names):
            raise PermanentError(f"{RIGHT} in the namespace team", reason=reason)

    world.cluster.authorizes = refuse


def delete(world: EstablishWorld) -> None:
    world.cluster.terminate(INSTALL, "team", "app")
    order(world, "1.0.0", status="removed")
    world.settle()


def edit(world: EstablishWorld, **spec: Any) -> None:
    obj = live(world)
    world.cluster.put({**obj, "spec": {**obj["spec"], **spec}})


def live(world: EstablishWorld) -> Object:
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    return obj


def is_gone(world: EstablishWorld) -> bool:
    return world.cluster.peek(INSTALL, "team", "app") is None and KEY not in world.done


def hold(world: EstablishWorld, name: str) -> None:
    obj = world.cluster.peek(CONFIG_MAP, "team", name)
    assert obj is not None
    world.cluster.put({**obj, "metadata": {**obj["metadata"], "finalizers": ["example.org/hold"]}})


def test_a_refused_deletion_says_who_lacks_what_and_the_way_out() -> None:
    """The condition is DeleteFailed, and the install and its objects stay."""
    world = installed("settings")
    forbid(world)
    delete(world)
    status = live(world)["status"]
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == ("DeleteFailed", "True")
    for text in (condition["message"], status["usefulErrorMessage"], status["friendlyDescription"]):
        assert text.removeprefix("Delete failed: ").startswith(
            f"{USER} cannot delete ConfigMap team/settings"
        )
        assert RIGHT in text
        assert "give the account these rights" in text
        assert WAY_OUT in text
    assert data_of(world, "settings") == "1"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_right_that_is_given_back_is_used_without_a_word(is_restarted: bool) -> None:
    """The next look is after 20 s, and nobody has to touch the install."""
    world = installed("settings")
    forbid(world)
    delete(world)
    assert world.reconcile(KEY).again_after == pytest.approx(20.0)
    world.cluster.authorizes = None
    if is_restarted:
        world.start()
    world.reconcile(KEY)
    assert (data_of(world, "settings"), is_gone(world)) == (None, True)


def test_the_way_out_lets_the_install_go_and_leaves_its_objects() -> None:
    world = installed("settings")
    forbid(world)
    delete(world)
    edit(world, noopDelete=True)
    world.settle()
    assert (data_of(world, "settings"), is_gone(world)) == ("1", True)


def test_an_install_that_names_no_account_any_more_says_so() -> None:
    """Nothing is asked of the API server in the name of nobody."""
    world = installed("settings")
    edit(world, serviceAccountName="")
    delete(world)
    (condition,) = live(world)["status"]["conditions"]
    assert condition["type"] == "DeleteFailed"
    assert "spec.serviceAccountName is missing" in condition["message"]
    assert WAY_OUT in condition["message"]
    edit(world, serviceAccountName="installer")
    world.settle()
    assert (data_of(world, "settings"), is_gone(world)) == (None, True)


def test_a_refusal_does_not_hold_up_the_other_objects() -> None:
    """What can be deleted is; of many refusals the first ones are named, and the rest is counted."""
    names = [f"kept-{number}" for number in range(7)]
    world = installed("a", "z", *names)
    forbid(world, *names)
    delete(world)
    assert (data_of(world, "a"), data_of(world, "z")) == (None, None)
    message = world.done[KEY].message
    assert message.count("ConfigMap team/kept-") == 5
    assert "; and 2 more: give" in message


def test_a_refusal_of_another_kind_asks_for_no_right() -> None:
    world = installed("settings")
    forbid(world, reason="Invalid")
    delete(world)
    assert "give the account" not in world.done[KEY].message
    assert WAY_OUT in world.done[KEY].message


@pytest.mark.parametrize("cause", ["rights", "account", "finalizer"])
def test_a_namespace_that_goes_is_not_held(cause: str) -> None:
    """Its own deletion takes the account's rights first, and the objects in it by itself."""
    world = installed("settings", "other")
    if cause == "rights":
        forbid(world, "settings")
    elif cause == "account":
        edit(world, serviceAccountName="")
    else:
        hold(world, "settings")
    namespace = world.cluster.peek(NAMESPACE, "", "team")
    assert namespace is not None
    world.cluster.put(
        {**namespace, "metadata": {**namespace["metadata"], "finalizers": ["kubernetes"]}},
    )
    delete(world)
    assert not is_gone(world)
    world.cluster.terminate(NAMESPACE, "", "team")
    world.settle()
    assert is_gone(world)


def test_a_deletion_that_waits_names_the_object_and_what_holds_it() -> None:
    world = installed("settings")
    hold(world, "settings")
    delete(world)
    (condition,) = live(world)["status"]["conditions"]
    assert condition["type"] == "Deleting"
    assert condition["message"] == (
        "waits for its objects to be gone: ConfigMap team/settings (example.org/hold)"
    )
    world.cluster.remove(CONFIG_MAP, "team", "settings")
    world.settle()
    assert is_gone(world)


def test_an_update_that_may_not_delete_what_is_outdated_fails_aloud() -> None:
    """The new version is written; what is left of the former one is named, and is known for the next look."""
    world = installed("old", "settings")
    add_package(world, "2.0.0", [config_map("settings", "2")])
    forbid(world)
    order(world, "2.0.0")
    world.settle()
    (condition,) = live(world)["status"]["conditions"]
    assert condition["type"] == "ReconcileFailed"
    assert f"ConfigMap team/old: {RIGHT}" in condition["message"]
    world.cluster.authorizes = None
    world.settle()
    assert (data_of(world, "settings"), data_of(world, "old")) == ("2", None)
    assert world.done[KEY].is_healthy


def test_an_install_for_another_cluster_is_not_written_into_this_one() -> None:
    """It would be installed, and later deleted, where nobody wants it."""
    world = EstablishWorld()
    add_install(world, cluster={"kubeconfigSecretRef": {"name": "far"}})
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    assert (world.done[KEY].reason, data_of(world, "settings")) == ("NotSupported", None)
    assert "spec.cluster" in world.done[KEY].message
    world.cluster.terminate(INSTALL, "team", "app")
    assert world.cluster.peek(INSTALL, "team", "app") is None, "nothing holds it"
