"""kapp's change groups and rules: in which order a package's objects are written and deleted."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.changerules import Change, order_of
from pvbus.core.platform.establish.objects import key_of
from pvbus.core.platform.establish.readiness import awaited_state
from pvbus.ports.cluster import Kind, Object
from tests.kit.deciding import CrashedError
from tests.unit.core.platform.establish.test_carvel import (
    CONFIG_MAP,
    KEY,
    add_install,
    add_package,
    config_map,
    data_of,
    order,
)
from tests.unit.core.platform.establish.world import INSTALL, EstablishWorld, crd

JOB = Kind("batch", "Job")
GROUP, RULE = "kapp.k14s.io/change-group", "kapp.k14s.io/change-rule"
MIGRATION = "example.org/migration"


def annotated(obj: Object, group: str = "", rule: str = "", **rules: str) -> Object:
    """Return an object in a change group, and with rules. rules: by their suffix"""
    annotations = {GROUP: group} if group else {}
    annotations |= {RULE: rule} if rule else {}
    annotations |= {f"{RULE}.{suffix}": text for suffix, text in rules.items()}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def job(name: str, **annotations: str) -> Object:
    spec: Object = {"template": {"spec": {"containers": []}}}
    obj = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    return annotated(obj, **annotations)


def write(obj: Object) -> Change:
    return Change(key_of(obj), obj)


def delete(obj: Object) -> Change:
    return Change(key_of(obj), obj, is_deleted=True)


def names(*changes: Change) -> list[list[str]]:
    return [[key.rpartition("|")[2] for key, *_ in stage] for stage in order_of(changes).stages]


A, B, C = (config_map(name) for name in "abc")


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ((write(A), write(B), delete(C)), [["a", "b"], ["c"]]),
        ((write(annotated(A, rule="upsert after upserting g")), write(annotated(B, "g"))), [["b"], ["a"]]),
        ((write(annotated(A, "g")), write(annotated(B, rule="upsert before upserting g"))), [["b"], ["a"]]),
        ((write(annotated(A, rule="upsert after deleting g")), delete(annotated(B, "g"))), [["b"], ["a"]]),
        ((write(annotated(A, "g")), delete(annotated(B, rule="delete before upserting g"))), [["b"], ["a"]]),
        ((delete(annotated(A, "g")), delete(annotated(B, rule="delete before deleting g"))), [["b"], ["a"]]),
        ((delete(annotated(A, rule="upsert after deleting g")), delete(annotated(B, "g"))), [["a", "b"]]),
        ((write(annotated(A, "g")), write(B), write(annotated(C, rule="upsert after upserting g"))),
         [["a", "b"], ["c"]]),
        ((write(annotated(A, x="upsert after upserting g", y="upsert after upserting h")),
          write(annotated(B, "g")), write(annotated(C, "h"))), [["b", "c"], ["a"]]),
        ((write(annotated(A, "of-{name}")), write(annotated(B, rule="upsert before upserting of-a"))),
         [["b"], ["a"]]),
    ],
)  # fmt: skip
def test_rules_order_changes_and_else_the_order_stays(
    changes: tuple[Change, ...], stages: list[list[str]]
) -> None:
    assert names(*changes) == stages


def test_what_is_moved_back_takes_along_what_needs_it() -> None:
    """A definition that waits for a migration is written before the objects of its kind all the same."""
    definition = annotated(crd("Thing"), rule=f"upsert after upserting {MIGRATION}")
    thing = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "thing"}}
    stages = names(write(definition), write(A), write(thing), write(job("migrate", group=MIGRATION)))
    assert stages == [["a", "migrate"], ["things.example.org", "thing"]]


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (annotated(A, rule="upsert after installing g"), "`upsert after installing g` is no change rule"),
        (annotated(A, rule="upsert  after upserting g"), "write `upsert|delete before|after"),
        (annotated(A, x="upsert after upserting"), "is no change rule"),
        (annotated(A, rule="upsert after upserting change-groups.kapp.k14s.io/crds"), "group of kapp's own"),
        (annotated(A, rule="upsert after upserting a/b/c"), "`a/b/c` is no name of a change group"),
        (annotated(A, "{crd-kind}"), "{crd-kind} has no value here"),
        (annotated(A, ""), ""),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_read_is_refused_with_its_object(obj: Object, words: str) -> None:
    if not words:
        assert names(write(obj)) == [["a"]]
        return
    with pytest.raises(RefusedError) as refusal:
        order_of([write(obj)])
    assert words in refusal.value.message
    assert "ConfigMap a: " in refusal.value.message


def test_a_cycle_is_reported_with_its_members() -> None:
    first = annotated(A, "g", "upsert after upserting h")
    with pytest.raises(RefusedError) as refusal:
        order_of([write(first), write(annotated(B, "h", "upsert after upserting g"))])
    assert refusal.value.message == (
        "the change rules are a cycle: ConfigMap a comes before ConfigMap b, which comes before ConfigMap a: "
        "remove one of them"
    )


_RULES = [
    f"{action} {when} {target} g{group}"
    for action in ("upsert", "delete")
    for when in ("before", "after")
    for target in ("upserting", "deleting")
    for group in range(3)
]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.sampled_from(_RULES), max_size=2), st.booleans()), max_size=8
    )
)
def test_an_order_meets_all_rules_or_is_refused(given_changes: list[tuple[int, list[str], bool]]) -> None:
    """Every change comes once, in a stage after those of all that it needs."""
    changes = []
    for number, (group, rules, is_deleted) in enumerate(given_changes):
        texts = {f"r{position}": rule for position, rule in enumerate(rules)}
        obj = annotated(config_map(f"c{number}"), f"g{group}", **texts)
        changes.append(Change(key_of(obj), obj, is_deleted))
    result, refused = None, ""
    try:
        result = order_of(changes)
    except RefusedError as refusal:
        refused = refusal.message
    if result is None:
        assert "a cycle" in refused
        return
    position = {change.key: number for number, stage in enumerate(result.stages) for change in stage}
    assert sorted(position) == sorted(change.key for change in changes)
    assert all(position[first] < position[key] for key, firsts in result.needs.items() for first in firsts)
    for stage in result.stages:
        assert all(first.is_deleted == second.is_deleted for first, second in pairwise(stage))


@pytest.mark.parametrize(
    ("kind", "spec", "status", "state"),
    [
        ("batch/v1 Job", {}, {}, "complete"),
        ("batch/v1 Job", {}, {"conditions": [{"type": "Complete", "status": "True"}]}, ""),
        ("v1 Pod", {}, {"phase": "Running"}, "ready"),
        ("v1 Pod", {}, {"phase": "Succeeded"}, ""),
        ("apps/v1 Deployment", {"replicas": 0}, {}, "available"),
        ("apps/v1 Deployment", {}, {"observedGeneration": 2, "updatedReplicas": 1}, "available"),
        ("apps/v1 Deployment", {}, {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1},
         "available"),
        ("apps/v1 Deployment", {}, {"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1},
         ""),
        ("apps/v1 DaemonSet", {}, {"observedGeneration": 2, "desiredNumberScheduled": 2,
         "updatedNumberScheduled": 2, "numberAvailable": 1}, "available"),
        ("apps/v1 DaemonSet", {}, {"observedGeneration": 2}, ""),
        ("apiextensions.k8s.io/v1 CustomResourceDefinition", {}, {}, "established"),
        ("packaging.carvel.dev/v1alpha1 PackageInstall", {}, {"observedGeneration": 1, "conditions": [
         {"type": "ReconcileSucceeded", "status": "True"}]}, "reconciled"),
        ("v1 ConfigMap", {}, {}, ""),
    ],
)  # fmt: skip
def test_an_object_is_ready_as_its_kind_says(
    kind: str, spec: Mapping[str, Any], status: Mapping[str, Any], state: str
) -> None:
    api_version, _, name = kind.partition(" ")
    meta = {"name": "x", "generation": 2}
    live = {"apiVersion": api_version, "kind": name, "metadata": meta, "spec": spec, "status": status}
    assert awaited_state(live) == state


# -------------------------------------------------------------------- in a cluster


def migrating() -> EstablishWorld:
    """Return a world in which settings come after a migration, both of which are to be written."""
    world = EstablishWorld()
    add_install(world)
    after = annotated(config_map("settings", "1"), rule=f"upsert after upserting {MIGRATION}")
    add_package(world, "1.0.0", [after, config_map("first", "1"), job("migrate", group=MIGRATION)])
    order(world, "1.0.0")
    world.settle()
    return world


def end_job(world: EstablishWorld, condition: str) -> None:
    live = world.cluster.peek(JOB, "team", "migrate")
    assert live is not None
    world.cluster.put({**live, "status": {"conditions": [{"type": condition, "status": "True"}]}})
    again(world)


def again(world: EstablishWorld) -> None:
    for second in range(3):
        world.reconcile(KEY, now=5000.0 + 100 * second)
    world.settle()


def test_a_write_waits_until_the_migration_before_it_is_complete() -> None:
    world = migrating()
    assert (data_of(world, "first"), data_of(world, "settings")) == ("1", None)
    done = world.done[KEY]
    assert not done.is_healthy
    assert done.message == "ConfigMap team/settings waits for Job team/migrate to be complete"
    end_job(world, "Complete")
    assert data_of(world, "settings") == "1"
    assert world.done[KEY].is_healthy


def test_nothing_is_written_after_a_migration_that_failed() -> None:
    world = migrating()
    end_job(world, "Failed")
    assert data_of(world, "settings") is None
    assert world.done[KEY].reason == "NotReady"
    assert "Job team/migrate has failed" in world.done[KEY].message


def test_what_a_new_version_lacks_is_deleted_before_what_replaces_it_is_written() -> None:
    """While the former object is held by a finalizer, the new one is not written."""
    world = EstablishWorld()
    add_install(world)
    former = annotated(config_map("former", "1"), rule="delete before upserting g")
    add_package(world, "1.0.0", [former])
    add_package(world, "2.0.0", [annotated(config_map("next", "2"), "g")])
    order(world, "1.0.0")
    world.settle()
    live = world.cluster.peek(CONFIG_MAP, "team", "former")
    assert live is not None
    world.cluster.put({**live, "metadata": {**live["metadata"], "finalizers": ["example.org/hold"]}})
    order(world, "2.0.0")
    world.settle()
    live = world.cluster.peek(CONFIG_MAP, "team", "former")
    assert live is not None
    assert live["metadata"].get("deletionTimestamp")
    assert data_of(world, "next") is None
    assert world.done[KEY].message == "ConfigMap team/next waits for ConfigMap team/former to be gone"
    world.cluster.remove(CONFIG_MAP, "team", "former")
    again(world)
    assert (data_of(world, "former"), data_of(world, "next")) == (None, "2")


def installed_in_order() -> EstablishWorld:
    """Return a world with `database`, which is to be deleted after `app`."""
    world = EstablishWorld()
    add_install(world)
    app = annotated(config_map("app", "1"), "app")
    database = annotated(config_map("database", "1"), rule="delete after deleting app")
    add_package(world, "1.0.0", [app, database])
    order(world, "1.0.0")
    world.settle()
    return world


def remove(world: EstablishWorld) -> None:
    world.cluster.terminate(INSTALL, "team", "app")
    order(world, "1.0.0", status="removed")


def test_an_install_is_deleted_in_the_order_of_its_rules() -> None:
    world = installed_in_order()
    live = world.cluster.peek(CONFIG_MAP, "team", "app")
    assert live is not None
    world.cluster.put({**live, "metadata": {**live["metadata"], "finalizers": ["example.org/hold"]}})
    remove(world)
    world.settle()
    assert data_of(world, "database") == "1"
    assert "ConfigMap team/database (waits for ConfigMap team/app to be gone)" in world.done[KEY].message
    world.cluster.remove(CONFIG_MAP, "team", "app")
    again(world)
    assert (data_of(world, "app"), data_of(world, "database")) == (None, None)
    assert world.cluster.peek(INSTALL, "team", "app") is None


def test_a_deletion_can_be_cut_at_any_effect() -> None:
    """The database is never gone while the app is there, and both are gone at the end."""
    position, cuts = 0, 0
    while cuts == position:
        world = installed_in_order()
        remove(world)
        world.mirror()
        try:
            world.reconcile(KEY, crash_at=position, is_after=True)
        except CrashedError:
            cuts = position + 1
        assert data_of(world, "database") or not data_of(world, "app")
        world.start()
        world.settle()
        assert (data_of(world, "app"), data_of(world, "database")) == (None, None)
        position += 1
    assert cuts > 5


def test_a_broken_rule_on_an_installed_object_holds_the_deletion_with_a_way_out() -> None:
    world = installed_in_order()
    live = world.cluster.peek(CONFIG_MAP, "team", "app")
    assert live is not None
    annotations = {**live["metadata"]["annotations"], RULE: "delete last"}
    world.cluster.put({**live, "metadata": {**live["metadata"], "annotations": annotations}})
    remove(world)
    world.settle()
    assert data_of(world, "app") == "1"
    assert world.done[KEY].reason == "DeleteFailed"
    assert "`delete last` is no change rule" in world.done[KEY].message
    assert "spec.noopDelete" in world.done[KEY].message


def test_a_package_with_a_cycle_of_rules_changes_nothing() -> None:
    world = EstablishWorld()
    add_install(world)
    first = annotated(config_map("a", "1"), "g", "upsert after upserting h")
    add_package(world, "1.0.0", [first, annotated(config_map("b", "1"), "h", "upsert after upserting g")])
    order(world, "1.0.0")
    world.settle()
    assert (data_of(world, "a"), data_of(world, "b")) == (None, None)
    assert world.done[KEY].reason == "InvalidChangeRule"


def with_setting(name: str, value: str = "", kind: str = "annotations") -> Object:
    obj = config_map("data", "1")
    return {**obj, "metadata": {**obj["metadata"], kind: {f"kapp.k14s.io/{name}": value}}}


@pytest.mark.parametrize("is_update", [False, True])
def test_what_kapp_would_leave_is_left(is_update: bool) -> None:
    """An object that is to be orphaned stays when its install goes, or a new version lacks it."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [with_setting("delete-strategy", "orphan"), config_map("more", "1")])
    add_package(world, "2.0.0", [config_map("next", "2")])
    order(world, "1.0.0")
    world.settle()
    if is_update:
        order(world, "2.0.0")
    else:
        remove(world)
    world.settle()
    assert (data_of(world, "data"), data_of(world, "more")) == ("1", None)
    live = world.cluster.peek(CONFIG_MAP, "team", "data")
    assert live is not None
    assert "pvbus.dev/installed-by" not in live["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("setting", "kind", "words"),
    [
        ("exists", "annotations", "the annotation kapp.k14s.io/exists is not followed here"),
        ("noop", "annotations", "the annotation kapp.k14s.io/noop is not followed here"),
        ("config", "labels", "ConfigMap team/data is a configuration of kapp, which is not read here"),
    ],
)
def test_a_setting_of_kapp_that_cannot_be_followed_is_refused(setting: str, kind: str, words: str) -> None:
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [with_setting(setting, kind=kind)])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "data") is None
    assert world.done[KEY].reason == "NotSupported"
    assert words in world.done[KEY].message


def test_a_setting_of_kapp_without_effect_is_reported() -> None:
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [with_setting("versioned")])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "data") == "1"
    words = "the annotation kapp.k14s.io/versioned has no effect (ConfigMap team/data)"
    assert world.done[KEY].message == words
