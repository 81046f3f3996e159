"""Names and labels that the objects of an installation share."""

from typing import Any, NamedTuple

from pvbus import __version__

Object = dict[str, Any]

NAME = "pvbus"
NAMESPACE = "pvbus-system"
PORT_NAME = "metrics"
PORT = 9090
"""The port of /metrics, /healthz, /readyz and /state. It is the same in every pod, as each has an address."""
PART_OF = {"app.kubernetes.io/name": NAME}
SETTINGS, OWN_SETTINGS = "pvbus", "pvbus-settings"
"""ConfigMaps: ours, which an upgrade overwrites, and the user's, which no command of ours touches."""
KAFKA_SECRET = "pvbus-kafka"
KAFKA_FOLDER = "/etc/pvbus/kafka"
CACHE_FOLDER = "/var/cache/pvbus"
"""Where a service finds what it wrote before its container was started again. A new pod has an empty one."""


class Options(NamedTuple):
    """What differs between installations.

    namespace: the namespace of the services
    image: the image of the services
    bus: `kafka://HOST:PORT[,HOST:PORT...][/PREFIX]`
    scaled: the services whose number of workers KEDA decides
    namespaces: the namespaces that the services are limited to; () if they are not
    runbooks: the address of the page of alerts, with a heading for each; "" without one
    """

    namespace: str = NAMESPACE
    image: str = f"{NAME}:{__version__}"
    bus: str = "kafka://kafka:9092"
    scaled: frozenset[str] = frozenset()
    namespaces: tuple[str, ...] = ()
    runbooks: str = ""


def service_name(service: str) -> str:
    """Return the name of every object of a service."""
    return f"{NAME}-{service}"


def labels(service: str = "") -> dict[str, str]:
    """Return the labels of an object, and of a service's if it is one's."""
    return {**PART_OF, "app.kubernetes.io/component": service} if service else dict(PART_OF)


def new(api_version: str, kind: str, name: str, namespace: str = "", *, service: str = "") -> Object:
    """Return an object with its metadata and nothing else."""
    metadata: Object = {"name": name, "labels": labels(service)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
