"""Variants as drafts in git: an upstream that publishes, and an injected object that changes.

API server and package store are one process, the five services another, as in `pvbus up`. CPU is split into
the store's own, that of its processes that merge and render, that of its git processes, and that of the
services.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pvbus.cli.controlplaneprocess import ControlPlaneProcess
from pvbus.core.kernel.topics import SERVICES
from tests.bench.children import Child, eventually
from tests.bench.fleet import (
    CLIENTS,
    REPOSITORIES,
    REVISIONS,
    SETS,
    TARGETS,
    Fleet,
    repository,
    target,
    variant_set,
)
from tests.bench.gitfleet import DEPLOYMENT, git, make_bare
from tests.bench.report import Row
from tests.bench.revisions import Process

NAME = "upgrades"
DRAFTS_GOAL = 100.0
SECONDS_MAX = 900.0
BLUEPRINT = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: app
info:
  description: the benchmark's blueprint
pipeline:
  mutators:
  - image: set-labels:v0.2
    configMap:
      app: bench
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: app
spec:
  ports:
  - port: 80
"""
SITE = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: site
  annotations:
    kpt.dev/config-injection: required
data: {}
"""
VARIANTS_PER_SITE = 50
TEMPLATE = {
    "downstream": {"repo": "deploy", "packageExpr": "'app-' + target.name"},
    "labelExprs": [{"key": "region", "valueExpr": "target.labels.region"}],
    "packageContext": {"dataExprs": [{"key": "cluster", "valueExpr": "target.name"}]},
}


def publish_blueprint(remote: Path, number: int, **files: str) -> None:
    """Commit a revision of the blueprint with plain git, and tag it. files: more of them, by name."""
    clone = remote.with_suffix(".clone")
    if number == 1:
        make_bare(remote)
        git(remote.parent, "clone", "--quiet", str(remote), str(clone))
        git(clone, "checkout", "--quiet", "-B", "main")
    deployment = DEPLOYMENT.format(replicas=number)
    present = {"Kptfile": BLUEPRINT, "deployment.yaml": deployment, "service.yaml": SERVICE}
    present |= {f"{name}.yaml": text for name, text in files.items()}
    for path, text in present.items():
        (clone / "app").mkdir(exist_ok=True)
        (clone / "app" / path).write_text(text, encoding="utf-8")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", f"Revision {number}")
    git(clone, "tag", f"app/v{number}")
    git(clone, "push", "--quiet", "origin", "main", f"app/v{number}")


@asynccontextmanager
async def _fleet(folder: Path, **files: str) -> AsyncIterator[tuple[Fleet, Process]]:
    blueprints, deploy = folder / "blueprints.git", folder / "deploy.git"
    make_bare(deploy)
    publish_blueprint(blueprints, 1, **files)
    async with ControlPlaneProcess(folder / "data", 0) as process:
        fleet = Fleet(folder, process.address.kubeconfig)
        async with fleet.http:
            await fleet.post(REPOSITORIES, repository("blueprints", str(blueprints), deployment=False))
            await fleet.post(REPOSITORIES, repository("deploy", str(deploy)))
            yield fleet, Process(process.pid)


async def _all_ready(fleet: Fleet, count: int) -> float:
    """Wait until so many variants are Ready; return the seconds."""

    async def reached() -> bool:
        return await fleet.count_ready() >= count

    return await eventually(reached, f"{count} variants are Ready", seconds=SECONDS_MAX, every=1.0)


async def _publish_all(fleet: Fleet) -> None:
    """Propose and approve every draft."""
    items = (await fleet.get(REVISIONS))["items"]
    remaining = iter([item["metadata"]["name"] for item in items if item["spec"]["lifecycle"] == "Draft"])

    async def publish() -> None:
        for name in remaining:
            await fleet.patch(f"{REVISIONS}/{name}", {"spec": {"lifecycle": "Proposed"}})
            await fleet.patch(f"{REVISIONS}/{name}/approval", {"spec": {"lifecycle": "Published"}})

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(publish())


def _stored(remote: Path) -> tuple[int, int]:
    """Return the objects of a repository, and their bytes once they are packed."""
    git(remote, "repack", "-adq")
    words = dict(line.split(": ") for line in git(remote, "count-objects", "-v").splitlines())
    return int(words["in-pack"]), int(words["size-pack"]) * 1024


async def _drafts(fleet: Fleet, services: Child, store: Process, count: int) -> dict[str, float]:
    """Move the set to the new upstream revision; return what it took until each variant has its draft."""
    before = await fleet.count(REVISIONS)
    used, own, gits = (await services.ask("usage"))["cpuSeconds"], store.own_seconds(), store.git_seconds()
    beside = store.beside_seconds()
    began = time.perf_counter()
    await fleet.patch(f"{SETS}/fleet", {"spec": {"upstream": {"revision": 2}}})
    await fleet.wait_count(REVISIONS, before + count, seconds=SECONDS_MAX)
    seconds = time.perf_counter() - began
    await services.ask("settled")
    after = await services.ask("usage")
    return {
        "seconds": seconds,
        "settled": time.perf_counter() - began,
        "services": after["cpuSeconds"] - used,
        "store": store.own_seconds() - own,
        "beside": store.beside_seconds() - beside,
        "git": store.git_seconds() - gits,
    }


async def upgrades(*, small: bool) -> list[Row]:
    count = 50 if small else 1_000
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        folder = Path(name)
        async with _fleet(folder) as (fleet, store):
            labels = ({"env": "prod", "region": f"r{number % 7}"} for number in range(count))
            await fleet.post_all(TARGETS, (target(number, one) for number, one in enumerate(labels)))
            async with fleet.services(*SERVICES) as services:
                await fleet.post(SETS, variant_set("fleet", {"env": "prod"}, TEMPLATE))

                cloned = await _all_ready(fleet, count)
                await _publish_all(fleet)
                await services.ask("settled")
                publish_blueprint(folder / "blueprints.git", 2)
                await fleet.wait_count(REVISIONS, await fleet.count(REVISIONS) + 1)
                await services.ask("settled")
                objects, packed = _stored(folder / "deploy.git")
                took = await _drafts(fleet, services, store, count)
                more, packed_more = _stored(folder / "deploy.git")
    what = f"{count:,} published variants, new upstream"
    return [
        Row(NAME, f"{count:,} first drafts: until all are Ready", cloned, "s"),
        Row(NAME, f"{what}: until each has an upgrade draft", took["seconds"], "s"),
        Row(NAME, "upgrade drafts/s", count / took["seconds"], "1/s", DRAFTS_GOAL, "more"),
        Row(NAME, f"{what}: until nothing is left to do", took["settled"], "s"),
        Row(NAME, "store's CPU per draft (API, YAML, merge, render)", 1000 * took["store"] / count, "ms"),
        Row(
            NAME, "CPU per draft of its processes that merge and render", 1000 * took["beside"] / count, "ms"
        ),
        Row(NAME, "git's CPU per draft", 1000 * took["git"] / count, "ms"),
        Row(NAME, "services' CPU per draft", 1000 * took["services"] / count, "ms"),
        Row(NAME, "git objects per draft", (more - objects) / count, "objects"),
        Row(NAME, "bytes per draft in a packed repository", (packed_more - packed) / count, "bytes"),
    ]


def _commits(remote: Path) -> int:
    return int(git(remote, "rev-list", "--branches", "--count"))


async def injected(*, small: bool) -> list[Row]:
    """Change one object of many that are injected: only the drafts that have it are rendered."""
    users, sites = (5, 4) if small else (VARIANTS_PER_SITE, 100)
    count = users * sites
    injectors = [{"kind": "ConfigMap", "nameExpr": "target.labels.site"}]
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        remote = Path(name) / "deploy.git"
        async with _fleet(Path(name), site=SITE) as (fleet, store):
            await fleet.post_all(TARGETS, (_site(number) for number in range(sites)))
            labels = (
                {"env": "prod", "region": "r", "site": f"site-{number % sites:03}"} for number in range(count)
            )
            await fleet.post_all(TARGETS, (target(number, one) for number, one in enumerate(labels)))
            async with fleet.services(*SERVICES) as services:
                await fleet.post(
                    SETS, variant_set("fleet", {"env": "prod"}, TEMPLATE | {"injectors": injectors})
                )
                cloned = await _all_ready(fleet, count)
                await services.ask("settled")
                before, used = _commits(remote), store.cpu_seconds()
                await fleet.patch(f"{TARGETS}/site-001", {"data": {"zone": "moved"}})

                async def rendered() -> bool:
                    return _commits(remote) >= before + users

                seconds = await eventually(rendered, f"{users} renders", seconds=SECONDS_MAX, every=0.2)
                await services.ask("settled")
                found = _commits(remote) - before
                cpu = store.cpu_seconds() - used
    what = f"one of {sites} injected objects of {count:,} variants changes"
    return [
        Row("injected", f"{count:,} first drafts: until all are Ready", cloned, "s"),
        Row("injected", f"{what}: renders", found, "renders", users, "equal"),
        Row("injected", f"{what}: until all are rendered", seconds, "s"),
        Row("injected", f"{what}: CPU of the store until nothing is left to do", cpu, "s"),
    ]


def _site(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"site-{number:03}", "namespace": "default"},
        "data": {"zone": f"zone-{number}"},
    }
