"""What a store has read of a repository outlives its restart, and is right after any change meanwhile."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pvbus.adapters.files import SEAL_CHARACTERS, seal_of
from pvbus.controlplane.packages.catalog import Catalog
from pvbus.controlplane.packages.clone import CATALOG
from pvbus.controlplane.packages.repository import RepositorySync
from pvbus.controlplane.packages.tips import Saved, TipReader
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    revision,
)


def sync_of(world: StoreWorld, name: str) -> RepositorySync:
    return world.store.syncs[NAMESPACE, name]


@pytest.fixture
def tips_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The refs whose revisions are read from git, from now on."""
    found: list[str] = []
    read = TipReader.read_tip

    def counted(self: TipReader, ref: str, oid: str) -> object:
        found.append(ref)
        return read(self, ref, oid)

    monkeypatch.setattr(TipReader, "read_tip", counted)
    return found


async def restart_after(world: StoreWorld, change: Callable[[], object]) -> None:
    """Stop the store, change the repositories, and start it; return when it has read `blue` again."""
    await world.store.stop()
    change()
    world.store = world.new_store()
    await world.store.start()
    await world.until(lambda: (NAMESPACE, "blue") in world.store.syncs)
    await sync_of(world, "blue").ready()


async def test_a_restart_reads_only_what_was_pushed_meanwhile(
    fleet: StoreWorld, blueprints: Path, tips_read: list[str]
) -> None:
    push_files(blueprints, {"web/Kptfile": KPTFILE.format(name="web")}, tag="web/v1")
    await fleet.until(lambda: fleet.revision("blue.web.v1"))
    tips_read.clear()

    def pushed() -> None:
        push_files(blueprints, {"app/settings.yaml": f"{CONFIG}# two\n"}, tag="app/v2")

    await restart_after(fleet, pushed)
    assert tips_read == ["refs/tags/app/v2"]
    await fleet.until(lambda: fleet.revision("blue.app.v2"))


async def test_a_change_of_lifecycle_reads_no_commit_again(
    fleet: StoreWorld, edge: Path, tips_read: list[str]
) -> None:
    """What moved is as if it had been read; other content at the new ref, of another program, is read."""
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    catalog = sync_of(fleet, "edge").clone.catalog
    tips_read.clear()
    for lifecycle in ("Proposed", "Draft"):
        subresource = "" if lifecycle == "Proposed" else "approval"
        draft = await fleet.update(draft, subresource=subresource, lifecycle=lifecycle)
        assert tips_read == []
        found = catalog.find("app-1", "ws")
        assert found is not None
        assert found == catalog.tips.read_tip(found.ref, found.oid)
        assert found.lifecycle == draft["spec"]["lifecycle"] == lifecycle
        tips_read.clear()
    ref = "refs/heads/drafts/app-1/ws"
    other = git(edge, "commit-tree", f"{ref}^{{tree}}", "-p", ref, "-m", "by hand")
    git(edge, "update-ref", "refs/heads/proposed/app-1/ws", other)
    git(edge, "update-ref", "-d", ref)
    await fleet.until(lambda: fleet.present("edge.app-1.ws")["spec"]["lifecycle"] == "Proposed")
    assert tips_read == ["refs/heads/proposed/app-1/ws"]
    assert fleet.present("edge.app-1.ws")["status"]["selfLock"]["git"]["commit"] == other


def rewritten(remote: Path) -> None:
    """The branch gets another history, with the same packages."""
    commit = git(remote, "commit-tree", "main^{tree}", "-m", "all anew")
    git(remote, "update-ref", "refs/heads/main", commit)


def moved_tag(remote: Path) -> None:
    push_files(remote, {"app/settings.yaml": f"{CONFIG}# moved\n"})
    git(remote, "tag", "--force", "app/v1", "main")


def removed(remote: Path) -> None:
    git(remote, "update-ref", "-d", "refs/tags/app/v1")


def changed_and_back(remote: Path) -> None:
    push_files(remote, {"app/settings.yaml": f"{CONFIG}# for a while\n"})
    push_files(remote, {"app/settings.yaml": CONFIG})


def pins_of(sync: RepositorySync) -> dict[str, str]:
    """Return the commits of a repository's placeholders, by directory."""
    return {item.directory: item.commit for item in sync.clone.catalog.revisions() if item.is_placeholder}


def assert_as_without_memory(sync: RepositorySync, pins: dict[str, str], folder: Path) -> None:
    """The catalog is the one of a store that knows no more than the pins of its objects."""
    present = {name: pin for name, pin in pins.items() if sync.clone.mirror.commit(pin) is not None}
    fresh = Catalog(sync.clone.mirror, "", "main", present, folder / "none")
    fresh.apply(sync.clone.mirror.refs)
    assert sync.clone.catalog.by_directory == fresh.by_directory


@pytest.mark.parametrize("change", [rewritten, moved_tag, removed, changed_and_back])
async def test_a_restart_finds_what_a_store_without_any_memory_would_find(
    fleet: StoreWorld, blueprints: Path, change: Callable[[Path], None], tmp_path: Path
) -> None:
    push_files(blueprints, {"web/Kptfile": KPTFILE.format(name="web")}, tag="web/v1")
    await fleet.until(lambda: fleet.revision("blue.web.v1"))
    pins = pins_of(sync_of(fleet, "blue"))
    await restart_after(fleet, lambda: change(blueprints))
    assert_as_without_memory(sync_of(fleet, "blue"), pins, tmp_path)


async def test_a_file_that_is_older_than_the_objects_misleads_nobody(
    fleet: StoreWorld, blueprints: Path, tmp_path: Path
) -> None:
    """A killed store leaves the file of an earlier time; the folder is now again as it was then."""
    file = fleet.data / "repositories" / NAMESPACE / "blue" / CATALOG
    await restart_after(fleet, lambda: None)
    earlier = file.read_bytes()
    commit = push_files(blueprints, {"app/settings.yaml": f"{CONFIG}# for a while\n"})
    await fleet.until(lambda: pins_of(sync_of(fleet, "blue"))["app"] == commit)
    await fleet.until(lambda: fleet.present("blue.app.main")["status"]["selfLock"]["git"]["commit"] == commit)
    pins = pins_of(sync_of(fleet, "blue"))

    def as_before() -> None:
        file.write_bytes(earlier)
        push_files(blueprints, {"app/settings.yaml": CONFIG})

    await restart_after(fleet, as_before)
    assert_as_without_memory(sync_of(fleet, "blue"), pins, tmp_path)


def publishers(world: StoreWorld, names: tuple[str, ...] = ("api", "db")) -> list[str]:
    return [world.present(f"edge.{name}.main")["status"].get("publishedBy", "") for name in names]


async def approve(world: StoreWorld, package: str, user: str) -> None:
    draft = await world.create(revision("edge", package, f"for-{user}", clone_of("blue.app.v1")))
    proposed = await world.update(draft, lifecycle="Proposed")
    await world.update(proposed, lifecycle="Published", subresource="approval", user=user)


async def test_a_placeholder_says_who_published_its_package_and_not_who_moved_the_branch_last(
    fleet: StoreWorld, edge: Path, tmp_path: Path
) -> None:
    """Whether the approvals go in one push or not, what users push later, and without memory, too."""
    await asyncio.gather(approve(fleet, "api", "ada"), approve(fleet, "db", "bob"))
    assert publishers(fleet) == ["ada", "bob"]
    commit = push_files(edge, {"api/by-hand.txt": "by hand\n", "web/Kptfile": KPTFILE.format(name="web")})
    await fleet.until(lambda: pins_of(sync_of(fleet, "edge")).get("api") == commit)
    await fleet.until(lambda: fleet.revision("edge.web.main"))
    assert publishers(fleet, ("api", "db", "web")) == ["ada", "bob", ""]
    assert "publishTimestamp" not in fleet.present("edge.web.main")["status"]
    await restart_after(fleet, lambda: None)
    await sync_of(fleet, "edge").ready()
    assert publishers(fleet, ("api", "db", "web")) == ["ada", "bob", ""]
    assert_as_without_memory(sync_of(fleet, "edge"), pins_of(sync_of(fleet, "edge")), tmp_path)


async def test_a_package_that_is_published_again_as_it_was_has_its_last_publisher(
    fleet: StoreWorld, edge: Path, tmp_path: Path
) -> None:
    """The folder and its commit stay, and only the approval is new; a rewritten branch names nobody."""
    await approve(fleet, "api", "ada")
    edit = {"type": "edit", "edit": {"sourceRef": {"name": "edge.api.for-ada"}}}
    draft = await fleet.create(revision("edge", "api", "again", edit))
    proposed = await fleet.update(draft, lifecycle="Proposed")
    before = pins_of(sync_of(fleet, "edge"))
    await fleet.update(proposed, lifecycle="Published", subresource="approval", user="bob")
    assert pins_of(sync_of(fleet, "edge")) == before
    await fleet.until(lambda: publishers(fleet, ("api",)) == ["bob"])
    await restart_after(fleet, lambda: rewritten(edge))
    await sync_of(fleet, "edge").ready()
    assert publishers(fleet, ("api",)) == [""]
    assert_as_without_memory(sync_of(fleet, "edge"), pins_of(sync_of(fleet, "edge")), tmp_path)


@pytest.mark.parametrize("damage", [b"", b"no catalog", None])
async def test_a_damaged_or_outdated_file_is_read_anew(
    fleet: StoreWorld, damage: bytes | None, tips_read: list[str]
) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    before = fleet.names()

    def damaged() -> None:
        for name in ("blue", "edge"):
            file = fleet.data / "repositories" / NAMESPACE / name / CATALOG
            saved = msgspec.msgpack.decode(file.read_bytes()[SEAL_CHARACTERS:], type=Saved)
            older = msgspec.msgpack.encode(msgspec.structs.replace(saved, version="0", revisions=[]))
            file.write_bytes(seal_of(older).encode() + older if damage is None else damage)

    await restart_after(fleet, damaged)
    await sync_of(fleet, "edge").ready()
    assert set(tips_read) >= {"refs/tags/app/v1", "refs/heads/drafts/app-1/ws"}
    assert fleet.names() == before
