"""The kinds that a cluster in memory serves: built-in ones, and those that definitions add."""

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.kernel.kinds import Kind
from pvbus.ports.cluster import Object, Resource

CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
BUILT_IN = {
    "": ("v1", ("Namespace", "ConfigMap", "Secret", "Event", "Pod", "Service", "ServiceAccount", "Node")),
    "apps": ("v1", ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ControllerRevision")),
    "batch": ("v1", ("Job", "CronJob")),
    "rbac.authorization.k8s.io": ("v1", ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")),
    "networking.k8s.io": ("v1", ("NetworkPolicy", "Ingress")),
    "apiextensions.k8s.io": ("v1", ("CustomResourceDefinition",)),
    CONFIG_GROUP: ("v1alpha1", ("PackageVariant", "Repository")),
    PORCH_GROUP: ("v1alpha1", ("PackageRevision", "PackageRevisionResources")),
}
CLUSTER_SCOPED = {"Namespace", "Node", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}


class ServedKinds:
    """The part of `pvbus.ports.cluster.Cluster` that tells which kinds are served.

    unserved: the requested kinds that are not served
    """

    def __init__(self) -> None:
        self.unserved: set[Kind] = set()
        self._resources: dict[Kind, dict[str, Resource]] = {}
        for group, (version, kinds) in BUILT_IN.items():
            for kind in kinds:
                self._serve(group, version, kind, namespaced=kind not in CLUSTER_SCOPED)
        self._serve(CONFIG_GROUP, "v1alpha2", "PackageVariantSet")

    def _serve(self, group: str, version: str, kind: str, *, namespaced: bool = True) -> None:
        self.serve(Resource(group, version, kind, f"{kind.lower()}s", namespaced))

    def serve(self, resource: Resource) -> None:
        """Serve a kind like another server."""
        self._resources.setdefault(Kind(resource.group, resource.kind), {})[resource.version] = resource

    def _ensure_served(self, kind: Kind, version: str) -> Resource:
        """Return how a version of a kind is served; one that is not yet has namespaces from now on."""
        if version not in self._resources.get(kind, {}):
            self._serve(kind.group, version, kind.kind)
        return self._resources[kind][version]

    def _serve_defined(self, crd: Object) -> None:
        spec = crd["spec"]
        is_namespaced = spec.get("scope", "Namespaced") == "Namespaced"
        for served in spec.get("versions", ()):
            self._serve(spec["group"], served["name"], spec["names"]["kind"], namespaced=is_namespaced)

    def _drop(self, kind: Kind) -> None:
        self._resources.pop(kind, None)

    def serves(self, kind: Kind) -> bool:
        return bool(self._resources.get(kind))

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        served = self._resources.get(kind, {})
        if not served:
            self.unserved.add(kind)
        if version:
            return served.get(version)
        return next(iter(served.values()), None)

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        if not self._resources.get(kind):
            self.unserved.add(kind)
        return tuple(self._resources.get(kind, {}))

    def forget_resources(self) -> None:
        return
