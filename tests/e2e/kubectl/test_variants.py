"""What kubectl shows of PackageVariants and their sets, and that it takes the objects of the documents."""

import re
import textwrap
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
DOCUMENTS = Path(__file__).parents[3] / "docs"
OBJECTS_MIN = 8


def examples() -> Iterator[tuple[str, str]]:
    """Yield the objects of pvbus that the documents show, each with the name of its document; and the parts
    of a RolloutPolicy as parts of an example."""
    whole = "apiVersion: promotion.pvbus.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: part}\nspec:\n"
    whole += "  revisions: {all: true}\n"
    for path in sorted(DOCUMENTS.glob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.M | re.S):
            if re.match(rf"(apiVersion: (promotion\.pvbus\.dev|{re.escape(GROUP)})/|kind: Package)", block):
                yield path.name, block
            elif path.name == "rollouts.md" and block.startswith("  "):
                yield path.name, whole + block
            elif path.name == "rollouts.md":
                yield path.name, whole + textwrap.indent(block, "  ")


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


def test_every_example_of_the_documents_is_applied_as_it_is_written(kubectl: Kubectl) -> None:
    """By kubectl's own reader, which refuses texts that others take, and with every field known."""
    shown = list(examples())
    assert len(shown) >= OBJECTS_MIN
    assert {"concepts.md", "rollouts.md"} <= {name for name, _ in shown}
    kubectl.run("create namespace argocd")
    for name, text in shown:
        kubectl.namespace = yaml.safe_load(text)["metadata"].get("namespace", "default")
        said = kubectl.run("apply --dry-run=server --validate=strict -f -", stdin=text)
        assert said.code == 0, f"{name}: {said.err}\n{text}"
        assert "server dry run" in said.out
