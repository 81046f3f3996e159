"""The command itself: mistyped words, and readers that have seen enough."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pvbus.cli.commands import COMMANDS, ELSEWHERE
from pvbus.cli.main import run
from tests.e2e.cli.command import environment


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plna -f x", "Did you mean 'plan'?"),
        ("conditons", "Did you mean 'conditions'?"),
        ("UP", "Did you mean 'up'?"),
        ("val x.yaml", "Did you mean 'validate'?"),
        ("expalin default/x", "Did you mean 'explain'?"),
        ("conditions --folow", "Did you mean '--follow'?"),
        ("up --exampel fleet", "'--example'"),
        ("up --example flet", "'fleet'"),
        ("lag rendr", "'render'"),
        ("task lst", "Did you mean 'list'?"),
        ("condition show", "There are set, get."),
        ("rollout undo web", "There is `pvbus undo`, too."),
    ],
)
def test_a_mistyped_word_is_answered_with_the_right_one(
    capsys: pytest.CaptureFixture[str], words: str, meant: str
) -> None:
    """Commands, options and choices; exit code 2."""
    assert run(words.split()) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("word", ELSEWHERE)
def test_a_word_of_other_command_lines_is_answered_with_what_to_type(
    capsys: pytest.CaptureFixture[str], word: str
) -> None:
    """`pvbus status` is no slip of the pen: each command that the answer names exists."""
    assert word not in COMMANDS
    assert run([word, "web", "-n", "default"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean" not in error
    assert ELSEWHERE[word] in error
    assert set(re.findall(r"pvbus ([a-z]+)", error)) <= COMMANDS.keys()


def test_a_word_like_no_command_is_answered_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is guessed."""
    assert run(["xyzzy"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean" not in error
    assert all(command in error for command in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--help", "validate many.yaml", "validate many.yaml -o yaml"])
def test_a_reader_that_has_seen_enough_ends_it_silently(tmp_path: Path, command: str) -> None:
    """`| head -1` and `| true` get no error, and no trace at the end of Python."""
    bad = "---\n".join(
        f"apiVersion: config.porch.kpt.dev/v1alpha2\nkind: PackageVariantSet\nmetadata: {{name: a{n}}}\n"
        f"spec: {{wrong{n}: 1}}\n"
        for n in range(2000)
    )
    (tmp_path / "many.yaml").write_text(bad)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pvbus.cli", *command.split()],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    process.wait(60)
    assert errors in ("", "2000 objects, 2000 problems\n")
    assert process.returncode in (0, 1)


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """A name from a manifest is shown, and not obeyed, on both outputs."""
    name = '"a\\e]0;owned\\a\\e[2J\\u202e"'
    (tmp_path / "a.yaml").write_text(
        "apiVersion: config.porch.kpt.dev/v1alpha1\nkind: Repository\n"
        f"metadata: {{name: {name}}}\nspec: {{x: 1}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pvbus.cli", "validate", "a.yaml", "\x1b[31mno.yaml"],
        cwd=tmp_path, env=environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert b"\\u001b[31mno.yaml: no such file" in done.stderr
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pvbus.cli", "validate", "a.yaml"],
        cwd=tmp_path, env=environment(), capture_output=True, check=False,
    )  # fmt: skip
    shown = (done.stdout + done.stderr).decode()
    assert "owned" in shown
    assert not set(shown) & set("\x1b\x07\u202e")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("pvbus.cli.run", ("pvbus.controlplane", "pygit2", "cryptography")),
        (
            "pvbus.cli.up",
            ("pvbus.cli.apiserver", "pvbus.controlplane.packages.store", "pygit2"),
        ),
    ],
)
def test_a_process_imports_no_server_that_it_does_not_run(module: str, unused: tuple[str, ...]) -> None:
    """API server and package store take their share of a start: only the process that has them pays."""
    code = f"import sys, {module}; print(*(name for name in {unused!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_ctrl_c_while_the_program_is_read_shows_no_trace(tmp_path: Path) -> None:
    """The first half second of every command, here as long as the signal needs."""
    (tmp_path / "click.py").write_text("import time\nprint('imported', flush=True)\ntime.sleep(60)\n")
    own = environment()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pvbus.cli", "version"],
        env={**own, "PYTHONPATH": f"{tmp_path}:{own['PYTHONPATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),  # a shell's `&` ignores it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "imported\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGINT
