"""The Helm chart: what Helm makes of it is what the command applies, and a real API server takes it."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.install import manifests
from pvbus.install.objects import Object, Options
from tests.e2e.cli.command import REPOSITORY
from tests.integration.cluster.world import Kubectl
from tests.tools.clusterprograms import VERSION
from tests.tools.helm import HelmUnavailableError, find_or_build

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build

NAMESPACE = "pvbus-system"
OTHER_VALUES: dict[str, Any] = {
    "image": "registry.example.dev/pvbus:1.2.3",
    "bus": "kafka://one:19092,two:29092/blue",
    "namespaces": ["default", "kube-system"],
    "createNamespace": True,
    "replicas": {"render": 5},
    "resources": {"ingest": {"limits": {"memory": "4Gi"}}},
    "settings": {"PVBUS_LOG_LEVEL": "debug", "PVBUS_REMOVALS_MAX": 7, "PVBUS_KAFKA_TLS": True},
}


@pytest.fixture(scope="module")
def helm() -> Path:
    try:
        return find_or_build()
    except HelmUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


def render(helm: Path, folder: Path, **values: Any) -> str:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    chart = REPOSITORY / "deploy" / "chart"
    command = [helm, "template", "pvbus", chart, "--namespace", NAMESPACE, "--values", file]
    command += ["--kube-version", VERSION]  # a Helm from its module assumes 1.20
    done = subprocess.run(
        [*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_name(objects: Any) -> dict[tuple[str, str, str], Object]:
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj
        for obj in objects
        if obj is not None
    }


def test_helm_makes_what_the_command_applies(helm: Path, tmp_path: Path) -> None:
    """With the defaults all but the namespace, which a release has already; and with it, all."""
    wanted = by_name(manifests.objects("with-porch", Options()))
    found = by_name(yaml.safe_load_all(render(helm, tmp_path, createNamespace=True)))
    assert found == wanted
    without = by_name(yaml.safe_load_all(render(helm, tmp_path)))
    assert without == {key: obj for key, obj in wanted.items() if key[0] != "Namespace"}


def test_other_values_make_what_the_command_makes_of_its_options(helm: Path, tmp_path: Path) -> None:
    """Image, bus and namespaces; workers restart as the digest of their settings is another one."""
    options = Options(
        image=OTHER_VALUES["image"], bus=OTHER_VALUES["bus"], namespaces=("default", "kube-system")
    )
    given = {name: OTHER_VALUES[name] for name in ("image", "bus", "namespaces", "createNamespace")}
    found = by_name(yaml.safe_load_all(render(helm, tmp_path, **given)))
    assert found == by_name(manifests.objects("with-porch", options))


def test_a_real_api_server_takes_the_chart_with_other_values(
    helm: Path, tmp_path: Path, kubectl: Kubectl
) -> None:
    text = render(helm, tmp_path, **OTHER_VALUES)
    found = by_name(yaml.safe_load_all(text))
    render_spec = found["Deployment", NAMESPACE, "pvbus-render"]["spec"]
    ingest_pod = found["Deployment", NAMESPACE, "pvbus-ingest"]["spec"]["template"]["spec"]
    assert render_spec["replicas"] == 5
    assert ingest_pod["containers"][0]["resources"]["limits"] == {"memory": "4Gi"}
    assert ingest_pod["containers"][0]["resources"]["requests"]["cpu"] == "100m"
    settings = found["ConfigMap", NAMESPACE, "pvbus"]["data"]
    wanted = {"PVBUS_LOG_LEVEL": "debug", "PVBUS_REMOVALS_MAX": "7", "PVBUS_KAFKA_TLS": "true"}
    assert wanted.items() <= settings.items()
    kubectl("create", "namespace", NAMESPACE)
    try:
        kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", stdin=text)
    finally:
        kubectl("delete", "namespace", NAMESPACE)
