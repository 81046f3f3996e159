"""The services do the main job with the rights of `pvbus.core.kernel.rights`, and use each of them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apiserver import control_plane
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.kernel.effects import KindRef
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.core.kernel.rights import OBSERVED_VERBS, PROMOTION_KINDS, Request, requests_of, rights_of
from pvbus.core.kernel.specretention import POLICY as POLICY_REF
from pvbus.core.kernel.specretention import REVISIONS_MAX, Author, revision_body
from pvbus.core.kernel.specretention import SET as SET_REF
from pvbus.core.kernel.topics import PROMOTION, SERVICES
from pvbus.core.promotion.rollout.commanding import ROLL_BACK
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.process.hosting import Host, host_services
from pvbus.runtime.process.settings import SERVICE_CONFIGS, ApiServerConfig
from tests.e2e.cli.small_fleet import (
    FILES,
    PACKAGES,
    REVISION,
    Client,
    follow_second_revision,
    manifests,
    name_of,
    stop_rollouts,
)
from tests.tools.authorizer import Authorizer, authorizing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLUSTER = Kind("fleet.example.dev", "Cluster")
OBSERVED = frozenset(Request(verb, "fleet.example.dev", "clusters") for verb in OBSERVED_VERBS).union(
    *map(requests_of, PROMOTION_KINDS)
)
POLICY = Kind("promotion.pvbus.dev", "RolloutPolicy")
EVIDENCE_KIND = Kind("promotion.pvbus.dev", "Quarantine")
QUARANTINE = {
    "apiVersion": "promotion.pvbus.dev/v1alpha1",
    "kind": "Quarantine",
    "metadata": {
        "name": f"web-edge-asia-{PACKAGES[3]}",
        "namespace": "default",
        "labels": {"commit": "0" * 40},
    },
    "spec": {"sets": ["none"], "contents": ["none"]},
}
"""An object that rollout may read, and that covers nothing: it reports a commit other than the published."""
EVIDENCE = {
    "object": {
        "apiVersion": QUARANTINE["apiVersion"],
        "kind": "Quarantine",
        "namespace": "'default'",
        "name": "target.name",
        "binding": "Commit",
        "revision": "object.metadata.labels['commit']",
        "good": "true",
    }
}
ROLLOUT_POLICY = {
    "apiVersion": "promotion.pvbus.dev/v1alpha1",
    "kind": "RolloutPolicy",
    "metadata": {"name": "all", "namespace": "default"},
    "spec": {
        "revisions": {"all": True},
        "approval": "Always",
        "settle": "3s",
        "waves": [{"percent": 100, "hold": "1h"}],
        "evidence": EVIDENCE,
    },
}
SECONDS_MAX = 120
OF_THE_JOB = (*SERVICES, *PROMOTION)
"""Without those of packages, whose rights `tests/e2e/cluster/test_platform.py` tries."""


def permitted(service: str, namespaces: tuple[str, ...]) -> frozenset[Request]:
    """What the roles of a service permit, with the roles for the kind that the example's set selects, and for
    that which promote asks for."""
    rights = rights_of(service, namespaced=bool(namespaces))
    own = frozenset(request for right in rights for request in requests_of(right, namespaces))
    observed = (each._replace(namespace=name) for each in OBSERVED for name in namespaces or ("",))
    return own.union(observed) if service == "ingest" else own


@asynccontextmanager
async def served(
    service: str, kubeconfig: Path, bus: Path, namespaces: tuple[str, ...]
) -> AsyncIterator[None]:
    """Run a service until the end of the block, then let it drain."""
    config = SERVICE_CONFIGS[service](
        bus=f"sqlite:{bus}", kubeconfig=str(kubeconfig), namespaces=",".join(namespaces)
    )
    stop = asyncio.Event()
    async with host_services([service], config) as host:
        task = asyncio.create_task(_run(host, stop))
        try:
            yield
        finally:
            stop.set()
            await task


async def _run(host: Host, stop: asyncio.Event) -> None:
    await host.run(stop)


async def until(client: Client, kind: Kind, name: str, **wanted: str) -> Any:
    """Wait until an object's conditions are as wanted; with none, until it is gone."""
    for _ in range(SECONDS_MAX * 10):
        found = await client.get(kind, name)
        conditions = {c["type"]: c["status"] for c in (found or {}).get("status", {}).get("conditions", ())}
        if (wanted or found is None) and wanted.items() <= conditions.items():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} is {found} after {SECONDS_MAX} s")


async def create_all(client: Client, objects: list[Object]) -> None:
    for obj in objects:
        group, _, _ = obj["apiVersion"].rpartition("/")
        client.cluster.forget_resources()
        resource = await client.cluster.resource(Kind(group, obj["kind"]))
        assert resource is not None, obj["kind"]
        await client.cluster.create(resource, obj)


async def relabel(client: Client, name: str, stage: str) -> None:
    """Move a cluster into the set's selection, or out of it."""
    cluster = await client.get(CLUSTER, name)
    cluster["metadata"]["labels"]["stage"] = stage
    await client.put(CLUSTER, cluster)


async def delete(client: Client, kind: Kind, name: str) -> None:
    assert await client.delete(kind, name)


async def main_job(client: Client, folder: Path) -> None:
    """A set makes variants, these make drafts, upstream changes, one cluster goes and returns."""
    await create_all(client, list(manifests(folder / "repositories")))
    await until(client, SET, "web", Ready="True")
    await fill_history(client, SET_REF, "web")
    for package in PACKAGES:
        await client.until_there(name_of(package, 1))
        await client.approve(name_of(package, 1))
    await follow_second_revision(client, folder)
    for package in PACKAGES:
        await client.until_there(name_of(package, 2))
    await until(client, SET, "web", Ready="True")
    await relabel(client, "asia-02", "retired")
    await until(client, REVISION, name_of(PACKAGES[1], 2))  # a draft: deleted
    gone = await until_proposed(client, name_of(PACKAGES[1], 1))  # published: for a person to approve
    assert gone["metadata"].get("ownerReferences", []) == []
    variant = f"web-edge-asia-{PACKAGES[1]}"
    await until(client, VARIANT, variant)
    await asyncio.sleep(2.0)  # inject withdraws its request for the content once it sees that
    await relabel(client, "asia-02", "production")  # its content is asked for anew
    await until(client, VARIANT, variant, Ready="True")


async def fill_history(client: Client, kind: KindRef, name: str) -> None:
    """Give a set or a policy as many former specs as are kept: the next one lets the oldest go."""
    owner = await client.get(Kind(kind.group, kind.kind), name)
    numbers = range(2, REVISIONS_MAX + 2)
    revisions = [revision_body(kind, owner, number, Author(), 0.0) for number in numbers]
    await create_all(client, [{**each, "data": {"spec": {}}} for each in revisions])


async def promotion_job(client: Client) -> None:
    """Promote has a draft proposed; a person rejects it, and edits it; so it is proposed again. A policy
    approves it, its evidence reports another commit, and a person rolls that back."""
    package = PACKAGES[3]
    draft = name_of(package, 2)
    await client.edit(VARIANT, f"web-edge-asia-{package}", opt_in)
    await until_lifecycle(client, draft, "Proposed")
    await client.edit(REVISION, draft, lambda revision: revision["spec"].update(lifecycle="Draft"))
    await client.edit(FILES, draft, lambda files: files["spec"]["resources"].update({"note.txt": "mine\n"}))
    await until_lifecycle(client, draft, "Proposed")
    await create_all(client, [QUARANTINE, ROLLOUT_POLICY])
    await until_lifecycle(client, draft, "Published")
    await until_stale(client)
    await client.edit(POLICY, "all", lambda policy: policy["metadata"].update(annotations={ROLL_BACK: "1"}))
    ended = await until_rolled_back(client)
    assert ended["targets"] == {"total": 1, "rolledBack": 1}
    await fill_history(client, POLICY_REF, "all")
    await client.edit(POLICY, "all", lambda policy: policy["spec"].update(settle="2s"))
    await until_forgotten(client)


async def until_forgotten(client: Client) -> None:
    """Wait until the first spec of the policy is kept no longer."""
    for _ in range(SECONDS_MAX * 10):
        names = [each["metadata"]["name"] for each in await client.items(Kind("apps", "ControllerRevision"))]
        if not any(name.startswith("all-1-") for name in names):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{names} after {SECONDS_MAX} s")


async def until_stale(client: Client) -> None:
    """Wait until rollout has looked whether the commit that the evidence reports is a later one."""
    for _ in range(SECONDS_MAX * 10):
        policy = await client.get(POLICY, "all")
        if "it is at commit 000000000000" in str(policy.get("status")):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{policy} after {SECONDS_MAX} s")


async def until_rolled_back(client: Client) -> Object:
    """Wait until the first attempt is rolled back; return what the history has of it.

    The target is proven again once its evidence reports the commit of what release has published anew.
    Its phase may be gone in a moment: the variant proposes another draft, without the person's file, and
    that is an attempt of its own.
    """
    for _ in range(SECONDS_MAX * 10):
        await report_latest(client)
        policy = await client.get(POLICY, "all")
        for past in policy["status"].get("history", ()):
            if (past["attempt"], past["phase"]) == (1, "RolledBack"):
                return dict(past)
        await asyncio.sleep(0.1)
    raise AssertionError(f"{policy} after {SECONDS_MAX} s")


async def report_latest(client: Client) -> None:
    """Let the evidence report the commit of the target's latest published revision."""
    revisions = [each for each in await client.items(REVISION) if each["spec"]["packageName"] == PACKAGES[3]]
    latest = max(revisions, key=lambda each: int(each["spec"].get("revision") or 0))
    commit = latest["status"]["selfLock"]["git"]["commit"]
    name = f"web-edge-asia-{PACKAGES[3]}"
    if (await client.get(EVIDENCE_KIND, name))["metadata"]["labels"]["commit"] != commit:
        await client.edit(
            EVIDENCE_KIND, name, lambda found: found["metadata"]["labels"].update(commit=commit)
        )


def opt_in(variant: Object) -> None:
    variant["metadata"].setdefault("annotations", {})[AUTO_LIFECYCLE] = "true"


async def until_lifecycle(client: Client, name: str, lifecycle: str) -> None:
    for _ in range(SECONDS_MAX * 10):
        found: Object = await client.get(REVISION, name)
        if found["spec"]["lifecycle"] == lifecycle:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} is {found} after {SECONDS_MAX} s")


async def until_proposed(client: Client, name: str) -> Object:
    for _ in range(SECONDS_MAX * 10):
        found: Object = await client.get(REVISION, name)
        if found["spec"]["lifecycle"] == "DeletionProposed" and not found["metadata"].get("ownerReferences"):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} is {found} after {SECONDS_MAX} s")


@pytest.mark.parametrize("namespaces", [(), ("default",)], ids=["cluster", "namespace"])
async def test_the_main_job_uses_each_right_and_no_other(tmp_path: Path, namespaces: tuple[str, ...]) -> None:
    """Each service behind its own authorizer: no request is refused, and no right is left over; with the
    rights of ClusterRoles, and with those of Roles alone."""
    rights = {name: permitted(name, namespaces) for name in OF_THE_JOB}
    authorizers: Mapping[str, Authorizer] = {
        name: Authorizer(rights[name], namespaced=bool(namespaces)) for name in OF_THE_JOB
    }
    bus = tmp_path / "bus.db"
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(control_plane(tmp_path / "data", 0, ApiServerConfig()))
        configs = {
            name: await stack.enter_async_context(
                authorizing(address.kubeconfig, authorizer, tmp_path / name)
            )
            for name, authorizer in authorizers.items()
        }
        cluster = await HttpCluster.connect(address.kubeconfig)
        stack.push_async_callback(cluster.close)
        client = Client(cluster)
        for name in OF_THE_JOB:
            if name != "ingest":
                await stack.enter_async_context(served(name, configs[name], bus, namespaces))
        async with served("ingest", configs["ingest"], bus, namespaces):
            await main_job(client, tmp_path)
            await promotion_job(client)
            await stop_rollouts(client)
        await delete(
            client, REVISION, name_of(PACKAGES[2], 2)
        )  # while ingest is away: it asks for it by name
        async with served("ingest", configs["ingest"], bus, namespaces):
            await client.until_there(name_of(PACKAGES[2], 2))
            await until(client, SET, "web", Ready="True")
    for name, authorizer in authorizers.items():
        assert authorizer.refused == set(), name
        assert rights[name] - authorizer.seen == set(), name
