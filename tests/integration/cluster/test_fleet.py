"""A fleet's life on a real Kubernetes API server: definitions, fan-out, changes, restart, deletion."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import CRDS
from tests.integration.cluster.world import USER, Fleet, Kubectl, Services, eventually
from tests.tools.auditlog import accepted
from tests.tools.realcluster import RealCluster, is_established

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build

COLLECTOR = "system:kube-controller-manager"
PUBLISHED_SECONDS_MAX = 30.0
MakeFleet = Callable[[int], Fleet]


@pytest.mark.parametrize("file", CRDS, ids=lambda file: file.name.partition(".")[0])
def test_our_definitions_are_accepted(file: Path, kubectl: Kubectl) -> None:
    """The server serves each kind, and takes its file from kubectl again, applied either way."""
    assert is_established(kubectl.json("get", "crd", file.stem))
    assert "serverside-applied" in kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
    assert "configured" in kubectl("apply", "-f", file)
    explained = ""
    deadline = time.monotonic() + PUBLISHED_SECONDS_MAX
    while not explained and time.monotonic() < deadline:
        with contextlib.suppress(AssertionError):  # a changed definition's schema is published a moment later
            explained = kubectl("explain", file.stem.partition(".")[0])
    assert "spec" in explained


def test_a_set_becomes_one_variant_per_target(fleet_of: MakeFleet, real_cluster: RealCluster) -> None:
    """50 targets give 50 variants, owned by the set, with one create each, and the set reports it."""
    since = real_cluster.audit.end()
    fleet = fleet_of(50)
    uid = fleet.get("packagevariantset", "web")["metadata"]["uid"]
    variants = fleet.variants()
    assert sorted(variants) == sorted(map(fleet.variant_of, fleet.clusters))
    for cluster in fleet.clusters:
        variant = variants[fleet.variant_of(cluster)]
        assert [owner["uid"] for owner in variant["metadata"]["ownerReferences"]] == [uid]
        assert variant["spec"]["downstream"] == {"repo": "edge", "package": f"{cluster}-web"}
        assert variant["spec"]["packageContext"]["data"] == {"tier": "standard"}
    assert fleet.condition("TargetsApplied")["reason"] == "AllApplied"
    writes = [each for each in real_cluster.audit.writes(USER, since) if each.resource == "packagevariants"]
    created = [event.object_ref.name for event in writes if event.verb == "create"]
    assert sorted(created) == sorted(variants)
    assert accepted(writes) == writes


def test_a_label_change_writes_one_variant(
    fleet_of: MakeFleet, services: Services, real_cluster: RealCluster
) -> None:
    """A label that an expression reads changes the variant of its target, with one update, and no other."""
    fleet = fleet_of(5)
    services.settle()
    since = real_cluster.audit.end()
    fleet.kubectl("label", "cluster", "site-02", "tier=gold", "--overwrite")
    changed = fleet.variant_of("site-02")
    eventually(lambda: fleet.tier_of(changed) == "gold", lambda: services.output)
    services.settle()
    writes = [each for each in real_cluster.audit.writes(USER, since) if each.resource == "packagevariants"]
    assert [(each.verb, each.object_ref.name, each.is_accepted) for each in writes] == [
        ("update", changed, True)
    ], list(map(str, writes))


def test_a_removed_target_takes_its_variant_along(fleet_of: MakeFleet, services: Services) -> None:
    """Its variant goes for good, finalizer and all; the others are the objects that they were."""
    fleet = fleet_of(5)
    before = {name: variant["metadata"]["uid"] for name, variant in fleet.variants().items()}
    fleet.kubectl("delete", "cluster", "site-03")
    gone = fleet.variant_of("site-03")
    eventually(lambda: gone not in fleet.names(), lambda: services.output)
    services.settle()
    after = {name: variant["metadata"]["uid"] for name, variant in fleet.variants().items()}
    assert after == {name: uid for name, uid in before.items() if name != gone}


def test_a_restart_writes_nothing(fleet_of: MakeFleet, services: Services, real_cluster: RealCluster) -> None:
    """Services that start again over a fleet that is up to date read it, and send no write at all."""
    fleet_of(5)
    services.settle()
    services.stop()
    since = real_cluster.audit.end()
    services.start()
    asked = [each for each in real_cluster.audit.events(since) if each.user.username == USER]
    lists = {each.resource for each in asked if each.verb == "list"}
    assert {"clusters", "packagevariants", "packagevariantsets", "packagerevisions"} <= lists
    assert [str(each) for each in asked if each.is_write] == []


def test_a_killed_api_server_loses_nothing(
    fleet_of: MakeFleet, services: Services, real_cluster: RealCluster
) -> None:
    """After kill -9 and a restart of the server a change arrives as ever, and nothing else is written."""
    fleet = fleet_of(3)
    services.settle()
    since = real_cluster.audit.end()
    real_cluster.apiserver.kill()
    real_cluster.apiserver.start()
    assert real_cluster.wait_until_ready(), real_cluster.tails()
    fleet.kubectl("label", "cluster", "site-02", "tier=gold", "--overwrite")
    changed = fleet.variant_of("site-02")
    eventually(lambda: fleet.tier_of(changed) == "gold", lambda: services.output)
    services.settle()
    writes = [each for each in real_cluster.audit.writes(USER, since) if each.resource == "packagevariants"]
    assert {(each.verb, each.object_ref.name) for each in accepted(writes)} == {("update", changed)}


def test_what_a_person_edits_stays(fleet_of: MakeFleet, services: Services) -> None:
    """Labels and annotations of a person outlive updates and restarts; an edit of the spec is put back."""
    fleet = fleet_of(3)
    variant = fleet.variant_of("site-01")
    fleet.kubectl("label", "packagevariant", variant, "team=shop")
    fleet.kubectl("annotate", "packagevariant", variant, "example.com/note=mine")
    context = '{"spec":{"packageContext":{"data":{"tier":"mine"}}}}'
    fleet.kubectl("patch", "packagevariant", variant, "--type=merge", "-p", context)
    eventually(lambda: fleet.tier_of(variant) == "standard", lambda: services.output)
    fleet.kubectl("label", "cluster", "site-01", "tier=gold", "--overwrite")
    eventually(lambda: fleet.tier_of(variant) == "gold", lambda: services.output)
    services.stop()
    services.start()
    metadata = fleet.get("packagevariant", variant)["metadata"]
    assert metadata["labels"]["team"] == "shop"
    assert metadata["annotations"]["example.com/note"] == "mine"
    assert fleet.tier_of(variant) == "gold"


def test_a_deleted_set_takes_its_variants_along(
    fleet_of: MakeFleet, services: Services, real_cluster: RealCluster
) -> None:
    """The cluster's garbage collector deletes them, and pvbus lets each go; nothing else is deleted."""
    other, fleet = fleet_of(2), fleet_of(5)
    since = real_cluster.audit.end()
    names = fleet.names()
    fleet.kubectl("delete", "packagevariantset", "web")
    eventually(lambda: fleet.names() == [], lambda: f"{fleet.names()}\n{services.output}")
    services.settle()
    deletes = [each for each in real_cluster.audit.events(since) if "delete" in each.verb]
    collected = {each.object_ref.name for each in deletes if each.user.username == COLLECTOR}
    assert collected == set(names)
    assert [str(each) for each in deletes if each.user.username == USER] == []
    assert len(other.names()) == 2
    fleet.delete()  # the namespace, too: nothing is left in it that cannot go


def test_what_cannot_be_made_here_is_named(fleet_of: MakeFleet, services: Services) -> None:
    """Without Porch's server no draft is made, and each variant says which kind is missing."""
    fleet = fleet_of(2)
    services.settle()
    for variant in fleet.variants().values():
        ready = next(each for each in variant["status"]["conditions"] if each["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "Error")
        assert 'no matches for kind "PackageRevisionResources"' in ready["message"]
