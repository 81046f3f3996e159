"""Carvel's PackageRepositories: what becomes available, what is removed, and what is held for installs."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Executed, Outcome
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CARVEL_PACKAGE, CARVEL_REPOSITORY
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.kernel.records import INSTALLS, SyncMarker
from pvbus.ports.cluster import Kind, Object
from tests.kit.deciding import PARTITION
from tests.unit.core.platform.establish.world import EstablishWorld

KEY = "cluster|packaging.carvel.dev/PackageRepository|team|tools"
METADATA = Kind("data.packaging.carvel.dev", "PackageMetadata")


def package(version: str, *, name: str = "app.x.org", notes: str = "") -> Object:
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": f"{name}.{version}"},
        "spec": {"refName": name, "version": version, "releaseNotes": notes},
    }


INFO = {
    "apiVersion": "data.packaging.carvel.dev/v1alpha1",
    "kind": "PackageMetadata",
    "metadata": {"name": "app.x.org", "namespace": "elsewhere"},
    "spec": {"displayName": "App"},
}
OTHER_KIND = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}


def inline(*objects: Object, path: str = "packages/all.yml") -> dict[str, Any]:
    return {"inline": {"paths": {path: yaml.safe_dump_all(objects)}}}


class Repositories(EstablishWorld):
    """A world with repositories. now: the time of the next look."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.list_installs()

    def list_installs(self, state: str = "ok") -> None:
        marker = SyncMarker(state=state, epoch=1)  # type: ignore[arg-type]
        self.controller.load(INSTALLS, PARTITION, sync_key(*CARVEL_INSTALL), msgspec.json.encode(marker))

    def repository(self, fetch: Mapping[str, Any], name: str = "tools", **spec: Any) -> None:
        live = self.live(CARVEL_REPOSITORY, name, "team") or {"metadata": {"name": name, "namespace": "team"}}
        api = {"apiVersion": "packaging.carvel.dev/v1alpha1", "kind": "PackageRepository"}
        self.cluster.put({**live, **api, "spec": {"fetch": fetch, **spec}})

    def look(self, key: str = KEY, *, seconds: float = 400.0) -> Outcome:
        """Look after some seconds, until nothing more is written at that time."""
        self.now += seconds
        for _ in range(4):
            self.mirror()
            outcome = self.reconcile(key, now=self.now)
        return outcome

    def install(self, version: str, **fields: Any) -> str:
        """Add a PackageInstall with a row of the lock; return its key."""
        self.cluster.put(
            {
                "apiVersion": "packaging.carvel.dev/v1alpha1",
                "kind": "PackageInstall",
                "metadata": {"name": "app", "namespace": "team"},
                "spec": {
                    "packageRef": {"refName": "app.x.org", "versionSelection": {"constraints": ">=1.0.0"}}
                },
            }
        )
        key = f"cluster|{CARVEL_INSTALL}|team|app"
        row: dict[str, Any] = {"status": "locked", "uid": "1", "package": "app.x.org", "version": version}
        self.set_lock(key, LockRow(**{**row, **fields}))
        return key

    @property
    def names(self) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.cluster.objects_of(CARVEL_PACKAGE))

    def status(self, name: str = "tools") -> dict[str, Any]:
        obj = self.live(CARVEL_REPOSITORY, name, "team")
        assert obj is not None
        status: dict[str, Any] = obj["status"]
        return status


def test_what_a_repository_has_becomes_available_in_its_namespace() -> None:
    """With the annotation of kapp-controller; other kinds are left out, as it does."""
    world = Repositories()
    world.repository(inline(package("1.0.0"), package("1.1.0"), INFO, OTHER_KIND))
    world.look()
    assert world.names == ["app.x.org.1.0.0", "app.x.org.1.1.0"]
    obj = world.live(METADATA, "app.x.org", "team")
    assert obj is not None
    assert obj["metadata"]["annotations"]["packaging.carvel.dev/package-repository-ref"] == "team/tools"
    assert not list(world.cluster.objects_of(Kind("", "ConfigMap")))
    status = world.status()
    assert (status["friendlyDescription"], status["observedGeneration"]) == (
        "Reconcile succeeded: 2 Packages",
        1,
    )
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == ("ReconcileSucceeded", "True")
    assert [status[stage]["exitCode"] for stage in ("fetch", "template", "deploy")] == [0, 0, 0]


def test_a_second_look_writes_only_that_it_looked() -> None:
    """Its own report is no news, and a look comes after the period or at once after a change."""
    world = Repositories()
    world.repository(inline(package("1.0.0")), syncPeriod="1m")
    world.look()
    writes = len(world.changes)
    assert world.status()["consecutiveReconcileSuccesses"] <= 2  # the finalizer is written before
    before = world.status()["consecutiveReconcileSuccesses"]
    world.look(seconds=50)
    assert world.status()["consecutiveReconcileSuccesses"] == before
    world.look(seconds=20)
    assert (len(world.changes), world.status()["consecutiveReconcileSuccesses"]) == (writes, before + 1)
    world.repository(inline(package("1.0.0"), package("1.1.0")), syncPeriod="1m")
    world.look(seconds=1)
    assert world.names == ["app.x.org.1.0.0", "app.x.org.1.1.0"]


def test_what_leaves_a_repository_is_removed_but_for_what_an_install_has() -> None:
    """It is held with the reason in the status and in an Event, until the install is gone or elsewhere."""
    world = Repositories()
    world.repository(inline(package("1.0.0"), package("1.1.0"), package("1.2.0"), INFO))
    world.look()
    key = world.install("1.0.0")
    world.repository(inline(package("1.2.0")))
    world.mirror()
    (put,) = world.reconcile(KEY, now=world.now + 1).puts
    assert put.notice is not None
    assert (put.notice.reason, put.notice.is_warning) == ("PackagesHeld", True)
    assert world.names == ["app.x.org.1.0.0", "app.x.org.1.2.0"]
    assert world.live(METADATA, "app.x.org", "team") is None
    text = "Package team/app.x.org.1.0.0 (PackageInstall team/app needs it)"
    assert text in world.status()["conditions"][0]["message"]
    assert text in put.notice.note
    world.install("1.2.0")
    world.look(seconds=70)
    assert world.names == ["app.x.org.1.2.0"]
    assert world.status()["friendlyDescription"] == "Reconcile succeeded: 1 Package"
    world.set_lock(key, None)


def test_what_an_install_needs_that_is_not_known_holds() -> None:
    """One that is not decided yet needs any version of its package, and one that nobody can read all."""
    world = Repositories()
    world.repository(inline(package("1.0.0"), package("1.0.0", name="other.x.org")))
    world.look()
    world.install("", status="waiting")
    world.repository(inline(package("2.0.0")))
    world.look()
    assert world.names == ["app.x.org.1.0.0", "app.x.org.2.0.0"]
    live = world.live(CARVEL_INSTALL, "app", "team")
    assert live is not None
    live["spec"]["packageRef"]["versionSelection"]["constraints"] = "1.0.0 ~2"
    world.cluster.put(live)
    world.repository(inline(package("3.0.0")))
    world.look()
    assert world.names == ["app.x.org.1.0.0", "app.x.org.2.0.0", "app.x.org.3.0.0"]
    assert "PackageInstall team/app cannot be read, and may need it" in world.status()["friendlyDescription"]
    world.cluster.remove(CARVEL_INSTALL, "team", "app")
    world.mirror()
    world.set_lock(f"cluster|{CARVEL_INSTALL}|team|app", None)
    world.list_installs("syncing")
    world.look()
    assert world.names == ["app.x.org.1.0.0", "app.x.org.2.0.0", "app.x.org.3.0.0"]
    world.list_installs()
    world.look()
    assert world.names == ["app.x.org.3.0.0"]


@pytest.mark.parametrize(
    ("fetch", "reason", "stage"),
    [
        ({"image": {"url": "r.example.org/tools@sha256:" + "0" * 64}}, "NotFound", "fetch"),
        ({"http": {"url": "x"}}, "NotSupported", "fetch"),
        ({"inline": {"pathsFrom": [{"secretRef": {"name": "x"}}]}}, "NotSupported", "fetch"),
        ({}, "InvalidPackage", "fetch"),
        ({"inline": {"paths": {"package/all.yml": "a: 1"}}}, "InvalidRepository", "template"),
        (inline(OTHER_KIND), "InvalidRepository", "template"),
        (inline(package("1.0.0"), package("1.0.0")), "InvalidRepository", "template"),
        ({"inline": {"paths": {"packages/a.yml": "#@ x\n"}}}, "ProgramMissing", "template"),
        ({"inline": {"paths": {"packages/a.yml": "a: [\n"}}}, "InvalidContent", "template"),
    ],
)
def test_a_repository_that_cannot_be_read_removes_nothing(
    fetch: Mapping[str, Any], reason: str, stage: str
) -> None:
    """It says why, counts its failures, and one success ends them."""
    world = Repositories()
    world.repository(inline(package("1.0.0")))
    world.look()
    world.repository(fetch)
    world.look()
    world.look(seconds=70)
    assert world.names == ["app.x.org.1.0.0"]
    status = world.status()
    assert status["conditions"][0]["reason"] == reason
    assert (status["consecutiveReconcileFailures"], status["consecutiveReconcileSuccesses"]) == (2, 0)
    assert status[stage]["exitCode"] == 1
    assert status[stage]["error"] == status["usefulErrorMessage"]
    assert world.done[KEY].reason == reason
    world.repository(inline(package("1.0.0")))
    world.look()
    assert (world.status()["consecutiveReconcileFailures"], "usefulErrorMessage" in world.status()) == (
        0,
        False,
    )


def test_two_repositories_may_bring_the_same_and_not_something_else() -> None:
    """Of a Package that another one has nothing is changed, and who has it is named."""
    world = Repositories()
    world.repository(inline(package("1.0.0")))
    world.look()
    other = KEY.replace("tools", "others")
    world.repository(inline(package("1.0.0"), package("2.0.0")), "others")
    world.look(other)
    assert world.names == ["app.x.org.1.0.0", "app.x.org.2.0.0"]
    world.repository(inline(package("1.0.0", notes="mine"), package("3.0.0")), "others")
    world.look(other)
    assert world.names == ["app.x.org.1.0.0", "app.x.org.2.0.0"]
    message = world.status("others")["usefulErrorMessage"]
    assert "Package team/app.x.org.1.0.0 belongs to PackageRepository team/tools and differs" in message


def test_a_repository_that_is_deleted_takes_its_packages_along() -> None:
    """It stays while an install has one of them, and says how to go on."""
    world = Repositories()
    world.repository(inline(package("1.0.0"), package("1.1.0"), INFO))
    world.look()
    key = world.install("1.0.0")
    world.cluster.terminate(CARVEL_REPOSITORY, "team", "tools")
    world.look()
    assert world.names == ["app.x.org.1.0.0"]
    (condition,) = world.status()["conditions"]
    assert condition["type"] == "DeleteFailed"
    assert "PackageInstall team/app needs it" in condition["message"]
    world.cluster.remove(CARVEL_INSTALL, "team", "app")
    world.mirror()
    world.set_lock(key, None)
    world.look()
    assert (world.names, world.live(CARVEL_REPOSITORY, "tools", "team")) == ([], None)
    assert KEY not in world.done


def test_a_paused_repository_is_left_alone() -> None:
    world = Repositories()
    world.repository(inline(package("1.0.0")))
    world.look()
    world.repository(inline(package("2.0.0")), paused=True)
    world.look()
    assert (world.names, world.status()["friendlyDescription"]) == (["app.x.org.1.0.0"], "Canceled/paused")


def test_a_bundle_needs_kbld_only_for_images_without_a_digest() -> None:
    """Its lock says where an image is now; kbld is given both."""
    world = Repositories()
    image = f"r.example.org/app@sha256:{'1' * 64}"
    there = package("1.0.0")
    there["spec"]["template"] = {"spec": {"fetch": [{"imgpkgBundle": {"image": image}}]}}
    lock = {"apiVersion": "imgpkg.carvel.dev/v1alpha1", "kind": "ImagesLock", "images": [{"image": image}]}
    digest = "sha256:" + "2" * 64
    files = {
        "packages/a.yml": yaml.safe_dump(there).encode(),
        ".imgpkg/images.yml": yaml.safe_dump(lock).encode(),
    }
    world.contents[digest] = files
    fetch = {"imgpkgBundle": {"image": f"r.example.org/tools@{digest}"}}
    world.repository(fetch)
    world.look()
    assert world.names == ["app.x.org.1.0.0"]
    files["packages/a.yml"] = files["packages/a.yml"].replace(f"@sha256:{'1' * 64}".encode(), b":v1")
    world.look()
    assert world.status()["conditions"][0]["reason"] == "ProgramMissing"
    given: list[bytes] = []

    def resolve(command: Any) -> Executed:
        given.append(command.given)
        assert command.files["package/.imgpkg/images.yml"]
        return Executed(0, yaml.safe_dump(there).encode(), b"")

    world.programs["kbld"] = resolve
    world.look()
    assert given
    assert world.status()["conditions"][0]["type"] == "ReconcileSucceeded"


def test_a_repository_is_left_to_others_where_they_install() -> None:
    world = EstablishWorld(installer="others")
    api = {"apiVersion": "packaging.carvel.dev/v1alpha1", "kind": "PackageRepository"}
    meta = {"name": "tools", "namespace": "team"}
    world.cluster.put({**api, "metadata": meta, "spec": {"fetch": inline(package("1.0.0"))}})
    obj = world.live(CARVEL_REPOSITORY, "tools", "team")
    assert list(world.controller.load(INSTALLS, PARTITION, KEY, msgspec.json.encode(obj))) == []
    assert list(world.controller.keys(PARTITION)) == []


def test_a_right_that_is_missing_is_reported() -> None:
    world = Repositories()
    world.repository(inline(package("1.0.0")))
    world.mirror()

    refusals = iter(("the list",))

    def refuse() -> None:
        if next(refusals, ""):
            raise PermanentError("packages is forbidden", reason="Forbidden")

    world.reconcile(KEY, during=(1, refuse))
    assert world.done[KEY].reason == "Forbidden"
