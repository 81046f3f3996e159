"""The second day of a fleet on `pvbus up`, by its commands: upgrade, conflict, hold, reject, publish."""

import asyncio
from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.proposalmoves import Asked, Plan, plan_moves
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import Key
from pvbus.core.promotion.protocol.proposals import PROPOSE
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import (
    CLUSTERS,
    FILES,
    PACKAGES,
    REVISION,
    SECONDS_MAX,
    Client,
    edit_locally,
    follow_second_revision,
    name_of,
    write_manifests,
)

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]
FIRST, HELD = (f"default/web-edge-asia-{package}" for package in PACKAGES[:2])
FIELD = "spec.template.spec.containers[name=web].image"


class Person:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, command: str, *arguments: str, code: int = 0) -> str:
        done = pvbus(command, *arguments, cwd=self.folder)
        assert done.code == code, done
        return done.out

    def on_set(self, command: str, *arguments: str, code: int = 0) -> str:
        return self.does(command, "--set", "default/web", *arguments, code=code)


async def until(client: Client, *, due: int, refused: int) -> Plan:
    """Wait until so many drafts can be proposed, and so many are refused."""
    asked = Asked(PROPOSE, Key("default", "web"), (), "", dry_run=True, yes=True, hints="")
    seen: object = None
    for _ in range(SECONDS_MAX * 5):
        try:
            seen = plan = await plan_moves(client.cluster, asked)
        except PermanentError as exc:  # the set is not evaluated yet
            seen = exc
        else:
            if (len(plan.due), len(plan.refused)) == (due, refused):
                return plan
        await asyncio.sleep(0.2)
    raise AssertionError(f"not {due} to propose and {refused} refused, but {seen}")


async def lifecycles(client: Client, number: int) -> list[str]:
    found = [await client.get(REVISION, name_of(package, number)) for package in PACKAGES]
    return [each["spec"]["lifecycle"] for each in found]


async def test_a_fleet_is_upgraded_by_its_commands(tmp_path: Path) -> None:
    write_manifests(tmp_path)
    person = Person(tmp_path)
    with running("up", "manifests", cwd=tmp_path) as up:
        up.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        cluster = await HttpCluster.connect(tmp_path / ".pvbus" / "kubeconfig")
        try:
            client = Client(cluster)
            await edit_locally(client)
            await until(client, due=4, refused=0)
            assert "proposed 4 of 4 drafts" in person.on_set("propose")
            assert "approved 4 of 4 proposals" in person.on_set("approve", "--yes")
            assert await lifecycles(client, 1) == ["Published"] * 4

            await follow_second_revision(client, tmp_path)
            plan = await until(client, due=3, refused=1)
            assert [each[:4:3] for each in plan.refused] == [(FIRST, "UpgradeConflict")]
            assert "proposed 3 of 4 drafts" in person.on_set("propose", "-l", "region=asia", code=1)
            person.does("hold", HELD, "--reason", "fair in town")
            said = person.on_set("approve", "--yes", code=1)
            assert "approved 2 of 3 proposals" in said
            assert "it is on hold (fair in town)" in said
            assert "rejected 1 of 1 proposals" in person.on_set("reject", "-l", "region=asia")
            assert await lifecycles(client, 2) == ["Draft", "Draft", "Published", "Published"]

            shown = person.does("diff", FIRST)
            assert shown.index("1 to settle") < shown.index("+++ b/deployment.yaml")
            assert "no conflict is left" in person.does("diff", FIRST, "--take", "local", FIELD)
            person.does("unhold", HELD)
            person.does("retry", HELD)
            await until(client, due=2, refused=0)
            person.on_set("propose")
            person.on_set("approve", "--yes")
            assert await lifecycles(client, 2) == ["Published"] * 4
            assert "nothing to approve" in person.on_set("approve", "--yes")
            text = (await client.get(FILES, name_of(PACKAGES[0], 2)))["spec"]["resources"]["deployment.yaml"]
            assert "image: registry.example.dev/web:1.0.1  # ours\n" in text
            assert "tty: false\n" in text
            assert up.end() == 0
        finally:
            await cluster.close()
