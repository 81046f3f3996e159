"""What people get wrong, on the embedded API server."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.command import running
from tests.e2e.packaging.mistakes import SETTINGS, Mistakes, account, tell
from tests.e2e.packaging.platform import kubectl_or_skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubectl,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("platform"),
]


def test_what_people_get_wrong_is_told(tmp_path: Path) -> None:
    """Each step says what it proves."""
    world = Mistakes(tmp_path, kubectl_or_skip())
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(account()))
    settings = {**SETTINGS, "PVBUS_SOURCES_LOCAL": str(tmp_path)}
    with running("up", "--packages", "--no-web", "all.yaml", cwd=tmp_path, **settings) as up:
        up.wait_for("manifests: ")
        tell(world)
        assert up.end() == 0, up.output
        assert "Traceback" not in up.output
