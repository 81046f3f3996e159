"""`pvbus status`: it counts what is there, and names what needs a person, with the command that shows it."""

import json
from pathlib import Path
from typing import Any

import click.testing
import pytest

from pvbus.cli.status import status
from pvbus.core.kernel.records import SETS, ChildState, Hold
from tests.tools.bustables import Row, write_tables
from tests.tools.fleetrows import (
    SET,
    child,
    conflict,
    in_conflict,
    markers,
    obj,
    ready,
    rollout,
    rollup,
    task,
    unready,
    variant,
)

QUIET: list[Row] = [
    *markers(),
    obj(SETS, "default/web"),
    ready("default/web", kind=SET),
    *(row for name in ("a", "b") for row in (variant(f"default/{name}"), ready(f"default/{name}"))),
]


def run(folder: Path, rows: list[Row], *arguments: str) -> Any:
    write_tables(folder / "bus.db", rows)
    call = [*arguments, "--bus", f"sqlite:{folder}/bus.db"]
    return click.testing.CliRunner().invoke(status, call, catch_exceptions=False, standalone_mode=False)


def test_a_quiet_fleet_needs_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, QUIET, "--check")
    assert result.return_value == 0
    assert result.stdout.splitlines() == [
        "sets            1   1 ready",
        "variants        2   2 ready",
        "",
        "nothing needs a person",
    ]


@pytest.mark.parametrize(
    ("rows", "what", "command"),
    [
        (
            [*in_conflict("default/a", [conflict("spec.replicas", 2, 3)])],
            "1 draft has conflicts",
            "pvbus conflicts list",
        ),
        (
            [
                rollup("default/web", Hold(id="h", token="t", count=5)),
                child("default/web", "a", ChildState.HELD),
            ],
            "1 set holds removals back",
            "pvbus get removals -A",
        ),
        ([task("default/a", "edge.a.v1", "Certified", "Is it?")], "1 task is open", "pvbus task list"),
        (
            [rollout("default/web", "Stopped", 1, {"failing": 2})],
            "1 rollout has stopped",
            "pvbus rollout status",
        ),
    ],
)
def test_what_needs_a_person_is_named_with_the_command_that_shows_it(
    tmp_path: Path, rows: list[Row], what: str, command: str
) -> None:
    result = run(tmp_path, [*QUIET, *rows], "--check", "-o", "json")
    assert result.return_value == 3
    needs = {need["what"]: need["command"] for need in json.loads(result.stdout)["needs"]}
    assert needs[what] == command
    assert (
        run(
            tmp_path,
            [],
        ).return_value
        == 0
    ), "without --check the exit code says that it was shown"


def test_what_only_works_needs_nobody(tmp_path: Path) -> None:
    result = run(tmp_path, [*QUIET, variant("default/c"), unready("default/c", "Waiting")], "--check")
    assert "variants        3   1 working, 2 ready" in result.stdout
    assert result.return_value == 0
