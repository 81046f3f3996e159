"""The package store of an installation without Porch: an aggregated API with two replicas.

kube-apiserver finds it by the APIService, knows it by its certificate, and says who asks. The replicas make
their certificates themselves and add their authorities to the APIService, unless the Secret SERVING_SECRET
has one and the settings say so.
"""

from collections.abc import Iterator

from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.rights import PACKAGES, STORE_RIGHTS, STORE_SECRETS
from pvbus.install.network import API_SERVER_PORTS, destinations, policy, port_rule
from pvbus.install.objects import CACHE_FOLDER, PORT, PORT_NAME, Object, Options, labels, new, service_name
from pvbus.install.roles import RBAC, granted, rule_of
from pvbus.install.workloads import budget, deployment
from pvbus.runtime.process.settings import PackagesConfig

SERVICE = service_name(PACKAGES)
SERVING_PORT = PackagesConfig().serving_port
SERVING_SECRET, SERVING_FOLDER = f"{SERVICE}-serving", "/etc/pvbus/serving"
GIT_PORTS = (22, 80, 443)
"""The ports of git servers. Another one takes a NetworkPolicy of the user's."""
VERSION = "v1alpha1"
API_SERVICE = f"{VERSION}.{PORCH_GROUP}"
READER = "extension-apiserver-authentication-reader"
"""Kubernetes' own Role for what an aggregated API server must know of kube-apiserver."""
_API = f"{RBAC}/v1"


def package_store(options: Options) -> Iterator[Object]:
    """Yield every object of the package store."""
    yield new("v1", "ServiceAccount", SERVICE, options.namespace, service=PACKAGES)
    yield from _rights(options)
    yield _settings(options.namespace)
    yield from _policies(options)
    yield _deployment(options)
    yield budget(PACKAGES, options.namespace)
    yield _service(options.namespace)
    yield _api_service(options.namespace)


def _rights(options: Options) -> Iterator[Object]:
    """Yield the rights of the store. With namespaces, it reads Secrets in these alone."""
    account = [{"kind": "ServiceAccount", "name": SERVICE, "namespace": options.namespace}]
    everywhere = [right for right in STORE_RIGHTS if not options.namespaces or right != STORE_SECRETS]
    for name in options.namespaces:
        yield from granted(SERVICE, PACKAGES, [STORE_SECRETS], name, options.namespace)
    authority = f"{SERVICE}-authority"
    rules = {
        SERVICE: [rule_of(right) for right in everywhere],
        authority: [
            {
                "apiGroups": ["apiregistration.k8s.io"],
                "resources": ["apiservices"],
                "resourceNames": [API_SERVICE],
                "verbs": ["get", "update"],
            }
        ],
    }
    for name, rights in rules.items():
        yield {**new(_API, "ClusterRole", name, service=PACKAGES), "rules": rights}
        yield {
            **new(_API, "ClusterRoleBinding", name, service=PACKAGES),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": account,
        }
    yield {
        **new(_API, "RoleBinding", SERVICE, "kube-system", service=PACKAGES),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": READER},
        "subjects": account,
    }


def _settings(namespace: str) -> Object:
    """Return what differs from the defaults. The user's ConfigMap pvbus-settings-packages is stronger."""
    values = {
        "PVBUS_PACKAGES_DATA": CACHE_FOLDER,
        "PVBUS_SERVING_NAME": f"{SERVICE}.{namespace}.svc",
        "PVBUS_SERVING_PORT": str(SERVING_PORT),
        "PVBUS_SERVING_WRITE_AUTHORITY": "true",
    }
    return {**new("v1", "ConfigMap", SERVICE, namespace, service=PACKAGES), "data": values}


def _policies(options: Options) -> Iterator[Object]:
    """Yield what lets kube-apiserver in, which is no pod, and the store out to it and to git servers.

    Requests name the addresses of git servers, so those that give credentials to whoever asks are left out.
    """
    ports = sorted({*API_SERVER_PORTS, *GIT_PORTS})
    yield policy(
        SERVICE,
        options,
        labels(PACKAGES),
        policyTypes=["Ingress", "Egress"],
        ingress=[{"ports": [port_rule(SERVING_PORT)]}],
        egress=[{"to": destinations(), "ports": [port_rule(port) for port in ports]}],
    )


def _deployment(options: Options) -> Object:
    made = deployment(PACKAGES, options)
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["envFrom"].insert(1, {"configMapRef": {"name": SERVICE, "optional": False}})
    container["ports"].append({"name": "https", "containerPort": SERVING_PORT, "protocol": "TCP"})
    pod["volumes"] = [
        *(volume for volume in pod["volumes"] if volume["name"] != "kafka"),
        {
            "name": "serving",
            "projected": {
                "defaultMode": 0o440,
                "sources": [{"secret": {"name": SERVING_SECRET, "optional": True}}],
            },
        },
    ]
    container["volumeMounts"] = [
        *(mount for mount in container["volumeMounts"] if mount["name"] != "kafka"),
        {"name": "serving", "mountPath": SERVING_FOLDER, "readOnly": True},
    ]
    return made


def _service(namespace: str) -> Object:
    """Return the Service that kube-apiserver asks, which takes ready replicas only, and Prometheus."""
    ports = [
        {"name": "https", "port": 443, "targetPort": "https", "protocol": "TCP"},
        {"name": PORT_NAME, "port": PORT, "targetPort": PORT_NAME, "protocol": "TCP"},
    ]
    return {
        **new("v1", "Service", SERVICE, namespace, service=PACKAGES),
        "spec": {"selector": labels(PACKAGES), "ports": ports},
    }


def _api_service(namespace: str) -> Object:
    """Return the APIService without a caBundle: the replicas or the certificate's maker write that."""
    return {
        **new("apiregistration.k8s.io/v1", "APIService", API_SERVICE, service=PACKAGES),
        "spec": {
            "group": PORCH_GROUP,
            "version": VERSION,
            # Groups of CustomResourceDefinitions have 1,000. `kubectl get packagerevisions` means
            # ours, and not Crossplane's.
            "groupPriorityMinimum": 1100,
            "versionPriority": 15,
            "service": {"name": SERVICE, "namespace": namespace, "port": 443},
        },
    }
