"""`pvbus install` without a cluster: what it prints, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from pvbus.cli.main import run
from tests.tools.served import serve

BUS = "kafka://kafka:9092/blue"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster and no bus of the person who runs the tests."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("PVBUS_BUS", raising=False)


def test_the_dry_run_prints_the_objects_as_they_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["install", "--dry-run", "--bus", BUS, "--namespace", "fleet", "--image", "r.example/p:1"])
    assert code == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert objects[0]["kind"] == "Namespace"  # before what is in it
    assert objects[0]["metadata"]["name"] == "fleet"
    namespaces = {obj["metadata"].get("namespace") for obj in objects}
    assert namespaces == {None, "fleet"}
    pods = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] == "Deployment"]
    assert {pod["containers"][0]["image"] for pod in pods} == {"r.example/p:1"}
    (settings,) = [obj["data"] for obj in objects if obj["kind"] == "ConfigMap"]
    assert settings["PVBUS_BUS"] == BUS


def test_a_component_is_taken_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install", "--dry-run", "--bus", BUS, *["--add", "autoscaling"] * 2]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert len([obj for obj in objects if obj["kind"] == "ScaledObject"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run"], "--bus kafka://HOST:PORT"),
        (["--dry-run", "--bus", "sqlite:bus.db"], 'invalid bus URL "sqlite:bus.db"'),
        (["--bus", BUS], "there is no kubeconfig"),
        (["--dry-run", "--bus", BUS, "--namespaces", "a b"], "names of namespaces, separated by commas"),
        (["--overlay", "porch"], "'with-porch', 'standalone'"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_embedded_api_server_is_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(tmp_path / "data") as served:
        assert run(["install", "--bus", BUS, "--kubeconfig", str(served.server.kubeconfig_path)]) == 2
    assert "has no RBAC or no Pods" in capsys.readouterr().err


def test_for_some_namespaces_there_is_nothing_at_the_cluster_scope(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Roles and their bindings in each of them, the accounts and all else where the services are."""
    assert run(["install", "--dry-run", "--bus", BUS, "--namespaces", "blue,red"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    kinds = {obj["kind"] for obj in objects}
    assert {"Role", "RoleBinding"} <= kinds
    assert kinds.isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    roles = [(o["metadata"]["namespace"], o["metadata"]["name"]) for o in objects if o["kind"] == "Role"]
    services = ("ingest", "render", "inject", "conditions")
    assert sorted(roles) == sorted((name, f"pvbus-{each}") for name in ("blue", "red") for each in services)
    resources = {r for o in objects if o["kind"] == "Role" for rule in o["rules"] for r in rule["resources"]}
    assert "customresourcedefinitions" not in resources
    subjects = {s["namespace"] for o in objects if o["kind"] == "RoleBinding" for s in o["subjects"]}
    assert subjects == {"pvbus-system"}
    (settings,) = [obj["data"] for obj in objects if obj["kind"] == "ConfigMap"]
    assert settings["PVBUS_NAMESPACES"] == "blue,red"


def test_a_service_without_rights_has_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install", "--dry-run", "--bus", BUS]) == 0
    objects = yaml.safe_load_all(capsys.readouterr().out)
    pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] == "Deployment"]
    mounted = {pod["serviceAccountName"] for pod in pods if pod["automountServiceAccountToken"]}
    assert mounted == {"pvbus-ingest", "pvbus-render", "pvbus-inject", "pvbus-conditions"}
