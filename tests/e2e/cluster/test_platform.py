"""The example platform on a real API server: services under their own roles, and the garbage collector."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.core.kernel.rights import ALL_RIGHTS, requests_of
from pvbus.examples import platform as example
from pvbus.install import manifests
from pvbus.install.objects import NAMESPACE, Options
from tests.e2e.cli.command import git
from tests.e2e.cluster.test_run_cluster import kubectl as kubectl
from tests.e2e.packaging import carvel, mistakes
from tests.e2e.packaging.kills import LOCKS, Killer, looking
from tests.e2e.packaging.mistakes import Mistakes
from tests.e2e.packaging.platform import (
    INSTALLED,
    UPGRADED,
    Platform,
    is_created,
    message_of,
    owners_of,
    what_a_person_deletes_comes_back,
)
from tests.tools import registry
from tests.tools.auditlog import AuditEvent
from tests.tools.packagestore import create
from tests.tools.realcluster import RealCluster, real_cluster_of
from tests.tools.runcluster import DEFINITIONS
from tests.tools.serviceprocess import ServiceProcess, account_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400, func_only=True)]

SERVICES = ("ingest", "resolve", "establish", "conditions")
KILLS = 2
"""During the installation, and again during the upgrade."""
PACKAGING = sorted((DEFINITIONS[0].parent / "packaging").glob("*.yaml"))
OF_OTHER_STORIES = {
    *("packages", "packages/status", "packagerevisions", "packagerevisions/status"),  # the kind Package
    *("deployments", "services", "serviceaccounts", "clusterroles", "clusterrolebindings"),  # of what runs
    "secrets",  # of registries that want a password
    "functions",  # created whole, and never changed here
}
"""Kinds that the example does not use. Nor does it delete much: that is of what fails half way."""
COLLECTED_SECONDS = 180.0
"""Kubernetes' garbage collector looks for new kinds every 30 s, and collects nothing until it watches all.
The definitions here go meanwhile, one after the other, so that may take it several turns."""
GREEDY = """\
apiVersion: meta.pkg.crossplane.io/v1
kind: Provider
metadata: {name: greedy}
spec:
  controller:
    image: registry.example.org/greedy:v1.0.0
    permissionRequests:
    - {apiGroups: [""], resources: [nodes], verbs: [delete]}
"""
DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: hoards.greedy.example.dev}
spec:
  group: greedy.example.dev
  names: {kind: Hoard, listKind: HoardList, plural: hoards, singular: hoard}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The example's objects, with the repository that they name."""
    folder = tmp_path_factory.mktemp("platform")
    found = [each.object for each in example.make(folder / ".pvbus" / "example")]
    return [{"folder": folder}, *found]


@pytest.fixture(scope="module")
def cluster(objects: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Crossplane's own kinds, too, are there before the garbage collector looks for kinds."""
    folder, files = tmp_path_factory.mktemp("definitions"), []
    for obj in objects:
        if obj.get("kind") == "CustomResourceDefinition":
            files.append(folder / f"{obj['metadata']['name']}.yaml")
            files[-1].write_text(yaml.safe_dump(obj))
    yield from real_cluster_of([*DEFINITIONS, *PACKAGING, *files])


@pytest.fixture(scope="module")
def accounts(cluster: RealCluster) -> None:
    """What `pvbus install` makes: the services and their rights."""
    names = (NAMESPACE, mistakes.SECRETS)
    heads = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    create(cluster, [*heads, *manifests.objects("with-porch", Options(), (manifests.PACKAGING,))])


@pytest.fixture
def platform(cluster: RealCluster, accounts: None, objects: list[dict[str, Any]], kubectl: Path) -> Platform:
    return Platform(objects[0]["folder"], kubectl, cluster.kubeconfig)


@contextmanager
def served(cluster: RealCluster, folder: Path, bus: str = "bus.db") -> Iterator[dict[str, ServiceProcess]]:
    """Run the services, which read packages below the folder; yield them by name. bus: its file there."""
    settings = {
        "PVBUS_BUS": f"sqlite:{folder / bus}",
        "PVBUS_SOURCES_CACHE": str(folder / "sources"),
        "PVBUS_SOURCES_LOCAL": str(folder),
        "PVBUS_PLATFORMS": example.PLATFORMS,
        "PVBUS_OBSERVE_SECONDS": "1",
    }
    services = {name: ServiceProcess(name, cluster, folder, settings) for name in SERVICES}
    try:
        for service in services.values():
            service.start(wait=False)
        yield services
        assert {name: service.end() for name, service in services.items()} == dict.fromkeys(SERVICES, 0)
        assert [name for name, service in services.items() if "Traceback" in service.output] == []
    finally:
        for service in services.values():
            service.kill()


def test_what_people_get_wrong_is_told(
    cluster: RealCluster, accounts: None, kubectl: Path, tmp_path: Path
) -> None:
    """The same stories as on the embedded server, with a bus of its own. What they have made is removed."""
    with registry.running(registry.found_or_skipped(), tmp_path, auth="basic") as images:
        world = Mistakes(tmp_path, kubectl, images, cluster.kubeconfig, f"sqlite:{tmp_path / 'bus.db'}")
        with served(cluster, tmp_path):
            mistakes.tell(world)
            carvel.tell(world)
    before = mistakes.installed(world)
    restore(cluster, world, mistakes.backup_of(world, has_owners=True))
    with served(cluster, tmp_path, "another.db"):
        mistakes.what_comes_from_a_backup_is_owned_again(world, before)
        uids = mistakes.uids_of(mistakes.installed(world))
        cluster.controllers.start()
        for namespace in ("platform", "demo"):
            world.kubectl("delete", "packageinstalls", "--all", f"--namespace={namespace}", "--timeout=60s")
            world.kubectl("delete", "namespace", namespace, "--timeout=60s")
        assert mistakes.uids_of(mistakes.installed(world)) == uids, "the garbage collector has found some"
        world.kubectl("delete", "configurations,providers,functions", "--all", "--timeout=60s")
        world.until(lambda: not any(lock["spec"].get("packages") for lock in world.items(LOCKS)))


def restore(cluster: RealCluster, world: Mistakes, backup: list[dict[str, Any]]) -> None:
    """Put objects from a backup in place of the present ones, and leave the garbage collector switched off.

    It would collect what names owners by other uids, before anybody could correct that.
    """
    cluster.controllers.kill()
    text = yaml.safe_dump_all(backup)
    world.kubectl("delete", "-f", "-", "--timeout=60s", stdin=text)
    world.kubectl("create", "-f", "-", stdin=text)


def test_a_platform_lives_on_a_real_api_server(
    cluster: RealCluster, platform: Platform, objects: list[dict[str, Any]]
) -> None:
    """Installed, upgraded, refused and removed. The audit log has no refusal but the one that is tested."""
    with served(cluster, platform.folder) as services:
        kills_change_nothing(platform, services, objects[1:])
        old, new = (platform.revision("shop", number)["metadata"]["name"] for number in (1, 2))
        assert owners_of(platform.brought()["Composition/shops"]) == {old: False, new: True}
        what_a_person_deletes_comes_back(platform)
        assert refusals(cluster) == []

        rights_that_establish_lacks_are_not_granted(platform)
        assert {(event.object_ref.resource, event.verb) for event in refusals(cluster)} == {
            ("clusterroles", "create")
        }
        what_only_a_removed_package_owned_is_collected(platform)
        a_repository_makes_packages_available(platform)
        an_app_follows_its_install(platform)
        a_namespace_goes_whose_account_has_lost_its_rights(platform)
        assert unused(cluster) == set()
        # The services of another test may not read the folder of its package.
        platform.kubectl("delete", "configuration", "legacy", "--timeout=60s")


def kills_change_nothing(
    platform: Platform, services: Mapping[str, ServiceProcess], objects: list[dict[str, Any]]
) -> None:
    """All is installed, then upgraded; never are two revisions active, nor none after the first (X3)."""

    def kill(name: str) -> bool:
        services[name].kill()
        services[name].start(wait=False)
        return True

    with looking(platform) as wrong:
        platform.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        first = Killer(kill, KILLS, 1)
        platform.until(lambda: first.is_done() and platform.versions() == INSTALLED)
        platform.patch("configuration", "shop", {"package": platform.image("shop", "v1.1.0")})
        second = Killer(kill, KILLS, 2)
        platform.until(lambda: second.is_done() and platform.versions() == UPGRADED)
    assert wrong == []
    upgraded = {"shop", "cluster", "network"}
    for package in (*upgraded, "database", "dns", "sizes", "legacy"):
        wanted = {1: "Inactive", 2: "Active"} if package in upgraded else {1: "Active"}
        assert platform.revisions(package) == wanted, package


def rights_that_establish_lacks_are_not_granted(platform: Platform) -> None:
    """A provider asks for more than establish may grant: the API server refuses, and nothing is there."""
    publish_greedy(platform)
    provider = {
        "apiVersion": "pkg.crossplane.io/v1",
        "kind": "Provider",
        "metadata": {"name": "greedy"},
        "spec": {"package": platform.image("greedy", "v1.0.0")},
    }
    platform.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(provider))
    platform.until(lambda: "nodes" in message_of(platform.installs()["greedy"], "Healthy"))
    assert "CustomResourceDefinition/hoards.greedy.example.dev" not in platform.brought()
    platform.kubectl("delete", "provider", "greedy", "--timeout=60s")


def publish_greedy(platform: Platform) -> None:
    clone = platform.folder / "clone"
    git(platform.folder, "clone", "--quiet", str(platform.repository), str(clone))
    (clone / "greedy").mkdir()
    (clone / "greedy" / "crossplane.yaml").write_text(GREEDY)
    (clone / "greedy" / "definition.yaml").write_text(DEFINITION)
    person = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    git(clone, "add", "--all")
    git(clone, *person, "commit", "--quiet", "--message", "A provider that asks for too much")
    git(clone, "tag", "greedy/v1.0.0")
    git(clone, "push", "--quiet", "origin", "HEAD", "greedy/v1.0.0")


def what_only_a_removed_package_owned_is_collected(platform: Platform) -> None:
    """The garbage collector removes the objects of `shop` and of all that was created for it; the rest
    stays."""
    platform.kubectl("annotate", "configuration", "shop", "pvbus.dev/dependency-removal=delete")
    platform.kubectl("delete", "configuration", "shop", "--timeout=60s")
    left = {"legacy", "portal", "ingress", "certs", "metrics"}
    platform.until(lambda: set(platform.installs()) == left, seconds=COLLECTED_SECONDS)
    gone = ("Composition/shops", "Composition/shops-express", "Composition/clusters")
    definitions = ("networks.network", "databases.database", "zones.dns", "sizes.sizes.fn")
    names = {*gone, *(f"CustomResourceDefinition/{each}.example.dev" for each in definitions)}
    platform.until(lambda: not names & set(platform.brought()), seconds=COLLECTED_SECONDS)
    found = platform.brought()
    assert "CompositeResourceDefinition/reports.legacy.example.dev" in found
    assert found["ConfigMap/metrics"]["data"] == {"interval": "30s"}


def a_repository_makes_packages_available(platform: Platform) -> None:
    """What a PackageRepository brings comes, changes and goes with it."""
    for text in ("old", "new"):
        bring(platform, text)
    platform.kubectl("delete", "packagerepository", "tools", "--timeout=60s")
    platform.until(lambda: not texts_of(platform))


def bring(platform: Platform, text: str) -> None:
    platform.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(repository(text)))
    platform.until(lambda: texts_of(platform) == {text})


def repository(text: str) -> dict[str, Any]:
    """Return a repository with a Package and the metadata of its name, both with a text."""
    api, name = "data.packaging.carvel.dev/v1alpha1", "tool.example.org"
    package = {
        "apiVersion": api,
        "kind": "Package",
        "metadata": {"name": f"{name}.1.0.0"},
        "spec": {"refName": name, "version": "1.0.0", "releaseNotes": text},
    }
    about = {
        "apiVersion": api,
        "kind": "PackageMetadata",
        "metadata": {"name": name},
        "spec": {"displayName": text},
    }
    paths = {"packages/tool.yml": yaml.safe_dump_all([package, about])}
    return {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageRepository",
        "metadata": {"name": "tools"},
        "spec": {"fetch": {"inline": {"paths": paths}}},
    }


def texts_of(platform: Platform) -> set[str]:
    """Return the texts of what the repository has brought, by which all of it is known."""
    found = platform.items("packages.data.packaging.carvel.dev", "packagemetadatas.data.packaging.carvel.dev")
    specs = [each["spec"] for each in found if each["metadata"]["name"].startswith("tool.example.org")]
    return {spec.get("releaseNotes") or spec["displayName"] for spec in specs}


def an_app_follows_its_install(platform: Platform) -> None:
    name = written_by_a_person(platform)
    platform.patch("packageinstall", name, {"syncPeriod": "2h"})
    platform.until(lambda: platform.get("app", name)["spec"].get("syncPeriod") == "2h")


def written_by_a_person(platform: Platform) -> str:
    """Return the name of the PackageInstall that was not created for another one."""
    (name,) = (each["metadata"]["name"] for each in platform.items("packageinstalls") if not is_created(each))
    return str(name)


def a_namespace_goes_whose_account_has_lost_its_rights(platform: Platform) -> None:
    """Its PackageInstalls say what they lack, and do not hold it."""
    platform.kubectl("delete", "clusterrolebinding", "platform-packages")
    name = written_by_a_person(platform)
    platform.kubectl("delete", "packageinstall", name, "--wait=false")
    account = "system:serviceaccount:platform:"
    platform.until(lambda: account in message_of(platform.get("packageinstall", name), "DeleteFailed"))
    platform.kubectl("delete", "namespace", "platform", "--timeout=60s")


def unused(cluster: RealCluster) -> set[str]:
    """Return the rights of resolve and establish that this story should have used, and did not."""
    used = {
        (event.verb, event.object_ref.api_group, event.resource)
        for event in cluster.audit.events()
        if event.user.username in (account_of("resolve"), account_of("establish"))
    }
    permitted = {
        (each.verb, each.group, each.resource)
        for service in ("resolve", "establish")
        for right in ALL_RIGHTS[service]
        for each in requests_of(right)
        if each.verb != "delete" and each.resource not in OF_OTHER_STORIES
    }
    return {f"{verb} {group}/{resource}" for verb, group, resource in permitted - used}


def refusals(cluster: RealCluster) -> list[AuditEvent]:
    """Return the requests of the services that were refused."""
    accounts = {account_of(service) for service in SERVICES}
    events = [event for event in cluster.audit.events() if event.user.username in accounts]
    return [event for event in events if event.response_status.code in (401, 403)]
