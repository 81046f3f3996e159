"""Packages on a real API server, with kubectl: who may do what, who did it, and accidents of the servers."""

import asyncio
import http.client
import json
import shutil
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR, KEPT_LABEL
from pvbus.core.kernel.topics import ALL_SERVICES, PROMOTION
from pvbus.install import manifests
from pvbus.install.objects import NAMESPACE, Options
from pvbus.install.roles import observing
from tests.e2e.cli.small_fleet import REVISION, Client
from tests.e2e.cli.test_rollout import policy
from tests.e2e.cluster.packagesworld import APPROVER, EDITOR, GROUP, SECONDS_MAX, TwoUsersWorld
from tests.e2e.cluster.test_run_cluster import kubectl as kubectl
from tests.e2e.proposing import apply_fleet, proposed_through_kills
from tests.tools.auditlog import accepted
from tests.tools.authority import Authority
from tests.tools.packagestore import (
    SERVING_NAME,
    Replica,
    available,
    create,
    give_authority,
    install,
    route,
    wait_until_available,
)
from tests.tools.realcluster import RealCluster, real_cluster_of
from tests.tools.runcluster import DEFINITIONS
from tests.tools.serviceprocess import ServiceProcess, account_of, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400, func_only=True)]

NAME = "blue.web.v1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    yield from real_cluster_of(DEFINITIONS)


@pytest.fixture(scope="module")
def world(
    cluster: RealCluster, kubectl: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoUsersWorld]:
    folder = tmp_path_factory.mktemp("packages")
    replica = Replica(cluster, folder)
    install(cluster, replica.port)
    try:
        replica.start()
        wait_until_available(cluster)
        yield TwoUsersWorld(cluster, replica, kubectl, folder)
    finally:
        replica.kill()


def test_approval_is_a_right_of_its_own_and_git_names_who_used_it(world: TwoUsersWorld) -> None:
    """An editor drafts, saves and proposes, and may not approve; the approver may do nothing else."""
    name = world.draft(EDITOR, "web")
    assert name == NAME
    world.save(EDITOR, name, "by hand\n")
    world.propose(EDITOR, name)
    refused = world.approve(EDITOR, name)
    assert refused.returncode == 1
    assert refused.stderr.strip() == (
        f'Error from server (Forbidden): packagerevisions.{GROUP} "{name}" is forbidden: User "{EDITOR}" '
        f'cannot patch resource "packagerevisions/approval" in API group "{GROUP}" in the namespace "default"'
    )
    assert "cannot patch resource" in world.run(APPROVER, "label", "packagerevision", name, "a=b").stderr
    approved = world.approve(APPROVER, name)
    assert approved.returncode == 0, approved.stderr
    assert world.json("get", "packagerevision", name)["spec"]["lifecycle"] == "Published"
    assert world.authors()[0] == APPROVER
    assert EDITOR in world.authors()
    written = [line for line in world.replica.lines("package written") if line["name"] == name]
    steps = [
        (line["user"], line["resource"], line.get("lifecycle_before"), line.get("lifecycle"))
        for line in written
    ]
    assert steps == [
        (EDITOR, "packagerevisions", None, "Draft"),
        (EDITOR, "packagerevisionresources", None, None),
        (EDITOR, "packagerevisions", "Draft", "Proposed"),
        (APPROVER, "packagerevisions/approval", "Proposed", "Published"),
    ]


def test_a_watch_shows_what_happens(world: TwoUsersWorld) -> None:
    """kubectl get -w, through kube-apiserver, shows a draft that is made, proposed and deleted."""
    command = world.command("get", "packagerevisions", "-w", "--output-watch-events", "--no-headers")
    with (world.folder / "watch").open("w+") as output:
        watching = subprocess.Popen(command, env=world.environment(APPROVER), stdout=output, text=True)
        try:
            name = world.draft(EDITOR, "seen")
            world.propose(EDITOR, name)
            world.kubectl(EDITOR, "delete", "packagerevision", name)
            shown = Path(output.name)
            until(lambda: "DELETED" in shown.read_text(), lambda: shown.read_text())
        finally:
            watching.kill()
            watching.wait(30)
    lines = [line.split() for line in shown.read_text().splitlines() if name in line]
    assert [(words[0], words[-2]) for words in lines] == [
        ("ADDED", "Draft"),
        ("MODIFIED", "Proposed"),
        ("DELETED", "Proposed"),
    ]


def test_a_killed_store_comes_back_with_the_same_objects(world: TwoUsersWorld) -> None:
    """uid, resourceVersion, labels and owners are as before; meanwhile kube-apiserver says what is away."""
    name = world.draft(EDITOR, "lasting")
    world.kubectl(EDITOR, "label", "packagerevision", name, "team=shop")
    before = world.json("get", "packagerevision", name)
    world.replica.kill()
    done = world.run(EDITOR, "get", "packagerevision", name)
    assert done.returncode == 1
    assert "unable to handle the request" in done.stderr or "ServiceUnavailable" in done.stderr, done.stderr
    world.replica.start()
    wait_until_available(world.cluster)
    assert world.json("get", "packagerevision", name) == before


def test_a_restart_of_kube_apiserver_is_survived(world: TwoUsersWorld) -> None:
    """The store says that it is away, is ready again by itself, and has lost nothing."""
    name = world.draft(EDITOR, "patient")
    world.cluster.apiserver.kill()
    until(lambda: world.replica.readiness()[0] == 503, world.replica.readiness)
    assert world.cluster.url.removeprefix("https://") in world.replica.readiness()[1]
    world.cluster.apiserver.start()
    assert world.cluster.wait_until_ready()
    until(lambda: world.replica.readiness()[0] == 200, world.replica.readiness)
    wait_until_available(world.cluster)
    world.propose(EDITOR, name)
    assert world.approve(APPROVER, name).returncode == 0


# ------------------------------------------------------------ promotion


class Proposed(NamedTuple):
    """A fleet whose drafts were proposed while the services of promotion were killed. All services run.

    turns: how often each has to have become a proposal, by its name. draft: the one that nobody opted in.
    services: by name.
    """

    turns: Counter[str]
    draft: str
    services: Mapping[str, ServiceProcess]


@pytest.fixture(scope="module")
def proposed(world: TwoUsersWorld) -> Iterator[Proposed]:
    head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    installed = manifests.objects("standalone", Options(), (manifests.PROMOTING,))
    create(world.cluster, [head, *installed, observing("fleet.example.dev", "clusters")])
    bus = {"PVBUS_BUS": f"sqlite:{world.folder / 'bus.db'}"}
    services = {name: ServiceProcess(name, world.cluster, world.folder, bus) for name in ALL_SERVICES}
    try:
        yield asyncio.run(_proposed(world, services))
    finally:
        for service in services.values():
            service.kill()


async def _proposed(world: TwoUsersWorld, services: Mapping[str, ServiceProcess]) -> Proposed:
    def start() -> None:
        for name in PROMOTION:
            services[name].start(wait=False)

    client = Client(await HttpCluster.connect(world.cluster.kubeconfig))
    try:
        await apply_fleet(client, world.folder)
        for service in services.values():
            service.start(wait=False)
        turns = await proposed_through_kills(client, services, start)
        revisions = await client.items(REVISION)
    finally:
        await client.cluster.close()
    (draft,) = (name for name in map(_name_of_draft, revisions) if name.startswith("edge-"))
    return Proposed(turns, draft, services)


def _name_of_draft(revision: Any) -> str:
    return str(revision["metadata"]["name"]) if revision["spec"]["lifecycle"] == "Draft" else ""


def test_each_draft_is_proposed_once_though_the_services_of_promotion_are_killed(
    world: TwoUsersWorld, proposed: Proposed
) -> None:
    """The barrier holds until it is acknowledged, and a proposal that keeps its variant from a change is a
    draft again; by the log of the store each became a proposal as often as it had to, and the audit log
    has no more requests for it."""
    release = account_of("release")
    moves = [line for line in _moves(world, release) if line["lifecycle"] != "Published"]
    assert Counter(line["name"] for line in moves if line["lifecycle"] == "Proposed") == proposed.turns
    assert [line["lifecycle"] for line in moves].count("Draft") == 1
    writes = accepted(world.cluster.audit.writes(release))
    asked = Counter(event.object_ref.name for event in writes if not event.object_ref.subresource)
    assert asked  # not all: a request that was in flight at the kill has no answer, and may have been done
    assert (
        not asked - proposed.turns - Counter({line["name"] for line in moves if line["lifecycle"] == "Draft"})
    )
    assert not world.cluster.audit.writes(account_of("promote"))


def _moves(world: TwoUsersWorld, user: str) -> list[dict[str, Any]]:
    """Return the lines of the store's log in which a user changed a lifecycle, in their order."""
    return [line for line in world.replica.lines("package written") if line.get("user") == user]


def test_a_policy_approves_in_two_waves_and_release_alone_has_the_right(
    world: TwoUsersWorld, proposed: Proposed
) -> None:
    """Who may write revisions may not approve one; a condition that he writes ends a `kubectl wait`. The
    second wave waits for a person; what nobody proposed stays a draft."""
    names = sorted(proposed.turns)
    refused = world.approve(EDITOR, names[0])
    assert 'cannot patch resource "packagerevisions/approval"' in refused.stderr
    _wait_for_a_condition(world, proposed.draft)
    since = world.cluster.audit.end()
    world.apply(policy(settle="1s", canaries=[], waves=WAVES, budgets={"maxInFlight": 4}))
    world.kubectl("", "wait", POLICY, "--for=jsonpath={.status.phase}=Holding", TIMEOUT)
    assert _published(world) == names[:WAVE_ONE]
    world.kubectl("", "annotate", POLICY, "promotion.pvbus.dev/approve=1.1")
    world.kubectl("", "wait", POLICY, "--for=jsonpath={.status.phase}=Completed", TIMEOUT)
    approvals = [line for line in _moves(world, account_of("release")) if line["lifecycle"] == "Published"]
    assert {line["resource"] for line in approvals} == {"packagerevisions/approval"}
    assert sorted(line["name"] for line in approvals[:WAVE_ONE]) == names[:WAVE_ONE]
    assert sorted(line["name"] for line in approvals) == names == _published(world)
    assert world.json("get", "packagerevision", proposed.draft)["spec"]["lifecycle"] == "Draft"
    for service, resources in WRITTEN.items():
        events = world.cluster.audit.events(since)
        mine = [event for event in events if event.user.username == account_of(service)]
        assert [str(event) for event in mine if event.response_status.code in (401, 403)] == []
        assert {event.resource for event in mine if event.is_write} == resources, service
    tag = f"{names[0].split('.')[1]}/v1"
    assert world.authors(tag, world.folder / "edge-africa.git")[0] == account_of("release")


POLICY = "rolloutpolicy/fleet"
TIMEOUT = f"--timeout={SECONDS_MAX}s"
WAVE_ONE = 3
PERSON = {"name": "looks", "person": {"question": "Does it look well?"}}
WAVES = [{"count": WAVE_ONE, "checks": [PERSON]}, {"percent": 100}]
WRITTEN = {
    "promote": set(),
    "rollout": {"rolloutpolicies/status", "controllerrevisions"},
    "release": {"packagerevisions/approval"},
}
"""What each service writes in a rollout of proposed revisions."""


def _wait_for_a_condition(world: TwoUsersWorld, name: str) -> None:
    """Have kubectl wait for a condition of a draft, which an editor applies meanwhile."""
    resource = f"packagerevision/{name}"
    command = world.command("wait", resource, "--for=condition=example.dev/Certified", TIMEOUT)
    waiting = subprocess.Popen(command, env=world.environment(APPROVER), stdout=subprocess.PIPE, text=True)
    condition = {"type": "example.dev/Certified", "status": "True"}
    try:
        manifest = {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": "PackageRevision",
            "metadata": {"name": name},
            "status": {"conditions": [condition]},
        }
        apply = ("apply", "--server-side", "--field-manager=auditor", "-f", "-")
        world.kubectl(EDITOR, *apply, stdin=yaml.safe_dump(manifest))
        output, _ = waiting.communicate(timeout=SECONDS_MAX)
    finally:
        waiting.kill()
    assert (waiting.returncode, "condition met" in output) == (0, True), output


def _published(world: TwoUsersWorld) -> list[str]:
    """Return the names of the fleet's published revisions, without the branches' placeholders."""
    found = [
        obj["metadata"]["name"]
        for obj in world.json("get", "packagerevisions")["items"]
        if obj["spec"]["lifecycle"] == "Published" and obj["spec"].get("revision", 0) > 0
    ]
    return sorted(name for name in found if name.startswith("edge-"))


# ------------------------------------------------------------ the garbage collector


@pytest.mark.parametrize("how", ["background", "foreground", "forced"])
def test_what_a_person_edited_outlives_its_set_and_the_garbage_collector(
    world: TwoUsersWorld, proposed: Proposed, how: str
) -> None:
    """The draft stays without an owner, marked and named; all else goes. The collector is refused where it
    comes before pvbus, as it does where somebody takes the finalizers away, and does not try without end.
    Applied again, the variant has its draft back."""
    name = f"kept-{how}"
    packages = [f"{name}-{number}" for number in range(3)]
    variants = [f"{name}-blue-{package}" for package in packages]
    world.publish(f"{name}-base")
    since = world.cluster.audit.end()
    world.apply(_set_of(world, name, packages))
    until(lambda: _rendered(world, packages).keys() == set(packages), lambda: _drafts(world, packages))
    draft = _rendered(world, packages)[packages[1]]
    world.save(EDITOR, draft, "mine\n")
    with _forced(world, proposed.services["inject"], variants if how == "forced" else []):
        cascade = "background" if how == "forced" else how
        world.kubectl("", "delete", "packagevariantset", name, f"--cascade={cascade}", TIMEOUT)
        until(lambda: list(_drafts(world, packages)) == [draft], lambda: _drafts(world, packages))
        if how == "forced":
            until(lambda: _deletions(world, draft, since) != [], lambda: _drafts(world, packages))
    if how != "forced":
        until(lambda: not _owners(_drafts(world, packages)[draft]), lambda: _drafts(world, packages))
        metadata = _drafts(world, packages)[draft]["metadata"]
        assert metadata["annotations"][KEPT_FOR] == f"{name}/{variants[1]}@"
        assert metadata["labels"][KEPT_LABEL] == "true"
    assert _drafts(world, packages)[draft]["metadata"]["annotations"][EDITED_BY] == EDITOR
    assert not {*variants} & {*world.kubectl("", "get", "packagevariants", "-o", "name").split("/")}
    former = _drafts(world, packages)[draft]["metadata"].get("ownerReferences")
    world.apply(_set_of(world, name, packages))
    until(lambda: _rendered(world, packages).keys() == set(packages), lambda: _drafts(world, packages))
    until(
        lambda: (
            _owners(_drafts(world, packages)[draft]) == [variants[1]]
            and _drafts(world, packages)[draft]["metadata"]["ownerReferences"] != former
        ),
        lambda: _drafts(world, packages),
    )
    assert _rendered(world, packages)[packages[1]] == draft
    assert KEPT_FOR not in _drafts(world, packages)[draft]["metadata"]["annotations"]
    assert world.files(draft)["note.txt"] == "mine\n"
    codes = _deletions(world, draft, since)
    assert set(codes) <= {409}
    assert len(codes) <= REFUSALS_MAX


@contextmanager
def _forced(world: TwoUsersWorld, inject: ServiceProcess, variants: list[str]) -> Iterator[None]:
    """Take the finalizers of variants away while inject, which sets them, is away."""
    if variants:
        inject.kill()
        for variant in variants:
            patch = json.dumps({"metadata": {"finalizers": None}})
            world.kubectl("", "patch", "packagevariant", variant, "--type=merge", "-p", patch)
    yield
    if variants:
        inject.start(wait=False)


REFUSALS_MAX = 20
"""The garbage collector waits twice as long after each refusal, from 5 ms: the 20th is 40 minutes later."""


def _deletions(world: TwoUsersWorld, name: str, since: int) -> list[int]:
    """Return what was answered to those who wanted to delete a revision."""
    events = [event for event in world.cluster.audit.events(since) if event.object_ref.name == name]
    return [event.response_status.code for event in events if event.verb == "delete"]


def _set_of(world: TwoUsersWorld, name: str, packages: list[str]) -> dict[str, Any]:
    """Return a set that makes these packages of `<name>-base`, all in the repository of the world."""
    upstream = {"repo": "blue", "package": f"{name}-base", "revision": 1}
    targets = [{"repositories": [{"name": "blue", "packageNames": packages}]}]
    spec = {"upstream": upstream, "targets": targets}
    return world.object("config.porch.kpt.dev/v1alpha2", "PackageVariantSet", name, spec)


def _drafts(world: TwoUsersWorld, packages: list[str]) -> dict[str, Any]:
    """Return the open revisions of packages, by name."""
    return {
        obj["metadata"]["name"]: obj
        for obj in world.json("get", "packagerevisions")["items"]
        if obj["spec"]["packageName"] in packages
    }


def _rendered(world: TwoUsersWorld, packages: list[str]) -> dict[str, str]:
    """Return the names of the drafts that are ready, by package."""
    return {
        obj["spec"]["packageName"]: name
        for name, obj in _drafts(world, packages).items()
        if ("Rendered", "True")
        in [(each["type"], each["status"]) for each in obj.get("status", {}).get("conditions", ())]
    }


def _owners(obj: Any) -> list[str]:
    return [owner["name"] for owner in obj["metadata"].get("ownerReferences", ())]


# ------------------------------------------------------------ past kube-apiserver


def ask(port: int, path: str, certificate: Any = None, **headers: str) -> tuple[int, str]:
    context = ssl._create_unverified_context()
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


LIST = f"/apis/{GROUP}/v1alpha1/namespaces/default/packagerevisions"


def test_headers_count_only_with_the_certificate_of_kube_apiserver(world: TwoUsersWorld) -> None:
    """Without it, with a user's own and with one of another name nobody becomes an administrator."""
    port = world.replica.port
    forged = {"X_Remote_User": "eve", "X_Remote_Group": "system:masters"}
    assert ask(port, LIST, **forged)[0] == 401
    assert ask(port, LIST)[0] == 401
    other = world.cluster.front_proxies.issue("somebody-else")
    assert ask(port, LIST, other, **forged)[0] == 401
    user = world.cluster.users.issue("eve")
    code, text = ask(port, LIST, user, **forged)
    assert (code, 'User \\"eve\\" cannot list resource' in text) == (403, True), text
    assert ask(port, LIST, world.cluster.front_proxy, **forged)[0] == 200
    assert ask(port, LIST, world.cluster.front_proxy)[0] == 401  # it names nobody
    for path in ("/healthz", "/livez", "/readyz"):
        assert ask(port, path)[0] == 200
    with pytest.raises(OSError):  # noqa: PT011 - TLS ends the connection, at one of several moments
        ask(port, LIST, Authority(world.folder, "unknown").issue("eve"))


def test_a_token_is_reviewed_by_kube_apiserver(world: TwoUsersWorld) -> None:
    world.kubectl("", "create", "serviceaccount", "robot")
    token = world.kubectl("", "create", "token", "robot").strip()
    code, text = ask(world.replica.port, LIST, Authorization=f"Bearer {token}")
    assert (code, "system:serviceaccount:default:robot" in text) == (403, True), text
    assert ask(world.replica.port, LIST, Authorization=f"Bearer {token}x")[0] == 401
    assert ask(world.replica.port, LIST, Authorization="Bearer ")[0] == 401


def shown_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_a_certificate_that_rotates_is_served_without_a_restart(world: TwoUsersWorld, tmp_path: Path) -> None:
    """A mounted Secret is replaced, first with files that do not fit, then with good ones."""
    authority = Authority(tmp_path, "issuer")
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    def mount(key_of: str) -> None:
        pair = authority.issue(f"serving-{time.monotonic_ns()}", hosts=[SERVING_NAME, "localhost"])
        other = authority.issue("other")
        shutil.copy(pair.certificate, mounted / "tls.crt")
        shutil.copy(pair.key if key_of == "own" else other.key, mounted / "tls.key")

    mount("own")
    settings = {
        "PVBUS_SERVING_CERTIFICATE_FILE": str(mounted / "tls.crt"),
        "PVBUS_SERVING_KEY_FILE": str(mounted / "tls.key"),
        "PVBUS_SERVING_WRITE_AUTHORITY": "false",
    }
    second = Replica(world.cluster, tmp_path / "second", settings)
    second.start()
    try:
        give_authority(world.cluster, authority.certificate.read_bytes())
        route(world.cluster, second.port)
        first = shown_certificate(second.port)
        world.kubectl(EDITOR, "get", "packagerevisions")
        mount("another")
        until(lambda: second.lines("the new serving certificate is not used") != [], lambda: second.output)
        assert shown_certificate(second.port) == first
        mount("own")
        until(lambda: shown_certificate(second.port) != first, lambda: second.output)
        until(lambda: available(world.cluster)["status"] == "True", lambda: available(world.cluster))
        world.kubectl(EDITOR, "get", "packagerevisions")
        metrics = second.get("metrics")[1]
        assert "pvbus_serving_certificate_expiry_timestamp_seconds 1" in metrics
        assert 'pvbus_package_requests_total{code="200",verb="list"}' in metrics
    finally:
        route(world.cluster, world.replica.port)
        assert second.end() == 0
