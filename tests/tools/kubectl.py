"""Finds or builds the real kubectl of a version. `python -m tests.tools.kubectl 1.36.3` prints its path.

A kubectl on PATH is taken when its minor version is the one asked for. Otherwise it is built from the
Go modules, once, into a cache folder outside the repository: `PVBUS_CACHE`, else ~/.cache/pvbus.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GO_FOLDER = "/usr/local/go/bin"
"""Where Go's own archive is unpacked to, which is not on every PATH."""

BUILD_SECONDS_MAX = 3600
"""A cold build takes about 5 minutes on two free cores; machines that run tests are rarely free."""

_STAGING = re.compile(r"^\s*(?:replace\s+)?(k8s\.io/[\w-]+)\s+=>\s+\./staging/", re.MULTILINE)


class KubectlUnavailableError(Exception):
    """No kubectl of this version, and why, with what would help."""


def find_or_build(version: str) -> Path:
    """Return the path of a kubectl whose minor version is that of `version` (such as "1.36.3")."""
    built = cached(version)
    if built.exists():
        return built
    return on_path(version) or build(version)


def cached(version: str) -> Path:
    root = os.environ.get("PVBUS_CACHE") or Path.home() / ".cache" / "pvbus"
    return Path(root) / f"kubectl-{version}" / "kubectl"


def on_path(version: str) -> Path | None:
    """Return a kubectl on PATH of the same major and minor version.

    Cloud SDKs put a dispatcher there, which runs the `kubectl.MINOR` beside it that fits the server;
    that one is asked directly.
    """
    found = shutil.which("kubectl")
    if found is None:
        return None
    main = Path(found)
    candidates = (main.resolve().with_name(f"kubectl.{_minor(version)}"), main)
    return next((path for path in candidates if path.exists() and _reports(path, version)), None)


def _reports(binary: Path, version: str) -> bool:
    answer = subprocess.run(
        [binary, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=60, check=False
    )
    if answer.returncode != 0:
        return False
    actual = json.loads(answer.stdout)["clientVersion"]["gitVersion"]
    return _minor(actual) == _minor(version) and not actual.endswith("-dispatcher")


def build(version: str) -> Path:
    """Build kubectl from its Go modules; the result appears in the cache at once and complete."""
    go = shutil.which("go") or shutil.which("go", path=GO_FOLDER)
    if go is None:
        raise KubectlUnavailableError(
            f"kubectl {version} is neither on PATH nor in {cached(version).parent}, and cannot be built "
            f"without Go: install kubectl {_minor(version)}, or Go 1.24 or newer (https://go.dev/dl), "
            "and run the tests again"
        )
    target = cached(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes, one builds
        if not target.exists():
            _build(go, version, target)
    return target


def _build(go: str, version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
        module = Path(folder)
        _write_module(go, module, version)
        binary = module / "kubectl"
        flags = f"-s -w {_version_flags(version)}"
        _run(
            [go, "build", "-mod=mod", "-ldflags", flags, "-o", str(binary), "k8s.io/kubernetes/cmd/kubectl"],
            module,
        )
        binary.replace(target)


def _write_module(go: str, module: Path, version: str) -> None:
    """Write a go.mod that replaces the staging folders of k8s.io/kubernetes by their published modules."""
    answer = _run([go, "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], module)
    upstream = Path(json.loads(answer)["GoMod"]).read_text(encoding="utf-8")
    libraries = "v0." + version.split(".", 1)[1]
    lines = ["module kubectl-build", "", f"require k8s.io/kubernetes v{version}", ""]
    lines += [f"replace {name} => {name} {libraries}" for name in _STAGING.findall(upstream)]
    go_line = re.search(r"^go .*$", upstream, re.MULTILINE)
    lines += ["", go_line.group(0) if go_line else "go 1.24"]
    (module / "go.mod").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (module / "tools.go").write_text(
        '//go:build tools\n\npackage tools\n\nimport _ "k8s.io/kubernetes/cmd/kubectl"\n', encoding="utf-8"
    )


def _version_flags(version: str) -> str:
    major, minor, _ = version.split(".", 2)
    package = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X {package}.{name}={value}" for name, value in values.items())


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "auto"), "CGO_ENABLED": "0"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    if result.returncode != 0:
        raise KubectlUnavailableError(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")
    return result.stdout


def _minor(version: str) -> str:
    return ".".join(version.removeprefix("v").split(".")[:2])


if __name__ == "__main__":
    try:
        print(find_or_build(sys.argv[1] if len(sys.argv) > 1 else "1.36.3"))
    except KubectlUnavailableError as error:
        sys.exit(str(error))
