"""Who may connect to whom: nothing is allowed but what the services need.

A plugin without NetworkPolicies ignores them. Probes come from the node, which every plugin lets in.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network

from pvbus.adapters.kafka.settings import settings_of
from pvbus.core.kernel.addresses import METADATA
from pvbus.core.kernel.rights import RIGHTS, Right
from pvbus.install.objects import NAME, PART_OF, PORT, Object, Options, labels, new, service_name

DNS_PORT = 53
API_SERVER_PORTS = (443, 6443)
"""The ports of the Service `kubernetes` and of the API server behind it: which one counts depends on the
plugin."""
_LINK_LOCAL = ("169.254.0.0/16", "fe80::/10")
METRICS_LABEL = "pvbus.dev/metrics"
"""Pods of a namespace with this label and the value "true" may read metrics, as those of `monitoring` may."""


def policies(options: Options) -> Iterator[Object]:
    """Yield a policy that denies everything, and those that allow what is needed."""
    every_pod = dict(PART_OF)
    yield policy(NAME, options, every_pod, policyTypes=["Ingress", "Egress"])
    readers = [
        {"podSelector": {"matchLabels": every_pod}},  # `pvbus lag` in one of the pods
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {"namespaceSelector": {"matchLabels": {METRICS_LABEL: "true"}}},
    ]
    yield policy(
        f"{NAME}-metrics",
        options,
        every_pod,
        policyTypes=["Ingress", "Egress"],
        ingress=[{"from": readers, "ports": [port_rule(PORT)]}],
        egress=[{"to": readers[:1], "ports": [port_rule(PORT)]}],
    )
    yield policy(
        f"{NAME}-bus",
        options,
        every_pod,
        policyTypes=["Egress"],
        egress=[
            {"ports": [port_rule(DNS_PORT, "UDP"), port_rule(DNS_PORT)]},
            {"ports": [port_rule(port) for port in _brokers(options.bus)]},
        ],
    )
    yield from api_server_policies(options)


def api_server_policies(options: Options, of: Mapping[str, tuple[Right, ...]] = RIGHTS) -> Iterator[Object]:
    """Yield the policies that let each service with rights connect to the API server."""
    for service in [name for name, rights in of.items() if rights]:
        yield policy(
            f"{service_name(service)}-apiserver",
            options,
            labels(service),
            policyTypes=["Egress"],
            egress=[{"ports": [port_rule(port) for port in API_SERVER_PORTS]}],
        )


def _brokers(bus: str) -> list[int]:
    """Return the ports of the brokers of a bus. Raises UsageError."""
    return sorted({int(broker.rpartition(":")[2]) for broker in settings_of(bus).bootstrap})


def destinations() -> list[Object]:
    """Return all pods, and all addresses except those of clouds' metadata services."""
    barred = [ip_network(address) for address in (*_LINK_LOCAL, *sorted(METADATA))]
    blocks = [
        {"cidr": everything, "except": [str(each) for each in barred if each.version == version]}
        for version, everything in ((4, "0.0.0.0/0"), (6, "::/0"))
    ]
    return [{"namespaceSelector": {}}, *({"ipBlock": block} for block in blocks)]


def port_rule(port: int, protocol: str = "TCP") -> Object:
    """Return a port of a policy."""
    return {"port": port, "protocol": protocol}


def policy(name: str, options: Options, pods: dict[str, str], **spec: Iterable[object]) -> Object:
    """Return a NetworkPolicy for some pods."""
    made = new("networking.k8s.io/v1", "NetworkPolicy", name, options.namespace)
    return {**made, "spec": {"podSelector": {"matchLabels": pods}, **spec}}
