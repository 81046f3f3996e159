"""What people and resolve do while establish works: new orders, edited revisions, packages in a cycle."""

import msgspec
import pytest

from pvbus.core.kernel.packagerows import LockedDependency
from pvbus.core.kernel.records import INSTALLS
from pvbus.core.platform.establish.controller import PAGES
from pvbus.ports.cluster import Kind, Resource
from tests.kit.deciding import PARTITION
from tests.unit.core.platform.establish import test_carvel as carvel
from tests.unit.core.platform.establish.test_activation import active, inactive
from tests.unit.core.platform.establish.world import CRD, REVISION, EstablishWorld, crd, okey_of

LOCK = Kind("pkg.crossplane.io", "PackageLock")


@pytest.mark.parametrize("at", range(1, 10))
def test_an_order_that_arrives_during_a_look_is_carried_out_after_it(at: int) -> None:
    """The look at the former order does not count as one at the new order, at whatever effect that came."""
    world = EstablishWorld()
    world.add_install("pa")
    first, second = (world.publish(each, [crd("One", text=each)]) for each in ("d1", "d2"))
    world.order("pa", active(first))
    key = f"cluster|{okey_of('pa')}"
    world.mirror()

    def order() -> None:
        world.order("pa", inactive(first), active(second, 2))

    world.reconcile(key, during=(at, order))
    world.settle("pa")
    assert world.row("pa").is_healthy
    assert world.states("pa") == {"rev-d1": "Inactive", "rev-d2": "Active"}
    assert world.controller_of("One") == "rev-d2"


@pytest.mark.parametrize("state", ["Active", "Inactive"])
def test_a_revision_whose_annotations_are_removed_by_hand_is_put_right(state: str) -> None:
    """Without the note of what establish wrote the lock takes nothing for a user's wish: so it is none."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    obj = world.live(REVISION, "rev-d1")
    assert obj is not None
    meta = {**obj["metadata"], "annotations": {}, "labels": {}, "generation": 9}
    world.cluster.put({**obj, "metadata": meta, "spec": {**obj["spec"], "desiredState": state}})
    world.start()
    world.settle()
    assert world.states("pa") == {"rev-d1": "Active"}
    found = world.live(REVISION, "rev-d1")
    assert found is not None
    assert found["metadata"]["annotations"]["pvbus.dev/wrote-desired-state"] == "Active"
    assert world.row("pa").revisions[0].wrote == "Active"


def needs(*names: str) -> tuple[LockedDependency, ...]:
    return tuple(LockedDependency(condition="FoundPackageInstall", install=okey_of(each)) for each in names)


def test_packages_that_need_each_other_do_not_wait_for_each_other() -> None:
    """A cycle of packages is one step, as `docs/dependencies.md` says; it waits for what is outside of it."""
    world = EstablishWorld()
    wanted = {"pa": needs("pb"), "pb": needs("pc"), "pc": needs("pa", "pd"), "pe": needs("pa")}
    for name, dependencies in wanted.items():
        world.add_install(name)
        world.order(name, active(world.publish(name, [crd(name)])), dependencies=dependencies)
    world.settle(rounds=8)
    assert {world.row(name).message for name in ("pa", "pb", "pc")} == {"waits for Provider pd"}
    assert world.row("pe").message == "waits for Provider pa"
    world.add_install("pd")
    world.order("pd", active(world.publish("pd", [crd("pd")])))
    world.settle(rounds=8)
    assert {name: world.row(name).is_healthy for name in wanted} == dict.fromkeys(wanted, True)


def test_an_install_that_waits_repeats_why_the_other_one_fails() -> None:
    """Through each that waits in between: who looks at the parent need not search its children."""
    world = EstablishWorld()
    for name, dependencies in {"pa": needs("pb"), "pb": needs("pc"), "pc": ()}.items():
        world.add_install(name)
        world.order(name, active(world.publish(name, [crd(name)])), dependencies=dependencies)
    world.order("pc", status="refused", reason="Conflict", message="pc needs another pd")
    world.settle(rounds=8)
    assert world.row("pb").message == "waits for Provider pc (pc needs another pd)"
    assert world.row("pa").message == f"waits for Provider pb ({world.row('pb').message})"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_the_published_lock_is_put_right_after_a_person_edits_or_deletes_it(is_deleted: bool) -> None:
    """Nobody reads the page to decide anything, and the next look makes it again."""
    world = EstablishWorld()
    world.cluster.serve(Resource("pkg.crossplane.io", "v1beta1", "PackageLock", "packagelocks", False))
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    first = world.reconcile(PAGES, now=1000.0)
    page = world.live(LOCK, "lock")
    assert page is not None
    if is_deleted:
        world.cluster.remove(LOCK, "", "lock")
    else:
        world.cluster.put({**page, "spec": {"packages": [{"name": "mine", "source": "a", "version": "b"}]}})
    world.settle()
    assert world.controller_of("One") == "rev-d1"
    assert first.again_after is not None
    world.reconcile(PAGES, now=1000.0 + first.again_after)
    again = world.live(LOCK, "lock")
    assert again is not None
    assert again["spec"] == page["spec"]


def test_a_revision_that_a_person_deletes_is_made_again_with_its_objects() -> None:
    """As soon as that is seen: what it controlled was deleted with it."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    obj = world.live(REVISION, "rev-d1")
    assert obj is not None
    world.cluster.terminate(REVISION, "", "rev-d1")
    assert world.live(CRD, "ones.example.org") is None
    key = f"cluster|{okey_of('pa')}"
    seen = "cluster|pkg.crossplane.io/ProviderRevision||rev-d1"
    assert key in world.controller.load(INSTALLS, PARTITION, seen, None)
    world.settle("pa")
    assert world.states("pa") == {"rev-d1": "Active"}
    assert world.controller_of("One") == "rev-d1"


@pytest.mark.parametrize("family", ["crossplane", "carvel"])
def test_a_definition_that_a_person_deletes_is_made_again_as_soon_as_that_is_seen(family: str) -> None:
    """Definitions are watched for the lock, so nobody has to wait for the next comparison. What nobody has
    installed is of no interest."""
    world = EstablishWorld()
    if family == "crossplane":
        key = f"cluster|{okey_of('pa')}"
        world.add_install("pa")
        world.order("pa", active(world.publish("d1", [crd("One")])))
    else:
        key = carvel.KEY
        carvel.add_install(world)
        carvel.add_package(world, "1.0.0", [crd("One")])
        carvel.order(world, "1.0.0")
    world.settle()
    for name in ("ones", "others"):
        seen = f"cluster|apiextensions.k8s.io/CustomResourceDefinition||{name}.example.org"
        assert list(world.controller.load(INSTALLS, PARTITION, seen, msgspec.json.encode(crd("One")))) == []
    assert list(world.controller.load(INSTALLS, PARTITION, seen, None)) == []
    world.cluster.remove(CRD, "", "ones.example.org")
    assert list(world.controller.load(INSTALLS, PARTITION, seen.replace("others", "ones"), None)) == [key]
    world.reconcile(key, now=1001.0)
    assert world.live(CRD, "ones.example.org") is not None


def test_a_note_that_a_person_removes_is_put_back_as_soon_as_that_is_seen() -> None:
    """Also while no revision is active, so that the next activation by hand is understood."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", inactive(world.publish("d1", [crd("One")])))
    world.settle()
    obj = world.live(REVISION, "rev-d1")
    assert obj is not None
    edited = world.cluster.put({**obj, "metadata": {**obj["metadata"], "annotations": {}}})
    key, seen = f"cluster|{okey_of('pa')}", "cluster|pkg.crossplane.io/ProviderRevision||rev-d1"
    assert key in world.controller.load(INSTALLS, PARTITION, seen, msgspec.json.encode(edited))
    world.settle("pa")
    found = world.live(REVISION, "rev-d1")
    assert found is not None
    assert found["metadata"]["annotations"]["pvbus.dev/wrote-desired-state"] == "Inactive"
    again = world.controller.load(INSTALLS, PARTITION, seen, msgspec.json.encode(found))
    assert list(again) == []


def test_a_former_revision_without_its_label_is_found_and_collected() -> None:
    """A person has removed the label, and the lock has forgotten it: it must not keep its objects."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One"), crd("Old")])))
    world.settle()
    obj = world.live(REVISION, "rev-d1")
    assert obj is not None
    world.cluster.put({**obj, "metadata": {**obj["metadata"], "annotations": {}, "labels": {}}})
    world.done.clear()
    world.order("pa", active(world.publish("d2", [crd("One")]), 2))
    world.start()
    world.settle()
    assert world.live(REVISION, "rev-d1") is None
    assert world.controller_of("One") == "rev-d2"
    assert world.controller_of("Old") == ""
