"""Which writes of Porch's own controllers keep pvbus from writing, and for how long."""

from typing import Any

import pytest

from pvbus.core.platform.establish.rivals import (
    QUIET_SECONDS,
    RELAPSE_SECONDS,
    Mark,
    last_mark,
    mark_of,
    wait_seconds,
)


def _object(*managers: tuple[str, str]) -> dict[str, Any]:
    fields = [{"manager": manager, "time": time, "operation": "Update"} for manager, time in managers]
    return {"metadata": {"namespace": "default", "name": "web", "managedFields": fields}}


NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


@pytest.mark.parametrize(
    ("obj", "at"),
    [
        (_object(("porch-controllers", "2026-01-01T12:00:00Z")), NOON),
        (_object(("kubectl", "2026-01-01T12:00:00Z"), ("pvbus-inject", "2026-01-01T12:00:00Z")), None),
        (_object(("porch-controllers", "2026-01-01T11:00:00Z"),
                 ("porch-controllers", "2026-01-01T12:00:00Z")), NOON),
        (_object(("porch-controllers", "no time")), 0.0),
        ({"metadata": {}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_mark_of_an_object(obj: dict[str, Any], at: float | None) -> None:
    """Only Porch's program counts, by its last write."""
    mark = mark_of(obj)
    assert (mark.at if mark else None) == at


def test_the_last_mark_is_that_of_the_latest_write() -> None:
    """Of many objects, the one that was written last says when."""
    older, newer = (_object(("porch-controllers", f"2026-01-01T{hour}:00:00Z")) for hour in (11, 12))
    found = last_mark([newer, older, {}])
    assert found is not None
    assert found.at == NOON
    assert last_mark([]) is None


@pytest.mark.parametrize(
    ("age", "beside", "wait"),
    [
        (0.0, False, QUIET_SECONDS),
        (QUIET_SECONDS - 1, False, 1.0),
        (QUIET_SECONDS, False, 0.0),
        (3600.0, False, 0.0),
        (QUIET_SECONDS, True, RELAPSE_SECONDS - QUIET_SECONDS),
        (RELAPSE_SECONDS, True, 0.0),
        (-5.0, False, QUIET_SECONDS + 5),
    ],
)
def test_how_long_to_wait(age: float, beside: bool, wait: float) -> None:
    """A minute after the last write, ten once Porch has answered a write of ours; an hour is enough."""
    assert wait_seconds(Mark(NOON, "default", "web"), NOON + age, beside=beside) == wait
    assert wait_seconds(None, NOON, beside=beside) == 0.0
