"""What `pvbus plan` of a new fleet takes: CPU per variant, and memory, whose packages a pipeline renders."""

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pvbus.cli.live import Export
from pvbus.cli.planinput import write_export
from tests.bench.children import Used, use_of
from tests.bench.fleet import FIVE_EXPRESSIONS, package_revision, repository, target, variant_set
from tests.bench.gitfleet import DEPLOYMENT
from tests.bench.report import Row
from tests.bench.upgrades import BLUEPRINT, SERVICE
from tests.e2e.faults.world import CONTEXT

NAME = "plan"
MATCH = {"bench": "plan"}
FILES = {
    "Kptfile": BLUEPRINT,
    "deployment.yaml": DEPLOYMENT.format(replicas=1),
    "service.yaml": SERVICE,
    "package-context.yaml": CONTEXT,
}
WRITES = 3  # of a new variant: itself, its draft, and the draft's files


class Cost(NamedTuple):
    """What one plan took. writes: those that it lists."""

    used: Used
    writes: int


async def plan(*, small: bool) -> list[Row]:
    """Plan two fleets: the CPU that both take is of the process, and the rest of their variants."""
    few, many = (5, 25) if small else (500, 5_000)
    first, second = [await asyncio.to_thread(cost_of_plan, count) for count in (few, many)]
    cpu = 1000 * (second.used.cpu_seconds - first.used.cpu_seconds) / (many - few)
    memory = (second.used.peak_bytes - first.used.peak_bytes) / (many - few)
    return [
        Row(NAME, "writes per new variant", second.writes / many, "writes", WRITES, "equal"),
        Row(NAME, "pvbus plan: CPU per new variant", cpu, "ms"),
        Row(NAME, "pvbus plan: memory per new variant", memory / 1e3, "kB"),
        Row(NAME, f"pvbus plan of {many:,} variants: peak memory", second.used.peak_bytes / 1e6, "MB"),
    ]


def cost_of_plan(count: int) -> Cost:
    """Plan a set that makes so many variants, in a process of its own, and write the plan's file."""
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        folder = Path(name)
        (folder / "live.json").write_text(write_export(_export(count)), encoding="utf-8")
        (folder / "set.json").write_text(json.dumps(variant_set("fleet", MATCH, FIVE_EXPRESSIONS)))
        files = [f"-f{folder / name}" for name in ("live.json", "set.json")]
        used = use_of("plan", *files, "--out", str(folder / "plan.json"), output=folder / "screen")
        made: Mapping[str, Any] = msgspec.json.decode((folder / "plan.json").read_bytes())
        return Cost(used, len(made["document"]["actions"]))


def _export(count: int) -> Export:
    """Return a system with an upstream package and targets, before their set."""
    upstream = package_revision("blueprints.app.v1", "app")
    git = {"repo": "https://example.org/b.git", "directory": "app", "ref": "app/v1", "commit": "a" * 40}
    files = {
        "apiVersion": upstream["apiVersion"],
        "kind": "PackageRevisionResources",
        "metadata": upstream["metadata"],
        "spec": {**upstream["spec"], "resources": FILES},
    }
    labels = [{**MATCH, "region": f"r{number % 5}", "tier": str(number % 3)} for number in range(count)]
    return Export(
        exported_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(0)),
        server="pvbus",
        items=[
            {**upstream, "status": {"selfLock": {"type": "git", "git": git}}},
            files,
            repository("deploy"),
            repository("blueprints", deployment=False),
            *(target(number, each) for number, each in enumerate(labels)),
        ],
    )
