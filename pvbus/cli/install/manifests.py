"""All objects of an installation, in the order in which an API server takes them."""

from collections.abc import Callable, Iterator, Mapping

from pvbus.cli.install.dashboard import config_map
from pvbus.cli.install.monitoring import prometheus_rule, service_monitor
from pvbus.cli.install.network import policies
from pvbus.cli.install.objects import Object, Options, new
from pvbus.cli.install.roles import accounts, bindings, roles
from pvbus.cli.install.scaling import PER_WORKER, scaled_objects
from pvbus.cli.install.workloads import settings, workloads
from pvbus.core.api.crds import crds

WITH_PORCH, STANDALONE = "with-porch", "standalone"
OVERLAYS = (WITH_PORCH, STANDALONE)
MONITORING, AUTOSCALING = "monitoring", "autoscaling"
COMPONENTS = (MONITORING, AUTOSCALING)


def definitions() -> Iterator[Object]:
    """Yield the CustomResourceDefinitions. An installation with Porch has Porch's."""
    yield from crds()


def namespace(options: Options) -> Iterator[Object]:
    """Yield the namespace, in which Pod Security allows nothing but restricted pods."""
    found = new("v1", "Namespace", options.namespace)
    for mode in ("enforce", "audit", "warn"):
        found["metadata"]["labels"][f"pod-security.kubernetes.io/{mode}"] = "restricted"
    yield found


def rbac(options: Options) -> Iterator[Object]:
    yield from accounts(options.namespace)
    yield from roles()
    yield from bindings(options.namespace)


def configuration(options: Options) -> Iterator[Object]:
    yield settings(options)


def monitoring(options: Options) -> Iterator[Object]:
    yield service_monitor(options.namespace)
    yield prometheus_rule(options.namespace)
    yield config_map(options.namespace)


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
}


def objects(overlay: str, options: Options, components: tuple[str, ...] = ()) -> Iterator[Object]:
    """Yield every object of an installation. Raises UsageError if the bus is none of a Kafka."""
    if AUTOSCALING in components:
        options = options._replace(scaled=frozenset(PER_WORKER))
    if overlay == STANDALONE:
        yield from definitions()
    for part in BASE.values():
        yield from part(options)
    for component in components:
        yield from PARTS[component](options)
