"""One service of an installation as a process of this machine, with its settings as variables."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pvbus.install.objects import NAMESPACE, service_name
from tests.tools.kafka import _detach
from tests.tools.pace import patience
from tests.tools.ports import free_ports
from tests.tools.realcluster import RealCluster

START_SECONDS_MAX = patience(90.0)
END_SECONDS_MAX = patience(30.0)
_GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")


def account_of(service: str) -> str:
    """Return the user as which a service of an installation asks the API server."""
    return f"system:serviceaccount:{NAMESPACE}:{service_name(service)}"


class ServiceProcess:
    """`python -m services.NAME` under the account of an installation. It may be started again."""

    def __init__(
        self, service: str, cluster: RealCluster, folder: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        """settings: variables beside the usual ones."""
        folder.mkdir(parents=True, exist_ok=True)
        self.service = service
        self.folder = folder
        self.log = folder / f"{service}.log"
        (self.health_port,) = free_ports(1)
        self.kubeconfig = cluster.kubeconfig_of(account_of(service), *_GROUPS)
        self.settings = {
            "PVBUS_KUBECONFIG": str(self.kubeconfig),
            "PVBUS_HEALTH_PORT": str(self.health_port),
            "PVBUS_LOG_FORMAT": "json",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Start it, also again. wait: until it is ready."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PVBUS_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"services.{self.service}"],
                env={**inherited, **self.settings, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_detach,
            )
        if wait:
            until(lambda: self.readiness()[0] == 200, lambda: f"{self.readiness()}\n{self.output}")

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self.health_port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def readiness(self) -> tuple[int, str]:
        """Return the code and text of /readyz; the code is 0 if nobody answers."""
        return self.get("readyz")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.health_url}/{path}", timeout=5.0) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event."""
        found = [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def end(self) -> int:
        """End it as Kubernetes does, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(END_SECONDS_MAX)
        self._process = None
        return code

    def kill(self) -> None:
        """End it as kill -9 does, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_SECONDS_MAX)
            self._process = None


def until(condition: Callable[[], bool], problem: Callable[[], object]) -> None:
    """Wait until the state of the world is as wanted. problem: what is the case instead."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.1)
