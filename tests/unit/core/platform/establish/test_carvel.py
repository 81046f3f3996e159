"""The small installer of Carvel's packages: what it writes, in whose name, and what it leaves to others."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.packagerows import EstablishedRow, LockedDependency, LockRow
from pvbus.core.kernel.records import INSTALLS
from pvbus.ports.cluster import Kind, Object
from tests.kit.deciding import PARTITION, CrashedError
from tests.unit.core.platform.establish.world import CRD, INSTALL, EstablishWorld, crd

CONFIG_MAP = Kind("", "ConfigMap")
PACKAGE = Kind("data.packaging.carvel.dev", "Package")
KEY = "cluster|packaging.carvel.dev/PackageInstall|team|app"
USER = "system:serviceaccount:team:installer"


def config_map(name: str, text: str = "") -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": text}}


def add_package(world: EstablishWorld, version: str, objects: list[Object], **spec: Any) -> None:
    """Publish a Package with inline files. spec: instead of the steps that it has."""
    files = {"config.yml": yaml.safe_dump_all(objects)}
    steps = {"fetch": [{"inline": {"paths": files}}], "template": [{"ytt": {}}], "deploy": [{"kapp": {}}]}
    world.cluster.put(
        {
            "apiVersion": "data.packaging.carvel.dev/v1alpha1",
            "kind": "Package",
            "metadata": {"name": f"app.example.org.{version}", "namespace": "team"},
            "spec": {
                "refName": "app.example.org",
                "version": version,
                "template": {"spec": {**steps, **spec}},
            },
        }
    )


def add_install(world: EstablishWorld, name: str = "app", **spec: Any) -> None:
    world.cluster.put(
        {
            "apiVersion": "packaging.carvel.dev/v1alpha1",
            "kind": "PackageInstall",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"serviceAccountName": "installer", "packageRef": {"refName": "app.example.org"}, **spec},
        }
    )


def order(world: EstablishWorld, version: str, name: str = "app", **fields: Any) -> None:
    obj = world.cluster.peek(INSTALL, "team", name)
    row: dict[str, Any] = {"status": "locked", "package": "app.example.org", "version": version, **fields}
    uid = obj["metadata"]["uid"] if obj is not None else ""
    key = f"cluster|packaging.carvel.dev/PackageInstall|team|{name}"
    world.set_lock(key, LockRow(**{"uid": uid, **row}))


def data_of(world: EstablishWorld, name: str) -> str | None:
    obj = world.cluster.peek(CONFIG_MAP, "team", name)
    return obj["data"]["text"] if obj is not None else None


def test_objects_are_written_in_the_name_of_the_installs_account() -> None:
    """Every write of a packaged object is the ServiceAccount's; only the install itself is written by us."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1"), crd("Thing")])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "settings") == "1"
    assert {(write.kind, write.by) for write in world.changes} == {
        ("PackageInstall", ""),
        ("ConfigMap", USER),
        ("CustomResourceDefinition", USER),
    }
    first, *_ = [write.kind for write in world.changes if write.by]
    assert first == "CustomResourceDefinition"
    row = world.done[KEY]
    assert row.is_healthy
    assert row.revisions[0].objects == (
        "apiextensions.k8s.io/CustomResourceDefinition||things.example.org",
        "/ConfigMap|team|settings",
    )


def test_a_second_look_writes_nothing() -> None:
    """What is there as the package says is not written again, also by a new process."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    writes = len(world.changes)
    world.start()
    world.settle()
    assert len(world.changes) == writes


def updated(world: EstablishWorld) -> None:
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1"), config_map("old"), crd("Thing")])
    add_package(world, "2.0.0", [config_map("settings", "2"), config_map("new"), crd("Thing")])
    order(world, "1.0.0")
    world.settle()
    order(world, "2.0.0")


def test_an_update_deletes_what_the_new_version_does_not_have() -> None:
    """The objects are those of the new version, and only these."""
    world = EstablishWorld()
    updated(world)
    world.settle()
    assert [data_of(world, name) for name in ("settings", "new", "old")] == ["2", "", None]


def test_an_update_can_be_cut_at_any_effect() -> None:
    """Whatever effect is the last one, the next process completes the update, and nothing is left behind."""
    position, cuts = 0, 0
    while cuts == position:
        for is_after in (False, True):
            world = EstablishWorld()
            updated(world)
            for _ in range(2):  # the row is written between the checks and the writes
                world.mirror()
                try:
                    world.reconcile(KEY, crash_at=position, is_after=is_after)
                except CrashedError:
                    cuts = position + 1
                    world.start()
            world.settle()
            assert [data_of(world, name) for name in ("settings", "new", "old")] == ["2", "", None]
            assert world.done[KEY].is_healthy
        position += 1
    assert cuts > 10


def test_a_deleted_install_takes_its_objects_along() -> None:
    """They go first, then the finalizer, so that no object is left without an install."""
    world = EstablishWorld()
    add_install(world)
    mine = config_map("mine", "1")
    mine["metadata"]["namespace"] = "team"
    world.cluster.put(mine)
    add_package(world, "1.0.0", [config_map("settings", "1"), config_map("mine", "2")])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "mine") == "2"
    world.cluster.terminate(INSTALL, "team", "app")
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None, "its finalizer holds it"
    order(world, "1.0.0", status="removed")
    world.settle()
    assert world.cluster.peek(INSTALL, "team", "app") is None
    assert data_of(world, "settings") is None
    assert data_of(world, "mine") == "2", "it was there before the package"
    assert KEY not in world.done


@pytest.mark.parametrize("status", ["refused", "removed", "removed before it is mirrored"])
def test_the_objects_of_an_install_are_known_after_the_bus_was_lost(status: str) -> None:
    """Also if the install is refused meanwhile, or deleted before it could be established again."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1"), config_map("more", "1")])
    order(world, "1.0.0")
    world.settle()
    world.done.clear()
    world.lock.clear()
    world.start()
    if status == "refused":
        order(world, "1.0.0", status="refused", reason="DependenciesUnmet")
        world.settle()
        (entry,) = world.done[KEY].revisions
        assert set(entry.objects) == {"/ConfigMap|team|settings", "/ConfigMap|team|more"}
    world.cluster.terminate(INSTALL, "team", "app")
    order(world, "1.0.0", status="removed")
    if status == "removed before it is mirrored":
        world.controller.load(INSTALLS, PARTITION, KEY, None)
        world.reconcile(KEY)
    world.settle()
    assert world.cluster.peek(INSTALL, "team", "app") is None
    assert (data_of(world, "settings"), data_of(world, "more")) == (None, None)


@pytest.mark.parametrize("text", ["{", "7", '["others"]', '["/ConfigMap|team|others"]'])
def test_what_a_person_writes_into_the_note_of_objects_deletes_nothing_of_others(text: str) -> None:
    world = EstablishWorld()
    others = config_map("others", "theirs")
    others["metadata"]["namespace"] = "team"
    world.cluster.put(others)
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    obj["metadata"]["annotations"]["pvbus.dev/objects"] = text
    world.cluster.put(obj)
    world.cluster.terminate(INSTALL, "team", "app")
    order(world, "1.0.0", status="removed")
    world.settle()
    assert (data_of(world, "settings"), data_of(world, "others")) == (None, "theirs")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"template": [{"sops": {}}]}, "template.sops"),
        ({"template": [{"cue": {}}]}, "template.cue"),
        ({"fetch": [{"helmChart": {"name": "a"}}]}, "fetch.helmChart"),
        ({"fetch": [{"http": {"url": "https://example.org/a.tgz"}}]}, "fetch.http"),
        ({"fetch": [{"git": {"url": "a", "refSelection": {"semver": {}}}}]}, "fetch.git.refSelection"),
        ({"deploy": [{"kapp": {"intoNs": "other"}}]}, "deploy.kapp.intoNs"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(spec: Mapping[str, Any], words: str) -> None:
    """Nothing is written then, and the reason says what to do."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings")], **spec)
    order(world, "1.0.0")
    world.settle()
    row = world.done[KEY]
    assert row.reason == "NotSupported"
    assert words in row.message
    assert "PVBUS_INSTALLER" in row.message
    assert world.changes == []


@pytest.mark.parametrize("field", ["configMapRef", "secretRef"])
def test_files_of_a_package_may_be_in_the_cluster(field: str) -> None:
    """They are read with the rights of the install's account, after those that the package has itself."""
    world = EstablishWorld()
    add_install(world)
    text = yaml.safe_dump(config_map("settings", "2"))
    head = {"apiVersion": "v1", "metadata": {"name": "files", "namespace": "team"}}
    if field == "configMapRef":
        world.cluster.put({**head, "kind": "ConfigMap", "data": {"a.yml": text}})
    else:
        encoded = base64.b64encode(text.encode()).decode()
        world.cluster.put({**head, "kind": "Secret", "data": {"a.yml": encoded}})
    paths = {"config/a.yml": yaml.safe_dump(config_map("settings", "1"))}
    source = {field: {"name": "files", "directoryPath": "config"}}
    add_package(world, "1.0.0", [], fetch=[{"inline": {"paths": paths, "pathsFrom": [source]}}])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "settings") == "2"


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("config.yml", "."),
        ("config.yml", "./"),
        ("config.yml", "config.yml"),
        ("config.yml", "./config.yml"),
        ("./config.yml", "config.yml"),
        ("config/app/all.yml", "config"),
        ("config/app/all.yml", "./config/"),
        ("config/app/all.yml", "config/./app"),
        ("config/app/all.yml", "config/../config"),
    ],
)
def test_a_path_is_the_same_in_all_its_spellings(file: str, path: str) -> None:
    """As for ytt: `.` is all files, and `./config` is `config`."""
    world = EstablishWorld()
    add_install(world)
    fetch = [{"inline": {"paths": {file: yaml.safe_dump(config_map("settings", "1"))}}}]
    add_package(world, "1.0.0", [], fetch=fetch, template=[{"ytt": {"paths": [path]}}])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "settings") == "1"


def test_a_path_without_a_file_is_named_beside_one_that_has_files() -> None:
    world = EstablishWorld()
    add_install(world)
    paths = ["config.yml", "../overlays"]
    add_package(world, "1.0.0", [config_map("settings", "1")], template=[{"ytt": {"paths": paths}}])
    order(world, "1.0.0")
    world.settle()
    assert (world.done[KEY].reason, data_of(world, "settings")) == ("InvalidPackage", None)
    assert "template.ytt.paths names ../overlays, which the package lacks" in world.done[KEY].message


def test_a_mistyped_path_deletes_nothing() -> None:
    """A version whose files hold no objects is refused, and what was installed stays; one without `fetch`
    has dependencies only, and no objects."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    add_package(world, "1.1.0", [config_map("settings", "2")], template=[{"ytt": {"paths": ["confg/"]}}])
    add_package(world, "1.1.1", [])
    add_package(world, "1.2.0", [], fetch=[])
    order(world, "1.1.1")
    world.settle()
    assert (world.done[KEY].reason, data_of(world, "settings")) == ("InvalidPackage", "1")
    order(world, "1.1.0")
    world.settle()
    assert world.done[KEY].reason == "InvalidPackage"
    assert "template.ytt.paths names confg, which the package lacks" in world.done[KEY].message
    assert data_of(world, "settings") == "1"
    order(world, "1.2.0")
    world.settle()
    assert (world.done[KEY].reason, data_of(world, "settings")) == ("", None)


def test_an_object_of_another_install_is_not_taken() -> None:
    """The second install changes nothing, and names the first."""
    world = EstablishWorld()
    for name in ("app", "second"):
        add_install(world, name)
    add_package(world, "1.0.0", [config_map("settings", "1"), config_map("other")])
    order(world, "1.0.0")
    world.settle()
    writes = len(world.changes)
    order(world, "1.0.0", "second")
    world.settle()
    key = "cluster|packaging.carvel.dev/PackageInstall|team|second"
    assert "ConfigMap team/settings belongs to PackageInstall team/app" in world.done[key].message
    assert len(world.changes) == writes


def test_of_two_installs_that_begin_together_one_writes_nothing() -> None:
    """Both have checked before either has written: the second one looks again when it is its turn."""
    world = EstablishWorld()
    for name in ("app", "second"):
        add_install(world, name)
        order(world, "1.0.0", name)
    add_package(world, "1.0.0", [config_map("settings", "1"), config_map("other")])
    keys = [KEY, "cluster|packaging.carvel.dev/PackageInstall|team|second"]
    world.mirror()
    for key in keys:
        assert world.reconcile(key).result == "changed"
    assert world.changes == []
    steps = world.controller.reconcile(PARTITION, keys[1], 1000.0)
    next(steps)
    assert world.reconcile(keys[0]).result == "waiting"
    steps.close()
    world.settle()
    assert sorted(world.done[key].is_healthy for key in keys) == [False, True]
    assert {write.name for write in world.changes if write.by} == {"settings", "other"}
    assert len([write for write in world.changes if write.by]) == 2


def test_what_the_account_may_not_do_changes_nothing() -> None:
    """The API server refuses in the dry run, and its words are in the row."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("a"), config_map("z")])
    order(world, "1.0.0")

    def refuse(user: str, verb: str, obj: Object) -> None:
        if user == USER and obj["metadata"]["name"] == "z":
            raise PermanentError("configmaps is forbidden", reason="Forbidden")

    world.cluster.authorizes = refuse
    world.settle()
    assert data_of(world, "a") is None
    row = world.done[KEY]
    assert (row.reason, row.is_healthy) == ("Forbidden", False)
    assert "configmaps is forbidden" in row.message


def test_an_install_waits_for_what_it_needs() -> None:
    """Its objects are written when the install of its dependency is healthy, and not before."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    need = LockedDependency(
        condition="OwnedPackageInstall", install="packaging.carvel.dev/PackageInstall|team|child"
    )
    order(world, "1.0.0", dependencies=(need,))
    world.settle()
    row = world.done[KEY]
    assert (row.reason, row.message) == ("WaitingForDependencies", "waits for PackageInstall team/child")
    assert data_of(world, "settings") is None
    world.set_lock(CHILD, LockRow(status="locked"))
    world.done[CHILD] = EstablishedRow(uid="1", is_healthy=True)
    world.start()
    world.settle()
    assert data_of(world, "settings") == "1"


CHILD = "cluster|packaging.carvel.dev/PackageInstall|team|child"
OWNER = "kapp-controller.carvel.dev/owner"


def child_row(world: EstablishWorld, *holders: str, **fields: Any) -> None:
    obj = world.cluster.peek(INSTALL, "team", "child")
    template = {"packageRef": {"refName": "child.example.org"}, "serviceAccountName": "installer"}
    row = {
        "status": "locked",
        "uid": obj["metadata"]["uid"] if obj is not None else "",
        "template": template,
        "holders": tuple(f"packaging.carvel.dev/PackageInstall|team|{each}" for each in holders),
        **fields,
    }
    world.set_lock(CHILD, LockRow(**row))


def child_owner(world: EstablishWorld) -> str | None:
    obj = world.cluster.peek(INSTALL, "team", "child")
    assert obj is not None
    found: str | None = obj["metadata"].get("annotations", {}).get(OWNER)
    return found


@pytest.mark.parametrize("last", [{"reason": "Orphaned"}, {"status": "refused", "reason": "Conflict"}])
def test_an_install_for_others_is_made_handed_on_and_released(last: Mapping[str, Any]) -> None:
    """It names its first holder, the next one when that goes, and nobody once it is orphaned, also if it is
    refused from then on."""
    world = EstablishWorld()
    child_row(world, "app")
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "child")
    assert obj is not None
    assert obj["spec"]["packageRef"] == {"refName": "child.example.org"}
    assert child_owner(world) == "PackageInstall/app"
    assert world.done[CHILD].is_created
    child_row(world, "other")
    world.settle()
    assert child_owner(world) == "PackageInstall/other"
    child_row(world, template={}, **last)
    world.settle()
    assert child_owner(world) is None


@pytest.mark.parametrize(
    ("removal", "is_needed", "is_left"),
    [
        ("delete", False, False),
        ("delete", True, False),
        ("orphan", False, True),
        ("keep-if-used", False, False),
        ("keep-if-used", True, True),
    ],
)
def test_an_install_without_holders_ends_as_the_lock_says(
    removal: str, is_needed: bool, is_left: bool
) -> None:
    """It is deleted or released; `keep-if-used` depends on whether another install needs it."""
    world = EstablishWorld()
    child_row(world, "app")
    world.settle()
    if is_needed:
        add_install(world)
        need = LockedDependency(condition="FoundPackageInstall", install=CHILD.partition("|")[2])
        order(world, "1.0.0", dependencies=(need,))
    child_row(world, status="removed", removal=removal)
    world.settle()
    assert (world.cluster.peek(INSTALL, "team", "child") is not None) == is_left
    if is_left:
        assert child_owner(world) is None
    assert CHILD not in world.done


def test_a_users_install_is_never_deleted() -> None:
    """An install without the annotation of an owner is left alone, whatever the lock says."""
    world = EstablishWorld()
    add_install(world, "child")
    child_row(world, status="removed", removal="delete")
    world.settle()
    assert world.cluster.peek(INSTALL, "team", "child") is not None


def test_an_edit_of_an_install_for_others_is_reported() -> None:
    """What a user changes in it stays, and is said; a new version of the template is written."""
    world = EstablishWorld()
    child_row(world, "app")
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "child")
    assert obj is not None
    world.cluster.put({**obj, "spec": {**obj["spec"], "packageRef": {"refName": "mine.example.org"}}})
    child_row(world, "app")
    world.settle()
    assert "somebody has changed spec.packageRef" in world.done[CHILD].message
    child_row(world, "app", template={"packageRef": {"refName": "child.example.org", "x": 1}})
    world.settle()
    obj = world.cluster.peek(INSTALL, "team", "child")
    assert obj is not None
    assert obj["spec"]["packageRef"] == {"refName": "child.example.org", "x": 1}


def test_a_definition_and_its_objects_may_be_in_one_package() -> None:
    """What the definition defines cannot be checked before it is there, and is written after it."""
    world = EstablishWorld()
    add_install(world)
    thing = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "one"}}
    add_package(world, "1.0.0", [thing, crd("Thing", scope="Namespaced")])
    order(world, "1.0.0")
    world.settle()
    assert world.cluster.peek(Kind("example.org", "Thing"), "team", "one") is not None
    assert world.cluster.peek(CRD, "", "things.example.org") is not None


def test_values_for_a_package_without_templates_have_no_effect_and_the_row_says_so() -> None:
    """The example of the proposal gives its dependency a Secret, and nothing in the package could use it."""
    world = EstablishWorld()
    add_install(world, values=[{"secretRef": {"name": "pkg3-values"}}])
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    assert data_of(world, "settings") == "1"
    row = world.done[KEY]
    assert (row.is_healthy, row.message) == (
        True,
        "spec.values has no effect: nothing in the package is a template",
    )


def test_objects_without_a_namespace_are_in_the_default_one_of_the_install() -> None:
    """spec.defaultNamespace counts before the namespace of the install."""
    world = EstablishWorld()
    add_install(world, defaultNamespace="shop")
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    assert world.done[KEY].revisions[0].objects == ("/ConfigMap|shop|settings",)
    assert world.cluster.peek(CONFIG_MAP, "team", "settings") is None


@pytest.mark.parametrize("name", ["fetch-0-secret-name", "helm-template-values-from-secret-name"])
def test_an_install_that_changes_its_package_is_refused_by_name(name: str) -> None:
    """The package without the change is another one than the user asked for."""
    world = EstablishWorld()
    add_install(world)
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    annotations = {f"ext.packaging.carvel.dev/{name}": "overlay"}
    world.cluster.put({**obj, "metadata": {**obj["metadata"], "annotations": annotations}})
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    row = world.done[KEY]
    assert (row.reason, name in row.message) == ("NotSupported", True)
    assert data_of(world, "settings") is None


@pytest.mark.parametrize(
    ("period", "seconds"),
    [(None, 600), ("1h", 3600), ("1m30s", 90), ("5s", 30), ("soon", 600), ("1h soon", 600), (90, 600)],
)
def test_an_install_is_compared_after_its_period(period: Any, seconds: float) -> None:
    """At least half a minute, as for kapp-controller; without one, or for what is none, ten minutes."""
    world = EstablishWorld()
    add_install(world, syncPeriod=period)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    assert world.settle()[KEY].again_after == seconds
    assert world.done[KEY].message == ""
