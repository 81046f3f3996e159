"""Finds or builds the real kubectl of a version. `python -m tests.tools.kubectl 1.36.3` prints its path.

A kubectl on PATH is taken when its minor version is the one asked for. Otherwise it is built from the
Go modules, once (`tests.tools.gomodules`).
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tools import gomodules


class KubectlUnavailableError(Exception):
    """No kubectl of this version, and why, with what would help."""


def find_or_build(version: str) -> Path:
    """Return the path of a kubectl whose minor version is that of `version` (such as "1.36.3")."""
    built = cached(version)
    if built.exists():
        return built
    return on_path(version) or build(version)


def cached(version: str) -> Path:
    return gomodules.cached("kubectl", version)


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
    """Build kubectl from its Go modules."""
    target = cached(version)
    compiler = gomodules.go()
    if compiler is None:
        raise KubectlUnavailableError(
            f"kubectl {version} is neither on PATH nor in {target.parent}, and cannot be built "
            f"without Go: install kubectl {_minor(version)}, or Go 1.24 or newer (https://go.dev/dl), "
            "and run the tests again"
        )
    try:
        gomodules.build(compiler, gomodules.kubernetes("kubectl", version), target)
    except gomodules.BuildFailedError as error:
        raise KubectlUnavailableError(str(error)) from error
    return target


def _minor(version: str) -> str:
    return ".".join(version.removeprefix("v").split(".")[:2])


if __name__ == "__main__":
    try:
        print(find_or_build(sys.argv[1] if len(sys.argv) > 1 else "1.36.3"))
    except KubectlUnavailableError as error:
        sys.exit(str(error))
