"""`pvbus conflicts`: equal conflicts are one row, one decision settles all of them, and one takes it back."""

import json
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli import diff
from pvbus.cli.main import run
from pvbus.cli.settling import SETTLED
from pvbus.core.kernel.conflicts import CONFLICTS, annotation
from pvbus.core.kernel.objectrows import REVISION, rows_of
from pvbus.core.kernel.records import OBJECTS
from pvbus.core.variants.merge.objects import merge
from pvbus.ports.cluster import Object
from tests.tools.bustables import write_tables
from tests.tools.fleetrows import child, site, variant
from tests.unit.cli.test_diff import HEAD

Captured = pytest.CaptureFixture[str]
COUNT = 6
OTHER = 5
"""The variant whose local value differs from that of all others."""


def text(image: str) -> str:
    return f"{HEAD}  image: {image} # which\n"


class ConflictWorld:
    """A cluster with a draft in conflict for each variant, and a bus that has seen them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "kubeconfig").write_text("")
        self.folder = folder
        self.cluster = MemoryCluster(
            [obj for n in range(COUNT) for obj in self._draft(n)], now=lambda: "2026-01-01T00:00:00Z"
        )
        monkeypatch.setattr(HttpCluster, "connect", self._connect)
        monkeypatch.setattr(diff, "SECOND_TRY_SECONDS", 0.0)
        names = [f"default/v-{n}" for n in range(COUNT)]
        regions = [site(f"v-{n}", {"region": "asia" if n < 2 else "europe"}) for n in range(COUNT)]
        made = [child("default/web", f"v-{n}") for n in range(COUNT)]
        write_tables(folder / "bus.db", [*map(variant, names), *regions, *made])
        self.see()

    async def _connect(self, path: Path) -> MemoryCluster:
        return self.cluster

    @staticmethod
    def _draft(n: int) -> list[Object]:
        local = text("a:other") if n == OTHER else text("a:2")
        merged = merge("map.yaml", text("a:1"), local, text("a:3"))
        owners = [
            {
                "apiVersion": "config.porch.kpt.dev/v1alpha1",
                "kind": "PackageVariant",
                "name": f"v-{n}",
                "uid": "u",
            }
        ]
        meta = {"name": f"r.v-{n}.2", "namespace": "default", "ownerReferences": owners}
        about = {"repository": "r", "packageName": f"v-{n}"}
        api = {"apiVersion": "porch.kpt.dev/v1alpha1"}
        return [
            {
                **api,
                "kind": "PackageRevision",
                "metadata": {**meta, "annotations": {CONFLICTS: annotation(merged.conflicts)}},
                "spec": {**about, "lifecycle": "Draft", "tasks": []},
            },
            {
                **api,
                "kind": "PackageRevisionResources",
                "metadata": meta,
                "spec": {**about, "resources": {"map.yaml": str(merged.text)}},
            },
        ]

    def see(self) -> None:
        """Write the rows of all revisions, as ingest does."""
        rows = [row for n in range(COUNT) for row in rows_of(REVISION, self.of(n), (OBJECTS,))]
        write_tables(self.folder / "bus.db", [(row.topic, row.key, row.value) for row in rows])

    def of(self, n: int, kind: str = "PackageRevision") -> Any:
        found = (obj for obj in self.cluster.objects() if obj["metadata"]["name"] == f"r.v-{n}.2")
        return next(obj for obj in found if obj["kind"] == kind)

    def images(self) -> list[str]:
        files = (
            self.of(n, "PackageRevisionResources")["spec"]["resources"]["map.yaml"] for n in range(COUNT)
        )
        return [file.partition("image: ")[2].partition(" ")[0] for file in files]

    def in_conflict(self) -> list[int]:
        return [n for n in range(COUNT) if CONFLICTS in self.of(n)["metadata"].get("annotations", {})]

    def run(self, *arguments: str, on_bus: bool = True) -> int:
        bus = ("--bus", f"sqlite:{self.folder / 'bus.db'}") if on_bus else ()
        return run(["conflicts", *arguments, "--data", str(self.folder), *bus])

    def groups(self, capsys: Captured, *arguments: str) -> list[Any]:
        capsys.readouterr()
        assert self.run("list", "-o", "json", *arguments) == 0
        groups: list[Any] = json.loads(capsys.readouterr().out)["groups"]
        return groups


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConflictWorld:
    return ConflictWorld(tmp_path, monkeypatch)


def test_equal_conflicts_are_one_row(world: ConflictWorld, capsys: Captured) -> None:
    """The largest group is first; by field, values may differ; labels choose among variants."""
    assert [len(group["variants"]) for group in world.groups(capsys)] == [COUNT - 1, 1]
    assert [len(group["variants"]) for group in world.groups(capsys, "--by-field")] == [COUNT]
    (asia,) = world.groups(capsys, "-l", "region=asia")
    assert asia["variants"] == ["default/v-0", "default/v-1"]
    assert asia["id"] == world.groups(capsys)[0]["id"]
    assert world.run("list") == 0
    assert "data.image" in capsys.readouterr().out


def test_one_decision_settles_all_that_match_and_nothing_else(world: ConflictWorld, capsys: Captured) -> None:
    """A preview writes nothing; then each draft of the group has the value and no conflict."""
    group = world.groups(capsys)[0]["id"]
    before = world.images()
    assert before == ["a:3"] * COUNT
    assert world.run("take", "local", group, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"{COUNT - 1} x local 'a:2', upstream 'a:3'; would have 'a:2'" in said
    assert (world.images(), world.in_conflict()) == (before, [*range(COUNT)])
    assert world.run("take", "local", group, "--yes") == 0
    assert f"{COUNT - 1} of {COUNT - 1} drafts changed" in capsys.readouterr().out
    assert world.images() == ["a:2"] * (COUNT - 1) + ["a:3"]
    assert world.in_conflict() == [OTHER]
    world.see()
    assert [len(each["variants"]) for each in world.groups(capsys)] == [1]


def test_each_draft_takes_its_own_value_by_field(world: ConflictWorld, capsys: Captured) -> None:
    """By field, local means each variant's own; upstream, which the drafts have already, writes no file."""
    (group,) = world.groups(capsys, "--by-field")
    assert world.run("take", "local", group["id"], "--by-field", "--yes") == 0
    assert world.images() == ["a:2"] * (COUNT - 1) + ["a:other"]


def test_a_resolution_is_taken_back(world: ConflictWorld, capsys: Captured) -> None:
    """Every draft has its former value and conflict again, but one that was changed since, which says so."""
    group = world.groups(capsys)[0]["id"]
    assert world.run("take", "local", group, "--yes", "-o", "json") == 0
    resolution = json.loads(capsys.readouterr().out)["resolution"]
    files = world.of(1, "PackageRevisionResources")
    files["spec"]["resources"]["map.yaml"] = text("a:mine")
    world.cluster.put(files)
    assert world.run("undo", resolution, "--yes", on_bus=False) == 1
    assert "its value was changed since" in capsys.readouterr().out
    assert world.images() == ["a:3", "a:mine", *["a:3"] * (COUNT - 2)]
    assert world.in_conflict() == [0, *range(2, COUNT)]
    assert [n for n in range(COUNT) if SETTLED in world.of(n)["metadata"].get("annotations", {})] == [1]
    world.see()
    assert world.groups(capsys)[0]["id"] == group


def test_what_was_settled_is_listed_until_it_is_taken_back(world: ConflictWorld, capsys: Captured) -> None:
    """Each decision is a row with its id; a preview of taking it back writes nothing; published ones stay."""

    def settled() -> Any:
        capsys.readouterr()
        assert world.run("settled", "-o", "json", on_bus=False) == 0
        return json.loads(capsys.readouterr().out)

    assert settled() == []
    group = world.groups(capsys)[0]["id"]
    assert world.run("take", "local", group, "--yes", "-o", "json") == 0
    resolution = json.loads(capsys.readouterr().out)["resolution"]
    published = world.of(0)
    published["spec"]["lifecycle"] = "Published"
    world.cluster.put(published)
    (row,) = settled()
    assert (row["id"], row["side"], row["variants"]) == (
        resolution,
        "local",
        [f"default/v-{n}" for n in range(1, COUNT - 1)],
    )
    assert row["places"] == ["map.yaml ConfigMap data.image"]
    before = world.images()
    assert world.run("undo", resolution, "--dry-run", on_bus=False) == 0
    said = capsys.readouterr().out
    assert "data.image: has 'a:2', would have 'a:3', and be in conflict again" in said
    assert (world.images(), world.in_conflict()) == (before, [OTHER])


def test_what_changed_since_the_list_is_refused(world: ConflictWorld, capsys: Captured) -> None:
    """A draft that is proposed, or has another conflict, is named and left alone; the others go on."""
    group = world.groups(capsys)[0]["id"]
    proposed, other = world.of(0), world.of(1)
    proposed["spec"]["lifecycle"] = "Proposed"
    other["metadata"]["annotations"] = dict(world.of(OTHER)["metadata"]["annotations"])
    for obj in (proposed, other):
        world.cluster.put(obj)
    assert world.run("take", "local", group, "--yes") == 1
    said = capsys.readouterr().out
    assert "it is Proposed, and nothing changes it" in said
    assert "it has no such conflict any more" in said
    assert world.images() == ["a:3", "a:3", *["a:2"] * 3, "a:3"]


def test_what_cannot_be_taken(world: ConflictWorld, capsys: Captured) -> None:
    """Without a terminal it does not ask; an unknown group or resolution is an error."""
    group = world.groups(capsys)[0]["id"]
    assert world.run("take", "local", group) == 2
    assert "--yes, or --dry-run" in capsys.readouterr().err
    assert world.run("take", "local", "0" * 16, "--yes") == 1
    assert world.run("undo", "0" * 12, "--yes", on_bus=False) == 1
    assert world.in_conflict() == [*range(COUNT)]
