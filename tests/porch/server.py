"""Porch's own server as the API of packages on a cluster, with its cache in custom resources."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pvbus.install.objects import NAMESPACE
from pvbus.install.packages import API_SERVICE, SERVICE
from pvbus.ports.cluster import Object
from tests.porch.programs import Porch
from tests.tools.packagestore import create, route, wait_until_available
from tests.tools.ports import free_ports
from tests.tools.realcluster import ADMINS, Program, RealCluster
from tests.tools.serviceprocess import until

CONFIG = "/apis/config.porch.kpt.dev/v1alpha1"
PACKAGES = "/apis/porch.kpt.dev/v1alpha1"
NOBODY = "127.0.0.1:1"
"""Where functions would run. The server is not asked for any."""


class PorchServer:
    """What Porch's server reads in the git repositories that are registered with it."""

    def __init__(self, cluster: RealCluster, program: Program) -> None:
        self._cluster = cluster
        self._program = program

    def register(self, repository: Object) -> None:
        """Create a Repository, and wait until the server has read it."""
        namespace, name = repository["metadata"]["namespace"], repository["metadata"]["name"]
        path = f"{CONFIG}/namespaces/{namespace}/repositories"
        create(self._cluster, [_namespace(namespace)])
        code, answer = self._cluster.ask("POST", path, repository)
        assert code == 201, answer
        until(
            lambda: self._condition(f"{path}/{name}").get("status") == "True",
            lambda: (self._condition(f"{path}/{name}"), self._program.tail()),
        )

    def _condition(self, path: str) -> Object:
        _, found = self._cluster.ask("GET", path)
        conditions = (found.get("status") or {}).get("conditions") or ()
        return next((dict(each) for each in conditions if each["type"] == "Ready"), {})

    def objects(self, plural: str, namespace: str) -> list[Object]:
        """Return the objects of a kind of packages.

        plural: `packagerevisions` or `packagerevisionresources`
        """
        code, found = self._cluster.ask("GET", f"{PACKAGES}/namespaces/{namespace}/{plural}")
        assert code == 200, (found, self._program.tail())
        items: list[Object] = found["items"]
        return items


@contextmanager
def porch_server(cluster: RealCluster, porch: Porch, folder: Path) -> Iterator[PorchServer]:
    """Run the server behind a control plane. folder: for its cache and its log"""
    (port,) = free_ports(1)
    arguments = (
        f"--kubeconfig={cluster.kubeconfig_of('porch-server', ADMINS)}",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--cache-directory={folder / 'cache'}",
        "--cache-type=CR",
        f"--function-runner={NOBODY}",
    )
    program = Program(porch.server, folder, arguments)
    create(cluster, [_namespace(NAMESPACE), _api()])
    route(cluster, port)
    program.start()
    try:
        wait_until_available(cluster)
        yield PorchServer(cluster, program)
    finally:
        program.kill()


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _api() -> Object:
    """Return the APIService of Porch's own installation."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API_SERVICE},
        "spec": {
            "insecureSkipTLSVerify": True,
            "group": "porch.kpt.dev",
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "service": {"name": SERVICE, "namespace": NAMESPACE},
            "version": "v1alpha1",
        },
    }
