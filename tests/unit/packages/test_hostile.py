"""Texts and names made to harm: each is refused in a sentence or read as what it is, at bounded cost."""

import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from pvbus.controlplane.packages import bounds, layout, programs
from pvbus.controlplane.packages.content import facts_of
from pvbus.controlplane.packages.functions import executable
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.gitcommand import Credentials, Git, GitError
from pvbus.controlplane.packages.render import input_digest, render
from pvbus.controlplane.packages.settings import git_problem, spec_of
from pvbus.core.errors import PermanentError
from pvbus.core.variants.merge import copies
from pvbus.core.yaml.editor import YamlError
from tests.unit.packages.support import items

SECONDS_MAX = 5.0
KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: app
pipeline:
  mutators:
  - image: set-labels:v0.2
    configMap: {app: x}
  - image: set-namespace:v0.4.1
    configMap: {namespace: x}
"""
OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n"


def _levels(of: str) -> str:
    """Nine levels, each of nine aliases of the one before."""
    lines = [f"a0: &a0 {of}"]
    for level in range(1, 10):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n"


def _merges() -> str:
    lines = ["a0: &a0 {k: 1}"]
    for level in range(1, 10):
        lines.append(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}], k{level}: 1}}")
    return "\n".join(lines) + "\n"


# What is read: (text behind an object's head, what the refusal says; "" where it is read as it stands)
_TEXTS = {
    "deep list": ("data: " + "[" * 5_000 + "]" * 5_000 + "\n", "nested too deeply"),
    "deep map": ("data: " + '{"a":' * 5_000 + "1" + "}" * 5_000 + "\n", "nested too deeply"),
    "deep dashes": ("data:\n  " + "- " * 5_000 + "x\n", "nested too deeply"),
    "deep keys": ("? " * 5_000 + "x\n", "nested too deeply"),
    "deep lines": ("data:\n" + "".join(" " * n + "a:\n" for n in range(1, 500)), "nested too deeply"),
    "brackets in a text": ('data: "' + "[" * 5_000 + '"\n', ""),
    "billion laughs": (_levels("[x]"), "excessive aliasing"),
    "billion merges": (_merges(), "excessive aliasing"),
    "an alias of itself": ("a: &a [*a]\n", "contains itself"),
    "a merge of itself": ("a: &a\n  <<: *a\n", "contains itself"),
    "an honest anchor": ("a: &a {k: 1}\nb: {<<: *a, l: 2}\nc: *a\n", ""),
    "many documents": ("---\n" * 100_000, "documents in one text"),
    "a NUL": ("a: x\0y\n", "yaml: "),
    "a bell": ("a: \x07\n", "yaml: "),
    "a huge decimal": ("a: " + "9" * 5_000 + "\n", ""),
    "a huge hexadecimal": ("a: 0x" + "f" * 5_000 + "\n", ""),
    "a huge binary": ("a: 0b" + "1" * 20_000 + "\n", ""),
    "an empty hexadecimal": ("a: 0x_\n", ""),
    "no boolean": ("a: !!bool maybe\n", "yaml: "),
    "no float": ("a: !!float x\n", "yaml: "),
    "no integer": ('a: !!int ""\n', "yaml: "),
    "a list as key": ("? [a, b]\n: x\n", "yaml: "),
    "a set": ("a: !!set {x, y}\n", ""),
    "pairs": ("a: !!pairs [x: 1]\n", ""),
    "a program": ('a: !!python/object/apply:os.system ["id"]\n', ""),
    "a date out of range": ("a: 99999-13-45\n", ""),
    "infinity": ("a: [.inf, -.inf, .nan, 1e999]\n", ""),
    "two keys alike": ("a: 1\na: 2\n", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", ["Kptfile", "file.yaml", "file.json"])
@pytest.mark.parametrize("case", _TEXTS)
def test_a_text_costs_its_package_only_and_soon(case: str, file: str) -> None:
    text, message = _TEXTS[case]
    package = {"Kptfile": KPTFILE, "other.yaml": OBJECT}
    package[file] = package.get(file, OBJECT) + text
    began = time.process_time()
    facts = facts_of(package["Kptfile"])
    msgspec.json.encode(facts)
    result = render(package, registry=FunctionRegistry({}))
    "".join(result.resources.values()).encode()
    input_digest(package)
    copies.with_origins(package)
    assert time.process_time() - began < SECONDS_MAX
    if message:
        assert not result.rendered
        assert message in result.message
        assert file in result.message
        assert result.resources["other.yaml"] == OBJECT
    if message and file == "Kptfile":
        assert facts.rendered is not None
        assert message in facts.rendered["message"]
        with pytest.raises(YamlError, match=message):
            copies.edit_kptfile(package, copies.named("b"))


@pytest.mark.parametrize(
    ("kptfile", "message"),
    [
        ("", "it is empty"),
        ("[1]\n", ""),
        ("metadata: {labels: {a: " + "x" * 300_000 + "}}\n", "more than 262144 bytes"),
        ("metadata: [1]\nstatus: 3\ninfo: x\nupstreamLock: [x]\n", ""),
        ("upstreamLock: {type: git, git: {repo: a, commit: 0x" + "f" * 5_000 + ", other: {1: .nan}}}\n", ""),
        ("status: {conditions: [{type: Rendered, status: 'True'}, 3, {type: {a: b}}]}\n", ""),
    ],
)
def test_a_kptfile_gives_facts_that_any_object_can_hold(kptfile: str, message: str) -> None:
    facts = facts_of(kptfile)
    assert len(msgspec.json.encode(facts)) <= bounds.FACTS_BYTES_MAX
    assert not message or (facts.rendered is not None and message in facts.rendered["message"])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../x", "not a path inside a package"),
        ("a/../../x", "not a path inside a package"),
        ("/etc/passwd", "not a path inside a package"),
        ("a//b", "not a path inside a package"),
        ("./a", "not a path inside a package"),
        ("", "not a path inside a package"),
        (".git/config", "not a path inside a package"),
        ("a/.GIT/hooks/post-checkout", "not a path inside a package"),
        (".git /config", "not a path inside a package"),
        (".g\u200cit/config", "not a path inside a package"),
        ("git~1/config", "not a path inside a package"),
        (".git::$INDEX_ALLOCATION/config", "not a path inside a package"),
        ("a\\.git\\config", "not a path inside a package"),
        ("a\0b", "characters that no file name may have"),
        ("a\nb", "characters that no file name may have"),
        ("a\x1b[31m", "characters that no file name may have"),
        ("\ud800", "characters that no file name may have"),
        ("x" * 300, "too long"),
        ("x/" * 600 + "x", "too long"),
        ("x/" * 100 + "x", "nested folders"),
        ("KPTFILE", "differ only in case"),
        ("Dir/a", "differ only in case"),
        ("Kptfile/a", "both a file and a folder"),
        (".gitignore", ""),
        (".github/x.yaml", ""),
        ("dir/b c.txt", ""),
        ("ünï/x", ""),
        ("-rf", ""),
        ("--upload-pack=x", ""),
    ],
)
def test_paths_of_a_package(path: str, message: str) -> None:
    problem = bounds.path_problem(["Kptfile", "dir/a", path])
    assert (problem is None) if not message else (problem is not None and message in problem)


def test_a_package_has_a_limit_of_files() -> None:
    problem = bounds.path_problem(["Kptfile", *(f"f{number}" for number in range(100_000))])
    assert problem == "a package can have at most 10000 files, these are 100001"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("/etc/passwd", True),
        ("../../x", True),
        ("../..", True),
        ("a/../../../x", True),
        ("../other.yaml", False),
        ("x", False),
    ],
)
def test_symbolic_links_stay_in_their_package(target: str, problem: bool) -> None:
    assert (bounds.link_problem({"dir/link": target.encode()}) is not None) == problem


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("repo", "ext::sh -c id", "helper programs"),
        ("repo", "fd::17", "helper programs"),
        ("repo", "hg::https://example.com/x", "helper programs"),
        ("repo", "ext://sh", "must be a path, or a URL of"),
        ("repo", "ftp://example.com/x", "must be a path, or a URL of"),
        ("repo", "--upload-pack=touch /tmp/x", "must be a path or URL"),
        ("repo", "-x", "must be a path or URL"),
        ("repo", " https://example.com/x", "must be a path or URL"),
        ("repo", "ssh://-oProxyCommand=id/x", "begins with a dash"),
        ("repo", "file://relative/path", "absolute path"),
        ("repo", "https://user:secret@example.com/x", "put it into a Secret"),
        ("repo", "https://example.com/x\0y", "printable"),
        ("repo", "https://example.com/x\ny", "printable"),
        ("repo", "https://example.com/" + "x" * 5_000, "printable"),
        ("repo", "https://user@example.com/x", ""),
        ("repo", "ssh://git@example.com/x.git", ""),
        ("repo", "git@example.com:x/y.git", ""),
        ("repo", "file:///srv/x.git", ""),
        ("repo", "/srv/x.git", ""),
        ("branch", "--upload-pack=x", "not a valid branch name"),
        ("branch", "a..b", "not a valid branch name"),
        ("branch", "a b", "not a valid branch name"),
        ("branch", "a~1", "not a valid branch name"),
        ("branch", "a.lock", "not a valid branch name"),
        ("branch", "a//b", "not a valid branch name"),
        ("branch", "@{-1}", "not a valid branch name"),
        ("branch", "main\0", "printable"),
        ("branch", "drafts/app/v1", "which packages use"),
        ("branch", "release/1.2", ""),
        ("directory", "../x", "not a path inside"),
        ("directory", ".git", "not a path inside"),
        ("directory", "a/\0", "printable"),
        ("directory", "/packages/", ""),
        ("author", "A <b@c>", "must not contain < or >"),
        ("email", "a\nb", "printable"),
    ],
)
def test_addresses_and_names_of_a_repository(field: str, value: str, message: str) -> None:
    spec = spec_of({"spec": {"type": "git", "git": {"repo": "/srv/x.git", field: value}}})
    found = git_problem(spec)
    if not message:
        assert found is None
        return
    assert found is not None
    assert found[0] == f"spec.git.{field}"
    assert message in found[1]
    assert "secret@" not in found[1]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 5_000,
        '{"package": "a", "task": ' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}",
        '{"package": "a", "task": {"type": "clone", "clone": "x"}}',
        '{"package": "a", "task": {"type": "upgrade", "upgrade": [1]}}',
        '{"package": 3}',
        '{"package": "\\ud800"}',
        "null",
    ],
)
def test_a_broken_annotation_of_a_commit_is_passed_over(line: str) -> None:
    message = f'x\n\nkpt:{line}\nkpt:{{"package": "good"}}\n'
    assert [each.package for each in layout.parse_annotations(message)][-1:] == ["good"]
    assert all(each.task is None for each in layout.parse_annotations(message))


@pytest.mark.parametrize("tag", ["v" + "9" * 40, "v٣", "v-1", "v1e3", "v 1"])
def test_a_revision_is_a_number_that_an_api_can_hold(tag: str) -> None:
    assert layout.revision_number(tag) == -1


# Programs.


def run(program: str, timeout_seconds: float = 30.0, *, isolated: bool = True) -> None:
    command = [sys.executable, "-c", program]
    given = items(OBJECT)
    executable.run_executable(command, given, None, timeout_seconds=timeout_seconds, isolated=isolated)


READ = "import sys; sys.stdin.read()"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "OUTPUT_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(executable, "MEMORY_BYTES_MAX", 200_000_000)
    monkeypatch.setattr(executable, "FILE_BYTES_MAX", 1_000_000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("while True: print('x' * 1000)", "wrote more than 1000000 bytes"),
        ("import sys\nwhile True: print('x' * 1000, file=sys.stderr)", "wrote more than 1000000 bytes"),
        (f"{READ}; x = b'x' * 2_000_000_000", "exit code 1: .*MemoryError"),
        (f"{READ}; open('f', 'wb').write(b'x' * 2_000_000)", "exit code"),
        ("x = b'x' * 2_000_000_000", "exit code 1: .*MemoryError"),
        ("open('f', 'wb').write(b'x' * 2_000_000)", "exit code"),
        ("while True: pass", "did not end within 2 s"),
        ("import time; time.sleep(60)", "did not end within 2 s"),
        ("print('[' * 100000)", "not a ResourceList: yaml: line 1: nested too deeply"),
        ("print('a: &a [*a]')", "not a ResourceList: yaml: line 1: the value of &a contains itself"),
    ],
)
def test_a_program_that_takes_too_much_is_ended(program: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(PermanentError, match=f"(?s){message}"):
        run(program, timeout_seconds=2.0)
    assert time.monotonic() - began < 20


AT_ONCE = {
    "memory": ("x = b'x' * 2_000_000_000", "MemoryError"),
    "file": ("open('f', 'wb').write(b'x' * 2_000_000)", "File too large"),
    "core": ("import resource, sys; sys.exit(str(resource.getrlimit(resource.RLIMIT_CORE)))", "(0, 0)"),
}


@pytest.mark.parametrize(("program", "message"), AT_ONCE.values(), ids=AT_ONCE)
def test_limits_hold_before_the_first_instruction(tmp_path: Path, program: str, message: str) -> None:
    """Nothing happens here between the start and the end of a program that never reads its input."""
    limits = programs.Limits(memory_bytes=200_000_000, file_bytes=1_000_000)
    command = [sys.executable, "-c", program]
    process = programs.start(command, tmp_path, executable.ENVIRONMENT, with_input=True, limits=limits)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert message in err.decode()


def test_children_have_the_limits_of_their_program(tmp_path: Path) -> None:
    program = (
        "import resource, subprocess, sys\n"
        "show = 'import resource as r; print(r.getrlimit(r.RLIMIT_DATA), r.getrlimit(r.RLIMIT_FSIZE))'\n"
        "subprocess.run([sys.executable, '-c', show])"
    )
    limits = programs.Limits(memory_bytes=1 << 28, file_bytes=1 << 20)
    command = [sys.executable, "-c", program]
    process = programs.start(command, tmp_path, executable.ENVIRONMENT, with_input=False, limits=limits)
    out, _ = process.communicate(timeout=60)
    assert out.decode().strip() == f"{(1 << 28, 1 << 28)} {(1 << 20, 1 << 20)}"


def test_a_limit_that_the_system_does_not_allow_leaves_the_output_alone(tmp_path: Path) -> None:
    """Only the superuser may raise a limit: for others the lower one of the system stays, in silence."""
    command = ["sh", "-c", 'ulimit -c 0; ulimit -d 1000000; ulimit -f 1000; exec "$@"', "sh"]
    inner = programs.Limits(memory_bytes=1 << 50, file_bytes=1 << 50)
    inside = programs._limited(
        [sys.executable, "-c", "print('ran')"], tmp_path, executable.ENVIRONMENT, inner
    )
    process = programs.start([*command, *inside], tmp_path, executable.ENVIRONMENT, with_input=False)
    assert process.communicate(timeout=60) == (b"ran\n", b"")


def test_a_program_with_limits_is_found_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    limits = programs.Limits(memory_bytes=1 << 28, file_bytes=1 << 20)
    for command, error in (
        ("no-such-program", FileNotFoundError),
        ("./no-such-program", FileNotFoundError),
        ("./plain", PermissionError),
    ):
        with pytest.raises(error):
            programs.start([command], tmp_path, executable.ENVIRONMENT, with_input=False, limits=limits)


def test_no_child_is_left_behind_and_none_holds_up_its_parent(tmp_path: Path) -> None:
    """A child in the background has the pipes; the answer does not wait for it, and it is gone after."""
    pid = tmp_path / "pid"
    program = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen(['sleep', '300'])\nopen({str(pid)!r}, 'w').write(str(child.pid))\n"
        "print(sys.stdin.read())"
    )
    began = time.monotonic()
    run(program, isolated=False)
    assert time.monotonic() - began < 20
    stat = Path(f"/proc/{pid.read_text()}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_program_gets_no_descriptor_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        seen = tmp_path / "seen"
        run(
            f"import os, sys\nopen({str(seen)!r}, 'w').write(' '.join(os.listdir('/proc/self/fd')))\n"
            "print(sys.stdin.read())"
        )
    assert str(file.fileno() if not file.closed else 99) not in seen.read_text().split()
    assert len(seen.read_text().split()) <= 5


# git.


def fake_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_no_credential_is_in_a_message_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(
        tmp_path,
        'echo "fatal: unable to access https://joe:hunter2@example.com/x and s3cret-word" >&2;'
        " env | grep -o 'Basic .*' >&2; exit 1",
        monkeypatch,
    )
    with pytest.raises(GitError) as caught:
        Git(Credentials("joe", "s3cret-word")).run("fetch", directory=tmp_path)
    message = str(caught.value)
    assert "unable to access" in message
    for secret in ("hunter2", "s3cret-word", "am9lOnMzY3JldC13b3Jk"):
        assert secret not in message


def test_a_remote_that_never_stops_talking_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_git(
        tmp_path, "while true; do echo remote: talk talk talk talk talk talk talk >&2; done", monkeypatch
    )
    began = time.monotonic()
    with pytest.raises(GitError, match="sent more than") as caught:
        Git().run("fetch", directory=tmp_path, seconds_max=60)
    assert len(str(caught.value)) < 2_000
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("url", ["ext::sh -c 'touch {file}'", "fd::0", "hg::x"])
def test_git_runs_no_helper_program(tmp_path: Path, url: str) -> None:
    """Also where a Repository was stored before such addresses were refused."""
    file = tmp_path / "touched"
    git = Git()
    git.run("init", "--quiet", "--bare", ".", directory=tmp_path)
    with pytest.raises(GitError, match="not allowed"):
        git.fetch(tmp_path, url.replace("{file}", str(file)))
    assert not file.exists()
