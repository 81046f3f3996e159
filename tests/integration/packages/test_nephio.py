"""Nephio's blueprints as real input, cloned from the branch of a catalog into clusters' repositories."""

from pathlib import Path

import pytest

from tests.integration.packages.support import StoreWorld, bare, clone_of, git, push_files, revision, tree

CATALOG = Path(__file__).parents[3].parent / "shared" / "data" / "nephio" / "catalog"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not CATALOG.is_dir(), reason=f"needs the Nephio packages in {CATALOG}"),
]


@pytest.fixture
async def catalog(world: StoreWorld, tmp_path: Path, edge: Path) -> StoreWorld:
    remote = bare(tmp_path / "catalog.git")
    files = {
        str(path.relative_to(CATALOG)): path.read_text() for path in CATALOG.rglob("*") if path.is_file()
    }
    push_files(remote, files)
    await world.add_repository("catalog-infra-capi", remote, git={"directory": "/infra/capi"})
    await world.add_repository("catalog-workloads", remote, git={"directory": "/workloads"})
    await world.add_repository("mgmt", edge, deployment=True)
    return world


async def test_every_package_of_the_catalog_is_found(catalog: StoreWorld) -> None:
    wanted = {
        f"catalog-workloads.{str(path.parent.relative_to(CATALOG / 'workloads')).replace('/', '.')}.main"
        for path in (CATALOG / "workloads").rglob("Kptfile")
    }
    found = {name for name in catalog.names() if name.startswith("catalog-workloads.")}
    assert found == wanted


async def test_a_cluster_is_named_throughout_by_its_package(catalog: StoreWorld, edge: Path) -> None:
    upstream = "catalog-infra-capi.nephio-workload-cluster.main"
    draft = await catalog.create(revision("mgmt", "edge01", "packagevariant-1", clone_of(upstream)))
    assert draft["status"]["conditions"][-1]["status"] == "True"
    files = tree(edge, "drafts/edge01/packagevariant-1", "edge01")
    names = [
        line.strip()
        for text in files.values()
        for line in text.splitlines()
        if line.startswith("  name: ") and "kptfile.kpt.dev" not in line
    ]
    assert sum("edge01" in name for name in names) >= 5
    before = await catalog.files("mgmt.edge01.packagevariant-1")
    assert (await catalog.put(before, {}))["spec"] == before["spec"]


async def test_a_name_with_a_dash_is_rendered_once_when_the_render_is_deferred(
    catalog: StoreWorld, edge: Path
) -> None:
    upstream = "catalog-infra-capi.nephio-workload-cluster.main"
    await catalog.create(
        revision(
            "mgmt",
            "edge-01",
            "packagevariant-1",
            clone_of(upstream),
            annotations={"pvbus.dev/defer-render": "true"},
        )
    )
    await catalog.put(await catalog.files("mgmt.edge-01.packagevariant-1"), {})
    await catalog.put(await catalog.files("mgmt.edge-01.packagevariant-1"), {})
    everything = "\n".join(tree(edge, "drafts/edge-01/packagevariant-1", "edge-01").values())
    assert "edge-01-crds" in everything
    assert "edge-01-01" not in everything
    assert git(edge, "rev-list", "--count", "drafts/edge-01/packagevariant-1") == "2"


async def test_a_package_that_needs_an_unknown_image_says_which(catalog: StoreWorld) -> None:
    upstream = "catalog-workloads.free5gc.pkg-example-upf-bp.main"
    draft = await catalog.create(revision("mgmt", "free5gc-upf", "packagevariant-1", clone_of(upstream)))
    rendered = next(item for item in draft["status"]["conditions"] if item["type"] == "Rendered")
    assert rendered["status"] == "False"
    assert "docker.io/nephio/nfdeploy-fn:latest" in rendered["message"]
