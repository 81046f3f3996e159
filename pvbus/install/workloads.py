"""The Deployments of the services, with what belongs to each: budget, Service, settings."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.kernel.rights import ALL_RIGHTS
from pvbus.core.kernel.topics import PLATFORM, SERVICES
from pvbus.install.objects import (
    CACHE_FOLDER,
    KAFKA_FOLDER,
    KAFKA_SECRET,
    OWN_SETTINGS,
    PORT,
    PORT_NAME,
    SETTINGS,
    Object,
    Options,
    labels,
    new,
    service_name,
)
from pvbus.runtime.process.configuration import variable_of
from pvbus.runtime.process.settings import ServicesConfig

REPLICAS = 2
"""One takes over within seconds when the node of the other goes. More share the work; see the README."""
USER = 10_001
"""The user of the image."""
DRAIN_SECONDS = 30
"""A worker ends within 5 s, by force if need be, and a replica of the package store within 25."""
DIGEST = "pvbus.dev/settings"


class Needs(NamedTuple):
    """The resources of a worker, and why.

    There is no limit of CPU: a throttled worker sends late heartbeats and loses its leases.

    cpu: the request of CPU
    memory: the request of memory
    memory_limit: the limit of memory; a worker beyond it is ended, and its leases move
    why: the reason of these values
    """

    cpu: str
    memory: str
    memory_limit: str
    why: str


NEEDS: Mapping[str, Needs] = {
    "ingest": Needs("100m", "256Mi", "1Gi", "12,000 observed objects took 160 MB"),
    "unroll": Needs(
        "200m", "256Mi", "1Gi", "every worker has all objects, and evaluates the sets of its own"
    ),
    "render": Needs("200m", "256Mi", "1Gi", "making 10,000 variants took all services 10 s of CPU"),
    "inject": Needs("100m", "256Mi", "1Gi", "waits for the package store; has the injected content"),
    "conditions": Needs("100m", "256Mi", "1Gi", "has the last condition of each variant of its share"),
    "promote": Needs("100m", "256Mi", "1Gi", "every worker has the open revisions of all variants"),
    "rollout": Needs("100m", "256Mi", "1Gi", "has the targets of all policies in its share"),
    "release": Needs("100m", "128Mi", "512Mi", "has the variants and orders of its share"),
    "resolve": Needs(
        "100m", "256Mi", "1Gi", "one worker decides; 1,000 installs and their contents are some MB"
    ),
    "establish": Needs("100m", "256Mi", "1Gi", "has the installs, and the package that it writes"),
    "packages": Needs(
        "200m",
        "512Mi",
        "2Gi",
        "keeps the metadata of all revisions, and the files of packages that it renders; four processes help",
    ),
}


def settings(options: Options) -> Object:
    """Return the ConfigMap with every setting of the services and its value."""
    values = {
        **_defaults(),
        "PVBUS_BUS": options.bus,
        "PVBUS_HEALTH_HOST": "0.0.0.0",
        "PVBUS_HEALTH_PORT": str(PORT),
        "PVBUS_LOG_FORMAT": "json",
        "PVBUS_NAMESPACES": ",".join(options.namespaces),
        "PVBUS_SOURCES_CACHE": "/tmp/sources",
    }
    return {**new("v1", "ConfigMap", SETTINGS, options.namespace), "data": values}


def _defaults() -> dict[str, str]:
    """Return the defaults. A pod's API server and account come with it: they are no settings here."""
    fields = [f for f in msgspec.structs.fields(ServicesConfig) if f.name not in ("kubeconfig", "context")]
    shown = {variable_of(field.name): field.default for field in fields}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in shown.items()
    }


def workloads(options: Options, services: Sequence[str] = SERVICES) -> Iterator[Object]:
    """Yield Deployment, budget and Service of each service."""
    for service in services:
        yield deployment(service, options)
        yield budget(service, options.namespace)
        yield _service(service, options.namespace)


def deployment(service: str, options: Options) -> Object:
    """Return the Deployment of a service."""
    spec: Object = {
        "replicas": REPLICAS,
        "revisionHistoryLimit": 3,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": labels(service)},
        "template": {
            "metadata": {"labels": labels(service), "annotations": {DIGEST: _digest(options)}},
            "spec": _pod(service, options),
        },
    }
    if service in options.scaled:
        del spec["replicas"]
    return {
        **new("apps/v1", "Deployment", service_name(service), options.namespace, service=service),
        "spec": spec,
    }


def _digest(options: Options) -> str:
    """Return what changes when the settings do: workers read them once, at start."""
    return hashlib.sha256(msgspec.json.encode(settings(options)["data"], order="sorted")).hexdigest()[:16]


def _pod(service: str, options: Options) -> Object:
    return {
        "serviceAccountName": service_name(service),
        "automountServiceAccountToken": bool(ALL_RIGHTS[service]),
        # Else Kubernetes sets PVBUS_INGEST_PORT and the like, which may be taken for misspelt settings.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": DRAIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            _spread(service, key) for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        "containers": [_container(service, options.image)],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": "2Gi" if service in PLATFORM else "64Mi"}},
            {"name": "cache", "emptyDir": {}},
            {"name": "kafka", "projected": {"defaultMode": 0o440, "sources": _secrets(service)}},
        ],
    }


def _secrets(service: str) -> list[Object]:
    """Return the Secrets with Kafka's certificates and passwords: of all services, and of this one."""
    names = (KAFKA_SECRET, f"{KAFKA_SECRET}-{service}")
    return [{"secret": {"name": name, "optional": True}} for name in names]


def _spread(service: str, key: str) -> Object:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(service)},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _container(service: str, image: str) -> Object:
    needs = NEEDS[service]
    sources = [(SETTINGS, False), (OWN_SETTINGS, True), (f"{OWN_SETTINGS}-{service}", True)]
    return {
        "name": service,
        "image": image,
        "args": ["python", "-m", f"services.{service}"],
        "envFrom": [{"configMapRef": {"name": name, "optional": optional}} for name, optional in sources],
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        # A worker waits up to a minute for the bus before it serves its port.
        "startupProbe": _probe("/healthz", period=5, failures=30),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
        "resources": {
            "requests": {"cpu": needs.cpu, "memory": needs.memory},
            "limits": {"memory": needs.memory_limit},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cache", "mountPath": CACHE_FOLDER},
            {"name": "kafka", "mountPath": KAFKA_FOLDER, "readOnly": True},
        ],
    }


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def budget(service: str, namespace: str) -> Object:
    """Return the PodDisruptionBudget of a service."""
    return {
        **new("policy/v1", "PodDisruptionBudget", service_name(service), namespace, service=service),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": labels(service)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _service(service: str, namespace: str) -> Object:
    """Return the headless Service by which Prometheus finds all workers, also those that are not ready."""
    return {
        **new("v1", "Service", service_name(service), namespace, service=service),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(service),
            "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT_NAME, "protocol": "TCP"}],
        },
    }
