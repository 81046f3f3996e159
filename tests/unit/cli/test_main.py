"""The command itself: mistyped words, and readers that have seen enough."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import click
import pytest

from pvbus.cli.commands import COMMANDS, ELSEWHERE
from pvbus.cli.main import pvbus, run
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
            ("pvbus.cli.controlplane", "pvbus.controlplane.packages.store", "pygit2"),
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


ALL = [(name,) for name in COMMANDS] + [
    (name, inner)
    for name in COMMANDS
    if isinstance(command := pvbus.get_command(click.Context(pvbus), name), click.Group)
    for inner in command.commands
]
"""Every command, and every one of a group."""
_ALONE = (
    "explain",
    "conditions",
    "diff",
    "wait",
    "propose",
    "approve",
    "reject",
    "confirm",
    "hold",
    "unhold",
)
NAMED = [
    *((name,) for name in (*_ALONE, "retry")),
    *(("condition", name) for name in ("get", "set")),
    *(("task", name) for name in ("open", "answer")),
]
"""Those that take the name of an object."""
REST = {
    "set": ["A=True"],
    "open": ["A", "--question", "?"],
    "answer": ["A", "--status", "True"],
    "confirm": ["--yes"],
}
"""What such a command needs beside the name."""
ON_THE_BUS = {"explain", "conditions", "wait", "confirm"}
PATIENT = {"condition", "task"}
"""They try for 15 s to reach the server: another write may be under way."""


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command; return its exit code and all that it says, which never is Python's."""
    try:
        code = run(list(words))
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    for trace in ("Traceback", " object at 0x", "\b", "\\u0008", "<class "):
        assert trace not in text, words
    return code, text


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_has_help_and_refuses_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    code, text = answer(capsys, *command, "--help")
    assert code == 0
    assert text.startswith(f"Usage: pvbus {' '.join(command)} ")
    code, text = answer(capsys, *command, "--no-such-option")
    assert (code, "No such option" in text) == (2, True)


@pytest.mark.parametrize("command", NAMED, ids=" ".join)
def test_every_command_on_an_object_reads_its_name_alike(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    """What names no object is exit code 2, with what to type, before a bus or a server is looked for."""
    rest = [*REST.get(command[-1], []), "--data", str(tmp_path)]
    for words in (["a/b/c"], ["/x"], ["x/"], ["default/x", "-n", "other"]):
        code, text = answer(capsys, *command, *words, *rest)
        assert (code, "names no object" in text or "name two namespaces" in text) == (2, True), text


def write_kubeconfig(path: Path, server: str) -> str:
    clusters = [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}]
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"current-context": "c", "clusters": clusters, "contexts": contexts, "users": users}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    return str(path)


@pytest.mark.parametrize("command", NAMED, ids=" ".join)
def test_every_command_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Neither a bus nor a kubeconfig is there; then the kubeconfig names a server that does not run."""
    words = [*command, "pvs/x" if command[0] == "confirm" else "default/x", *REST.get(command[-1], [])]
    code, text = answer(capsys, *words, "--data", str(tmp_path))
    assert (code, "there is no " in text or "no bus at" in text) == (2, True), text
    if command[0] in ON_THE_BUS | PATIENT:
        return
    away = write_kubeconfig(tmp_path / "away", "https://127.0.0.1:1")
    code, text = answer(capsys, *words, "--data", str(tmp_path), "--kubeconfig", away)
    assert (code, text.count("check that it runs")) == (1, 1), text
    assert "no connection to https://127.0.0.1:1 (Connection refused)" in text


class Forbidding(BaseHTTPRequestHandler):
    """An API server that allows nothing."""

    def do_GET(self) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden"}
        body = json.dumps({**status, "code": 403, "message": "ann may not do that"}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is inherited
        return


@pytest.fixture(scope="module")
def forbidding() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("command", [each for each in NAMED if each[0] not in ON_THE_BUS], ids=" ".join)
def test_a_refusal_of_the_server_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, forbidding: str, command: tuple[str, ...]
) -> None:
    config = write_kubeconfig(tmp_path / "ann", forbidding)
    words = [
        *command,
        "default/x",
        *REST.get(command[-1], []),
        "--data",
        str(tmp_path),
        "--kubeconfig",
        config,
    ]
    code, text = answer(capsys, *words)
    assert (code, "ann may not do that" in text) == (1, True), text
