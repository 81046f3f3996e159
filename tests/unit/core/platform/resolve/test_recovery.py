"""What is left when the bus is lost, and when an install goes."""

from typing import Any

import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Effect, Pull
from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.packagekinds import MIRRORED
from tests.unit.core.platform.resolve.test_conflicts import PA, PB, PC, definition
from tests.unit.core.platform.resolve.world import PKG, ResolveWorld, install_key, started


def show_revision(world: ResolveWorld, name: str, source: str) -> None:
    """Put the object of the only revision of an install, as establish makes it."""
    (revision,) = world.row(name).revisions
    show(world, revision.name, name, f"{source}@{revision.digest}", revision.digest, "Active", 1)


def show(
    world: ResolveWorld, revision: str, install: str, image: str, digest: str, state: str, number: int
) -> None:
    reference = {"apiVersion": f"{PKG}/v1", "kind": "Provider", "name": install, "controller": True}
    obj = {
        "apiVersion": f"{PKG}/v1",
        "kind": "ProviderRevision",
        "metadata": {
            "name": revision,
            "generation": 2,
            "ownerReferences": [reference],
            "annotations": {"pvbus.dev/digest": digest, "pvbus.dev/wrote-desired-state": state},
        },
        "spec": {"desiredState": state, "image": image, "revision": number},
    }
    world.put(okey(PKG, "ProviderRevision", "", revision), obj)


def without_bus(world: ResolveWorld) -> ResolveWorld:
    """Return a world with the same cluster and registries, and an empty bus."""
    again = ResolveWorld(registry=world.registry)
    again.mark("cluster")
    again.run()  # it asks for the kinds
    again.now = world.now
    for key, obj in world.objects.items():
        again.put(key, obj)
    again.sync()
    return again


def test_a_rebuilt_lock_has_the_objects_of_former_contents_that_no_tag_names() -> None:
    """Until they are read nobody else gets one of them, though an older install asks for it at once."""
    world = started()
    world.registry.publish(PA, "v1.0.0", objects=(definition("buckets"), definition("keys")))
    world.registry.publish(PB, "v1.0.0", objects=(definition("keys"),))
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    show_revision(world, "pa", PA)
    before = world.row("pa")
    world.install("pb", f"{PB}:v1.0.0", metadata={"creationTimestamp": "00000000"})
    world.install("pa", f"{PA}:v1.0.0", revisionActivationPolicy="Manual")
    world.registry.publish(PA, "v1.0.0", objects=(definition("buckets"), definition("keys")), salt="moved")
    world.registry.down.add(PA)  # it answers later than the other one
    again = without_bus(world)
    again.run()
    assert again.row("pb").revisions == ()
    assert again.row("pb").status == "waiting"
    world.registry.down.clear()
    again.pass_time(10.0)
    active = next(each for each in again.row("pa").revisions if each.is_active)
    assert (active.name, active.objects) == (before.revisions[0].name, before.revisions[0].objects)
    assert again.row("pb").reason == "ObjectOwned"


def test_a_former_content_that_is_gone_holds_nobody_up() -> None:
    """A registry that says that it has no such content any more is an answer."""
    world = started()
    digest = world.registry.publish(PA, "v1.0.0", objects=(definition("keys"),))
    world.registry.publish(PB, "v1.0.0", objects=(definition("users"),))
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    show_revision(world, "pa", PA)
    del world.registry.files[digest]
    del world.registry.tags[PA]
    world.install("pb", f"{PB}:v1.0.0")
    again = without_bus(world)
    again.run()
    for _ in range(5):
        again.pass_time(400.0)
    assert again.row("pb").status == "locked"
    assert [each.digest for each in again.row("pa").revisions] == [digest]


def test_nothing_is_decided_while_the_list_of_a_kind_is_missing() -> None:
    """An install whose revisions are not listed yet would get its first one once more."""
    world = ResolveWorld()
    world.mark("cluster")
    world.run()  # it asks for the kinds
    world.registry.publish(PA, "v1.0.0", objects=(definition("keys"),))
    world.install("pa", f"{PA}:v1.0.0")
    for missing in MIRRORED:
        world.sync(kinds=[each for each in MIRRORED if each != missing])
        world.sync("syncing", kinds=[missing])
        world.run()
        assert (world.lock, world.sources) == ({}, {}), missing
    world.sync()
    world.run()
    assert world.row("pa").version == "v1.0.0"


def test_a_created_install_is_read_once_what_it_is_for_is_known_again() -> None:
    """The bus is lost while the source of its holder does not answer."""
    world = started()
    world.registry.publish(PB, "v1.0.0", objects=(definition("keys"),))
    world.registry.publish(PC, "v1.0.0", depends=({"provider": PB, "version": ">=1.0.0"},))
    world.install("pc", f"{PC}:v1.0.0")
    world.run()
    world.install("acme-pb", f"{PB}:v1.0.0", annotations={"pvbus.dev/owner": "Provider/pc"})
    world.run()
    assert world.row("acme-pb").status == "locked"
    again = without_bus(world)
    again.registry.down.add(PC)
    again.run()
    assert again.row("acme-pb").digest == ""
    assert f"cluster|{PB}" not in again.sources, "nobody observes it yet"
    again.registry.down.clear()
    again.pass_time(400)
    assert (again.row("pc").status, again.row("acme-pb").status) == ("locked", "locked")
    assert again.row("acme-pb").version == "v1.0.0"


def test_a_created_install_that_was_never_made_leaves_no_row_behind() -> None:
    """It was refused, so establish never made it; when nobody needs it any more its row goes at once."""
    world = started()
    world.registry.publish(PA, "v1.0.0", objects=(definition("keys"),))
    world.registry.publish(PB, "v1.0.0", objects=(definition("keys"),))
    world.registry.publish(PC, "v1.0.0", depends=({"provider": PB, "version": ">=1.0.0"},))
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    holder = world.install("pc", f"{PC}:v1.0.0")
    world.run()
    assert world.row("acme-pb").status == "refused"
    world.remove(holder)
    world.run()
    assert install_key("acme-pb") not in world.lock


def test_a_lost_lock_keeps_what_a_user_activated_by_hand() -> None:
    """The tag names the newer content, which was acted on: what is active has the highest number."""
    world = started()
    old = world.registry.publish(PA, "v1.0.0")
    new = world.registry.publish(PA, "v2.0.0", salt="new")
    world.install("pa", f"{PA}:v2.0.0")
    for number, digest, state in ((3, old, "Active"), (2, new, "Inactive")):
        show(world, f"pa-{number}", "pa", f"{PA}@{digest}", digest, state, number)
    again = without_bus(world)
    again.run()
    assert again.active("pa") == old
    again.install("pa", f"{PA}:v1.0.0")
    again.run()
    again.install("pa", f"{PA}:v2.0.0")
    again.run()
    assert again.active("pa") == new


def test_a_lost_lock_goes_on_with_an_upgrade_that_had_begun() -> None:
    """The new revision is there and was never active: its number is higher than that of the active one."""
    world = started()
    old = world.registry.publish(PA, "v1.0.0")
    new = world.registry.publish(PA, "v2.0.0", salt="new")
    world.install("pa", f"{PA}:v2.0.0")
    for number, digest, state in ((1, old, "Active"), (2, new, "Inactive")):
        show(world, f"pa-{number}", "pa", f"{PA}@{digest}", digest, state, number)
    again = without_bus(world)
    again.run()
    assert again.active("pa") == new


@pytest.mark.parametrize("reason", ["DigestMismatch", "InvalidAnswer", "Insecure", "NotSet"])
def test_an_answer_that_is_not_the_content_is_no_defect_of_it(reason: str) -> None:
    """A mirror that sends other bytes, for example: the content is read when that is mended."""
    world = started()
    digest = world.registry.publish(PA, "v1.0.0")
    answer = world.registry.answer

    def refuse(effect: Effect) -> Any:
        if isinstance(effect, Pull):
            raise PermanentError("these are other bytes", reason=reason)
        return answer(effect)

    world.registry.answer = refuse  # type: ignore[method-assign]
    world.install("pa", f"{PA}:v1.0.0")
    world.run()
    assert world.row("pa").status == "waiting"
    assert "these are other bytes" in world.row("pa").message
    world.registry.answer = answer  # type: ignore[method-assign]
    world.pass_time(10.0)
    assert world.active("pa") == digest
