"""What a package says of itself is on its revision: labels, annotations, asked rights, and lists."""

from typing import Any

import msgspec
import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.kernel.records import INSTALLS
from pvbus.core.platform.establish.manifests import lists_of, status_of
from pvbus.ports.cluster import Kind, Object, Resource
from tests.kit.deciding import PARTITION
from tests.unit.core.platform.establish.test_activation import active
from tests.unit.core.platform.establish.world import PKG, REVISION, EstablishWorld, crd

RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
SPEC: dict[str, Any] = {
    "controller": {"image": "registry.example.org/run:1", "permissionRequests": RULES},
    "capabilities": ["SafeStart"],
}


def revision_of(world: EstablishWorld, kind: Kind = REVISION) -> Object:
    live = world.live(kind, "rev-d1")
    assert live is not None
    return live


def published(**metadata: Any) -> EstablishWorld:
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")], kind="Provider", spec=SPEC, **metadata)))
    return world


def test_labels_and_annotations_of_a_package_are_on_its_revision() -> None:
    """But for reserved ones; in no write of their own, and not again at a second look."""
    reserved = {"pvbus.dev/wrote-desired-state": "Active", "crossplane.io/paused": "true"}
    annotations = {"meta.crossplane.io/maintainer": "ann", **reserved, "wrong": 3}
    world = published(labels={"team": "net", "pkg.crossplane.io/package": "pb"}, annotations=annotations)
    plain = published()
    for each in (world, plain):
        each.settle()
    meta = revision_of(world)["metadata"]
    assert meta["labels"] == {"team": "net", "pkg.crossplane.io/package": "pa"}
    assert meta["annotations"]["meta.crossplane.io/maintainer"] == "ann"
    assert not {"crossplane.io/paused", "wrong"} & meta["annotations"].keys()
    assert revision_of(world)["spec"]["desiredState"] == "Active"
    assert world.row("pa").is_healthy
    assert len(world.changes) == len(plain.changes)
    before = len(world.cluster.writes)
    world.start()
    world.settle()
    assert len(world.cluster.writes) == before


def test_what_a_package_asks_for_is_in_the_status_of_its_revision() -> None:
    world = published()
    world.settle()
    status = revision_of(world)["status"]
    assert (status["permissionRequests"], status["capabilities"]) == (RULES, ["SafeStart"])


def test_rights_that_are_not_granted_are_named_beside_those_that_were_asked_for() -> None:
    """A person sees in the revision what to allow, although nothing of the package is there."""
    world = published()

    def escalation(user: str, verb: str, obj: dict[str, object]) -> None:
        if obj["kind"] == "ClusterRole":
            raise PermanentError(
                "attempting to grant RBAC permissions not currently held", reason="Forbidden"
            )

    world.cluster.authorizes = escalation
    world.settle()
    assert world.row("pa").reason == "Forbidden"
    status = revision_of(world)["status"]
    assert status["permissionRequests"] == RULES
    assert "attempting to grant" in status["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"permissions": {"rules": RULES}}, {"permissionRequests": RULES}),
        ({"controller": {"permissionRequests": [{"verbs": "get"}, 3, {**RULES[0], "x": 1}]}},
         {"permissionRequests": RULES}),
        ({"controller": 3, "capabilities": "all"}, {}),
        ({}, {}),
    ],
)  # fmt: skip
def test_of_what_a_manifest_asks_for_only_what_the_api_takes_is_reported(
    spec: dict[str, Any], status: dict[str, Any]
) -> None:
    """A field that the API server drops would be written again at each look."""
    assert status_of({"spec": spec}) == status


def test_the_revision_of_a_package_lists_what_it_brings_asks_for_and_needs() -> None:
    """And names its Deployment, which the kinds of Crossplane have no field for."""
    world = EstablishWorld()
    kind, of_revision = Kind(PKG, "Package"), Kind(PKG, "PackageRevision")
    world.cluster.serve(Resource(PKG, "v1beta1", of_revision.kind, "packagerevisions", False))
    source = "registry.example.org/pa:v1"
    obj: Object = {
        "apiVersion": f"{PKG}/v1beta1",
        "kind": kind.kind,
        "metadata": {"name": "pa"},
        "spec": {"package": source},
    }
    obj = world.cluster.put(obj)
    spec = {
        **SPEC,
        "crossplane": {"version": ">=v1.0.0"},
        "dependsOn": [{"provider": "b", "version": "v2"}, {"odd": 1}],
    }
    revision = active(world.publish("d1", [crd("One")], kind="Provider", spec=spec))
    key = f"cluster|{kind}||pa"
    world.controller.load(INSTALLS, PARTITION, key, msgspec.json.encode(obj))
    row = LockRow(status="locked", uid=obj["metadata"]["uid"], package="pa", revisions=(revision,))
    world.set_lock(key, row)
    for _ in range(3):
        world.reconcile(key)
    live = revision_of(world, of_revision)
    reference = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    assert live["spec"]["customResourceDefinitions"] == [{**reference, "name": "ones.example.org"}]
    assert live["spec"]["permissions"] == {"rules": RULES}
    assert live["spec"]["dependsOn"] == [{"package": "b", "version": "v2"}, {"crossplane": ">=v1.0.0"}]
    assert live["status"]["controllerRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "rev-d1",
    }


def test_a_revision_without_anything_to_list_has_no_lists() -> None:
    assert lists_of({"spec": {}}, [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}]) == {}
