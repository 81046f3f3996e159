"""A train whose members go as one, through all services, the API server and git.

One push publishes both members, or none of them; what fails is quarantined as one combination, and what was
published comes back as one unit.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.core.kernel.objectrows import POLICY, QUARANTINE
from pvbus.core.kernel.topics import PROMOTION, SERVICES
from pvbus.ports.cluster import Kind, Object
from tests.e2e.plan.world import PlannedWorld, git, live_world, make_repository
from tests.integration.packages.test_faults import refuse
from tests.kit.processes import run_simulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REVISION = Kind(PORCH_GROUP, "PackageRevision")
MEMBERS = ("api", "web")
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {name}\n"
ROLL_BACK = "promotion.pvbus.dev/roll-back"


def files(name: str, version: int) -> dict[str, str]:
    config = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  version: '{version}'\n"
    return {"Kptfile": KPTFILE.format(name=name), "config.yaml": config}


def repository(folder: Path, name: str) -> Object:
    location = {"repo": str(folder / f"{name}.git"), "branch": "main"}
    spec = {"type": "git", "content": "Package", "deployment": name == "edge", "git": location}
    return _object("config.porch.kpt.dev/v1alpha1", "Repository", name, spec)


def variant_set(name: str, version: int) -> Object:
    target = {
        "repositories": [{"name": "edge", "packageNames": [name]}],
        "template": {"annotations": {AUTO_LIFECYCLE: "true"}},
    }
    upstream = {"repo": "blue", "package": name, "workspaceName": f"v{version}"}
    spec = {"upstream": upstream, "targets": [target]}
    return _object("config.porch.kpt.dev/v1alpha2", "PackageVariantSet", name, spec)


def policy() -> Object:
    train = {"mode": "Together", "members": [{"set": name} for name in MEMBERS]}
    more = {"waves": [{"percent": 100, "timeout": "20s"}], "budgets": {"onFailure": "RollBack"}}
    spec = {"revisions": {"all": True}, "approval": "Always", "settle": "5s", "train": train, **more}
    return _object("promotion.pvbus.dev/v1alpha1", "RolloutPolicy", "pair", spec)


def _object(version: str, kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


class Site:
    """A deployment repository, which notes each push to it."""

    def __init__(self, world: PlannedWorld) -> None:
        self.world = world
        self.folder = world.folder / "edge.git"
        hook = self.folder / "hooks" / "post-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho $(cut -d' ' -f3 | grep tags) >>{self.folder}/pushes\n")
        hook.chmod(0o755)

    def pushes(self) -> list[set[str]]:
        """Return the tags of each push that had any."""
        lines = (self.folder / "pushes").read_text().splitlines()
        return [{ref.removeprefix("refs/tags/") for ref in line.split()} for line in lines if line.strip()]

    def versions(self) -> dict[str, str]:
        """Return the content of each package on the branch that a cluster follows."""
        found = {}
        for name in MEMBERS:
            text = git(self.folder, "show", f"main:{name}/config.yaml")
            found[name] = text.rpartition("version:")[2].strip().strip("'\"")
        return found

    async def follow(self, version: int) -> None:
        """Let both sets follow another upstream revision."""
        for name in MEMBERS:
            await self.world.put(variant_set(name, version))
        await self.world.settle()

    async def state(self) -> tuple[str, int]:
        found = await self.policy()
        return found["status"].get("phase", ""), found["status"].get("attempt", 0)

    async def policy(self) -> Object:
        (found,) = await self.world.all(POLICY)
        return found

    async def open(self) -> list[str]:
        revisions = await self.world.all(REVISION)
        return sorted(
            f"{each['spec']['packageName']} {each['spec']['lifecycle']}"
            for each in revisions
            if each["spec"]["repository"] == "edge" and each["spec"]["lifecycle"] in ("Draft", "Proposed")
        )


async def story(folder: Path) -> None:
    async with live_world(folder, (*SERVICES, *PROMOTION)) as world:
        make_repository(folder, "edge")
        tags = [(name, version) for version in (1, 2, 3) for name in MEMBERS]
        make_repository(
            folder, "blue", {f"{name}/v{version}": files(name, version) for name, version in tags}
        )
        site = Site(world)
        for obj in (repository(folder, "blue"), repository(folder, "edge"), policy()):
            await world.put(obj)
        await site.follow(1)
        assert await site.state() == ("Completed", 1)
        assert site.pushes() == [{"api/v1", "web/v1"}]

        refuse(site.folder, "tags/web")
        await site.follow(2)
        assert (site.versions(), len(site.pushes())) == ({"api": "1", "web": "1"}, 1)
        phase, attempt = await site.state()
        assert (phase, attempt) == ("RolledBack", 2), json.dumps(await site.policy())
        (isolated,) = await world.all(QUARANTINE)
        assert [each["upstreams"] for each in isolated["spec"]["combinations"]] == [
            ["blue/api@v2", "blue/web@v2"]
        ]
        assert not isolated["spec"].get("upstreams")
        assert await site.open() == ["api Proposed", "web Proposed"]

        (site.folder / "hooks" / "pre-receive").unlink()
        await site.follow(3)
        assert (site.versions(), site.pushes()[1:]) == ({"api": "3", "web": "3"}, [{"api/v2", "web/v2"}])
        live = await site.policy()
        live["metadata"].setdefault("annotations", {})[ROLL_BACK] = "3"
        await world.cluster.update(await world.resource(POLICY), live)
        await world.settle()
        assert await site.state() == ("RolledBack", 3)
        assert site.versions() == {"api": "1", "web": "1"}
        assert len(await world.all(QUARANTINE)) == 2


def test_a_train_is_published_by_one_push_or_not_at_all_and_comes_back_as_one(tmp_path: Path) -> None:
    run_simulated(story(tmp_path))
