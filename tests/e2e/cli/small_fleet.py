"""A part of the example fleet, whose blueprint publishes a second revision."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import SET
from pvbus.cli.stops import unconfirmed
from pvbus.core.api.stops import RolloutStop
from pvbus.core.errors import TransientError
from pvbus.core.kernel.objectrows import STOP
from pvbus.examples import fleet
from pvbus.ports.cluster import Kind, Object
from tests.e2e.cli.command import git
from tests.kit.cluster import KindClient

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


class Client(KindClient[HttpCluster]):
    """A person with the packages of a fleet."""

    async def approve(self, name: str) -> None:
        for lifecycle, subresource in (("Proposed", ""), ("Published", "approval")):
            revision = await self.get(REVISION, name)
            revision["spec"]["lifecycle"] = lifecycle
            await self.put(REVISION, revision, subresource)

    async def until_there(self, name: str) -> Any:
        """Wait for a PackageRevision, rendered."""
        for _ in range(SECONDS_MAX * 5):
            with contextlib.suppress(TransientError):  # a busy package store says so
                revision = await self.get(REVISION, name)
                conditions = ((revision or {}).get("status") or {}).get("conditions") or []
                if any(each["type"] == "Rendered" and each["status"] == "True" for each in conditions):
                    return revision
            await asyncio.sleep(0.2)
        raise AssertionError(f"{name} is not there, rendered, after {SECONDS_MAX} s")


def name_of(package: str, number: int) -> str:
    return f"edge-asia.{package}.packagevariant-{number}"


def write_manifests(folder: Path) -> None:
    """Make the repositories, and the manifests to apply, below a folder."""
    documents = list(manifests(folder / "repositories"))
    (folder / "manifests").mkdir()
    (folder / "manifests" / "all.yaml").write_text(yaml.safe_dump_all(documents, sort_keys=False))


async def edit_locally(client: Client) -> None:
    """Change what upstream will change, too, in the first draft of the first package."""
    files = await client.get(FILES, name_of(PACKAGES[0], 1))
    texts = files["spec"]["resources"]
    edited = texts["deployment.yaml"].replace("web:1.0.0", "web:1.0.1  # ours")
    texts["deployment.yaml"] = edited.replace("kind: Deployment\n", "kind: Deployment\n# a person's\n")
    await client.put(FILES, files)


async def follow_second_revision(client: Client, folder: Path) -> None:
    publish(folder / "repositories" / "blueprints.git", folder / "clone")
    await client.edit(SET, "web", lambda found: found["spec"]["upstream"].update(revision=2))


async def stop_rollouts(client: Client) -> None:
    """Stop all rollouts, wait until each partition of release has confirmed it, and delete the stop."""
    await client.create(STOP, "fleet", spec={"entries": [{"name": "1", "reason": "a rehearsal"}]})
    for _ in range(SECONDS_MAX * 10):
        stop = msgspec.convert(await client.get(STOP, "fleet"), RolloutStop)
        if unconfirmed(stop) == []:
            assert stop.status.partitions == len(stop.status.confirmed)
            await client.delete(STOP, "fleet")
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{stop} after {SECONDS_MAX} s")
