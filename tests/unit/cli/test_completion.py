"""`pvbus completion`: the scripts, and what they complete."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from pvbus.cli.main import pvbus, run
from pvbus.core.kernel.records import OBJECTS, SETS, VARIANTS
from tests.e2e.cli.command import environment
from tests.tools.bustables import write_tables

Captured = pytest.CaptureFixture[str]


def completed(words: list[str], incomplete: str) -> list[str]:
    """What a shell's tab offers."""
    found = BashComplete(pvbus, {}, "pvbus", "_PVBUS_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o nosort -F _pvbus_completion pvbus"),
        ("zsh", "#compdef pvbus"),
        ("fish", "complete --no-files --command pvbus"),
    ],
)
def test_each_shell_gets_its_script(capsys: Captured, shell: str, line: str) -> None:
    assert run(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert line in out
    assert f"_PVBUS_COMPLETE={shell}_complete" in out


def test_help_says_where_each_script_goes(capsys: Captured) -> None:
    assert run(["completion", "--help"]) == 0
    out = capsys.readouterr().out
    for path in ("bash-completion/completions/pvbus", "~/.zshrc", "fish/completions/pvbus.fish"):
        assert path in out


@pytest.mark.parametrize(
    ("words", "incomplete", "completions"),
    [
        ([], "unh", ["unhold"]),
        ([], "--v", ["--version"]),
        (["conditions"], "--fol", ["--follow"]),
        (["completion"], "", ["bash", "zsh", "fish"]),
        (["task"], "a", ["answer"]),
    ],
)
def test_commands_options_and_choices_complete(
    words: list[str], incomplete: str, completions: list[str]
) -> None:
    assert completed(words, incomplete) == completions


@pytest.mark.parametrize(
    ("words", "incomplete", "completions"),
    [
        (["explain"], "", ["edge", "web", "prod/web"]),
        (["explain"], "we", ["web"]),
        (["explain"], "default/", ["default/edge", "default/web"]),
        (["explain", "-n", "prod"], "we", ["web"]),
        (["explain", "pvs"], "", ["web"]),
        (["explain", "packagerevision"], "", ["edge.web.v1"]),
        (["approve"], "", ["web"]),
        (["confirm", "web"], "", []),
        (["condition", "get"], "", ["edge.web.v1"]),
        (["conditions", "packagerevision"], "ed", ["edge.web.v1"]),
    ],
)
def test_names_of_objects_complete_from_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], incomplete: str, completions: list[str]
) -> None:
    """Of the kinds that the command takes; of a bus that is not there or cannot be read, nothing."""
    monkeypatch.chdir(tmp_path)
    assert completed(words, incomplete) == []
    (tmp_path / ".pvbus").mkdir()
    (tmp_path / ".pvbus" / "bus.db").write_text("no bus")
    assert completed(words, incomplete) == []
    (tmp_path / ".pvbus" / "bus.db").unlink()
    rows = [
        *((VARIANTS, key, b"{}") for key in ("default/edge", "prod/web")),
        (SETS, "default/web", b"{}"),
        (OBJECTS, "porch.kpt.dev/PackageRevision|default|edge.web.v1", b"{}"),
    ]
    write_tables(tmp_path / ".pvbus" / "bus.db", rows)
    assert completed(words, incomplete) == completions


def test_bash_completes_a_command_with_the_script(tmp_path: Path) -> None:
    """The script is sourced as the help says, and bash's own function answers."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on PATH")
    program = tmp_path / "pvbus"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m pvbus.cli "$@"\n')
    program.chmod(0o755)
    script = (
        "source <(pvbus completion bash)\nCOMP_WORDS=(pvbus compl) COMP_CWORD=1\n"
        '_pvbus_completion pvbus\necho "${COMPREPLY[@]}"'
    )
    own = environment()
    done = subprocess.run(
        ["bash", "-c", script],
        env={**own, "PATH": f"{tmp_path}:{own['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "completion\n", done.stderr


def test_a_command_completes_with_its_sentence() -> None:
    """It is what zsh and fish show beside it."""
    (item,) = pvbus.shell_complete(click.Context(pvbus), "expl")
    assert (item.value, item.help) == ("explain", "Explain the state of a variant, set or revision.")
