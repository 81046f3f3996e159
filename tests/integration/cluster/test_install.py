"""`pvbus install` on a real API server: first, again, over an older one, without rights; and kustomize."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.kernel.rights import RIGHTS, Request, requests_of
from pvbus.core.kernel.topics import SERVICES
from pvbus.install import manifests
from pvbus.install.applying import MANAGER
from pvbus.install.objects import Object, Options, new
from pvbus.install.roles import observing
from pvbus.ports.cluster import Kind
from pvbus.runtime.yamltext import yaml_stream
from tests.e2e.cli.command import REPOSITORY, Done, pvbus
from tests.integration.cluster.world import Kubectl
from tests.kit.cluster import resource_of
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build

BUS = "kafka://kafka.kafka:9092"
NAMESPACE = "pvbus-system"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
CLUSTER_KINDS = "clusterroles,clusterrolebindings"


class Installer:
    """The command against one cluster."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> Done:
        where = ("--kubeconfig", str(kubeconfig or self.cluster.kubeconfig))
        return pvbus("install", *where, *arguments, cwd=self.folder)

    def actions(self, *arguments: str) -> dict[str, str]:
        """Install, and return what was done about each object."""
        done = self.run("-o", "json", *arguments)
        assert done.code == 0, done
        return {f"{each['kind']}/{each['name']}": each["action"] for each in json.loads(done.out)}


@pytest.fixture
def installer(real_cluster: RealCluster, kubectl: Kubectl, tmp_path: Path) -> Iterator[Installer]:
    yield Installer(real_cluster, tmp_path)
    # First, as no namespace can go while an APIService has no server.
    kubectl("delete", "apiservices", "-l", "app.kubernetes.io/name=pvbus")
    kubectl("delete", CLUSTER_KINDS, "-l", "app.kubernetes.io/name=pvbus")
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


def allowed(cluster: RealCluster, service: str, request: Request) -> bool:
    """Ask the API server what a service's account may do."""
    resource, _, subresource = request.resource.partition("/")
    attributes = {"verb": request.verb, "group": request.group, "resource": resource, "namespace": "default"}
    account = f"system:serviceaccount:{NAMESPACE}:pvbus-{service}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": account,
            "groups": groups,
            "resourceAttributes": {**attributes, "subresource": subresource},
        },
    }
    code, answer = cluster.ask("POST", REVIEWS, review)
    assert code == 201, answer
    return bool(answer["status"]["allowed"])


def until(wanted: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_first_time_makes_everything_and_the_second_time_changes_nothing(installer: Installer) -> None:
    first = installer.actions("--overlay", "standalone", "--bus", BUS)
    expected = list(manifests.objects("standalone", Options(bus=BUS)))
    assert len(first) == len(expected)
    made = {name: action for name, action in first.items() if not name.startswith("CustomResource")}
    # The definition that stands in for Porch's kinds has made an APIService of that name, and makes it again.
    stand_in = "APIService/v1alpha1.porch.kpt.dev"
    assert made.pop(stand_in) == "changed"
    assert set(made.values()) == {"created"}
    second = installer.actions("--overlay", "standalone", "--bus", BUS)
    third = installer.actions("--overlay", "standalone")  # the bus stays
    for later in (second, third):
        del later[stand_in]
        assert set(later.values()) == {"unchanged"}
    removed = {name for name, action in installer.actions().items() if action == "removed"}
    assert "Deployment/pvbus-packages" in removed
    assert all("packages" in name for name in removed - {stand_in}), removed


def test_each_account_has_the_rights_of_its_service(installer: Installer) -> None:
    """No less, and none of another service's; a role with the label adds Secrets to those of ingest."""
    installer.actions("--bus", BUS)
    cluster = installer.cluster
    every = {request for rights in RIGHTS.values() for right in rights for request in requests_of(right)}
    every.add(Request("list", "", "secrets"))
    for service in SERVICES:
        own = {request for right in RIGHTS[service] for request in requests_of(right)}
        if own:  # the controller that aggregates roles takes a moment
            until(lambda service=service, own=own: allowed(cluster, service, min(own)))
        assert {request for request in every if allowed(cluster, service, request)} == own, service


def test_a_role_with_the_label_lets_ingest_observe_one_more_kind(
    installer: Installer, kubectl: Kubectl
) -> None:
    installer.actions("--bus", BUS)
    file = installer.folder / "secrets.yaml"
    file.write_text(yaml_stream([observing("", "secrets")]))
    kubectl("apply", "-f", file)
    until(lambda: allowed(installer.cluster, "ingest", Request("watch", "", "secrets")))
    assert not allowed(installer.cluster, "inject", Request("get", "", "secrets"))
    assert set(installer.actions().values()) == {"unchanged"}  # the role of the user stays
    assert allowed(installer.cluster, "ingest", Request("watch", "", "secrets"))


def test_what_was_changed_comes_back_and_what_is_the_users_stays(
    installer: Installer, kubectl: Kubectl
) -> None:
    installer.actions("--bus", BUS)
    in_it = ("-n", NAMESPACE)
    kubectl("patch", "configmap", "pvbus", *in_it, "--type=merge", "-p", '{"data":{"PVBUS_BUS":"sqlite:x"}}')
    kubectl("create", "configmap", "pvbus-settings", *in_it, "--from-literal=PVBUS_LOG_LEVEL=debug")
    kubectl("annotate", "deployment", "pvbus-render", *in_it, "example.com/owner=team")
    changed = {name for name, action in installer.actions("--bus", BUS).items() if action != "unchanged"}
    assert changed == {"ConfigMap/pvbus"}
    found = json.loads(kubectl("get", "configmap", "pvbus-settings", *in_it, "-o", "json"))
    assert found["data"] == {"PVBUS_LOG_LEVEL": "debug"}


async def test_an_upgrade_changes_the_image_and_removes_what_is_left_over(
    installer: Installer, kubectl: Kubectl
) -> None:
    """Of the older installation: a service that is no more. Of somebody else, with our label: not touched."""
    installer.actions("--bus", BUS, "--image", "registry.example.dev/pvbus:0.0.9")
    cluster = await HttpCluster.connect(installer.cluster.kubeconfig)
    try:
        resource = await resource_of(cluster, Kind("", "Service"))
        spec: Object = {"spec": {"ports": [{"name": "metrics", "port": 9090}], "clusterIP": "None"}}
        for name, manager in (("pvbus-former", MANAGER), ("pvbus-of-a-person", "person")):
            await cluster.apply(resource, {**new("v1", "Service", name, NAMESPACE), **spec}, manager=manager)
    finally:
        await cluster.close()
    actions = installer.actions("--image", "registry.example.dev/pvbus:0.1.0")
    changed = {name: action for name, action in actions.items() if action != "unchanged"}
    assert changed == {
        **{f"Deployment/pvbus-{service}": "changed" for service in SERVICES},
        "Service/pvbus-former": "removed",
    }
    kubectl("get", "service", "pvbus-of-a-person", "-n", NAMESPACE)


def test_without_rights_every_missing_one_is_named_and_nothing_is_removed(installer: Installer) -> None:
    done = installer.run("--bus", BUS, kubeconfig=installer.cluster.kubeconfig_of("nobody"))
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.startswith("failed")]
    assert len(lines) == len(list(manifests.objects("with-porch", Options(bus=BUS))))
    assert 'cannot get resource "deployments"' in done.out
    assert "the rights to install are missing" in done.err
    assert "--dry-run" in done.err


def test_a_second_installation_in_another_namespace_is_refused(installer: Installer) -> None:
    installer.actions("--bus", BUS)
    done = installer.run("--bus", BUS, "--namespace", "other")
    assert done.code == 2
    assert f"pvbus is installed in the namespace {NAMESPACE} already" in done.err


def test_what_prometheus_operator_and_keda_define_is_asked_for(installer: Installer) -> None:
    done = installer.run("--bus", BUS, "--add", "monitoring", "--add", "autoscaling", "-o", "json")
    assert done.code == 1
    failed = {each["kind"]: each["message"] for each in json.loads(done.out) if each["action"] == "failed"}
    assert failed.keys() == {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
    assert failed["ScaledObject"] == "keda.sh/v1alpha1 ScaledObject is not served"


def test_the_dry_run_is_what_kubectl_applies(installer: Installer, kubectl: Kubectl) -> None:
    """After it, kubectl sees no difference, and neither does the command itself, but for the managers."""
    stream = installer.folder / "all.yaml"
    stream.write_text(pvbus("install", "--bus", BUS, "--dry-run", cwd=installer.folder).out)
    kubectl("apply", "-f", stream)
    kubectl("diff", "-f", stream)
    assert set(installer.actions("--bus", BUS).values()) == {"changed"}
    assert set(installer.actions("--bus", BUS).values()) == {"unchanged"}


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_kustomize_builds_what_the_command_applies(kubectl: Kubectl, overlay: str) -> None:
    built = kubectl("kustomize", REPOSITORY / "deploy" / "overlays" / overlay)

    def by_name(objects: Any) -> dict[tuple[str, str], Object]:
        return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}

    assert by_name(yaml.safe_load_all(built)) == by_name(manifests.objects(overlay, Options()))


def test_kustomize_builds_the_components(kubectl: Kubectl, tmp_path: Path) -> None:
    """In another namespace: all objects move there, and KEDA's services have no number of workers."""
    deploy = REPOSITORY / "deploy"
    (tmp_path / "deploy").symlink_to(deploy)
    document = {
        "resources": ["deploy/overlays/with-porch"],
        "components": [f"deploy/components/{name}" for name in manifests.COMPONENTS],
        "namespace": "elsewhere",
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    built = list(yaml.safe_load_all(kubectl("kustomize", tmp_path)))
    wanted = list(manifests.objects("with-porch", Options(namespace="elsewhere"), manifests.COMPONENTS))
    assert len(built) == len(wanted)
    assert {obj["metadata"].get("namespace", "elsewhere") for obj in built} == {"elsewhere"}
    without = {
        obj["metadata"]["name"]
        for obj in built
        if obj["kind"] == "Deployment" and "replicas" not in obj["spec"]
    }
    assert without == {"pvbus-render", "pvbus-inject", "pvbus-conditions"}
    assert [s["namespace"] for o in built if o["kind"] == "ClusterRoleBinding" for s in o["subjects"]] == [
        "elsewhere"
    ] * 9  # those of promotion and packages among them


def test_the_kustomization_of_the_document_takes_image_and_settings(kubectl: Kubectl, tmp_path: Path) -> None:
    """Workers refer to the settings by the name that has their hash, so that a change restarts them."""
    document = (REPOSITORY / "docs" / "installing.md").read_text()
    (tmp_path / "pvbus").symlink_to(REPOSITORY)
    (tmp_path / "kustomization.yaml").write_text(document.partition("```yaml\n")[2].partition("```")[0])
    built = list(yaml.safe_load_all(kubectl("kustomize", tmp_path)))
    (settings,) = [
        obj
        for obj in built
        if obj["kind"] == "ConfigMap" and obj["metadata"]["name"].startswith("pvbus-settings-")
    ]
    assert settings["data"] == {"PVBUS_BUS": "kafka://kafka.kafka:9092"}
    for obj in built:
        if obj["kind"] == "Deployment":
            (container,) = obj["spec"]["template"]["spec"]["containers"]
            assert container["image"] == "registry.example.dev/pvbus:0.1.0"
            names = [each["configMapRef"]["name"] for each in container["envFrom"]]
            assert names[:2] == ["pvbus", settings["metadata"]["name"]]  # the later one counts


def test_the_role_of_the_document_is_the_one_that_ingest_needs(kubectl: Kubectl) -> None:
    document = (REPOSITORY / "docs" / "installing.md").read_text()
    lines = [line.strip() for line in document.splitlines() if "pvbus-observes-clusters" in line]
    wanted = observing("fleet.example.dev", "clusters")
    try:
        for line in lines:
            kubectl(*line.split()[1:])
        role = kubectl.json("get", "clusterrole", "pvbus-observes-clusters")
        assert role["rules"] == wanted["rules"]
        assert role["metadata"]["labels"].items() <= wanted["metadata"]["labels"].items()
    finally:
        kubectl("delete", "clusterrole", "pvbus-observes-clusters", "--ignore-not-found")
