"""Builds programs from their Go modules, each once, into a cache folder outside the repository.

The folder is `PVBUS_CACHE`, else ~/.cache/pvbus. A program appears there at once and complete.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

GO_FOLDER = "/usr/local/go/bin"
"""Where Go's own archive is unpacked to, which is not on every PATH."""

BUILD_SECONDS_MAX = 3600
"""A cold build takes some minutes on two free cores; machines that run tests are rarely free."""

_STAGING = re.compile(r"^\s*(?:replace\s+)?(k8s\.io/[\w-]+)\s+=>\s+\./staging/", re.MULTILINE)


class BuildFailedError(Exception):
    """Go could not build a program; the text has the command and the end of its output."""


class Source(NamedTuple):
    """A program's source. package: its `main`. describe: writes a go.mod, returns the linker's flags."""

    package: str
    describe: Callable[[str, Path], str]


def cache_folder() -> Path:
    """Return the folder of programs that are built or fetched once."""
    root = os.environ.get("PVBUS_CACHE") or Path.home() / ".cache" / "pvbus"
    return Path(root)


def cached(name: str, version: str) -> Path:
    """Return the path of a built program, whether or not it is there."""
    return cache_folder() / f"{name}-{version}" / name


def go() -> str | None:
    """Return the path of Go, None if this machine has none."""
    return shutil.which("go") or shutil.which("go", path=GO_FOLDER)


def build(compiler: str, source: Source, target: Path) -> None:
    """Build a program, unless it is there or another process builds it now. Raises BuildFailedError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
            module, binary = Path(folder), Path(folder) / target.name
            flags = f"-s -w {source.describe(compiler, module)}"
            command = [compiler, "build", "-mod=mod", "-ldflags", flags, "-o", str(binary), source.package]
            _run(command, module)
            binary.replace(target)


def kubernetes(command: str, version: str) -> Source:
    """Return the source of a command of k8s.io/kubernetes."""
    package = f"k8s.io/kubernetes/cmd/{command}"

    def describe(compiler: str, module: Path) -> str:
        """Replace the staging folders of k8s.io/kubernetes by their published modules."""
        answer = _run([compiler, "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], module)
        upstream = Path(json.loads(answer)["GoMod"]).read_text(encoding="utf-8")
        libraries = "v0." + version.split(".", 1)[1]
        go_line = re.search(r"^go .*$", upstream, re.MULTILINE)
        _write(
            module,
            package,
            f"require k8s.io/kubernetes v{version}",
            *(f"replace {name} => {name} {libraries}" for name in _STAGING.findall(upstream)),
            go_line.group(0) if go_line else "go 1.24",
        )
        return _version_flags(version)

    return Source(package, describe)


def _version_flags(version: str) -> str:
    major, minor, _ = version.split(".", 2)
    package = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X {package}.{name}={value}" for name, value in values.items())


def etcd(version: str) -> Source:
    """Return the source of etcd's server."""
    package = "go.etcd.io/etcd/server/v3"

    def describe(compiler: str, module: Path) -> str:
        _write(module, package, f"require {package} v{version}", "go 1.24")
        return ""

    return Source(package, describe)


def helm(version: str) -> Source:
    """Return the source of Helm."""
    package = "helm.sh/helm/v3/cmd/helm"

    def describe(compiler: str, module: Path) -> str:
        _write(module, package, f"require helm.sh/helm/v3 v{version}", "go 1.24")
        return f"-X helm.sh/helm/v3/internal/version.version=v{version}"

    return Source(package, describe)


def registry(version: str) -> Source:
    """Return the source of Distribution's registry, the reference implementation."""
    package = "github.com/distribution/distribution/v3/cmd/registry"

    def describe(compiler: str, module: Path) -> str:
        _write(module, package, f"require github.com/distribution/distribution/v3 v{version}", "go 1.24")
        return f"-X github.com/distribution/distribution/v3/version.version=v{version}"

    return Source(package, describe)


def download(compiler: str, module: str, version: str) -> Path:
    """Return the folder with the files of a module. Raises BuildFailedError."""
    with tempfile.TemporaryDirectory() as folder:
        answer = _run([compiler, "mod", "download", "-json", f"{module}@v{version}"], Path(folder))
    return Path(json.loads(answer)["Dir"])


def _write(module: Path, package: str, *lines: str) -> None:
    """Write a module whose only content is that it needs the package."""
    (module / "go.mod").write_text("\n".join(["module build", "", *lines, ""]), encoding="utf-8")
    (module / "tools.go").write_text(
        f'//go:build tools\n\npackage tools\n\nimport _ "{package}"\n', encoding="utf-8"
    )


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "auto"), "CGO_ENABLED": "0"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise BuildFailedError(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")
    return result.stdout
