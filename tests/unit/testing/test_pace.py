"""A slow machine runs fewer tests at once, and they wait longer."""

import pytest

from tests.tools import pace


@pytest.mark.parametrize(
    ("seconds", "at_once", "patience"),
    [(0.08, 4, 6.0), (0.1, 4, 6.0), (0.15, 3, 9.0), (0.2, 3, 12.0), (0.25, 2, 15.0), (2.0, 2, 120.0)],
)
def test_pace(seconds: float, at_once: int, patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_measure", lambda: seconds)
    monkeypatch.setattr(pace, "slowness", pace.slowness.__wrapped__)
    assert pace.at_once(2) == at_once
    assert pace.patience(6.0) == pytest.approx(patience)
