"""The example fleet on a working day: published, upgraded, with conflicts, a task, a hold and a rollout."""

import asyncio
import time
from pathlib import Path
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import SET
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.promotion.protocol.proposals import NOT_UP_TO_DATE
from pvbus.ports.cluster import Kind
from tests.e2e.cli.command import pvbus
from tests.e2e.cli.small_fleet import FILES, REVISION, Client, publish

CLUSTERS = 2
SIZE = 4 * CLUSTERS
IN_CONFLICT = "europe-01", "europe-02"
SECONDS_MAX = 180
POLICY = Kind(PROMOTION_GROUP, "RolloutPolicy")
SPEC = {
    "revisions": {"set": "web"},
    "approval": "Manual",
    "settle": "1s",
    "canaries": ["web-edge-asia-asia-01-web"],
    "waves": [{"percent": 50, "hold": "10m"}, {"percent": 100}],
}


def variant_of(cluster: str) -> str:
    return f"default/web-edge-{cluster.partition('-')[0]}-{cluster}-web"


def revision_of(cluster: str, number: int) -> str:
    return f"edge-{cluster.partition('-')[0]}.{cluster}-web.packagevariant-{number}"


def command(folder: Path, words: str, *more: str) -> None:
    """Run a command, and again while its answer says that the services are not done with a change."""
    deadline = time.monotonic() + SECONDS_MAX
    done = pvbus(*words.split(), *more, cwd=folder)
    while done.code != 0 and NOT_UP_TO_DATE in done.out and time.monotonic() < deadline:
        time.sleep(1)  # each try starts a command, which takes the services' processor
        done = pvbus(*words.split(), *more, cwd=folder)
    assert done.code == 0, (words, done.out, done.err)


async def begin(folder: Path) -> None:
    """Bring the fleet of `pvbus up --example fleet` in a folder to noon."""
    cluster = await HttpCluster.connect(folder / ".pvbus" / "kubeconfig")
    try:
        client = Client(cluster)
        for name in IN_CONFLICT:
            await client.edit(FILES, revision_of(name, 1), use_own_image)
        for move in ("propose", "approve --yes"):
            await asyncio.to_thread(command, folder, f"{move} --set default/web")
        publish(folder / ".pvbus" / "example" / "blueprints.git", folder / "clone")
        await client.edit(SET, "web", lambda found: found["spec"]["upstream"].update(revision=2))
        await until_upgraded(client)
        await client.create(POLICY, "web", spec=SPEC)
        question = ("--question", "Is the site licensed for version 2?", "--due", "2099-01-15")
        draft = f"default/{revision_of('america-01', 2)}"
        await asyncio.to_thread(
            command, folder, f"task open {draft} example.dev/Licensed --owner ann", *question
        )
        reason = ("--reason", "fair in town until Sunday")
        await asyncio.to_thread(command, folder, f"hold {variant_of('america-02')}", *reason)
        await asyncio.to_thread(command, folder, "propose --set default/web -l region=asia")
    finally:
        await cluster.close()


def use_own_image(files: Any) -> None:
    texts = files["spec"]["resources"]
    texts["deployment.yaml"] = texts["deployment.yaml"].replace("web:1.0.0", "web:1.0.1")


async def until_upgraded(client: Client) -> None:
    """Wait for the second drafts of all packages, and for their conflicts."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        names = [revision_of(name, 2) for name in IN_CONFLICT]
        items = {obj["metadata"]["name"]: obj for obj in await client.items(REVISION)}
        drafts = [name for name in items if name.endswith("packagevariant-2")]
        if len(drafts) == SIZE and all(annotations_of(items[name]).get(CONFLICTS) for name in names):
            return
        assert time.monotonic() < deadline, (drafts, names)
        await asyncio.sleep(0.3)
