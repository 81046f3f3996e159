from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.packages.support import CONFIG, KPTFILE, StoreWorld, bare, push_files, running


@pytest.fixture
def blueprints(tmp_path: Path) -> Path:
    """A repository that plain git made: package `app` on main, published by hand as app/v1."""
    remote = bare(tmp_path / "git" / "blue prints.git")
    files = {"app/Kptfile": KPTFILE.format(name="app"), "app/settings.yaml": CONFIG, "README.md": "hello\n"}
    push_files(remote, files, tag="app/v1")
    return remote


@pytest.fixture
def edge(tmp_path: Path) -> Path:
    """An empty repository of a deployment."""
    return bare(tmp_path / "git" / "edge.git")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[StoreWorld]:
    async with running(tmp_path / "data") as world:
        yield world


@pytest.fixture
async def fleet(world: StoreWorld, blueprints: Path, edge: Path) -> StoreWorld:
    """Both repositories registered: `blue` with blueprints, `edge` for deployments."""
    await world.add_repository("blue", blueprints)
    await world.add_repository("edge", edge, deployment=True)
    await world.until(lambda: world.revision("blue.app.v1"))
    return world
