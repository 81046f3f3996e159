"""Manual pages: one of each command, with the words of its help, and roff that says nothing else."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from pvbus.cli.main import pvbus, run
from pvbus.cli.man import escaped, pages_of, paragraphs
from tests.unit.cli.test_command_table import ROWS, Row, ids

MACROS = {".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".nf", ".fi"}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {page.file: page.text for page in pages_of(pvbus)}


def words_in(text: str) -> str:
    """Return a text without what lays it out."""
    plain = text.replace("\\-", "-").replace("\\(dq", '"').replace("\\&", "").replace("\\e", "\\")
    return " ".join(plain.replace("\b", " ").split())


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_each_command_has_a_page_with_the_words_of_its_help(pages: dict[str, str], row: Row) -> None:
    page = pages[f"pvbus-{'-'.join(row.words)}.1"]
    shown = words_in(page.replace("\n.PP\n", "\n").replace("\n.nf\n", "\n").replace("\n.fi\n", "\n"))
    for text in (row.command.help or "", row.command.epilog or ""):
        assert words_in(text) in shown
    for parameter in row.command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[0] in shown
    for line in page.splitlines():
        assert not line.startswith("'")
        assert not line.startswith(".") or line.split()[0] in MACROS, line
        assert not re.search(r"(?<!\\)-", line.replace(".TH", "")), line


def test_groups_have_pages_that_lead_to_their_commands(pages: dict[str, str]) -> None:
    assert ".BR pvbus\\-rollout (1)" in pages["pvbus.1"]
    assert ".BR pvbus\\-rollout\\-status (1)" in pages["pvbus-rollout.1"]
    assert ".BR pvbus\\-rollout (1)" in pages["pvbus-rollout-status.1"]


@pytest.mark.parametrize(
    ("text", "roff"),
    [
        (".SH x", "\\&.SH x"),
        ("'x", "\\&'x"),
        ("a\\fB-b", "a\\efB\\-b"),
        ('say "x"', "say \\(dqx\\(dq"),
    ],
)
def test_text_makes_no_request(text: str, roff: str) -> None:
    assert escaped(text) == roff


def test_examples_stay_as_they_are() -> None:
    assert list(paragraphs("One\ntwo.\n\n\b\n  a   b\n  c")) == [
        *(".PP", "One two."),
        *(".PP", ".nf", "  a   b", "  c", ".fi"),
    ]


def test_the_pages_are_written_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is missing is made; one that is a file is an error in words; man shows a page."""
    assert run(["man", "--out", str(tmp_path / "man" / "man1")]) == 0
    assert re.match(r"\d+ pages in ", capsys.readouterr().out)
    (tmp_path / "file").write_text("")
    assert run(["man", "--out", str(tmp_path / "file")]) == 1
    assert "the pages cannot be written there" in capsys.readouterr().err
    if shutil.which("man") is None:
        pytest.skip("there is no man to show a page (Debian: apt install man-db)")
    shown = subprocess.run(
        ["man", "--warnings", "-l", str(tmp_path / "man" / "man1" / "pvbus-status.1")],
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "MANWIDTH": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pvbus status" in shown.stdout
    assert shown.stderr == ""
