"""`pvbus doctor` on a real API server, whose authorizer answers for the accounts of an installation."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.cli.doctor.command import ACCOUNTS
from pvbus.install.objects import Object
from tests.e2e.cli.command import pvbus
from tests.integration.cluster.test_install import BUS, Installer, until
from tests.integration.cluster.test_install import installer as installer
from tests.integration.cluster.world import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build

LIMITS = "limitranges"
SET: Object = {
    "apiVersion": "config.porch.kpt.dev/v1alpha2",
    "kind": "PackageVariantSet",
    "metadata": {"name": "by-limits", "namespace": "default"},
    "spec": {
        "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
        "targets": [
            {
                "objectSelector": {"apiVersion": "v1", "kind": "LimitRange", "matchLabels": {"a": "b"}},
                "template": {"downstream": {"repo": "edge", "packageExpr": "target.name"}},
            }
        ],
    },
}


@pytest.fixture(scope="module", autouse=True)
def no_set_of_other_tests(kubectl: Kubectl) -> None:
    """They share the API server, and select a kind that no role of an installation lets ingest observe."""
    kubectl("delete", "packagevariantsets", "--all", "--all-namespaces")


@pytest.fixture
def bus(tmp_path: Path) -> str:
    url = f"sqlite:{tmp_path / 'bus.db'}"
    assert pvbus("topics", "--create", "--bus", url, cwd=tmp_path).code == 0
    return url


@pytest.fixture
def by_limits(kubectl: Kubectl) -> Iterator[None]:
    """A set that selects a kind for which no role is installed."""
    kubectl.apply([SET])
    yield
    kubectl("delete", "packagevariantset", "by-limits")


def look(installer: Installer, bus: str, *arguments: str, **where: Any) -> tuple[int, dict[str, Any]]:
    kubeconfig = where.get("kubeconfig", installer.cluster.kubeconfig)
    done = pvbus(
        *("doctor", "--kubeconfig", kubeconfig, "--bus", bus, "-o", "json", *arguments), cwd=installer.folder
    )
    assert done.out, done
    return done.code, {f"{each['area']}, {each['subject']}": each for each in json.loads(done.out)}


def wrong(found: dict[str, Any], area: str = "rights") -> set[str]:
    return {each["subject"] for each in found.values() if each["state"] == "wrong" and each["area"] == area}


def test_the_accounts_of_an_installation_have_their_rights(installer: Installer, bus: str) -> None:
    installer.actions("--bus", BUS)
    until(lambda: not wrong(look(installer, bus, "--as", ACCOUNTS)[1]))
    code, found = look(installer, bus, "--as", ACCOUNTS)
    assert code == 1  # no pod runs here, and Porch's server is not there
    assert wrong(found, "workers") == {"ingest", "unroll", "render", "inject", "conditions"}
    assert found["workers, render"]["message"] == "0 of 2 ready"
    assert wrong(found, "packages") == {"PackageRevisionResources"}
    assert wrong(found, "definitions") == set()
    assert found["Porch, controllers"]["state"] == "ok"
    assert found["bus, topics"]["state"] == "ok"


def test_a_role_that_is_taken_away_is_named(installer: Installer, bus: str, kubectl: Kubectl) -> None:
    installer.actions("--bus", BUS)
    kubectl("delete", "clusterrolebinding", "pvbus-render")
    until(lambda: not allowed(installer, bus))
    _, found = look(installer, bus, "--as", ACCOUNTS, "--service", "render")
    line = found["rights, render: packagevariants.config.porch.kpt.dev"]
    assert line["message"] == "may not list, watch, create, update, delete"
    assert line["action"] == "bind the ClusterRole pvbus-render: pvbus install"


def allowed(installer: Installer, bus: str) -> bool:
    _, found = look(installer, bus, "--as", ACCOUNTS, "--service", "render")
    return not wrong(found)


def test_the_action_gives_ingest_the_kind_that_a_set_selects(
    installer: Installer, bus: str, kubectl: Kubectl, by_limits: None
) -> None:
    """The command of the message, run as it stands, makes the line well."""
    installer.actions("--bus", BUS)
    subject = f"ingest: {LIMITS}"
    until(lambda: wrong(look(installer, bus, "--as", ACCOUNTS)[1]) == {subject})
    _, found = look(installer, bus, "--as", ACCOUNTS)
    line = found[f"rights, {subject}"]
    assert line["message"] == "may not get, list, watch"
    for command in line["action"].split(" && "):
        kubectl(*command.split()[1:])
    try:
        until(lambda: not wrong(look(installer, bus, "--as", ACCOUNTS)[1]))
    finally:
        kubectl("delete", "clusterrole", f"pvbus-observes-{LIMITS}")


def test_who_may_do_nothing_sees_what_is_unknown(installer: Installer, bus: str) -> None:
    """For oneself everything can be asked; for another one only with the right to do so."""
    nobody = installer.cluster.kubeconfig_of("nobody")
    code, found = look(installer, bus, kubeconfig=nobody)
    assert code == 1
    assert {each["state"] for name, each in found.items() if name.startswith("rights")} == {"wrong"}
    assert "--as" in found["rights, render: packagevariants.config.porch.kpt.dev"]["action"]
    _, found = look(installer, bus, "--as", ACCOUNTS, kubeconfig=nobody)
    assert {each["state"] for name, each in found.items() if name.startswith("rights")} == {"unknown"}
    assert found["Porch, controllers"]["state"] == "unknown"


def test_porchs_controllers_are_found(installer: Installer, bus: str, kubectl: Kubectl) -> None:
    labels = {"app": "porch-controllers"}
    container = {"name": "controllers", "image": "example", "args": ["--reconcilers=*"]}
    deployment: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "porch-controllers", "namespace": "porch-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "porch-system"}}
    kubectl.apply([namespace, deployment])
    try:
        _, found = look(installer, bus)
        assert found["Porch, controllers"]["state"] == "wrong"
        assert "packagevariants, packagevariantsets" in found["Porch, controllers"]["message"]
    finally:
        kubectl("delete", "namespace", "porch-system")


def test_a_namespace_without_an_installation(installer: Installer, bus: str) -> None:
    _, found = look(installer, bus, "--namespace", "elsewhere")
    assert found["workers, elsewhere"]["state"] == "unknown"
