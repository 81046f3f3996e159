"""Packages that cannot be served are counted and named on the Repository, and go when they are renamed."""

from pathlib import Path
from typing import Any

import pytest

from pvbus.core.api.variants import Upstream
from pvbus.core.variants.missing import missing_part
from tests.integration.packages.support import KPTFILE, StoreWorld, bare, git, push_files


def skipped(world: StoreWorld, name: str) -> dict[str, Any] | None:
    stored = world.ready(name)
    found = stored["status"]["conditions"] if stored else []
    return next((each for each in found if each["type"] == "PackagesSkipped"), None)


async def test_packages_that_cannot_be_served_are_named_with_the_reason(
    world: StoreWorld, blueprints: Path
) -> None:
    """By their names, at the root, or by the name of a tag; a tag without a package is no news."""
    bad = {"My_App/Kptfile": "app", "teams/Blue.Team/web/Kptfile": "web", "Kptfile": "root"}
    push_files(blueprints, {path: KPTFILE.format(name=name) for path, name in bad.items()}, tag="app/v1_2")
    git(blueprints, "tag", "releases/2026_01", "main")
    await world.add_repository("blue", blueprints)
    assert world.condition("blue")["status"] == "True"
    assert "blue.app.v1" in world.names()
    condition = skipped(world, "blue")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "InvalidNames")
    message = condition["message"]
    assert message.startswith("4 packages of the repository cannot be served: /: a package at the root")
    assert "My_App: a lowercase RFC 1123 label must consist of" in message
    assert "teams/Blue.Team/web: the path must be labels joined by single slashes" in message
    assert "app/v1_2: workspace v1_2: a lowercase RFC 1123 label" in message
    clone = blueprints.parent / f"clone-of-{blueprints.name}"
    git(clone, "rm", "--quiet", "-r", "My_App", "teams", "Kptfile")
    push_files(blueprints, {})
    git(blueprints, "tag", "--delete", "app/v1_2")
    await world.until(lambda: skipped(world, "blue") is None)


async def test_a_folder_that_is_itself_a_package_hides_what_is_in_it(
    world: StoreWorld, tmp_path: Path
) -> None:
    remote = bare(tmp_path / "git" / "one.git")
    push_files(remote, {f"{path}/Kptfile": KPTFILE.format(name="x") for path in ("apps", "apps/web")})
    await world.add_repository("one", remote, git={"directory": "apps"})
    condition = skipped(world, "one")
    assert condition is not None
    assert condition["message"].startswith("1 package of the repository cannot be served: apps: a package at")


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("web", 'the repository has no package "web"'),
        ("My_App", 'has no package "My_App", and cannot have one of this name: a lowercase RFC 1123 label'),
        ("A/web", "cannot have one of this name: the path must be labels joined by single slashes"),
    ],
)
def test_who_follows_such_a_package_is_told_the_reason(package: str, words: str) -> None:
    upstream = Upstream(repo="blue", package=package, revision=1)
    assert words in missing_part(upstream, "fleet", has_repository=True, revisions=[])
