"""Nephio's own packages and manifests, unchanged: from `kubectl apply` to drafts in git."""

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.core.api.kptfile import FILE
from tests.e2e.nephio.world import (
    CATALOG,
    REVISION,
    Hosted,
    Nephio,
    condition,
    installed,
    kubectl_binary,
    manifest,
    nephio,
    ready,
)

pytestmark = [
    pytest.mark.shared,
    pytest.mark.kubectl,
    pytest.mark.skipif(not CATALOG.is_dir(), reason="needs ../shared/data/nephio beside the checkout"),
]

WORKLOAD_CLUSTER_CRD = "catalog/nephio/core/nephio-operator/crd/bases/infra.nephio.org_workloadclusters.yaml"
CLUSTERS = ("edge01", "edge02")
PRESENT = {
    "cluster": "mgmt",
    "configsync": "mgmt-staging",
    "crds": "mgmt-staging",
    "kindnet": "mgmt-staging",
    "multus": "mgmt-staging",
}
"""Inner variants of packages that the data has, and where their drafts are."""
ABSENT = {
    "local-path-provisioner": ("catalog-infra-capi", "local-path-provisioner"),
    "metallb": ("catalog-distros-sandbox", "metallb"),
    "repo": ("catalog-distros-sandbox", "repository"),
    "rootsync": ("catalog-nephio-optional", "rootsync"),
    "vlanindex": ("catalog-infra-capi", "vlanindex"),
}
"""Inner variants of packages that the data lacks."""
LOCAL_EDIT = ("workload-cluster.yaml", "  - sriov\n", "")
RELEASES = (
    (
        "catalog-infra-capi",
        "nephio-workload-cluster",
        ("workload-cluster.yaml", "masterInterface: eth1", "masterInterface: ens3"),
    ),
    ("catalog-infra-capi", "cluster-capi-kind", ("cluster.yaml", "v1.31.0", "v1.32.0")),
    (
        "catalog-workloads-free5gc",
        "pkg-example-upf-bp",
        ("capacity.yaml", "maxUplinkThroughput: 5G", "maxUplinkThroughput: 10G"),
    ),
)
"""Repository, package, and the change in one of its files."""
DOWNSTREAMS = (("mgmt", "{}"), ("mgmt", "{}-cluster"), ("{}", "free5gc-upf"))
ONLY_IN_CONTAINERS = ("nfdeploy-fn", "interface-fn", "dnn-fn", "nad-fn")
FIRST_IMAGE_THAT_CANNOT_RUN = "docker.io/nephio/nfdeploy-fn:latest"


@pytest.fixture
def binary() -> Path:
    found = kubectl_binary()
    if found is None:
        pytest.skip("needs kubectl 1.32 or 1.36, or Go to build it")
    return found


@pytest.fixture
async def fleet(binary: Path, tmp_path: Path) -> AsyncIterator[Hosted]:
    async with nephio(tmp_path, binary) as running:
        yield running


def documents(files: dict[str, str]) -> list[Any]:
    return [doc for file, text in files.items() if file.endswith("yaml") for doc in yaml.safe_load_all(text)]


def check_workload_cluster(files: dict[str, str], name: str) -> None:
    """The package bears the cluster's name throughout, each name once."""
    found = documents(files)
    variants = [doc for doc in found if doc["kind"] == "PackageVariant"]
    parts = {"cluster", "configsync", "crds", "kindnet", "local-path-provisioner", "metallb", "multus"}
    parts |= {"repo", "rootsync", "vlanindex"}
    assert {doc["metadata"]["name"] for doc in variants} == {f"{name}-{part}" for part in parts}
    for doc in variants:
        assert doc["spec"]["downstream"]["package"] == doc["metadata"]["name"]
        assert [injector["name"] for injector in doc["spec"]["injectors"]] == [name]
        (function,) = doc["spec"]["pipeline"]["mutators"]
        assert function["configMap"]["nephio.org/cluster-name"] == name
        assert doc["metadata"]["labels"] == {"nephio.org/site-type": "edge", "nephio.org/region": "us-west1"}
    (cluster,) = [doc for doc in found if doc["kind"] == "WorkloadCluster"]
    assert (cluster["metadata"]["name"], cluster["spec"]["clusterName"]) == (name, name)
    texts = "\n".join(text for file, text in files.items() if file.startswith(("pv-", "workload-cluster")))
    own = re.sub(r"#.*|.*internal\.kpt\.dev/upstream-identifier.*", "", texts)  # both tell the origin
    assert "example" not in own
    kptfile = yaml.safe_load(files[FILE])
    images = [function["image"] for function in kptfile["pipeline"]["mutators"]]
    assert [image.rpartition("/")[2] for image in images] == ["set-labels:v0.2", "apply-replacements:v0.1.1"]
    (rendered,) = [c for c in kptfile["status"]["conditions"] if c["type"] == "Rendered"]
    assert rendered["status"] == "True"


def check_user_plane(fleet: Nephio, cluster: str, upf: Any) -> None:
    """The draft has the cluster's facts in it, and what cannot run is told but hides nothing."""
    assert fleet.drafts(cluster) == ["drafts/free5gc-upf/packagevariant-1"]
    files = fleet.draft_tree(cluster, "free5gc-upf")
    (injected,) = [doc for doc in documents(files) if doc["kind"] == "WorkloadCluster"]
    assert injected["spec"]["clusterName"] == cluster
    assert injected["spec"]["masterInterface"] == "eth1"
    assert injected["metadata"]["annotations"]["kpt.dev/injected-resource"] == cluster
    conditions = {c["type"]: c for c in yaml.safe_load(files[FILE])["status"]["conditions"]}
    assert conditions["config.injection.WorkloadCluster.workload-cluster"]["status"] == "True"
    assert conditions["Rendered"]["status"] == "False"
    assert FIRST_IMAGE_THAT_CANNOT_RUN in conditions["Rendered"]["message"]
    shown = ready(upf)
    assert shown is not None
    assert (shown["status"], shown["reason"]) == ("False", "RenderFailed")
    assert FIRST_IMAGE_THAT_CANNOT_RUN in shown["message"]
    assert "mutators[3]" in shown["message"]
    injection = condition(upf, "ConfigInjected")
    assert injection is not None
    assert injection["status"] == "True"
    (target,) = upf["status"]["downstreamTargets"]
    assert target["name"] == f"{cluster}.free5gc-upf.packagevariant-1"
    assert FIRST_IMAGE_THAT_CANNOT_RUN in target["renderStatus"]["error"]
    assert target["renderStatus"]["result"]["exitCode"] == 1


async def edge_clusters(fleet: Nephio, clusters: tuple[str, str]) -> None:
    """Apply the set; each cluster is a rendered draft."""
    await fleet.apply((CATALOG / WORKLOAD_CLUSTER_CRD).read_text(encoding="utf-8"))
    await fleet.register("mgmt", "mgmt-staging", *clusters)
    await fleet.apply(manifest("002-edge-clusters.yaml").replace("edge01", clusters[0]))
    variants = await fleet.until_answered(2)
    assert set(variants) == {f"edge-clusters-mgmt-{name}" for name in clusters}
    for variant in variants.values():
        shown = ready(variant)
        assert shown is not None
        assert (shown["status"], shown["reason"]) == ("True", "NoErrors")
    assert fleet.drafts("mgmt") == [f"drafts/{name}/packagevariant-1" for name in sorted(clusters)]
    for name in clusters:
        check_workload_cluster(fleet.draft_tree("mgmt", name), name)
        revision = await fleet.get(REVISION, f"mgmt.{name}.packagevariant-1")
        assert revision["spec"]["lifecycle"] == "Draft"
        written, first = fleet.commit_titles("mgmt", name)
        assert first == "Creating new revision by cloning"
        assert written.startswith("Function ")


async def test_user_planes_of_clusters_whose_names_have_a_hyphen(fleet: Nephio) -> None:
    """The functions that only containers have are named; the cluster's facts are injected nevertheless."""
    clusters = ("edge-01", "edge02")
    await edge_clusters(fleet, clusters)
    for name in clusters:  # as GitOps does from the published packages
        await fleet.apply(fleet.draft_tree("mgmt", name)["workload-cluster.yaml"])
    await fleet.apply(manifest("005-edge-free5gc-upf.yaml"))
    variants = await fleet.until_answered(4)
    for name in clusters:
        check_user_plane(fleet, name, variants[f"edge-free5gc-upf-{name}-free5gc-upf"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_from_the_catalog_to_upgraded_clusters_with_kubectl_and_git(
    binary: Path, tmp_path: Path
) -> None:
    """`pvbus up`, two clusters, their inner variants and user planes; then all follow a release."""
    functions = json.dumps(dict.fromkeys(ONLY_IN_CONTAINERS, "/bin/cat"))
    async with installed(tmp_path, binary, PVBUS_FUNCTIONS=functions) as fleet:
        await edge_clusters(fleet, CLUSTERS)
        await fleet.edit_file("mgmt.edge01.packagevariant-1", *LOCAL_EDIT)
        for name in CLUSTERS:
            await fleet.publish(f"mgmt.{name}.packagevariant-1")
            await apply_published(fleet, name)
        await check_inner_variants(fleet, await fleet.until_answered(22))
        await fleet.apply(manifest("005-edge-free5gc-upf.yaml"))
        await fleet.until_answered(24)
        for name in CLUSTERS:
            check_rendered_user_plane(fleet, name)
            await fleet.publish(f"{name}.free5gc-upf.packagevariant-1")
            await fleet.publish(f"mgmt.{name}-cluster.packagevariant-1")
        await follow_the_release(fleet)
        await check_upgrades(fleet)


async def apply_published(fleet: Nephio, name: str) -> None:
    """Apply what a published package has for the management cluster, as GitOps does."""
    files = fleet.tree("mgmt", name)
    inner = [text for file, text in files.items() if file.startswith("pv-")]
    await fleet.apply("\n---\n".join([files["workload-cluster.yaml"], *inner]))


async def check_inner_variants(fleet: Nephio, variants: dict[str, Any]) -> None:
    """Those of packages that the catalog lacks are stalled, and say which; the others have their drafts."""
    stalled = {
        name: shown["message"]
        for name, variant in variants.items()
        if (shown := condition(variant, "Stalled")) is not None and shown["status"] == "True"
    }
    assert set(stalled) == {f"{name}-{part}" for name in CLUSTERS for part in ABSENT}
    for name, message in stalled.items():
        repository, package = ABSENT[name.partition("-")[2]]
        assert f'package "{package}" in repository "{repository}"' in message, message
    for name in CLUSTERS:
        for part, repository in PRESENT.items():
            shown = ready(variants[f"{name}-{part}"])
            assert (shown or {}).get("status") == "True", (name, part, shown)
            assert f"drafts/{name}-{part}/packagevariant-1" in fleet.drafts(repository)
        files = fleet.draft_tree("mgmt", f"{name}-cluster")
        (injected,) = [doc for doc in documents(files) if doc["kind"] == "WorkloadCluster"]
        assert injected["spec"]["clusterName"] == name
        assert injected["metadata"]["annotations"]["kpt.dev/injected-resource"] == name


def check_rendered_user_plane(fleet: Nephio, name: str) -> None:
    files = fleet.draft_tree(name, "free5gc-upf")
    (injected,) = [doc for doc in documents(files) if doc["kind"] == "WorkloadCluster"]
    cnis = ["macvlan", "ipvlan", *(["sriov"] if name == "edge02" else [])]
    assert injected["spec"] == {"clusterName": name, "cnis": cnis, "masterInterface": "eth1"}


async def follow_the_release(fleet: Nephio) -> None:
    """The catalog's three packages are released with a change each; sets and variants move to the release."""

    def change(file: str, old: str, new: str) -> Callable[[Path], None]:
        def edit(package: Path) -> None:
            text = (package / file).read_text(encoding="utf-8")
            assert old in text
            (package / file).write_text(text.replace(old, new), encoding="utf-8")

        return edit

    for repository, package, (file, old, new) in RELEASES:
        fleet.release(repository, package, change(file, old, new))
    for repository, package, _ in RELEASES:
        await fleet.kubectl(f"wait packagerevision/{repository}.{package}.v1 --for=create --timeout=20s")
    await fleet.follow("packagevariantset", "edge-clusters")
    await fleet.follow("packagevariantset", "edge-free5gc-upf")
    for name in CLUSTERS:
        await fleet.follow("packagevariant", f"{name}-cluster")


async def check_upgrades(fleet: Nephio) -> None:
    """Every downstream has one upgrade draft; upstream's line changes, and the local edit stays."""
    downstreams = [
        (repository.format(name), package.format(name), release)
        for name in CLUSTERS
        for (repository, package), release in zip(DOWNSTREAMS, RELEASES, strict=True)
    ]
    for repository, package, (_, _, (file, old, new)) in downstreams:
        draft = f"packagerevision/{repository}.{package}.packagevariant-2"
        await fleet.kubectl(f"wait {draft} --for=create --timeout=20s")
        await fleet.kubectl(f"wait {draft} --for=condition=Rendered --timeout=20s")
        before, after = fleet.tree(repository, package), fleet.draft_tree(repository, package, 2)
        assert after == {**before, FILE: after[FILE], file: before[file].replace(old, new)}, draft
        assert before[file] != after[file]
        assert "pvbus.dev/upgrade-conflicts" not in await fleet.kubectl(f"get {draft} -o yaml")
    edited = fleet.draft_tree("mgmt", "edge01", 2)["workload-cluster.yaml"]
    assert "masterInterface: ens3" in edited
    assert "sriov" not in edited
    upgraded = {name for name in fleet.drafts("mgmt") if name.endswith("-2")}
    assert upgraded == {
        f"drafts/{name}{part}/packagevariant-2" for name in CLUSTERS for part in ("", "-cluster")
    }


VARIANT = """\
apiVersion: config.porch.kpt.dev/v1alpha1
kind: PackageVariant
metadata:
  name: upf
  namespace: default
spec:
  upstream: {repo: catalog-workloads-free5gc, package: pkg-example-upf-bp, workspaceName: main}
  downstream: {repo: edge01, package: upf}
  injectors:
  - name: edge01
"""
CLUSTER = """\
apiVersion: infra.nephio.org/v1alpha1
kind: WorkloadCluster
metadata:
  name: edge01
  namespace: default
spec:
  clusterName: edge01
  cnis: [macvlan]
  masterInterface: eth1
"""


async def test_what_is_injected_follows_its_object_until_the_variant_is_gone(fleet: Hosted) -> None:
    """Kind unknown, object made, changed, and deleted; services restarted; variant deleted."""
    await fleet.register("edge01")
    await fleet.apply(VARIANT)
    (upf,) = (await fleet.until_answered(1)).values()
    injection = condition(upf, "ConfigInjected")
    assert injection is not None
    assert (injection["status"], injection["reason"]) == ("False", "RequiredNotInjected")
    assert 'no matches for kind "WorkloadCluster"' in injection["message"]

    await fleet.apply((CATALOG / WORKLOAD_CLUSTER_CRD).read_text(encoding="utf-8"))
    await fleet.kubectl(
        "wait --for=condition=Established crd/workloadclusters.infra.nephio.org --timeout=20s"
    )
    await fleet.apply(CLUSTER)
    await fleet.kubectl("wait packagevariant/upf --for=condition=ConfigInjected --timeout=12s")
    assert "masterInterface: eth1" in fleet.draft_tree("edge01", "upf")["workload-cluster.yaml"]

    await fleet.apply(CLUSTER.replace("eth1", "eth2"))

    async def follows() -> bool:
        return "masterInterface: eth2" in fleet.draft_tree("edge01", "upf")["workload-cluster.yaml"]

    await fleet.until(follows)
    await fleet.until_settled()
    before = (await fleet.records(), fleet.commit_titles("edge01", "upf"))
    await fleet.stop()
    fleet.start()
    await fleet.until_settled()
    assert (await fleet.records(), fleet.commit_titles("edge01", "upf")) == before

    await fleet.kubectl("delete workloadcluster edge01")
    await fleet.kubectl("wait packagevariant/upf --for=condition=ConfigInjected=False --timeout=20s")
    assert await follows()
    assert fleet.drafts("edge01") == ["drafts/upf/packagevariant-1"]

    await fleet.kubectl("delete packagevariant upf --timeout=20s")
    assert fleet.drafts("edge01") == []
