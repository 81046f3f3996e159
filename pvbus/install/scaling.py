"""How many workers there are, by the work that waits: for KEDA, which asks Prometheus.

What waits are records that no worker has read and keys that no worker has decided. Kafka's own number, of
records behind the committed offset, is not used: it counts the marks that end transactions, and it does not
see the keys that are dirty after a restart.
"""

from collections.abc import Iterator, Mapping

from pvbus.core.kernel.topics import PARTITIONS
from pvbus.install.objects import Object, Options, new, service_name
from pvbus.install.workloads import REPLICAS

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
