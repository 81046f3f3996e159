"""Nephio's own packages and manifests, unchanged: from `kubectl apply` to drafts in git."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.core.api.kptfile import FILE
from tests.e2e.nephio.world import (
    CATALOG,
    REVISION,
    Nephio,
    condition,
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
FIRST_IMAGE_THAT_CANNOT_RUN = "docker.io/nephio/nfdeploy-fn:latest"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Nephio]:
    binary = kubectl_binary()
    if binary is None:
        pytest.skip("needs kubectl 1.32 or 1.36, or Go to build it")
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


@pytest.mark.parametrize("clusters", [("edge01", "edge02"), ("edge-01", "edge02")])
async def test_edge_clusters_and_their_user_planes(fleet: Nephio, clusters: tuple[str, str]) -> None:
    """Two clusters are two rendered packages; two WorkloadClusters are a UPF draft in each repository."""
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

    # GitOps would apply these from the published packages.
    for name in clusters:
        await fleet.apply(fleet.draft_tree("mgmt", name)["workload-cluster.yaml"])
    await fleet.apply(manifest("005-edge-free5gc-upf.yaml"))
    variants = await fleet.until_answered(4)
    for name in clusters:
        check_user_plane(fleet, name, variants[f"edge-free5gc-upf-{name}-free5gc-upf"])
    for name in clusters:
        assert fleet.commit_titles("mgmt", name) == ["Rendering package", "Creating new revision by cloning"]


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


async def test_what_is_injected_follows_its_object_until_the_variant_is_gone(fleet: Nephio) -> None:
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
