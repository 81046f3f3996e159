"""Builds Porch's command line client, controllers, server and tests of the API from its own Go module, once.

Porch needs kpt's library, which cannot be had as a module. What Porch calls of it on this side (the fields of
a Kptfile, texts of errors, flags) is written anew in the folder `kpt` beside this file and takes its place;
nothing that is judged is in there. So this server reads packages, and refuses to make, render and merge them.
Porch's files are read where Go puts them, and changed nowhere.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.tools import gomodules

MODULE, VERSION = "github.com/nephio-project/porch", "1.5.8"
LIBRARY = "github.com/kptdev/kpt"
FORK = "k8s.io/apiserver@v0.34.1"
"""Porch's server has a copy of it, which the module lacks: requests may take 290 s, not 34 s. The original
takes its place."""
STAND_IN = Path(__file__).parent / "kpt"
WITHOUT_TELEMETRY = {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}
"""Variables of Porch's controllers and server."""


class PorchUnavailableError(Exception):
    """Porch cannot be had here; the text says why."""


class Porch(NamedTuple):
    """What is built. client: porchctl. controllers: those of sets and variants. server: that of the API,
    which only reads. api_tests: the test binary. source: the module's files, read only."""

    client: Path
    controllers: Path
    server: Path
    api_tests: Path
    source: Path

    @property
    def cases(self) -> Path:
        return self.source / "test" / "e2e" / "cli" / "testdata"

    @property
    def api_folder(self) -> Path:
        return self.source / "test" / "e2e" / "api"

    @property
    def blueprints(self) -> Path:
        return self.source / "test" / "pkgs" / "test-pkgs" / "test-blueprints.bundle"


def find_or_build() -> Porch:
    """Return Porch's programs. Raises PorchUnavailableError."""
    compiler = gomodules.go()
    if compiler is None:
        raise PorchUnavailableError("Porch is built with Go 1.26 or newer, which is missing")
    try:
        source = gomodules.download(compiler, MODULE, VERSION)
        folder = gomodules.cached("porch", f"{VERSION}-{_digest()}").parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _built(compiler, source, folder)
    except gomodules.BuildFailedError as error:
        raise PorchUnavailableError(str(error)) from error


def _digest() -> str:
    """Return what tells one state of the stand-in from another."""
    files = sorted(path for path in STAND_IN.rglob("*") if path.is_file())
    text = b"".join(path.relative_to(STAND_IN).as_posix().encode() + path.read_bytes() for path in files)
    return hashlib.sha256(text).hexdigest()[:12]


def _built(compiler: str, source: Path, folder: Path) -> Porch:
    names = ("porchctl", "porch-controllers", "porch-server", "api-tests")
    client, controllers, server, api_tests = (folder / name for name in names)
    porch = Porch(client, controllers, server, api_tests, source)
    if all(program.exists() for program in (client, controllers, server, api_tests)):
        return porch
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        copy = Path(scratch) / "porch"
        shutil.copytree(source, copy)
        for path in copy.rglob("*"):
            path.chmod(path.stat().st_mode | 0o200)  # the module cache is read-only
        run = [compiler, "mod", "edit", f"-replace={LIBRARY}={STAND_IN}", f"-dropreplace={FORK}"]
        _run(run, copy)
        for target, command in (
            (porch.client, ["build", "-mod=mod", "-o", f"{scratch}/client", "./cmd/porchctl"]),
            (porch.controllers, ["build", "-mod=mod", "-o", f"{scratch}/controllers", "./controllers"]),
            (porch.server, ["build", "-mod=mod", "-o", f"{scratch}/server", "./cmd/porch"]),
            (porch.api_tests, ["test", "-mod=mod", "-c", "-o", f"{scratch}/tests", "./test/e2e/api"]),
        ):
            _run([compiler, *command], copy)
            Path(command[command.index("-o") + 1]).replace(target)
    return porch


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True,
        timeout=gomodules.BUILD_SECONDS_MAX, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise gomodules.BuildFailedError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
