"""`git tag --force` on an upstream, on the real store: its content arrives, merged from what was there."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pvbus.core.yaml import editor
from tests.integration.apiserver.client import eventually
from tests.integration.packages.support import CONFIG, StoreWorld, clone_of, git, push_files, revision
from tests.integration.packages.test_inject_return import FIRST, NO_ERRORS, approve, injecting
from tests.integration.packages.test_server import REVISIONS
from tests.integration.packages.test_upgrade import SECOND, Life, publish_second, upgrade_of


def retag(blueprints: Path, settings: str, tag: str = "app/v1") -> str:
    """Move a tag to a commit with these settings."""
    commit = push_files(blueprints, {"app/settings.yaml": CONFIG.replace("size: small", settings)})
    git(blueprints, "tag", "--force", tag, commit)
    return commit


@pytest.fixture
async def life(tmp_path: Path, blueprints: Path, edge: Path) -> AsyncIterator[Life]:
    async with injecting(tmp_path / "data", blueprints, edge) as (api, world):
        yield Life(api, world, edge)


async def move_tag(life: Life, blueprints: Path, tag: str = "app/v1") -> None:
    commit = retag(blueprints, "size: small\n  plain: '1'", tag)
    name = f"blue.{tag.replace('/', '.')}"

    async def is_seen() -> bool:
        lock = (await life.api.get(f"{REVISIONS}/{name}"))["status"]["selfLock"]
        return bool(lock["git"]["commit"] == commit)

    await eventually(is_seen)
    await life.world.converge()


@pytest.mark.parametrize("tag", ["app/v1", "app/stable"])
async def test_drafts_and_published_packages_get_what_a_moved_tag_has(
    life: Life, blueprints: Path, tag: str
) -> None:
    git(blueprints, "tag", "--force", tag, "app/v1")
    upstream = {"revision": 1} if tag == "app/v1" else {"revision": 0, "workspaceName": "stable"}
    await eventually(lambda: life.has(f"blue.{tag.replace('/', '.')}"))
    await life.start(**upstream)
    await life.edit("size: small", "size: small\n  mine: '1'")
    await move_tag(life, blueprints, tag)
    assert (life.condition(), life.data()) == (NO_ERRORS, {"size": "small", "mine": "1", "plain": "1"})
    assert await life.conflicts() == []
    await life.writes_nothing()
    await approve(life.api, FIRST)
    push_files(blueprints, {"app/settings.yaml": CONFIG.replace("size: small", "size: big")}, tag="other")
    git(blueprints, "tag", "--force", tag, "other")

    async def has_arrived() -> bool:
        await life.world.converge()
        return life.drafts() == ["packagevariant-2"]

    await eventually(has_arrived)
    assert life.data("packagevariant-2") == {"size": "big", "mine": "1"}
    assert await life.conflicts(SECOND) == []
    await life.writes_nothing()


async def test_an_upgrade_by_hand_starts_from_the_commit_that_was_cloned(
    fleet: StoreWorld, blueprints: Path
) -> None:
    """The revision that the task names as the old upstream has another content now."""
    await fleet.publish(await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"))))
    commit = retag(blueprints, "size: medium")
    publish_second(blueprints)

    def known() -> bool:
        first = fleet.revision("blue.app.v1")
        is_moved = first is not None and first["status"]["selfLock"]["git"]["commit"] == commit
        return is_moved and fleet.revision("blue.app.v2") is not None

    await fleet.until(known)
    draft = await fleet.create(revision("edge", "app-1", "next", upgrade_of("edge.app-1.ws")))
    files = (await fleet.files("edge.app-1.next"))["spec"]["resources"]
    assert editor.values(files["settings.yaml"])[0]["data"] == {"size": "large", "colour": "red"}
    assert "pvbus.dev/upgrade-conflicts" not in draft["metadata"].get("annotations", {})
