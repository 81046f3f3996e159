"""What users of Crossplane and Carvel rely on: each row of their files names the tests that show it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.documents.test_promotion_faults import ROOT, names_in

ROWS_MIN = {"crossplane": 19, "carvel": 22}
"""Rows by the file's name. A promise goes only with the behaviour."""


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
