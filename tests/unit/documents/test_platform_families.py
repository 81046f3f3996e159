"""What users of Crossplane and Carvel rely on: each row of their files names the tests that show it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.documents.test_promotion_faults import ROOT, names_in

ROWS_MIN = {"crossplane": 26, "carvel": 27}
"""Rows by the file's name. A promise goes only with the behaviour."""
REQUIREMENTS = {
    "crossplane": [f"X{number}" for number in range(1, 22)],
    "carvel": [f"C{number}" for number in range(1, 19)],
}
WITHOUT_SERVER = {"X16", "C18"}
"""One is about documents, the other about files."""
REAL = "cluster"
"""The mark of tests that need a real API server."""
STORIES = ("e2e/packaging/test_mistakes.py", "e2e/cluster/test_platform.py")
"""They tell both servers each step."""


def rows_of(family: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / f"{family}.toml").read_text())["row"]
    return rows


@pytest.mark.parametrize("family", ROWS_MIN)
def test_no_row_is_lost_or_empty(family: str) -> None:
    rows = rows_of(family)
    assert len(rows) >= ROWS_MIN[family]
    assert all(row["promise"] and row["tests"] for row in rows)
    assert len({row["promise"] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    "row", [row for family in ROWS_MIN for row in rows_of(family)], ids=lambda row: str(row["promise"])
)
def test_the_tests_of_a_row_exist(row: dict[str, Any]) -> None:
    for test in row["tests"]:
        file, _, function = test.partition("::")
        assert function in names_in(ROOT / file), f"{file} has no {function}"


@pytest.mark.parametrize("family", ROWS_MIN)
def test_each_requirement_has_a_test_on_the_embedded_and_on_a_real_server(family: str) -> None:
    rows = [row for row in rows_of(family) if row.get("ids")]
    assert sorted(id_ for row in rows for id_ in row["ids"]) == sorted(REQUIREMENTS[family])
    for row in rows:
        is_offline = bool(WITHOUT_SERVER.intersection(row["ids"]))
        assert ("step" in row or {"embedded", "real"} <= row.keys()) != is_offline, row["ids"]


@pytest.mark.parametrize(
    "row",
    [row for family in ROWS_MIN for row in rows_of(family) if "step" in row],
    ids=lambda row: row["step"],
)
def test_a_step_is_told_to_both_servers(row: dict[str, Any]) -> None:
    """By its module, whose story both tests tell, or by each of the tests."""
    file, _, step = row["step"].partition("::")
    module = Path(file).stem
    assert f"    {step}(world)\n" in (ROOT / file).read_text() or all(
        f" {module}.{step}(" in (ROOT / story).read_text() for story in STORIES
    )
    assert all(f" {module}.tell(world)\n" in (ROOT / story).read_text() for story in STORIES)


@pytest.mark.parametrize(
    "row",
    [row for family in ROWS_MIN for row in rows_of(family) if "real" in row],
    ids=lambda row: row["real"],
)
def test_a_real_server_is_real(row: dict[str, Any]) -> None:
    for name, is_real in (("embedded", False), ("real", True)):
        file, _, function = row[name].partition("::")
        assert function in names_in(ROOT / file), f"{file} has no {function}"
        assert (f"mark.{REAL}" in (ROOT / file).read_text()) == is_real, file
