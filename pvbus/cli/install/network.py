"""Who may connect to whom: nothing is allowed but what the services need.

A plugin without NetworkPolicies ignores them. Probes come from the node, which every plugin lets in.
"""

from collections.abc import Iterable, Iterator

from pvbus.adapters.kafka.settings import settings_of
from pvbus.cli.install.objects import NAME, PART_OF, PORT, Object, Options, labels, new, service_name
from pvbus.core.rights import RIGHTS

DNS_PORT = 53
API_SERVER_PORTS = (443, 6443)
"""Of the Service `kubernetes`, and of the API server behind it: which one counts depends on the plugin."""
METRICS_LABEL = "pvbus.dev/metrics"
"""Pods of a namespace with this label and the value "true" may read metrics, as those of `monitoring` may."""


def policies(options: Options) -> Iterator[Object]:
    """Yield a policy that denies everything, and those that allow what is needed."""
    every_pod = dict(PART_OF)
    yield _policy(NAME, options, every_pod, policyTypes=["Ingress", "Egress"])
    readers = [
        {"podSelector": {"matchLabels": every_pod}},  # `pvbus lag` in one of the pods
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"namespaceSelector": {"matchLabels": {METRICS_LABEL: "true"}}},
    ]
    yield _policy(
        f"{NAME}-metrics",
        options,
        every_pod,
        policyTypes=["Ingress", "Egress"],
        ingress=[{"from": readers, "ports": [_port(PORT)]}],
        egress=[{"to": readers[:1], "ports": [_port(PORT)]}],
    )
    yield _policy(
        f"{NAME}-bus",
        options,
        every_pod,
        policyTypes=["Egress"],
        egress=[
            {"ports": [_port(DNS_PORT, "UDP"), _port(DNS_PORT)]},
            {"ports": [_port(port) for port in _brokers(options.bus)]},
        ],
    )
    for service in [name for name, rights in RIGHTS.items() if rights]:
        yield _policy(
            f"{service_name(service)}-apiserver",
            options,
            labels(service),
            policyTypes=["Egress"],
            egress=[{"ports": [_port(port) for port in API_SERVER_PORTS]}],
        )


def _brokers(bus: str) -> list[int]:
    """Return the ports of the brokers of a bus. Raises UsageError."""
    return sorted({int(broker.rpartition(":")[2]) for broker in settings_of(bus).bootstrap})


def _port(port: int, protocol: str = "TCP") -> Object:
    return {"port": port, "protocol": protocol}


def _policy(name: str, options: Options, pods: dict[str, str], **spec: Iterable[object]) -> Object:
    policy = new("networking.k8s.io/v1", "NetworkPolicy", name, options.namespace)
    return {**policy, "spec": {"podSelector": {"matchLabels": pods}, **spec}}
