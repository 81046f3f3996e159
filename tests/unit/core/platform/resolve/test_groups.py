"""A decision on the groups that something has changed in is the decision on all installs."""

import copy
from collections.abc import Iterable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.kernel.packagerows import EstablishedRow, LockedRevision, LockRow
from pvbus.core.platform.resolve.deciding import Decider
from pvbus.core.platform.resolve.groups import Groups, Member
from pvbus.core.platform.resolve.plans import Decision
from pvbus.core.platform.resolve.state import ScopeState
from tests.unit.core.platform.resolve.world import REGISTRY, ResolveWorld, install_key, started

NAMES = ("a", "b", "c", "d")
TAGS = ("v1.0.0", "v1.1.0")
_decide = Decider.decide


def parts_of(found: Decision) -> tuple[object, ...]:
    waiting = frozenset(found.waiting)
    return found.rows, found.sources, frozenset(found.contents), dict(found.demands), waiting


def compared(self: Decider, state: ScopeState) -> Decision:
    """Decide as usual, and beside it on all, with nothing remembered."""
    changes, touched = copy.copy(state.changes), set(state.touched)
    changes.members = set(changes.members)
    state.changes.is_all = state.changes.is_carvel = True
    whole = _decide(Decider(self._settings), state)
    state.changes, state.touched = changes, touched
    found = _decide(self, state)
    assert parts_of(found) == parts_of(whole)
    return found


@pytest.fixture(autouse=True, scope="module")
def _compared() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decider, "decide", compared)
        yield


def thing(group: str) -> dict[str, object]:
    names = {"kind": "Thing", "plural": "things"}
    versions = [{"name": "v1", "served": True, "storage": True}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "names": names, "versions": versions},
    }


name = st.sampled_from(NAMES)
tag = st.sampled_from(TAGS)
need = st.one_of(
    st.builds(lambda to, low: {"provider": f"{REGISTRY}/{to}", "version": f">={low}"}, name, tag),
    st.just({"crd": {"apiVersion": "kind.example.org/v1", "kind": "Thing"}}),
)
publish = st.tuples(st.just("publish"), name, tag, st.lists(need, max_size=2), st.booleans())
spoil = st.tuples(st.just("spoil"), name, tag)
install = st.tuples(st.just("install"), name, name, st.sampled_from(("", *TAGS)))
own_install = st.builds(lambda of, tag: ("install", of, of, tag), name, tag)
remove = st.tuples(st.just("remove"), name)
touch = st.tuples(st.just("touch"), name)
define = st.tuples(st.just("define"), st.booleans())
establish = st.tuples(st.just("establish"), name, st.booleans())
step = st.one_of(publish, publish, spoil, touch, install, own_install, own_install, remove, define, establish)


def done(world: ResolveWorld, step: tuple[object, ...]) -> None:
    match step:
        case ("publish", str(to), str(tag), list(needs), bool(is_provider)):
            objects = (thing("kind.example.org"),) if is_provider else ()
            world.registry.publish(f"{REGISTRY}/{to}", tag, depends=tuple(needs), objects=objects)
            world.pass_time(400.0)
        case ("spoil", str(to), str(tag)):
            world.registry.publish(f"{REGISTRY}/{to}", tag, text=f"a: {to}{tag}")
            world.pass_time(400.0)
        case ("install", str(own), str(to), str(tag)):
            world.install(own, f"{REGISTRY}/{to}{':' if tag else ''}{tag}")
        case ("touch", str(own)):
            key = install_key(own)
            if (obj := world.objects.get(key)) is not None:
                meta = obj["metadata"]
                world.put(key, {**obj, "metadata": {**meta, "generation": meta["generation"] + 1}})
        case ("remove", str(own)):
            world.remove(install_key(own))
        case ("define", bool(is_there)):
            key = "apiextensions.k8s.io/CustomResourceDefinition||things.kind.example.org"
            world.put(key, thing("kind.example.org") if is_there else None)
        case ("establish", str(own), bool(is_there)):
            world.report(install_key(own), EstablishedRow() if is_there else None)
    world.run()


def played(found: Iterable[tuple[object, ...]]) -> ResolveWorld:
    """Take steps; what the lock orders to be made exists at once."""
    world = started()
    for each in found:
        done(world, each)
        for key, row in list(world.lock.items()):
            if row.holders and key not in world.objects:
                kind, _, own = key.partition("/")[2].partition("||")
                owner = {"pvbus.dev/owner": row.holders[0].partition("/")[2].replace("||", "/")}
                world.install(own, str(row.template["package"]), kind, annotations=owner)
        world.run()
    return world


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=4, max_size=14))
def test_a_decision_on_groups_is_the_decision_on_all(found: list[tuple[object, ...]]) -> None:
    """Whatever is published, installed, removed, defined and reported, in any order."""
    played(found)


ON_B = [{"provider": f"{REGISTRY}/b", "version": ">=v1.0.0"}]
ON_KIND = [{"crd": {"apiVersion": "kind.example.org/v1", "kind": "Thing"}}]


def test_who_needs_an_api_kind_is_decided_on_with_who_brings_it() -> None:
    steps = [("publish", "a", "v1.0.0", ON_KIND, False), ("install", "a", "a", "v1.0.0")]
    assert played(steps).row("a").status == "refused"
    steps += [("publish", "b", "v1.0.0", [], True), ("install", "b", "b", "v1.0.0")]
    assert played(steps).row("a").status == "locked"


def test_who_needs_an_api_kind_is_decided_on_with_what_is_not_read_and_may_bring_it() -> None:
    """Nothing needed the kind before, so no group had been asked for it."""
    steps: list[tuple[object, ...]] = [
        ("publish", "b", "v1.0.0", [], False),
        ("install", "b", "b", ""),
        ("publish", "b", "v1.1.0", [], True),
    ]
    assert played(steps).row("b").version == "v1.0.0"
    steps += [("publish", "a", "v1.0.0", ON_KIND, False), ("install", "a", "a", "v1.0.0")]
    world = played(steps)
    assert world.row("a").status == "locked"
    assert world.row("b").version == "v1.1.0"


def test_what_was_made_for_an_install_that_waits_now_stays() -> None:
    """What its holder needs is not known, and it is decided on with it all the same."""
    steps: list[tuple[object, ...]] = [
        ("publish", "b", "v1.0.0", [], False),
        ("publish", "a", "v1.0.0", ON_B, False),
        ("install", "a", "a", "v1.0.0"),
        ("install", "a", "c", "v1.0.0"),
        ("touch", "acme-b"),
    ]
    assert played(steps).row("acme-b").holders == (install_key("a"),)


def test_an_install_gets_an_object_that_another_one_gives_up() -> None:
    steps: list[tuple[object, ...]] = [
        ("publish", "a", "v1.0.0", [], True),
        ("publish", "b", "v1.0.0", [], True),
        ("install", "a", "a", "v1.0.0"),
        ("install", "b", "b", "v1.0.0"),
    ]
    assert played(steps).row("b").reason == "ObjectOwned"
    assert played([*steps, ("remove", "a")]).row("b").status == "locked"


def test_rows_that_were_not_stored_are_decided_on_again() -> None:
    world = played([("publish", "a", "v1.0.0", [], False), ("publish", "b", "v1.0.0", [], False)])
    world.install("a", f"{REGISTRY}/a:v1.0.0")
    first = {put.key for put in world.decide("cluster").puts}
    assert first
    world.install("b", f"{REGISTRY}/b:v1.0.0")
    assert first < {put.key for put in world.decide("cluster").puts}


def test_what_is_written_of_a_status_is_not_decided_on() -> None:
    world = played([("publish", "a", "v1.0.0", [], False), ("install", "a", "a", "v1.0.0")])
    obj = world.objects[install_key("a")]
    world.put(install_key("a"), {**obj, "status": {"currentRevision": "a-1", "conditions": []}})
    assert not world.dirty
    world.report(install_key("a"), EstablishedRow())
    world.run()
    world.report(install_key("a"), EstablishedRow(is_healthy=True))
    assert not world.dirty


def test_a_group_whose_question_is_the_same_is_not_solved_again() -> None:
    steps: list[tuple[object, ...]] = [
        ("publish", "a", "v1.0.0", [], False),
        ("install", "a", "a", "v1.0.0"),
        ("touch", "a"),
    ]
    world = played([*steps, ("establish", "a", True)])
    solved, decisions = world.controller.evaluations, world.controller.decisions
    done(world, ("establish", "a", False))
    assert world.controller.decisions == decisions + 1
    assert world.controller.evaluations == solved


def test_what_establish_does_as_the_lock_says_is_not_decided_on() -> None:
    """Its row, the revision's object with what it wrote, and the definitions that the revision has."""
    world = played([("publish", "a", "v1.0.0", [], True), ("install", "a", "a", "v1.0.0")])
    decisions = world.controller.decisions
    world.report(install_key("a"), EstablishedRow())
    (revision,) = world.row("a").revisions
    world.put_revision(msgspec.structs.replace(revision, is_active=False))
    world.put_revision(revision)
    done(world, ("define", True))
    assert world.controller.decisions == decisions
    world.activate(revision)
    assert world.controller.decisions == decisions  # it is active already
    world.report(install_key("a"), None)
    world.run()
    assert world.controller.decisions > decisions


def test_a_decision_that_frees_nothing_is_followed_by_none() -> None:
    """One each for the install, its content, the versions of what it needs, and their content."""
    world = played([("publish", "b", "v1.0.0", [], False), ("publish", "a", "v1.0.0", ON_B, False)])
    decisions = world.controller.decisions
    world.install("a", f"{REGISTRY}/a:v1.0.0")
    world.run()
    assert world.row("acme-b").status == "locked"
    assert world.controller.decisions == decisions + 4


@pytest.mark.parametrize("is_late", [False, True])
def test_what_users_ask_for_in_a_revision_that_the_lock_did_not_have_is_decided_on(is_late: bool) -> None:
    """The object is of a former install of this name. It is seen before the decision that has the revision
    again, or before that is stored."""
    world = played([("install", "a", "a", "v1.0.0")])
    assert world.row("a").revisions == ()
    digest = world.registry.publish(f"{REGISTRY}/a", "v1.0.0")
    name = f"a-{digest.rpartition(':')[2][:12]}"

    def leave_revision() -> None:
        revision = LockedRevision(name=name, revision=1, digest=digest, version="v1.0.0", is_active=True)
        key = world.put_revision(revision)
        world.put(key, {**world.objects[key], "spec": {"desiredState": "Inactive"}})

    if not is_late:
        leave_revision()
    world.now += 400.0
    world.mark(f"cluster|{REGISTRY}/a")
    while world.dirty:
        key = world.dirty.popleft()
        outcome = world.decide(key)
        if is_late and any(isinstance(put.row, LockRow) and put.row.digest for put in outcome.puts):
            leave_revision()
            is_late = False
        world.commit(key, outcome)
    world.check_rest()
    (revision,) = world.row("a").revisions
    assert revision.asked > 0


def test_groups_are_joined_by_links_and_end_with_their_members() -> None:
    one, two, three = (Member("install", each) for each in "abc")
    groups = Groups()
    groups.replace((), [(one, two), (two, three)])
    assert groups.linked([three]) == {one, two, three}
    groups.replace([one, two, three], [(one, two)])
    assert groups.linked([one]) == {one, two}
    assert groups.linked([three]) == {three}
