"""Porch's own controllers and pvbus take turns on one fleet: on kube-apiserver, with one package store.

What the one has made, the other takes over: the same objects with the same owners, and the next numbers.
Nothing is lost or made twice, also where both run at once.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apply import apply
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.errors import TransientError
from pvbus.core.kernel.topics import SERVICES
from pvbus.core.platform.establish.rivals import MANAGER, mark_of
from pvbus.examples import fleet
from pvbus.install import manifests
from pvbus.install.objects import NAMESPACE, Options
from pvbus.install.roles import observing
from pvbus.ports.cluster import Kind, Object
from tests.e2e.cli import small_fleet
from tests.e2e.cli.command import git
from tests.e2e.cli.small_fleet import FILES, PACKAGES, REVISION, Client, name_of
from tests.porch.programs import WITHOUT_TELEMETRY, Porch
from tests.porch.test_porch import porch as porch
from tests.tools.auditlog import accepted
from tests.tools.packagestore import Replica, create, route, wait_until_available
from tests.tools.realcluster import ADMINS, Program, RealCluster, real_cluster_of
from tests.tools.runcluster import DEFINITIONS
from tests.tools.serviceprocess import ServiceProcess, account_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.xdist_group("porch"),  # Porch's controllers report their health at one port
]

CLUSTER = Kind("fleet.example.dev", "Cluster")
STAGED, STAGED_PACKAGE = "asia-05", "asia-05-web"
"""A cluster that a label makes a target, and its package."""

PORCHS_ACCOUNT = "system:serviceaccount:porch-system:porch-controllers"
"""Of Porch's own installation. As another user they would be a person, whose edits a draft names."""

STILL_SECONDS = 8.0
SECONDS_MAX = 240.0


class ChangeOverWorld:
    """A cluster with a fleet, on which Porch's controllers and pvbus' services are started and ended."""

    def __init__(self, cluster: RealCluster, client: Client, porch: Porch, folder: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.folder = folder
        kubeconfig = cluster.kubeconfig_of(PORCHS_ACCOUNT, ADMINS)
        arguments = ["--reconcilers=packagevariants,packagevariantsets", f"--kubeconfig={kubeconfig}"]
        self.porch = Program(porch.controllers, folder, arguments)
        bus = {"PVBUS_BUS": f"sqlite:{folder / 'bus.db'}"}
        self.services = {name: ServiceProcess(name, cluster, folder / "services", bus) for name in SERVICES}

    # ------------------------------------------------------------ who runs

    async def start_pvbus(self) -> None:
        """Start the five services, without waiting until they are ready: beside Porch they are not."""
        for service in self.services.values():
            await asyncio.to_thread(service.start, wait=False)

    async def end_pvbus(self) -> None:
        codes = {name: await asyncio.to_thread(each.end) for name, each in self.services.items()}
        assert not any(codes.values()), codes

    async def until_pvbus_works(self) -> None:
        for service in self.services.values():
            await self.until(partial(_is_ready, service), service.readiness)

    async def until_pvbus_begins(self, written: int) -> None:
        """Wait until the services are ready or have written. Porch may write as well, and they stop.

        written: the number of their writes before.
        """

        def has_begun() -> bool:
            return all(map(_is_ready, self.services.values())) or len(self.writes_of_pvbus()) > written

        await self.until(has_begun, self.complaint)

    def complaint(self) -> str:
        """Return what render says on /readyz."""
        code, text = self.services["render"].readiness()
        return text if code == 503 else ""

    def writes_of_pvbus(self) -> list[str]:
        """Return the writes that the API server accepted from the services."""
        users = [account_of(name) for name in SERVICES]
        return [str(event) for user in users for event in accepted(self.cluster.audit.writes(user))]

    # ------------------------------------------------------------ what there is

    async def variants(self) -> dict[str, tuple[str, str]]:
        """Return uid and spec of each variant."""
        found = await self.client.items(VARIANT)
        return {
            each["metadata"]["name"]: (each["metadata"]["uid"], json.dumps(each["spec"], sort_keys=True))
            for each in found
        }

    async def revisions(self) -> dict[str, tuple[Any, ...]]:
        """Return uid, owners, lifecycle, labels and annotations of each revision that variants have."""
        return {
            each["metadata"]["name"]: (
                each["metadata"]["uid"],
                [owner["name"] for owner in each["metadata"].get("ownerReferences", ())],
                each["spec"]["lifecycle"],
                each["metadata"].get("labels"),
                each["metadata"].get("annotations"),
            )
            for each in await self.client.items(REVISION)
            if each["spec"]["workspaceName"].startswith("packagevariant-")
        }

    async def files(self) -> dict[str, list[str]]:
        """Return the lines of each file of each revision that variants have."""
        return {
            f"{each['metadata']['name']}/{name}": text.splitlines()
            for each in await self.client.items(FILES)
            if ".packagevariant-" in each["metadata"]["name"]
            for name, text in each["spec"]["resources"].items()
        }

    async def until_still(self) -> None:
        """Wait until no set, variant and revision has changed for a while."""
        before: dict[str, str] = {}
        since = asyncio.get_running_loop().time()
        async with asyncio.timeout(SECONDS_MAX):
            while asyncio.get_running_loop().time() - since < STILL_SECONDS:
                with contextlib.suppress(TransientError):  # the store may be busy
                    found = {
                        f"{kind} {each['metadata']['name']}": each["metadata"]["resourceVersion"]
                        for kind in (SET, VARIANT, REVISION)
                        for each in await self.client.items(kind)
                    }
                    if found != before:
                        before, since = found, asyncio.get_running_loop().time()
                await asyncio.sleep(0.5)

    async def until(self, is_true: Callable[[], bool], problem: Callable[[], object]) -> None:
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while not await asyncio.to_thread(is_true):
            assert asyncio.get_running_loop().time() < deadline, problem()
            await asyncio.sleep(0.5)

    async def until_rendered(self, number: int, packages: tuple[str, ...] = tuple(PACKAGES)) -> None:
        for package in packages:
            await self.client.until_there(name_of(package, number))

    # ------------------------------------------------------------ what a person does

    async def approve(self, number: int) -> None:
        for package in PACKAGES:
            await self.client.approve(name_of(package, number))

    async def follow(self, workspace: str) -> None:
        """Let the set follow another revision of the blueprint, once it is known."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                if await self.client.get(REVISION, f"blueprints.web.{workspace}") is not None:
                    break
                await asyncio.sleep(0.2)
        await self.client.edit(
            SET, "web", lambda found: found["spec"]["upstream"].update(workspaceName=workspace)
        )

    def publish_third(self) -> None:
        """Publish revision 3 of the blueprint, from the clone that made revision 2."""
        clone = self.folder / "clone"
        (clone / "web" / "README.md").write_text("Third.\n")
        person = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
        git(clone, *person, "commit", "--quiet", "--all", "--message", "Third revision")
        git(clone, "tag", "web/v3")
        git(clone, "push", "--quiet", "origin", "HEAD", "web/v3")


def _is_ready(service: ServiceProcess) -> bool:
    return service.readiness()[0] == 200


@pytest.fixture
def cluster() -> Iterator[RealCluster]:
    yield from real_cluster_of(DEFINITIONS)


@asynccontextmanager
async def world_of(cluster: RealCluster, porch: Porch, folder: Path) -> AsyncIterator[ChangeOverWorld]:
    """Install pvbus, run the package store, and apply a fleet with one cluster more than the small one."""
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    create(cluster, [head, *manifests.objects("standalone", Options()), observing(CLUSTER.group, "clusters")])
    store = Replica(cluster, folder / "packages")
    route(cluster, store.port)
    async with AsyncExitStack() as stack:
        stack.callback(store.kill)
        await asyncio.to_thread(store.start)
        await asyncio.to_thread(wait_until_available, cluster)
        client = Client(await HttpCluster.connect(cluster.kubeconfig))
        stack.push_async_callback(client.cluster.close)
        made = ChangeOverWorld(cluster, client, porch, folder)
        stack.callback(made.porch.kill)
        for service in made.services.values():
            stack.callback(service.kill)
        found = fleet.make(folder / "repositories", small_fleet.CLUSTERS)
        wanted = [each for each in found if _is_wanted(each.object)]
        await apply(client.cluster, [each._replace(object=_as_porch_reads(each.object)) for each in wanted])
        yield made


def _is_wanted(obj: Object) -> bool:
    name = obj["metadata"]["name"]
    if obj["kind"] == CLUSTER.kind:
        return bool(name.startswith("asia-"))
    return obj["kind"] != "Repository" or name in ("blueprints", "edge-asia")


def _as_porch_reads(obj: Object) -> Object:
    """Name the set's upstream by its workspace: Porch knows no `revision`."""
    if obj["kind"] == SET.kind:
        obj["spec"]["upstream"] = {"repo": "blueprints", "package": "web", "workspaceName": "v1"}
    return obj


async def test_a_fleet_goes_from_porch_to_pvbus_and_back(
    cluster: RealCluster, porch: Porch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in WITHOUT_TELEMETRY.items():
        monkeypatch.setenv(name, value)
    async with world_of(cluster, porch, tmp_path) as world:
        await _porch_makes_drafts(world)
        await _pvbus_holds_back_and_takes_over(world)
        await _porch_takes_over(world)
        await _both_run(world)


async def _porch_makes_drafts(world: ChangeOverWorld) -> None:
    world.porch.start()
    await world.until_rendered(1)
    await world.until_still()
    assert sorted(await world.revisions()) == [name_of(package, 1) for package in PACKAGES]
    assert all(mark_of(each) is not None for each in await world.client.items(VARIANT)), MANAGER


async def _pvbus_holds_back_and_takes_over(world: ChangeOverWorld) -> None:
    """Beside Porch it writes nothing and says why; after Porch's end it changes nothing, and goes on."""
    variants, revisions, files = await world.variants(), await world.revisions(), await world.files()
    await world.start_pvbus()
    await world.until(lambda: "Porch's controllers wrote" in world.complaint(), world.complaint)
    await world.until_still()
    assert world.writes_of_pvbus() == []
    world.porch.kill()
    await world.until_pvbus_works()
    await world.until_still()
    assert await world.variants() == variants
    assert await world.revisions() == revisions
    assert await world.files() == files
    await world.approve(1)
    small_fleet.publish(world.folder / "repositories" / "blueprints.git", world.folder / "clone")
    await world.follow("v2")
    await world.until_rendered(2)
    await world.until_still()
    after = await world.revisions()
    assert sorted(after) == sorted(name_of(package, number) for package in PACKAGES for number in (1, 2))
    assert {name: after[name][:2] for name in revisions} == {name: revisions[name][:2] for name in revisions}
    await world.end_pvbus()


async def _porch_takes_over(world: ChangeOverWorld) -> None:
    """It makes no draft and deletes none, and goes on with the next number.

    In the Kptfile of a draft it writes the conditions of injections last, so the order of lines differs.
    """
    variants, revisions, files = await world.variants(), await world.revisions(), await world.files()
    world.porch.start()
    await world.until(lambda: "starting manager" in world.porch.log.read_text(), world.porch.tail)
    await world.until_still()
    assert await world.variants() == variants
    assert await world.revisions() == revisions
    after_files = await world.files()
    assert {name: sorted(lines) for name, lines in after_files.items()} == {
        name: sorted(lines) for name, lines in files.items()
    }
    await world.approve(2)
    world.publish_third()
    await world.follow("v3")
    await world.until_rendered(3)
    await world.until_still()
    after = await world.revisions()
    assert sorted(after) == sorted(name_of(package, number) for package in PACKAGES for number in (1, 2, 3))
    assert {name: after[name][:2] for name in revisions} == {name: revisions[name][:2] for name in revisions}


async def _both_run(world: ChangeOverWorld) -> None:
    """Porch is on and idle, so pvbus begins; at the first change both write, and pvbus stops.

    Whoever is faster makes the variant and its draft: there is one of each.
    """
    revisions, written = await world.revisions(), len(world.writes_of_pvbus())
    await world.start_pvbus()
    await world.until_pvbus_begins(written)
    await world.until_still()
    assert await world.revisions() == revisions
    await world.client.edit(
        CLUSTER, STAGED, lambda found: found["metadata"]["labels"].update(stage="production")
    )
    await world.until_rendered(1, (STAGED_PACKAGE,))
    await world.until(lambda: "Porch's controllers wrote" in world.complaint(), world.complaint)
    await world.until_still()
    assert len(await world.variants()) == len(PACKAGES) + 1
    after = await world.revisions()
    assert after.keys() - revisions.keys() == {name_of(STAGED_PACKAGE, 1)}
    assert revisions.items() <= after.items()
    assert "take packagevariants and packagevariantsets out of --reconcilers" in world.complaint()
    await world.end_pvbus()
