"""What users of Crossplane rely on: each row of crossplane.toml names the tests that show it."""

import tomllib
from pathlib import Path

import pytest

from tests.unit.documents.test_promotion_faults import ROOT, names_in

ROWS = tomllib.loads((Path(__file__).parent / "crossplane.toml").read_text())["row"]
ROWS_MIN = 19
"""A promise goes only with the behaviour."""


def test_no_row_is_lost_or_empty() -> None:
    assert len(ROWS) >= ROWS_MIN
    assert all(row["promise"] and row["tests"] for row in ROWS)
    assert len({row["promise"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row["promise"] for row in ROWS])
def test_the_tests_of_a_row_exist(row: dict[str, list[str]]) -> None:
    for test in row["tests"]:
        file, _, function = test.partition("::")
        assert function in names_in(ROOT / file), f"{file} has no {function}"
