"""The example `fleet`: a blueprint, four regions, 204 clusters, and one set over 200 of them.

All content is constant, so two machines get the same commits. Existing repositories are left unchanged: a
second start changes nothing, and keeps the user's changes to them.
"""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pvbus.adapters.manifests import Manifest, read_manifests
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import REMOVE_LAST_REVISION

REGIONS = ("africa", "america", "asia", "europe")
CLUSTERS_PER_REGION = 50
CLUSTERS_PER_REGION_MAX = 62
"""Each region has 64 networks, and one cluster more that is no production."""
PACKAGE = "web"
REVISION_TAG = f"{PACKAGE}/v1"
_NAMESPACE = "default"
_MADE_AT = 1_767_225_600  # the first second of 2026, so that all machines create the same commits


def make(folder: Path, clusters: int = CLUSTERS_PER_REGION) -> list[Manifest]:
    """Create missing git repositories below `folder`; return the objects to apply.

    clusters: in production, in each region.
    """
    import pygit2  # here: `pvbus up` without an example starts sooner

    try:
        blueprints = folder / "blueprints.git"
        if not (blueprints / "HEAD").exists():
            _publish(blueprints)
        for region in REGIONS:
            remote = folder / f"edge-{region}.git"
            if not (remote / "HEAD").exists():
                pygit2.init_repository(str(remote), bare=True, initial_head="main")
    except (OSError, pygit2.GitError) as exc:
        raise PermanentError(f"the example's repositories cannot be made in {folder}: {exc}") from exc
    given = read_manifests([Path(str(_files() / "manifests"))])
    made = [Manifest(folder, 1, obj) for obj in _objects(folder, clusters)]
    return [*given, *made]


def _files() -> Traversable:
    return files("pvbus.examples") / "fleet_files"


def _publish(path: Path) -> None:
    """Create the blueprints: the package on `main`, and its tag, which makes it the published v1."""
    import pygit2

    staged = path.with_name(f".{path.name}")  # appears complete or not at all
    repository = pygit2.init_repository(str(staged), bare=True, initial_head="main")
    package = repository.TreeBuilder()
    for file in sorted((_files() / "package").iterdir(), key=lambda file: file.name):
        package.insert(file.name, repository.create_blob(file.read_bytes()), pygit2.enums.FileMode.BLOB)
    root = repository.TreeBuilder()
    root.insert(PACKAGE, package.write(), pygit2.enums.FileMode.TREE)
    author = pygit2.Signature("pvbus example", "example@pvbus.dev", _MADE_AT, 0)
    commit = repository.create_commit(
        "refs/heads/main", author, author, "A package to make variants of\n", root.write(), []
    )
    repository.references.create(f"refs/tags/{REVISION_TAG}", commit, force=True)
    staged.rename(path)


def _objects(folder: Path, clusters: int) -> Iterator[dict[str, Any]]:
    yield _repository("blueprints", folder / "blueprints.git", deployment=False)
    for number, region in enumerate(REGIONS):
        yield _repository(f"edge-{region}", folder / f"edge-{region}.git", deployment=True)
        for index in range(1, clusters + 2):
            production = index <= clusters
            yield _cluster(region, index, network=number * 64 + index, production=production)


def _repository(name: str, path: Path, *, deployment: bool) -> dict[str, Any]:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "Repository",
        "metadata": {
            "name": name,
            "namespace": _NAMESPACE,
            "annotations": {REMOVE_LAST_REVISION: "true"},  # a deleted package must not stay deployed
        },
        "spec": {
            "description": "The packages that variants are made of."
            if not deployment
            else "Packages to deploy.",
            "type": "git",
            "deployment": deployment,
            "git": {"repo": str(path.absolute()), "branch": "main", "createBranch": True},
        },
    }


def _cluster(region: str, index: int, *, network: int, production: bool) -> dict[str, Any]:
    labels = {"region": region, "stage": "production" if production else "staging"}
    if index % 10 == 0:
        labels["tier"] = "gold"
    return {
        "apiVersion": "fleet.example.dev/v1",
        "kind": "Cluster",
        "metadata": {"name": f"{region}-{index:02}", "namespace": _NAMESPACE, "labels": labels},
        "spec": {
            "nodes": 3 + index % 5,
            "replicas": 2 + index % 3,
            "serviceCidr": f"10.{network}.0.0/16",
        },
    }
