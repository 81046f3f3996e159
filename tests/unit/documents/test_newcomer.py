"""What hurt a newcomer stays mended: each row of newcomer.toml names the tests that show it."""

import tomllib
from pathlib import Path

import pytest

from tests.unit.documents.test_promotion_faults import ROOT, names_in

ROWS = tomllib.loads((Path(__file__).parent / "newcomer.toml").read_text())["row"]
ROWS_MIN = 18
"""What is there stays: a row goes only with what the person tried."""


def test_no_row_is_lost_or_empty() -> None:
    assert len(ROWS) >= ROWS_MIN
    assert all(row["did"] and row["sees"] and row["tests"] for row in ROWS)
    assert len({row["did"] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row["did"] for row in ROWS])
def test_the_tests_of_a_row_exist(row: dict[str, list[str]]) -> None:
    for test in row["tests"]:
        file, _, function = test.partition("::")
        assert function in names_in(ROOT / file), f"{file} has no {function}"
