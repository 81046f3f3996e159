"""What runs packages: Deployments, Services, accounts and certificates, as a DeploymentRuntimeConfig says."""

import base64
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pvbus.adapters.certificates import builder, usage
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.objectrows import rows_of
from pvbus.core.kernel.packagerows import LockedRevision
from pvbus.core.kernel.records import INSTALLS, SyncMarker
from pvbus.core.platform.establish.certificates import AUTHORITY
from pvbus.core.platform.establish.crossplane import LOOK_SECONDS, RUNTIME_SECONDS
from pvbus.ports.cluster import Kind, Object, Resource
from tests.kit.deciding import PARTITION
from tests.unit.core.platform.establish.test_activation import active, inactive
from tests.unit.core.platform.establish.world import CRD, PKG, PROVIDER, REVISION, EstablishWorld, crd

NAMESPACE = "crossplane-system"
DEPLOYMENT, SERVICE, SECRET = Kind("apps", "Deployment"), Kind("", "Service"), Kind("", "Secret")
ACCOUNT = Kind("", "ServiceAccount")
BINDING = Kind("rbac.authorization.k8s.io", "ClusterRoleBinding")
IMAGE = {"controller": {"image": "registry.example.org/run:1"}}


def read(world: EstablishWorld, kind: Kind, name: str, namespace: str = NAMESPACE) -> Object:
    live = world.live(kind, name, namespace)
    assert live is not None, name
    return live


def started(kind: str = "Provider", **fields: Any) -> tuple[EstablishWorld, LockedRevision]:
    """A world with the install `pa` of a package of this kind, which runs."""
    world = EstablishWorld()
    world.add_install("pa", **fields)
    revision = world.publish("d1", [crd("One")], kind=kind, spec=IMAGE)
    world.order("pa", active(revision))
    return world, revision


def configure(world: EstablishWorld, name: str, **spec: Any) -> None:
    obj = {
        "apiVersion": f"{PKG}/v1beta1",
        "kind": "DeploymentRuntimeConfig",
        "metadata": {"name": name},
        "spec": spec,
    }
    key = f"cluster|{PKG}/DeploymentRuntimeConfig||{name}"
    world.controller.load(INSTALLS, PARTITION, key, msgspec.json.encode(obj))


def container_of(deployment: Object) -> Object:
    container: Object = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def certificate_of(world: EstablishWorld, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(read(world, SECRET, name)["data"]["tls.crt"]))


def names_of(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.DNSName)


def test_a_provider_has_a_deployment_a_service_and_certificates_of_one_authority() -> None:
    world, _ = started()
    world.settle()
    deployment = read(world, DEPLOYMENT, "rev-d1")
    container = container_of(deployment)
    assert container["image"] == "registry.example.org/run:1"
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {
        "metrics": 8080,
        "webhook": 9443,
    }
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["TLS_SERVER_CERTS_DIR"] == "/tls/server"
    assert variables["TLS_CLIENT_CERTS_DIR"] == "/tls/client"
    assert variables["REVISION_UID"] == read(world, REVISION, "rev-d1", "")["metadata"]["uid"]
    volumes = {
        each["name"]: each["secret"]["secretName"]
        for each in deployment["spec"]["template"]["spec"]["volumes"]
    }
    assert volumes == {"tls-server-certs": "pa-tls-server", "tls-client-certs": "pa-tls-client"}
    service = read(world, SERVICE, "pa")
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    authority, server = certificate_of(world, AUTHORITY), certificate_of(world, "pa-tls-server")
    server.verify_directly_issued_by(authority)
    certificate_of(world, "pa-tls-client").verify_directly_issued_by(authority)
    assert f"pa.{NAMESPACE}.svc" in names_of(server)
    assert (
        read(world, SECRET, "pa-tls-server")["data"]["ca.crt"]
        == read(world, SECRET, AUTHORITY)["data"]["tls.crt"]
    )
    writes = len(world.changes)
    world.start()
    world.settle()
    assert len(world.changes) == writes, "the same certificates are good for another process"


def test_a_function_has_a_headless_service_and_its_revision_an_endpoint() -> None:
    world, _ = started("Function")
    world.settle()
    deployment, service = read(world, DEPLOYMENT, "rev-d1"), read(world, SERVICE, "pa")
    assert service["spec"]["clusterIP"] == "None"
    assert [each["name"] for each in service["spec"]["ports"]] == ["grpc"]
    assert container_of(deployment)["image"] == "registry.example.org/package@d1"
    assert "FUNCTION_NAME" in {each["name"] for each in container_of(deployment)["env"]}
    assert read(world, REVISION, "rev-d1", "")["status"]["endpoint"] == f"dns:///pa.{NAMESPACE}:9443"
    assert world.live(SECRET, "pa-tls-client", NAMESPACE) is None
    assert not world.cluster.objects_of(BINDING), "a function has no rights"


def test_a_config_makes_the_objects_and_a_change_of_it_is_followed() -> None:
    """What it says is kept, but for what pvbus has to know the objects by."""
    world, _ = started(runtimeConfigRef={"name": "irsa"})
    template = {
        "metadata": {"labels": {"team": "net"}, "annotations": {"note": "a"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"mine": "x"}},
            "template": {
                "metadata": {"labels": {"mine": "x"}, "annotations": {"prometheus.io/scrape": "false"}},
                "spec": {
                    "nodeSelector": {"disk": "ssd"},
                    "containers": [
                        {"name": "sidecar", "image": "side"},
                        {
                            "name": "package-runtime",
                            "args": ["--debug"],
                            "env": [{"name": "A", "value": "1"}],
                        },
                    ],
                },
            },
        },
    }
    account = {"metadata": {"name": "fixed", "annotations": {"role-arn": "arn:1"}}}
    configure(
        world,
        "irsa",
        deploymentTemplate=template,
        serviceAccountTemplate=account,
        serviceTemplate={"metadata": {"name": "named"}},
    )
    world.settle()
    deployment = read(world, DEPLOYMENT, "rev-d1")
    pod, container = deployment["spec"]["template"]["spec"], container_of(deployment)
    assert (deployment["metadata"]["labels"]["team"], deployment["spec"]["replicas"]) == ("net", 3)
    assert "mine" not in deployment["spec"]["selector"]["matchLabels"]
    assert deployment["spec"]["template"]["metadata"]["labels"]["mine"] == "x"
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {"prometheus.io/scrape": "false"}
    assert (pod["nodeSelector"], pod["serviceAccountName"]) == ({"disk": "ssd"}, "fixed")
    assert (container["name"], container["args"], container["image"]) == (
        "package-runtime",
        ["--debug"],
        "registry.example.org/run:1",
    )
    assert container["env"][0] == {"name": "A", "value": "1"}
    assert [each["name"] for each in pod["containers"]] == ["package-runtime", "sidecar"]
    assert read(world, ACCOUNT, "fixed")["metadata"]["annotations"]["role-arn"] == "arn:1"
    assert read(world, BINDING, "crossplane:provider:rev-d1:system", "")["subjects"][0]["name"] == "fixed"
    assert f"named.{NAMESPACE}.svc" in names_of(certificate_of(world, "pa-tls-server"))
    configure(world, "irsa", serviceAccountTemplate=account, deploymentTemplate={"spec": {"replicas": 1}})
    world.settle()
    deployment = read(world, DEPLOYMENT, "rev-d1")
    assert deployment["spec"]["replicas"] == 1
    assert "nodeSelector" not in deployment["spec"]["template"]["spec"]
    assert f"pa.{NAMESPACE}.svc" in names_of(certificate_of(world, "pa-tls-server"))


def test_an_account_of_somebody_else_is_used_and_not_made() -> None:
    world, _ = started(runtimeConfigRef={"name": "own"})
    configure(
        world, "own", deploymentTemplate={"spec": {"template": {"spec": {"serviceAccountName": "theirs"}}}}
    )
    world.settle()
    assert world.live(ACCOUNT, "rev-d1", NAMESPACE) is None
    assert read(world, BINDING, "crossplane:provider:rev-d1:system", "")["subjects"][0]["name"] == "theirs"


def test_a_config_that_is_missing_holds_the_install_and_is_named() -> None:
    """Nothing is written without it; the default one need not be there."""
    world, _ = started(runtimeConfigRef={"name": "irsa"})
    world.settle()
    assert world.live(CRD, "ones.example.org") is None
    assert "DeploymentRuntimeConfig irsa does not exist" in world.row("pa").message
    configure(world, "irsa")
    world.settle()
    assert world.row("pa").is_healthy
    default, _ = started(runtimeConfigRef={"name": "default"})
    default.settle()
    assert default.row("pa").is_healthy


@pytest.mark.parametrize(
    ("prefix", "own", "replicas"),
    [
        ("registry.example.org/pack", "mine", 5),
        ("registry.example.org/pack", "", 5),
        ("registry.example.org/package@d1", "", 5),
        ("registry.example.org/other", "mine", 2),
    ],
)
def test_an_image_config_chooses_the_config_before_the_install_does(
    prefix: str, own: str, replicas: int
) -> None:
    fields: dict[str, Any] = {"runtimeConfigRef": {"name": own}} if own else {}
    world, _ = started("Provider", **fields)
    configure(world, "mine", deploymentTemplate={"spec": {"replicas": 2}})
    configure(world, "theirs", deploymentTemplate={"spec": {"replicas": 5}})
    world.configure("all", prefix, runtime={"configRef": {"name": "theirs"}})
    world.settle()
    assert read(world, DEPLOYMENT, "rev-d1")["spec"]["replicas"] == replicas


def test_a_config_that_an_image_config_names_is_followed_and_missed_by_its_name() -> None:
    """The mirror's name counts, not the written one, and what runs stays while the config is missing."""
    world, _ = started()
    world.settle()
    world.configure("mirror", "registry.example.org/", rewriteImage={"prefix": "mirror.example.org/"})
    world.configure("all", "mirror.example.org/", runtime={"configRef": {"name": "theirs"}})
    world.settle()
    missing = (
        "DeploymentRuntimeConfig theirs does not exist: create it, or change spec.runtime of ImageConfig all"
    )
    assert missing in world.row("pa").message
    assert container_of(read(world, DEPLOYMENT, "rev-d1"))["image"] == "registry.example.org/run:1"
    configure(world, "theirs", deploymentTemplate={"spec": {"replicas": 5}})
    world.settle()
    assert read(world, DEPLOYMENT, "rev-d1")["spec"]["replicas"] == 5


def test_an_upgrade_hands_service_and_certificates_over() -> None:
    world, first = started()
    world.settle()
    before = certificate_of(world, "pa-tls-server")
    second = world.publish("d2", [crd("One")], kind="Provider", spec=IMAGE)
    world.order("pa", inactive(first), active(second, 2))
    world.settle()
    assert certificate_of(world, "pa-tls-server") == before
    assert world.live(DEPLOYMENT, "rev-d1", NAMESPACE) is None
    service = read(world, SERVICE, "pa")
    assert service["spec"]["selector"]["pkg.crossplane.io/revision"] == "rev-d2"
    owners = {each["name"]: each["controller"] for each in service["metadata"]["ownerReferences"]}
    assert owners == {"rev-d1": False, "rev-d2": True}


def test_what_the_api_server_calls_has_the_service_and_the_authority() -> None:
    """A conversion and a webhook of the package; paths of its own stay."""
    world = EstablishWorld()
    kind = Kind("admissionregistration.k8s.io", "ValidatingWebhookConfiguration")
    world.cluster.serve(Resource(kind.group, "v1", kind.kind, "validatingwebhookconfigurations", False))
    world.add_install("pa")
    one = crd("One")
    hook = {"conversionReviewVersions": ["v1"], "clientConfig": {"service": {"path": "/convert"}}}
    one["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
    webhooks: Object = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "checks"},
        "webhooks": [{"name": "a.example.org", "clientConfig": {"service": {"path": "/check"}}}],
    }
    world.order("pa", active(world.publish("d1", [one, webhooks], kind="Provider", spec=IMAGE)))
    world.settle()
    ca = read(world, SECRET, AUTHORITY)["data"]["tls.crt"]
    service = {"name": "pa", "namespace": NAMESPACE, "port": 9443}
    live = read(world, CRD, "ones.example.org", "")
    assert live["spec"]["conversion"]["webhook"]["clientConfig"] == {
        "caBundle": ca,
        "service": {**service, "path": "/convert"},
    }
    checks = read(world, kind, "checks", "")
    assert checks["webhooks"][0]["clientConfig"] == {"caBundle": ca, "service": {**service, "path": "/check"}}


@pytest.mark.parametrize(("answer", "message"), [("True", ""), ("False", "no Pods are ready")])
def test_an_install_is_as_healthy_as_its_deployment(answer: str, message: str) -> None:
    world, _ = started()
    world.settle()
    deployment = read(world, DEPLOYMENT, "rev-d1")
    condition = {"type": "Available", "status": answer, "message": message}
    world.cluster.put({**deployment, "status": {"conditions": [condition]}})
    world.start()
    world.settle()
    for kind, name, type_ in ((PROVIDER, "pa", "Healthy"), (REVISION, "rev-d1", "RuntimeHealthy")):
        conditions = {each["type"]: each for each in read(world, kind, name, "")["status"]["conditions"]}
        assert (conditions[type_]["status"], conditions[type_]["message"]) == (answer, message)


def test_an_authority_of_crossplane_is_kept() -> None:
    """Its key is one of RSA: after a take-over clients trust what they trusted before."""
    world, _ = started()
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Crossplane")])
    own = (
        builder(name, name, key.public_key())  # type: ignore[arg-type]  # pvbus makes none of RSA
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = own.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    data = dict(zip(("tls.crt", "tls.key"), (base64.b64encode(each).decode() for each in pem), strict=True))
    meta = {"name": AUTHORITY, "namespace": NAMESPACE}
    world.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
    world.settle()
    certificate_of(world, "pa-tls-server").verify_directly_issued_by(own)


def test_an_authority_that_is_not_whole_holds_the_install_and_is_named() -> None:
    world, _ = started()
    meta = {"name": AUTHORITY, "namespace": NAMESPACE}
    world.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {}})
    world.settle()
    assert world.live(CRD, "ones.example.org") is None
    assert f"Secret {NAMESPACE}/{AUTHORITY} has no tls.crt" in world.row("pa").message


def watched(world: EstablishWorld, conditions: list[Object] | None) -> list[str]:
    """Change the Deployment of `pa`, or delete it (None), as ingest sees it; return the keys to decide on."""
    deployment = read(world, DEPLOYMENT, "rev-d1")
    deployment = {**deployment, "status": {"conditions": conditions or []}}
    if conditions is None:
        world.cluster.remove(DEPLOYMENT, NAMESPACE, "rev-d1")
    else:
        world.cluster.put(deployment)
    (row,) = rows_of(DEPLOYMENT, deployment, (INSTALLS,))
    return list(
        world.controller.load(INSTALLS, PARTITION, row.key, None if conditions is None else row.value)
    )


def list_deployments(world: EstablishWorld) -> None:
    marker = msgspec.json.encode(SyncMarker(state="ok", epoch=1))
    world.controller.load(INSTALLS, PARTITION, sync_key(*DEPLOYMENT), marker)


def shown_of(world: EstablishWorld) -> list[tuple[str, str]]:
    """Return what the install and its revision say of what runs them."""
    found = []
    for kind, name, type_ in ((PROVIDER, "pa", "Healthy"), (REVISION, "rev-d1", "RuntimeHealthy")):
        conditions = {each["type"]: each for each in read(world, kind, name, "")["status"]["conditions"]}
        found.append((conditions[type_]["status"], conditions[type_]["message"]))
    return found


def test_a_deployment_that_fails_later_is_told_in_its_own_words_and_so_is_its_recovery() -> None:
    """Without a look at the package's objects: two reads and writes, of the statuses."""
    world, _ = started()
    list_deployments(world)
    world.settle()
    key = f"cluster|{PKG}/Provider||pa"
    fine = [{"type": "Available", "status": "True", "message": "has minimum availability"}]
    why = [
        {"type": "Available", "status": "False", "message": "does not have minimum availability"},
        {"type": "Progressing", "status": "False", "message": "timed out progressing"},
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
    ]
    words = "does not have minimum availability; timed out progressing; exceeded quota"
    for conditions, shown in ((fine, ("True", "has minimum availability")), (why, ("False", words))) * 2:
        before = world.effects
        assert watched(world, conditions) == [key]
        world.mirror()
        assert not world.reconcile(key).puts
        assert shown_of(world)[1] == shown
        assert shown_of(world)[0] == (shown[0], "" if shown[0] == "True" else words)
        assert world.effects - before <= 4


def test_a_deployment_that_is_deleted_by_hand_is_made_again_at_once() -> None:
    world, _ = started()
    list_deployments(world)
    world.settle()
    watched(world, [{"type": "Available", "status": "True"}])
    world.settle()
    (key,) = watched(world, None)
    world.mirror()
    world.reconcile(key)
    assert read(world, DEPLOYMENT, "rev-d1")["spec"]["replicas"] == 1


def test_nobody_looks_at_a_deployment_that_ingest_watches() -> None:
    """One that is not available is looked at each half minute only where it cannot be watched."""
    seconds = []
    for is_listed in (True, False):
        world, _ = started()
        if is_listed:
            list_deployments(world)
        world.settle()
        seconds.append(world.reconcile(f"cluster|{PKG}/Provider||pa").again_after)
    assert seconds == [LOOK_SECONDS, RUNTIME_SECONDS]


def test_of_a_deployment_only_what_is_wrong_with_it_is_mirrored() -> None:
    """One of a package, whose rollout goes on, has the same row; one of anybody else has none."""
    world, _ = started()
    world.settle()
    deployment = read(world, DEPLOYMENT, "rev-d1")
    rows = []
    for text in ("one", "two"):
        conditions = [
            {"type": "Available", "status": "True", "lastUpdateTime": text},
            {"type": "Progressing", "status": "True", "message": text},
        ]
        status = {"readyReplicas": len(text), "conditions": conditions}
        meta = {**deployment["metadata"], "resourceVersion": text}
        (row,) = rows_of(DEPLOYMENT, {**deployment, "metadata": meta, "status": status}, (INSTALLS,))
        rows.append(row)
    assert rows[0] == rows[1]
    others = {**deployment, "metadata": {"name": "web", "namespace": "default"}}
    assert rows_of(DEPLOYMENT, others, (INSTALLS,)) == []
