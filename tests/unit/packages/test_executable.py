"""Programs as functions: the ResourceList protocol, time limit, environment."""

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pvbus.controlplane.packages.functions.executable import encode, run_executable
from pvbus.controlplane.packages.functions.item import FunctionOutput, Item, Value
from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import config_map, items

THING = "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  name: a # why\nspec:\n  # about n\n  n: 'x' # n\n"
PRELUDE = (
    "import json, os, subprocess, sys, yaml\nlist_ = yaml.safe_load(sys.stdin)\nitems = list_['items']\n"
)
POSTLUDE = "\njson.dump(list_, sys.stdout)\n"


def run(
    program: str, given: tuple[Item, ...], configuration: Value | None = None, *, timeout_seconds: float = 60
) -> FunctionOutput:
    source = PRELUDE + textwrap.dedent(program) + POSTLUDE
    return run_executable(
        [sys.executable, "-c", source], given, configuration, timeout_seconds=timeout_seconds
    )


def test_a_changed_field_changes_nothing_else_of_the_text() -> None:
    (changed,) = run("items[0]['spec']['n'] = 'y'", items(THING)).items
    assert changed.text == THING.replace("'x'", "'y'")


def test_an_object_that_comes_back_as_it_went_keeps_its_bytes_and_place() -> None:
    given = items(THING, THING.replace("name: a", "name: b"))
    assert run("items.reverse()", given).items == tuple(reversed(given))


def test_the_program_sees_comments_paths_and_the_configuration() -> None:
    (item,) = items(THING)
    text = encode([item], config_map(a="b"))
    assert "# about n" in text
    assert "name: a # why" in text
    sent = load(text)
    assert sent["functionConfig"]["data"] == {"a": "b"}
    assert sent["items"][0]["metadata"]["annotations"] == {
        "internal.config.kubernetes.io/path": "0.yaml",
        "internal.config.kubernetes.io/index": "0",
        "internal.config.kubernetes.io/id": "0",
        "config.kubernetes.io/path": "0.yaml",
        "config.kubernetes.io/index": "0",
        "config.k8s.io/id": "0",
        "internal.config.kubernetes.io/package-path": ".",
    }


def test_a_text_that_cannot_be_nested_is_sent_by_its_values() -> None:
    (item,) = items("%YAML 1.1\n---\n" + THING)
    (sent,) = load(encode([item], None))["items"]
    assert sent["spec"] == {"n": "x"}


def test_bookkeeping_is_taken_off_and_other_annotations_stay() -> None:
    (changed,) = run("items[0]['metadata']['annotations']['mine'] = '1'", items(THING)).items
    assert changed.annotations == {"mine": "1"}


def test_new_and_deleted_objects() -> None:
    program = """
        new = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'n'}}
        placed = {'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'p', 'annotations': {
            'config.kubernetes.io/path': 'x/y.yaml', 'config.kubernetes.io/index': '2'}}}
        list_['items'] = [new, placed]
        """
    output = run(program, items(THING))
    assert [(item.name, item.id, item.file, item.index) for item in output.items] == [
        ("n", None, "", -1),
        ("p", None, "x/y.yaml", 2),
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../x.yaml", "outside of the package"),
        ("a/../../x.yaml", "outside of the package"),
        ("/etc/x.yaml", "outside of the package"),
        (".git/config", "not a path inside a package"),
        ("a/.GIT/hooks/x.yaml", "not a path inside a package"),
        ("a\nb.yaml", "characters that no file name may have"),
        ("1.YAML", "differ only in case"),
        ("1.yaml/x.yaml", "both a file and a folder"),
    ],
)
def test_an_object_outside_of_the_package_is_refused(path: str, message: str) -> None:
    program = f"items[0]['metadata']['annotations']['internal.config.kubernetes.io/path'] = {path!r}"
    with pytest.raises(PermanentError, match=message):
        run(program, items(THING, THING))


@pytest.mark.parametrize(
    "results",
    [
        "[{'message': 'm', 'severity': 'warning', 'resourceRef': {'kind': 'K', 'name': 'n'}}]",
        "{'name': 'x', 'items': [{'message': 'm', 'severity': 'warning', "
        "'resourceRef': {'kind': 'K', 'metadata': {'name': 'n'}}}]}",
    ],
)
def test_results_are_read_in_both_shapes(results: str) -> None:
    (result,) = run(f"list_['results'] = {results}", items(THING)).results
    assert (result.message, result.severity, dict(result.resource_ref)) == (
        "m",
        "warning",
        {"kind": "K", "name": "n"},
    )


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit('went wrong')", "exit code 1: went wrong"),
        (
            "print(json.dumps({'kind': 'ResourceList', 'results': [{'message': 'bad spec'}]})); sys.exit(3)",
            "exit code 3: bad spec",
        ),
        ("sys.exit(2)", "exit code 2: no output"),
        ("list_ = {'kind': 'Other'}", "kind is not ResourceList"),
        ("list_['items'] = 'x'", "items is not a list"),
        ("print('{')", "the output is not a ResourceList"),
    ],
)
def test_failures_say_what_the_program_said(program: str, message: str) -> None:
    with pytest.raises(PermanentError) as caught:
        run(program, items(THING))
    assert message in str(caught.value)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(PermanentError, match="cannot start /no/such/program"):
        run_executable(["/no/such/program"], (), None, timeout_seconds=5)


def test_the_time_limit_ends_the_program_and_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    command = ["sh", "-c", f"sleep 60 & echo $! > '{note}'; wait"]
    begun = time.monotonic()
    with pytest.raises(PermanentError, match="did not end within 2 s"):
        run_executable(command, (), None, timeout_seconds=2, isolated=False)
    assert time.monotonic() - begun < 30
    child = Path("/proc") / note.read_text().strip()
    deadline = time.monotonic() + 5
    while child.exists() and "(zombie)" not in (child / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "(zombie)" in (child / "status").read_text()


def test_nothing_of_our_environment_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    program = "items[0]['spec']['n'] = ' '.join(sorted(os.environ))"
    (changed,) = run(program, items(THING)).items
    names = set(changed.value["spec"]["n"].split())
    assert {"HOME", "LANG", "PATH", "TMPDIR"} <= names
    shells = {"SHLVL", "_"}  # what bash adds where it is /bin/sh
    assert names - {"HOME", "LANG", "PATH", "TMPDIR", "LC_CTYPE"} - shells == set()
    assert "SECRET_TOKEN" in os.environ
