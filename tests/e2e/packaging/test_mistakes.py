"""What people get wrong, on the embedded API server."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.command import running
from tests.e2e.packaging import carvel, mistakes
from tests.e2e.packaging.mistakes import SETTINGS, Mistakes
from tests.e2e.packaging.platform import Platform, kubectl_or_skip
from tests.tools import registry

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubectl,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("platform"),
]


def test_what_people_get_wrong_is_told(tmp_path: Path) -> None:
    """Each step says what it proves. In the end another server gets a backup of what is installed."""
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(carvel.account()))
    settings = {**SETTINGS, "PVBUS_SOURCES_LOCAL": str(tmp_path)}
    with registry.running(registry.found_or_skipped(), tmp_path, auth="basic") as images:
        world = Mistakes(tmp_path, kubectl_or_skip(), images)
        with served(tmp_path, settings):
            mistakes.tell(world)
            carvel.tell(world)
            before, backup = mistakes.installed(world), mistakes.backup_of(world, has_owners=False)
    other = Platform(tmp_path / "other", kubectl_or_skip())
    # A tag was moved: nobody but the cache has its former content.
    shutil.copytree(world.data / "sources", other.data / "sources")
    (other.folder / "all.yaml").write_text(yaml.safe_dump_all(backup))
    with served(other.folder, settings):
        mistakes.what_comes_from_a_backup_is_owned_again(other, before)


@contextmanager
def served(folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    with running("up", "--packages", "--no-web", "all.yaml", cwd=folder, **settings) as up:
        up.wait_for("manifests: ")
        yield
        assert up.end() == 0, up.output
        assert "Traceback" not in up.output
