"""The manifests of docs/deploying.md deploy the example's packages, and only what can be applied."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render
from pvbus.core.cel import ROOTS, compile_expression
from pvbus.examples import fleet

DEPLOYING = Path(__file__).parent.parent.parent.parent / "docs" / "deploying.md"
PACKAGE = Path(str(fleet._files())) / "package"
LOCAL = "config.kubernetes.io/local-config"
CLUSTER_KINDS = {"Namespace", "Deployment", "Service", "Ingress", "NetworkPolicy"}
"""What every cluster knows of the package."""


def manifests(kind: str) -> list[dict[str, Any]]:
    """Return the document's objects of a kind."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", DEPLOYING.read_text(), re.M | re.S)
    documents = [
        each for block in blocks if block.startswith("apiVersion") for each in yaml.safe_load_all(block)
    ]
    return [document for document in documents if document["kind"] == kind]


def template(text: str, **path: str) -> str:
    """Render the part of Go's templates that the document uses; what is left over fails."""
    text = re.sub(r"{{\.path\.(\w+)}}", lambda found: path[found[1]], text)
    cut = r'{{trimSuffix "([^"]+)" \.path\.(\w+)}}'
    text = re.sub(cut, lambda found: path[found[2]].removesuffix(found[1]), text)
    assert "{{" not in text
    return text


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [manifest.object for manifest in fleet.make(tmp_path_factory.mktemp("example"))]


def named(example: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {obj["metadata"]["name"]: obj for obj in example if obj["kind"] == kind}


def packages(example: list[dict[str, Any]], repository: str) -> dict[str, str]:
    """Return the packages that the example's set makes in a repository, and the cluster of each."""
    (target,) = named(example, "PackageVariantSet")["web"]["spec"]["targets"]
    downstream = target["template"]["downstream"]
    found = {}
    for name, cluster in named(example, "Cluster").items():
        labels = cluster["metadata"]["labels"]
        if not target["objectSelector"]["matchLabels"].items() <= labels.items():
            continue
        root = {"name": name, "namespace": "default", "labels": labels, "annotations": {}}
        roots: dict[str, Mapping[str, Any]] = {name: {} for name in ROOTS} | {"target": root}
        repo, package = (
            compile_expression(downstream[field]).evaluate(roots) for field in ("repoExpr", "packageExpr")
        )
        if repo == repository:
            found[package] = name
    return found


def rendered(package: str) -> Mapping[str, str]:
    """Return the files of a published package: the blueprint's, rendered for its name."""
    files = {path.name: path.read_text() for path in PACKAGE.iterdir()}
    context = files["package-context.yaml"].replace("name: example", f"name: {package}")
    result = render(
        {**files, "package-context.yaml": context}, registry=FunctionRegistry({}, allow_exec=False)
    )
    assert result.rendered, result.message
    return result.resources


def delivered(files: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what Argo CD and Flux apply of a folder.

    With a kustomization.yaml, what it lists and is not marked as local; without one, every object of every
    YAML file, as Argo CD does.
    """
    kustomization = yaml.safe_load(files.get("kustomization.yaml", "null"))
    chosen = [name for name in files if name.endswith((".yaml", ".yml", ".json"))]
    if kustomization is not None:
        assert kustomization["kind"] == "Kustomization"
        assert set(kustomization) <= {"apiVersion", "kind", "metadata", "resources"}
        chosen = kustomization["resources"]
    for name in chosen:
        for obj in yaml.safe_load_all(files[name]):
            is_local = obj["metadata"].get("annotations", {}).get(LOCAL) == "true"
            if kustomization is None or not is_local:
                yield obj


def test_argo_cd_delivers_each_package_to_its_cluster(example: list[dict[str, Any]]) -> None:
    """The generator finds every package of the repository, and each goes to the cluster it was made for."""
    (applications,) = manifests("ApplicationSet")
    spec = applications["spec"]
    assert spec["goTemplate"] is True
    (generator,) = spec["generators"]
    url = generator["git"]["repoURL"]
    repository = Path(urlsplit(url).path).stem
    assert named(example, "Repository")[repository]["spec"]["deployment"] is True
    assert generator["git"]["revision"] == named(example, "Repository")[repository]["spec"]["git"]["branch"]
    made = packages(example, repository)
    assert len(made) == fleet.CLUSTERS_PER_REGION
    folders = [*made, "README.md", "asia-07-other"]
    (directory,) = generator["git"]["directories"]
    matched = [folder for folder in folders if fnmatchcase(folder, directory["path"])]
    assert sorted(matched) == sorted(made)
    names = set()
    for folder in matched:
        path = {"basename": folder, "path": folder}
        source = spec["template"]["spec"]["source"]
        assert (source["repoURL"], template(source["path"], **path)) == (url, folder)
        assert template(spec["template"]["spec"]["destination"]["name"], **path) == made[folder]
        names.add(template(spec["template"]["metadata"]["name"], **path))
    assert len(names) == len(made)


def test_flux_takes_a_package_that_there_is(example: list[dict[str, Any]]) -> None:
    """Its repository is one of the example's, and its path a folder of that."""
    (repository,), (kustomization,) = manifests("GitRepository"), manifests("Kustomization")
    assert kustomization["spec"]["sourceRef"]["name"] == repository["metadata"]["name"]
    name = Path(urlsplit(repository["spec"]["url"]).path).stem
    branch = named(example, "Repository")[name]["spec"]["git"]["branch"]
    assert repository["spec"]["ref"]["branch"] == branch
    assert kustomization["spec"]["path"].removeprefix("./") in packages(example, name)


def test_only_what_a_cluster_knows_is_delivered() -> None:
    """Neither Kptfile nor context, injected object or configuration of a function; all else is."""
    files = rendered("asia-07-web")
    objects = list(delivered(files))
    assert sorted(obj["kind"] for obj in objects) == sorted(CLUSTER_KINDS)
    for obj in objects:
        assert LOCAL not in obj["metadata"].get("annotations", {})
        location = obj["metadata"]["name"] if obj["kind"] == "Namespace" else obj["metadata"]["namespace"]
        assert location == "asia-07-web"
    marked = {name for name, text in files.items() if f'{LOCAL}: "true"' in text}
    assert marked == {
        "Kptfile",
        "cluster.yaml",
        "kustomization.yaml",
        "package-context.yaml",
        "replacements.yaml",
    }
    without = {name: text for name, text in files.items() if name != "kustomization.yaml"}
    assert {"ConfigMap", "Cluster", "ApplyReplacements"} <= {obj["kind"] for obj in delivered(without)}
