"""The manifests of an installation: what they grant, and that they are what the code reads and exports."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from deploy import generate
from pvbus.core.errors import UsageError
from pvbus.core.kernel.rights import (
    INSTALLED_LABEL,
    OBSERVED_LABEL,
    PACKAGES,
    RIGHTS,
    SERVICE_RIGHTS,
    Request,
    requests_of,
)
from pvbus.core.kernel.topics import ALL_SERVICES, SERVICES
from pvbus.install import manifests
from pvbus.install.dashboard import QUESTIONS
from pvbus.install.manifests import PER_WORKER, waiting
from pvbus.install.monitoring import ALERTS, rule_groups, service_monitor
from pvbus.install.network import policies
from pvbus.install.objects import Object, Options
from pvbus.install.roles import observing, roles
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import SERVICE_CONFIGS, PackagesConfig, ServicesConfig
from pvbus.runtime.yamltext import yaml_stream
from pvbus.telemetry import metrics
from tests.tools.kubernetesmodels import problems_of
from tests.tools.promql import metric_names

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
OPTIONS = Options(bus="kafka://one:9092,two:9093,three:9092/blue")
ALL = list(manifests.objects(manifests.STANDALONE, OPTIONS, manifests.COMPONENTS))
FOREIGN = ("ServiceMonitor", "PrometheusRule", "ScaledObject")
"""Kinds of others, whose types are not at hand."""


def kinds(kind: str) -> dict[str, Object]:
    return {obj["metadata"]["name"]: obj for obj in ALL if obj["kind"] == kind}


def pods() -> dict[str, Object]:
    return {name: obj["spec"]["template"]["spec"] for name, obj in kinds("Deployment").items()}


def granted(role: Object) -> Iterator[Request]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from (Request(verb, group, resource) for verb in rule["verbs"])


def test_the_files_are_those_that_the_code_makes() -> None:
    assert generate.differences(generate.files()) == []


def test_every_file_is_one_of_a_kustomization() -> None:
    """A part that no kustomization names would never be applied."""
    for file in generate.FOLDER.rglob("kustomization.yaml"):
        document = yaml.safe_load(file.read_text())
        generated = [g for each in document.get("configMapGenerator", ()) for g in each["files"]]
        named = {*document["resources"], *generated}
        beside = {each.name for each in file.parent.glob("*.*")} - {"kustomization.yaml"}
        assert beside <= named, file
        assert all((file.parent / name).exists() for name in named), file


@pytest.mark.parametrize("obj", ALL, ids=lambda obj: f"{obj['kind']}-{obj['metadata']['name']}")
def test_every_object_is_as_kubernetes_types_have_it(obj: Object) -> None:
    if obj["kind"] not in FOREIGN:
        assert problems_of(obj) == []


def test_the_stream_is_read_back_as_the_same_objects() -> None:
    assert list(yaml.safe_load_all(yaml_stream(ALL))) == ALL


@pytest.mark.parametrize("service", ALL_SERVICES)
def test_a_role_grants_the_rights_of_its_service_and_nothing_else(service: str) -> None:
    made = {role["metadata"]["name"]: role for role in roles(SERVICE_RIGHTS)}
    wanted = {request for right in SERVICE_RIGHTS[service] for request in requests_of(right)}
    role = made.get(f"pvbus-{service}")
    if role is None:
        assert wanted == set()
        return
    if selector := role.get("aggregationRule"):
        label = INSTALLED_LABEL if service == "establish" else OBSERVED_LABEL
        assert selector["clusterRoleSelectors"] == [{"matchLabels": {label: "true"}}]
        role = made[f"pvbus-{service}-base"]
        assert role["metadata"]["labels"][label] == "true"
    assert set(granted(role)) == wanted


def test_no_role_can_read_secrets_or_has_a_wildcard() -> None:
    """Secrets are read only where a person adds a role for them, which is one of ingest."""
    requests = [request for role in roles() if "rules" in role for request in granted(role)]
    assert all("*" not in request for request in requests)
    assert "secrets" not in {request.resource for request in requests}
    store = kinds("ClusterRole")["pvbus-packages"]
    assert {r.verb for r in granted(store) if r.resource == "secrets"} == {"get"}  # which a Repository names
    added = observing("", "secrets")
    assert added["metadata"]["labels"][OBSERVED_LABEL] == "true"
    assert {request.verb for request in granted(added)} == {"get", "list", "watch"}


def test_each_service_runs_under_its_own_account_that_its_binding_names() -> None:
    for name, pod in pods().items():
        assert pod["serviceAccountName"] == name
        assert name in kinds("ServiceAccount")
    for name, binding in kinds("ClusterRoleBinding").items():
        assert binding["roleRef"]["name"] == name
        assert name in kinds("ClusterRole")
        account = name.removesuffix("-authority")
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account, "namespace": OPTIONS.namespace}
        ]


def test_the_package_store_may_change_one_api_service_and_read_one_config_map() -> None:
    (rule,) = kinds("ClusterRole")["pvbus-packages-authority"]["rules"]
    assert rule["resourceNames"] == list(kinds("APIService")) == ["v1alpha1.porch.kpt.dev"]
    assert rule["verbs"] == ["get", "update"]
    (binding,) = kinds("RoleBinding").values()
    assert binding["metadata"]["namespace"] == "kube-system"
    assert binding["roleRef"]["name"] == "extension-apiserver-authentication-reader"


def test_the_package_store_is_what_its_api_service_names() -> None:
    """kube-apiserver asks the Service, at a port that the pods have, for the name in their certificate."""
    (api_service,) = kinds("APIService").values()
    named = api_service["spec"]["service"]
    service = kinds("Service")[named["name"]]
    (https,) = [port for port in service["spec"]["ports"] if port["port"] == named["port"]]
    (container,) = pods()["pvbus-packages"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    values = {**kinds("ConfigMap")["pvbus"]["data"], **kinds("ConfigMap")["pvbus-packages"]["data"]}
    config = load_config(PackagesConfig, values)
    assert ports[https["targetPort"]] == config.serving_port
    assert config.serving_name == f"{named['name']}.{named['namespace']}.svc"
    assert config.serving_write_authority
    assert [source["configMapRef"]["name"] for source in container["envFrom"]][:2] == [
        "pvbus",
        "pvbus-packages",
    ]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert config.packages_data in mounts


def test_porchs_api_is_left_to_porch() -> None:
    made = list(manifests.objects(manifests.WITH_PORCH, OPTIONS))
    assert not [obj for obj in made if "packages" in obj["metadata"]["name"] or obj["kind"] == "APIService"]


@pytest.mark.parametrize("service", ALL_SERVICES)
def test_a_service_can_write_where_the_documents_say_that_snapshots_go(service: str) -> None:
    """In a volume that is its own, of a container whose root file system is read-only."""
    (container,) = pods()[f"pvbus-{service}"]["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "cache"]
    assert f"`{mount['mountPath']}/snapshots`" in OPERATIONS.read_text()
    assert {"name": "cache", "emptyDir": {}} in pods()[f"pvbus-{service}"]["volumes"]
    assert not mount.get("readOnly")


@pytest.mark.parametrize("service", ALL_SERVICES)
def test_a_service_takes_the_settings_of_the_config_map(service: str) -> None:
    """Every value is valid, a misspelt name would be refused, and the bus is the one that was asked for."""
    data = kinds("ConfigMap")["pvbus"]["data"]
    config = load_config(SERVICE_CONFIGS[service], data)
    assert (config.bus, config.health_host, config.health_port) == (OPTIONS.bus, "0.0.0.0", 9090)
    assert len(data) == len(ServicesConfig.__struct_fields__) - 2  # without kubeconfig and context
    assert load_config(ServicesConfig, {**data, "PVBUS_BUS": "x"}) == ServicesConfig(
        bus="x",
        health_host="0.0.0.0",
        health_port=9090,
        log_format="json",
        sources_cache="/tmp/sources",
    )


def test_pods_are_as_the_restricted_pod_security_standard_wants_them() -> None:
    labels = kinds("Namespace")["pvbus-system"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods().values():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert all(volume.keys() & {"emptyDir", "projected"} for volume in pod["volumes"])


def mounted_secrets(pod: Object) -> set[str]:
    """Return the Secrets that a pod names in volumes or variables."""
    return set(
        re.findall(r"'(?:secret|secretRef|secretKeyRef)': \{'(?:name|secretName)': '([\w-]+)'", str(pod))
    )


def test_a_pod_mounts_no_secret_of_another_service() -> None:
    """That of Kafka for all, and its own; where each has a user of its own, the first is left out."""
    for name, pod in pods().items():
        own = {"pvbus-kafka", name.replace("pvbus-", "pvbus-kafka-")}
        assert mounted_secrets(pod) == ({"pvbus-packages-serving"} if name == "pvbus-packages" else own), name


def test_no_service_link_can_be_taken_for_a_setting() -> None:
    """Kubernetes sets PVBUS_INJECT_PORT and the like for the Services, unless it is told not to."""
    assert kinds("Service").keys() == {f"pvbus-{service}" for service in (*ALL_SERVICES, PACKAGES)}
    assert all(pod["enableServiceLinks"] is False for pod in pods().values())


def test_probes_budget_and_service_find_the_pods_of_their_service() -> None:
    for name, deployment in kinds("Deployment").items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/component"] == name.removeprefix("pvbus-")
        for selector in (
            deployment["spec"]["selector"]["matchLabels"],
            kinds("PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"],
            kinds("Service")[name]["spec"]["selector"],
        ):
            assert selector == labels
        (container,) = pods()[name]["containers"]
        (port,) = [port for port in container["ports"] if port["name"] == "metrics"]
        assert container["args"] == ["python", "-m", f"services.{name.removeprefix('pvbus-')}"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
        start = container["startupProbe"]
        assert start["periodSeconds"] * start["failureThreshold"] > 60 + 30  # the bus, then the first look
        assert "cpu" not in container["resources"]["limits"]
        for constraint in pods()[name]["topologySpreadConstraints"]:
            assert constraint["labelSelector"]["matchLabels"] == labels


def test_new_settings_restart_the_workers_and_equal_ones_do_not() -> None:
    def digests(options: Options) -> set[str]:
        made = [o for o in manifests.objects("with-porch", options) if o["kind"] == "Deployment"]
        return {o["spec"]["template"]["metadata"]["annotations"]["pvbus.dev/settings"] for o in made}

    assert len(digests(OPTIONS)) == 1
    assert digests(OPTIONS) == digests(OPTIONS._replace(image="other"))
    assert digests(OPTIONS) != digests(OPTIONS._replace(bus="kafka://other:9092"))


def test_only_keda_sets_the_number_of_workers_that_it_scales() -> None:
    scaled = {name for name, each in kinds("Deployment").items() if "replicas" not in each["spec"]}
    assert scaled == {f"pvbus-{service}" for service in PER_WORKER}
    assert {o["spec"]["scaleTargetRef"]["name"] for o in kinds("ScaledObject").values()} == scaled
    plain = [o for o in manifests.objects("with-porch", OPTIONS) if o["kind"] == "Deployment"]
    assert all("replicas" in each["spec"] for each in plain)


def test_a_policy_denies_all_and_the_others_allow_brokers_dns_and_who_needs_it_the_api_server() -> None:
    made = {policy["metadata"]["name"]: policy["spec"] for policy in policies(OPTIONS)}
    assert made["pvbus"]["policyTypes"] == ["Ingress", "Egress"]
    assert not made["pvbus"].keys() & {"ingress", "egress"}
    dns, brokers = made["pvbus-bus"]["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert [port["port"] for port in brokers["ports"]] == [9092, 9093]
    reaching = {name.removesuffix("-apiserver") for name in made if name.endswith("-apiserver")}
    assert reaching == {f"pvbus-{service}" for service in SERVICES if RIGHTS[service]}


def test_the_package_store_reaches_no_metadata_and_reads_secrets_where_it_works() -> None:
    """Requests name the addresses that it fetches from."""
    made = kinds("NetworkPolicy")["pvbus-packages"]["spec"]["egress"]
    blocks = [to["ipBlock"] for rule in made for to in rule["to"] if "ipBlock" in to]
    assert len(blocks) == 2 * len(made)
    for address in ("169.254.169.254", "100.100.100.200", "fe80::a9fe:a9fe", "fd00:ec2::254"):
        ip = ip_address(address)
        for block in (each for each in blocks if ip in ip_network(each["cidr"])):
            assert any(ip in ip_network(each) for each in block["except"]), address
    assert secrets_of(manifests.objects("standalone", OPTIONS)) == {("ClusterRole", "")}
    limited = OPTIONS._replace(namespaces=("a", "b"))
    assert secrets_of(manifests.objects("standalone", limited)) == {("Role", "a"), ("Role", "b")}


def secrets_of(made: Iterable[Object]) -> set[tuple[str, str]]:
    """Return kind and namespace of each role by which the package store reads Secrets."""
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""))
        for obj in made
        if obj["kind"] in ("Role", "ClusterRole") and obj["metadata"]["name"] == "pvbus-packages"
        if any("secrets" in rule["resources"] for rule in obj["rules"])
    }


def is_definition(obj: Object) -> bool:
    return bool(obj["kind"] == "CustomResourceDefinition")


def test_promote_and_release_are_left_out_unless_they_are_added() -> None:
    """Added, they have accounts and rights of their own, and ingest may see what promote asks it for."""
    for overlay in manifests.OVERLAYS:
        names = {obj["metadata"]["name"] for obj in manifests.objects(overlay, OPTIONS)}
        assert not [name for name in names if "promot" in name or "release" in name]
    group = "promotion.pvbus.dev"
    observing = {
        f"pvbus-observes-{kind}.{group}"
        for kind in ("packagespecializers", "rolloutpolicies", "quarantines", "rolloutstops")
    }
    for name in observing:
        assert kinds("ClusterRole")[name]["metadata"]["labels"][OBSERVED_LABEL] == "true"
    limited = OPTIONS._replace(namespaces=("a", "b"))
    made = list(manifests.PARTS["promotion"](limited))
    assert not [obj for obj in made if obj["kind"].startswith("ClusterRole")]
    roles_of_a = {obj["metadata"]["name"] for obj in made if obj["metadata"].get("namespace") == "a"}
    assert roles_of_a == {"pvbus-promote", "pvbus-rollout", "pvbus-release", *observing}


def test_with_porch_no_definition_of_porchs_is_applied() -> None:
    assert not [o for o in manifests.objects("with-porch", OPTIONS) if is_definition(o)]
    assert len(kinds("CustomResourceDefinition")) == 11
    ours = [o for o in manifests.objects("with-porch", OPTIONS, ("promotion",)) if is_definition(o)]
    assert [o["metadata"]["name"] for o in ours] == [
        "packagespecializers.promotion.pvbus.dev",
        "rolloutpolicies.promotion.pvbus.dev",
        "quarantines.promotion.pvbus.dev",
        "rolloutstops.promotion.pvbus.dev",
    ]
    ours = [o for o in manifests.objects("with-porch", OPTIONS, ("platform",)) if is_definition(o)]
    assert {o["spec"]["group"] for o in ours} == {"pkg.crossplane.io"}
    assert {o["spec"]["names"]["kind"] for o in ours} == {"Package", "PackageRevision", "PackageLock"}


def test_a_bus_that_no_pod_can_share_is_refused() -> None:
    with pytest.raises(UsageError, match="expected kafka://"):
        list(manifests.objects("with-porch", OPTIONS._replace(bus="sqlite:bus.db")))


# ------------------------------------------------------------ metrics


def exported() -> set[str]:
    """Return every name that /metrics may show."""
    declared = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
    suffixes = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + suffix
        for metric in declared
        for family in metric.describe()
        for suffix in suffixes.get(family.type, ("",))
    }


PANELS = tuple(panel for question in QUESTIONS for panel in question.panels)
EXPRESSIONS = {
    **{alert.name: alert.expression for alert in ALERTS},
    **{f"{panel.title} {q.legend}": q.expression for panel in PANELS for q in panel.queries},
    **{f"scaling of {service}": waiting(service) for service in PER_WORKER},
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_alerts_dashboard_and_scaling_ask_for_metrics_that_pvbus_exports(name: str) -> None:
    names = metric_names(EXPRESSIONS[name])
    assert names
    assert names <= exported()


def labels_of(names: set[str]) -> set[str]:
    declared = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
    return {
        label
        for metric in declared
        for name in names
        if name.startswith(next(iter(metric.describe())).name)
        for label in metric._labelnames
    }


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_group_by_labels_that_their_metrics_have(name: str) -> None:
    """A label that no series has would put all of them into one group, silently."""
    expression = EXPRESSIONS[name]
    foreign = {"instance", "le", "version"}  # Prometheus', the histogram's and the build's own
    used = {
        label.strip()
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    used |= set(re.findall(r"[{,]\s*(\w+)\s*[=!]", expression))
    assert used <= labels_of(metric_names(expression)) | foreign


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for panel in PANELS for q in panel.queries for name in metric_names(q.expression)}
    base = {name.removesuffix("_bucket") for name in shown}
    # the same without partitions, or of the topics instead of the services
    summed_up = {"pvbus_dirty_keys", "pvbus_leases", "pvbus_consumer_lag_records"}
    wanted = {name for name in exported() if not name.endswith(("_bucket", "_sum", "_count"))}
    assert wanted - base - summed_up == set()


def test_the_label_service_of_our_metrics_is_not_replaced() -> None:
    """Without honorLabels, prometheus-operator's own label `service` would rename ours."""
    (endpoint,) = service_monitor("x")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True


def test_the_dashboard_is_laid_out_without_overlaps_or_gaps() -> None:
    panels = json.loads((generate.FOLDER / "components/monitoring/pvbus.json").read_text())["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [q.title for q in QUESTIONS]
    assert [panel["title"] for panel in panels if panel["type"] != "row"] == [p.title for p in PANELS]
    covered = Counter(
        (x, y)
        for panel in panels
        for spot in [panel["gridPos"]]
        for x in range(spot["x"], spot["x"] + spot["w"])
        for y in range(spot["y"], spot["y"] + spot["h"])
    )
    assert set(covered.values()) == {1}
    assert max(x for x, _ in covered) < 24
    assert {y for x, y in covered if x == 0} == set(range(max(y for _, y in covered) + 1))


def test_each_alert_has_a_link_to_a_heading_that_exists() -> None:
    headings = re.findall(r"^## (\w+)$", (generate.FOLDER.parent / "docs/alerts.md").read_text(), re.M)
    (group,) = rule_groups("https://example.org/docs/alerts.html")
    links = [rule["annotations"]["runbook_url"] for rule in group["rules"]]
    assert links == [f"https://example.org/docs/alerts.html#{heading.lower()}" for heading in headings]
    (without,) = rule_groups()
    assert all("runbook_url" not in rule["annotations"] for rule in without["rules"])
