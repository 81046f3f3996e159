"""The file that `pvbus export` writes."""

import stat
from pathlib import Path

import pytest

from pvbus.cli.export import _write
from pvbus.core.errors import PermanentError


def test_an_export_replaces_a_planted_link_and_is_for_its_owner_only(tmp_path: Path) -> None:
    """Neither another user's file nor a left-over one with other rights gets the content."""
    other, output = tmp_path / "other", tmp_path / "live.json"
    other.write_text("theirs")
    output.symlink_to(other)
    (tmp_path / ".live.json.part").symlink_to(other)
    _write(output, "ours")
    assert (output.read_text(), other.read_text()) == ("ours", "theirs")
    assert stat.S_IMODE(output.lstat().st_mode) == 0o600


def test_an_export_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="cannot be written: No such file"):
        _write(tmp_path / "no" / "live.json", "ours")
