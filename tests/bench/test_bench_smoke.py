"""The benchmarks run, and what they count is exact; their times are nobody's claim here."""

import asyncio

import pytest

from tests.bench.affected import affected
from tests.bench.report import table
from tests.bench.scenarios import no_op

COUNTED = ("writes", "records", "sets", "variants")


@pytest.mark.slow
async def test_a_small_run_counts_what_the_design_promises() -> None:
    """No writes where nothing changes, and as many evaluations as there are sets that can be affected."""
    quiet, changes = await asyncio.gather(no_op(small=True), affected(small=True))
    counted = [row for row in (*quiet, *changes) if row.unit in COUNTED]
    assert len(counted) == 13
    missed = [row for row in counted if row.met is not True]
    assert not missed, table(missed)
