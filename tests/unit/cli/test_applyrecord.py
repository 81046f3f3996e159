"""Which manifests a start applies, over days: edits, deletions, removed and repeated manifests, crashes."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.manifests import read_manifests
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.apply import Applied, apply_news
from pvbus.cli.applyrecord import AppliedRecord, distinct
from pvbus.cli.validate import problems_of
from pvbus.core.errors import PermanentError, UsageError
from pvbus.ports.cluster import Kind
from tests.kit.cluster import KindClient

CONFIG_MAP = Kind("", "ConfigMap")


def text_of(name: str, size: str, labels: str = "{}") -> str:
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: fleet, labels: {labels}}}\n"
        f"data: {{size: {size}}}\n---\n"
    )


class FolderWorld(KindClient[MemoryCluster]):
    """A folder of manifests, a data folder, and an API server; each `up` is a start."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "manifests"
        self.files.mkdir()
        self.record = folder / "applied.json"
        super().__init__(MemoryCluster([], now=lambda: "2026-01-01T00:00:00Z"), "fleet")
        self.cluster_id = "one"

    def write(self, file: str, *texts: str) -> None:
        (self.files / file).write_text("".join(texts))

    async def up(self, *paths: Path, reapply: bool = False, source: str = "") -> Applied:
        locations = paths or (self.files,)
        manifests = [each._replace(source=source) for each in distinct(read_manifests(locations))]
        record = AppliedRecord.open(self.record, self.cluster_id)
        scope = [source] if source else [str(location) for location in locations]
        return await apply_news(self.cluster, manifests, record, scope, reapply=reapply)

    async def size(self, name: str) -> str:
        found = await self.get(CONFIG_MAP, name)
        assert found is not None
        return str(found["data"]["size"])

    async def resize(self, name: str, size: str) -> None:
        """Do what a person does with kubectl."""
        await self.patch(CONFIG_MAP, name, {"data": {"size": size}})

    async def remove(self, name: str) -> None:
        assert await self.delete(CONFIG_MAP, name)


@pytest.fixture
def world(tmp_path: Path) -> FolderWorld:
    return FolderWorld(tmp_path)


async def test_a_restart_takes_nothing_back(world: FolderWorld) -> None:
    """An edit made with kubectl outlives a restart; --reapply is what takes it back."""
    world.write("a.yaml", text_of("a", "small"), text_of("b", "small"))
    assert str(await world.up()) == "2 applied, 0 changed, 0 unchanged"
    await world.resize("a", "large")
    assert str(await world.up()) == "0 applied, 0 changed, 2 unchanged"
    assert await world.size("a") == "large"
    assert str(await world.up(reapply=True)) == "0 applied, 1 changed, 1 unchanged"
    assert await world.size("a") == "small"


async def test_only_what_changed_in_its_file_is_applied(world: FolderWorld) -> None:
    """An edited document is applied, the others of its file are not; other white space is no change."""
    world.write("a.yaml", text_of("a", "small"), text_of("b", "small"))
    await world.up()
    await world.resize("b", "large")
    world.write("a.yaml", "# a comment\n", text_of("a", "medium"), text_of("b", "'small'"))
    assert str(await world.up()) == "0 applied, 1 changed, 1 unchanged"
    assert (await world.size("a"), await world.size("b")) == ("medium", "large")


async def test_a_label_that_leaves_its_file_leaves_the_object(world: FolderWorld) -> None:
    """Labels that a manifest set before and has no more are removed; those of others stay."""
    world.write("a.yaml", text_of("a", "small", "{stage: production, tier: gold}"))
    await world.up()
    await world.patch(CONFIG_MAP, "a", {"metadata": {"labels": {"mine": "yes"}}})
    world.write("a.yaml", text_of("a", "small", "{tier: gold}"))
    assert (await world.up()).changed == 1
    found = await world.get(CONFIG_MAP, "a")
    assert found is not None
    assert found["metadata"]["labels"] == {"tier": "gold", "mine": "yes"}


async def test_what_was_deleted_stays_away_until_its_file_changes(world: FolderWorld) -> None:
    """A restart says so and does not bring it back; a change of its file does, and so does --reapply."""
    world.write("a.yaml", text_of("a", "small"))
    await world.up()
    await world.remove("a")
    for _ in range(2):
        again = await world.up()
        assert str(again) == "0 applied, 0 changed, 1 unchanged"
        assert again.remarks == (
            "deleted since, and not brought back: ConfigMap fleet/a; --reapply brings them back",
        )
        assert await world.get(CONFIG_MAP, "a") is None
    assert (await world.up(reapply=True)).changed == 1
    assert await world.size("a") == "small"
    await world.remove("a")
    world.write("a.yaml", text_of("a", "large"))
    assert (await world.up()).changed == 1
    assert await world.size("a") == "large"


async def test_what_left_its_file_stays_and_is_said(world: FolderWorld) -> None:
    """It is said while the object is there; once it comes back to a file it is new."""
    world.write("a.yaml", text_of("a", "small"), text_of("b", "small"))
    await world.up()
    world.write("a.yaml", text_of("b", "small"))
    for _ in range(2):
        (remark,) = (await world.up()).remarks
        assert remark.startswith("no longer in the manifests, and left as it is: ConfigMap fleet/a; ")
        assert remark.endswith("kubectl delete configmap -n fleet a")
        assert await world.size("a") == "small"
    await world.resize("a", "large")
    world.write("a.yaml", text_of("a", "small"), text_of("b", "small"))
    assert str(await world.up()) == "1 applied, 0 changed, 1 unchanged"
    assert await world.size("a") == "small"
    world.write("a.yaml", text_of("b", "small"))
    await world.up()
    await world.remove("a")
    assert (await world.up()).remarks == ()


async def test_a_file_of_another_name_is_no_change(world: FolderWorld) -> None:
    """Renamed files and repeated documents apply nothing and report nothing."""
    world.write("a.yaml", text_of("a", "small"))
    await world.up()
    await world.resize("a", "large")
    (world.files / "a.yaml").rename(world.files / "b.yaml")
    world.write("c.yaml", text_of("a", "small"))
    again = await world.up()
    assert (str(again), again.remarks) == ("0 applied, 0 changed, 1 unchanged", ())
    assert await world.size("a") == "large"


async def test_two_files_that_contradict_each_other_are_refused(world: FolderWorld) -> None:
    """Nobody can want both; the message names both places, and nothing is applied."""
    world.write("a.yaml", text_of("a", "small"))
    world.write("b.yaml", text_of("b", "small"), text_of("a", "large"))
    with pytest.raises(
        UsageError, match=r"b\.yaml, document 2: ConfigMap fleet/a differs from .*a\.yaml, document 1"
    ):
        await world.up()
    assert world.cluster.writes == []


async def test_another_path_applies_its_own_content_once(world: FolderWorld, tmp_path: Path) -> None:
    """Each PATH applies its content when that is news; a restart with either changes nothing."""
    other = tmp_path / "other"
    other.mkdir()
    world.write("a.yaml", text_of("a", "small"), text_of("b", "small"))
    (other / "a.yaml").write_text(text_of("a", "large"))
    await world.up()
    assert str(await world.up(other)) == "0 applied, 1 changed, 0 unchanged"
    assert (await world.up(other)).remarks == ()
    back = await world.up()
    assert str(back) == "0 applied, 0 changed, 2 unchanged"
    assert await world.size("a") == "large"
    (remark,) = back.remarks
    assert remark.startswith(f"applied since with other content: ConfigMap fleet/a (by {other}/a.yaml); ")


async def test_an_example_and_then_a_path(world: FolderWorld, tmp_path: Path) -> None:
    """What an example made is not missed in the files of a PATH, nor the other way round."""
    example = tmp_path / "example.yaml"
    example.write_text(text_of("e", "small"))
    await world.up(example, source="example fleet")
    world.write("a.yaml", text_of("a", "small"))
    assert (await world.up()).remarks == ()
    await world.resize("e", "large")
    again = await world.up(example, source="example fleet")
    assert (str(again), again.remarks) == ("0 applied, 0 changed, 1 unchanged", ())
    assert await world.size("e") == "large"


async def test_another_api_server_starts_with_an_empty_record(world: FolderWorld) -> None:
    """Where the API server's data were removed, nothing counts as applied or as deleted."""
    world.write("a.yaml", text_of("a", "small"))
    await world.up()
    await world.remove("a")
    world.cluster_id = "two"
    assert str(await world.up()) == "1 applied, 0 changed, 0 unchanged"
    assert await world.size("a") == "small"


async def test_a_crash_in_the_middle_is_continued(world: FolderWorld) -> None:
    """What was applied before a crash or a refusal is recorded; the next start applies the rest alone."""
    world.write("a.yaml", *(text_of(f"o{n:02}", "small") for n in range(40)))
    seen: list[str] = []

    def crash(verb: str, obj: dict[str, Any]) -> None:
        if len(seen) == 25:
            raise PermanentError("refused")
        seen.append(obj["metadata"]["name"])

    world.cluster.before_write = crash
    with pytest.raises(UsageError, match="not everything could be applied"):
        await world.up()
    world.cluster.before_write = None
    written = {write.name for write in world.cluster.writes}
    assert len(written) == 25
    for name in written:
        await world.resize(name, "large")
    assert str(await world.up()) == "15 applied, 0 changed, 25 unchanged"
    assert {await world.size(name) for name in written} == {"large"}


async def test_a_damaged_record_stops_the_start(world: FolderWorld) -> None:
    """Applying everything would take back edits: the message says how to go on."""
    world.write("a.yaml", text_of("a", "small"))
    await world.up()
    assert world.record.stat().st_mode & 0o777 == 0o600
    assert "small" not in world.record.read_text()  # digests only: a manifest may be a Secret
    await world.resize("a", "large")
    world.record.write_bytes(world.record.read_bytes()[:-20])
    with pytest.raises(PermanentError, match=r"applied\.json.*cannot be used.*start without PATH"):
        await world.up()
    assert await world.size("a") == "large"


def test_validate_names_manifests_that_contradict_each_other(world: FolderWorld) -> None:
    """What `up` refuses is a problem of `validate`, with both places; a repetition is none."""
    world.write("a.yaml", text_of("a", "small"), text_of("b", "small"))
    world.write("b.yaml", text_of("a", "large"), text_of("b", "small"))
    (problem,) = problems_of(read_manifests([world.files]))
    assert str(problem) == (
        f"{world.files}/b.yaml, document 1: ConfigMap a: "
        f"differs from {world.files}/a.yaml, document 1: leave one of them out"
    )
