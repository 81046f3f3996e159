"""Isolated programs: no network, no other process, and nothing of them is left behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from uuid import uuid4

import pytest

from pvbus.cli.functions import functions_of, isolation_problem
from pvbus.controlplane.packages import programs
from pvbus.controlplane.packages.functions.executable import ENVIRONMENT, run_executable
from pvbus.core.errors import PermanentError
from pvbus.runtime.process.settings import ApiServerConfig
from tests.unit.packages.support import eventually, items

OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n"
ECHO = "import sys\nprint(sys.stdin.read())\n"
NOBODY = 65534

needs_namespaces = pytest.mark.skipif(not programs.isolation(), reason="needs user namespaces")


def run(program: str, *, isolated: bool = True, timeout_seconds: float = 30.0) -> None:
    command = [sys.executable, "-c", program]
    run_executable(command, items(OBJECT), None, timeout_seconds=timeout_seconds, isolated=isolated)


def processes_with(mark: str) -> list[str]:
    """Return the processes of this machine that have a word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue  # it ended
    return found


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@needs_namespaces
def test_a_program_reaches_the_network_only_where_isolation_is_off(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 5).close()\n{ECHO}"
    with pytest.raises(PermanentError, match="Network is unreachable"):
        run(program)
    run(program, isolated=False)


@needs_namespaces
def test_a_program_sees_no_process_but_its_own() -> None:
    program = f"import os\nassert os.getpid() < 10\nassert not os.path.exists('/proc/{os.getpid()}')\n{ECHO}"
    run(program)
    with pytest.raises(PermanentError, match="AssertionError"):
        run(program, isolated=False)


DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600.{mark}"])
    os._exit(0)
{after}
"""


@needs_namespaces
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("print(sys.stdin.read())", nullcontext()),
        ("import time; time.sleep(60)", pytest.raises(PermanentError, match="did not end")),
    ],
)
def test_a_daemon_dies_with_its_program(after: str, expected: AbstractContextManager[object]) -> None:
    """A daemon has a session and a group of its own, so that no signal to the program's group reaches it."""
    mark = str(uuid4().int)[:12]
    with expected:
        run(DAEMON.format(mark=mark, after=after), timeout_seconds=2.0)
    assert eventually(lambda: not processes_with(mark))


@needs_namespaces
def test_a_fork_bomb_ends_at_its_time_limit() -> None:
    mark = f"bomb-{uuid4().hex}"
    program = (
        f"import os, time\nmark = '{mark}'\nfor _ in range(100):\n"
        "    if os.fork() == 0:\n        os.setsid()\n        break\ntime.sleep(60)"
    )
    with pytest.raises(PermanentError, match="did not end within 2 s"):
        run(program, timeout_seconds=2.0)
    assert eventually(lambda: not processes_with(mark))


@needs_namespaces
def test_processes_are_limited_in_their_namespace(tmp_path: Path) -> None:
    """The kernel excepts the superuser, so the program runs as nobody if this test runs as root."""
    program = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do sleep 5 & done; echo started"
    limits = programs.Limits(memory_bytes=1 << 30, file_bytes=1 << 20, processes=8)
    tmp_path.chmod(0o755)
    inner = programs._limited(["sh", "-c", program], "/", ENVIRONMENT, limits, counted=True)
    user = NOBODY if os.geteuid() == 0 else None
    result = subprocess.run(
        [*programs.isolation(), *inner], cwd="/", env=ENVIRONMENT, user=user, capture_output=True, timeout=60
    )
    if not programs._counts_by_namespace():
        assert result.stdout == b"started\n"
        return
    assert b"started" not in result.stdout
    assert b"fork" in result.stderr


@needs_namespaces
def test_signals_and_exit_codes_of_an_isolated_program_are_seen() -> None:
    for program, code in (("import os; os.abort()", 134), ("raise SystemExit(7)", 7)):
        with pytest.raises(PermanentError, match=f"exit code {code}"):
            run(program)


@needs_namespaces
def test_the_working_folder_is_private_and_removed(tmp_path: Path) -> None:
    note = tmp_path / "folder"
    run(f"import os\nopen('left', 'w').close()\nopen({str(note)!r}, 'w').write(os.getcwd())\n{ECHO}")
    folder = Path(note.read_text())
    assert folder.name.startswith("pvbus-function-")
    assert not folder.exists()


# Where the system does not permit it.


@pytest.fixture
def unpermitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An `unshare` that fails, as on a system without user namespaces."""
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    programs.isolation.cache_clear()
    yield
    programs.isolation.cache_clear()


@pytest.mark.usefixtures("unpermitted")
def test_without_user_namespaces_programs_run_and_the_user_is_warned() -> None:
    run(ECHO)
    config = ApiServerConfig(functions={"my-fn": "cat"})
    assert "run with network" in isolation_problem(config)
    assert functions_of(config).resolve("my-fn:v1").note == "my-fn ran as the program cat, with network"


@pytest.mark.usefixtures("unpermitted")
@pytest.mark.parametrize(
    "config",
    [
        ApiServerConfig(),
        ApiServerConfig(functions={"my-fn": "builtin:set-labels"}),
        ApiServerConfig(functions={"my-fn": "cat"}, isolate_functions=False),
    ],
)
def test_nobody_is_warned_without_programs_or_where_isolation_is_off(config: ApiServerConfig) -> None:
    assert isolation_problem(config) == ""


@needs_namespaces
def test_nobody_is_warned_where_programs_are_isolated() -> None:
    config = ApiServerConfig(functions={"my-fn": "cat"}, allow_exec=True)
    assert isolation_problem(config) == ""
    assert functions_of(config).resolve("my-fn").note.endswith("without network")
