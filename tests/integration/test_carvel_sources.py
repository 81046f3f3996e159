"""What a Carvel Package fetches: images and bundles of a real registry, and folders of git."""

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.sources.limits import SourceLimits
from pvbus.adapters.sources.sources import PackageSources
from pvbus.core.kernel.effects import Effect, Observe, Pull
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.fetching import fetch_content
from pvbus.core.platform.establish.templating import Setting
from tests.kit.deciding import drive_live
from tests.tools.images import Pusher, basic, image_of, layer_of, pull_secret
from tests.tools.registry import PASSWORD, USER, Running, found_or_skipped, running

pytestmark = pytest.mark.timeout(900)  # the registry may have to be built

CONFIG = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"
LOCK = b"apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages: []\n"

Fetch = Callable[..., Any]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A registry that wants a password."""
    with running(found_or_skipped(), tmp_path_factory.mktemp("registry"), auth="basic") as found:
        yield found


@pytest.fixture
async def fetch(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Fetch]:
    """Return a function that fetches as a Package says, and returns the names of the objects in order."""

    async def secret(key: str) -> dict[str, Any] | None:
        return pull_secret(request.getfixturevalue("registry").address, USER, PASSWORD)

    limits = SourceLimits(seconds_max=30.0, attempts=1)
    sources = PackageSources(tmp_path / "cache", secrets=secret, limits=limits, local_folders=[str(tmp_path)])

    async def fetched(*items: Any, **template: Any) -> list[str]:
        package = {"spec": {"template": {"spec": {"fetch": list(items), **template}}}}
        found = await drive_live(
            fetch_content(package, Setting(namespace="demo")), lambda effect: _answer(effect, sources)
        )
        return [each["metadata"]["name"] for each in found.objects]

    yield fetched
    await sources.close()


async def _answer(effect: Effect, sources: PackageSources) -> Any:
    match effect:
        case Observe(source, tags, secrets):
            return await sources.observe(source, tags, secrets)
        case Pull(source, digest, secrets):
            return await sources.pull(source, digest, secrets)
    raise AssertionError(effect)


async def test_a_bundle_is_fetched_by_tag_and_by_digest(registry: Running, fetch: Fetch) -> None:
    """Two layers are one filesystem, and the bundle's own files are no objects of the package."""
    first = layer_of({"config/a.yml": CONFIG % b"a", ".imgpkg/images.yml": LOCK, "readme.md": b"{"})
    second = layer_of({"config/b.yaml": CONFIG % b"b", "other/c.yml": CONFIG % b"c"})
    pusher = Pusher(registry.url, basic(USER, PASSWORD))
    digest = pusher.push("team/app", "v1", image_of((first, {}), (second, {})))
    login = {"secretRef": {"name": "pull"}}
    name = f"{registry.address}/team/app"
    assert await fetch({"imgpkgBundle": {"image": f"{name}:v1", **login}}) == ["a", "b", "c"]
    assert await fetch({"imgpkgBundle": {"image": f"{name}@{digest}", **login}}) == ["a", "b", "c"]
    assert await fetch({"imgpkgBundle": {"image": f"{name}:v1@{digest}", **login}}) == ["a", "b", "c"]
    below = {"image": {"url": f"{name}:v1", "subPath": "other/", **login}}
    assert await fetch(below) == ["c"]
    only = {"template": [{"ytt": {"paths": ["config/"]}}, {"kbld": {"paths": ["-", ".imgpkg/images.yml"]}}]}
    assert await fetch({"imgpkgBundle": {"image": f"{name}:v1", **login}}, **only) == ["a", "b"]
    with pytest.raises(RefusedError, match="no objects"):
        await fetch({"image": {"url": f"{name}:v1", "subPath": "confg", **login}})
    with pytest.raises(RefusedError, match="refused without a login"):
        await fetch({"image": {"url": f"{name}:v2"}})
    with pytest.raises(RefusedError, match="has no v2"):
        await fetch({"image": {"url": f"{name}:v2", **login}})


async def test_the_highest_tag_that_a_selection_admits_is_fetched(registry: Running, fetch: Fetch) -> None:
    """Tags that are no versions are left out, and so are prereleases that nobody asks for."""
    pusher = Pusher(registry.url, basic(USER, PASSWORD))
    for tag in ("1.0.0", "v1.2.0", "1.10.0-rc.1", "2.0.0", "latest"):
        name = tag.replace(".", "-").encode()
        pusher.push("team/selected", tag, image_of((layer_of({"a.yml": CONFIG % name}), {})))
    image = f"{registry.address}/team/selected"

    def selected(field: str, **semver: Any) -> Any:
        given = {"url" if field == "image" else "image": image, "secretRef": {"name": "pull"}}
        return {field: {**given, "tagSelection": {"semver": semver}}}

    assert await fetch(selected("imgpkgBundle", constraints="<2.0.0")) == ["v1-2-0"]
    assert await fetch(selected("image", constraints="<2.0.0", prereleases={})) == ["1-10-0-rc-1"]
    assert await fetch(selected("image")) == ["2-0-0"]
    with pytest.raises(RefusedError, match="has no tag that it admits"):
        await fetch(selected("image", constraints=">=3.0.0"))
    with pytest.raises(RefusedError, match=r"semver\.constraints"):
        await fetch(selected("image", constraints="~>1"))
    both = selected("image")
    both["image"]["url"] += ":v1.2.0"
    with pytest.raises(RefusedError, match="a tag beside tagSelection"):
        await fetch(both)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def test_a_folder_of_git_is_fetched_at_a_branch_tag_and_commit(tmp_path: Path, fetch: Fetch) -> None:
    """`origin/main` is how kapp-controller's documents write a branch."""
    folder = tmp_path / "repository"
    (folder / "config").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name in ("a", "b"):
        (folder / "config" / f"{name}.yml").write_bytes(CONFIG % name.encode())
        (folder / "notes.yml").write_text("no object")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", name)
        git(folder, "tag", f"v-{name}")
    first = git(folder, "rev-parse", "v-a")

    def at(**ref: str) -> Any:
        return {"git": {"url": str(folder), "subPath": "config", **ref}}

    assert await fetch(at(ref="origin/main")) == ["a", "b"]
    assert await fetch(at(ref="main")) == ["a", "b"]
    assert await fetch(at()) == ["a", "b"]
    assert await fetch(at(ref="v-a")) == ["a"]
    assert await fetch(at(ref=first)) == ["a"]
    with pytest.raises(RefusedError, match="config has no other"):
        await fetch(at(ref="origin/other"))
    both = [{**at(ref="v-a"), "path": "old"}, {"inline": {"paths": {"x.yml": (CONFIG % b"x").decode()}}}]
    assert await fetch(*both) == ["x", "a"]
    chosen = {"template": [{"ytt": {"paths": ["old/a.yml"]}}]}
    assert await fetch(*both, **chosen) == ["a"]
