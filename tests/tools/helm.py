"""Finds Helm, or builds it from its Go modules, once. `python -m tests.tools.helm` prints its path."""

import shutil
import sys
from pathlib import Path

from tests.tools import gomodules

VERSION = "3.22.0"


class HelmUnavailableError(Exception):
    """There is no Helm, and none can be built; the text says what to install."""


def find_or_build() -> Path:
    """Return the path of a Helm 3: the built one, else that on PATH, else a new build."""
    target = gomodules.cached("helm", VERSION)
    if target.exists():
        return target
    if found := shutil.which("helm"):
        return Path(found)
    compiler = gomodules.go()
    if compiler is None:
        raise HelmUnavailableError(
            f"helm is neither on PATH nor in {target.parent}, and cannot be built without Go: install "
            "Helm 3, or Go 1.26 or newer (https://go.dev/dl)"
        )
    try:
        gomodules.build(compiler, gomodules.helm(VERSION), target)
    except gomodules.BuildFailedError as error:
        raise HelmUnavailableError(str(error)) from error
    return target


if __name__ == "__main__":
    try:
        print(find_or_build())
    except HelmUnavailableError as unavailable:
        sys.exit(str(unavailable))
