"""An installation that is limited to namespaces: accounts that have Roles there and nothing else."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pvbus.core.kernel.topics import SERVICES
from tests.e2e.cli.command import Running, pvbus, running
from tests.integration.cluster.test_doctor import look, wrong
from tests.integration.cluster.test_install import BUS, NAMESPACE, Installer
from tests.integration.cluster.test_install import installer as installer
from tests.integration.cluster.world import Fleet, Kubectl, eventually
from tests.tools.ports import free_ports
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400, func_only=True)]  # the fixture may have to build

ACCOUNTS = f"system:serviceaccount:{NAMESPACE}:pvbus-{{service}}"
_numbers = itertools.count(1)


class Accounts:
    """Each service as a process of its own, with the token of its service account; unroll has none."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._stack = ExitStack()
        self.processes: dict[str, Running] = {}

    def start(self, *namespaces: str) -> None:
        ports = free_ports(len(SERVICES))
        for service, port in zip(SERVICES, ports, strict=True):
            given: tuple[str | Path, ...] = ()
            if service != "unroll":
                kubeconfig = self._cluster.kubeconfig_of_account(NAMESPACE, f"pvbus-{service}")
                given = ("--kubeconfig", kubeconfig)
            self.processes[service] = self._stack.enter_context(
                running(
                    *("run", service, "--bus", f"sqlite:{self._folder / 'bus.db'}", *given),
                    *("--health-port", str(port)),
                    cwd=self._folder,
                    PVBUS_NAMESPACES=",".join(namespaces),
                )
            )

    def stop(self) -> None:
        for process in self.processes.values():
            assert process.end() == 0, process.output
        self.processes.clear()

    def close(self) -> None:
        self._stack.close()

    @property
    def output(self) -> str:
        return "\n".join(process.output for process in self.processes.values())


@pytest.fixture
def teams(kubectl: Kubectl) -> Iterator[tuple[Fleet, ...]]:
    """Two fleets, each in a namespace; nobody works on them yet."""
    number = next(_numbers)
    made = tuple(Fleet(kubectl, f"{name}-{number}", 2) for name in ("red", "blue"))
    for fleet in made:
        fleet.apply()
    yield made
    for fleet in made:
        fleet.kubectl("delete", "packagevariantsets,packagevariants", "--all", "--wait=false")
        kubectl("delete", "namespace", fleet.namespace, "--wait=false")


def observe(installer: Installer, kubectl: Kubectl, bus: str, *fleets: Fleet) -> None:
    """Do what the doctor says about the kind that the sets select, in each namespace."""
    found = look(installer, bus, "--as", ACCOUNTS)[1]
    for fleet in fleets:
        line = found[f"rights, ingest: clusters.fleet.example.dev in {fleet.namespace}"]
        assert line["message"] == "may not get, list, watch"
        for command in line["action"].split(" && "):
            kubectl(*command.split()[1:])


def test_roles_are_enough_and_a_namespace_without_one_loses_nothing(
    installer: Installer,
    kubectl: Kubectl,
    teams: tuple[Fleet, ...],
    real_cluster: RealCluster,
    tmp_path: Path,
) -> None:
    """Installed, completed by the doctor's words, run; then one namespace loses its Roles, then leaves the
    list. No account has a right outside, no request is refused before that, and nothing is ever deleted."""
    red, blue = teams
    names = f"{red.namespace},{blue.namespace}"
    bus = f"sqlite:{tmp_path / 'bus.db'}"
    assert pvbus("topics", "--create", "--bus", bus, cwd=tmp_path).code == 0
    installer.actions("--bus", BUS, "--namespaces", names)
    assert (
        kubectl("get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=pvbus", "-o", "name")
        == ""
    )
    observe(installer, kubectl, bus, red, blue)
    eventually(lambda: not wrong(look(installer, bus, "--as", ACCOUNTS)[1]))
    since = real_cluster.audit.end()
    accounts = Accounts(real_cluster, tmp_path)
    try:
        accounts.start(red.namespace, blue.namespace)
        eventually(lambda: red.is_applied(2) and blue.is_applied(2), lambda: accounts.output)
        mine = [e for e in real_cluster.audit.events(since) if ":pvbus-" in e.user.username]
        assert [str(e) for e in mine if e.response_status.code == 403] == []
        assert {e.object_ref.namespace for e in mine if e.object_ref.resource} == {
            red.namespace,
            blue.namespace,
        }

        kubectl("delete", "rolebinding", "--all", "-n", blue.namespace)
        blue.kubectl("label", "cluster", "site-01", "stage=test", "--overwrite")
        red.kubectl("label", "cluster", "site-01", "stage=test", "--overwrite")
        eventually(lambda: len(red.names()) == 1, lambda: accounts.output)
        accounts.stop()
        accounts.start(red.namespace, blue.namespace)
        said = "kind cannot be observed in a namespace"
        eventually(
            lambda: (
                sum(said in line and blue.namespace in line for line in accounts.output.splitlines()) == 5
            ),
            lambda: accounts.output,
        )
        red.kubectl("label", "cluster", "site-01", "stage=production", "--overwrite")
        eventually(lambda: red.is_applied(2), lambda: accounts.output)
        accounts.stop()

        accounts.start(red.namespace)
        red.kubectl("label", "cluster", "site-02", "stage=test", "--overwrite")
        eventually(lambda: len(red.names()) == 1, lambda: accounts.output)
        assert len(blue.names()) == 2
        accounts.stop()
    finally:
        accounts.close()
    deletes = [e for e in real_cluster.audit.events(since) if e.verb == "delete" and e.is_accepted]
    gone = {e.object_ref.namespace for e in deletes if ":pvbus-" in e.user.username}
    assert gone == {red.namespace}


def test_a_namespace_that_leaves_the_installation_takes_its_roles_along(
    installer: Installer, kubectl: Kubectl, teams: tuple[Fleet, ...]
) -> None:
    """Without --namespaces nothing changes; with fewer, Roles go; with none, ClusterRoles come."""
    red, blue = (fleet.namespace for fleet in teams)
    installer.actions("--bus", BUS, "--namespaces", f"{red},{blue}")
    assert set(installer.actions().values()) == {"unchanged"}
    assert len(kubectl.json("get", "roles", "-n", blue)["items"]) == 4
    actions = installer.actions("--namespaces", red)
    assert "removed" in actions.values()
    assert kubectl.json("get", "roles,rolebindings", "-n", blue)["items"] == []
    assert len(kubectl.json("get", "roles,rolebindings", "-n", red)["items"]) == 8
    installer.actions("--namespaces", "")
    assert kubectl.json("get", "roles,rolebindings", "-n", red)["items"] == []
    kubectl("get", "clusterrole", "pvbus-ingest")


def test_two_installations_cannot_work_in_one_namespace(
    installer: Installer, kubectl: Kubectl, teams: tuple[Fleet, ...]
) -> None:
    red, blue = (fleet.namespace for fleet in teams)
    installer.actions("--bus", BUS, "--namespaces", red)
    try:
        other = installer.run("--bus", BUS, "--namespace", "pvbus-other", "--namespaces", f"{red},{blue}")
        assert other.code == 2
        assert f"the pvbus that is installed in the namespace {NAMESPACE} works in {red} already" in other.err
        everywhere = installer.run("--bus", BUS, "--namespace", "pvbus-other")
        assert (everywhere.code, NAMESPACE in everywhere.err) == (2, True)
        apart = installer.run("--bus", BUS, "--namespace", "pvbus-other", "--namespaces", blue)
        assert apart.code == 0, apart
    finally:
        kubectl("delete", "namespace", "pvbus-other", "--ignore-not-found")


def test_the_doctor_names_a_namespace_that_is_mistyped(
    installer: Installer, teams: tuple[Fleet, ...], tmp_path: Path
) -> None:
    bus = f"sqlite:{tmp_path / 'bus.db'}"
    assert pvbus("topics", "--create", "--bus", bus, cwd=tmp_path).code == 0
    red = teams[0].namespace
    _, found = look(installer, bus, "--namespaces", f"{red},rde")
    assert found[f"namespaces, {red}"]["state"] == "ok"
    assert found["namespaces, rde"]["message"] == "there is no such namespace"
    done = installer.run("--bus", BUS, "--namespaces", f"{red},rde")
    assert done.code == 1
    assert 'namespaces "rde" not found' in done.out
