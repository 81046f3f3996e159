"""A fleet whose blueprint publishes: `pvbus up` makes upgrade drafts, and `pvbus explain` shows conflicts."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.examples import fleet
from pvbus.cli.progress import SET
from pvbus.ports.cluster import Kind, Object
from tests.e2e.cli.command import git, pvbus, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLUSTERS = 4
PACKAGES = [f"asia-{number:02}-web" for number in range(1, CLUSTERS + 1)]
SECONDS_MAX = 120
REVISION = Kind("porch.kpt.dev", "PackageRevision")
FILES = Kind("porch.kpt.dev", "PackageRevisionResources")


def manifests(folder: Path) -> Iterator[Object]:
    """Some clusters of the example fleet, with its blueprint and its set."""
    for manifest in fleet.make(folder):
        obj = manifest.object
        name = obj["metadata"]["name"]
        if obj["kind"] == "Cluster" and not (name[:4] == "asia" and int(name[5:]) <= CLUSTERS):
            continue
        if obj["kind"] == "Repository" and name not in ("blueprints", "edge-asia"):
            continue
        yield obj


def publish(blueprints: Path, clone: Path) -> None:
    """Publish revision 2 of the blueprint, as a person does it with git."""
    subprocess.run(["git", "clone", "--quiet", str(blueprints), str(clone)], check=True)
    deployment = clone / "web" / "deployment.yaml"
    text = deployment.read_text().replace("web:1.0.0", "web:2.0.0")
    deployment.write_text(text.replace("      - name: web\n", "      - name: web\n        tty: false\n"))
    (clone / "web" / "budget.yaml").write_text(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata:\n  name: web\n  namespace: example\n"
    )
    person = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    git(clone, "add", "--all")
    git(clone, *person, "commit", "--quiet", "--message", "Second revision")
    git(clone, "tag", "web/v2")
    git(clone, "push", "--quiet", "origin", "HEAD", "web/v2")


class Client:
    def __init__(self, cluster: HttpCluster) -> None:
        self.cluster = cluster

    async def get(self, kind: Kind, name: str) -> Any:
        resource = await self.cluster.resource(kind)
        assert resource is not None
        return await self.cluster.get(resource, "default", name)

    async def put(self, kind: Kind, obj: Object, subresource: str = "") -> None:
        resource = await self.cluster.resource(kind)
        assert resource is not None
        await self.cluster.update(resource, obj, subresource=subresource)

    async def approve(self, name: str) -> None:
        for lifecycle, subresource in (("Proposed", ""), ("Published", "approval")):
            revision = await self.get(REVISION, name)
            revision["spec"]["lifecycle"] = lifecycle
            await self.put(REVISION, revision, subresource)

    async def until_there(self, name: str) -> Any:
        """Wait for a PackageRevision, rendered."""
        for _ in range(SECONDS_MAX * 5):
            revision = await self.get(REVISION, name)
            conditions = ((revision or {}).get("status") or {}).get("conditions") or []
            if any(each["type"] == "Rendered" and each["status"] == "True" for each in conditions):
                return revision
            await asyncio.sleep(0.2)
        raise AssertionError(f"{name} is not there, rendered, after {SECONDS_MAX} s")


def name_of(package: str, number: int) -> str:
    return f"edge-asia.{package}.packagevariant-{number}"


async def test_every_variant_gets_an_upgrade_draft_with_its_local_edit(tmp_path: Path) -> None:
    """The set's revision rises once for all: upstream's change, local edits, and one conflict explained."""
    documents = list(manifests(tmp_path / "repositories"))
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "all.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))
    with running("up", "manifests", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            client = Client(cluster)
            first = name_of(PACKAGES[0], 1)
            files = await client.get(FILES, first)
            texts = files["spec"]["resources"]
            edited = texts["deployment.yaml"].replace("web:1.0.0", "web:1.0.1  # ours")
            texts["deployment.yaml"] = edited.replace(
                "kind: Deployment\n", "kind: Deployment\n# a person's\n"
            )
            await client.put(FILES, files)
            for package in PACKAGES:
                await client.approve(name_of(package, 1))
            publish(tmp_path / "repositories" / "blueprints.git", tmp_path / "clone")
            variants = await client.get(SET, "web")
            variants["spec"]["upstream"]["revision"] = 2
            await client.put(SET, variants)

            for package in PACKAGES:
                draft = await client.until_there(name_of(package, 2))
                (task,) = draft["spec"]["tasks"]
                assert task["type"] == "upgrade"
                assert task["upgrade"]["newUpstreamRef"]["name"] == "blueprints.web.v2"
                assert draft["status"]["upstreamLock"]["git"]["ref"] == "web/v2"
                before = (await client.get(FILES, name_of(package, 1)))["spec"]["resources"]
                after = (await client.get(FILES, name_of(package, 2)))["spec"]["resources"]
                changed = {path for path in before if before[path] != after[path]}
                assert changed == {"Kptfile", "deployment.yaml"}
                assert after.keys() - before.keys() == {"budget.yaml"}
                assert f"namespace: {package}" in after["budget.yaml"]  # rendered
                lines = before["deployment.yaml"].splitlines()
                gone = [line for line in lines if line not in after["deployment.yaml"].splitlines()]
                assert len(gone) == 1
                assert "image:" in gone[0]
                conflicts = draft["metadata"]["annotations"].get("pvbus.dev/upgrade-conflicts", "")
                assert ("web:1.0.1" in conflicts) is (package == PACKAGES[0])
            said = pvbus("explain", f"default/web-edge-asia-{PACKAGES[0]}", cwd=tmp_path)
            assert (
                f"conflict of the upgrade in {name_of(PACKAGES[0], 2)}: deployment.yaml, Deployment "
                f"{PACKAGES[0]}/web, spec.template.spec.containers[name=web].image: is upstream's "
                "'registry.example.dev/web:2.0.0'; here it was changed from "
                "'registry.example.dev/web:1.0.0' to 'registry.example.dev/web:1.0.1'"
            ) in said.out
            assert up.end() == 0
        finally:
            await cluster.close()
