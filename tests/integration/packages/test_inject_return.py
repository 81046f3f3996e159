"""Inject on the real API server and package store: a variant goes, and takes its package up again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import ConflictError, TransientError
from pvbus.core.kernel.keys import EDITED_BY, FINALIZER, KEPT_FOR, KEPT_LABEL
from pvbus.core.kernel.objectrows import REPOSITORY, REVISION, VARIANT
from pvbus.ports.cluster import Kind, Object
from tests.integration.apiserver.client import Api, eventually
from tests.integration.packages.support import NAMESPACE, git
from tests.integration.packages.test_server import RESOURCES, REVISIONS, register, serving
from tests.kit.cluster import resource_of
from tests.simulation.inject_world import InjectWorld

VARIANTS = f"/apis/config.porch.kpt.dev/v1alpha1/namespaces/{NAMESPACE}/packagevariants"
KEY = f"{NAMESPACE}/v"
FIRST = "edge.web.packagevariant-1"
ASKED: Object = {
    "apiVersion": "config.porch.kpt.dev/v1alpha1",
    "kind": "PackageVariant",
    "metadata": {"name": "v", "namespace": NAMESPACE, "finalizers": [FINALIZER]},
    "spec": {
        "upstream": {"repo": "blue", "package": "app", "workspaceName": "v1"},
        "downstream": {"repo": "edge", "package": "web"},
    },
}
NO_ERRORS = ("True", "NoErrors", "successfully ensured downstream package variant")


class ServedWorld(InjectWorld):
    """The inject controller over a server: what it observes is what the server lists."""

    def __init__(self, cluster: HttpCluster) -> None:
        super().__init__(())
        self.served = cluster
        self.cluster: Any = cluster
        self.listed: dict[Kind, list[Object]] = {}

    def all(self, kind: Kind) -> list[Object]:
        return self.listed.get(Kind(*kind), [])

    async def observed(self) -> None:
        for kind in (REVISION, REPOSITORY, VARIANT):
            resource = await resource_of(self.served, Kind(*kind))
            self.listed[Kind(*kind)] = (await self.served.list(resource, NAMESPACE)).items
        self.observe()

    async def converge(self) -> None:
        for _ in range(50):
            await self.observed()
            if not self.dirty:
                return
            key = next(iter(self.dirty))
            try:
                await self.run(key)
            except (ConflictError, TransientError):
                self.dirty[key] = None
        raise AssertionError("not settled")

    def condition(self) -> tuple[str, str, str]:
        found = {c.type: (c.status, c.reason, c.message) for c in self.last_result().conditions}
        return found["Ready"]

    def last_result(self) -> Any:
        state = self.controller.state(0, KEY)
        assert state is not None
        assert state.result is not None
        return state.result


@asynccontextmanager
async def injecting(data: Path, blueprints: Path, edge: Path) -> AsyncIterator[tuple[Api, ServedWorld]]:
    """Serve two Repositories, and yield a client and the inject controller over them."""
    async with serving(data) as served:
        await register(served.api, blueprints, edge)
        cluster = await HttpCluster.connect(served.server.kubeconfig_path)
        try:
            yield served.api, ServedWorld(cluster)
        finally:
            await cluster.close()


async def approve(api: Api, name: str) -> None:
    await api.patch(f"{REVISIONS}/{name}", {"spec": {"lifecycle": "Proposed"}})
    current = await api.get(f"{REVISIONS}/{name}/approval")
    current["spec"]["lifecycle"] = "Published"
    approved = await api.call("PUT", f"{REVISIONS}/{name}/approval", current)
    assert approved.code == 200, approved.body


async def test_a_variant_that_comes_back_goes_on_with_its_published_package(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        await api.create(VARIANTS, ASKED)
        await world.converge()
        log = git(edge, "log", "--format=%b", "drafts/web/packagevariant-1")
        assert f"Cause: PackageVariant {NAMESPACE}/v: clone of blue.app.v1" in log
        assert f"Cause: PackageVariant {NAMESPACE}/v: first render" in log
        await approve(api, FIRST)
        await world.converge()
        assert world.condition() == NO_ERRORS

        await api.delete(f"{VARIANTS}/v")
        await world.converge()
        left = await api.get(f"{REVISIONS}/{FIRST}")
        assert left["spec"]["lifecycle"] == "DeletionProposed"
        assert not left["metadata"].get("ownerReferences")
        assert "refs/heads/deletionProposed/web/v1" in git(edge, "for-each-ref", "--format=%(refname)")

        again = await api.create(VARIANTS, ASKED)
        await world.converge()
        taken = await api.get(f"{REVISIONS}/{FIRST}")
        assert taken["spec"]["lifecycle"] == "Published"
        assert [o["uid"] for o in taken["metadata"]["ownerReferences"]] == [again["metadata"]["uid"]]
        assert "deletionProposed" not in git(edge, "for-each-ref", "--format=%(refname)")
        assert world.condition() == NO_ERRORS

        pipeline = {"mutators": [{"image": "set-labels:v0.2", "configMap": {"tier": "gold"}}]}
        await api.patch(f"{VARIANTS}/v", {"spec": {"pipeline": pipeline}})
        await world.converge()
        draft = await api.get(f"{REVISIONS}/edge.web.packagevariant-2")
        assert draft["spec"]["lifecycle"] == "Draft"
        assert world.condition() == NO_ERRORS


async def test_a_foreign_package_is_explained_with_the_way_out(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        foreign = {**ASKED, "spec": {**ASKED["spec"], "downstream": {"repo": "blue", "package": "app"}}}
        await api.create(VARIANTS, foreign)
        await world.converge()
        status, _, message = world.condition()
        assert status == "False"
        assert "blue.app.v1 (Published, no record of its maker)" in message
        assert "adoptionPolicy: adoptExisting" in message


async def test_a_foreground_deletion_leaves_what_a_person_wrote_and_the_variant_has_it_back(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    """The garbage collector deletes what a variant owns before inject sees that it is deleted."""
    other = {**ASKED, "metadata": {**ASKED["metadata"], "name": "other"}}
    other["spec"] = {**ASKED["spec"], "downstream": {"repo": "edge", "package": "other"}}
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        for asked in (ASKED, other):
            await api.create(VARIANTS, asked)
        await world.converge()
        files = await api.get(f"{RESOURCES}/{FIRST}")
        files["spec"]["resources"]["mine.txt"] = "by hand"
        assert (await api.call("PUT", f"{RESOURCES}/{FIRST}", files)).code == 200
        await world.converge()

        for name in ("v", "other"):
            await api.delete(f"{VARIANTS}/{name}", {"propagationPolicy": "Foreground"})

        async def is_gone() -> bool:
            return await api.code(f"{REVISIONS}/edge.other.packagevariant-1") == 404

        await eventually(is_gone)
        await world.converge()
        left = (await api.get(f"{REVISIONS}/{FIRST}"))["metadata"]
        assert not left.get("ownerReferences")
        assert (left["annotations"][KEPT_FOR], left["labels"][KEPT_LABEL]) == ("v@", "true")
        assert left["annotations"][EDITED_BY]

        again = await api.create(VARIANTS, ASKED)
        await world.converge()
        taken = (await api.get(f"{REVISIONS}/{FIRST}"))["metadata"]
        assert [o["uid"] for o in taken["ownerReferences"]] == [again["metadata"]["uid"]]
        assert (await api.get(f"{RESOURCES}/{FIRST}"))["spec"]["resources"]["mine.txt"] == "by hand"
        assert world.condition() == NO_ERRORS
