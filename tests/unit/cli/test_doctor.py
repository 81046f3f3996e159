"""`pvbus doctor` on the embedded API server and a bus in a file, and its decisions alone."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.doctor.cluster import rivals_of
from pvbus.cli.doctor.rights import groups_of, needs_of
from pvbus.cli.main import run
from pvbus.core.api.crds import crds
from pvbus.core.kernel.rights import RIGHTS
from pvbus.core.kernel.topics import SERVICES, topic_specs
from pvbus.ports.cluster import Object, Resource
from tests.tools.served import Served, serve

Findings = dict[tuple[str, str], Any]
CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("doctor") / "data", crds=list(crds())) as server:
        yield server


@pytest.fixture
def bus(tmp_path: Path, capsys: CAPTURE) -> str:
    url = f"sqlite:{tmp_path / 'bus.db'}"
    assert run(["topics", "--create", "--bus", url]) == 0
    capsys.readouterr()
    return url


async def create_topics(file: Path, *, without: str) -> None:
    bus = await SqliteBus.open(file)
    await bus.create_topics([spec for spec in topic_specs() if spec.name != without])
    await bus.close()


def doctor(served: Served, capsys: CAPTURE, *arguments: str) -> tuple[int, Findings]:
    """Run it; return the exit code, and the findings by area and subject."""
    code = run(["doctor", "--kubeconfig", str(served.server.kubeconfig_path), "-o", "json", *arguments])
    found = json.loads(capsys.readouterr().out)
    return code, {(each["area"], each["subject"]): each for each in found}


def test_all_is_well(served: Served, bus: str, capsys: CAPTURE) -> None:
    code, found = doctor(served, capsys, "--bus", bus)
    assert (code, {each["state"] for each in found.values()}) == (0, {"ok"})
    assert found["API server", "clock"]["state"] == "ok"
    assert found["definitions", "PackageVariantSet"]["message"] == "v1alpha2 is served"
    assert found["bus", "topics"]["state"] == "ok"
    assert {area for area, _ in found} == {"API server", "definitions", "packages", "rights", "bus"}


def test_every_right_of_the_chosen_services_is_looked_at(served: Served, capsys: CAPTURE) -> None:
    _, found = doctor(served, capsys, "--service", "render", "--service", "conditions")
    rights = [subject for area, subject in found if area == "rights"]
    assert rights == [
        "render: packagevariants.config.porch.kpt.dev",
        "render: packagevariantsets.config.porch.kpt.dev",
        "conditions: packagevariants.config.porch.kpt.dev/status",
        "conditions: packagevariantsets.config.porch.kpt.dev/status",
        "conditions: controllerrevisions.apps",
        "conditions: events.events.k8s.io",
        "conditions: packagevariants.config.porch.kpt.dev",
        "conditions: packagevariantsets.config.porch.kpt.dev",
    ]


@pytest.mark.parametrize(
    ("user", "state"),
    [("system:serviceaccount:pvbus-system:pvbus-{service}", "ok"), ("pvbus-{service}", "wrong")],
)
def test_the_rights_of_a_user_are_those_of_his_roles(
    served: Served, capsys: CAPTURE, user: str, state: str
) -> None:
    _, found = doctor(served, capsys, "--as", user, "--service", "render")
    states = {each["state"] for (area, _), each in found.items() if area == "rights"}
    assert states == {state}


def test_a_cluster_without_definitions(tmp_path: Path, capsys: CAPTURE) -> None:
    with serve(tmp_path / "data") as empty:
        code, found = doctor(empty, capsys)
    assert code == 1
    lines = [each for (area, _), each in found.items() if area == "definitions"]
    assert {each["state"] for each in lines} == {"wrong"}
    assert {each["action"] for each in lines} == {"install Porch, or pvbus install --overlay standalone"}


def test_topics_that_are_missing_or_differ(served: Served, tmp_path: Path, capsys: CAPTURE) -> None:
    nothing = f"sqlite:{tmp_path / 'none.db'}"
    code, found = doctor(served, capsys, "--bus", nothing)
    assert (code, found["bus", nothing]["state"]) == (1, "wrong")
    asyncio.run(create_topics(tmp_path / "bus.db", without="pvbus.targets"))
    _, found = doctor(served, capsys, "--bus", f"sqlite:{tmp_path / 'bus.db'}")
    assert found["bus", "pvbus.targets"]["state"] == "wrong"
    assert found["bus", "pvbus.targets"]["action"] == "pvbus topics --create"
    assert ("bus", "topics") not in found


def test_without_a_bus_nothing_is_wrong_with_it(served: Served, capsys: CAPTURE) -> None:
    _, found = doctor(served, capsys)
    assert found["bus", "bus"]["state"] == "unknown"
    assert "--bus kafka://" in found["bus", "bus"]["action"]


@pytest.mark.parametrize(("seconds", "state"), [(0, "ok"), (-4, "ok"), (60, "wrong"), (-60, "wrong")])
def test_the_clocks(
    served: Served, capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch, seconds: int, state: str
) -> None:
    true = HttpCluster.server_time

    async def shifted(self: HttpCluster) -> float | None:
        return (await true(self) or 0.0) + seconds

    monkeypatch.setattr(HttpCluster, "server_time", shifted)
    _, found = doctor(served, capsys, "--service", "unroll")
    assert found["API server", "clock"]["state"] == state


def test_a_server_that_does_not_answer_is_the_only_line_about_the_cluster(
    tmp_path: Path, bus: str, capsys: CAPTURE
) -> None:
    with serve(tmp_path / "data") as gone:
        kubeconfig = gone.server.kubeconfig_path
    assert run(["doctor", "--kubeconfig", str(kubeconfig), "--bus", bus]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["wrong", "ok"]
    assert any("API server, answer: see whether the kubeconfig names it" in line for line in lines)


# ------------------------------------------------------------ decisions


def controllers(*args: str, **env: str) -> Object:
    container = {"args": list(args), "env": [{"name": k, "value": v} for k, v in env.items()]}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(
    ("deployment", "rivals", "reason"),
    [
        (controllers("--reconcilers=repositories"), [], "neither is named"),
        (controllers("--reconcilers=repositories,packagevariants"), ["packagevariants"], "one is named"),
        (controllers("--reconcilers", "packagevariantsets"), ["packagevariantsets"], "in a word of its own"),
        (controllers("--reconcilers=*"), ["packagevariants", "packagevariantsets"], "all are on"),
        (controllers(ENABLE_PACKAGEVARIANTS="true"), ["packagevariants"], "by a variable"),
        (controllers(ENABLE_PACKAGEVARIANTS="false"), [], "a variable that says no"),
        (controllers("--verbose"), [], "another argument"),
    ],
)
def test_rivals(deployment: Object, rivals: list[str], reason: str) -> None:
    assert list(rivals_of(deployment)) == rivals, reason


def test_the_groups_of_a_service_account_are_those_that_kubernetes_gives_it() -> None:
    assert groups_of("jane") == ["system:authenticated"]
    assert groups_of("system:serviceaccount:fleet:pvbus-inject") == [
        "system:authenticated",
        "system:serviceaccounts",
        "system:serviceaccounts:fleet",
    ]


def test_only_ingest_needs_observed_kinds_and_not_those_that_are_its_own() -> None:
    clusters = Resource("fleet.example.dev", "v1", "Cluster", "clusters", True)
    repositories = Resource("config.porch.kpt.dev", "v1alpha1", "Repository", "repositories", True)
    needs = list(needs_of(SERVICES, [clusters, repositories]))
    assert len(needs) == sum(map(len, RIGHTS.values())) + 1
    (observed,) = [need for need in needs if need.is_observed]
    assert (observed.service, observed.right.title) == ("ingest", "clusters.fleet.example.dev")
