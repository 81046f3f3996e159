"""Carvel's packages with users, faults and kills: what never happens, and how it ends.

The schedules are those of `tests.simulation.carvel_schedule`; more of them are played by
`make simulate SEEDS=500 ARGS="--world carvel"`, or here by PVBUS_SIMULATION_SEEDS.
"""

import os

import pytest

from tests.simulation.__main__ import CARVEL, Supervisor, command, unexercised
from tests.simulation.carvel_judge import INSTALL_GROUP, INSTALLED_BY, OWNER, CarvelJudge
from tests.simulation.carvel_schedule import config_map
from tests.simulation.packages_judge import ADOPTED

SEEDS = int(os.environ.get("PVBUS_SIMULATION_SEEDS", "3"))
FIRST = int(os.environ.get("PVBUS_SIMULATION_FIRST", "1"))


@pytest.mark.timeout(0 if SEEDS > 3 else 300)
def test_after_any_storm_packages_are_as_the_rules_say_and_a_restart_is_silent() -> None:
    supervisor = Supervisor(FIRST, SEEDS, 1, quiet=True, world=CARVEL)
    supervisor.run()
    assert supervisor.failed == {}
    assert supervisor.done == SEEDS
    assert unexercised(supervisor.counts, SEEDS, CARVEL) == []


def test_a_failing_schedule_is_repeated_by_its_command() -> None:
    assert command(7, CARVEL) == 'make simulate SEEDS=1 FIRST=7 ARGS="--world carvel"'


MINE = {INSTALLED_BY: "demo/one"}
ADOPTED_MINE = {**MINE, ADOPTED: "true"}


@pytest.mark.parametrize(
    ("verb", "before", "after", "words"),
    [
        ("delete", MINE, MINE, ""),
        ("delete", {}, {}, "somebody else's, and was deleted"),
        ("delete", ADOPTED_MINE, ADOPTED_MINE, "was there before its package, and was deleted"),
        ("update", MINE, MINE, ""),
        ("update", MINE, {INSTALLED_BY: "demo/two"}, "was taken from"),
        ("update", {}, ADOPTED_MINE, ""),
        ("update", {}, MINE, "adopted without a note"),
        ("update", ADOPTED_MINE, {}, ""),
        ("update", MINE, {}, "was given up"),
    ],
)
def test_the_judge_knows_what_must_never_be_written(
    verb: str, before: dict[str, str], after: dict[str, str], words: str
) -> None:
    judge = CarvelJudge()
    one, other = config_map("base", ""), config_map("base", "")
    one["metadata"]["annotations"], other["metadata"]["annotations"] = before, after
    judge.wrote(verb, one, other)
    assert len(judge.problems) == bool(words)
    assert all(words in each for each in judge.problems)


@pytest.mark.parametrize("owner", [{}, {OWNER: "PackageInstall/one"}])
def test_the_judge_tells_users_installs_from_created_ones(owner: dict[str, str]) -> None:
    meta = {"name": "two", "namespace": "demo", "annotations": owner}
    install = {"apiVersion": f"{INSTALL_GROUP}/v1alpha1", "kind": "PackageInstall", "metadata": meta}
    judge = CarvelJudge()
    judge.wrote("delete", install, install)
    judge.wrote("update", {**install, "spec": {"a": 1}}, {**install, "spec": {"a": 2}})
    assert len(judge.problems) == (0 if owner else 2)
