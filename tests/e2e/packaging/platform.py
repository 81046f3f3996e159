"""The example `platform` in a data folder, asked with kubectl as a person asks."""

import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.platform.packaging.references import digest_of_files
from pvbus.examples import platform
from pvbus.examples.platform import source_of
from tests.e2e.cli.command import Running, running
from tests.e2e.kubectl.conftest import VERSIONS
from tests.tools.kubectl import KubectlUnavailableError, find_or_build
from tests.tools.pace import patience

NAMESPACE = "platform"
SECONDS_MAX = patience(90.0)
"""Many times what an idle machine needs; the others that run tests on this one take their share."""
LOOK_SECONDS = 0.2
DNS = Path(platform.__file__).parent / "platform_files" / "packages" / "dns" / "v0.3.0"
INSTALLED = {
    "shop": "v1.0.0",
    "cluster": "v1.0.0",
    "network": "v1.0.0",
    "database": "v2.0.0",
    "dns": digest_of_files(
        {each: (DNS / each).read_bytes() for each in ("crossplane.yaml", "crds/zones.yaml")}
    ),
    "sizes": "v0.2.0",
    "legacy": "v0.1.0",
    "portal": "1.0.0",
    "ingress": "1.2.0",
    "certs": "2.1.0",
    "metrics": "0.9.0",
}
"""The version of each package after the installation. Nobody asks for the twelfth, `rival`."""
UPGRADED = {**INSTALLED, "shop": "v1.1.0", "cluster": "v1.1.0", "network": "v1.1.0"}
"""After the upgrade of `shop`, which needs the other two."""
CREATED = {"cluster", "network", "database", "dns", "sizes", "ingress", "certs", "metrics"}
"""Those that no user asked for."""
FAMILIES = (
    "providers.pkg.crossplane.io",
    "configurations.pkg.crossplane.io",
    "functions.pkg.crossplane.io",
    "packageinstalls.packaging.carvel.dev",
)
REVISIONS = (
    "providerrevisions.pkg.crossplane.io",
    "configurationrevisions.pkg.crossplane.io",
    "functionrevisions.pkg.crossplane.io",
)
OBJECTS = (
    "customresourcedefinitions",
    "compositions.apiextensions.crossplane.io",
    "compositeresourcedefinitions.apiextensions.crossplane.io",
    "configmaps",
)
"""Kinds of what the packages bring."""

Object = dict[str, Any]


def kubectl_or_skip() -> Path:
    found = shutil.which("kubectl")
    try:
        return Path(found) if found else find_or_build(VERSIONS[-1])
    except KubectlUnavailableError as exc:
        pytest.skip(f"packages are looked at with kubectl: {exc}")


class Platform:
    """A folder in which `pvbus up --example platform` runs or ran."""

    def __init__(self, folder: Path, kubectl: Path, kubeconfig: Path | None = None) -> None:
        """kubeconfig: of another API server than that of the folder."""
        self.folder = folder
        self.data = folder / ".pvbus"
        self.repository = self.data / "example" / "platform.git"
        self._kubectl = kubectl
        self._kubeconfig = kubeconfig or self.data / "kubeconfig"

    @contextmanager
    def up(self, *arguments: str) -> Iterator[Running]:
        with running("up", "--example", "platform", "--no-web", *arguments, cwd=self.folder) as process:
            process.wait_for("manifests: ")
            yield process

    # ------------------------------------------------------------ kubectl

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self._kubectl, f"--namespace={NAMESPACE}", *arguments],
            input=stdin,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "KUBECONFIG": str(self._kubeconfig),
            },
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def items(self, *kinds: str) -> list[Object]:
        """Return all objects of these kinds in all namespaces."""
        found = json.loads(self.kubectl("get", ",".join(kinds), "--all-namespaces", "-o", "json"))
        return list(found["items"])

    def get(self, kind: str, name: str) -> Object:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    def patch(self, kind: str, name: str, spec: Object) -> None:
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps({"spec": spec}))

    # ------------------------------------------------------------ packages

    def image(self, folder: str, tag: str = "") -> str:
        return f"{source_of(self.repository)}//{folder}{tag and ':'}{tag}"

    def installs(self) -> dict[str, Object]:
        """Return the installs by the last part of their package's name."""
        return {package_of(each): each for each in self.items(*FAMILIES)}

    def versions(self) -> dict[str, str]:
        """Return the version that each healthy install reports."""
        return {name: version_of(each) for name, each in self.installs().items() if is_ready(each)}

    def revisions(self, package: str) -> dict[int, str]:
        """Return the desired state of each revision of a package, by number."""
        found = self.items(*REVISIONS)
        return {
            each["spec"]["revision"]: each["spec"]["desiredState"]
            for each in found
            if folder_of(each["spec"]["image"]) == package
        }

    def revision(self, package: str, number: int) -> Object:
        return next(
            each
            for each in self.items(*REVISIONS)
            if folder_of(each["spec"]["image"]) == package and each["spec"]["revision"] == number
        )

    def brought(self) -> dict[str, Object]:
        """Return what packages may bring, by kind and name."""
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in self.items(*OBJECTS)}

    def until(
        self, wanted: Callable[[], bool], process: Running | None = None, *, seconds: float = SECONDS_MAX
    ) -> None:
        """Wait until something is so; what is there instead is in the message."""
        deadline = time.monotonic() + seconds
        while not wanted():
            if process is not None:
                assert process.process.poll() is None, process.output
            assert time.monotonic() < deadline, self.state() + (process.output if process else "")
            time.sleep(LOOK_SECONDS)

    def until_installed(self, versions: dict[str, str], process: Running | None = None) -> None:
        self.until(lambda: self.versions() == versions, process)

    def state(self) -> str:
        """Return all installs and revisions, for a message."""
        found = self.items(*FAMILIES, *REVISIONS)
        return "".join(f"{shown(each)}\n" for each in found)

    def written(self) -> dict[str, str]:
        """Return the resourceVersion of every object, and the last one that was given, from the server's
        file."""
        with closing(sqlite3.connect(self._database)) as objects:
            rows = objects.execute("SELECT kind, namespace, name, rv FROM objects")
            found = {f"{kind} {namespace}/{name}": str(version) for kind, namespace, name, version in rows}
            return {**found, "last": str(objects.execute("SELECT rv FROM revision").fetchone()[0])}

    def generations(self) -> dict[str, int]:
        """Return the generation of every object: it rises with each change of a spec."""
        with closing(sqlite3.connect(self._database)) as objects:
            rows = objects.execute("SELECT kind, namespace, name, data FROM objects")
            return {
                f"{kind} {namespace}/{name}": json.loads(data)["metadata"].get("generation", 0)
                for kind, namespace, name, data in rows
            }

    @property
    def _database(self) -> Path:
        return self.data / "apiserver" / "objects.db"

    def empty_bus(self) -> None:
        for file in self.data.glob("bus.db*"):
            file.unlink()


def what_a_person_deletes_comes_back(platform: Platform, process: Running | None = None) -> None:
    """The definition of a kind, as soon as its deletion is seen.

    kubectl would wait for the name to be free, and may miss the moment in which it is.
    """
    name = "networks.network.example.dev"
    before = uid_of(platform, name)
    platform.kubectl("delete", "customresourcedefinition", name, "--wait=false")
    platform.until(lambda: uid_of(platform, name) not in ("", before), process, seconds=60.0)


def uid_of(platform: Platform, definition: str) -> str:
    """Return the uid of a definition, "" if it is not there."""
    found = platform.run("get", "customresourcedefinition", definition, "-o", "jsonpath={.metadata.uid}")
    return found.stdout


def shown(obj: Object) -> str:
    """Return what matters of an install or a revision in a line."""
    spec, found = obj["spec"], obj.get("status", {}).get("conditions", [])
    conditions = [f"{each['type']}={each['status']} {each.get('message', '')}" for each in found]
    facts = [spec.get("image") or spec.get("package") or "", spec.get("desiredState", "")]
    return " ".join([obj["kind"], obj["metadata"]["name"], *facts, *conditions])


def folder_of(image: str) -> str:
    """Return the last part of an image's name: the folder, or the repository without what it is in."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def package_of(install: Object) -> str:
    if install["kind"] == "PackageInstall":
        return str(install["spec"]["packageRef"]["refName"]).partition(".")[0]
    return folder_of(install["spec"]["package"])


def conditions_of(obj: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in obj.get("status", {}).get("conditions", [])}


def message_of(obj: Object, type_: str) -> str:
    found = obj.get("status", {}).get("conditions", [])
    return next((each.get("message", "") for each in found if each["type"] == type_), "")


def is_ready(install: Object) -> bool:
    found = conditions_of(install)
    if install["kind"] == "PackageInstall":
        return found.get("ReconcileSucceeded") == "True"
    return found.get("Installed") == found.get("Healthy") == "True"


def version_of(install: Object) -> str:
    if install["kind"] == "PackageInstall":
        return str(install["status"].get("version", ""))
    identifier = str(install["status"].get("currentIdentifier", ""))
    return identifier.partition("@")[2] or identifier.rpartition(":")[2]


def owners_of(obj: Object) -> dict[str, bool]:
    """Return the owners of an object by name, and whether they control it."""
    found = obj["metadata"].get("ownerReferences", [])
    return {each["name"]: bool(each.get("controller")) for each in found}


def is_created(install: Object) -> bool:
    """Return whether another install created this one."""
    return any(name.endswith("/owner") for name in install["metadata"].get("annotations", {}))
