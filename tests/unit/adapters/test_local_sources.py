"""Which folders of this machine a source of packages may name."""

from pathlib import Path

import pytest

from pvbus.adapters.sources.git import is_allowed
from pvbus.core.platform.packaging.references import GitFolder, parse


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("allowed/packages.git", True),
        ("allowed/a%20folder/packages.git", True),
        ("allowedmore/packages.git", False),
        ("secret/packages.git", False),
        ("allowed/%2e%2e/secret/packages.git", False),
        ("allowed/%2E%2E/secret/packages.git", False),
        ("allowed/link/packages.git", False),
    ],
)
def test_a_source_stays_in_the_folders_that_may_be_read(tmp_path: Path, path: str, allowed: bool) -> None:
    """git decodes the path of a URL, so what is checked is the decoded one, without links."""
    for name in ("allowed", "secret"):
        (tmp_path / name).mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    source = parse(f"git+file://{tmp_path}/{path}//network")
    assert isinstance(source, GitFolder)
    assert is_allowed(source, [str(tmp_path / "allowed")]) is allowed
