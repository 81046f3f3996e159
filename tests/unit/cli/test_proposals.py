"""`pvbus propose`, `approve` and `reject`: whole sets, twice, against other writers, and interrupted."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli import fleet
from pvbus.cli.main import run
from pvbus.core.errors import ConflictError
from pvbus.ports.cluster import Kind, Object, Resource
from tests.kit.cluster import resource_of

Captured = pytest.CaptureFixture[str]
CONDITION = {"type": "Ready", "status": "True", "observedGeneration": 1}
REGIONS = {"a": "asia", "b": "asia", "c": "europe"}


def objects() -> list[Object]:
    """A set of three variants; that of `b` has an upgrade with a conflict."""
    owner = {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": "web", "namespace": "default", "uid": "set", "generation": 1},
        "status": {"conditions": [CONDITION]},
    }
    listed: list[Object] = [owner]
    for name, region in REGIONS.items():
        labels = {"config.porch.kpt.dev/packagevariantset": "set"}
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1, "labels": labels}
        listed.append(
            {
                "apiVersion": "config.porch.kpt.dev/v1alpha1",
                "kind": "PackageVariant",
                "metadata": meta,
                "status": {"conditions": [CONDITION]},
            }
        )
        reference = {"kind": "PackageVariant", "name": name, "uid": f"uid-{name}", "controller": True}
        conflicts = {"pvbus.dev/upgrade-conflicts": '[{"file":"x"}]'} if name == "b" else {}
        listed.append(
            {
                "apiVersion": "porch.kpt.dev/v1alpha1",
                "kind": "PackageRevision",
                "metadata": {
                    "name": f"edge.{name}.packagevariant-1",
                    "namespace": "default",
                    "labels": {"region": region},
                    "annotations": conflicts,
                    "ownerReferences": [reference],
                },
                "spec": {"lifecycle": "Draft", "repository": "edge", "packageName": name, "revision": 1},
            }
        )
    return listed


class Server(MemoryCluster):
    """It publishes through `approval` only, and can be written to by others right before a write."""

    meanwhile: Any = None

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        hook, self.meanwhile = self.meanwhile, None
        if hook is not None:
            await hook(self, resource)
        assert (obj["spec"]["lifecycle"] == "Published") <= (subresource == "approval")
        return await super().update(resource, obj, subresource=subresource)


class Location:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "kubeconfig").write_text("")
        self.server = Server(objects(), now=lambda: "2026-01-01T00:00:00Z")
        monkeypatch.setattr(HttpCluster, "connect", self._connect)
        monkeypatch.setattr(fleet, "TRY_SECONDS_MAX", 0.5)

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.server

    def run(self, command: str, *arguments: str) -> int:
        return run([command, "--set", "default/web", *arguments, "--data", str(self.folder)])

    @property
    def lifecycles(self) -> dict[str, str]:
        found = (obj for obj in self.server.objects() if obj["kind"] == "PackageRevision")
        return {obj["spec"]["packageName"]: obj["spec"]["lifecycle"] for obj in found}


@pytest.fixture
def fleet_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    return Location(tmp_path, monkeypatch)


def test_a_fleet_is_proposed_and_approved_and_the_second_time_nothing_is_left(
    fleet_of_three: Location, capsys: Captured
) -> None:
    """What is in conflict is listed and stays, the others go on, and the exit code tells."""
    assert fleet_of_three.run("propose") == 1
    out = capsys.readouterr().out
    assert "default/b   edge.b.packagevariant-1   UpgradeConflict" in out
    assert "refused: 1 UpgradeConflict\nproposed 2 of 3 drafts of default/web" in out
    assert "pvbus approve --set default/web --data" in out
    assert fleet_of_three.lifecycles == {"a": "Proposed", "b": "Draft", "c": "Proposed"}
    assert fleet_of_three.run("approve", "--yes") == 0
    assert "approved 2 of 2 proposals of default/web" in capsys.readouterr().out
    assert fleet_of_three.lifecycles == {"a": "Published", "b": "Draft", "c": "Published"}
    assert fleet_of_three.run("approve", "--yes") == 0
    out = capsys.readouterr().out
    assert "nothing to approve: default/web has no proposal here; there are 1 Draft, 2 Published" in out


def test_a_region_is_proposed_and_rejected(fleet_of_three: Location) -> None:
    assert fleet_of_three.run("propose", "-l", "region!=asia") == 0
    assert fleet_of_three.lifecycles == {"a": "Draft", "b": "Draft", "c": "Proposed"}
    assert fleet_of_three.run("reject", "-l", "region=europe") == 0
    assert set(fleet_of_three.lifecycles.values()) == {"Draft"}


def test_a_dry_run_writes_nothing(fleet_of_three: Location, capsys: Captured) -> None:
    assert fleet_of_three.run("propose", "--dry-run", "-o", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["variant"] for each in document["done"]] == ["default/a", "default/c"]
    assert [each["reason"] for each in document["refused"]] == ["UpgradeConflict"]
    assert fleet_of_three.server.writes == []


@pytest.mark.parametrize(
    ("change", "after", "code"),
    [
        ({"metadata": {"labels": {"region": "asia", "more": "x"}}}, "Proposed", 0),
        ({"metadata": {"annotations": {"pvbus.dev/upgrade-conflicts": '[{"file":"y"}]'}}}, "Draft", 1),
        ({"spec": {"lifecycle": "Proposed"}}, "Proposed", 0),
        ({"spec": {"lifecycle": "Published"}}, "Published", 1),
    ],
)
def test_after_a_conflict_the_draft_is_looked_at_again(
    fleet_of_three: Location, change: Any, after: str, code: int
) -> None:
    async def another(server: Server, resource: Resource) -> None:
        await server.patch(resource, "default", "edge.c.packagevariant-1", change, subresource="approval")

    fleet_of_three.server.meanwhile = another
    assert fleet_of_three.run("propose", "-l", "region=europe") == code
    assert fleet_of_three.lifecycles["c"] == after


def test_a_server_that_refuses_for_ever_is_a_failure(fleet_of_three: Location, capsys: Captured) -> None:
    def refuse(verb: str, obj: Object) -> None:
        raise ConflictError("another writer")

    fleet_of_three.server.before_write = refuse
    assert fleet_of_three.run("propose", "-l", "region=europe") == 1
    assert "failed: 1 ConflictError" in capsys.readouterr().out


def test_what_was_approved_is_checked(fleet_of_three: Location, capsys: Captured) -> None:
    """A server that takes an approval and does not publish is told of."""

    assert fleet_of_three.run("propose", "-l", "region=europe") == 0
    asyncio.run(_renumber(fleet_of_three.server))
    assert fleet_of_three.run("approve", "--yes") == 1
    assert "it was approved, but is Published, revision 0" in capsys.readouterr().out


async def _renumber(server: Server) -> None:
    resource = await resource_of(server, Kind("porch.kpt.dev", "PackageRevision"))
    await server.patch(resource, "default", "edge.c.packagevariant-1", {"spec": {"revision": 0}})


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT interrupt, also where the tests run in the background of a shell, which ignores it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_says_what_is_left(
    fleet_of_three: Location, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is finished, nothing new begins, and the code is that of an interruption."""
    monkeypatch.setattr(fleet, "PARALLEL_MAX", 1)

    async def interrupting(server: Server, resource: Resource) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # a busy machine gives the loop its turns late
            await asyncio.sleep(0.01)

    fleet_of_three.server.meanwhile = interrupting
    assert fleet_of_three.run("propose") == 130
    out = capsys.readouterr().out
    assert "interrupted: 1 draft not begun; the same command goes on with them" in out
    assert sorted(fleet_of_three.lifecycles.values()) == ["Draft", "Draft", "Proposed"]


@pytest.mark.parametrize(
    ("command", "arguments", "code", "words"),
    [
        (
            "propose",
            ("-l", "region=asai"),
            2,
            "none of the 3 package revisions of default/web has these labels",
        ),
        ("propose", ("-l", "=x"), 2, "-l =x: unable to parse requirement"),
        ("approve", ("--set", "default/wbe"), 1, "no PackageVariantSet default/wbe"),
        ("propose", ("-n", "other"), 2, "name two namespaces"),
    ],
)
def test_a_mistake_is_explained(
    fleet_of_three: Location, capsys: Captured, command: str, arguments: Any, code: int, words: str
) -> None:
    assert fleet_of_three.run(command, *arguments) == code
    assert words in capsys.readouterr().err
    assert fleet_of_three.server.writes == []


def test_a_set_is_named_with_and_without_the_option(fleet_of_three: Location, capsys: Captured) -> None:
    """Each spelling gives the same plan; two sets or none are bad usage."""
    data = ["--dry-run", "--data", str(fleet_of_three.folder)]
    plans = []
    for words in (["--set", "default/web"], ["default/web"], ["pvs", "web"], ["web", "-n", "default"]):
        assert run(["propose", *words, *data]) == 1
        plans.append(capsys.readouterr().out)
    assert len(set(plans)) == 1
    for words in ([], ["web", "--set", "default/web"], ["rollout", "web"]):
        assert run(["propose", *words, *data]) == 2
    assert "name one set: pvbus propose NAMESPACE/SET" in capsys.readouterr().err


def test_what_cannot_be_asked_for_is_not_done(fleet_of_three: Location, capsys: Captured) -> None:
    """There is something to approve, and no terminal: the way out is named."""
    fleet_of_three.run("propose")
    proposed = list(fleet_of_three.server.writes)
    assert fleet_of_three.run("approve") == 2
    assert "add --yes" in capsys.readouterr().err
    assert fleet_of_three.server.writes == proposed
