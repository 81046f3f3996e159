"""Hostile requests of three identities make nobody else wait, and bring no error of the server about."""

import os
from pathlib import Path

import pytest

from tests.e2e.hostile.world import measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALL = "PVBUS_TEST_HOSTILE"
"""Set to send all 200 requests of each identity; otherwise the first ones are sent."""

COUNT, COUNT_ALL = 60, 200
READY_SECONDS, LABEL_SECONDS = 1.0, 2.0
FACTOR = 4
"""The tests share their machine."""


def test_hostile_requests_make_nobody_wait(tmp_path: Path) -> None:
    """A user without a role, an editor and a namespace's administrator send them; a probe asks meanwhile."""
    figures = measure(tmp_path, COUNT_ALL if os.environ.get(ALL) else COUNT)
    report = "\n".join(figures.lines())
    print(report)
    assert not figures.failures(), report
    assert not figures.traces, report
    assert figures.exit_code == 0, report
    assert max(figures.ready) <= FACTOR * READY_SECONDS, report
    assert max(figures.labels) <= FACTOR * LABEL_SECONDS, report
