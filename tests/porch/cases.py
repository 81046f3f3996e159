"""Runs the cases of Porch's command line tests and compares each command with what Porch's test expects.

A case is a file of the Porch module: commands, each with the output, errors and exit code to expect. The
comparison is that of Porch's own runner: lines after the first in any order, YAML by its content without
resourceVersion and creationTimestamp, and white space where the case says so.
"""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from tests.porch.world import PorchWorld

SERVER = "http://gitea.gitea.svc.cluster.local:3000"
FOLDER = "/tmp/porch-e2e"
VARYING = ("resourceVersion:", "creationTimestamp:")
KPT = "kpt"
ADDRESS = "http://localhost:"


class Command(msgspec.Struct, rename="camel"):
    """A command and what to expect, by the names of Porch's file."""

    args: list[str]
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    yaml: bool = False
    ignore_whitespace: bool = False
    std_err_tab_to_whitespace: bool = False
    contains_error_string: bool = False


class Case(msgspec.Struct):
    commands: list[Command]
    repository: str = ""
    skip: str = ""


class Outcome(NamedTuple):
    """What a command did. differences: of `code`, `stdout`, `stderr`; empty if it is as expected."""

    number: int
    command: str
    differences: dict[str, tuple[Any, Any]]


def read(file: Path) -> Case:
    return msgspec.convert(yaml.safe_load(file.read_text(encoding="utf-8")), Case)


def run(world: PorchWorld, name: str, folder: Path) -> list[Outcome]:
    """Run a case in a namespace of its own. folder: where its commands put files."""
    case = read(world.porch.cases / name / "config.yaml")
    folder.mkdir(parents=True, exist_ok=True)
    created = world.run(["kubectl", "create", "namespace", name])
    assert created.returncode == 0, created.stderr
    world.git.create(name)
    if name == "rpkg-upgrade":
        world.git.create(f"{name}-downstream")
    outcomes = []
    for number, command in enumerate(case.commands):
        here = _moved(command, {SERVER: world.git.address, FOLDER: str(folder)})
        done = _run(world, here)
        outcomes.append(Outcome(number, " ".join(command.args)[:160], compare(here, done)))
        if "register" in command.args:
            _wait_until_ready(world, name, here.args)
    world.run(
        ["kubectl", "delete", "namespace", name, "--wait=false"]
    )  # else the next case finds its Repositories
    return outcomes


def _run(world: PorchWorld, command: Command) -> "subprocess.CompletedProcess[str]":
    if command.args[0] == KPT:
        return _replaced(command)
    return world.run(command.args, command.stdin, world.porch.cases.parent)


def _replaced(command: Command) -> "subprocess.CompletedProcess[str]":
    """Do what `kpt fn eval` with search-replace does to a Kptfile: kpt is no part of what is judged."""
    folder = next(each for each in command.args if each.startswith("/"))
    values = dict(each.split("=", 1) for each in command.args[command.args.index("--") + 1 :])
    file = Path(folder) / "Kptfile"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    *parents, last = values["by-path"].replace("[", ".").replace("]", "").split(".")
    inner = content
    for each in parents:
        inner = inner[int(each)] if each.isdigit() else inner[each]
    inner[last] = values["put-value"]
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return subprocess.CompletedProcess(command.args, 0, command.stdout, command.stderr)


def _wait_until_ready(world: PorchWorld, namespace: str, arguments: list[str]) -> None:
    name = next(each.removeprefix("--name=") for each in arguments if each.startswith("--name="))
    wait = ["kubectl", "wait", "--for=condition=Ready", f"--namespace={namespace}", "--timeout=60s"]
    waited = world.run([*wait, f"repository/{name}"])
    assert waited.returncode == 0, f"{waited.stderr}{world.store.output[-2000:]}"


def _moved(command: Command, replacements: dict[str, str]) -> Command:
    text = msgspec.json.encode(command).decode()
    for old, new in replacements.items():
        text = text.replace(old, new)
    return msgspec.json.decode(text, type=Command)


def compare(command: Command, done: "subprocess.CompletedProcess[str]") -> dict[str, tuple[Any, Any]]:
    """Return what differs: what was expected, and what came."""
    errors = "".join(f"{line}\n" for line in done.stderr.splitlines() if "[PASS]" not in line)
    if command.std_err_tab_to_whitespace:
        errors = errors.replace("\t", "  ")
    # A column is as wide as the address in it, and this git server's is shorter.
    has_address = ADDRESS in command.stdout
    shape = _words if command.ignore_whitespace or has_address else str
    output: tuple[Any, Any]
    if command.yaml:
        output = _document(command.stdout), _document(done.stdout)
    else:
        output = shape(_sorted(command.stdout)), shape(_sorted(done.stdout))
    wanted, actual = shape(command.stderr), shape(errors)
    if command.contains_error_string and wanted in actual:
        actual = wanted
    found = {
        "code": (command.exit_code, done.returncode),
        "stdout": output,
        "stderr": (wanted, actual),
    }
    return {key: (left, right) for key, (left, right) in found.items() if left != right}


def _sorted(text: str) -> str:
    head, *rest = text.splitlines() or [""]
    return "\n".join([head, *sorted(rest)])


def _words(text: str) -> str:
    return " ".join(word for word in text.split(" ") if word)


def _document(text: str) -> Any:
    lines = [line for line in text.splitlines() if not any(each in line for each in VARYING)]
    remaining = "".join(f"{line}\n" for line in lines)
    try:
        return yaml.safe_load(remaining)
    except yaml.YAMLError:
        return remaining
