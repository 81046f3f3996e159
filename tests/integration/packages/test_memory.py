"""After many drafts and many edits the store remembers what is there, and little of what was."""

from pathlib import Path

import pytest

from pvbus.controlplane.packages import bounds, caching, creation
from tests.integration.packages.support import NAMESPACE, StoreWorld, clone_of, push_files, revision, running

LARGE = "".join(f"k{number}: {'x' * 990}\n" for number in range(1_000))


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "FILES_BYTES_MAX", 3_000_000)
    monkeypatch.setattr(creation, "ORIGINS_BYTES_MAX", 1_500_000)


@pytest.mark.usefixtures("small_caches")
async def test_content_in_memory_is_limited_whatever_there_is(
    tmp_path: Path, blueprints: Path, edge: Path
) -> None:
    assert len(LARGE) * 5 < bounds.PACKAGE_BYTES_MAX
    async with running(tmp_path / "data") as world:
        for number in range(4):
            push_files(blueprints, {"app/large.txt": LARGE + str(number)}, tag=f"app/v{number + 2}")
        await world.add_repository("blue", blueprints)
        await world.add_repository("edge", edge, deployment=True)
        for number in range(8):
            source = f"blue.app.v{number % 4 + 2}"
            await world.create(revision("edge", f"app-{number}", "ws", clone_of(source)))
            await world.files(f"edge.app-{number}.ws")
        assert len(await world.store.resources.list(NAMESPACE)) > 10
        cache, origins = world.store._load.files, world.store.package_revisions._creation.origins
        assert 0 < cache.bytes <= 3_000_000
        assert 0 < origins.bytes <= 1_500_000
        assert (
            sum(len(file.data) for files, _ in cache._entries.values() for file in files.values())
            <= cache.bytes
        )


async def test_edits_of_a_draft_leave_nothing_in_the_catalog(fleet: StoreWorld, edge: Path) -> None:
    """Each edit is a commit; what was read of the former one is forgotten."""
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    for number in range(10):
        await fleet.put(await fleet.files("edge.app-1.ws"), {"a.txt": str(number)})
    sync = fleet.store.syncs[NAMESPACE, "edge"]
    assert len(sync.clone.catalog.tips) == 1
    assert sync.journal.names() in ([], ["edge.app-1.ws"])
