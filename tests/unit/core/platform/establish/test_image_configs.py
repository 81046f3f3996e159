"""ImageConfigs where packages are installed: checked again, and shown in statuses."""

import msgspec
import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Pull
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.packagekinds import IMAGE_CONFIG
from pvbus.core.kernel.packagerows import UNVERIFIED
from pvbus.core.kernel.records import INSTALLS, SyncMarker
from pvbus.ports.cluster import Kind, Object
from tests.kit.deciding import PARTITION
from tests.unit.core.platform.establish.test_activation import active, inactive
from tests.unit.core.platform.establish.world import CRD, PROVIDER, REVISION, EstablishWorld, crd

SOURCE = "registry.example.org/package"
COSIGN = {"provider": "Cosign", "cosign": {"authorities": [{"name": "ours"}]}}


def started(*, secret: bool = True) -> EstablishWorld:
    """A world whose cluster has the Secret `ours`."""
    world = EstablishWorld()
    world.add_install("pa")
    if secret:
        put_secret(world)
    return world


def put_secret(world: EstablishWorld) -> None:
    meta = {"name": "ours", "namespace": "crossplane-system"}
    world.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta})


def shown(world: EstablishWorld, kind: Kind, name: str) -> Object:
    live = world.live(kind, name)
    assert live is not None
    return live


def mark(world: EstablishWorld, message: str) -> None:
    marker = SyncMarker(state="unavailable", epoch=1, message=message)
    world.controller.load(INSTALLS, PARTITION, sync_key(*IMAGE_CONFIG), msgspec.json.encode(marker))


@pytest.mark.parametrize("hidden", [False, True])
def test_what_needs_a_signature_is_not_installed_although_the_lock_says_so(hidden: bool) -> None:
    """A config may come after the decision. Nothing is pulled or written, and what runs stays as it is."""
    world = started()
    first, second = (world.publish(each, [crd("One", text=each)]) for each in ("d1", "d2"))
    world.order("pa", active(first))
    world.settle()
    pulls = len(world.pulls)
    if hidden:
        mark(world, "imageconfigs is forbidden")
    else:
        world.configure("signed", "registry.example.org/", verification=COSIGN)
    world.order("pa", inactive(first), active(second, 2))
    world.settle()
    assert world.text_of("One") == "d1"
    assert world.states("pa")["rev-d1"] == "Active"
    assert (world.row("pa").reason, {pull.digest for pull in world.pulls[pulls:]}) == (UNVERIFIED, {"d1"})
    assert ("imageconfigs is forbidden" if hidden else "ImageConfig signed") in world.row("pa").message


def test_a_demand_takes_nothing_away_that_runs_and_its_objects_are_still_put_right() -> None:
    world = started()
    world.order("pa", active(world.publish("d1", [crd("One", text="d1")])))
    world.settle()
    world.configure("signed", SOURCE, verification=COSIGN)
    world.cluster.remove(CRD, "", "ones.example.org")
    world.settle()
    assert world.text_of("One") == "d1"
    assert world.row("pa").is_healthy


def test_a_rewritten_image_is_pulled_at_its_mirror_and_statuses_say_so() -> None:
    world = started()
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert "resolvedImage" not in shown(world, REVISION, "rev-d1")["status"]
    world.configure("air-gap", "registry.example.org/", rewriteImage={"prefix": "mirror.example.org/"})
    signed_in = {"authentication": {"pullSecretRef": {"name": "ours"}}}
    world.configure("login", "mirror.example.org/", registry=signed_in)
    world.settle()
    assert world.pulls[-1] == Pull("mirror.example.org/package", "d1", ("crossplane-system/ours",))
    applied = [
        {"name": "air-gap", "reason": "RewriteImage"},
        {"name": "login", "reason": "SetImagePullSecret"},
    ]
    revision, install = shown(world, REVISION, "rev-d1"), shown(world, PROVIDER, "pa")
    assert revision["spec"]["image"] == f"{SOURCE}@d1"
    assert revision["status"]["resolvedImage"] == "mirror.example.org/package@d1"
    assert install["status"]["resolvedPackage"] == "mirror.example.org/package@d1"
    assert revision["status"]["appliedImageConfigRefs"] == applied
    assert install["status"]["appliedImageConfigRefs"] == applied
    for name in list(world.image_configs):
        del world.image_configs[name]
        world.controller.load(INSTALLS, PARTITION, name, None)
    world.settle()
    assert "appliedImageConfigRefs" not in shown(world, PROVIDER, "pa")["status"]
    assert "resolvedImage" not in shown(world, REVISION, "rev-d1")["status"]
    assert world.pulls[-1] == Pull(SOURCE, "d1", ())


def test_a_missing_pull_secret_of_a_config_is_named_and_waited_for() -> None:
    world = started(secret=False)
    world.configure("login", SOURCE, registry={"authentication": {"pullSecretRef": {"name": "ours"}}})
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert world.live(CRD, "ones.example.org") is None
    for part in ("ImageConfig login", "crossplane-system/ours does not exist"):
        assert part in world.row("pa").message
    put_secret(world)
    world.settle()
    assert world.row("pa").is_healthy


def test_a_mirror_that_refuses_is_named_with_its_config() -> None:
    world = started()
    world.configure("air-gap", SOURCE, rewriteImage={"prefix": "mirror.example.org/x"})
    world.refusals["d1"] = PermanentError("mirror.example.org/x has no d1", reason="NotFound")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    assert "ImageConfig air-gap rewrites it to mirror.example.org/x" in world.row("pa").message
