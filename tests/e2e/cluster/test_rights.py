"""Every service under its own role on a real API server: the audit log has no refusal and every right."""

import asyncio
import http.client
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.progress import SET
from pvbus.core.kernel.rights import ALL_RIGHTS, OBSERVED_VERBS, PROMOTION_KINDS, Request, requests_of
from pvbus.core.kernel.rights import PACKAGES as PACKAGE_STORE
from pvbus.core.kernel.topics import PROMOTION, SERVICES
from pvbus.install import manifests
from pvbus.install.objects import NAMESPACE, Options
from pvbus.install.roles import observing
from tests.e2e.cli.small_fleet import PACKAGES, REVISION, Client, name_of, stop_rollouts
from tests.e2e.test_rights import delete, main_job, promotion_job, until
from tests.tools.packagestore import Replica, create, route, wait_until_available
from tests.tools.realcluster import RealCluster, real_cluster_of
from tests.tools.runcluster import DEFINITIONS
from tests.tools.serviceprocess import ServiceProcess, account_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

BESIDE = {
    Request("get", "", "configmaps"),
    Request("get", "apiregistration.k8s.io", "apiservices"),
    Request("update", "apiregistration.k8s.io", "apiservices"),
}
"""What the package store may do by roles for one object each."""
GROUP, PLURAL = "fleet.example.dev", "clusters"
OF_THE_JOB = (*SERVICES, *PROMOTION)
"""Without those of packages, whose rights `tests/e2e/cluster/test_platform.py` tries."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    yield from real_cluster_of(DEFINITIONS)


def permitted(service: str) -> set[Request]:
    own = {request for right in ALL_RIGHTS[service] for request in requests_of(right)}
    observed = {Request(verb, GROUP, PLURAL) for verb in OBSERVED_VERBS}
    return own.union(observed, *map(requests_of, PROMOTION_KINDS)) if service == "ingest" else own


def asked(cluster: RealCluster, service: str) -> tuple[set[Request], list[str]]:
    """Return what a service has asked for, and what was refused, by the audit log."""
    events = [event for event in cluster.audit.events() if event.user.username == account_of(service)]
    about_objects = [event for event in events if event.object_ref.resource]
    requests = {Request(e.verb, e.object_ref.api_group, e.resource) for e in about_objects}
    return requests, [str(event) for event in events if event.response_status.code in (401, 403)]


@asynccontextmanager
async def running(process: ServiceProcess) -> AsyncIterator[None]:
    await asyncio.to_thread(process.start)
    try:
        yield
    finally:
        assert await asyncio.to_thread(process.end) == 0, process.output


def install(cluster: RealCluster) -> None:
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    create(
        cluster, [head, *manifests.objects("standalone", Options(), ("promotion",)), observing(GROUP, PLURAL)]
    )


def use_a_secret(cluster: RealCluster, folder: Path) -> None:
    """A Repository of which the store reads credentials."""
    data = {"username": "person", "password": "secret"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "git"}, "stringData": data}
    assert cluster.ask("POST", "/api/v1/namespaces/default/secrets", secret)[0] == 201
    spec = {
        "type": "git",
        "git": {"repo": str(folder / "private.git"), "branch": "main", "secretRef": {"name": "git"}},
    }
    repository = {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "Repository",
        "metadata": {"name": "private"},
        "spec": spec,
    }
    path = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/default/repositories"
    assert cluster.ask("POST", path, repository)[0] == 201


def mistype(cluster: RealCluster) -> None:
    """Drafts in a namespace and in a Repository that there are not: both are looked up."""
    spec = {"packageName": "a", "workspaceName": "v1", "repository": "nowhere", "tasks": [{"type": "init"}]}
    draft = {"apiVersion": "porch.kpt.dev/v1alpha1", "kind": "PackageRevision", "spec": spec}
    for namespace, missing in (("nowhere", "namespaces"), ("default", "repositories.config.porch.kpt.dev")):
        path = f"/apis/porch.kpt.dev/v1alpha1/namespaces/{namespace}/packagerevisions"
        code, answer = cluster.ask("POST", path, {**draft, "metadata": {"namespace": namespace}})
        assert (code, answer["message"]) == (404, f'{missing} "nowhere" not found')


def ask_directly(cluster: RealCluster, port: int) -> None:
    """A request past kube-apiserver, by a service account with its token."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/pvbus-render/token"
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    code, answer = cluster.ask("POST", path, review)
    assert code == 201, answer
    headers = {"Authorization": f"Bearer {answer['status']['token']}"}
    context = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", "/apis/porch.kpt.dev/v1alpha1", headers=headers)
        assert connection.getresponse().status == 200
    finally:
        connection.close()


async def test_the_main_job_uses_each_right_and_no_other(cluster: RealCluster, tmp_path: Path) -> None:
    """Variants, drafts, proposals, upgrades and removals: 0 refusals, 0 rights that nobody used."""
    install(cluster)
    store = Replica(cluster, tmp_path / "packages")
    route(cluster, store.port)
    bus = {"PVBUS_BUS": f"sqlite:{tmp_path / 'bus.db'}"}
    services = {name: ServiceProcess(name, cluster, tmp_path, bus) for name in OF_THE_JOB}
    client = Client(await HttpCluster.connect(cluster.kubeconfig))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.cluster.close)
        await stack.enter_async_context(running(store))
        await asyncio.to_thread(wait_until_available, cluster)
        ask_directly(cluster, store.port)
        use_a_secret(cluster, tmp_path)
        mistype(cluster)
        for name in OF_THE_JOB:
            if name != "ingest":
                await stack.enter_async_context(running(services[name]))
        async with running(services["ingest"]):
            await main_job(client, tmp_path)
            await promotion_job(client)
            await stop_rollouts(client)
        await delete(client, REVISION, name_of(PACKAGES[2], 2))  # while ingest is away: it asks for its name
        async with running(services["ingest"]):
            await client.until_there(name_of(PACKAGES[2], 2))
            await until(client, SET, "web", Ready="True")
    for name in (*OF_THE_JOB, PACKAGE_STORE):
        requests, refused = asked(cluster, name)
        assert refused == [], name
        assert permitted(name) - requests == set(), name
        assert requests - permitted(name) == (BESIDE if name == PACKAGE_STORE else set()), name
