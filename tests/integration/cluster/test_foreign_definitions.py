"""Our objects of other projects' kinds, judged by the definitions that these projects publish."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pvbus.install import manifests
from pvbus.install.objects import Object, Options
from pvbus.runtime.yamltext import yaml_stream
from tests.integration.cluster.world import Kubectl, eventually
from tests.tools import gomodules
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build

PROMETHEUS = ("github.com/prometheus-operator/prometheus-operator", "0.85.0")
KEDA = ("github.com/kedacore/keda/v2", "2.21.0")
FILES = {
    "servicemonitors.monitoring.coreos.com": (
        PROMETHEUS,
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    "prometheusrules.monitoring.coreos.com": (
        PROMETHEUS,
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "scaledobjects.keda.sh": (KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml"),
}
KINDS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}


def published(compiler: str, source: tuple[str, str], path: str) -> Path:
    try:
        return gomodules.download(compiler, *source) / path
    except gomodules.BuildFailedError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(f"the definitions cannot be downloaded: {str(error).splitlines()[-1]}")


@pytest.fixture(scope="module")
def definitions(real_cluster: RealCluster, kubectl: Kubectl) -> Iterator[None]:
    """The definitions, as long as these tests run: others expect that they are missing."""
    compiler = gomodules.go()
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("the definitions are downloaded with Go, which is missing")
        pytest.skip("the definitions are downloaded with Go, which is missing: install Go 1.26 or newer")
    for source, path in FILES.values():
        file = published(compiler, source, path)
        real_cluster.define(yaml.safe_load(file.read_text(encoding="utf-8")))
    kubectl("create", "namespace", Options().namespace)
    yield
    kubectl("delete", "namespace", Options().namespace)
    kubectl("delete", "customresourcedefinitions", *FILES)


def ours(kind: str) -> list[Object]:
    components = manifests.COMPONENTS
    found = [o for o in manifests.objects("with-porch", Options(), components) if o["kind"] == kind]
    assert found
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_field_is_unknown_or_wrong(kind: str, definitions: None, kubectl: Kubectl) -> None:
    """Strictly: a field that the definition does not have fails, as one with a wrong value does."""
    text = yaml_stream(ours(kind))
    arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    eventually(lambda: kind.lower() in kubectl("api-resources", "-o", "name").replace("s.", ".").lower())
    kubectl(*arguments, stdin=text)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_mistyped_field_fails(kind: str, definitions: None, kubectl: Kubectl) -> None:
    """Else the test above proves nothing."""
    objects = ours(kind)
    objects[0]["spec"]["nosuchfield"] = 1
    arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    with pytest.raises(AssertionError, match="nosuchfield"):
        kubectl(*arguments, stdin=yaml_stream(objects))
