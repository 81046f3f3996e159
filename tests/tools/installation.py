"""`pvbus up` as a process of its own: started, asked whether it is ready, ended in any way.

Its output goes to a file, so that nothing waits for a reader, and a test can quote it. Nothing of the
user's environment reaches it that could change what it does.
"""

import contextlib
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.tools.pace import patience
from tests.tools.warmcommand import run_command

CHECKOUT = Path(__file__).parents[2]
READY_SECONDS_MAX = patience(60.0)
END_SECONDS_MAX = patience(30.0)


class NotReadyError(Exception):
    """`pvbus up` ended, or took too long; the message ends with what it printed."""


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a command: this checkout's code, no settings but the given ones."""
    retained = {
        name: value for name, value in os.environ.items() if not name.startswith(("PVBUS_", "GIT_", "KUBE"))
    }
    return {**retained, "PYTHONPATH": str(CHECKOUT), **(settings or {})}


def pvbus(
    *arguments: str | Path, settings: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command of pvbus to its end, in a fork of a process that has imported it."""
    return run_command([*map(str, arguments)], os.getcwd(), environment(settings), 60)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started: from Linux, else from pgrep."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if listed.exists():
        return [int(child) for child in listed.read_text().split()]
    asked = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in asked.stdout.split()]


def words_of(pid: int) -> list[str]:
    """Return the command of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def api_server_of(installation: "Installation") -> int:
    """Return the process of the API server."""
    return next(pid for pid in children_of(installation.pid) if "apiserver" in words_of(pid))


def services_of(installation: "Installation") -> dict[str, int]:
    """Return a process of each service, if the services have their own."""
    return {
        words[words.index("run") + 1]: pid
        for pid in children_of(installation.pid)
        if "run" in (words := words_of(pid))
    }


class Installation:
    """One data folder, and the `pvbus up` that may run on it."""

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.data = data
        self.kubeconfig = data / "kubeconfig"
        self.bus = data / "bus.db"
        self.starts = 0
        self._settings = dict(settings or {})
        self._arguments = tuple(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The output of the last start."""
        return self.data.with_name(f"{self.data.name}-{self.starts}.log")

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def start(self, *, file_bytes_max: int | None = None) -> None:
        """file_bytes_max: no file may grow beyond it, as if the disk were full."""
        self.starts += 1

        def limit() -> None:
            if file_bytes_max is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        command = [sys.executable, "-P", "-m", "pvbus.cli", "up", "--data", str(self.data), *self._arguments]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self._settings),
                start_new_session=True,
                preexec_fn=limit if file_bytes_max is not None else None,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        """Ask once. Raises NotReadyError if the process has ended."""
        if not self.is_running:
            raise NotReadyError(f"pvbus up has ended with {self.code}:\n{self.output}")
        found = re.search(r"metrics and health: (\S+)/metrics", self.output)
        if found is None:
            return False
        try:
            with urllib.request.urlopen(f"{found[1]}/readyz", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self, seconds_max: float = READY_SECONDS_MAX) -> float:
        """Wait until all services have their tables; returns how long this took."""
        began = time.monotonic()
        while not self.is_ready():
            if time.monotonic() - began > seconds_max:
                raise NotReadyError(f"not ready after {seconds_max:.0f} s:\n{self.output}")
            time.sleep(0.05)
        return time.monotonic() - began

    def wait_started(self, processes: int) -> None:
        """With processes of the services' own: wait until so many have said where they can be asked."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while self.output.count("metrics and health: ") < processes:
            if not self.is_running or time.monotonic() > deadline:
                raise NotReadyError(f"not started:\n{self.output}")
            time.sleep(0.05)

    def api_readiness(self) -> str:
        """Ask the API server whether it is ready; its answer may be any."""
        found = re.search(r"^API server: (\S+)", self.output, re.MULTILINE)
        assert found is not None
        trust_all = ssl.create_default_context()
        trust_all.check_hostname, trust_all.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(f"{found[1]}/readyz", timeout=5.0, context=trust_all) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as exc:
            return exc.read().decode()

    @property
    def code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        """End it as Ctrl-C does: in order, or by force and with a sentence on a machine that is too busy.

        For tests of something else. Ten processes and three brokers may have two cores.
        """
        assert self.stop() == 0 or "it ends by force" in self.output, self.output[-4000:]

    def wait_ended(self, seconds_max: float = END_SECONDS_MAX) -> int:
        assert self._process is not None
        return self._process.wait(seconds_max)

    def kill(self) -> None:
        """kill -9 of everything at once: the services and the API server."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_parent(self) -> None:
        """kill -9 of the services only: the API server has to notice and end by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_child(self) -> None:
        """kill -9 of the API server only: the services have to notice and end by themselves.

        Waits until there is one.
        """
        deadline = time.monotonic() + READY_SECONDS_MAX
        while self.is_running and time.monotonic() < deadline:
            if found := children_of(self.pid):
                os.kill(found[0], signal.SIGKILL)
                return
            time.sleep(0.02)
        raise NotReadyError(f"no API server could be killed:\n{self.output}")

    def stop(self) -> int:
        """End it as Ctrl-C does; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait_ended()
