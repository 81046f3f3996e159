"""What kubectl shows of PackageVariants and their sets, by their short names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.core.api.crds import crds
from tests.e2e.kubectl.driver import Kubectl
from tests.tools.served import Served, serve

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(1800)]  # the first one may have to build kubectl

GROUP = "config.porch.kpt.dev"


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("variants"), crds()) as running:
        yield running


@pytest.fixture
def kubectl(variants: Served, binary: Path, tmp_path: Path) -> Kubectl:
    return Kubectl(binary, tmp_path, variants.server.kubeconfig_path, "default", variants)


def manifest(kind: str, version: str, **spec: Any) -> str:
    upstream = {"repo": "blueprints", "package": "web", "revision": 1}
    head = {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": {"name": "a"}}
    return yaml.safe_dump({**head, "spec": {"upstream": upstream, **spec}})


@pytest.mark.parametrize(
    ("kind", "short", "version", "full"),
    [
        ("PackageVariant", "pv", "v1alpha1", f"packagevariant.{GROUP}"),
        ("PackageVariantSet", "pvs", "v1alpha2", f"packagevariantset.{GROUP}"),
    ],
)
def test_columns_and_short_names(kubectl: Kubectl, kind: str, short: str, version: str, full: str) -> None:
    """Whether it is ready, why not, and what it follows, without a look into the object."""
    kubectl.good("apply -f -", stdin=manifest(kind, version))
    header, row = kubectl.good(f"get {short}").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "ATTENTION", "UPSTREAM", "AGE"]
    assert row.split()[:2] == ["a", "web"]
    when = "2026-01-01T00:00:00Z"
    ready = f'"type":"Ready","status":"False","reason":"Error","message":"","lastTransitionTime":"{when}"'
    status = f'{{"status":{{"conditions":[{{{ready}}}]}}}}'
    kubectl.good(f"patch {short} a --subresource status --type merge -p '{status}'")
    assert kubectl.good(f"get {short} a --no-headers").split()[:4] == ["a", "False", "Error", "web"]
    assert kubectl.good(f"delete {short} a") in (
        f'{full} "a" deleted\n',
        f'{full} "a" deleted from default namespace\n',
    )
