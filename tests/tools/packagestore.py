"""The package store as an aggregated API of a real cluster, with the rights of an installation.

The processes run on this machine, so the Service that the APIService names is one of type ExternalName.
"""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pvbus.core.api.variants import PORCH_API
from pvbus.install.objects import NAMESPACE, Options
from pvbus.install.packages import API_SERVICE, SERVICE, package_store
from tests.tools.ports import free_ports
from tests.tools.realcluster import RealCluster
from tests.tools.serviceprocess import ServiceProcess, until

SERVING_NAME = f"{SERVICE}.{NAMESPACE}.svc"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices",
}
"""What of an installation counts here: the rest is about pods."""

Object = dict[str, Any]


class Replica(ServiceProcess):
    """One process of the package store, at a port of its own that it has again after a restart."""

    def __init__(self, cluster: RealCluster, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """settings: variables beside the usual ones."""
        (self.port,) = free_ports(1)
        usual = {
            "PVBUS_PACKAGES_DATA": str(folder / "data"),
            "PVBUS_SERVING_HOST": "127.0.0.1",
            "PVBUS_SERVING_PORT": str(self.port),
            "PVBUS_SERVING_NAME": SERVING_NAME,
            "PVBUS_SERVING_WRITE_AUTHORITY": "true",
            "PVBUS_POLL_SECONDS": "0.2",
            "PVBUS_PACKAGES_LOCAL": "/",
        }
        super().__init__("packages", cluster, folder, {**usual, **(settings or {})})


def install(cluster: RealCluster, port: int) -> None:
    """Create what kube-apiserver needs: the account and its rights, the APIService, and a Service for it."""
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    create(cluster, [head, *package_store(Options())])
    route(cluster, port)


def create(cluster: RealCluster, objects: Iterable[Object]) -> None:
    """Create the objects of an installation that count without pods, where they are missing."""
    for obj in objects:
        if path := PATHS.get(obj["kind"]):
            code, answer = cluster.ask("POST", path, obj)
            assert code in (201, 409), answer


def route(cluster: RealCluster, port: int) -> None:
    """Let kube-apiserver ask the process at a port."""
    services = f"/api/v1/namespaces/{NAMESPACE}/services"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {
            "type": "ExternalName",
            "externalName": "localhost",
            "ports": [{"port": port, "protocol": "TCP"}],
        },
    }
    code, _ = cluster.ask("POST", services, service)
    if code == 409:
        _change(cluster, f"{services}/{SERVICE}", lambda spec: spec["ports"][0].update(port=port))
    _change(cluster, f"{PATHS['APIService']}/{API_SERVICE}", lambda spec: spec["service"].update(port=port))


def give_authority(cluster: RealCluster, pem: bytes) -> None:
    """Add an authority to the APIService, as whoever makes a certificate does."""

    def add(spec: Object) -> None:
        present = base64.b64decode(spec.get("caBundle") or "")
        spec["caBundle"] = base64.b64encode(present + pem).decode()

    _change(cluster, f"{PATHS['APIService']}/{API_SERVICE}", add)


def _change(cluster: RealCluster, path: str, change: Any) -> None:
    while True:
        _, found = cluster.ask("GET", path)
        change(found["spec"])
        code, answer = cluster.ask("PUT", path, found)
        if code == 200:
            return
        assert code == 409, answer


def available(cluster: RealCluster) -> Object:
    """Return the condition of the APIService, {} if it has none yet."""
    _, found = cluster.ask("GET", f"{PATHS['APIService']}/{API_SERVICE}")
    return next(iter((found.get("status") or {}).get("conditions") or ()), {})


def wait_until_available(cluster: RealCluster) -> None:
    """Wait until kube-apiserver passes requests on, also kubectl's for the schemas, which takes longer."""
    until(lambda: available(cluster).get("status") == "True", lambda: available(cluster))
    schemas = f"/openapi/v3/apis/{PORCH_API}"
    until(lambda: cluster.ask("GET", schemas)[0] == 200, lambda: cluster.ask("GET", schemas))
