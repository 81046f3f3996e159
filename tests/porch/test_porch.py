"""Porch's command line client and tests of the API, against the package store behind kube-apiserver."""

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster.test_run_cluster import kubectl as kubectl
from tests.porch import cases
from tests.porch.expected import API_TESTS, COMMANDS, RACES
from tests.porch.programs import Porch, PorchUnavailableError, find_or_build
from tests.porch.world import PorchWorld, without_leftovers
from tests.porch.world import world as run_world

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.xdist_group("porch"),  # the git server has one port
]

API_MINUTES_MAX = 25
_RUNNING = re.compile(r"^=== (?:RUN|NAME|CONT)\s+TestE2E/(\w+)")
_ENDED = re.compile(r"^\s+--- (PASS|FAIL|SKIP): TestE2E/(\w+) ")


@pytest.fixture(scope="module")
def porch() -> Porch:
    try:
        return find_or_build()
    except PorchUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def world(porch: Porch, kubectl: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PorchWorld]:
    with run_world(porch, kubectl, tmp_path_factory.mktemp("porch")) as world:
        yield world


def test_every_case_of_the_module_has_its_list_of_differences(porch: Porch) -> None:
    assert {each.name for each in porch.cases.iterdir()} == set(COMMANDS)


@pytest.mark.parametrize("case", COMMANDS)
def test_the_client_prints_what_porch_expects(case: str, world: PorchWorld, tmp_path: Path) -> None:
    """Every command of a case, but for the differences that are listed."""
    differing = {each.number: each for each in cases.run(world, case, tmp_path) if each.differences}
    surprising = {number: each for number, each in differing.items() if number not in COMMANDS[case]}
    assert not surprising
    assert differing.keys() == COMMANDS[case].keys(), "a listed difference is none any more"
    for number, listed in COMMANDS[case].items():
        found = differing[number]
        assert found.differences.keys() == listed.fields, found
        expected, actual = (str([pair[side] for pair in found.differences.values()]) for side in (0, 1))
        assert listed.shows in actual, found
        assert listed.shows not in expected, found


def test_porchs_tests_of_the_api_pass(world: PorchWorld) -> None:
    """All of them, but for those that are listed."""
    command = [str(world.porch.api_tests), "-test.v", f"-test.timeout={API_MINUTES_MAX}m"]
    environment = {**world.environment, "E2E": "1", "RUN_E2E_LOCALLY": "true"}
    with without_leftovers(world.cluster):
        done = subprocess.run(
            command, env=environment, cwd=world.porch.api_folder, capture_output=True, text=True, check=False
        )
    outcomes, said = _read(done.stdout)
    assert len(outcomes) > len(API_TESTS), done.stdout[-2000:] + done.stderr[-2000:]
    unmet = {name: outcome for name, outcome in outcomes.items() if outcome != "PASS"}
    expected = API_TESTS | {name: each for name, each in RACES.items() if name in unmet}
    listed = {name: each.outcome for name, each in expected.items()}
    assert unmet == listed, "\n".join(said[name] for name in unmet.keys() ^ listed.keys())
    for name, each in expected.items():
        assert each.shows in said[name], said[name]


def _read(output: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the outcome of each test, and what it has printed."""
    outcomes: dict[str, str] = {}
    said: defaultdict[str, str] = defaultdict(str)
    running = ""
    for line in output.splitlines():
        if found := _RUNNING.match(line):
            running = found[1]
        elif (ended := _ENDED.match(line)) and "/" not in line.partition("TestE2E/")[2].split(" ")[0]:
            outcomes[ended[2]] = ended[1]
        said[running] += f"{line}\n"
    return outcomes, said
