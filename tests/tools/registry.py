"""Finds or builds the registry of the Distribution project, and runs it.

`python -m tests.tools.registry` builds it if it is missing, and prints its path. It is built from its Go
module, once (`tests.tools.gomodules`).
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tools import gomodules
from tests.tools.kafka import _detach
from tests.tools.ports import free_ports

NAME, VERSION = "registry", "3.0.0"
USER, PASSWORD = "joe", "right-password"
START_SECONDS_MAX = 60.0
_CONFIG = """\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {folder}/data}}
  maintenance: {{uploadpurging: {{enabled: false}}}}
http: {{addr: '127.0.0.1:{port}', secret: none}}
catalog: {{maxentries: 1000}}
"""
HTPASSWD = "joe:$2b$04$qJzv9o56mvOUd0Vr9P1UqOnxPo0y1AGaYrSYmVNJXxqPHAGX4nZMS\n"
"""bcrypt of PASSWORD; the lowest cost, as a test has no time."""


class RegistryUnavailableError(Exception):
    """There is no registry here; the text says what to install."""


def find_or_build() -> Path:
    """Return the program. Raises RegistryUnavailableError."""
    target = gomodules.cached(NAME, VERSION)
    if target.exists():
        return target
    compiler = gomodules.go()
    if compiler is None:
        raise RegistryUnavailableError(
            f"registry {VERSION} is not in {target.parent} and is built with Go, which is missing: install "
            "Go 1.24 or newer (https://go.dev/dl)"
        )
    try:
        gomodules.build(compiler, gomodules.registry(VERSION), target)
    except gomodules.BuildFailedError as error:
        last = str(error).strip().splitlines()[-1]
        raise RegistryUnavailableError(
            f"registry {VERSION} could not be built with {compiler} (it needs its module proxy): {last}"
        ) from error
    return target


def found_or_skipped() -> Path:
    """Return the program, or skip the test; in continuous integration, fail it."""
    try:
        return find_or_build()
    except RegistryUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


class Running:
    """A registry that can be stopped and started again with what it has."""

    def __init__(self, program: Path, folder: Path, config: str) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}"
        self._program, self._folder = program, folder
        (folder / "config.yml").write_text(_CONFIG.format(folder=folder, port=port) + config)

    def start(self) -> None:
        with (self._folder / "registry.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "serve", str(self._folder / "config.yml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "OTEL_TRACES_EXPORTER": "none"}, preexec_fn=_detach,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                log_text = (self._folder / "registry.log").read_text(errors="replace")
                raise AssertionError(f"the registry does not answer:\n{log_text[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v2/", timeout=5):
                return True
        except urllib.error.HTTPError as exc:
            return exc.code == 401
        except OSError:
            return False


@contextmanager
def running(program: Path, folder: Path, *, auth: str = "") -> Iterator[Running]:
    """Run a registry. auth: "" for none, `basic` for USER and PASSWORD, else the auth section of its file."""
    config = auth
    if auth == "basic":
        (folder / "htpasswd").write_text(HTPASSWD)
        config = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}\n"
    registry = Running(program, folder, config)
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


if __name__ == "__main__":
    try:
        print(find_or_build())
    except RegistryUnavailableError as error:
        sys.exit(str(error))
