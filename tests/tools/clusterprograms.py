"""Finds or builds etcd, kube-apiserver and kube-controller-manager.

`KUBEBUILDER_ASSETS` names a folder that has them, as for controller-runtime's envtest, which brings the first
two; a controller manager of the same version is built where that folder has none. Without the variable, all
are built from their Go modules, once (`tests.tools.gomodules`).
`python -m tests.tools.clusterprograms` builds what is missing and prints the paths.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.tools import gomodules

VERSION = "1.36.3"
ETCD_VERSION = "3.6.5"
ETCD, APISERVER, CONTROLLERS = "etcd", "kube-apiserver", "kube-controller-manager"


class ClusterUnavailableError(Exception):
    """The programs cannot be had here; the text is one line that says what to install."""


class Programs(NamedTuple):
    """The paths of the programs."""

    etcd: Path
    apiserver: Path
    controllers: Path


def find_or_build() -> Programs:
    """Return the programs. Raises ClusterUnavailableError."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    if not given:
        return Programs(_built(ETCD, ETCD_VERSION), _built(APISERVER, VERSION), _built(CONTROLLERS, VERSION))
    etcd, apiserver, controllers = (Path(given) / name for name in (ETCD, APISERVER, CONTROLLERS))
    for program in (etcd, apiserver):
        if not program.exists():
            raise ClusterUnavailableError(
                f"KUBEBUILDER_ASSETS names {given}, which has no {program.name}: put it there, or unset the "
                "variable to have it built with Go"
            )
    if not controllers.exists():
        controllers = _built(CONTROLLERS, version_of(apiserver))
    return Programs(etcd, apiserver, controllers)


def to_build() -> list[str]:
    """Return the names of the programs that `find_or_build` is going to build, which takes minutes."""
    if os.environ.get("KUBEBUILDER_ASSETS") or gomodules.go() is None:
        return []
    versions = {ETCD: ETCD_VERSION, APISERVER: VERSION, CONTROLLERS: VERSION}
    return [name for name, version in versions.items() if not gomodules.cached(name, version).exists()]


def _built(name: str, version: str) -> Path:
    target = gomodules.cached(name, version)
    if target.exists():
        return target
    compiler = gomodules.go()
    if compiler is None:
        raise ClusterUnavailableError(
            f"{name} {version} is not in {target.parent} and is built with Go, which is missing: install Go "
            "1.26 or newer (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder that has etcd, "
            "kube-apiserver and kube-controller-manager"
        )
    source = gomodules.etcd(version) if name == ETCD else gomodules.kubernetes(name, version)
    try:
        gomodules.build(compiler, source, target)
    except gomodules.BuildFailedError as error:
        last = str(error).strip().splitlines()[-1]
        raise ClusterUnavailableError(
            f"{name} {version} could not be built with {compiler} (it needs Go 1.26 or newer and its module "
            f"proxy): {last}"
        ) from error
    return target


def version_of(apiserver: Path) -> str:
    """Return the version of Kubernetes that a kube-apiserver says it has."""
    answer = subprocess.run([apiserver, "--version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.fullmatch(r"Kubernetes v(\d+\.\d+\.\d+)\S*", answer.stdout.strip())
    if found is None:
        raise ClusterUnavailableError(f"{apiserver} --version gives no version: {answer.stdout.strip()}")
    return found[1]


if __name__ == "__main__":
    try:
        print(*find_or_build(), sep="\n")
    except ClusterUnavailableError as error:
        sys.exit(str(error))
