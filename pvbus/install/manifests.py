"""All objects of an installation, in the order in which an API server takes them.

KEDA sets the number of workers by the work that waits, for which it asks Prometheus: records that no worker
has read and keys that no worker has decided. Kafka's own number, of records behind the committed offset, is
not used: it counts the marks that end transactions, and it does not see the keys that are dirty after a
restart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pvbus.core.api.crds import cluster_crds, promotion_crds
from pvbus.core.kernel.rights import PLATFORM_KINDS, PLATFORM_RIGHTS, PROMOTION_KINDS, PROMOTION_RIGHTS, Right
from pvbus.core.kernel.topics import PARTITIONS, PLATFORM, PROMOTION
from pvbus.install.dashboard import config_map
from pvbus.install.monitoring import prometheus_rule, service_monitor
from pvbus.install.network import api_server_policies, policies
from pvbus.install.objects import Object, Options, new, service_name
from pvbus.install.packagekinds import packaging_crds
from pvbus.install.packages import package_store
from pvbus.install.roles import (
    accounts,
    bindings,
    namespaced_roles,
    observing,
    observing_in,
    roles,
)
from pvbus.install.workloads import REPLICAS, settings, workloads

PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""The Service that prometheus-operator makes. Another one is a patch of the ScaledObjects."""
POLL_SECONDS = 30
COOLDOWN_SECONDS = 600
"""A worker that leaves makes others restore its partitions: not for a short pause."""

PER_WORKER: Mapping[str, int] = {"render": 2_000, "inject": 500, "conditions": 2_000}
"""Keys that one worker may have waiting. Render and conditions make some hundred a second, inject waits for
the package store. Ingest and unroll are not scaled: their work is by kind and by set, and the first worker of
a kind or set does it alone."""


def scaled_objects(options: Options) -> Iterator[Object]:
    for service, keys in PER_WORKER.items():
        yield {
            **new(
                "keda.sh/v1alpha1", "ScaledObject", service_name(service), options.namespace, service=service
            ),
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "name": service_name(service),
                },
                "minReplicaCount": REPLICAS,
                "maxReplicaCount": PARTITIONS,  # more would be spares
                "pollingInterval": POLL_SECONDS,
                "fallback": {"failureThreshold": 3, "replicas": REPLICAS},
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior()}},
                "triggers": [_trigger(service, keys)],
            },
        }


def waiting(service: str) -> str:
    """Return the PromQL of what waits for a service."""
    labels = f'{{service="{service}"}}'
    return f"sum(pvbus_lease_lag_records{labels}) + sum(pvbus_lease_dirty_keys{labels})"


def _trigger(service: str, keys: int) -> Object:
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": PROMETHEUS, "query": waiting(service), "threshold": str(keys)},
    }


def _behavior() -> Object:
    step = {"type": "Pods", "value": 1, "periodSeconds": COOLDOWN_SECONDS}
    return {"scaleDown": {"stabilizationWindowSeconds": COOLDOWN_SECONDS, "policies": [step]}}


WITH_PORCH, STANDALONE = "with-porch", "standalone"
OVERLAYS = (WITH_PORCH, STANDALONE)
MONITORING, AUTOSCALING, PROMOTING, PACKAGING = "monitoring", "autoscaling", "promotion", "platform"
COMPONENTS = (MONITORING, AUTOSCALING, PROMOTING, PACKAGING)


def definitions() -> Iterator[Object]:
    """Yield the CustomResourceDefinitions. An installation with Porch has Porch's."""
    yield from cluster_crds()


def namespace(options: Options) -> Iterator[Object]:
    """Yield the namespace, in which Pod Security allows nothing but restricted pods."""
    found = new("v1", "Namespace", options.namespace)
    for mode in ("enforce", "audit", "warn"):
        found["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"] = "restricted"
    yield found


def rbac(options: Options) -> Iterator[Object]:
    yield from accounts(options.namespace)
    if options.namespaces:
        yield from namespaced_roles(options.namespaces, options.namespace)
    else:
        yield from roles()
        yield from bindings(options.namespace)


def configuration(options: Options) -> Iterator[Object]:
    yield settings(options)


def monitoring(options: Options) -> Iterator[Object]:
    yield service_monitor(options.namespace)
    yield prometheus_rule(options.namespace, options.runbooks)
    yield config_map(options.namespace)


def promotion_rights(options: Options) -> Iterator[Object]:
    """Yield the rights of these services, and those of ingest to the kinds that promote asks it for."""
    return _rights(options, PROMOTION, PROMOTION_RIGHTS, PROMOTION_KINDS)


def promotion(options: Options) -> Iterator[Object]:
    """Yield the services that propose drafts, with their kinds and rights."""
    yield from promotion_crds()
    yield from accounts(options.namespace, PROMOTION)
    yield from promotion_rights(options)
    yield from api_server_policies(options, PROMOTION_RIGHTS)
    yield from workloads(options, PROMOTION)


def platform_rights(options: Options) -> Iterator[Object]:
    """Yield the rights of resolve and establish, and those of ingest to the kinds that resolve asks it for.

    Crossplane's kinds have no namespace: an installation that is limited to some has Carvel's alone.
    """
    return _rights(options, PLATFORM, PLATFORM_RIGHTS, PLATFORM_KINDS)


def _rights(
    options: Options, services: Sequence[str], rights: Mapping[str, tuple[Right, ...]], kinds: Sequence[Right]
) -> Iterator[Object]:
    if options.namespaces:
        yield from namespaced_roles(options.namespaces, options.namespace, services)
        for right in kinds:
            if right.is_namespaced:
                yield from observing_in(options.namespaces, options.namespace, right)
        return
    yield from roles(rights)
    yield from bindings(options.namespace, rights)
    yield from (observing(*right[:3]) for right in kinds)


def platform(options: Options) -> Iterator[Object]:
    """Yield the services that install packages, with the kinds that no other project has, and rights."""
    yield from packaging_crds()
    yield from accounts(options.namespace, PLATFORM)
    yield from platform_rights(options)
    yield from api_server_policies(options, PLATFORM_RIGHTS)
    yield from workloads(options, PLATFORM)


BASE: Mapping[str, Callable[[Options], Iterator[Object]]] = {
    "namespace": namespace,
    "rbac": rbac,
    "settings": configuration,
    "network": policies,
    "workloads": workloads,
}
"""The parts of every installation, in order."""
PARTS: Mapping[str, Callable[[Options], Iterator[Object]]] = {
    MONITORING: monitoring,
    AUTOSCALING: scaled_objects,
    PROMOTING: promotion,
    PACKAGING: platform,
}


def objects(overlay: str, options: Options, components: tuple[str, ...] = ()) -> Iterator[Object]:
    """Yield every object of an installation. Raises UsageError if the bus is none of a Kafka."""
    if AUTOSCALING in components:
        options = options._replace(scaled=frozenset(PER_WORKER))
    if overlay == STANDALONE:
        yield from definitions()
    for part in BASE.values():
        yield from part(options)
    if overlay == STANDALONE:
        yield from package_store(options)
    for component in components:
        yield from PARTS[component](options)
