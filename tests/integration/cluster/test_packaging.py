"""The definitions of packages in a real API server: it accepts them, and judges objects as ours does."""

from collections.abc import Iterator

import pytest

from tests.integration.cluster.world import Kubectl
from tests.tools.packagingmanifests import DEFINITIONS, contains, is_named, manifests, path, refused
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build


@pytest.fixture(scope="module")
def packages(real_cluster: RealCluster, kubectl: Kubectl) -> Iterator[RealCluster]:
    """The definitions, as long as these tests run: PackageRevision is a kind of Porch's, too."""
    for definition in DEFINITIONS:
        real_cluster.define(definition)
    yield real_cluster
    kubectl("delete", "customresourcedefinitions", *(each["metadata"]["name"] for each in DEFINITIONS))


def test_every_manifest_applies_unchanged(packages: RealCluster) -> None:
    """X1, C1, C2: strictly, and nothing that it says is lost."""
    for manifest in manifests():
        code, answer = packages.ask("POST", f"{path(manifest)}?fieldValidation=Strict", manifest)
        assert code == 201, (manifest["kind"], answer)
        assert contains(answer, manifest), manifest["metadata"]["name"]


def test_what_means_nothing_or_two_things_is_refused(packages: RealCluster) -> None:
    """X1, C1, C2: with the same field and reason as by the embedded server."""
    for case in refused():
        code, answer = packages.ask("POST", path(case.object), case.object)
        assert code == 422, (case, answer)
        assert is_named(case, answer), (case, answer)
