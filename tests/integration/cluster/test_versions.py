"""Sets that an old Porch has stored as v1alpha1, on a real API server with our definitions."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.cluster.conftest import CLUSTERS_CRD, CRDS, RIGHTS
from tests.integration.cluster.world import Kubectl, Services, eventually
from tests.tools import packages
from tests.tools.clusterprograms import ClusterUnavailableError
from tests.tools.realcluster import RealCluster, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]

SETS = "packagevariantsets.config.porch.kpt.dev"
SETS_CRD = next(file for file in CRDS if "packagevariantsets" in file.read_text().partition("spec:")[0])
OLD_SET: dict[str, Any] = {
    "apiVersion": "config.porch.kpt.dev/v1alpha1",
    "kind": "PackageVariantSet",
    "metadata": {"name": "old", "namespace": "default"},
    "spec": {
        "upstream": {"package": {"repo": "blueprints", "name": "web"}, "revision": 1},
        "targets": [{"package": {"repo": "edge", "name": "web"}}],
    },
}


def as_stored_by_an_old_porch(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition with v1alpha1 as the version that is served and stored."""
    old = copy.deepcopy(definition)
    for version in old["spec"]["versions"]:
        version["served"] = True
        version["storage"] = version["name"] == "v1alpha1"
    return old


@pytest.fixture(scope="module")
def upgraded(
    kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealCluster, Kubectl]]:
    """A cluster of its own, whose definition was the old one when the set was made, and is ours now."""
    folder = tmp_path_factory.mktemp("old")
    ours = yaml.safe_load(SETS_CRD.read_text())
    old = folder / "old.yaml"
    old.write_text(yaml.safe_dump(as_stored_by_an_old_porch(ours)))
    others = [file for file in CRDS if file != SETS_CRD]
    try:
        with running([old, *others, CLUSTERS_CRD, packages.DEFINITION]) as cluster:
            there = Kubectl(kubectl.binary, cluster, folder)
            there("create", "-f", "-", stdin=yaml.safe_dump(OLD_SET))
            there("apply", "--server-side", "--force-conflicts", "-f", SETS_CRD)
            there("apply", "-f", RIGHTS)
            yield cluster, there
    except ClusterUnavailableError as error:
        pytest.skip(str(error))


def test_a_set_in_the_old_form_has_a_condition_until_it_is_written_anew(
    upgraded: tuple[RealCluster, Kubectl], tmp_path: Path
) -> None:
    cluster, kubectl = upgraded
    definition = kubectl.json("get", "crd", SETS)
    assert set(definition["status"]["storedVersions"]) == {"v1alpha1", "v1alpha2"}
    services = Services(cluster, tmp_path)

    def stalled() -> dict[str, Any]:
        conditions = kubectl.json("get", SETS, "old").get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == "Stalled"), {})

    try:
        services.start()
        eventually(lambda: stalled().get("status") == "True", lambda: services.output)
        assert stalled()["reason"] == "ValidationError"
        assert "it has the form of v1alpha1" in stalled()["message"]
        new = {"upstream": {"repo": "blueprints", "package": "web", "revision": 1}, "targets": [
            {"repositories": [{"name": "edge"}]}]}  # fmt: skip
        kubectl("replace", "-f", "-", stdin=yaml.safe_dump(
            {**OLD_SET, "apiVersion": "config.porch.kpt.dev/v1alpha2", "spec": new}))  # fmt: skip
        eventually(lambda: stalled().get("reason") != "ValidationError", lambda: services.output)
        services.stop()
    finally:
        services.kill()
