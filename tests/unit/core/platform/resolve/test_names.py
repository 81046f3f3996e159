"""Tags that are no versions, and names that are empty."""

import pytest

from tests.unit.core.platform.resolve.test_conflicts import PA, PB
from tests.unit.core.platform.resolve.world import ResolveWorld, started


def test_tags_that_are_no_versions_are_only_taken_by_name() -> None:
    """A range never gets one of them; an install that names the tag gets what it stands for."""
    world = started()
    for tag in ("latest", "v1", "1.x", "not-a-version", "v1.2.3.4", "v0.9.0", "v1.2.0-rc.1"):
        world.registry.publish(PA, tag, salt=tag)
    wanted = world.registry.publish(PA, "v1.0.0", salt="wanted")
    named = world.registry.publish(PB, "latest")
    world.install("pa", PA, annotations={"pvbus.dev/range": ">=0.1.0"})
    world.install("pb", f"{PB}:latest")
    world.run()
    assert world.active("pa") == wanted
    assert world.active("pb") == named


def test_a_package_without_a_version_is_refused_alone() -> None:
    """A range over tags of which none is a version is refused in words; others go on."""
    world = started()
    world.registry.publish(PA, "latest")
    world.registry.publish(PB, "v1.0.0")
    world.install("pa", PA, annotations={"pvbus.dev/range": ">=0.1.0"})
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    row = world.row("pa")
    assert (row.status, bool(row.message), row.revisions) == ("refused", True, ())
    assert world.row("pb").status == "locked"


@pytest.mark.parametrize("package", ["", ":v1.0.0", "@sha256:0", "xpkg.example.org/acme/:v1.0.0"])
def test_an_install_or_dependency_with_an_empty_name_is_broken_alone(package: str) -> None:
    world = started()
    world.registry.publish(PB, "v1.0.0")
    world.registry.publish(PA, "v1.0.0", depends=({"provider": "", "version": ">=1.0.0"},))
    world.install("empty", package)
    world.install("pa", f"{PA}:v1.0.0")
    world.install("pb", f"{PB}:v1.0.0")
    world.run()
    assert statuses(world) == {"empty": "broken", "pa": "broken", "pb": "locked"}
    assert "package" in world.row("empty").message
    assert "dependsOn[0]" in world.row("pa").message


def statuses(world: ResolveWorld) -> dict[str, str]:
    return {name: world.row(name).status for name in ("empty", "pa", "pb")}
