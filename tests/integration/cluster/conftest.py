"""A real API server with pvbus' definitions, pvbus' services on it, and fleets for them."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cli.command import REPOSITORY
from tests.integration.cluster.world import Fleet, Kubectl, Services, eventually
from tests.tools import packages
from tests.tools.clusterprograms import VERSION
from tests.tools.kubectl import KubectlUnavailableError, find_or_build
from tests.tools.realcluster import RealCluster, real_cluster_of

CRDS = sorted((REPOSITORY / "schemas" / "crds").glob("*.yaml"))
CLUSTERS_CRD = REPOSITORY / "pvbus/examples/fleet_files/manifests/10-cluster-crd.yaml"
RIGHTS = Path(__file__).with_name("rights.yaml")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[RealCluster]:
    yield from real_cluster_of([*CRDS, CLUSTERS_CRD, packages.DEFINITION])


@pytest.fixture(scope="session")
def kubectl(real_cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    try:
        binary = find_or_build(VERSION)
    except KubectlUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return Kubectl(binary, real_cluster, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def services(
    real_cluster: RealCluster, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Services]:
    """The running services, whose user has the rights of `rights.yaml` and no others."""
    kubectl("apply", "-f", RIGHTS)
    made = Services(real_cluster, tmp_path_factory.mktemp("services"))
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.kill()


@pytest.fixture
def fleet_of(kubectl: Kubectl, services: Services) -> Callable[[int], Fleet]:
    """Make a fleet of so many clusters, and wait for its variants."""

    def make(clusters: int) -> Fleet:
        made = Fleet(kubectl, f"fleet-{next(_numbers)}", clusters)
        made.apply()
        eventually(lambda: made.is_applied(clusters), lambda: f"{made.names()}\n{services.output}")
        return made

    return make
