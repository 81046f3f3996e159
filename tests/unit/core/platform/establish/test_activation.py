"""Activation, upgrade, deactivation and collection of Crossplane's revisions, whole and cut at any effect."""

import random
from collections.abc import Callable

import msgspec
import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.packagerows import LockedRevision
from pvbus.core.platform.establish.certificates import AUTHORITY
from pvbus.ports.cluster import Resource
from tests.kit.deciding import PARTITION, CrashedError
from tests.unit.core.platform.establish.world import CRD, PROVIDER, REVISION, EstablishWorld, crd, okey_of

replace = msgspec.structs.replace


def active(revision: LockedRevision, number: int = 1) -> LockedRevision:
    return replace(revision, is_active=True, revision=number)


def inactive(revision: LockedRevision, number: int = 1) -> LockedRevision:
    return replace(revision, is_active=False, revision=number)


def test_an_install_gets_a_revision_that_controls_its_objects() -> None:
    """A locked install has one active revision, which controls every object of its package."""
    world = EstablishWorld()
    world.add_install("pa")
    first = world.publish("d1", [crd("One"), crd("Two")])
    world.order("pa", active(first))
    world.settle()
    assert world.states("pa") == {"rev-d1": "Active"}
    assert [world.controller_of(each) for each in ("One", "Two")] == ["rev-d1", "rev-d1"]
    row = world.row("pa")
    assert row.is_healthy
    assert row.revisions[0].state == "established"
    assert row.revisions[0].objects == first.objects
    assert row.revisions[0].wrote == "Active"


def test_a_second_look_writes_nothing() -> None:
    """What is as the lock says is read and not written again, also by a new process."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One"), crd("Two")], kind="Provider")))
    world.settle()
    writes = len(world.changes)
    world.start()
    world.settle()
    assert len(world.changes) == writes


def test_a_row_that_comes_during_a_look_is_carried_out_next() -> None:
    """The look was at the former row, so it says nothing of the new one."""
    world = EstablishWorld()
    world.add_install("pa")
    first, second = (world.publish(each, [crd("One", text=each)]) for each in ("d1", "d2"))
    world.order("pa", active(first))
    world.settle()
    world.start()
    world.during = [lambda: world.order("pa", inactive(first), active(second, 2))]
    world.reconcile(f"cluster|{okey_of('pa')}")
    assert not world.during
    world.settle()
    assert world.states("pa") == {"rev-d1": "Inactive", "rev-d2": "Active"}
    assert world.text_of("One") == "d2"


def test_the_loser_of_a_conflict_changes_nothing_and_names_the_owner() -> None:
    """Both want One and Two: the second leaves all as it is, also its own Three, and says who has them."""
    world = EstablishWorld()
    for name in ("pa", "pb"):
        world.add_install(name)
    world.order("pa", active(world.publish("d1", [crd("One", text="a"), crd("Two")])))
    world.order("pb", active(world.publish("d2", [crd("Three"), crd("One", text="b"), crd("Two")])))
    world.settle()
    assert world.text_of("One") == "a"
    assert world.live(CRD, "threes.example.org") is None
    assert world.states("pb") == {"rev-d2": "Inactive"}
    row = world.row("pb")
    assert (row.is_healthy, row.reason) == (False, "ObjectConflict")
    assert "CustomResourceDefinition ones.example.org is controlled by ProviderRevision rev-d1" in row.message
    assert "twos.example.org" in row.message


def test_an_object_without_a_controller_is_adopted() -> None:
    """An object that nobody controls becomes the package's, and keeps what others wrote into it."""
    world = EstablishWorld()
    world.add_install("pa")
    users = crd("One", text="mine")
    users["metadata"]["labels"] = {"team": "a"}
    world.cluster.put(users)
    world.order("pa", active(world.publish("d1", [crd("One", text="theirs")])))
    world.settle()
    assert world.controller_of("One") == "rev-d1"
    assert world.text_of("One") == "theirs"
    live = world.live(CRD, "ones.example.org")
    assert live is not None
    assert live["metadata"]["labels"] == {"team": "a"}


def test_an_object_of_somebody_else_is_never_taken() -> None:
    """A controller that is no revision keeps its object, and the refusal names it."""
    world = EstablishWorld()
    world.add_install("pa")
    theirs = crd("Two")
    theirs["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": "1", "controller": True}
    ]
    world.cluster.put(theirs)
    world.order("pa", active(world.publish("d1", [crd("One"), crd("Two")])))
    world.settle()
    assert world.live(CRD, "ones.example.org") is None
    assert "controlled by ConfigMap boss" in world.row("pa").message


def upgraded(world: EstablishWorld) -> Callable[[], None]:
    """Establish the first revision; return what orders the second one, without Old and with New."""
    world.add_install("pa")
    first = world.publish("d1", [crd("One", text="1"), crd("Old"), crd("Two", text="1")], kind="Provider")
    second = world.publish("d2", [crd("One", text="2"), crd("New"), crd("Two", text="2")], kind="Provider")
    world.order("pa", active(first))
    world.settle()
    return lambda: world.order("pa", inactive(first, 1), active(second, 2))


def check_upgraded(world: EstablishWorld) -> None:
    assert world.states("pa") == {"rev-d1": "Inactive", "rev-d2": "Active"}
    assert [world.text_of(each) for each in ("One", "Two")] == ["2", "2"]
    assert [world.controller_of(each) for each in ("One", "Two", "New")] == ["rev-d2"] * 3
    assert world.owners_of("One") == ["rev-d1", "rev-d2"]
    assert world.controller_of("Old") == ""
    assert world.owners_of("Old") == ["rev-d1"]
    deployments = [
        each["metadata"]["name"] for each in world.cluster.objects() if each["kind"] == "Deployment"
    ]
    assert deployments == ["rev-d2"]
    states = {each.name: each.state for each in world.row("pa").revisions}
    assert states == {"rev-d1": "released", "rev-d2": "established"}


def test_an_upgrade_hands_every_object_over() -> None:
    """The new revision controls its objects; the old one owns what it had, and controls nothing."""
    world = EstablishWorld()
    upgraded(world)()
    world.settle()
    check_upgraded(world)


def every_cut(
    prepare: Callable[[EstablishWorld], Callable[[], None]], check: Callable[[EstablishWorld], None]
) -> int:
    """Cut a change before and after each of its effects; after a restart the world must be as ordered."""
    position = 0
    while True:
        for is_after in (False, True):
            world = EstablishWorld()
            order = prepare(world)
            order()
            uids = {
                name: world.cluster.peek(CRD, "", name) for name in ("ones.example.org", "twos.example.org")
            }
            try:
                world.mirror()
                world.reconcile(f"cluster|{okey_of('pa')}", crash_at=position, is_after=is_after)
                check(world)
                return position
            except CrashedError:
                active_now = [name for name, state in world.states("pa").items() if state == "Active"]
                assert len(active_now) <= 1
                world.start()
                world.settle()
                check(world)
                for name, former in uids.items():
                    after = world.cluster.peek(CRD, "", name)
                    if former is not None:
                        assert after is not None
                        assert after["metadata"]["uid"] == former["metadata"]["uid"], (
                            "it was deleted meanwhile"
                        )
        position += 1


def first_install(world: EstablishWorld) -> Callable[[], None]:
    world.add_install("pa")
    first = world.publish("d1", [crd("One"), crd("Two")], kind="Provider")
    return lambda: world.order("pa", active(first))


def check_first(world: EstablishWorld) -> None:
    assert world.states("pa") == {"rev-d1": "Active"}
    assert [world.controller_of(each) for each in ("One", "Two")] == ["rev-d1", "rev-d1"]
    assert world.row("pa").is_healthy


def test_an_activation_can_be_cut_at_any_effect() -> None:
    """Whatever effect is the last one, the next process completes the activation."""
    assert every_cut(first_install, check_first) > 15


@pytest.mark.slow
def test_an_upgrade_can_be_cut_at_any_effect() -> None:
    """Likewise of an upgrade; no object is deleted on the way, and never are two revisions active."""
    assert every_cut(upgraded, check_upgraded) > 30


def deactivated(world: EstablishWorld) -> Callable[[], None]:
    world.add_install("pa")
    first = world.publish("d1", [crd("One"), crd("Two")], kind="Provider")
    world.order("pa", active(first))
    world.settle()
    return lambda: world.order("pa", inactive(first))


def check_deactivated(world: EstablishWorld) -> None:
    assert world.states("pa") == {"rev-d1": "Inactive"}
    for name in ("One", "Two"):
        assert world.controller_of(name) == ""
        assert world.owners_of(name) == ["rev-d1"]
    kinds = {each["kind"] for each in world.cluster.objects() if each["metadata"]["name"] != AUTHORITY}
    assert kinds == {"Provider", "ProviderRevision", "CustomResourceDefinition"}


def test_a_deactivation_removes_the_runtime_and_releases_the_objects() -> None:
    """An inactive revision owns its objects without control; nothing runs, and no work of it is left."""
    world = EstablishWorld()
    deactivated(world)()
    world.settle()
    check_deactivated(world)


def test_a_deactivation_can_be_cut_at_any_effect() -> None:
    """Likewise, whatever effect is the last one."""
    assert every_cut(deactivated, check_deactivated) > 10


def collected(world: EstablishWorld) -> Callable[[], None]:
    world.add_install("pa")
    first = world.publish("d1", [crd("One"), crd("Old"), crd("Two")], kind="Provider")
    second = world.publish("d2", [crd("One"), crd("Two")], kind="Provider")
    world.order("pa", active(first))
    world.settle()
    world.order("pa", inactive(first, 1), active(second, 2))
    world.settle()
    world.cluster.put(crd("Users"))
    return lambda: world.order("pa", active(second, 2))


def check_collected(world: EstablishWorld) -> None:
    assert world.states("pa") == {"rev-d2": "Active"}
    assert world.live(CRD, "olds.example.org") is None, "only the collected revision owned it"
    assert world.owners_of("One") == ["rev-d2"]
    assert world.live(CRD, "userss.example.org") is not None
    assert {each.name for each in world.row("pa").revisions} == {"rev-d2"}


def test_a_collected_revision_takes_along_only_what_it_alone_owns() -> None:
    """What the active revision has stays, and what users made."""
    world = EstablishWorld()
    collected(world)()
    world.settle()
    check_collected(world)


def test_a_collection_can_be_cut_at_any_effect() -> None:
    """Likewise, whatever effect is the last one."""
    assert every_cut(collected, check_collected) > 10


def test_nothing_is_collected_before_the_active_revision_is_whole() -> None:
    """A lock without the former revision deletes nothing while its successor is refused."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.settle()
    world.add_install("pb")
    world.order("pb", active(world.publish("d2", [crd("Two")])))
    world.settle()
    world.order("pa", active(world.publish("d3", [crd("One", text="new"), crd("Two")]), 2))
    world.settle()
    assert world.controller_of("One") == "rev-d1"
    assert world.states("pa") == {"rev-d1": "Active", "rev-d3": "Inactive"}


@pytest.mark.slow
def test_of_two_installs_that_want_the_same_objects_one_wins_whole() -> None:
    """With a wrong lock, and a crash at random effects of both, 100 times: never does one install half."""
    winners = set()
    for seed in range(100):
        rng = random.Random(seed)
        world = EstablishWorld()
        for name in ("pa", "pb"):
            world.add_install(name)
        world.order("pa", active(world.publish("d1", [crd("One", text="a"), crd("Two", text="a")])))
        world.order("pb", active(world.publish("d2", [crd("Two", text="b"), crd("One", text="b")])))
        for _ in range(rng.randrange(1, 6)):
            key = f"cluster|{okey_of(rng.choice(('pa', 'pb')))}"
            try:
                world.mirror()
                world.reconcile(key, crash_at=rng.randrange(25), is_after=rng.random() < 0.5)
            except CrashedError:
                world.start()
        names = ["pa", "pb"]
        rng.shuffle(names)
        world.settle(*names)
        winner = world.controller_of("One")
        assert winner in ("rev-d1", "rev-d2")
        assert world.controller_of("Two") == winner
        assert world.owners_of("One") == world.owners_of("Two") == [winner]
        letter = "a" if winner == "rev-d1" else "b"
        assert [world.text_of(each) for each in ("One", "Two")] == [letter, letter]
        assert sorted(world.row(each).is_healthy for each in ("pa", "pb")) == [False, True]
        winners.add(winner)
    assert winners == {"rev-d1", "rev-d2"}


def test_what_the_server_refuses_in_the_dry_run_changes_nothing() -> None:
    """A package that asks for rights that we lack is refused as a whole, in the API server's words."""
    world = EstablishWorld()
    world.add_install("pa")
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    spec = {"controller": {"image": "registry.example.org/run:1", "permissionRequests": rules}}
    world.order("pa", active(world.publish("d1", [crd("One")], kind="Provider", spec=spec)))

    def escalation(user: str, verb: str, obj: dict[str, object]) -> None:
        if obj["kind"] == "ClusterRole":
            raise PermanentError(
                "attempting to grant RBAC permissions not currently held", reason="Forbidden"
            )

    world.cluster.authorizes = escalation
    world.settle()
    assert world.live(CRD, "ones.example.org") is None
    row = world.row("pa")
    assert row.reason == "Forbidden"
    assert "attempting to grant" in row.message
    assert {write.kind for write in world.changes} == {"ProviderRevision"}


def test_an_object_that_must_not_be_read_fails_in_words_and_leaves_nothing() -> None:
    """In the condition and the row of the revision, from which the Event is made."""
    world = EstablishWorld()
    world.add_install("pa")
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "namespace": "kube-system"},
    }
    world.cluster.serve(Resource("", "v1", "ConfigMap", "configmaps", True))
    world.order("pa", active(world.publish("d1", [settings, crd("One")])))
    world.unreadable = {"ConfigMap"}
    world.settle()
    row = world.row("pa")
    assert (row.reason, [each.state for each in row.revisions]) == ("Forbidden", ["failed"])
    obj = world.live(PROVIDER, "pa")
    assert obj is not None
    (healthy,) = (each for each in obj["status"]["conditions"] if each["type"] == "Healthy")
    assert healthy["status"] == "False"
    assert "ConfigMap is forbidden" in healthy["message"]
    assert world.live(CRD, "ones.example.org") is None


@pytest.mark.parametrize("position", range(3))
def test_a_refusal_in_the_middle_is_undone(position: int) -> None:
    """If the API server refuses a write after all, the former revision has everything as before."""
    world = EstablishWorld()
    order = upgraded(world)
    before = {name: world.text_of(name) for name in ("One", "Two", "Old")}
    order()
    refused = ["ones.example.org", "news.example.org", "twos.example.org"][position]

    def refuse(verb: str, obj: dict[str, dict[str, object]]) -> None:
        references = obj["metadata"].get("ownerReferences")
        has_new = isinstance(references, list) and any(each["name"] == "rev-d2" for each in references)
        if obj["metadata"]["name"] == refused and has_new and not world.cluster._is_dry_run:
            raise PermanentError("no", reason="Invalid")

    world.cluster.before_write = refuse
    world.settle(rounds=2)
    assert {name: world.text_of(name) for name in ("One", "Two", "Old")} == before
    assert [world.controller_of(each) for each in ("One", "Two", "Old")] == ["rev-d1"] * 3
    assert world.live(CRD, "news.example.org") is None
    assert world.states("pa") == {"rev-d1": "Active", "rev-d2": "Inactive"}
    world.cluster.before_write = None
    world.settle()
    check_upgraded(world)


def test_ownership_is_established_again_after_a_restore() -> None:
    """Objects that came back from a backup, with new uids everywhere, are the revision's again."""
    world = EstablishWorld()
    world.add_install("pa")
    first = world.publish("d1", [crd("One"), crd("Two")], kind="Provider")
    world.order("pa", active(first))
    world.settle()
    restored = EstablishWorld()
    restored.contents = world.contents
    for obj in world.cluster.objects():
        meta = {k: v for k, v in obj["metadata"].items() if k not in ("uid", "resourceVersion")}
        meta["uid"] = f"new-{obj['kind']}-{meta['name']}"
        restored.cluster.put({**obj, "metadata": meta})
    restored.order("pa", active(first))
    restored.settle()
    assert restored.row("pa").is_healthy
    revision = restored.live(REVISION, "rev-d1")
    assert revision is not None
    for name in ("ones.example.org", "twos.example.org"):
        definition = restored.live(CRD, name)
        assert definition is not None
        assert [(each["uid"], each["controller"]) for each in definition["metadata"]["ownerReferences"]] == [
            (revision["metadata"]["uid"], True)
        ]


def test_a_pull_that_failed_is_tried_again_for_the_same_revision() -> None:
    """With another pull secret the same revision is established; nothing was made before but its object."""
    world = EstablishWorld()
    world.add_install("pa")
    world.order("pa", active(world.publish("d1", [crd("One")])))
    world.refusals["d1"] = PermanentError("401 Unauthorized", reason="Unauthorized")
    world.settle()
    assert world.row("pa").reason == "Unauthorized"
    del world.refusals["d1"]
    before = world.live(REVISION, "rev-d1")
    assert before is not None
    world.add_install("pa", packagePullSecrets=[{"name": "new"}])
    world.settle()
    assert world.row("pa").is_healthy
    obj = world.live(REVISION, "rev-d1")
    assert obj is not None
    assert obj["metadata"]["uid"] == before["metadata"]["uid"]
    assert obj["spec"]["packagePullSecrets"] == [{"name": "new"}]


def test_a_field_that_a_later_version_lacks_is_removed() -> None:
    """The content of a package replaces what was there; defaults of the API server are no difference."""
    world = EstablishWorld()
    world.add_install("pa")
    old = crd("One")
    old["spec"]["conversion"] = {"strategy": "None"}
    first = world.publish("d1", [old])
    world.order("pa", active(first))
    world.settle()
    world.order("pa", inactive(first), active(world.publish("d2", [crd("One")]), 2))
    world.settle()
    live = world.live(CRD, "ones.example.org")
    assert live is not None
    assert "conversion" not in live["spec"]


def test_what_was_adopted_is_released_and_not_deleted() -> None:
    """An activation that a crash has cut, and that is refused then, leaves a user's object to the user."""
    found = 0
    for position in range(40):
        world = EstablishWorld()
        for name in ("pa", "pb"):
            world.add_install(name)
        world.cluster.put(crd("One", text="mine"))
        world.order("pa", active(world.publish("d1", [crd("One"), crd("Two")])))
        try:
            world.mirror()
            world.reconcile(f"cluster|{okey_of('pa')}", crash_at=position, is_after=True)
        except CrashedError:
            pass
        if world.controller_of("One") != "rev-d1" or world.live(CRD, "twos.example.org") is not None:
            continue
        found += 1
        world.start()
        world.order("pb", active(world.publish("d2", [crd("Two")])))
        world.settle("pb", "pa")
        assert world.controller_of("Two") == "rev-d2"
        live = world.live(CRD, "ones.example.org")
        assert live is not None, "it was there before the package"
        assert not live["metadata"].get("ownerReferences")
    assert found


def test_what_a_user_has_just_activated_is_left_to_the_lock() -> None:
    """A desiredState that the lock has not taken into account stays; once it has, the lock decides."""
    world = EstablishWorld()
    world.add_install("pa")
    first, second = world.publish("d1", [crd("One")]), world.publish("d2", [crd("One")])
    world.order("pa", active(first), inactive(second, 2))
    world.settle()
    live = world.live(REVISION, "rev-d2")
    assert live is not None
    generation = live["metadata"]["generation"] + 1
    changed = {**live, "spec": {**live["spec"], "desiredState": "Active"}}
    changed["metadata"] = {**live["metadata"], "generation": generation}
    world.cluster.put(changed)
    world.start()
    world.settle()
    assert world.states("pa") == {"rev-d1": "Active", "rev-d2": "Active"}
    world.order("pa", active(first), replace(inactive(second, 2), asked=generation))
    world.settle()
    assert world.states("pa") == {"rev-d1": "Active", "rev-d2": "Inactive"}


def test_installs_of_the_same_objects_write_one_after_the_other() -> None:
    """While one is at work, another one that has one of its objects waits; one of other objects does not."""
    world = EstablishWorld()
    for name in ("pa", "pb", "pc"):
        world.add_install(name)
    world.order("pa", active(world.publish("d1", [crd("One"), crd("Two")])))
    world.order("pb", active(world.publish("d2", [crd("Two"), crd("Three")])))
    world.order("pc", active(world.publish("d3", [crd("Four")])))
    world.mirror()
    steps = world.controller.reconcile(PARTITION, f"cluster|{okey_of('pa')}", 1000.0)
    next(steps)
    assert world.reconcile(f"cluster|{okey_of('pb')}").result == "waiting"
    assert world.reconcile(f"cluster|{okey_of('pc')}").result == "changed"
    steps.close()
    assert world.reconcile(f"cluster|{okey_of('pb')}").result == "changed"


def test_a_refusal_in_the_middle_gives_back_what_was_adopted() -> None:
    """A user's object has its former content and no owner again if a later write is refused."""
    world = EstablishWorld()
    world.add_install("pa")
    world.cluster.put(crd("One", text="mine"))
    world.order("pa", active(world.publish("d1", [crd("One", text="theirs"), crd("Two")])))

    def refuse(verb: str, obj: dict[str, dict[str, object]]) -> None:
        if obj["metadata"]["name"] == "twos.example.org" and not world.cluster._is_dry_run:
            raise PermanentError("no", reason="Invalid")

    world.cluster.before_write = refuse
    world.settle(rounds=2)
    assert "what was written before was undone" in world.row("pa").message
    assert world.text_of("One") == "mine"
    assert world.owners_of("One") == []


def test_a_revision_follows_the_name_of_its_content() -> None:
    """Another tag or address of the same content is in the revision's image; nothing else is written."""
    world = EstablishWorld()
    world.add_install("pa")
    revision = active(world.publish("d1", [crd("One")]))
    world.order("pa", revision)
    world.settle()
    before = len(world.changes)
    world.order("pa", msgspec.structs.replace(revision, version="v2", source="mirror.example.org/package"))
    world.settle()
    live = world.live(REVISION, "rev-d1")
    assert live is not None
    assert live["spec"]["image"] == "mirror.example.org/package:v2@d1"
    assert {each.kind for each in world.changes[before:]} == {"ProviderRevision"}


def test_the_account_of_a_created_install_has_the_annotations_of_its_owner() -> None:
    """The row has them, as a Provider has no field for them."""
    world = EstablishWorld()
    world.add_install("pa")
    controller = {"controller": {"image": "example.org/c"}}
    revision = active(world.publish("d1", [crd("One")], kind="Provider", spec=controller))
    world.order("pa", revision)
    world.settle()
    world.order("pa", revision, account_annotations={"role": "x"})
    world.settle()
    (account,) = (each for each in world.cluster.objects() if each["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"]["role"] == "x"
