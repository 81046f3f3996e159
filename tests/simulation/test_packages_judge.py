"""The judge of packages finds each defect that it is there for, and nothing in a world without one."""

from collections.abc import Callable
from typing import Any

import pytest

from pvbus.core.kernel.packagerows import EstablishedRevision, EstablishedRow, LockedRevision, LockRow
from pvbus.ports.cluster import Object
from tests.simulation.packages_judge import PKG, Judge, key_of
from tests.simulation.packages_world import crd

INSTALL = f"{PKG}/Provider||pa"
OTHER = f"{PKG}/Provider||pb"


def locked(name: str, number: int = 1, *, active: bool = True, brings: str = "One") -> LockedRevision:
    objects = (key_of(crd(brings)),)
    return LockedRevision(name=name, revision=number, digest=f"d-{name}", objects=objects, is_active=active)


def row(*revisions: LockedRevision) -> LockRow:
    return LockRow(status="locked", uid="u-pa", revisions=revisions)


def owner(name: str, *, controller: bool = True) -> Object:
    return {
        "apiVersion": f"{PKG}/v1",
        "kind": "ProviderRevision",
        "name": name,
        "uid": f"u-{name}",
        "controller": controller,
    }


def definition(*owners: Object, name: str = "One", adopted: bool = False) -> Object:
    obj = crd(name)
    meta: dict[str, Any] = {"uid": f"u-{name}", "ownerReferences": list(owners)}
    if adopted:
        meta["annotations"] = {"pvbus.dev/adopted": "true"}
    return {**obj, "metadata": {**obj["metadata"], **meta}}


def install(name: str = "pa", *, made: bool = False, **spec: Any) -> Object:
    annotations = {"pvbus.dev/owner": "Provider/pz"} if made else {}
    meta = {"name": name, "uid": f"u-{name}", "annotations": annotations}
    return {"apiVersion": f"{PKG}/v1", "kind": "Provider", "metadata": meta, "spec": spec}


def revision(name: str, state: str, *, wrote: str = "", owned: bool = True) -> Object:
    reference = {
        "apiVersion": f"{PKG}/v1",
        "kind": "Provider",
        "name": "pa",
        "uid": "u-pa",
        "controller": True,
    }
    meta = {
        "name": name,
        "uid": f"u-{name}",
        "labels": {"pkg.crossplane.io/package": "pa"},
        "annotations": {"pvbus.dev/wrote-desired-state": wrote or state},
        "ownerReferences": [reference] if owned else [],
    }
    return {
        "apiVersion": f"{PKG}/v1",
        "kind": "ProviderRevision",
        "metadata": meta,
        "spec": {"desiredState": state},
    }


def judge() -> Judge:
    """Return a judge of a world in which pa has a revision r1 with One, and pb has r2 with Two."""
    found = Judge()
    found.locked(INSTALL, row(locked("r1")))
    found.locked(OTHER, row(locked("r2", brings="Two")))
    return found


FOREIGN = {"apiVersion": "v1", "kind": "ConfigMap", "name": "holder", "uid": "u-holder", "controller": True}
WRITES: dict[str, tuple[str, Object | None, Object, str]] = {
    "two controllers": ("update", definition(), definition(owner("r1"), owner("r2")), "has 2 controllers"),
    "an object is taken from another install": (
        "update",
        definition(owner("r1")),
        definition(owner("r2")),
        "of another install",
    ),
    "an object is given to a revision that was never active": (
        "create",
        None,
        definition(owner("r9")),
        "never had as active",
    ),
    "an object of somebody else is changed": (
        "update",
        definition(FOREIGN),
        definition(FOREIGN, owner("r1", controller=False)),
        "is controlled by somebody else",
    ),
    "an object of nobody is changed and not taken": (
        "update",
        definition(),
        definition(owner("r1", controller=False)),
        "is somebody else's, and was changed",
    ),
    "an object is adopted without a note": (
        "update",
        definition(),
        definition(owner("r1")),
        "adopted without a note",
    ),
    "an object without our owner is deleted": ("delete", None, definition(), "was deleted"),
    "an object with a further owner is deleted": (
        "delete",
        None,
        definition(owner("r1"), {**FOREIGN, "controller": False}),
        "is somebody else's, and was deleted",
    ),
    "an adopted object is deleted": (
        "delete",
        None,
        definition(owner("r1"), adopted=True),
        "was there before its package",
    ),
    "an install of a user is made": ("create", None, install(), "is a user's"),
    "an install of a user is deleted": ("delete", install(), install(), "is a user's"),
    "the spec of a user's install is changed": (
        "update",
        install(package="a"),
        install(package="b"),
        "changed its spec",
    ),
    "a revision is made active": ("create", None, revision("r1", "Active"), "was made active"),
    "a revision of nobody is changed": (
        "update",
        revision("r1", "Active", owned=False),
        revision("r1", "Inactive", owned=False),
        "is no install's",
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_wrong_write_is_found(name: str) -> None:
    verb, before, after, words = WRITES[name]
    found = judge()
    found.wrote(verb, before, after)
    assert any(words in each for each in found.problems), found.problems


RIGHT: dict[str, tuple[str, Object | None, Object]] = {
    "an object is made": ("create", None, definition(owner("r1"))),
    "an object goes to the next revision of its install": (
        "update",
        definition(owner("r1")),
        definition(owner("r1", controller=False), owner("r3")),
    ),
    "an object is adopted": ("update", definition(), definition(owner("r1"), adopted=True)),
    "an object is released": ("update", definition(owner("r1")), definition(owner("r1", controller=False))),
    "an object that only we own is deleted": ("delete", None, definition(owner("r1"))),
    "an install is made for another one": ("create", None, install(made=True)),
    "the switch of a user's install stays": ("update", install(package="a"), install(package="a")),
    "a revision is made": ("create", None, revision("r1", "Inactive")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_write_is_not_found(name: str) -> None:
    found = judge()
    found.locked(INSTALL, row(locked("r1", active=False), locked("r3", 2)))
    found.wrote(*RIGHT[name])
    assert found.problems == []


def test_a_lock_with_two_active_revisions_is_found() -> None:
    found = judge()
    found.locked(INSTALL, row(locked("r1"), locked("r3", 2)))
    assert found.problems == [f"the lock has 2 active revisions of {INSTALL}"]


@pytest.mark.parametrize("field", ["name", "revision"])
def test_a_lock_with_the_same_revision_twice_is_found(field: str) -> None:
    found = judge()
    second = locked("r1", 2, active=False) if field == "name" else locked("r3", 1, active=False)
    found.locked(INSTALL, row(locked("r1"), second))
    assert any(f"with the same {field}" in each for each in found.problems)


# ------------------------------------------------------------ at rest


def resting() -> tuple[Judge, dict[str, Object]]:
    """Return a judge and a cluster at rest: pa has r1 as the active revision, and a former one."""
    found = Judge()
    found.locked(INSTALL, row(locked("r0", active=False), locked("r1", 2)))
    done = tuple(
        EstablishedRevision(name=name, state=state, objects=(key_of(crd("One")),))  # type: ignore[arg-type]
        for name, state in (("r0", "released"), ("r1", "established"))
    )
    found.established[INSTALL] = EstablishedRow(revisions=done, is_healthy=True)
    objects = {
        "install": install(),
        "former": revision("r0", "Inactive"),
        "active": revision("r1", "Active"),
        "one": definition(owner("r0", controller=False), owner("r1")),
    }
    return found, objects


def test_a_cluster_that_is_as_the_lock_says_is_right() -> None:
    found, objects = resting()
    assert found.at_rest(objects.values()) == []


def _reports(found: Judge, *names: str) -> None:
    """Make the report of pa one of these objects."""
    keys = tuple(key_of(crd(name)) for name in names)
    done = EstablishedRevision(name="r1", state="established", objects=keys)
    found.established[INSTALL] = EstablishedRow(revisions=(done,), is_healthy=True)


Change = Callable[[Judge, dict[str, Object]], object]
STATES: dict[str, tuple[Change, str]] = {
    "an object has no controller": (
        lambda found, objects: objects.update(one=definition(owner("r1", controller=False))),
        "is controlled by None, and by the rows it is r1",
    ),
    "an object has a controller that the rows do not know": (
        lambda found, objects: objects.update(two=definition(owner("r1"), name="Two")),
        "is controlled by r1, and by the rows it is None",
    ),
    "an object is controlled by the former revision": (
        lambda found, objects: objects.update(one=definition(owner("r0"))),
        "is controlled by r0, and by the rows it is r1",
    ),
    "an owner is gone": (
        lambda found, objects: objects.pop("former"),
        "has an owner that is gone: r0",
    ),
    "two revisions are active in the cluster": (
        lambda found, objects: objects.update(former=revision("r0", "Active")),
        "the lock has",
    ),
    "an install has no row": (
        lambda found, objects: objects.update(other=install("pb")),
        f"{OTHER} has no row in the lock",
    ),
    "more revisions are kept than the limit says": (
        lambda found, objects: found.locked(
            INSTALL, row(locked("r8", active=False), locked("r0", 2, active=False), locked("r1", 3))
        ),
        "keeps more than 1 revisions",
    ),
    "the lock and the report have other objects": (
        lambda found, objects: _reports(found, "One", "Two"),
        "the lock and the report have other objects",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_wrong_state_at_rest_is_found(name: str) -> None:
    change, words = STATES[name]
    found, objects = resting()
    change(found, objects)
    assert any(words in each for each in found.at_rest(objects.values())), found.at_rest(objects.values())
